//! Messages as rows, on their way into and out of a database file.

use crate::guid::Guid;

/// A message to send.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// The sender's conversation handle.
    pub conversation_handle: Guid,
    /// The name of the message type.
    pub message_type_name: &'a str,
    /// The body; an empty body is stored as null.
    pub message_body: &'a [u8],
}

/// A received message without its body.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// The conversation id.
    pub conversation_id: Guid,
    /// Whether the initiator sent the message.
    pub is_initiator: bool,
    /// The sequence number.
    pub message_sequence_number: i64,
    /// The receiver's conversation handle.
    pub conversation_handle: Guid,
    /// The conversation group of the receiver's endpoint.
    pub conversation_group_id: Guid,
    /// The name of the message type.
    pub message_type_name: &'a str,
    /// The validation of the message type: `N`, `E` or `X`.
    pub validation: &'a str,
    /// The service that received the message.
    pub service_name: &'a str,
    /// The contract of the conversation.
    pub service_contract_name: &'a str,
    /// The priority of the receiver's endpoint.
    pub priority: i32,
    /// The position in the queue.
    pub queuing_order: i64,
}

/// A message in the transmission queue, without its body.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// The conversation id.
    pub conversation_id: Guid,
    /// Whether the initiator sends the message.
    pub is_initiator: bool,
    /// The sequence number.
    pub message_sequence_number: i64,
    /// The name of the message type.
    pub message_type_name: String,
    /// The message id.
    pub message_id: Guid,
    /// Whether the message ends the conversation.
    pub is_end_of_dialog: bool,
    /// Whether the message is the error with which the application ended the conversation.
    pub is_conversation_error: bool,
}

/// Messages to transmit, in order.
#[derive(Debug, Default)]
pub struct Outbox {
    /// The messages without their bodies.
    pub messages: Vec<Waiting>,
    /// The concatenated bodies.
    pub bodies: Vec<u8>,
    /// The end of each body in `bodies`; `None` if the body was too long to be read.
    pub ends: Vec<Option<usize>>,
}

/// Received messages, in order.
#[derive(Debug, Default)]
pub struct Inbox<'a> {
    /// The messages without their bodies.
    pub messages: Vec<Received<'a>>,
    /// The concatenated bodies.
    pub bodies: Vec<u8>,
    /// The end of each body in `bodies`; `None` if the message has no body.
    pub ends: Vec<Option<usize>>,
}

impl<'a> Inbox<'a> {
    /// Adds a message without a body.
    pub fn push_empty(&mut self, message: Received<'a>) {
        self.messages.push(message);
        self.ends.push(None);
    }

    /// Adds a message whose body has already been appended to `bodies`.
    pub fn push(&mut self, message: Received<'a>) {
        self.messages.push(message);
        self.ends.push(Some(self.bodies.len()));
    }

    /// Returns the number of messages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether there are no messages.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }
}
