//! Pushes fragments one after the other (P12 to P16).

use crate::reassembly::fragments::{Body, Fragment};
use crate::reassembly::limits::{Budget, Charge};
use crate::reassembly::messages::{Direction, Message, MessageState};
use crate::reassembly::output::{MessageInfo, Output, Pushed, Rejected, Rejection};
use crate::reassembly::verify::{Received, Verification, Verifier};
use crate::reassembly::{Assembler, ExtraColumnSource, ExtraValues};
use crate::signature::{Digest, Header, Signature};

/// The queue is processed when it has this many messages: the longer it is, the more messages are digested and copied
/// together, in one pass over memory.
const QUEUE_MESSAGES: usize = 4_096;
const LARGE: u64 = 4_096;

/// A push in progress. `borrowed` holds the bodies of the fragments it may still need.
pub(super) struct Push<'p, 'a> {
    pub(super) assembler: &'p mut Assembler,
    pub(super) extra: &'p dyn ExtraColumnSource,
    pub(super) borrowed: Vec<&'a [u8]>,
    pub(super) queue: Queue,
    pub(super) output: Output,
    /// The rejections, with the rows that caused them.
    pub(super) rejected: Vec<(usize, Rejection)>,
    /// The directions with an accepted or duplicate fragment, in order.
    pub(super) touched: Vec<u32>,
    /// For each such fragment, the direction and the index of the borrowed body if it was accepted.
    pub(super) events: Vec<(u32, Option<u32>)>,
    /// The borrowed bodies that were rejected later.
    pub(super) retracted: Vec<u32>,
    /// The messages that received a fragment.
    pub(super) updated: Vec<u32>,
}

/// A message with all its fragments.
#[derive(Debug)]
pub(super) struct CompleteMessage {
    pub(super) message: u32,
    /// The row that completed it.
    pub(super) row: usize,
    /// Its MD5, if already known.
    pub(super) digest: Option<Digest>,
}

/// The messages to be verified, in the order in which they were completed.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) messages: Vec<CompleteMessage>,
    bytes: u64,
    /// The maximum that processing the queue may free, in total and for unverified directions.
    relief: Charge,
    unverified_relief: Charge,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        let len = self.messages.len();
        len >= QUEUE_MESSAGES && self.bytes < len as u64 * LARGE
    }

    pub(super) fn add(&mut self, complete: CompleteMessage, bytes: u64, direction: &mut Direction) {
        self.messages.push(complete);
        self.bytes += bytes;
        direction.queued += 1;
        if direction.queued == 1 {
            self.charged(direction, direction.charge);
        }
    }

    /// Records an additional charge of a direction.
    pub(super) fn charged(&mut self, direction: &Direction, charge: Charge) {
        if direction.queued > 0 {
            self.relief = self.relief.plus(charge);
            if !direction.is_verified {
                self.unverified_relief = self.unverified_relief.plus(charge);
            }
        }
    }

    /// Returns the budget after processing the queue, assuming that this frees as much as possible.
    pub(super) fn at_best(&self, budget: &Budget) -> Budget {
        budget.minus(self.relief, self.unverified_relief)
    }
}

/// What to do with a fragment.
#[derive(Clone, Copy, Debug)]
enum Action {
    Reject(Rejected),
    /// A duplicate, which is acknowledged again (P18).
    Duplicate,
    Accept,
}

impl Assembler {
    /// Pushes blocks of fragments; rows are numbered from 0 over all blocks. `body_bytes` is a hint: the total size
    /// of the bodies.
    pub fn push<'a>(
        &mut self,
        blocks: impl Iterator<Item = Vec<Received<'a>>>,
        body_bytes: usize,
        extra: &dyn ExtraColumnSource,
    ) -> Pushed {
        let mut push = Push {
            assembler: self,
            extra,
            borrowed: Vec::new(),
            queue: Queue::default(),
            output: Output::new(body_bytes),
            rejected: Vec::new(),
            touched: Vec::new(),
            events: Vec::new(),
            retracted: Vec::new(),
            updated: Vec::new(),
        };
        let (mut verifier, mut first_row) = (Verifier::default(), 0);
        for block in blocks {
            push.push_block(first_row, &block, &mut verifier);
            first_row += block.len();
        }
        push.finish()
    }
}

