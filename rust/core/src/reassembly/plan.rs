//! Messages that are digested and put together at once, before it is known whether they match.
//!
//! Nearly all do. So what will be released is written to its place while it is digested, and the memory is read once for both. What turns out
//! not to match leaves a gap, which those after it close.

use super::Assembler;
use super::message::State;
use super::push::Push;
use super::settle::Whole;
use crate::fragment::Digest;

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
