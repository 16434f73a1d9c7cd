//! Values by number; the number of one that is removed is used again.

use std::ops::{Index, IndexMut};

use crate::prefetch::{LINE, prefetch_line};

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