impl<'a> Push<'_, 'a> {
    fn push_block(&mut self, first_row: usize, block: &[Received<'a>], verifier: &mut Verifier) {
        // If the last block exceeded a limit, check the limits of each fragment before hashing its body (P26).
        let is_flooded = std::mem::take(&mut self.assembler.is_flooded);
        verifier.start_block(block, |position| {
            is_flooded && self.would_exceed_limits(first_row + position, &block[position])
        });
        for start in (0..block.len()).step_by(LOOKUP_BLOCK) {
            let ahead = self.assembler.look_up_ahead(&block[start..block.len().min(start + LOOKUP_BLOCK)]);
            for (position, ahead) in (start..block.len()).zip(ahead) {
                if let Err(reason) = self.push_fragment(first_row, block, position, verifier, ahead) {
                    self.assembler.is_flooded |= reason == Rejected::LimitExceeded;
                    self.output.skip_bytes(block[position].body.len());
                    self.rejected.push((first_row + position, Rejection { header: block[position].header, reason }));
                }
            }
        }
    }

    /// Whether a limit would reject the fragment now.
    fn would_exceed_limits(&self, row: usize, received: &Received<'a>) -> bool {
        let action = self.choose_action(row, received, self.assembler.look_up(received, Lookup::NEW));
        matches!(action, Some(Action::Reject(Rejected::LimitExceeded)))
    }

    /// `ahead` is the lookup made ahead of time.
    fn push_fragment(
        &mut self,
        first_row: usize,
        block: &[Received<'a>],
        position: usize,
        verifier: &mut Verifier,
        ahead: Lookup,
    ) -> Result<(), Rejected> {
        if *verifier.result(position) == Verification::OutOfRange {
            return Err(Rejected::OutOfRange);
        }
        let (row, received) = (first_row + position, &block[position]);
        loop {
            let at = self.assembler.look_up(received, ahead);
            let Some(action) = self.choose_action(row, received, at) else {
                self.process_complete();
                continue;
            };
            if let Action::Reject(reason @ Rejected::LimitExceeded) = action {
                return Err(reason);
            }
            let Verification::Intact(digest) = verifier.verify_body(block, position) else {
                return Err(Rejected::CorruptFragment);
            };
            return self.apply(action, row, received, digest.as_ref(), at);
        }
    }

    /// Applies the action to an intact fragment.
    // Called for every fragment.
    #[allow(clippy::inline_always)]
    #[inline(always)]
    fn apply(
        &mut self,
        action: Action,
        row: usize,
        received: &Received<'a>,
        digest: Option<&Digest>,
        lookup: Lookup,
    ) -> Result<(), Rejected> {
        match action {
            Action::Reject(reason) => Err(reason),
            Action::Duplicate if !received.is_authentic(digest) => Err(Rejected::CorruptMessage),
            Action::Duplicate => {
                self.touch(lookup.direction, None);
                Err(Rejected::Duplicate)
            }
            Action::Accept if received.is_single() && self.queue.is_empty() => {
                self.accept_single(row, received, digest, lookup)
            }
            Action::Accept => {
                self.accept(row, received, digest, lookup);
                Ok(())
            }
        }
    }

    /// Determines what to do with the fragment if it is intact; `None` if this depends on the queued messages.
    /// Changes nothing.
    fn choose_action(&self, row: usize, received: &Received<'_>, lookup: Lookup) -> Option<Action> {
        let Assembler { directions, messages, .. } = &*self.assembler;
        let Header { sequence, number, count, .. } = received.header;
        if lookup.direction().is_some_and(|direction| sequence < directions.get(direction).next) {
            return Some(Action::Duplicate);
        }
        let Some(found) = lookup.message() else { return self.limit(row, received, lookup) };
        let message = messages.get(found);
        match message.state {
            MessageState::Held | MessageState::Released => return Some(Action::Duplicate),
            MessageState::Queued => return None,
            MessageState::Free | MessageState::Partial => {}
        }
        let is_other = message.signature.as_ref() != received.message_signature.given();
        if message.count != count || is_other || received.message_signature == Signature::Unreadable {
            return Some(Action::Reject(Rejected::Conflict));
        }
        match message.fragments.find(number) {
            Some(body) if body.bytes(&self.borrowed) == received.body => Some(Action::Duplicate),
            Some(_) => Some(Action::Reject(Rejected::Conflict)),
            None => self.limit(row, received, lookup),
        }
    }

    /// Accepts the fragment unless a limit rejects it (P26).
    fn limit(&self, row: usize, received: &Received<'_>, lookup: Lookup) -> Option<Action> {
        let Assembler { directions, messages, budget, .. } = &*self.assembler;
        let (limits, rejection) = (budget.limits(), Some(Action::Reject(Rejected::LimitExceeded)));
        let message = lookup.message().map(|message| messages.get(message));
        let bytes = message.map_or(0, |message| message.bytes) + received.body.len() as u64;
        if received.header.count as u32 > limits.fragments_per_message || bytes > u64::from(limits.message_bytes) {
            return rejection;
        }
        let direction = lookup.direction().map(|direction| directions.get(direction));
        let (next, queued) = direction.map_or((0, 0), |direction| (direction.next, direction.queued));
        if received.header.sequence.abs_diff(next) >= limits.sequence_distance {
            return rejection.filter(|_| queued == 0);
        }
        let is_verified = direction.is_some_and(|direction| direction.is_verified);
        let is_complete = message.map_or(0, |message| message.received) + 1 == received.header.count as u32;
        let growth = self.growth(row, received, lookup, is_complete);
        let allows = |budget: &Budget, is_verified: bool| {
            if is_verified { budget.allows(growth) } else { budget.allows_unverified(growth) }
        };
        // A fragment that completes its message verifies its direction.
        if allows(budget, is_verified || is_complete) {
            return Some(Action::Accept);
        }
        // With a queue before it, the message counts as held; without one it might be released.
        let may_be_released = is_complete && !self.queue.is_empty();
        // The same holds for a queued message that turns out to match.
        let may_be_verified = is_verified || is_complete || queued > 0;
        rejection.filter(|_| !may_be_released && !allows(&self.queue.at_best(budget), may_be_verified))
    }

    /// Returns how much accepting the fragment would add to the charges.
    fn growth(&self, row: usize, received: &Received<'_>, lookup: Lookup, is_complete: bool) -> Charge {
        let direction = lookup.direction().map(|direction| self.assembler.directions.get(direction));
        let is_charged = direction.is_some_and(|direction| direction.is_charged);
        let growth = if is_charged { Charge::default() } else { Charge::DIRECTION };
        let is_next = received.header.sequence == direction.map_or(0, |direction| direction.next);
        let is_new = lookup.message().is_none();
        if is_complete && self.queue.is_empty() && (is_next || !self.assembler.in_order) {
            return if is_new && !is_next { growth.plus(Charge::NUMBER) } else { growth };
        }
        let growth = if is_new { growth.plus(Charge::MESSAGE) } else { growth };
        growth.plus(self.fragment_charge(row, received))
    }

    /// Returns the charge of a fragment; number 0 includes the extra columns of its message.
    fn fragment_charge(&self, row: usize, received: &Received<'_>) -> Charge {
        let charge = Charge::fragment(received.body.len());
        if received.header.number == 0 { charge.plus(Charge::extra_columns(self.extra.len(row))) } else { charge }
    }

    /// Accepts a message of one fragment while the queue is empty.
    fn accept_single(
        &mut self,
        row: usize,
        received: &Received<'a>,
        digest: Option<&Digest>,
        lookup: Lookup,
    ) -> Result<(), Rejected> {
        if !received.matches_message(digest) {
            return Err(Rejected::CorruptMessage);
        }
        let direction = self.direction(&received.header, lookup);
        self.assembler.mark_verified(direction);
        let is_next = self.assembler.directions.get(direction).next == received.header.sequence;
        if !is_next && self.assembler.in_order {
            let message = self.add(row, received, Lookup { direction, ..lookup });
            self.assembler.messages.get_mut(message).state = MessageState::Held;
            return Ok(());
        }
        self.touch(direction, None);
        let header = &received.header;
        let info = MessageInfo {
            conversation: header.conversation,
            is_initiator: header.is_initiator,
            sequence: header.sequence,
            signature: received.message_signature.given(),
            extra: ExtraValues::Row(row),
        };
        self.output.start_message(info, received.body.len()).extend_from_slice(received.body);
        self.after_release(direction, header.sequence);
        Ok(())
    }

    fn accept(&mut self, row: usize, received: &Received<'a>, digest: Option<&Digest>, lookup: Lookup) {
        let number = self.add(row, received, lookup);
        let Assembler { messages, directions, .. } = &mut *self.assembler;
        let message = messages.get_mut(number);
        if message.received == message.count as u32 {
            message.state = MessageState::Queued;
            let digest = digest.filter(|_| received.is_single()).copied();
            let complete = CompleteMessage { message: number, row, digest };
            self.queue.add(complete, message.bytes, directions.get_mut(message.direction));
            if self.queue.is_full() {
                self.process_complete();
            }
        }
    }

    /// Adds a fragment to its message, creating the message if needed.
    fn add(&mut self, row: usize, received: &Received<'a>, lookup: Lookup) -> u32 {
        let header = &received.header;
        let direction = self.direction(header, lookup);
        self.touch(direction, Some(self.borrowed.len() as u32));
        let charge = self.fragment_charge(row, received);
        let assembler = &mut *self.assembler;
        let number = lookup.message().unwrap_or_else(|| {
            let message = Message {
                direction,
                sequence: header.sequence,
                count: header.count,
                state: MessageState::Partial,
                signature: received.message_signature.given().copied(),
                decrypted_digest: received.decrypted_digest().map(Box::new),
                charge: Charge::MESSAGE,
                ..Message::default()
            };
            assembler.directions.get_mut(direction).messages += 1;
            assembler.messages.insert(&assembler.hash, message)
        });
        let growth = if lookup.message().is_none() { charge.plus(Charge::MESSAGE) } else { charge };
        assembler.charge(direction, growth);
        self.queue.charged(assembler.directions.get(direction), growth);
        let message = assembler.messages.get_mut(number);
        message.fragments.insert(Fragment { number: header.number, body: Body::Borrowed(self.borrowed.len() as u32) });
        self.borrowed.push(received.body);
        message.received += 1;
        message.bytes += received.body.len() as u64;
        message.charge = message.charge.plus(charge);
        if header.number == 0 {
            message.extra = Some(ExtraValues::Row(row));
        }
        if !std::mem::replace(&mut message.is_updated, true) {
            self.updated.push(number);
        }
        number
    }

    /// Returns the direction of a fragment, creating it if needed.
    fn direction(&mut self, header: &Header, lookup: Lookup) -> u32 {
        let assembler = &mut *self.assembler;
        let number = lookup.direction().unwrap_or_else(|| {
            let Header { conversation, is_initiator, .. } = *header;
            let direction = Direction { conversation, is_initiator, ..Direction::default() };
            assembler.directions.insert(&assembler.hash, direction)
        });
        if !std::mem::replace(&mut assembler.directions.get_mut(number).is_charged, true) {
            assembler.charge(number, Charge::DIRECTION);
        }
        number
    }

    /// Counts a fragment that the direction acknowledges (P15).
    fn touch(&mut self, direction: u32, borrowed: Option<u32>) {
        self.events.push((direction, borrowed));
        let state = self.assembler.directions.get_mut(direction);
        if !std::mem::replace(&mut state.is_touched, true) {
            self.touched.push(direction);
        }
        state.events += 1;
    }
}

// Lookups of directions and messages, made ahead of time for a group of fragments.

/// The number of fragments that are looked up together, so that their memory latencies overlap.
pub(super) const LOOKUP_BLOCK: usize = 64;
/// From this number of directions or messages on, the caches are too small, and lookups are made ahead of time.
const LOOK_AHEAD_FROM: usize = 4_096;

/// The direction and message of a fragment, if they exist. Small enough for a register.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lookup {
    pub(super) direction: u32,
    pub(super) message: u32,
}

