//! The result of a push.

use std::collections::VecDeque;

use ssbroker_md5::{AppendTarget, append_parts};

use crate::Guid;
use crate::reassembly::ExtraValues;
use crate::signature::{Digest, Header};

/// The size at which a new batch of messages is started.
const BATCH_BYTES: usize = 64 << 20;

/// Messages as columns, with concatenated bodies.
#[derive(Debug, Default)]
pub struct MessageBatch {
    /// The conversation ids.
    pub conversations: Vec<Guid>,
    /// The directions.
    pub is_initiator: Vec<bool>,
    /// The sequence numbers.
    pub sequences: Vec<i64>,
    /// The signatures as received; zeros if there is none.
    pub signatures: Vec<Digest>,
    /// Whether there is a signature.
    pub is_signed: Vec<bool>,
    /// The start of each body in `bodies`, and the end of the last one.
    pub offsets: Vec<i32>,
    /// The concatenated bodies.
    pub bodies: Vec<u8>,
    /// The extra columns.
    pub extra: Vec<ExtraValues>,
}

/// The batches that a push fills.
#[derive(Debug, Default)]
pub(crate) struct Output {
    batches: Vec<MessageBatch>,
    /// The number of bytes that may still be released, not counting bytes kept from earlier pushes.
    expected_bytes: usize,
    /// The bodies that were assembled but not released yet, in order.
    assembled: VecDeque<Assembled>,
}

/// The position of the body of a message that may be released.
#[derive(Debug)]
struct Assembled {
    message: u32,
    batch: usize,
    start: usize,
    len: usize,
}

/// The columns of a message without its body.
#[derive(Debug)]
pub(crate) struct MessageInfo<'a> {
    pub(crate) conversation: Guid,
    pub(crate) is_initiator: bool,
    pub(crate) sequence: i64,
    pub(crate) signature: Option<&'a Digest>,
    pub(crate) extra: ExtraValues,
}

/// Why a fragment was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i8)]
pub enum Rejected {
    /// The fragment or its message was received before.
    Duplicate,
    /// The fragment does not match its signature, or the signature is missing.
    CorruptFragment,
    /// The message does not match its signature.
    CorruptMessage,
    /// The fragment is inconsistent with another fragment.
    Conflict,
    /// A number is invalid.
    OutOfRange,
    /// A limit would be exceeded.
    LimitExceeded,
}

impl Rejected {
    /// The labels, indexed by code.
    pub const LABELS: [&'static str; 6] =
        ["duplicate", "corrupt_fragment", "corrupt_message", "conflict", "out_of_range", "limit_exceeded"];

    /// Returns the label used in the rejected rows.
    #[must_use]
    pub fn label(self) -> &'static str {
        Self::LABELS[self as usize]
    }
}

/// A rejected fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The fragment.
    pub header: Header,
    /// The reason.
    pub reason: Rejected,
}

/// The acknowledgement of a direction that a push touched (P15).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acknowledgement {
    /// The conversation id.
    pub conversation: Guid,
    /// The direction that is acknowledged.
    pub is_initiator: bool,
    /// All messages up to and including this one are complete.
    pub acked: Option<i64>,
    /// The first incomplete message and the numbers of its received fragments.
    pub partial: Option<(i64, Vec<i32>)>,
}

/// The result of a push.
#[derive(Debug)]
pub struct Pushed {
    /// The released messages.
    pub messages: Vec<MessageBatch>,
    /// The rejected fragments.
    pub rejected: Vec<Rejection>,
    /// One for each touched direction.
    pub acknowledgements: Vec<Acknowledgement>,
}

impl MessageBatch {
    fn with_capacity(bytes: usize) -> Self {
        Self { offsets: vec![0], bodies: Vec::with_capacity(bytes), ..Self::default() }
    }

    /// Adds a message whose body starts where the last one ends and ends at `end`.
    fn push_row(&mut self, info: MessageInfo<'_>, end: usize) {
        self.conversations.push(info.conversation);
        self.is_initiator.push(info.is_initiator);
        self.sequences.push(info.sequence);
        self.signatures.push(info.signature.copied().unwrap_or_default());
        self.is_signed.push(info.signature.is_some());
        self.extra.push(info.extra);
        self.offsets.push(end as i32);
    }

    /// Returns the end of the last body that belongs to a message.
    fn end(&self) -> usize {
        self.offsets.last().map_or(0, |&end| end as usize)
    }
}

impl Output {
    /// Creates an output for a push of `expected_bytes` bytes.
    pub(crate) fn new(expected_bytes: usize) -> Self {
        Self { batches: Vec::new(), expected_bytes, assembled: VecDeque::new() }
    }

    /// Reduces the expected bytes by the size of a rejected fragment.
    pub(crate) fn skip_bytes(&mut self, len: usize) {
        self.expected_bytes = self.expected_bytes.saturating_sub(len);
    }

    /// Starts a message with a body of `len` bytes; returns where to append the body.
    // Called for every fragment.
    #[allow(clippy::inline_always)]
    #[inline(always)]
    pub(crate) fn start_message(&mut self, info: MessageInfo<'_>, len: usize) -> &mut Vec<u8> {
        let last = self.batch(self.batches.last().map_or(0, |batch| batch.bodies.len()), len);
        let batch = &mut self.batches[last];
        batch.push_row(info, batch.bodies.len() + len);
        &mut batch.bodies
    }

