//! The messages of which something is pending.

use std::ops::{Index, IndexMut};

use hashbrown::HashTable;

use crate::Guid;
use crate::hash::NameHash;
use crate::prefetch::{LINE, prefetch_line};
use crate::reassembly::FurtherOf;
use crate::reassembly::fragments::Pieces;
use crate::reassembly::limits::Charge;
use crate::signature::Digest;

/// So many messages on, one is asked for that has to be dealt with.
const SOON: usize = 16;

/// Tells the hashes of messages from those of other keys.
const SALT: u64 = 2;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    /// No message has this place of the slab.
    #[default]
    Free,
    /// Fragments are missing.
    Partial,
    /// All fragments are there; the signature of the whole is to be compared.
    Queued,
    /// Whole, and waits for an earlier message (M13).
    Held,
    /// Whole and released before an earlier one; only its number is kept.
    Number,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Message {
    pub(crate) direction: u32,
    pub(crate) sequence: i64,
    pub(crate) count: i32,
    pub(crate) state: State,
    /// It is listed as one that got a fragment from this push.
    pub(crate) is_open: bool,
    /// It is among the partial ones of the assembler.
    pub(crate) is_listed: bool,
    /// As it was received.
    pub(crate) signature: Option<Digest>,
    /// The MD5 that the whole must have, where a session key hides it in the signature.
    pub(crate) opened: Option<Box<Digest>>,
    pub(crate) received: u32,
    /// Its place in the queue while that is settled.
    pub(crate) queued: u32,
    /// The bytes of its fragments.
    pub(crate) bytes: u64,
    pub(crate) charge: Charge,
    pub(crate) pieces: Pieces,
    pub(crate) further: Option<FurtherOf>,
}

#[derive(Clone, Debug)]
pub(crate) struct Messages {
    slab: Slab<Message>,
    table: HashTable<u32>,
}

impl Message {
    /// The MD5 that the whole must have; `None` where nothing is compared (M12).
    pub(crate) fn expected(&self) -> Option<&Digest> {
        self.opened.as_deref().or(self.signature.as_ref())
    }

    /// Whether it is this one, and no place that is free.
    #[inline]
    pub(crate) fn is(&self, direction: u32, sequence: i64) -> bool {
        self.sequence == sequence && self.direction == direction && self.state != State::Free
    }

    fn key(&self, hash: &NameHash) -> u64 {
        key(hash, self.direction, self.sequence)
    }
}

fn key(hash: &NameHash, direction: u32, sequence: i64) -> u64 {
    hash.of_words(u64::from(direction), sequence as u64, SALT)
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

    /// A message that may be the one, and is it nearly always if that is there; `None` if it is not there. Asks the memory for it.
    #[inline]
    pub(crate) fn guess(&self, hash: &NameHash, direction: u32, sequence: i64) -> Option<u32> {
        let &guess = self.table.find(key(hash, direction, sequence), |_| true)?;
        self.slab.prefetch(guess);
        Some(guess)
    }

    /// While the message at `place` of a row of them is dealt with, asks the memory for those that come soon, and for what stands beside
    /// those that come sooner.
    #[inline]
    pub(crate) fn prefetch_ahead<T>(&self, row: &[T], place: usize, number: impl Fn(&T) -> u32) {
        if let Some(soon) = row.get(place + SOON) {
            self.slab.prefetch(number(soon));
        }
        if let Some(sooner) = row.get(place + SOON / 2) {
            self.get(number(sooner)).pieces.prefetch();
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Adds a message that is not there.
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

// The directions of conversations: what is remembered of each while it lives (M2, M13).

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

// Values by number; the number of one that is removed is used again.

/// Values lie in chunks of so many: what grows does not move, and takes no more than it needs.
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
    /// Asks the memory for a value.
    #[inline]
    pub(crate) fn prefetch(&self, number: u32) {
        for line in 0..size_of::<T>().div_ceil(LINE) {
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
