//! From fragments in any order to whole messages in order, within limits (P11 to P18, P21 to P23, P26).
//!
//! An [`Assembler`] is pushed fragments, and gives back messages, what it rejected, and acknowledgements. The result is that of one
//! fragment after the other. But where many messages become whole, their signatures are compared together, by vector lanes: such
//! messages wait in a queue, and whatever could depend on how they fare settles it first.
//!
//! Fragments that are pushed stay where they lie; what is still pending at the end of a push is copied.

mod checkpoint;
mod fragments;
mod limits;
mod messages;
mod output;
mod push;
mod settle;
mod verify;

pub use checkpoint::BadState;
pub use limits::Limits;
pub use output::{Acknowledgement, MessageBatch, Pushed, Rejected, Rejection};
pub use verify::Received;

use std::collections::BTreeSet;

use limits::{Budget, Charge};
use messages::{Directions, Message, Messages, State};

use crate::hash::NameHash;
use crate::{Guid, Seed};

/// The columns beside the schema's, of the batch that is pushed (M3).
pub trait Further {
    /// What the columns of a row are charged.
    fn len(&self, row: usize) -> usize;
    /// The columns of `rows`, to keep beyond the batch.
    fn take(&self, rows: &[usize]) -> Vec<Box<[u8]>>;
}

/// No further columns.
impl Further for () {
    fn len(&self, _: usize) -> usize {
        0
    }

    fn take(&self, rows: &[usize]) -> Vec<Box<[u8]>> {
        vec![Box::default(); rows.len()]
    }
}

/// The further columns of a message, which are those of its fragment 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FurtherOf {
    /// Those of a row of this push.
    Row(usize),
    /// What [`Further::take`] gave for a row of an earlier one.
    Kept(Box<[u8]>),
}

/// Puts fragments together, within limits.
#[derive(Debug)]
pub struct Assembler {
    in_order: bool,
    hash: NameHash,
    budget: Budget,
    directions: Directions,
    messages: Messages,
    /// Direction and sequence number of the messages of which fragments are missing, between pushes.
    partial: BTreeSet<(u32, i64)>,
    /// A limit refused something of the block that came last.
    is_flooded: bool,
}

impl Assembler {
    /// An assembler of which nothing is known. `in_order` holds back what comes early (M13).
    #[must_use]
    pub fn new(limits: Limits, in_order: bool, seed: Seed) -> Self {
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

    /// Whether messages are released in their order only.
    #[must_use]
    pub fn is_in_order(&self) -> bool {
        self.in_order
    }

    /// The limits.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        self.budget.limits()
    }

    /// Drops an incomplete or held message (M24); whether there was one.
    pub fn forget(&mut self, conversation: Guid, is_initiator: bool, sequence: i64) -> bool {
        let Some(direction) = self.directions.find(&self.hash, conversation, is_initiator) else { return false };
        let Some(message) = self.messages.find(&self.hash, direction, sequence) else { return false };
        if !matches!(self.messages.get(message).state, State::Partial | State::Held) {
            return false;
        }
        self.drop_message(message);
        if self.directions.get(direction).is_empty() {
            self.uncharge_empty(direction);
            self.directions.remove(&self.hash, direction);
        }
        true
    }

    /// Adds to what is charged for a direction.
    fn charge(&mut self, direction: u32, charge: Charge) {
        let direction = self.directions.get_mut(direction);
        direction.charge = direction.charge.plus(charge);
        self.budget.add(charge, direction.is_known);
    }

    fn uncharge(&mut self, direction: u32, charge: Charge) {
        let direction = self.directions.get_mut(direction);
        direction.charge = direction.charge.minus(charge);
        self.budget.subtract(charge, direction.is_known);
    }

    /// A direction of which nothing is left is not charged any more (M20).
    fn uncharge_empty(&mut self, direction: u32) {
        let state = self.directions.get(direction);
        if state.is_empty() && state.is_charged {
            self.uncharge(direction, Charge::DIRECTION);
            self.directions.get_mut(direction).is_charged = false;
        }
    }

    /// Removes a message with all that is pending of it.
    fn drop_message(&mut self, number: u32) {
        let &Message { direction, sequence, charge, is_listed, .. } = self.messages.get(number);
        self.messages.remove(&self.hash, number);
        self.uncharge(direction, charge);
        self.directions.get_mut(direction).messages -= 1;
        if is_listed {
            self.partial.remove(&(direction, sequence));
        }
    }
}

// What is pending (M22).

/// A message that is incomplete, or held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The conversation.
    pub conversation: Guid,
    /// The direction.
    pub is_initiator: bool,
    /// The message's number in its direction.
    pub sequence: i64,
    /// How many fragments it has.
    pub count: i32,
    /// How many of them are there.
    pub received: u32,
    /// The bytes of those.
    pub bytes: u64,
    /// The first fragment that is missing; `None` if the message is whole.
    pub first_missing: Option<i32>,
    /// The message that must come first; `None` if there is none.
    pub waits_for: Option<i64>,
}

impl Assembler {
    /// The messages that are incomplete or held, by conversation, direction and number.
    #[must_use]
    pub fn pending(&self) -> Vec<Pending> {
        let mut pending: Vec<Pending> = self
            .messages
            .iter()
            .filter(|(_, message)| matches!(message.state, State::Partial | State::Held))
            .map(|(_, message)| self.tell(message))
            .collect();
        pending.sort_unstable_by_key(|one| (one.conversation, one.is_initiator, one.sequence));
        pending
    }

    /// What is charged for all that is remembered, in bytes (M18).
    #[must_use]
    pub fn pending_bytes(&self) -> u64 {
        self.budget.all().bytes
    }

    /// How many messages are incomplete or held.
    #[must_use]
    pub fn pending_messages(&self) -> u64 {
        self.budget.all().messages
    }

    fn tell(&self, message: &Message) -> Pending {
        let direction = self.directions.get(message.direction);
        let waits = self.in_order && message.sequence != direction.next;
        Pending {
            conversation: direction.conversation,
            is_initiator: direction.is_initiator,
            sequence: message.sequence,
            count: message.count,
            received: message.received,
            bytes: message.bytes,
            first_missing: (message.state != State::Held).then(|| message.pieces.first_missing()),
            waits_for: waits.then_some(direction.next),
        }
    }
}
