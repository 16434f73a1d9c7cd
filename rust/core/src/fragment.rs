//! What a fragment says of itself.

use crate::Guid;

/// An MD5, in clear or as one encrypted block.
pub type Digest = [u8; 16];

/// The place of a fragment: its conversation and direction, its message there, its part of that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The conversation.
    pub conversation: Guid,
    /// Whether the sender is the initiator: the direction.
    pub is_initiator: bool,
    /// The message's number in its direction, from 0 (P12).
    pub sequence: i64,
    /// The fragment's number in its message, from 0.
    pub number: i32,
    /// How many fragments the message has.
    pub count: i32,
}

/// A signature as it was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signature {
    /// There is none.
    Missing,
    /// These 16 bytes.
    Given(Digest),
    /// Something that is not 16 bytes, and matches nothing (M1).
    Unreadable,
}

impl Header {
    /// Whether its numbers can be (M4).
    #[must_use]
    pub fn is_in_range(&self) -> bool {
        (0..i64::MAX).contains(&self.sequence) && self.count >= 1 && (0..self.count).contains(&self.number)
    }
}

impl Signature {
    /// The 16 bytes, if it has them.
    #[must_use]
    pub fn given(&self) -> Option<&Digest> {
        match self {
            Self::Given(digest) => Some(digest),
            Self::Missing | Self::Unreadable => None,
        }
    }
}
