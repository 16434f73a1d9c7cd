//! Processes the queue of complete messages: verifies them, then releases, holds or drops them.

use ssbroker_md5::equal;

use crate::reassembly::fragments::Body;
use crate::reassembly::limits::Charge;
use crate::reassembly::messages::{Message, MessageState};
use crate::reassembly::output::{Acknowledgement, MessageInfo, Pushed, Rejected, Rejection};
use crate::reassembly::push::{CompleteMessage, Push};
use crate::reassembly::{Assembler, ExtraValues};
use crate::signature::{Digest, Header};

/// The number of held messages that are released at a time.
const RUN: usize = 16;

impl Assembler {
    /// Records that a message of the direction has been verified.
    pub(super) fn mark_verified(&mut self, direction: u32) {
        let direction = self.directions.get_mut(direction);
        if !std::mem::replace(&mut direction.is_verified, true) {
            self.budget.mark_verified(direction.charge);
        }
    }
}

impl Push<'_, '_> {
    /// Verifies the queued messages, and releases, holds or drops them.
    pub(super) fn process_complete(&mut self) {
        let queue = std::mem::take(&mut self.queue);
        if queue.is_empty() {
            return;
        }
        let digests = self.digests(&queue.messages);
        for (position, (complete, digest)) in queue.messages.iter().zip(digests).enumerate() {
            self.assembler.messages.prefetch_ahead(&queue.messages, position, |complete| complete.message);
            let message = self.assembler.messages.get(complete.message);
            let direction = message.direction;
            let matches = match (message.expected(), &digest) {
                (Some(expected), Some(digest)) => equal(expected, digest),
                _ => true,
            };
            self.assembler.directions.get_mut(direction).queued -= 1;
            if matches {
                self.accept_complete(complete.message);
            } else {
                self.reject_complete(complete);
            }
        }
        self.output.drop_unreleased();
    }

    /// Handles a verified message.
    fn accept_complete(&mut self, number: u32) {
        let assembler = &mut *self.assembler;
        let message = assembler.messages.get_mut(number);
        let (direction, sequence) = (message.direction, message.sequence);
        message.state = MessageState::Held;
        assembler.mark_verified(direction);
        if !assembler.in_order || assembler.directions.get(direction).next == sequence {
            self.release(number);
            self.after_release(direction, sequence);
        }
    }

    /// P23: drops a message that does not match its signature and rejects all its fragments.
    fn reject_complete(&mut self, complete: &CompleteMessage) {
        let assembler = &mut *self.assembler;
        let message = assembler.messages.get(complete.message);
        let direction = assembler.directions.get_mut(message.direction);
        let before = self.retracted.len();
        message.fragments.for_each(|_, body| {
            if let Body::Borrowed(number) = body {
                self.retracted.push(*number);
            }
        });
        direction.events -= (self.retracted.len() - before) as u32;
        let (conversation, is_initiator) = (direction.conversation, direction.is_initiator);
        let Message { sequence, count, direction, .. } = *message;
        self.rejected.extend((0..count).map(|number| {
            let header = Header { conversation, is_initiator, sequence, number, count };
            (complete.row, Rejection { header, reason: Rejected::CorruptMessage })
        }));
        assembler.drop_message(complete.message);
        assembler.uncharge_empty(direction);
    }

    /// Releases a complete message.
    fn release(&mut self, number: u32) {
        let Assembler { messages, directions, .. } = &mut *self.assembler;
        let message = messages.get_mut(number);
        let direction = directions.get(message.direction);
        let info = MessageInfo {
            conversation: direction.conversation,
            is_initiator: direction.is_initiator,
            sequence: message.sequence,
            signature: message.signature.as_ref(),
            extra: message.extra.take().unwrap_or(ExtraValues::Row(0)),
        };
        if let Some(info) = self.output.release(number, info) {
            let bodies = self.output.start_message(info, message.bytes as usize);
            message.fragments.for_each(|_, body| bodies.extend_from_slice(body.bytes(&self.borrowed)));
        }
        self.assembler.drop_message(number);
    }

