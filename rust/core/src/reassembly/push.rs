//! One fragment after the other (M4 to M11).

use crate::reassembly::fragments::{Body, Piece};
use crate::reassembly::limits::{Budget, Charge};
use crate::reassembly::messages::{Direction, Message, State};
use crate::reassembly::output::{Label, Output, Pushed, Rejected, Rejection};
use crate::reassembly::verify::{Judge, Received, Verdict};
use crate::reassembly::{Assembler, Further, FurtherOf};
use crate::signature::{Digest, Header, Signature};

/// The queue is settled when it has so many messages, unless their bytes outweigh by far what is kept of each: the more wait in it, the more
/// are released with it, and read once only.
const QUEUE_MESSAGES: usize = 4_096;
const LARGE: u64 = 4_096;

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

/// A message of which all fragments are there.
#[derive(Debug)]
pub(super) struct Whole {
    pub(super) message: u32,
    /// The row that made it whole.
    pub(super) row: usize,
    /// Its MD5, where it is known already.
    pub(super) digest: Option<Digest>,
}

/// The messages that wait to be compared, in the order in which they became whole.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) whole: Vec<Whole>,
    bytes: u64,
    /// The most that settling it may free: of all that is charged, and of newcomers' part.
    relief: Charge,
    newcomers_relief: Charge,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.whole.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        let len = self.whole.len();
        len >= QUEUE_MESSAGES && self.bytes < len as u64 * LARGE
    }

    pub(super) fn add(&mut self, whole: Whole, bytes: u64, direction: &mut Direction) {
        self.whole.push(whole);
        self.bytes += bytes;
        direction.queued += 1;
        if direction.queued == 1 {
            self.charged(direction, direction.charge);
        }
    }

    /// Takes notice that a direction is charged more.
    pub(super) fn charged(&mut self, direction: &Direction, charge: Charge) {
        if direction.queued > 0 {
            self.relief = self.relief.plus(charge);
            if !direction.is_known {
                self.newcomers_relief = self.newcomers_relief.plus(charge);
            }
        }
    }

    /// The budget after the queue is settled, if that frees as much as it can.
    pub(super) fn at_best(&self, budget: &Budget) -> Budget {
        budget.without(self.relief, self.newcomers_relief)
    }
}

/// What is to be done with a fragment.
#[derive(Clone, Copy, Debug)]
enum Step {
    Reject(Rejected),
    /// A duplicate, which its direction acknowledges again.
    Duplicate,
    Accept,
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
        let (mut judge, mut first_row) = (Judge::default(), 0);
        for block in blocks {
            push.take_block(first_row, &block, &mut judge);
            first_row += block.len();
        }
        push.finish()
    }
}

