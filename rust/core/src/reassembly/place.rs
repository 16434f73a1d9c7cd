//! Where a fragment belongs: its direction and its message, as far as they are there.

use super::Assembler;
use super::judge::Received;
use crate::fragment::Header;

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
