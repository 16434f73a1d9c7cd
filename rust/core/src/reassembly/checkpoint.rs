//! Checkpoints: the state of an assembler as bytes.
//!
//! All numbers are little-endian. Directions are sorted by id, their messages by sequence number, fragments by
//! number; so equal assemblers have equal checkpoints. The input is not trusted: every length is compared with the
//! remaining bytes before it is used.

use std::fmt;

use crate::reassembly::fragments::{Body, Fragment};
use crate::reassembly::limits::{Charge, Limits, MESSAGE_BYTES_MAX};
use crate::reassembly::messages::{Direction, Message, MessageState};
use crate::reassembly::{Assembler, ExtraValues};
use crate::signature::Digest;
use crate::{Guid, Seed};

const VERSION: u16 = 1;
const PARTIAL: u8 = 0;
const HELD: u8 = 1;
const NUMBER: u8 = 2;

/// Why a checkpoint is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidState(&'static str);

type Result<T> = std::result::Result<T, InvalidState>;

impl fmt::Display for InvalidState {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.0)
    }
}

impl std::error::Error for InvalidState {}

impl Assembler {
    /// Returns the state without the extra columns, and the extra columns of the pending messages in the order that
    /// [`Assembler::restore`] expects.
    #[must_use]
    pub fn checkpoint(&self) -> (Vec<u8>, Vec<&[u8]>) {
        let mut out = Writer(Vec::new());
        out.bytes(&VERSION.to_le_bytes());
        out.byte(self.in_order.into());
        let limits = self.budget.limits();
        out.number(limits.pending_bytes);
        out.number(limits.pending_messages);
        out.number(limits.message_bytes.into());
        out.number(limits.fragments_per_message.into());
        out.number(limits.sequence_distance);
        let mut directions: Vec<u32> = self.directions.numbers().collect();
        directions.sort_unstable_by_key(|&number| {
            let direction = self.directions.get(number);
            (direction.conversation, direction.is_initiator)
        });
        let mut messages: Vec<&Message> = self.messages.iter().map(|(_, message)| message).collect();
        messages.sort_unstable_by_key(|message| (message.direction, message.sequence));
        let mut extra = Vec::new();
        out.number(directions.len() as u64);
        for number in directions {
            let direction = self.directions.get(number);
            out.bytes(&direction.conversation.0);
            out.byte(direction.is_initiator.into());
            out.byte(direction.is_verified.into());
            out.number(direction.next as u64);
            out.number(direction.messages.into());
            let first = messages.partition_point(|message| message.direction < number);
            for message in &messages[first..first + direction.messages as usize] {
                write_message(message, &mut out);
                if let Some(ExtraValues::Stored(stored)) = &message.extra {
                    extra.push(&**stored);
                }
            }
        }
        (out.0, extra)
    }

    /// Restores an assembler.
    ///
    /// # Errors
    /// The bytes are truncated, altered, inconsistent or of another version, or `extra` has the wrong length.
    pub fn restore(state: &[u8], extra: Vec<Box<[u8]>>, seed: Seed) -> Result<Self> {
        let mut from = Reader { rest: state, extra: extra.into_iter() };
        if from.take::<2>()? != VERSION.to_le_bytes() {
            return Err(InvalidState("unsupported version"));
        }
        let in_order = from.flag()?;
        let limits = Limits {
            pending_bytes: from.number()?,
            pending_messages: from.number()?,
            message_bytes: from.small()?,
            fragments_per_message: from.small()?,
            sequence_distance: from.number()?,
        };
        if limits.message_bytes > MESSAGE_BYTES_MAX {
            return Err(InvalidState("its message size is larger than that of an Arrow value"));
        }
        let mut assembler = Self::new(limits, in_order, seed);
        let mut last = None;
        for _ in 0..from.number()? {
            let id = assembler.read_direction(&mut from)?;
            if last.replace(id).is_some_and(|last| last >= id) {
                return Err(InvalidState("directions out of order"));
            }
        }
        if !from.rest.is_empty() || from.extra.len() > 0 {
            return Err(InvalidState("unexpected bytes at the end"));
        }
        if assembler.budget.is_within_limits() { Ok(assembler) } else { Err(InvalidState("its limits are exceeded")) }
    }

    fn read_direction(&mut self, from: &mut Reader<'_>) -> Result<(Guid, bool)> {
        let (conversation, is_initiator) = (Guid(from.take()?), from.flag()?);
        let (is_verified, next) = (from.flag()?, from.sequence()?);
        let direction =
            Direction { conversation, is_initiator, is_verified, next, is_charged: true, ..Direction::default() };
        let number = self.directions.insert(&self.hash, direction);
        self.charge(number, Charge::DIRECTION);
        let mut last = None;
        for _ in 0..from.number()? {
            let (sequence, state) = self.read_message(from, number)?;
            let is_early = match state {
                MessageState::Held => self.in_order && sequence > next && is_verified,
                MessageState::Released => !self.in_order && sequence > next && is_verified,
                _ => sequence >= next,
            };
            if !is_early || last.replace(sequence).is_some_and(|last| last >= sequence) {
                return Err(InvalidState("messages out of order"));
            }
        }
        if self.directions.get(number).is_empty() || !is_verified && next > 0 {
            return Err(InvalidState("empty direction"));
        }
        Ok((conversation, is_initiator))
    }

