//! One fragment after the other (M4 to M11).

use super::direction::Direction;
use super::judge::{Judge, Received, Verdict};
use super::limits::{Budget, Charge};
use super::message::{Message, State};
use super::output::{Label, Output, Pushed, Rejected, Rejection};
use super::piece::{Body, Piece};
use super::settle::{Queue, Whole};
use super::{Assembler, Further, FurtherOf};
use crate::fragment::{Digest, Header};

/// So many fragments are looked up ahead of their turn, so that their waits for the memory overlap,
const AHEAD: usize = 64;
/// ... when so many messages are pending that the caches do not hold them.
const AHEAD_FROM: usize = 4_096;

/// A push that is under way. The lent bodies are those of the fragments it may still need.
pub(super) struct Push<'p, 'a> {
    pub(super) assembler: &'p mut Assembler,
    pub(super) further: &'p dyn Further,
    pub(super) lent: Vec<&'a [u8]>,
    pub(super) queue: Queue,
    pub(super) output: Output,
    /// Each with the row that caused it.
    pub(super) rejected: Vec<(usize, Rejection)>,
    /// The directions of which a fragment was accepted, or was a duplicate, in order.
    pub(super) touched: Vec<u32>,
    /// What counts for that, row by row: the direction, and which lent body it was that was accepted.
    pub(super) counted: Vec<(u32, Option<u32>)>,
    /// The lent bodies that were rejected after all.
    pub(super) undone: Vec<u32>,
    /// The messages that got a fragment.
    pub(super) open: Vec<u32>,
}

/// What is to be done with a fragment.
enum Step {
    Reject(Rejected),
    /// A duplicate, which its direction acknowledges again.
    Duplicate,
    /// It depends on how the messages in the queue fare.
    Settle,
    Accept,
}

/// Where a fragment belongs, as far as that is there already. Small, so that it stays in a register.
#[derive(Clone, Copy)]
struct Place {
    direction: u32,
    message: u32,
}

const NOT_THERE: u32 = u32::MAX;

impl Place {
    const NEW: Self = Self { direction: NOT_THERE, message: NOT_THERE };

    #[inline]
    fn direction(self) -> Option<u32> {
        (self.direction != NOT_THERE).then_some(self.direction)
    }

    #[inline]
    fn message(self) -> Option<u32> {
        (self.message != NOT_THERE).then_some(self.message)
    }
}

impl Assembler {
    /// Takes fragments in, block by block; rows are numbered from 0 over all blocks. `body_bytes` is how many bytes their bodies
    /// have together: a hint.
    pub fn push<'a>(
        &mut self,
        blocks: impl Iterator<Item = Vec<Received<'a>>>,
        body_bytes: usize,
        further: &dyn Further,
    ) -> Pushed {
        self.pushes += 1;
        let mut push = Push {
            assembler: self,
            further,
            lent: Vec::new(),
            queue: Queue::default(),
            output: Output::new(body_bytes),
            rejected: Vec::new(),
            touched: Vec::new(),
            counted: Vec::new(),
            undone: Vec::new(),
            open: Vec::new(),
        };
        let (mut judge, mut verdicts, mut row) = (Judge::default(), Vec::new(), 0);
        for block in blocks {
            judge.judge(&block, &mut verdicts);
            for (block, verdicts) in block.chunks(AHEAD).zip(verdicts.chunks(AHEAD)) {
                let places = push.look_ahead(block);
                for ((received, verdict), place) in block.iter().zip(verdicts).zip(places) {
                    if let Err(reason) = push.take(row, received, verdict, place) {
                        push.rejected.push((row, Rejection { header: received.header, reason }));
                    }
                    row += 1;
                }
            }
        }
        push.finish()
    }
}