impl<'a> Push<'_, 'a> {
    fn take_block(&mut self, first_row: usize, block: &[Received<'a>], judge: &mut Judge) {
        // Whoever floods is refused for want of room, again and again: then nothing else is worth a look at a part (M10).
        let is_flooded = std::mem::take(&mut self.assembler.is_flooded);
        judge.begin(block, |place| is_flooded && self.will_be_refused(first_row + place, &block[place]));
        for start in (0..block.len()).step_by(AHEAD) {
            let ahead = self.assembler.look_ahead(&block[start..block.len().min(start + AHEAD)]);
            for (place, ahead) in (start..block.len()).zip(ahead) {
                if let Err(reason) = self.take(first_row, block, place, judge, ahead) {
                    self.assembler.is_flooded |= reason == Rejected::LimitExceeded;
                    self.output.will_not_come(block[place].body.len());
                    self.rejected.push((first_row + place, Rejection { header: block[place].header, reason }));
                }
            }
        }
    }

    /// Whether a limit would be against a fragment if it was its turn.
    fn will_be_refused(&self, row: usize, received: &Received<'a>) -> bool {
        let step = self.consider(row, received, self.assembler.locate(received, Place::NEW));
        matches!(step, Some(Step::Reject(Rejected::LimitExceeded)))
    }

    /// `ahead` is where the fragment belonged a moment ago.
    fn take(
        &mut self,
        first_row: usize,
        block: &[Received<'a>],
        place: usize,
        judge: &mut Judge,
        ahead: Place,
    ) -> Result<(), Rejected> {
        if *judge.verdict(place) == Verdict::OutOfRange {
            return Err(Rejected::OutOfRange);
        }
        let (row, received) = (first_row + place, &block[place]);
        loop {
            let at = self.assembler.locate(received, ahead);
            let Some(step) = self.consider(row, received, at) else {
                self.settle();
                continue;
            };
            if let Step::Reject(reason @ Rejected::LimitExceeded) = step {
                return Err(reason);
            }
            let Verdict::Intact(digest) = judge.verdict_of_part(block, place) else {
                return Err(Rejected::CorruptFragment);
            };
            return self.carry_out(step, row, received, digest.as_ref(), at);
        }
    }

    /// Does with a fragment that is intact what is to be done.
    // For every fragment.
    #[allow(clippy::inline_always)]
    #[inline(always)]
    fn carry_out(
        &mut self,
        step: Step,
        row: usize,
        received: &Received<'a>,
        digest: Option<&Digest>,
        place: Place,
    ) -> Result<(), Rejected> {
        match step {
            Step::Reject(reason) => Err(reason),
            Step::Duplicate if !received.is_authentic(digest) => Err(Rejected::CorruptMessage),
            Step::Duplicate => {
                self.touch(place.direction, None);
                Err(Rejected::Duplicate)
            }
            Step::Accept if received.is_single() && self.queue.is_empty() => {
                self.accept_single(row, received, digest, place)
            }
            Step::Accept => {
                self.accept(row, received, digest, place);
                Ok(())
            }
        }
    }

    /// What is to be done with a fragment if it is intact; `None` if it depends on how the messages in the queue fare. Nothing changes.
    fn consider(&self, row: usize, received: &Received<'_>, place: Place) -> Option<Step> {
        let Assembler { directions, messages, .. } = &*self.assembler;
        let Header { sequence, number, count, .. } = received.header;
        if place.direction().is_some_and(|direction| sequence < directions.get(direction).next) {
            return Some(Step::Duplicate);
        }
        let Some(found) = place.message() else { return self.limit(row, received, place) };
        let message = messages.get(found);
        match message.state {
            State::Held | State::Number => return Some(Step::Duplicate),
            State::Queued => return None,
            State::Free | State::Partial => {}
        }
        let is_other = message.signature.as_ref() != received.message_signature.given();
        if message.count != count || is_other || received.message_signature == Signature::Unreadable {
            return Some(Step::Reject(Rejected::Conflict));
        }
        match message.pieces.find(number) {
            Some(body) if body.bytes(&self.lent) == received.body => Some(Step::Duplicate),
            Some(_) => Some(Step::Reject(Rejected::Conflict)),
            None => self.limit(row, received, place),
        }
    }

    /// Accepts, if no limit is against it (M15 to M19).
    fn limit(&self, row: usize, received: &Received<'_>, place: Place) -> Option<Step> {
        let Assembler { directions, messages, budget, .. } = &*self.assembler;
        let (limits, refused) = (budget.limits(), Some(Step::Reject(Rejected::LimitExceeded)));
        let message = place.message().map(|message| messages.get(message));
        let bytes = message.map_or(0, |message| message.bytes) + received.body.len() as u64;
        if received.header.count as u32 > limits.fragments_per_message || bytes > u64::from(limits.message_bytes) {
            return refused;
        }
        let direction = place.direction().map(|direction| directions.get(direction));
        let (next, queued) = direction.map_or((0, 0), |direction| (direction.next, direction.queued));
        if received.header.sequence.abs_diff(next) >= limits.sequence_distance {
            return refused.filter(|_| queued == 0);
        }
        let is_known = direction.is_some_and(|direction| direction.is_known);
        let is_whole = message.map_or(0, |message| message.received) + 1 == received.header.count as u32;
        let growth = self.growth(row, received, place, is_whole);
        let has_room = |budget: &Budget, is_known: bool| {
            if is_known { budget.has_room(growth) } else { budget.has_room_for_newcomer(growth) }
        };
        // A fragment that makes its message whole makes its direction known (M19).
        if has_room(budget, is_known || is_whole) {
            return Some(Step::Accept);
        }
        // Behind others in the queue it counts as held; alone it might be released.
        let may_be_released = is_whole && !self.queue.is_empty();
        // So does a message in the queue, once it turns out to match.
        let may_be_known = is_known || is_whole || queued > 0;
        refused.filter(|_| !may_be_released && !has_room(&self.queue.at_best(budget), may_be_known))
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
        let state = self.assembler.directions.get_mut(direction);
        if !std::mem::replace(&mut state.is_touched, true) {
            self.touched.push(direction);
        }
        state.events += 1;
    }
}

// Where a fragment belongs: its direction and its message, as far as they are there.

/// So many fragments are looked up ahead of their turn, so that their waits for the memory overlap,
pub(super) const AHEAD: usize = 64;
/// ... when there are so many directions, or messages are pending, that the caches do not hold them.
const AHEAD_FROM: usize = 4_096;

/// Where a fragment belongs, as far as that is there already. Small, so that it stays in a register.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) direction: u32,
    pub(super) message: u32,
}

