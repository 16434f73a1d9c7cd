//! The codes in the columns `status` and `precedence` of queued messages and `state` of endpoints. The same codes are
//! in `codes.py`.

/// The status of a message that stays in the queue after it was received.
pub(crate) const RETAINED_RECEIVED: i64 = 0;
/// The status of a message that can be received.
pub(crate) const READY: i64 = 1;
/// The status of a message that waits for earlier ones (P14).
pub(crate) const EARLY: i64 = 2;
// Python writes the copies of messages that were sent, with status 3.

/// The precedence of all messages except timers and errors.
pub(crate) const PRECEDENCE_MESSAGE: i64 = 2;

/// The state of an established conversation.
pub(crate) const CONVERSING: &str = "CO";
/// The state of a conversation that has ended.
pub(crate) const CLOSED: &str = "CD";
