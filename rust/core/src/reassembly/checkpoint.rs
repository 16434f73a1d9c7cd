//! An assembler as bytes, to go on from later (M23).
//!
//! All numbers are little-endian. Directions stand in the order of their ids, their messages by number, fragments by number; so equal
//! assemblers are equal bytes. Nothing is believed when it is read: a length is compared with what is there before it is used.

use std::fmt;

use crate::reassembly::fragments::{Body, Piece};
use crate::reassembly::limits::{Charge, Limits};
use crate::reassembly::messages::{Direction, Message, State};
use crate::reassembly::{Assembler, FurtherOf};
use crate::signature::Digest;
use crate::{Guid, Seed};

const VERSION: u16 = 1;
const PARTIAL: u8 = 0;
const HELD: u8 = 1;
const NUMBER: u8 = 2;

/// Why bytes are no state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadState(&'static str);

type Result<T> = std::result::Result<T, BadState>;

impl fmt::Display for BadState {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.0)
    }
}

impl std::error::Error for BadState {}

impl Assembler {
    /// The state without the further columns, and those of the pending messages, in the order in which [`Assembler::restore`] wants them.
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
        let mut further = Vec::new();
        out.number(directions.len() as u64);
        for number in directions {
            let direction = self.directions.get(number);
            out.bytes(&direction.conversation.0);
            out.byte(direction.is_initiator.into());
            out.byte(direction.is_known.into());
            out.number(direction.next as u64);
            out.number(direction.messages.into());
            let first = messages.partition_point(|message| message.direction < number);
            for message in &messages[first..first + direction.messages as usize] {
                write_message(message, &mut out);
                if let Some(FurtherOf::Kept(kept)) = &message.further {
                    further.push(&**kept);
                }
            }
        }
        (out.0, further)
    }

    /// An assembler that goes on where another was.
    ///
    /// # Errors
    /// The bytes are cut off, altered, of another version or contradict themselves, or `further` has not the right length.
    pub fn restore(state: &[u8], further: Vec<Box<[u8]>>, seed: Seed) -> Result<Self> {
        let mut from = Reader { rest: state, further: further.into_iter() };
        if from.take::<2>()? != VERSION.to_le_bytes() {
            return Err(BadState("it is of another version"));
        }
        let in_order = from.flag()?;
        let limits = Limits {
            pending_bytes: from.number()?,
            pending_messages: from.number()?,
            message_bytes: from.small()?,
            fragments_per_message: from.small()?,
            sequence_distance: from.number()?,
        };
        let mut assembler = Self::new(limits, in_order, seed);
        let mut last = None;
        for _ in 0..from.number()? {
            let id = assembler.read_direction(&mut from)?;
            if last.replace(id).is_some_and(|last| last >= id) {
                return Err(BadState("directions are out of order"));
            }
        }
        if !from.rest.is_empty() || from.further.len() > 0 {
            return Err(BadState("something follows its end"));
        }
        if assembler.budget.is_kept() { Ok(assembler) } else { Err(BadState("more is pending than its limits allow")) }
    }

    fn read_direction(&mut self, from: &mut Reader<'_>) -> Result<(Guid, bool)> {
        let (conversation, is_initiator) = (Guid(from.take()?), from.flag()?);
        let (is_known, next) = (from.flag()?, from.sequence()?);
        let direction =
            Direction { conversation, is_initiator, is_known, next, is_charged: true, ..Direction::default() };
        let number = self.directions.insert(&self.hash, direction);
        self.charge(number, Charge::DIRECTION);
        let mut last = None;
        for _ in 0..from.number()? {
            let (sequence, state) = self.read_message(from, number)?;
            let is_early = match state {
                State::Held => self.in_order && sequence > next && is_known,
                State::Number => !self.in_order && sequence > next && is_known,
                _ => sequence >= next,
            };
            if !is_early || last.replace(sequence).is_some_and(|last| last >= sequence) {
                return Err(BadState("messages are out of order"));
            }
        }
        if self.directions.get(number).is_empty() || !is_known && next > 0 {
            return Err(BadState("a direction of which nothing is known"));
        }
        Ok((conversation, is_initiator))
    }

    /// Reads a message and its fragments, and says which it is.
    fn read_message(&mut self, from: &mut Reader<'_>, direction: u32) -> Result<(i64, State)> {
        let sequence = from.sequence()?;
        let state = match from.take::<1>()? {
            [PARTIAL] => State::Partial,
            [HELD] => State::Held,
            [NUMBER] => State::Number,
            _ => return Err(BadState("a message of no kind")),
        };
        let mut message = Message { direction, sequence, state, ..Message::default() };
        message.charge = if state == State::Number { Charge::NUMBER } else { Charge::MESSAGE };
        let mut charged = message.charge.bytes;
        if state != State::Number {
            message.count = i32::try_from(from.number()?).map_err(|_| BadState("a count that cannot be"))?;
            message.signature = from.digest()?;
            let expected = from.digest()?;
            if message.signature.is_some() != expected.is_some() {
                return Err(BadState("a message that contradicts itself"));
            }
            message.opened = expected.filter(|expected| message.signature != Some(*expected)).map(Box::new);
            charged = from.number()?;
            message.received = from.small()?;
        }
        let is_right = match state {
            State::Held => message.received == message.count as u32 && message.count > 0,
            State::Partial => message.received < message.count as u32 && message.received > 0,
            _ => true,
        };
        if !is_right {
            return Err(BadState("a message that contradicts itself"));
        }
        let received = message.received;
        let number = self.messages.insert(&self.hash, message);
        self.directions.get_mut(direction).messages += 1;
        let mut last = -1;
        for _ in 0..received {
            last = self.read_piece(from, number, last)?;
        }
        let message = self.messages.get_mut(number);
        // The rest is the charge of the further columns, which only their batch could tell.
        let is_charged_right =
            charged >= message.charge.bytes && (message.further.is_some() || charged == message.charge.bytes);
        if !is_charged_right {
            return Err(BadState("a charge that cannot be"));
        }
        message.charge.bytes = charged;
        if message.state == State::Partial {
            message.is_listed = self.partial.insert((direction, sequence));
        }
        let charge = message.charge;
        self.charge(direction, charge);
        Ok((sequence, state))
    }

    fn read_piece(&mut self, from: &mut Reader<'_>, message: u32, last: i32) -> Result<i32> {
        let number = i32::try_from(from.number()?).map_err(|_| BadState("a fragment that cannot be"))?;
        let len = usize::try_from(from.number()?).map_err(|_| BadState("a length that cannot be"))?;
        let body: Box<[u8]> = from.slice(len)?.into();
        let owner = self.messages.get_mut(message);
        if number <= last || number >= owner.count {
            return Err(BadState("fragments are out of order"));
        }
        owner.bytes += len as u64;
        owner.charge = owner.charge.plus(Charge::fragment(len));
        if number == 0 {
            let kept = from.further.next().ok_or(BadState("further columns are missing"))?;
            owner.further = Some(FurtherOf::Kept(kept));
        }
        if owner.bytes > i32::MAX as u64 {
            return Err(BadState("a message that is too long"));
        }
        owner.pieces.insert(Piece { number, body: Body::Kept(body) });
        Ok(number)
    }
}

