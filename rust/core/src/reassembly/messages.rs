//! In-memory tables of directions and pending messages.

use std::ops::{Index, IndexMut};

use hashbrown::HashTable;

use crate::Guid;
use crate::hash::NameHash;
use crate::prefetch::{CACHE_LINE, prefetch_line};
use crate::reassembly::ExtraValues;
use crate::reassembly::fragments::Fragments;
use crate::reassembly::limits::Charge;
use crate::signature::Digest;

/// The number of messages to prefetch ahead.
const PREFETCH_DISTANCE: usize = 16;

/// Separates the hashes of messages from those of other keys.
const MESSAGE_SALT: u64 = 2;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum MessageState {
    /// A free slot of the slab.
    #[default]
    Free,
    /// Fragments are missing.
    Partial,
    /// All fragments are present; the message signature has not been verified.
    Queued,
    /// Complete and waiting for an earlier message.
    Held,
    /// Complete and released before an earlier message; only the number is kept.
    Released,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Message {
    pub(crate) direction: u32,
    pub(crate) sequence: i64,
    pub(crate) count: i32,
    pub(crate) state: MessageState,
    /// Whether it is in the list of messages updated by the current push.
    pub(crate) is_updated: bool,
    /// Whether it is in `Assembler::partial`.
    pub(crate) is_in_partial: bool,
    /// The signature as received.
    pub(crate) signature: Option<Digest>,
    /// The MD5 decrypted from the signature, if there is a session key.
    pub(crate) decrypted_digest: Option<Box<Digest>>,
    pub(crate) received: u32,
    /// Its position in the queue while the queue is being processed.
    pub(crate) queued: u32,
    /// The total size of its fragments in bytes.
    pub(crate) bytes: u64,
    pub(crate) charge: Charge,
    pub(crate) fragments: Fragments,
    pub(crate) extra: Option<ExtraValues>,
}

#[derive(Clone, Debug)]
pub(crate) struct Messages {
    slab: Slab<Message>,
    table: HashTable<u32>,
}

impl Message {
    /// Returns the MD5 that the message must have; `None` if it has no signature.
    pub(crate) fn expected(&self) -> Option<&Digest> {
        self.decrypted_digest.as_deref().or(self.signature.as_ref())
    }

    /// Whether this is the given message; false for a free slot.
    #[inline]
    pub(crate) fn is(&self, direction: u32, sequence: i64) -> bool {
        self.sequence == sequence && self.direction == direction && self.state != MessageState::Free
    }

    fn key(&self, hash: &NameHash) -> u64 {
        key(hash, self.direction, self.sequence)
    }
}

fn key(hash: &NameHash, direction: u32, sequence: i64) -> u64 {
    hash.of_words(u64::from(direction), sequence as u64, MESSAGE_SALT)
}

impl Messages {
    pub(crate) fn new() -> Self {
        Self { slab: Slab::new(), table: HashTable::new() }
    }

    #[inline]
    pub(crate) fn find(&self, hash: &NameHash, direction: u32, sequence: i64) -> Option<u32> {
        let found =
            self.table.find(key(hash, direction, sequence), |&number| self.slab[number].is(direction, sequence));
        found.copied()
    }

    /// Prefetches the message that probably has this key; `None` if it does not exist.
    #[inline]
    pub(crate) fn prefetch_candidate(&self, hash: &NameHash, direction: u32, sequence: i64) -> Option<u32> {
        let &number = self.table.find(key(hash, direction, sequence), |_| true)?;
        self.slab.prefetch(number);
        Some(number)
    }

    /// Prefetches messages ahead of `position` in a row of messages, and the fragments of nearer ones.
    #[inline]
    pub(crate) fn prefetch_ahead<T>(&self, row: &[T], position: usize, number: impl Fn(&T) -> u32) {
        if let Some(soon) = row.get(position + PREFETCH_DISTANCE) {
            self.slab.prefetch(number(soon));
        }
        if let Some(sooner) = row.get(position + PREFETCH_DISTANCE / 2) {
            self.get(number(sooner)).fragments.prefetch();
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Adds a message that does not exist.
    pub(crate) fn insert(&mut self, hash: &NameHash, message: Message) -> u32 {
        let key = message.key(hash);
        let number = self.slab.insert(message);
        let slab = &self.slab;
        self.table.insert_unique(key, number, |&number| slab[number].key(hash));
        number
    }

    pub(crate) fn remove(&mut self, hash: &NameHash, number: u32) {
        if let Ok(entry) = self.table.find_entry(self.slab[number].key(hash), |&other| other == number) {
            entry.remove();
        }
        self.slab.remove(number);
    }

    #[inline]
    pub(crate) fn get(&self, number: u32) -> &Message {
        &self.slab[number]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: u32) -> &mut Message {
        &mut self.slab[number]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Message)> {
        self.table.iter().map(|&number| (number, &self.slab[number]))
    }
}

/// The state of one direction of a conversation. Fits into one cache line.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
pub(crate) struct Direction {
    pub(crate) conversation: Guid,
    pub(crate) is_initiator: bool,
    /// Whether one of its messages has been verified.
    pub(crate) is_verified: bool,
    /// Whether it is charged; a direction that is not charged is about to be removed.
    pub(crate) is_charged: bool,
    /// The lowest sequence number that is not complete.
    pub(crate) next: i64,
    /// The value of `next` if all queued messages match; valid only while the queue is being processed.
    pub(crate) planned_next: i64,
    /// The charge of the direction and its messages.
    pub(crate) charge: Charge,
    /// The number of its messages in the table, and how many of them are queued.
    pub(crate) messages: u32,
    pub(crate) queued: u32,
    /// Whether the current push touched it, and the number of fragments to acknowledge.
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

    /// Whether the direction has nothing that must be kept.
    pub(crate) fn is_empty(&self) -> bool {
        !self.is_verified && self.messages == 0
    }
}

impl Directions {
    pub(crate) fn new() -> Self {
        Self { slab: Slab::new(), table: HashTable::new() }
    }

    // Called for every fragment.
    #[allow(clippy::inline_always)]
    #[inline(always)]
    pub(crate) fn find(&self, hash: &NameHash, conversation: Guid, is_initiator: bool) -> Option<u32> {
        let found = self.table.find(hash.of_guid(conversation, u32::from(is_initiator)), |&number| {
            self.slab[number].is(conversation, is_initiator)
        });
        found.copied()
    }

    /// Prefetches the direction that probably has this key; `None` if it does not exist.
    #[inline]
    pub(crate) fn prefetch_candidate(&self, hash: &NameHash, conversation: Guid, is_initiator: bool) -> Option<u32> {
        let &number = self.table.find(hash.of_guid(conversation, u32::from(is_initiator)), |_| true)?;
        self.slab.prefetch(number);
        Some(number)
    }

    /// Adds a direction that does not exist.
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

/// Chunk size: a growing slab neither moves its values nor allocates much more than it needs.
const CHUNK: usize = 1 << 10;

#[derive(Clone, Debug)]
pub(crate) struct Slab<T> {
    chunks: Vec<Vec<T>>,
    free: Vec<u32>,
}

impl<T: Default> Slab<T> {
    pub(crate) fn new() -> Self {
        Self { chunks: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn insert(&mut self, value: T) -> u32 {
        if let Some(number) = self.free.pop() {
            self[number] = value;
            return number;
        }
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let before = (self.chunks.len() - 1) * CHUNK;
        let Some(last) = self.chunks.last_mut() else { return 0 };
        last.push(value);
        (before + last.len()) as u32 - 1
    }

    pub(crate) fn remove(&mut self, number: u32) {
        self.free.push(number);
        self[number] = T::default();
    }
}

impl<T> Slab<T> {
    /// Prefetches a value.
    #[inline]
    pub(crate) fn prefetch(&self, number: u32) {
        for line in 0..size_of::<T>().div_ceil(CACHE_LINE) {
            prefetch_line(&self.chunks[number as usize / CHUNK], number as usize % CHUNK, line);
        }
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    #[inline]
    fn index(&self, number: u32) -> &T {
        &self.chunks[number as usize / CHUNK][number as usize % CHUNK]
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, number: u32) -> &mut T {
        &mut self.chunks[number as usize / CHUNK][number as usize % CHUNK]
    }
}
