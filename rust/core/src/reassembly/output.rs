//! What a push gives back.

use super::FurtherOf;
use crate::Guid;
use crate::fragment::{Digest, Header};

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
}

impl Output {
    /// With the bytes of the push.
    pub(crate) fn new(to_come: usize) -> Self {
        Self { batches: Vec::new(), to_come }
    }

    /// Begins a message whose body has `len` bytes, and says where to append them.
    // For every fragment.
    #[allow(clippy::inline_always)]
    #[inline(always)]
    pub(crate) fn begin(&mut self, label: Label<'_>, len: usize) -> &mut Vec<u8> {
        let room = self.to_come.min(BATCH_BYTES).max(len);
        self.to_come = self.to_come.saturating_sub(len);
        let fits = |batch: &MessageBatch| batch.bodies.len() + len <= batch.bodies.capacity().max(BATCH_BYTES);
        if !self.batches.last().is_some_and(fits) {
            self.batches.push(MessageBatch::with_room(room));
        }
        let last = self.batches.len() - 1;
        let batch = &mut self.batches[last];
        batch.conversations.push(label.conversation);
        batch.is_initiator.push(label.is_initiator);
        batch.sequences.push(label.sequence);
        batch.signatures.push(label.signature.copied().unwrap_or_default());
        batch.is_signed.push(label.signature.is_some());
        batch.further.push(label.further);
        batch.offsets.push((batch.bodies.len() + len) as i32);
        &mut batch.bodies
    }

    pub(crate) fn into_batches(self) -> Vec<MessageBatch> {
        self.batches
    }
}