fn write_message(message: &Message, out: &mut Writer) {
    out.number(message.sequence as u64);
    match message.state {
        State::Number => return out.byte(NUMBER),
        State::Held => out.byte(HELD),
        State::Partial | State::Queued | State::Free => out.byte(PARTIAL),
    }
    out.number(message.count as u64);
    out.digest(message.signature);
    out.digest(message.expected().copied());
    out.number(message.charge.bytes);
    out.number(message.received.into());
    message.pieces.for_each(|number, body| {
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
    further: std::vec::IntoIter<Box<[u8]>>,
}

impl<'a> Reader<'a> {
    fn slice(&mut self, len: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(BadState("it is cut off"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn take<const LEN: usize>(&mut self) -> Result<[u8; LEN]> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(BadState("it is cut off"))?;
        self.rest = rest;
        Ok(*taken)
    }

    fn number(&mut self) -> Result<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn small(&mut self) -> Result<u32> {
        u32::try_from(self.number()?).map_err(|_| BadState("a number that is too large"))
    }

    fn sequence(&mut self) -> Result<i64> {
        let sequence = i64::try_from(self.number()?).ok().filter(|sequence| *sequence < i64::MAX);
        sequence.ok_or(BadState("a sequence number that cannot be"))
    }

    fn flag(&mut self) -> Result<bool> {
        match self.take()? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(BadState("a flag that is neither 0 nor 1")),
        }
    }

    fn digest(&mut self) -> Result<Option<Digest>> {
        let is_there = self.flag()?;
        let digest = self.take()?;
        if !is_there && digest != [0; 16] {
            return Err(BadState("a signature that is not there"));
        }
        Ok(is_there.then_some(digest))
    }
}
