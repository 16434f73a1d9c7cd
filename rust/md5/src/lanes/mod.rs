//! Vector lanes: each lane processes the blocks of one message.
//!
//! The intrinsics require processor features, which are detected once per batch, when [`Vectors`] is created.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod kernel;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(target_arch = "x86_64")]
mod sse2;

use std::mem::MaybeUninit;

use crate::Engine;
use crate::rounds::{BLOCK, Block, START};
use crate::scalar::pad;

/// The maximum number of lanes of any engine.
pub(crate) const LANES_MAX: usize = 32;

/// The next blocks of each lane.
pub(crate) type Sources<'a> = [&'a [Block]; LANES_MAX];

/// The destination to which each lane copies its input; empty if it does not.
pub(crate) type Targets<'c> = [&'c mut [MaybeUninit<u8>]; LANES_MAX];

/// The states of all lanes, word by word.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct States(pub(crate) [[u32; LANES_MAX]; 4]);

impl States {
    pub(crate) fn new() -> Self {
        Self(START.map(|word| [word; LANES_MAX]))
    }

    #[inline]
    pub(crate) fn put(&mut self, lane: usize, state: [u32; 4]) {
        for (words, word) in self.0.iter_mut().zip(state) {
            words[lane] = word;
        }
    }

    #[inline]
    pub(crate) fn of(&self, lane: usize) -> [u32; 4] {
        let [a, b, c, d] = &self.0;
        [a[lane], b[lane], c[lane], d[lane]]
    }
}

/// An engine that this machine supports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vectors(Engine);

impl Vectors {
    /// Returns the engine if this machine supports it.
    pub(crate) fn of(engine: Engine) -> Option<Self> {
        let is_available = match engine {
            #[cfg(target_arch = "x86_64")]
            Engine::Avx512 => is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw"),
            #[cfg(target_arch = "x86_64")]
            Engine::Avx2 => is_x86_feature_detected!("avx2"),
            #[cfg(target_arch = "x86_64")]
            Engine::Sse2 => is_x86_feature_detected!("sse2"),
            #[cfg(target_arch = "aarch64")]
            Engine::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            Engine::Portable => true,
            #[allow(unreachable_patterns)]
            _ => false,
        };
        is_available.then_some(Self(engine))
    }

    /// Returns the engine, or [`Engine::Portable`] if this machine does not support it.
    pub(crate) fn of_or_portable(engine: Engine) -> Self {
        Self::of(engine).unwrap_or(Self(Engine::Portable))
    }

    /// Returns the number of lanes.
    pub(crate) const fn lanes(self) -> usize {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Engine::Avx512 => avx512::LANES,
            #[cfg(target_arch = "x86_64")]
            Engine::Avx2 => avx2::LANES,
            #[cfg(target_arch = "x86_64")]
            Engine::Sse2 => sse2::LANES,
            #[cfg(target_arch = "aarch64")]
            Engine::Neon => neon::LANES,
            _ => portable::LANES,
        }
    }

    /// See [`crate::scalar::pad`].
    #[inline]
    pub(crate) fn pad(self, block: &mut Block, end: &[u8], len: u64) -> bool {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `of` has checked the processor features.
            Engine::Avx512 => unsafe { avx512::pad(block, end, len) },
            _ => pad(block, end, len),
        }
    }

    /// Processes the next `blocks` blocks of the first `lanes` lanes. The other lanes are undefined, but all
    /// sources must have that many blocks. Copies the input to `copies` on the way.
    #[inline]
    pub(crate) fn advance(
        self,
        states: &mut States,
        sources: &Sources<'_>,
        copies: Option<&mut Copies<'_, '_>>,
        lanes: usize,
        blocks: usize,
    ) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `of` has checked the processor features.
            Engine::Avx512 => unsafe { avx512::advance(states, sources, copies, lanes, blocks) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Engine::Avx2 => unsafe { avx2::advance(states, sources, copies, lanes, blocks) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Engine::Sse2 => unsafe { sse2::advance(states, sources, copies, lanes, blocks) },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: as above.
            Engine::Neon => unsafe { neon::advance(states, sources, copies, lanes, blocks) },
            _ => portable::advance(states, sources, copies, lanes, blocks),
        }
    }
}

/// Prefetches the first blocks of a message.
#[inline]
pub(crate) fn prefetch(message: &[u8]) {
    for block in message[..message.len().min(AHEAD * BLOCK)].chunks(BLOCK) {
        prefetch_line(block.as_ptr());
    }
}

/// Prefetches block `at` of each lane. A processor tracks fewer streams than there are lanes.
#[inline]
fn prefetch_block(sources: &[&[Block]], at: usize) {
    for source in sources {
        prefetch_line(source.as_ptr().wrapping_add(at).cast());
    }
}

/// Prefetches a cache line; the address need not be valid.
#[inline]
fn prefetch_line(line: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never reads memory and never faults, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T1>(line.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// The number of blocks to prefetch ahead.
const AHEAD: usize = 8;

// Copies of the input, made by the lanes while it is in the caches. A copy is written in whole cache lines: an engine
// with stores that bypass the caches need not read the memory first.

/// A cache line that is not written yet.
#[repr(align(64))]
pub(crate) struct Line(pub(crate) [MaybeUninit<u8>; BLOCK]);

/// The lines that each lane copies; empty if it does not.
pub(crate) struct Copies<'a, 'c> {
    pub(crate) from: [&'a [Block]; LANES_MAX],
    pub(crate) to: [&'c mut [Line]; LANES_MAX],
}

impl<'a, 'c> Copies<'a, 'c> {
    pub(crate) fn new() -> Self {
        Self { from: [&[]; LANES_MAX], to: std::array::from_fn(|_| &mut [][..]) }
    }

    /// Copies the bytes that do not fill whole lines of the destination, which has the same length; the lane copies the
    /// lines.
    pub(crate) fn put(&mut self, lane: usize, from: &'a [u8], to: &'c mut [MaybeUninit<u8>]) {
        // SAFETY: a line consists of bytes that may be uninitialized.
        let (head, lines, tail) = unsafe { to.align_to_mut::<Line>() };
        let (first, rest) = from.split_at(head.len());
        let (middle, last) = rest.split_at(lines.len() * BLOCK);
        copy(first, head);
        copy(last, tail);
        self.from[lane] = middle.as_chunks().0;
        self.to[lane] = lines;
    }
}

/// Copies bytes to a destination of the same length, or does nothing if it is empty.
#[inline]
pub(crate) fn copy(from: &[u8], to: &mut [MaybeUninit<u8>]) {
    assert!(to.is_empty() || from.len() == to.len(), "{} bytes for {}", from.len(), to.len());
    for (from, to) in from.iter().zip(to) {
        to.write(*from);
    }
}

/// The default for engines without a special instruction.
#[inline]
pub(super) fn copy_line(from: &Block, to: &mut Line) {
    copy(from, &mut to.0);
}
