//! MD5 of many independent messages at a time.
//!
//! MD5 is a chain of steps, each of which depends on the previous step, so a single message uses only a fraction of a
//! processor's parallelism. Many messages are independent chains: [`digest_many`] assigns one to each vector lane.
//!
//! MD5 protects against accidental changes, not against attackers. The protocol requires it.
#![deny(unsafe_code)]

mod engine;
mod lane_assignment;
mod lanes;
mod parts;
mod rounds;
mod scalar;

pub use engine::{Engine, limit_vectors, vector_bits_max};
pub use scalar::{Hasher, digest};

use std::hint::black_box;

/// An MD5 digest.
pub type Digest = [u8; 16];

/// Writes the digest of each input to the same index of `into`.
///
/// # Panics
/// `inputs` and `into` differ in length.
pub fn digest_many(inputs: &[&[u8]], into: &mut [Digest]) {
    Engine::best().digest_many(inputs, into);
}

/// Writes the digests of messages that consist of parts: message `i` consists of the parts from `ends[i - 1]` (or
/// 0) to `ends[i]`.
///
/// # Panics
/// `ends` is not ascending or exceeds the number of parts, or `ends` and `into` differ in length.
pub fn digest_parts(parts: &[&[u8]], ends: &[usize], into: &mut [Digest]) {
    Engine::best().digest_parts(parts, ends, into);
}

/// A vector to which the next `messages` messages are appended.
#[derive(Debug)]
pub struct AppendTarget<'t> {
    /// The number of messages.
    pub messages: usize,
    /// The vector.
    pub to: &'t mut Vec<u8>,
}

/// Assembles messages from parts, as in [`digest_parts`], and digests those whose entry in `into` is `Some`. Each
/// byte of a message of 8 KiB or more is read from memory only once.
///
/// # Panics
/// `ends` is not ascending or exceeds the number of parts, or `to` takes more messages than `ends` or `into` has.
pub fn append_parts(parts: &[&[u8]], ends: &[usize], into: &mut [Option<Digest>], to: &mut [AppendTarget<'_>]) {
    Engine::best().append_parts(parts, ends, into, to);
}

/// Whether two digests are equal, in constant time (P22).
#[must_use]
pub fn equal(one: &Digest, other: &Digest) -> bool {
    let difference = u128::from_ne_bytes(*one) ^ u128::from_ne_bytes(*other);
    black_box(difference) == 0
}
