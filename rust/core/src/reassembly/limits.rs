//! The limits of pending fragments and messages, and how memory is charged against them (P26).

/// The charge of a direction.
const DIRECTION: u64 = 128;
/// The charge of a message, or of the number of a message released before its turn.
const MESSAGE: u64 = 256;
/// The charge of a fragment without its bytes.
const FRAGMENT: u64 = 96;

/// The limits of an assembler. The maximum value of a type means no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The maximum memory that may be charged, in bytes.
    pub pending_bytes: u64,
    /// The maximum number of incomplete or held messages.
    pub pending_messages: u64,
    /// The maximum size of a message in bytes; at most the maximum size of an Arrow value.
    pub message_bytes: u32,
    /// The maximum number of fragments of a message.
    pub fragments_per_message: u32,
    /// How many sequence numbers a fragment may be ahead of the first incomplete message.
    pub sequence_distance: u64,
}

/// An amount charged against the limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Charge {
    pub(crate) bytes: u64,
    pub(crate) messages: u64,
}

/// The current charges, and the part that belongs to directions without a verified message.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    limits: Limits,
    all: Charge,
    unverified: Charge,
}

/// The maximum size of an Arrow value in bytes.
pub(crate) const MESSAGE_BYTES_MAX: u32 = i32::MAX as u32;

impl Limits {
    /// No limits except the size of an Arrow value.
    pub const NONE: Self = Self {
        pending_bytes: u64::MAX,
        pending_messages: u64::MAX,
        message_bytes: MESSAGE_BYTES_MAX,
        fragments_per_message: u32::MAX,
        sequence_distance: u64::MAX,
    };
}

impl Charge {
    pub(crate) const DIRECTION: Self = Self { bytes: DIRECTION, messages: 0 };
    pub(crate) const MESSAGE: Self = Self { bytes: MESSAGE, messages: 1 };
    /// The charge of a released message of which only the number is kept.
    pub(crate) const NUMBER: Self = Self { bytes: MESSAGE, messages: 0 };

    /// The charge of a fragment of `len` bytes.
    pub(crate) fn fragment(len: usize) -> Self {
        let len = len as u64;
        Self { bytes: FRAGMENT + len + len / 8, messages: 0 }
    }

    /// The charge of the extra columns of a message.
    pub(crate) fn extra_columns(len: usize) -> Self {
        Self { bytes: len as u64, messages: 0 }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self { bytes: self.bytes.saturating_add(other.bytes), messages: self.messages.saturating_add(other.messages) }
    }

    pub(crate) fn minus(self, other: Self) -> Self {
        Self { bytes: self.bytes.saturating_sub(other.bytes), messages: self.messages.saturating_sub(other.messages) }
    }

    fn is_within(self, bytes: u64, messages: u64) -> bool {
        self.bytes <= bytes && self.messages <= messages
    }
}

impl Budget {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, all: Charge::default(), unverified: Charge::default() }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn all(&self) -> Charge {
        self.all
    }

    /// Whether `charge` may be added for a direction that has a verified message or is getting one.
    pub(crate) fn allows(&self, charge: Charge) -> bool {
        self.all.plus(charge).is_within(self.limits.pending_bytes, self.limits.pending_messages)
    }

    /// Whether `charge` may be added for a direction without a verified message.
    pub(crate) fn allows_unverified(&self, charge: Charge) -> bool {
        let unverified = self.unverified.plus(charge);
        self.allows(charge) && unverified.is_within(self.limits.pending_bytes / 2, self.limits.pending_messages / 2)
    }

    /// Returns the budget after freeing `all`, of which `unverified` belongs to directions without a verified
    /// message.
    pub(crate) fn minus(&self, all: Charge, unverified: Charge) -> Self {
        Self { limits: self.limits, all: self.all.minus(all), unverified: self.unverified.minus(unverified) }
    }

    pub(crate) fn add(&mut self, charge: Charge, is_verified: bool) {
        self.all = self.all.plus(charge);
        if !is_verified {
            self.unverified = self.unverified.plus(charge);
        }
    }

    pub(crate) fn subtract(&mut self, charge: Charge, is_verified: bool) {
        self.all = self.all.minus(charge);
        if !is_verified {
            self.unverified = self.unverified.minus(charge);
        }
    }

    /// Moves the charge of a direction that now has a verified message.
    pub(crate) fn mark_verified(&mut self, charge: Charge) {
        self.unverified = self.unverified.minus(charge);
    }

    /// Whether the charges are within the limits; a restored state must satisfy this.
    pub(crate) fn is_within_limits(&self) -> bool {
        self.allows(Charge::default()) && self.allows_unverified(Charge::default())
    }
}