    /// After a release: releases held messages that waited for it, or keeps its number.
    pub(super) fn after_release(&mut self, direction: u32, sequence: i64) {
        if self.assembler.directions.get(direction).next != sequence {
            let message = Message {
                direction,
                sequence,
                state: MessageState::Released,
                charge: Charge::NUMBER,
                ..Message::default()
            };
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
            self.releasable_run(direction, &mut run);
            for &number in &run {
                if self.assembler.messages.get(number).state == MessageState::Held {
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

    /// Finds the messages of a direction that can be released now, in order. They are looked up together, so that
    /// their memory latencies overlap.
    fn releasable_run(&self, direction: u32, run: &mut Vec<u32>) {
        let Assembler { hash, directions, messages, .. } = &*self.assembler;
        let state = directions.get(direction);
        run.clear();
        while run.len() < RUN.min(state.messages as usize)
            && let Some(number) = messages.find(hash, direction, state.next + run.len() as i64)
            && matches!(messages.get(number).state, MessageState::Held | MessageState::Released)
        {
            run.push(number);
        }
        for &number in &*run {
            messages.get(number).fragments.prefetch_bodies(&self.borrowed);
        }
    }

    /// Ends the push: copies what is still pending and returns the result.
    pub(super) fn finish(mut self) -> Pushed {
        self.process_complete();
        self.store_pending();
        let acknowledgements = self.acknowledgements();
        // Messages are rejected when the queue is processed, which is later than their row.
        self.rejected.sort_by_key(|(row, _)| *row);
        Pushed {
            messages: self.output.into_batches(),
            rejected: self.rejected.into_iter().map(|(_, rejection)| rejection).collect(),
            acknowledgements,
        }
    }

    fn store_pending(&mut self) {
        let Assembler { messages, partial, .. } = &mut *self.assembler;
        let (mut owners, mut rows) = (Vec::new(), Vec::new());
        for &number in &self.updated {
            let message = messages.get_mut(number);
            if !message.is_updated {
                continue;
            }
            message.is_updated = false;
            message.fragments.make_owned(&self.borrowed);
            if let Some(ExtraValues::Row(row)) = message.extra {
                owners.push(number);
                rows.push(row);
            }
            if message.state == MessageState::Partial && !message.is_in_partial {
                message.is_in_partial = partial.insert((message.direction, message.sequence));
            } else if message.state == MessageState::Held && message.is_in_partial {
                message.is_in_partial = !partial.remove(&(message.direction, message.sequence));
            }
        }
        if !rows.is_empty() {
            for (number, stored) in owners.into_iter().zip(self.extra.take(&rows)) {
                messages.get_mut(number).extra = Some(ExtraValues::Stored(stored));
            }
        }
    }

    /// Restores the order in which the touched directions first counted, ignoring retracted fragments.
    fn remove_retracted_events(&mut self) {
        self.retracted.sort_unstable();
        let is_retracted =
            |borrowed: &Option<u32>| borrowed.is_some_and(|borrowed| self.retracted.binary_search(&borrowed).is_ok());
        let events = self.events.iter().zip(0_u32..).filter(|((_, borrowed), _)| !is_retracted(borrowed));
        let mut first: Vec<(u32, u32)> = events.map(|((direction, _), row)| (*direction, row)).collect();
        first.sort_unstable();
        first.dedup_by_key(|(direction, _)| *direction);
        first.sort_unstable_by_key(|(_, row)| *row);
        self.touched.retain(|&number| self.assembler.directions.get(number).events == 0);
        self.touched.extend(first.iter().map(|(direction, _)| direction));
    }

    fn acknowledgements(&mut self) -> Vec<Acknowledgement> {
        if !self.retracted.is_empty() {
            self.remove_retracted_events();
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
    /// Returns the first incomplete message of a direction and the numbers of its fragments.
    fn first_partial(&self, direction: u32) -> Option<(i64, Vec<i32>)> {
        let &(owner, sequence) = self.partial.range((direction, i64::MIN)..).next()?;
        let message = self.messages.find(&self.hash, owner, sequence).filter(|_| owner == direction)?;
        let message = self.messages.get(message);
        Some((sequence, message.fragments.numbers(message.received)))
    }
}

// Messages are digested and assembled in one pass over memory before it is known whether they match their
// signatures, because nearly all do. A message that does not match leaves a gap, which later messages close.

impl Push<'_, '_> {
    /// Returns the MD5 of each queued message that must be verified. Writes the bodies that can be released if all
    /// messages match to the output, in that order.
    pub(super) fn digests(&mut self, queue: &[CompleteMessage]) -> Vec<Option<Digest>> {
        let released = self.assembler.release_order(queue);
        let messages = &self.assembler.messages;
        let mut digests: Vec<_> = queue.iter().map(|complete| complete.digest).collect();
        let is_unknown = |digests: &[Option<Digest>], number: u32| {
            let message = messages.get(number);
            message.state == MessageState::Queued
                && digests[message.queued as usize].is_none()
                && message.expected().is_some()
        };
        let (mut parts, mut ends) = (Vec::new(), Vec::with_capacity(released.len()));
        let mut found = Vec::with_capacity(released.len());
        for (position, &number) in released.iter().enumerate() {
            messages.prefetch_ahead(&released, position, |&number| number);
            messages.get(number).fragments.for_each(|_, body| parts.push(body.bytes(&self.borrowed)));
            ends.push(parts.len());
            found.push(is_unknown(&digests, number).then_some([0; 16]));
        }
        self.output.assemble(&released, &parts, &ends, &mut found);
        for (&number, digest) in released.iter().zip(found) {
            if digest.is_some() {
                digests[messages.get(number).queued as usize] = digest;
            }
        }
        parts.clear();
        ends.clear();
        let mut positions = Vec::new();
        for (position, complete) in
            queue.iter().enumerate().filter(|(_, complete)| is_unknown(&digests, complete.message))
        {
            messages.get(complete.message).fragments.for_each(|_, body| parts.push(body.bytes(&self.borrowed)));
            ends.push(parts.len());
            positions.push(position);
        }
        let mut found = vec![[0; 16]; ends.len()];
        ssbroker_md5::digest_parts(&parts, &ends, &mut found);
        for (position, digest) in positions.into_iter().zip(found) {
            digests[position] = Some(digest);
        }
        digests
    }
}

impl Assembler {
    /// Returns the messages that can be released if all queued ones match, in order. If some do not match, the
    /// order of the others is the same: a message waits only for earlier ones of its direction.
    fn release_order(&mut self, queue: &[CompleteMessage]) -> Vec<u32> {
        let Self { hash, directions, messages, in_order, .. } = self;
        for (complete, position) in queue.iter().zip(0..) {
            messages.prefetch_ahead(queue, position as usize, |complete| complete.message);
            let message = messages.get_mut(complete.message);
            message.queued = position;
            let direction = directions.get_mut(message.direction);
            direction.planned_next = direction.next;
        }
        if !*in_order {
            return queue.iter().map(|complete| complete.message).collect();
        }
        let mut released = Vec::with_capacity(queue.len());
        for complete in queue {
            let message = messages.get_mut(complete.message);
            message.state = MessageState::Held;
            let (number, direction) = (message.direction, directions.get_mut(message.direction));
            if direction.planned_next != message.sequence {
                continue;
            }
            released.push(complete.message);
            direction.planned_next += 1;
            while let Some(next) = messages.find(hash, number, direction.planned_next) {
                match messages.get(next).state {
                    MessageState::Held => released.push(next),
                    MessageState::Released => {}
                    MessageState::Free | MessageState::Partial | MessageState::Queued => break,
                }
                direction.planned_next += 1;
            }
        }
        for complete in queue {
            messages.get_mut(complete.message).state = MessageState::Queued;
        }
        released
    }
}