const NOT_THERE: u32 = u32::MAX;

impl Place {
    /// Nowhere yet.
    pub(super) const NEW: Self = Self { direction: NOT_THERE, message: NOT_THERE };

    #[inline]
    pub(super) fn direction(self) -> Option<u32> {
        (self.direction != NOT_THERE).then_some(self.direction)
    }

    #[inline]
    pub(super) fn message(self) -> Option<u32> {
        (self.message != NOT_THERE).then_some(self.message)
    }
}

impl Assembler {
    /// Where fragments belong, as far as that is there before the first of them is taken.
    pub(super) fn look_ahead(&self, block: &[Received<'_>]) -> [Place; AHEAD] {
        let Assembler { hash, directions, messages, .. } = self;
        let mut places = [Place::NEW; AHEAD];
        if directions.len().max(messages.len()) < AHEAD_FROM {
            return places;
        }
        for (received, place) in block.iter().zip(&mut places) {
            let Header { conversation, is_initiator, .. } = received.header;
            place.direction = directions.guess(hash, conversation, is_initiator).unwrap_or(NOT_THERE);
        }
        for (received, place) in block.iter().zip(&mut places) {
            let Header { conversation, is_initiator, .. } = received.header;
            let guess = place.direction;
            if guess != NOT_THERE && !directions.get(guess).is(conversation, is_initiator) {
                place.direction = directions.find(hash, conversation, is_initiator).unwrap_or(NOT_THERE);
            }
        }
        if messages.len() < AHEAD_FROM {
            return places;
        }
        for (received, place) in block.iter().zip(&mut places) {
            if let Some(direction) = place.direction().filter(|&number| directions.get(number).messages > 0) {
                place.message = messages.guess(hash, direction, received.header.sequence).unwrap_or(NOT_THERE);
            }
        }
        for (received, place) in block.iter().zip(&mut places) {
            let Place { direction, message } = *place;
            let sequence = received.header.sequence;
            if message != NOT_THERE && !messages.get(message).is(direction, sequence) {
                place.message = messages.find(hash, direction, sequence).unwrap_or(NOT_THERE);
            }
        }
        for message in places.iter().filter_map(|place| place.message()) {
            messages.get(message).pieces.prefetch();
        }
        places
    }

    /// Where a fragment belongs now; `ahead` is where it did a moment ago.
    // For every fragment.
    #[allow(clippy::inline_always)]
    #[inline(always)]
    pub(super) fn locate(&self, received: &Received<'_>, ahead: Place) -> Place {
        let Assembler { hash, directions, messages, .. } = self;
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
}
