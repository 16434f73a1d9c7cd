//! Messages that are whole: compared, then released or held (M12 to M14).

use crate::reassembly::fragments::Body;
use crate::reassembly::limits::Charge;
use crate::reassembly::messages::{Message, State};
use crate::reassembly::output::{Acknowledgement, Label, Pushed, Rejected, Rejection};
use crate::reassembly::push::{Push, Whole};
use crate::reassembly::{Assembler, FurtherOf};
use crate::signature::{Digest, Header, equal};

/// So many messages that waited are released at a time.
const RUN: usize = 16;

impl Assembler {
    /// A message of the direction is whole and matches: it is known from now on (M19).
    pub(super) fn welcome(&mut self, direction: u32) {
        let direction = self.directions.get_mut(direction);
        if !std::mem::replace(&mut direction.is_known, true) {
            self.budget.welcome(direction.charge);
        }
    }
}

impl Push<'_, '_> {
    /// Compares the messages in the queue, and releases, holds or forgets them.
    pub(super) fn settle(&mut self) {
        let queue = std::mem::take(&mut self.queue);
        if queue.is_empty() {
            return;
        }
        let digests = self.digests(&queue.whole);
        for (place, (whole, digest)) in queue.whole.iter().zip(digests).enumerate() {
            self.assembler.messages.prefetch_ahead(&queue.whole, place, |whole| whole.message);
            let message = self.assembler.messages.get(whole.message);
            let direction = message.direction;
            let matches = match (message.expected(), &digest) {
                (Some(expected), Some(digest)) => equal(expected, digest),
                _ => true,
            };
            self.assembler.directions.get_mut(direction).queued -= 1;
            if matches {
                self.whole(whole.message);
            } else {
                self.corrupt(whole);
            }
        }
        self.output.end_of_plan();
    }

    /// A message is whole, and matches.
    fn whole(&mut self, number: u32) {
        let assembler = &mut *self.assembler;
        let message = assembler.messages.get_mut(number);
        let (direction, sequence) = (message.direction, message.sequence);
        message.state = State::Held;
        assembler.welcome(direction);
        if !assembler.in_order || assembler.directions.get(direction).next == sequence {
            self.release(number);
            self.released(direction, sequence);
        }
    }

    /// A message does not match: all its fragments are rejected, and it is forgotten (M12).
    fn corrupt(&mut self, whole: &Whole) {
        let assembler = &mut *self.assembler;
        let message = assembler.messages.get(whole.message);
        let direction = assembler.directions.get_mut(message.direction);
        let before = self.undone.len();
        message.pieces.for_each(|_, body| {
            if let Body::Lent(number) = body {
                self.undone.push(*number);
            }
        });
        direction.events -= (self.undone.len() - before) as u32;
        let (conversation, is_initiator) = (direction.conversation, direction.is_initiator);
        let Message { sequence, count, direction, .. } = *message;
        self.rejected.extend((0..count).map(|number| {
            let header = Header { conversation, is_initiator, sequence, number, count };
            (whole.row, Rejection { header, reason: Rejected::CorruptMessage })
        }));
        assembler.drop_message(whole.message);
        assembler.uncharge_empty(direction);
    }

    /// Gives a whole message out.
    fn release(&mut self, number: u32) {
        let Assembler { messages, directions, .. } = &mut *self.assembler;
        let message = messages.get_mut(number);
        let direction = directions.get(message.direction);
        let label = Label {
            conversation: direction.conversation,
            is_initiator: direction.is_initiator,
            sequence: message.sequence,
            signature: message.signature.as_ref(),
            further: message.further.take().unwrap_or(FurtherOf::Row(0)),
        };
        if let Some(label) = self.output.give(number, label) {
            let bodies = self.output.begin(label, message.bytes as usize);
            message.pieces.for_each(|_, body| bodies.extend_from_slice(body.bytes(&self.lent)));
        }
        self.assembler.drop_message(number);
    }