const ABSENT: u32 = u32::MAX;

impl Lookup {
    /// Neither exists.
    pub(super) const NEW: Self = Self { direction: ABSENT, message: ABSENT };

    #[inline]
    pub(super) fn direction(self) -> Option<u32> {
        (self.direction != ABSENT).then_some(self.direction)
    }

    #[inline]
    pub(super) fn message(self) -> Option<u32> {
        (self.message != ABSENT).then_some(self.message)
    }
}

impl Assembler {
    /// Looks up directions and messages before the first of the fragments is taken.
    pub(super) fn look_up_ahead(&self, block: &[Received<'_>]) -> [Lookup; LOOKUP_BLOCK] {
        let Assembler { hash, directions, messages, .. } = self;
        let mut lookups = [Lookup::NEW; LOOKUP_BLOCK];
        if directions.len().max(messages.len()) < LOOK_AHEAD_FROM {
            return lookups;
        }
        for (received, lookup) in block.iter().zip(&mut lookups) {
            let Header { conversation, is_initiator, .. } = received.header;
            lookup.direction = directions.prefetch_candidate(hash, conversation, is_initiator).unwrap_or(ABSENT);
        }
        for (received, lookup) in block.iter().zip(&mut lookups) {
            let Header { conversation, is_initiator, .. } = received.header;
            if lookup.direction().is_some_and(|number| !directions.get(number).is(conversation, is_initiator)) {
                lookup.direction = directions.find(hash, conversation, is_initiator).unwrap_or(ABSENT);
            }
        }
        if messages.len() < LOOK_AHEAD_FROM {
            return lookups;
        }
        for (received, lookup) in block.iter().zip(&mut lookups) {
            if let Some(direction) = lookup.direction().filter(|&number| directions.get(number).messages > 0) {
                lookup.message =
                    messages.prefetch_candidate(hash, direction, received.header.sequence).unwrap_or(ABSENT);
            }
        }
        for (received, lookup) in block.iter().zip(&mut lookups) {
            let Lookup { direction, message } = *lookup;
            let sequence = received.header.sequence;
            if message != ABSENT && !messages.get(message).is(direction, sequence) {
                lookup.message = messages.find(hash, direction, sequence).unwrap_or(ABSENT);
            }
        }
        for message in lookups.iter().filter_map(|lookup| lookup.message()) {
            messages.get(message).fragments.prefetch();
        }
        lookups
    }

    /// Looks up the direction and message of a fragment; `ahead` is the lookup made ahead of time.
    // Called for every fragment.
    #[allow(clippy::inline_always)]
    #[inline(always)]
    pub(super) fn look_up(&self, received: &Received<'_>, ahead: Lookup) -> Lookup {
        let Assembler { hash, directions, messages, .. } = self;
        let Header { conversation, is_initiator, sequence, .. } = received.header;
        let mut lookup = Lookup { message: ABSENT, ..ahead };
        // A direction exists until the end of the push; a message may be gone and its slot reused.
        if lookup.direction == ABSENT {
            let Some(found) = directions.find(hash, conversation, is_initiator) else { return Lookup::NEW };
            lookup.direction = found;
        }
        if directions.get(lookup.direction).messages > 0 {
            let is_there = |&message: &u32| messages.get(message).is(lookup.direction, sequence);
            let found = ahead.message().filter(is_there).or_else(|| messages.find(hash, lookup.direction, sequence));
            lookup.message = found.unwrap_or(ABSENT);
        }
        lookup
    }
}
