//! What a push gives back.

use std::collections::VecDeque;

use ssbroker_md5::{Appended, append_parts};

use crate::Guid;
use crate::reassembly::FurtherOf;
use crate::signature::{Digest, Header};

/// A batch of messages is begun anew when it has so many bytes.
const BATCH_BYTES: usize = 64 << 20;

/// Messages, column by column, their bodies one after the other.
#[derive(Debug, Default)]
pub struct MessageBatch {
    /// The conversation of each message.
    pub conversations: Vec<Guid>,
    /// Its direction.
    pub is_initiator: Vec<bool>,
    /// Its number in its direction.
    pub sequences: Vec<i64>,
    /// Its signature as it was received; zeros where it has none.
    pub signatures: Vec<Digest>,
    /// Whether it has one.
    pub is_signed: Vec<bool>,
    /// Where each body begins in `bodies`, and where the last one ends.
    pub offsets: Vec<i32>,
    /// All bodies.
    pub bodies: Vec<u8>,
    /// Where the further columns of each message are.
    pub further: Vec<FurtherOf>,
}

/// The batches that a push fills.
#[derive(Debug, Default)]
pub(crate) struct Output {
    batches: Vec<MessageBatch>,
    /// How many bytes of this push may still come; what is kept from earlier ones comes beside it.
    to_come: usize,
    /// The bodies that stand in the batches without a label, in their order.
    planned: VecDeque<Planned>,
}

/// Where the body of a message stands that may be given out.
#[derive(Debug)]
struct Planned {
    message: u32,
    batch: usize,
    start: usize,
    len: usize,
}

/// What of a message stands beside its body.
#[derive(Debug)]
pub(crate) struct Label<'a> {
    pub(crate) conversation: Guid,
    pub(crate) is_initiator: bool,
    pub(crate) sequence: i64,
    pub(crate) signature: Option<&'a Digest>,
    pub(crate) further: FurtherOf,
}

/// Why a fragment is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i8)]
pub enum Rejected {
    /// It, or its whole message, was there before (M8, M9).
    Duplicate,
    /// It does not match its own signature, or lacks one (M5).
    CorruptFragment,
    /// The whole message does not match its signature (M12).
    CorruptMessage,
    /// It contradicts what is there (M9).
    Conflict,
    /// A number that cannot be (M4).
    OutOfRange,
    /// A limit would be exceeded (M10).
    LimitExceeded,
}

impl Rejected {
    /// The labels, at the place of their code.
    pub const LABELS: [&'static str; 6] =
        ["duplicate", "corrupt_fragment", "corrupt_message", "conflict", "out_of_range", "limit_exceeded"];

    /// The label of the contract.
    #[must_use]
    pub fn label(self) -> &'static str {
        Self::LABELS[self as usize]
    }
}

/// A fragment that is not accepted, or not any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The fragment.
    pub header: Header,
    /// Why.
    pub reason: Rejected,
}

/// What is there of a direction that a push has touched (M21).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acknowledgement {
    /// The conversation.
    pub conversation: Guid,
    /// The direction: of the sender that is acknowledged.
    pub is_initiator: bool,
    /// All messages up to and including it are whole.
    pub acked: Option<i64>,
    /// The first message of which a part is there, with the numbers of its fragments.
    pub partial: Option<(i64, Vec<i32>)>,
}

/// Everything that a push gives back.
#[derive(Debug)]
pub struct Pushed {
    /// The messages that could be released.
    pub messages: Vec<MessageBatch>,
    /// The fragments that were rejected.
    pub rejected: Vec<Rejection>,
    /// One for each direction that was touched.
    pub acknowledgements: Vec<Acknowledgement>,
}

impl MessageBatch {
    fn with_room(bytes: usize) -> Self {
        Self { offsets: vec![0], bodies: Vec::with_capacity(bytes), ..Self::default() }
    }

    /// Adds a message whose body stands from the end of the one before to `end`.
    fn label(&mut self, label: Label<'_>, end: usize) {
        self.conversations.push(label.conversation);
        self.is_initiator.push(label.is_initiator);
        self.sequences.push(label.sequence);
        self.signatures.push(label.signature.copied().unwrap_or_default());
        self.is_signed.push(label.signature.is_some());
        self.further.push(label.further);
        self.offsets.push(end as i32);
    }

    /// Where the last body that has a label ends.
    fn end(&self) -> usize {
        self.offsets.last().map_or(0, |&end| end as usize)
    }
}

impl Output {
    /// With the bytes of the push.
    pub(crate) fn new(to_come: usize) -> Self {
        Self { batches: Vec::new(), to_come, planned: VecDeque::new() }
    }

    /// So many bytes of the push were refused, and need no room.
    pub(crate) fn will_not_come(&mut self, len: usize) {
        self.to_come = self.to_come.saturating_sub(len);
    }