impl<'a> Push<'_, 'a> {
    /// Where fragments belong, as far as that is there before the first of them is taken.
    fn look_ahead(&self, block: &[Received<'a>]) -> [Place; AHEAD] {
        let Assembler { hash, directions, messages, .. } = &*self.assembler;
        let mut places = [Place::NEW; AHEAD];
        if messages.len() < AHEAD_FROM {
            return places;
        }
        for (received, place) in block.iter().zip(&mut places) {
            let Header { conversation, is_initiator, .. } = received.header;
            place.direction = directions.find(hash, conversation, is_initiator).unwrap_or(NOT_THERE);
        }
        for (received, place) in block.iter().zip(&mut places) {
            if let Some(direction) = place.direction().filter(|&number| directions.get(number).messages > 0) {
                place.message = messages.find(hash, direction, received.header.sequence).unwrap_or(NOT_THERE);
            }
        }
        for message in places.iter().filter_map(|place| place.message()) {
            messages.get(message).pieces.prefetch();
        }
        places
    }

    /// `ahead` is where the fragment belonged a moment ago.
    fn take(&mut self, row: usize, received: &Received<'a>, verdict: &Verdict, ahead: Place) -> Result<(), Rejected> {
        let digest = match verdict {
            Verdict::OutOfRange => return Err(Rejected::OutOfRange),
            Verdict::Corrupt => return Err(Rejected::CorruptFragment),
            Verdict::Intact(digest) => digest.as_ref(),
        };
        loop {
            let place = self.locate(received, ahead);
            match self.consider(row, received, place) {
                Step::Reject(reason) => return Err(reason),
                Step::Duplicate if !received.is_authentic(digest) => return Err(Rejected::CorruptMessage),
                Step::Duplicate => {
                    self.touch(place.direction, None);
                    return Err(Rejected::Duplicate);
                }
                Step::Settle => self.settle(),
                Step::Accept if received.is_single() && self.queue.is_empty() => {
                    return self.accept_single(row, received, digest, place);
                }
                Step::Accept => {
                    self.accept(row, received, digest, place);
                    return Ok(());
                }
            }
        }
    }

    /// Where a fragment belongs now; `ahead` is where it did a moment ago.
    // For every fragment.
    #[allow(clippy::inline_always)]
    #[inline(always)]
    fn locate(&self, received: &Received<'_>, ahead: Place) -> Place {
        let Assembler { hash, directions, messages, .. } = &*self.assembler;
        let Header { conversation, is_initiator, sequence, .. } = received.header;
        let mut place = Place { message: NOT_THERE, ..ahead };
        // A direction stays to the end of a push; a message may be gone, and another have its place.
        if place.direction == NOT_THERE {
            let Some(found) = directions.find(hash, conversation, is_initiator) else { return Place::NEW };
            place.direction = found;
        }
        if directions.get(place.direction).messages > 0 {
            let is_there = |&message: &u32| messages.get(message).is(place.direction, sequence);
            let found = ahead.message().filter(is_there).or_else(|| messages.find(hash, place.direction, sequence));
            place.message = found.unwrap_or(NOT_THERE);
        }
        place
    }

    /// What is to be done with a fragment that is intact; nothing changes.
    fn consider(&self, row: usize, received: &Received<'_>, place: Place) -> Step {
        let Assembler { directions, messages, .. } = &*self.assembler;
        let Header { sequence, number, count, .. } = received.header;
        if place.direction().is_some_and(|direction| sequence < directions.get(direction).next) {
            return Step::Duplicate;
        }
        let Some(found) = place.message() else { return self.limit(row, received, place) };
        let message = messages.get(found);
        match message.state {
            State::Held | State::Number => return Step::Duplicate,
            State::Queued => return Step::Settle,
            State::Free | State::Partial => {}
        }
        if message.count != count || message.signature.as_ref() != received.message_signature.given() {
            return Step::Reject(Rejected::Conflict);
        }
        match message.pieces.find(number) {
            Some(body) if body.bytes(&self.lent) == received.body => Step::Duplicate,
            Some(_) => Step::Reject(Rejected::Conflict),
            None => self.limit(row, received, place),
        }
    }

    /// Accepts, if no limit is against it (M15 to M19).
    fn limit(&self, row: usize, received: &Received<'_>, place: Place) -> Step {
        let Assembler { directions, messages, budget, .. } = &*self.assembler;
        let limits = budget.limits();
        let message = place.message().map(|message| messages.get(message));
        let bytes = message.map_or(0, |message| message.bytes) + received.body.len() as u64;
        if received.header.count as u32 > limits.fragments_per_message || bytes > u64::from(limits.message_bytes) {
            return Step::Reject(Rejected::LimitExceeded);
        }
        let direction = place.direction().map(|direction| directions.get(direction));
        let (next, queued) = direction.map_or((0, 0), |direction| (direction.next, direction.queued));
        if received.header.sequence.abs_diff(next) >= limits.sequence_distance {
            return if queued > 0 { Step::Settle } else { Step::Reject(Rejected::LimitExceeded) };
        }
        let is_known = direction.is_some_and(|direction| direction.is_known);
        let is_whole = message.map_or(0, |message| message.received) + 1 == received.header.count as u32;
        let growth = self.growth(row, received, place, is_whole);
        // A fragment that makes its message whole makes its direction known (M19).
        let has_room = |budget: &Budget| {
            if is_known || is_whole { budget.has_room(growth) } else { budget.has_room_for_newcomer(growth) }
        };
        if has_room(budget) {
            return Step::Accept;
        }
        // Behind others in the queue it counts as held; alone it might be released.
        let may_be_released = is_whole && !self.queue.is_empty();
        if may_be_released || has_room(&self.queue.at_best(budget)) {
            Step::Settle
        } else {
            Step::Reject(Rejected::LimitExceeded)
        }
    }

    /// By how much more would be pending if the fragment was accepted (M18).
    fn growth(&self, row: usize, received: &Received<'_>, place: Place, is_whole: bool) -> Charge {
        let direction = place.direction().map(|direction| self.assembler.directions.get(direction));
        let is_charged = direction.is_some_and(|direction| direction.is_charged);
        let growth = if is_charged { Charge::default() } else { Charge::DIRECTION };
        let is_next = received.header.sequence == direction.map_or(0, |direction| direction.next);
        let is_new = place.message().is_none();
        if is_whole && self.queue.is_empty() && (is_next || !self.assembler.in_order) {
            return if is_new && !is_next { growth.plus(Charge::NUMBER) } else { growth };
        }
        let growth = if is_new { growth.plus(Charge::MESSAGE) } else { growth };
        growth.plus(self.fragment_charge(row, received))
    }

    /// A fragment's charge, with the further columns that number 0 brings for its message.
    fn fragment_charge(&self, row: usize, received: &Received<'_>) -> Charge {
        let charge = Charge::fragment(received.body.len());
        if received.header.number == 0 { charge.plus(Charge::further(self.further.len(row))) } else { charge }
    }

    /// A message of one fragment, while none waits in the queue.
    fn accept_single(
        &mut self,
        row: usize,
        received: &Received<'a>,
        digest: Option<&Digest>,
        place: Place,
    ) -> Result<(), Rejected> {
        if !received.is_the_whole(digest) {
            return Err(Rejected::CorruptMessage);
        }
        let direction = self.direction(&received.header, place);
        self.assembler.welcome(direction);
        let is_next = self.assembler.directions.get(direction).next == received.header.sequence;
        if !is_next && self.assembler.in_order {
            let message = self.add(row, received, Place { direction, ..place });
            self.assembler.messages.get_mut(message).state = State::Held;
            return Ok(());
        }
        self.touch(direction, None);
        let header = &received.header;
        let label = Label {
            conversation: header.conversation,
            is_initiator: header.is_initiator,
            sequence: header.sequence,
            signature: received.message_signature.given(),
            further: FurtherOf::Row(row),
        };
        self.output.begin(label, received.body.len()).extend_from_slice(received.body);
        self.released(direction, header.sequence);
        Ok(())
    }

    fn accept(&mut self, row: usize, received: &Received<'a>, digest: Option<&Digest>, place: Place) {
        let number = self.add(row, received, place);
        let Assembler { messages, directions, .. } = &mut *self.assembler;
        let message = messages.get_mut(number);
        if message.received == message.count as u32 {
            message.state = State::Queued;
            let digest = digest.filter(|_| received.is_single()).copied();
            let whole = Whole { message: number, row, digest };
            self.queue.add(whole, message.bytes, directions.get_mut(message.direction));
            if self.queue.is_full() {
                self.settle();
            }
        }
    }

    /// Adds a fragment to its message, which is there from now on.
    fn add(&mut self, row: usize, received: &Received<'a>, place: Place) -> u32 {
        let header = &received.header;
        let direction = self.direction(header, place);
        self.touch(direction, Some(self.lent.len() as u32));
        let charge = self.fragment_charge(row, received);
        let assembler = &mut *self.assembler;
        let number = place.message().unwrap_or_else(|| {
            let message = Message {
                direction,
                sequence: header.sequence,
                count: header.count,
                state: State::Partial,
                signature: received.message_signature.given().copied(),
                opened: received.opened().map(Box::new),
                charge: Charge::MESSAGE,
                ..Message::default()
            };
            assembler.directions.get_mut(direction).messages += 1;
            assembler.messages.insert(&assembler.hash, message)
        });
        let growth = if place.message().is_none() { charge.plus(Charge::MESSAGE) } else { charge };
        assembler.charge(direction, growth);
        self.queue.charged(assembler.directions.get(direction), growth);
        let message = assembler.messages.get_mut(number);
        message.pieces.insert(Piece { number: header.number, body: Body::Lent(self.lent.len() as u32) });
        self.lent.push(received.body);
        message.received += 1;
        message.bytes += received.body.len() as u64;
        message.charge = message.charge.plus(charge);
        if header.number == 0 {
            message.further = Some(FurtherOf::Row(row));
        }
        if !std::mem::replace(&mut message.is_open, true) {
            self.open.push(number);
        }
        number
    }

    /// The direction of a fragment, which is there from now on.
    fn direction(&mut self, header: &Header, place: Place) -> u32 {
        let assembler = &mut *self.assembler;
        let number = place.direction().unwrap_or_else(|| {
            let Header { conversation, is_initiator, .. } = *header;
            let direction = Direction { conversation, is_initiator, ..Direction::default() };
            assembler.directions.insert(&assembler.hash, direction)
        });
        if !std::mem::replace(&mut assembler.directions.get_mut(number).is_charged, true) {
            assembler.charge(number, Charge::DIRECTION);
        }
        number
    }

    /// Counts a fragment that the direction acknowledges (M21).
    fn touch(&mut self, direction: u32, lent: Option<u32>) {
        self.counted.push((direction, lent));
        let push = self.assembler.pushes;
        let state = self.assembler.directions.get_mut(direction);
        if state.push != push {
            (state.push, state.events) = (push, 0);
            self.touched.push(direction);
        }
        state.events += 1;
    }
}
