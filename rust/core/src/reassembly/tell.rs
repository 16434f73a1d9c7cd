//! What is pending (M22).

use super::Assembler;
use super::message::{Message, State};
use crate::Guid;

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