    /// Begins a message whose body has `len` bytes, and says where to append them.
    // For every fragment.
    #[allow(clippy::inline_always)]
    #[inline(always)]
    pub(crate) fn begin(&mut self, label: Label<'_>, len: usize) -> &mut Vec<u8> {
        let last = self.batch(self.batches.last().map_or(0, |batch| batch.bodies.len()), len);
        let batch = &mut self.batches[last];
        batch.label(label, batch.bodies.len() + len);
        &mut batch.bodies
    }

    /// Puts the bodies of messages together that may be given out soon, in this order, and digests those that are to be.
    pub(crate) fn put_together(
        &mut self,
        messages: &[u32],
        parts: &[&[u8]],
        ends: &[usize],
        digests: &mut [Option<Digest>],
    ) {
        debug_assert!(self.planned.is_empty(), "{} messages are neither given out nor withheld", self.planned.len());
        let (mut first, mut end) = (0, self.batches.last().map_or(0, |batch| batch.bodies.len()));
        for (&message, &last) in messages.iter().zip(ends) {
            let len = parts[first..last].iter().map(|part| part.len()).sum();
            let batches = self.batches.len();
            let batch = self.batch(end, len);
            let start = if batch < batches { end } else { 0 };
            self.planned.push_back(Planned { message, batch, start, len });
            (first, end) = (last, start + len);
        }
        let Some(first) = self.planned.front().map(|planned| planned.batch) else { return };
        let mut counts = vec![0; self.batches.len() - first];
        for planned in &self.planned {
            counts[planned.batch - first] += 1;
        }
        let batches = self.batches[first..].iter_mut().zip(counts);
        let mut to: Vec<_> = batches.map(|(batch, messages)| Appended { messages, to: &mut batch.bodies }).collect();
        append_parts(parts, ends, digests, &mut to);
    }

    /// Gives out the next message whose body is there; those before it are withheld. Gives the label back if there is no such message.
    pub(crate) fn give<'l>(&mut self, message: u32, label: Label<'l>) -> Option<Label<'l>> {
        while let Some(Planned { message: next, batch, start, len }) = self.planned.pop_front() {
            if next == message {
                let batch = &mut self.batches[batch];
                let end = batch.end();
                if end < start {
                    batch.bodies.copy_within(start..start + len, end);
                }
                batch.label(label, end + len);
                return None;
            }
        }
        Some(label)
    }

    /// Forgets the bodies that were not given out.
    pub(crate) fn end_of_plan(&mut self) {
        self.planned.clear();
        for batch in &mut self.batches {
            batch.bodies.truncate(batch.end());
        }
        self.batches.retain(|batch| !batch.sequences.is_empty());
    }

    pub(crate) fn into_batches(self) -> Vec<MessageBatch> {
        self.batches
    }

    /// The batch that has room for a body of `len` bytes, if the last one is filled to `end`.
    // For every fragment.
    #[allow(clippy::inline_always)]
    #[inline(always)]
    fn batch(&mut self, end: usize, len: usize) -> usize {
        let room = self.to_come.min(BATCH_BYTES).max(len);
        self.to_come = self.to_come.saturating_sub(len);
        if self.batches.last().is_none_or(|batch| end + len > batch.bodies.capacity().max(BATCH_BYTES)) {
            self.batches.push(MessageBatch::with_room(room));
        }
        self.batches.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(sequence: i64) -> Label<'static> {
        let conversation = Guid([1; 16]);
        Label { conversation, is_initiator: true, sequence, signature: None, further: FurtherOf::Row(0) }
    }

    fn told(output: Output) -> Vec<(Vec<i64>, Vec<u8>, usize)> {
        let firsts = |batch: &MessageBatch| {
            batch.offsets.windows(2).map(|ends| batch.bodies[ends[0] as usize..ends[1] as usize][0]).collect()
        };
        let batches = output.into_batches().into_iter();
        batches.map(|batch| (batch.sequences.clone(), firsts(&batch), batch.bodies.len())).collect()
    }

    #[test]
    fn m12_what_is_withheld_leaves_no_gap_and_no_empty_batch() {
        // Two of them fill a batch, whatever else.
        const HALF: usize = BATCH_BYTES / 2;
        let bodies: Vec<Vec<u8>> = (0..6).map(|number| vec![number; if number == 5 { 7 } else { HALF }]).collect();
        let parts: Vec<&[u8]> = bodies.iter().flat_map(|body| [&body[..3], &body[3..]]).collect();
        let ends: Vec<usize> = (1..=6).map(|number| 2 * number).collect();
        let put = |given: &[u32]| {
            let mut output = Output::new(3);
            output.begin(label(9), 3).extend_from_slice(&[9; 3]);
            let mut digests = [None; 6];
            digests[5] = Some([0; 16]);
            output.put_together(&[0, 1, 2, 3, 4, 5], &parts, &ends, &mut digests);
            assert_eq!(digests[..5], [None; 5]);
            assert_eq!(digests[5], Some(ssbroker_md5::digest(&bodies[5])));
            for &number in given {
                assert!(output.give(number, label(i64::from(number))).is_none());
            }
            output.end_of_plan();
            assert!(output.give(0, label(0)).is_some(), "nothing is planned any more");
            told(output)
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
