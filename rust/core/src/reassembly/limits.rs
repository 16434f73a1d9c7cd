//! How much may be pending, and how it is charged (M15 to M20).

/// What a direction is charged.
const DIRECTION: u64 = 128;
/// What a message is charged, or the mere number of one that was released before its turn.
const MESSAGE: u64 = 256;
/// What a fragment is charged beside its bytes.
const FRAGMENT: u64 = 96;

/// The limits of an assembler; the largest number of a type is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// What may be charged for everything that is remembered (M18).
    pub pending_bytes: u64,
    /// How many messages may be incomplete or held (M18).
    pub pending_messages: u64,
    /// The bytes of a message (M15).
    pub message_bytes: u32,
    /// The fragments of a message (M16).
    pub fragments_per_message: u32,
    /// How far ahead of the first message that is not whole a fragment may be (M17).
    pub sequence_distance: u64,
}

/// What something takes of the limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Charge {
    pub(crate) bytes: u64,
    pub(crate) messages: u64,
}

/// What is charged at present, and how much of it to directions that are not known (M19).
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    limits: Limits,
    all: Charge,
    newcomers: Charge,
}

impl Limits {
    /// No limits but that of an Arrow cell.
    pub const NONE: Self = Self {
        pending_bytes: u64::MAX,
        pending_messages: u64::MAX,
        message_bytes: i32::MAX as u32,
        fragments_per_message: u32::MAX,
        sequence_distance: u64::MAX,
    };
}

impl Charge {
    pub(crate) const DIRECTION: Self = Self { bytes: DIRECTION, messages: 0 };
    pub(crate) const MESSAGE: Self = Self { bytes: MESSAGE, messages: 1 };
    /// A message of which only the number is kept.
    pub(crate) const NUMBER: Self = Self { bytes: MESSAGE, messages: 0 };

    /// A fragment of `len` bytes.
    pub(crate) fn fragment(len: usize) -> Self {
        let len = len as u64;
        Self { bytes: FRAGMENT + len + len / 8, messages: 0 }
    }

    /// The further columns of a message.
    pub(crate) fn further(len: usize) -> Self {
        Self { bytes: len as u64, messages: 0 }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self { bytes: self.bytes.saturating_add(other.bytes), messages: self.messages.saturating_add(other.messages) }
    }

    pub(crate) fn minus(self, other: Self) -> Self {
        Self { bytes: self.bytes.saturating_sub(other.bytes), messages: self.messages.saturating_sub(other.messages) }
    }

    fn is_within(self, bytes: u64, messages: u64) -> bool {
        // What takes no message's place is not refused for want of one.
        self.bytes <= bytes && self.messages <= messages
    }
}

impl Budget {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, all: Charge::default(), newcomers: Charge::default() }
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    pub(crate) fn all(&self) -> Charge {
        self.all
    }

    /// Whether `charge` may be added for a direction that is known, or becomes so.
    pub(crate) fn has_room(&self, charge: Charge) -> bool {
        self.all.plus(charge).is_within(self.limits.pending_bytes, self.limits.pending_messages)
    }

    /// Whether `charge` may be added for a direction that is not known.
    pub(crate) fn has_room_for_newcomer(&self, charge: Charge) -> bool {
        let newcomers = self.newcomers.plus(charge);
        self.has_room(charge) && newcomers.is_within(self.limits.pending_bytes / 2, self.limits.pending_messages / 2)
    }

    /// The same budget after `all`, and `newcomers` of it, would be free.
    pub(crate) fn without(&self, all: Charge, newcomers: Charge) -> Self {
        Self { limits: self.limits, all: self.all.minus(all), newcomers: self.newcomers.minus(newcomers) }
    }

    pub(crate) fn add(&mut self, charge: Charge, is_known: bool) {
        self.all = self.all.plus(charge);
        if !is_known {
            self.newcomers = self.newcomers.plus(charge);
        }
    }

    pub(crate) fn subtract(&mut self, charge: Charge, is_known: bool) {
        self.all = self.all.minus(charge);
        if !is_known {
            self.newcomers = self.newcomers.minus(charge);
        }
    }

    /// A direction becomes known, and with it what is charged for it.
    pub(crate) fn welcome(&mut self, charge: Charge) {
        self.newcomers = self.newcomers.minus(charge);
    }

    /// Whether what is charged is within the limits, as a state that is restored has to be.
    pub(crate) fn is_kept(&self) -> bool {
        self.has_room(Charge::default()) && self.has_room_for_newcomer(Charge::default())
    }
}
