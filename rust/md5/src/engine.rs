//! Engines: implementations for the vector instructions of a processor.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::lane_assignment::digest_all;
use crate::lanes::Vectors;
use crate::parts::{append_parts, digest_parts};
use crate::{AppendTarget, Digest};

/// An implementation that digests many messages at a time. All engines return the same digests; each machine
/// supports some of them.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Engine {
    /// 32 lanes in 512-bit vectors.
    Avx512,
    /// 24 lanes in 256-bit vectors.
    Avx2,
    /// 12 lanes in 128-bit vectors, available on every x86-64.
    Sse2,
    /// 16 lanes in 128-bit vectors, available on every 64-bit ARM.
    Neon,
    /// Lanes in arrays, vectorized by the compiler; available everywhere.
    Portable,
}

impl Engine {
    /// Returns the engines available on this machine, fastest first.
    #[must_use]
    pub fn available() -> Vec<Self> {
        ALL.into_iter().filter(|&engine| Vectors::of(engine).is_some()).collect()
    }

    /// Returns the fastest engine of this machine whose vectors are not longer than [`vector_bits_max`].
    #[must_use]
    pub fn best() -> Self {
        let is_usable = |&engine: &Self| engine.vector_bits() <= vector_bits_max() && Vectors::of(engine).is_some();
        ALL.into_iter().find(is_usable).unwrap_or(Self::Portable)
    }

    /// Returns the length of a vector; 0 for arrays.
    const fn vector_bits(self) -> u32 {
        match self {
            Self::Avx512 => 512,
            Self::Avx2 => 256,
            Self::Sse2 | Self::Neon => 128,
            Self::Portable => 0,
        }
    }

    /// Returns the name in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Avx512 => "avx512",
            Self::Avx2 => "avx2",
            Self::Sse2 => "sse2",
            Self::Neon => "neon",
            Self::Portable => "portable",
        }
    }

    /// See [`crate::digest_many`]. Uses [`Engine::Portable`] if this machine does not support the engine.
    ///
    /// # Panics
    /// `inputs` and `into` differ in length.
    pub fn digest_many(self, inputs: &[&[u8]], into: &mut [Digest]) {
        assert_eq!(inputs.len(), into.len(), "inputs and digests differ in length");
        digest_all(Vectors::of_or_portable(self), inputs, into);
    }

    /// See [`crate::digest_parts`]. Uses [`Engine::Portable`] if this machine does not support the engine.
    ///
    /// # Panics
    /// `ends` is not ascending or exceeds the number of parts, or `ends` and `into` differ in length.
    pub fn digest_parts(self, parts: &[&[u8]], ends: &[usize], into: &mut [Digest]) {
        assert_eq!(ends.len(), into.len(), "messages and digests differ in number");
        digest_parts(Vectors::of_or_portable(self), parts, ends, into);
    }

    /// See [`crate::append_parts`]. Uses [`Engine::Portable`] if this machine does not support the engine.
    ///
    /// # Panics
    /// `ends` is not ascending or exceeds the number of parts, or `to` takes more messages than `ends` or `into`
    /// has.
    pub fn append_parts(
        self,
        parts: &[&[u8]],
        ends: &[usize],
        into: &mut [Option<Digest>],
        to: &mut [AppendTarget<'_>],
    ) {
        append_parts(Vectors::of_or_portable(self), parts, ends, into, to);
    }
}

/// Limits the length of the vectors that this process uses, so that one machine can measure and test the code for
/// others.
pub fn limit_vectors(bits_max: u32) {
    VECTOR_BITS_MAX.store(bits_max, Ordering::Relaxed);
}

/// Returns the length of the longest vectors to use.
#[must_use]
pub fn vector_bits_max() -> u32 {
    VECTOR_BITS_MAX.load(Ordering::Relaxed)
}

static VECTOR_BITS_MAX: AtomicU32 = AtomicU32::new(u32::MAX);

/// Fastest first.
const ALL: [Engine; 5] = [Engine::Avx512, Engine::Avx2, Engine::Sse2, Engine::Neon, Engine::Portable];
