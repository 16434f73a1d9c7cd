//! The engines: what the lanes are made of.

use crate::lanes::Vectors;
use crate::parts::{append_parts, digest_parts};
use crate::schedule::digest_all;
use crate::{Appended, Digest};

/// What digests many messages at a time. All engines give the same digests; a machine has some of them.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Engine {
    /// 32 lanes in vectors of 512 bits.
    Avx512,
    /// 24 lanes in vectors of 256 bits.
    Avx2,
    /// Lanes in vectors of 128 bits, which every x86-64 has.
    Sse2,
    /// Lanes in vectors of 128 bits, which every 64-bit ARM has.
    Neon,
    /// Lanes in arrays, of which the compiler makes what it can. Every machine has this one.
    Portable,
}

impl Engine {
    /// The engines that this machine has, the fastest first.
    #[must_use]
    pub fn available() -> Vec<Self> {
        ALL.into_iter().filter(|&engine| Vectors::of(engine).is_some()).collect()
    }

    /// The fastest engine of this machine.
    #[must_use]
    pub fn best() -> Self {
        ALL.into_iter().find(|&engine| Vectors::of(engine).is_some()).unwrap_or(Self::Portable)
    }

    /// What the engine is called, in small letters.
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

    /// As [`crate::digest_many`], by this engine. What this machine does not have is done by [`Engine::Portable`].
    pub fn digest_many(self, inputs: &[&[u8]], into: &mut [Digest]) {
        let count = inputs.len().min(into.len());
        if let Some(vectors) = Vectors::of(self).or_else(|| Vectors::of(Self::Portable)) {
            digest_all(vectors, &inputs[..count], &mut into[..count]);
        }
    }

    /// As [`crate::digest_parts`], by this engine. What this machine does not have is done by [`Engine::Portable`].
    ///
    /// # Panics
    /// The `ends` descend, or lead beyond the parts.
    pub fn digest_parts(self, parts: &[&[u8]], ends: &[usize], into: &mut [Digest]) {
        let count = ends.len().min(into.len());
        if let Some(vectors) = Vectors::of(self).or_else(|| Vectors::of(Self::Portable)) {
            digest_parts(vectors, parts, &ends[..count], &mut into[..count]);
        }
    }

    /// As [`crate::append_parts`], by this engine. What this machine does not have is done by [`Engine::Portable`].
    ///
    /// # Panics
    /// The `ends` descend, or lead beyond the parts; or `to` takes more messages than there are `ends` or places in `into`.
    pub fn append_parts(self, parts: &[&[u8]], ends: &[usize], into: &mut [Option<Digest>], to: &mut [Appended<'_>]) {
        if let Some(vectors) = Vectors::of(self).or_else(|| Vectors::of(Self::Portable)) {
            append_parts(vectors, parts, ends, into, to);
        }
    }
}

/// The fastest first.
const ALL: [Engine; 5] = [Engine::Avx512, Engine::Avx2, Engine::Sse2, Engine::Neon, Engine::Portable];
