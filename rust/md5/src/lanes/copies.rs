//! Copies that the lanes make of what they take in, while it is in the caches.
//!
//! A copy goes to its place line by line, each of them whole: so the memory need not be read before it is written.

use super::LANES_MAX;
use crate::rounds::{BLOCK, Block};
use std::mem::MaybeUninit;

/// A line of the caches, not written yet.
#[repr(align(64))]
pub(crate) struct Line(pub(crate) [MaybeUninit<u8>; BLOCK]);

/// The lines that each lane copies; none where it copies nothing.
pub(crate) struct Copies<'a, 'c> {
    pub(crate) from: [&'a [Block]; LANES_MAX],
    pub(crate) to: [&'c mut [Line]; LANES_MAX],
}

impl<'a, 'c> Copies<'a, 'c> {
    pub(crate) fn new() -> Self {
        Self { from: [&[]; LANES_MAX], to: std::array::from_fn(|_| &mut [][..]) }
    }

    /// Copies at once what does not fill lines of the target, which is as long, and leaves the lines to the lane.
    pub(crate) fn put(&mut self, lane: usize, from: &'a [u8], to: &'c mut [MaybeUninit<u8>]) {
        // SAFETY: a line is bytes that need not be written yet.
        let (head, lines, tail) = unsafe { to.align_to_mut::<Line>() };
        let (first, rest) = from.split_at(head.len());
        let (middle, last) = rest.split_at(lines.len() * BLOCK);
        copy(first, head);
        copy(last, tail);
        self.from[lane] = middle.as_chunks().0;
        self.to[lane] = lines;
    }
}

/// Copies bytes to a target that is as long, or empty.
#[inline]
pub(crate) fn copy(from: &[u8], to: &mut [MaybeUninit<u8>]) {
    debug_assert!(to.is_empty() || from.len() == to.len());
    for (from, to) in from.iter().zip(to) {
        to.write(*from);
    }
}

/// What the engines without a way of their own do.
#[inline]
pub(super) fn copy_line(from: &Block, to: &mut Line) {
    copy(from, &mut to.0);
}
