//! The messages of which something is pending.

use hashbrown::HashTable;

use super::FurtherOf;
use super::limits::Charge;
use super::piece::Pieces;
use super::slab::Slab;
use crate::fragment::Digest;
use crate::hash::NameHash;

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
