//! Messages as rows, on their way into a database file and out of it.

use crate::guid::Guid;

/// A message that is to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// The sender's side of the conversation.
    pub conversation_handle: Guid,
    /// The name of its type.
    pub message_type_name: &'a str,
    /// Its body; an empty one is none.
    pub message_body: &'a [u8],
}

/// A message that was received, but for its body.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// The conversation.
    pub conversation_id: Guid,
    /// Whether the initiator sent it.
    pub is_initiator: bool,
    /// Its number.
    pub message_sequence_number: i64,
    /// The receiver's side of the conversation.
    pub conversation_handle: Guid,
    /// The group of that side.
    pub conversation_group_id: Guid,
    /// The name of its type.
    pub message_type_name: &'a str,
    /// `N`, `E` or `X`: how its type is validated.
    pub validation: &'a str,
    /// The service that received it.
    pub service_name: &'a str,
    /// The contract of the conversation.
    pub service_contract_name: &'a str,
    /// The priority of that side.
    pub priority: i32,
    /// Its place in the queue.
    pub queuing_order: i64,
}

/// A message that waits to be sent to another instance, but for its body.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// The conversation.
    pub conversation_id: Guid,
    /// Whether its initiator sends it.
    pub is_initiator: bool,
    /// Its number.
    pub message_sequence_number: i64,
    /// The name of its type.
    pub message_type_name: String,
    /// Its id.
    pub message_id: Guid,
    /// Whether it ends the conversation.
    pub is_end_of_dialog: bool,
    /// Whether it is the error with which the application has ended it.
    pub is_conversation_error: bool,
}

/// Messages that wait to be sent, in order.
#[derive(Debug, Default)]
pub struct Outbox {
    /// The messages.
    pub messages: Vec<Waiting>,
    /// Their bodies, one behind the other.
    pub bodies: Vec<u8>,
    /// Where each body ends; `None` where it is too long to be read.
    pub ends: Vec<Option<usize>>,
}

/// Messages that were received, in order.
#[derive(Debug, Default)]
pub struct Inbox<'a> {
    /// The messages.
    pub messages: Vec<Received<'a>>,
    /// Their bodies, one behind the other.
    pub bodies: Vec<u8>,
    /// Where each body ends; `None` where there is no body.
    pub ends: Vec<Option<usize>>,
}

impl<'a> Inbox<'a> {
    /// Adds a message without a body.
    pub fn push_empty(&mut self, message: Received<'a>) {
        self.messages.push(message);
        self.ends.push(None);
    }

    /// Adds a message, whose body was put behind the others already.
    pub fn push(&mut self, message: Received<'a>) {
        self.messages.push(message);
        self.ends.push(Some(self.bodies.len()));
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }
}
