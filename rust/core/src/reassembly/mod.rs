//! Reassembly: fragments in any order become complete, verified messages in order, within limits (P11 to P18, P21
//! to P23, P26).
//!
//! Push fragments to an [`Assembler`]; it returns messages, rejected fragments and acknowledgements. The result is
//! the same as if fragments were pushed one at a time. However, the signatures of many complete messages are verified
//! together with vector instructions: complete messages wait in a queue, which is processed before anything that could
//! depend on it.
//!
//! Pushed bodies are borrowed; what is still pending at the end of a push is copied.

mod checkpoint;
mod fragments;
mod limits;
mod messages;
mod output;
mod push;
mod release;
mod verify;

pub use checkpoint::InvalidState;
pub use limits::Limits;
pub use output::{Acknowledgement, MessageBatch, Pushed, Rejected, Rejection};
pub use verify::Received;

use std::collections::BTreeSet;

use limits::{Budget, Charge, MESSAGE_BYTES_MAX};
use messages::{Directions, Message, MessageState, Messages};

use crate::hash::NameHash;
use crate::{Guid, Seed};

/// The extra columns of the pushed batches, i.e. columns that are not in the schema.
pub trait ExtraColumnSource {
    /// Returns the charge of the extra columns of a row.
    fn len(&self, row: usize) -> usize;
    /// Copies the extra columns of `rows`.
    fn take(&self, rows: &[usize]) -> Vec<Box<[u8]>>;
}

/// No extra columns.
impl ExtraColumnSource for () {
    fn len(&self, _: usize) -> usize {
        0
    }

    fn take(&self, rows: &[usize]) -> Vec<Box<[u8]>> {
        vec![Box::default(); rows.len()]
    }
}

/// The extra columns of a message, taken from its fragment 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExtraValues {
    /// A row of the current push.
    Row(usize),
    /// A value returned by [`ExtraColumnSource::take`] in an earlier push.
    Stored(Box<[u8]>),
}

/// Reassembles fragments within limits.
#[derive(Debug)]
pub struct Assembler {
    in_order: bool,
    hash: NameHash,
    budget: Budget,
    directions: Directions,
    messages: Messages,
    /// (direction, sequence number) of the messages with missing fragments, between pushes.
    partial: BTreeSet<(u32, i64)>,
    /// Whether a limit rejected a fragment of the last block.
    is_flooded: bool,
}

impl Assembler {
    /// Creates an empty assembler. With `in_order`, messages wait for earlier ones. The size of a message is always
    /// limited to the maximum size of an Arrow value.
    #[must_use]
    pub fn new(limits: Limits, in_order: bool, seed: Seed) -> Self {
        let limits = Limits { message_bytes: limits.message_bytes.min(MESSAGE_BYTES_MAX), ..limits };
        Self {
            in_order,
            hash: NameHash::new(seed),
            budget: Budget::new(limits),
            directions: Directions::new(),
            messages: Messages::new(),
            partial: BTreeSet::new(),
            is_flooded: false,
        }
    }

    /// Whether messages are released in order only.
    #[must_use]
    pub fn is_in_order(&self) -> bool {
        self.in_order
    }

    /// Returns the limits.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        self.budget.limits()
    }

    /// Drops an incomplete or held message; returns whether there was one.
    pub fn forget(&mut self, conversation: Guid, is_initiator: bool, sequence: i64) -> bool {
        let Some(direction) = self.directions.find(&self.hash, conversation, is_initiator) else { return false };
        let Some(message) = self.messages.find(&self.hash, direction, sequence) else { return false };
        if !matches!(self.messages.get(message).state, MessageState::Partial | MessageState::Held) {
            return false;
        }
        self.drop_message(message);
        if self.directions.get(direction).is_empty() {
            self.uncharge_empty(direction);
            self.directions.remove(&self.hash, direction);
        }
        true
    }

    /// Adds to the charge of a direction.
    fn charge(&mut self, direction: u32, charge: Charge) {
        let direction = self.directions.get_mut(direction);
        direction.charge = direction.charge.plus(charge);
        self.budget.add(charge, direction.is_verified);
    }

    fn uncharge(&mut self, direction: u32, charge: Charge) {
        let direction = self.directions.get_mut(direction);
        direction.charge = direction.charge.minus(charge);
        self.budget.subtract(charge, direction.is_verified);
    }

    /// Stops charging a direction that has become empty.
    fn uncharge_empty(&mut self, direction: u32) {
        let state = self.directions.get(direction);
        if state.is_empty() && state.is_charged {
            self.uncharge(direction, Charge::DIRECTION);
            self.directions.get_mut(direction).is_charged = false;
        }
    }

    /// Removes a message and its fragments.
    fn drop_message(&mut self, number: u32) {
        let &Message { direction, sequence, charge, is_in_partial, .. } = self.messages.get(number);
        self.messages.remove(&self.hash, number);
        self.uncharge(direction, charge);
        self.directions.get_mut(direction).messages -= 1;
        if is_in_partial {
            self.partial.remove(&(direction, sequence));
        }
    }
}

/// An incomplete or held message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The conversation id.
    pub conversation: Guid,
    /// The direction.
    pub is_initiator: bool,
    /// The sequence number.
    pub sequence: i64,
    /// The number of fragments of the message.
    pub count: i32,
    /// The number of fragments received.
    pub received: u32,
    /// The number of bytes received.
    pub bytes: u64,
    /// The first missing fragment; `None` if the message is complete.
    pub first_missing: Option<i32>,
    /// The sequence number of the message that must be released first, if any.
    pub waits_for: Option<i64>,
}

impl Assembler {
    /// Returns the incomplete or held messages, sorted by conversation, direction and sequence number.
    #[must_use]
    pub fn pending(&self) -> Vec<Pending> {
        let mut pending: Vec<Pending> = self
            .messages
            .iter()
            .filter(|(_, message)| matches!(message.state, MessageState::Partial | MessageState::Held))
            .map(|(_, message)| self.describe_pending(message))
            .collect();
        pending.sort_unstable_by_key(|one| (one.conversation, one.is_initiator, one.sequence));
        pending
    }

    /// Returns the total charge in bytes.
    #[must_use]
    pub fn pending_bytes(&self) -> u64 {
        self.budget.all().bytes
    }

    /// Returns the number of incomplete or held messages.
    #[must_use]
    pub fn pending_messages(&self) -> u64 {
        self.budget.all().messages
    }

    fn describe_pending(&self, message: &Message) -> Pending {
        let direction = self.directions.get(message.direction);
        let must_wait = self.in_order && message.sequence != direction.next;
        Pending {
            conversation: direction.conversation,
            is_initiator: direction.is_initiator,
            sequence: message.sequence,
            count: message.count,
            received: message.received,
            bytes: message.bytes,
            first_missing: (message.state != MessageState::Held).then(|| message.fragments.first_missing()),
            waits_for: must_wait.then_some(direction.next),
        }
    }
}