    /// A message has been given out: goes on with those that waited for it, or keeps its number (M13).
    pub(super) fn released(&mut self, direction: u32, sequence: i64) {
        if self.assembler.directions.get(direction).next != sequence {
            let message =
                Message { direction, sequence, state: State::Number, charge: Charge::NUMBER, ..Message::default() };
            self.assembler.messages.insert(&self.assembler.hash, message);
            self.assembler.directions.get_mut(direction).messages += 1;
            self.assembler.charge(direction, Charge::NUMBER);
            return;
        }
        let state = self.assembler.directions.get_mut(direction);
        state.next += 1;
        if state.messages == 0 {
            return;
        }
        let mut run = Vec::new();
        loop {
            self.next_in(direction, &mut run);
            for &number in &run {
                if self.assembler.messages.get(number).state == State::Held {
                    self.release(number);
                } else {
                    self.assembler.drop_message(number);
                }
            }
            self.assembler.directions.get_mut(direction).next += run.len() as i64;
            if run.len() < RUN {
                return;
            }
        }
    }

    /// The messages of a direction that can be released now, in their order; looked up together, so that their waits for the memory
    /// overlap.
    fn next_in(&self, direction: u32, run: &mut Vec<u32>) {
        let Assembler { hash, directions, messages, .. } = &*self.assembler;
        let state = directions.get(direction);
        run.clear();
        while run.len() < RUN.min(state.messages as usize)
            && let Some(number) = messages.find(hash, direction, state.next + run.len() as i64)
            && matches!(messages.get(number).state, State::Held | State::Number)
        {
            run.push(number);
        }
        for &number in &*run {
            messages.get(number).pieces.prefetch_bodies(&self.lent);
        }
    }

    /// The end of the push: copies what is still pending, and says what is there.
    pub(super) fn finish(mut self) -> Pushed {
        self.settle();
        self.keep();
        let acknowledgements = self.acknowledgements();
        // A message in the queue was rejected later than its row says.
        self.rejected.sort_by_key(|(row, _)| *row);
        Pushed {
            messages: self.output.into_batches(),
            rejected: self.rejected.into_iter().map(|(_, rejection)| rejection).collect(),
            acknowledgements,
        }
    }

    fn keep(&mut self) {
        let Assembler { messages, partial, .. } = &mut *self.assembler;
        let (mut owners, mut rows) = (Vec::new(), Vec::new());
        for &number in &self.open {
            let message = messages.get_mut(number);
            if !message.is_open {
                continue;
            }
            message.is_open = false;
            message.pieces.keep(&self.lent);
            if let Some(FurtherOf::Row(row)) = message.further {
                owners.push(number);
                rows.push(row);
            }
            if message.state == State::Partial && !message.is_listed {
                message.is_listed = partial.insert((message.direction, message.sequence));
            } else if message.state == State::Held && message.is_listed {
                message.is_listed = !partial.remove(&(message.direction, message.sequence));
            }
        }
        if !rows.is_empty() {
            for (number, kept) in owners.into_iter().zip(self.further.take(&rows)) {
                messages.get_mut(number).further = Some(FurtherOf::Kept(kept));
            }
        }
    }

    /// Puts the directions that were touched in the order in which they first counted, without what was rejected after all.
    fn forget_what_was_undone(&mut self) {
        self.undone.sort_unstable();
        let is_undone = |lent: &Option<u32>| lent.is_some_and(|lent| self.undone.binary_search(&lent).is_ok());
        let counted = self.counted.iter().zip(0_u32..).filter(|((_, lent), _)| !is_undone(lent));
        let mut first: Vec<(u32, u32)> = counted.map(|((direction, _), row)| (*direction, row)).collect();
        first.sort_unstable();
        first.dedup_by_key(|(direction, _)| *direction);
        first.sort_unstable_by_key(|(_, row)| *row);
        self.touched.retain(|&number| self.assembler.directions.get(number).events == 0);
        self.touched.extend(first.iter().map(|(direction, _)| direction));
    }

    fn acknowledgements(&mut self) -> Vec<Acknowledgement> {
        if !self.undone.is_empty() {
            self.forget_what_was_undone();
        }
        let mut acknowledgements = Vec::with_capacity(self.touched.len());
        for &number in &self.touched {
            let direction = self.assembler.directions.get_mut(number);
            direction.is_touched = false;
            let has_events = std::mem::take(&mut direction.events) > 0;
            let direction = self.assembler.directions.get(number);
            if has_events {
                acknowledgements.push(Acknowledgement {
                    conversation: direction.conversation,
                    is_initiator: direction.is_initiator,
                    acked: direction.next.checked_sub(1).filter(|acked| *acked >= 0),
                    partial: self.assembler.first_partial(number),
                });
            }
            if direction.is_empty() {
                self.assembler.directions.remove(&self.assembler.hash, number);
            }
        }
        acknowledgements
    }
}