    /// Reads a message and its fragments; returns its sequence number and state.
    fn read_message(&mut self, from: &mut Reader<'_>, direction: u32) -> Result<(i64, MessageState)> {
        let sequence = from.sequence()?;
        let state = match from.take::<1>()? {
            [PARTIAL] => MessageState::Partial,
            [HELD] => MessageState::Held,
            [NUMBER] => MessageState::Released,
            _ => return Err(InvalidState("unknown message state")),
        };
        let mut message = Message { direction, sequence, state, ..Message::default() };
        message.charge = if state == MessageState::Released { Charge::NUMBER } else { Charge::MESSAGE };
        let mut charged = message.charge.bytes;
        if state != MessageState::Released {
            message.count = i32::try_from(from.number()?).map_err(|_| InvalidState("invalid fragment count"))?;
            message.signature = from.digest()?;
            let expected = from.digest()?;
            if message.signature.is_some() != expected.is_some() {
                return Err(InvalidState("contradictory message"));
            }
            message.decrypted_digest = expected.filter(|expected| message.signature != Some(*expected)).map(Box::new);
            charged = from.number()?;
            message.received = from.small()?;
        }
        let is_right = match state {
            MessageState::Held => message.received == message.count as u32 && message.count > 0,
            MessageState::Partial => message.received < message.count as u32 && message.received > 0,
            _ => true,
        };
        if !is_right {
            return Err(InvalidState("contradictory message"));
        }
        let received = message.received;
        let number = self.messages.insert(&self.hash, message);
        self.directions.get_mut(direction).messages += 1;
        let mut last = -1;
        for _ in 0..received {
            last = self.read_fragment(from, number, last)?;
        }
        let message = self.messages.get_mut(number);
        // The rest is the charge of the extra columns, which cannot be recomputed without their batch.
        let is_charged_right =
            charged >= message.charge.bytes && (message.extra.is_some() || charged == message.charge.bytes);
        if !is_charged_right {
            return Err(InvalidState("invalid charge"));
        }
        message.charge.bytes = charged;
        if message.state == MessageState::Partial {
            message.is_in_partial = self.partial.insert((direction, sequence));
        }
        let charge = message.charge;
        self.charge(direction, charge);
        Ok((sequence, state))
    }

    fn read_fragment(&mut self, from: &mut Reader<'_>, message: u32, last: i32) -> Result<i32> {
        let number = i32::try_from(from.number()?).map_err(|_| InvalidState("invalid fragment number"))?;
        let len = usize::try_from(from.number()?).map_err(|_| InvalidState("invalid length"))?;
        let body: Box<[u8]> = from.slice(len)?.into();
        let owner = self.messages.get_mut(message);
        if number <= last || number >= owner.count {
            return Err(InvalidState("fragments out of order"));
        }
        owner.bytes += len as u64;
        owner.charge = owner.charge.plus(Charge::fragment(len));
        if number == 0 {
            let stored = from.extra.next().ok_or(InvalidState("missing extra columns"))?;
            owner.extra = Some(ExtraValues::Stored(stored));
        }
        if owner.bytes > i32::MAX as u64 {
            return Err(InvalidState("message too long"));
        }
        owner.fragments.insert(Fragment { number, body: Body::Owned(body) });
        Ok(number)
    }
}

fn write_message(message: &Message, out: &mut Writer) {
    out.number(message.sequence as u64);
    match message.state {
        MessageState::Released => return out.byte(NUMBER),
        MessageState::Held => out.byte(HELD),
        MessageState::Partial | MessageState::Queued | MessageState::Free => out.byte(PARTIAL),
    }
    out.number(message.count as u64);
    out.digest(message.signature);
    out.digest(message.expected().copied());
    out.number(message.charge.bytes);
    out.number(message.received.into());
    message.fragments.for_each(|number, body| {
        let body = body.bytes(&[]);
        out.number(number as u64);
        out.number(body.len() as u64);
        out.bytes(body);
    });
}

struct Writer(Vec<u8>);

impl Writer {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    fn number(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }

    fn digest(&mut self, digest: Option<Digest>) {
        self.byte(digest.is_some().into());
        self.bytes(&digest.unwrap_or_default());
    }
}

struct Reader<'a> {
    rest: &'a [u8],
    extra: std::vec::IntoIter<Box<[u8]>>,
}

impl<'a> Reader<'a> {
    fn slice(&mut self, len: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(InvalidState("truncated"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn take<const LEN: usize>(&mut self) -> Result<[u8; LEN]> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(InvalidState("truncated"))?;
        self.rest = rest;
        Ok(*taken)
    }

    fn number(&mut self) -> Result<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn small(&mut self) -> Result<u32> {
        u32::try_from(self.number()?).map_err(|_| InvalidState("number too large"))
    }

    fn sequence(&mut self) -> Result<i64> {
        let sequence = i64::try_from(self.number()?).ok().filter(|sequence| *sequence < i64::MAX);
        sequence.ok_or(InvalidState("invalid sequence number"))
    }

    fn flag(&mut self) -> Result<bool> {
        match self.take()? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(InvalidState("invalid flag")),
        }
    }

    fn digest(&mut self) -> Result<Option<Digest>> {
        let is_present = self.flag()?;
        let digest = self.take()?;
        if !is_present && digest != [0; 16] {
            return Err(InvalidState("invalid signature"));
        }
        Ok(is_present.then_some(digest))
    }
}
