//! Texts that are kept once and named by number.

use hashbrown::HashTable;

use crate::hash::{NameHash, Seed};

/// Distinct byte strings, numbered from 0 in the order of their arrival.
#[derive(Debug)]
pub(crate) struct Interner {
    hash: NameHash,
    texts: Texts,
    table: HashTable<u32>,
}

/// Byte strings one after the other.
#[derive(Debug)]
pub(crate) struct Texts {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Interner {
    pub(crate) fn new(seed: Seed) -> Self {
        Self { hash: NameHash::new(seed), texts: Texts::new(), table: HashTable::new() }
    }

    /// Makes room for so many distinct texts.
    pub(crate) fn reserve(&mut self, count: usize) {
        let (hash, texts) = (&self.hash, &self.texts);
        self.table.reserve(count, |&id| hash.of(texts.get(id), 0));
    }

    /// The number of `text`, a new one if it was not seen before; `None` if there is no room left.
    pub(crate) fn intern(&mut self, text: &[u8]) -> Option<u32> {
        let hash = self.hash.of(text, 0);
        if let Some(&id) = self.table.find(hash, |&id| self.texts.get(id) == text) {
            return Some(id);
        }
        let id = self.texts.push(text)?;
        self.table.insert_unique(hash, id, |&id| self.hash.of(self.texts.get(id), 0));
        Some(id)
    }

    pub(crate) fn find(&self, text: &[u8]) -> Option<u32> {
        self.table.find(self.hash.of(text, 0), |&id| self.texts.get(id) == text).copied()
    }

    pub(crate) fn texts(&self) -> &Texts {
        &self.texts
    }
}

impl Texts {
    pub(crate) fn new() -> Self {
        Self { bytes: Vec::new(), ends: Vec::new() }
    }

    /// Appends `text` and returns its number; `None` if the whole would exceed 4 GiB.
    pub(crate) fn push(&mut self, text: &[u8]) -> Option<u32> {
        let id = u32::try_from(self.ends.len()).ok()?;
        let end = u32::try_from(self.bytes.len().checked_add(text.len())?).ok()?;
        self.bytes.extend_from_slice(text);
        self.ends.push(end);
        Some(id)
    }

    #[inline]
    pub(crate) fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let start = if id == 0 { 0 } else { self.ends[id - 1] as usize };
        &self.bytes[start..self.ends[id] as usize]
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }
}
