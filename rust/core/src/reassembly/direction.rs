//! The directions of conversations: what is remembered of each while it lives (M2, M13).

use hashbrown::HashTable;

use super::limits::Charge;
use super::slab::Slab;
use crate::Guid;
use crate::hash::NameHash;

/// No larger than a cache line, and in one.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
pub(crate) struct Direction {
    pub(crate) conversation: Guid,
    pub(crate) is_initiator: bool,
    /// One of its messages has been whole and matched (M19).
    pub(crate) is_known: bool,
    /// It is charged; one that is not is about to be forgotten (M20).
    pub(crate) is_charged: bool,
    /// The lowest sequence number that is not whole.
    pub(crate) next: i64,
    /// The same, once all messages in the queue turn out to match; meaningful only while it is settled.
    pub(crate) planned: i64,
    /// What is charged for it and its messages.
    pub(crate) charge: Charge,
    /// How many messages are in the table, and how many of those wait to be compared.
    pub(crate) messages: u32,
    pub(crate) queued: u32,
    /// This push has touched it, and so many fragments are to be acknowledged.
    pub(crate) is_touched: bool,
    pub(crate) events: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Directions {
    slab: Slab<Direction>,
    table: HashTable<u32>,
}

impl Direction {
    #[inline]
    pub(crate) fn is(&self, conversation: Guid, is_initiator: bool) -> bool {
        self.conversation == conversation && self.is_initiator == is_initiator
    }

    /// Whether nothing is left to remember.
    pub(crate) fn is_empty(&self) -> bool {
        !self.is_known && self.messages == 0
    }
}

impl Directions {
    pub(crate) fn new() -> Self {
        Self { slab: Slab::new(), table: HashTable::new() }
    }

    // For every fragment.
    #[allow(clippy::inline_always)]
    #[inline(always)]
    pub(crate) fn find(&self, hash: &NameHash, conversation: Guid, is_initiator: bool) -> Option<u32> {
        let found = self.table.find(hash.of_guid(conversation, u32::from(is_initiator)), |&number| {
            self.slab[number].is(conversation, is_initiator)
        });
        found.copied()
    }

    /// A direction that may be the one, and is it nearly always if that is there; `None` if it is not there. Asks the memory for it.
    #[inline]
    pub(crate) fn guess(&self, hash: &NameHash, conversation: Guid, is_initiator: bool) -> Option<u32> {
        let &guess = self.table.find(hash.of_guid(conversation, u32::from(is_initiator)), |_| true)?;
        self.slab.prefetch(guess);
        Some(guess)
    }

    /// Adds a direction that is not there.
    pub(crate) fn insert(&mut self, hash: &NameHash, direction: Direction) -> u32 {
        let key = hash.of_guid(direction.conversation, u32::from(direction.is_initiator));
        let number = self.slab.insert(direction);
        let slab = &self.slab;
        self.table.insert_unique(key, number, |&number| {
            hash.of_guid(slab[number].conversation, u32::from(slab[number].is_initiator))
        });
        number
    }

    pub(crate) fn remove(&mut self, hash: &NameHash, number: u32) {
        let direction = &self.slab[number];
        let key = hash.of_guid(direction.conversation, u32::from(direction.is_initiator));
        if let Ok(entry) = self.table.find_entry(key, |&other| other == number) {
            entry.remove();
        }
        self.slab.remove(number);
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    #[inline]
    pub(crate) fn get(&self, number: u32) -> &Direction {
        &self.slab[number]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: u32) -> &mut Direction {
        &mut self.slab[number]
    }

    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> {
        self.table.iter().copied()
    }
}