    /// Assembles the bodies of messages that may be released in this order, and digests those with an entry in
    /// `digests`.
    pub(crate) fn assemble(
        &mut self,
        messages: &[u32],
        parts: &[&[u8]],
        ends: &[usize],
        digests: &mut [Option<Digest>],
    ) {
        debug_assert!(self.assembled.is_empty(), "{} bodies are neither released nor dropped", self.assembled.len());
        let (mut first, mut end) = (0, self.batches.last().map_or(0, |batch| batch.bodies.len()));
        for (&message, &last) in messages.iter().zip(ends) {
            let len = parts[first..last].iter().map(|part| part.len()).sum();
            let batches = self.batches.len();
            let batch = self.batch(end, len);
            let start = if batch < batches { end } else { 0 };
            self.assembled.push_back(Assembled { message, batch, start, len });
            (first, end) = (last, start + len);
        }
        let Some(first) = self.assembled.front().map(|body| body.batch) else { return };
        let mut counts = vec![0; self.batches.len() - first];
        for body in &self.assembled {
            counts[body.batch - first] += 1;
        }
        let batches = self.batches[first..].iter_mut().zip(counts);
        let mut to: Vec<_> =
            batches.map(|(batch, messages)| AppendTarget { messages, to: &mut batch.bodies }).collect();
        append_parts(parts, ends, digests, &mut to);
    }

    /// Releases a message whose body is assembled, skipping earlier bodies. Returns the info if its body is not
    /// assembled.
    pub(crate) fn release<'l>(&mut self, message: u32, info: MessageInfo<'l>) -> Option<MessageInfo<'l>> {
        while let Some(Assembled { message: next, batch, start, len }) = self.assembled.pop_front() {
            if next == message {
                let batch = &mut self.batches[batch];
                let end = batch.end();
                if end < start {
                    batch.bodies.copy_within(start..start + len, end);
                }
                batch.push_row(info, end + len);
                return None;
            }
        }
        Some(info)
    }

    /// Removes the bodies that were not released.
    pub(crate) fn drop_unreleased(&mut self) {
        self.assembled.clear();
        for batch in &mut self.batches {
            batch.bodies.truncate(batch.end());
        }
        self.batches.retain(|batch| !batch.sequences.is_empty());
    }

    pub(crate) fn into_batches(self) -> Vec<MessageBatch> {
        self.batches
    }

    /// Returns the batch with space for a body of `len` bytes, if the last batch is filled to `end`.
    // Called for every fragment.
    #[allow(clippy::inline_always)]
    #[inline(always)]
    fn batch(&mut self, end: usize, len: usize) -> usize {
        let capacity = self.expected_bytes.min(BATCH_BYTES).max(len);
        self.expected_bytes = self.expected_bytes.saturating_sub(len);
        if self.batches.last().is_none_or(|batch| end + len > batch.bodies.capacity().max(BATCH_BYTES)) {
            self.batches.push(MessageBatch::with_capacity(capacity));
        }
        self.batches.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(sequence: i64) -> MessageInfo<'static> {
        let conversation = Guid([1; 16]);
        MessageInfo { conversation, is_initiator: true, sequence, signature: None, extra: ExtraValues::Row(0) }
    }

    fn contents(output: Output) -> Vec<(Vec<i64>, Vec<u8>, usize)> {
        let firsts = |batch: &MessageBatch| {
            batch.offsets.windows(2).map(|ends| batch.bodies[ends[0] as usize..ends[1] as usize][0]).collect()
        };
        let batches = output.into_batches().into_iter();
        batches.map(|batch| (batch.sequences.clone(), firsts(&batch), batch.bodies.len())).collect()
    }

    #[test]
    fn unreleased_bodies_leave_no_gap_and_no_empty_batch() {
        // Two of them fill a batch.
        const HALF: usize = BATCH_BYTES / 2;
        let bodies: Vec<Vec<u8>> = (0..6).map(|number| vec![number; if number == 5 { 7 } else { HALF }]).collect();
        let parts: Vec<&[u8]> = bodies.iter().flat_map(|body| [&body[..3], &body[3..]]).collect();
        let ends: Vec<usize> = (1..=6).map(|number| 2 * number).collect();
        let put = |given: &[u32]| {
            let mut output = Output::new(3);
            output.start_message(info(9), 3).extend_from_slice(&[9; 3]);
            let mut digests = [None; 6];
            digests[5] = Some([0; 16]);
            output.assemble(&[0, 1, 2, 3, 4, 5], &parts, &ends, &mut digests);
            assert_eq!(digests[..5], [None; 5]);
            assert_eq!(digests[5], Some(ssbroker_md5::digest(&bodies[5])));
            for &number in given {
                assert!(output.release(number, info(i64::from(number))).is_none());
            }
            output.drop_unreleased();
            assert!(output.release(0, info(0)).is_some(), "no body is assembled any more");
            contents(output)
        };
        let all = [
            (vec![9, 0], vec![9, 0], 3 + HALF),
            (vec![1, 2], vec![1, 2], 2 * HALF),
            (vec![3, 4], vec![3, 4], 2 * HALF),
            (vec![5], vec![5], 7),
        ];
        assert_eq!(put(&[0, 1, 2, 3, 4, 5]), all);
        assert_eq!(put(&[2, 5]), [(vec![9], vec![9], 3), (vec![2], vec![2], HALF), (vec![5], vec![5], 7)]);
        assert_eq!(put(&[]), [(vec![9], vec![9], 3)]);
    }
}