impl Assembler {
    /// The first message of a direction of which a part is there, and the numbers of its fragments.
    fn first_partial(&self, direction: u32) -> Option<(i64, Vec<i32>)> {
        let &(owner, sequence) = self.partial.range((direction, i64::MIN)..).next()?;
        let message = self.messages.find(&self.hash, owner, sequence).filter(|_| owner == direction)?;
        let message = self.messages.get(message);
        Some((sequence, message.pieces.numbers(message.received)))
    }
}

// Messages that are digested and put together at once, before it is known whether they match.
//
// Nearly all do. So what will be released is written to its place while it is digested, and the memory is read once for both. What turns out
// not to match leaves a gap, which those after it close.

impl Push<'_, '_> {
    /// The MD5 of each message in the queue that has to be compared. The bodies of those that can be released if all match stand in the
    /// output then, in that order.
    pub(super) fn digests(&mut self, queue: &[Whole]) -> Vec<Option<Digest>> {
        let released = self.assembler.plan(queue);
        let messages = &self.assembler.messages;
        let mut digests: Vec<_> = queue.iter().map(|whole| whole.digest).collect();
        let is_unknown = |digests: &[Option<Digest>], number: u32| {
            let message = messages.get(number);
            message.state == State::Queued && digests[message.queued as usize].is_none() && message.expected().is_some()
        };
        let (mut parts, mut ends) = (Vec::new(), Vec::with_capacity(released.len()));
        let mut found = Vec::with_capacity(released.len());
        for (place, &number) in released.iter().enumerate() {
            messages.prefetch_ahead(&released, place, |&number| number);
            messages.get(number).pieces.for_each(|_, body| parts.push(body.bytes(&self.lent)));
            ends.push(parts.len());
            found.push(is_unknown(&digests, number).then_some([0; 16]));
        }
        self.output.put_together(&released, &parts, &ends, &mut found);
        for (&number, digest) in released.iter().zip(found) {
            if digest.is_some() {
                digests[messages.get(number).queued as usize] = digest;
            }
        }
        parts.clear();
        ends.clear();
        let mut places = Vec::new();
        for (place, whole) in queue.iter().enumerate().filter(|(_, whole)| is_unknown(&digests, whole.message)) {
            messages.get(whole.message).pieces.for_each(|_, body| parts.push(body.bytes(&self.lent)));
            ends.push(parts.len());
            places.push(place);
        }
        let mut found = vec![[0; 16]; ends.len()];
        ssbroker_md5::digest_parts(&parts, &ends, &mut found);
        for (place, digest) in places.into_iter().zip(found) {
            digests[place] = Some(digest);
        }
        digests
    }
}

impl Assembler {
    /// The messages that can be released if all in the queue match, in their order (M14). If some do not, the others are released in the
    /// same order: a message waits for none but those before it in its direction.
    fn plan(&mut self, queue: &[Whole]) -> Vec<u32> {
        let Self { hash, directions, messages, in_order, .. } = self;
        for (whole, place) in queue.iter().zip(0..) {
            messages.prefetch_ahead(queue, place as usize, |whole| whole.message);
            let message = messages.get_mut(whole.message);
            message.queued = place;
            let direction = directions.get_mut(message.direction);
            direction.planned = direction.next;
        }
        if !*in_order {
            return queue.iter().map(|whole| whole.message).collect();
        }
        let mut released = Vec::with_capacity(queue.len());
        for whole in queue {
            let message = messages.get_mut(whole.message);
            message.state = State::Held;
            let (number, direction) = (message.direction, directions.get_mut(message.direction));
            if direction.planned != message.sequence {
                continue;
            }
            released.push(whole.message);
            direction.planned += 1;
            while let Some(next) = messages.find(hash, number, direction.planned) {
                match messages.get(next).state {
                    State::Held => released.push(next),
                    State::Number => {}
                    State::Free | State::Partial | State::Queued => break,
                }
                direction.planned += 1;
            }
        }
        for whole in queue {
            messages.get_mut(whole.message).state = State::Queued;
        }
        released
    }
}
