//! MD5 of many independent messages at a time.
//!
//! One MD5 is a chain of steps in which each waits for the one before, so a processor that could do a dozen things at a time does one.
//! Many messages are many chains: [`digest_many`] puts one into each lane of the processor's vectors.
//!
//! MD5 protects against accidents, not against attackers: it is here because the protocol says so.
#![deny(unsafe_code)]

mod engine;
mod lanes;
mod parts;
mod rounds;
mod scalar;
mod schedule;

pub use engine::Engine;
pub use scalar::{Hasher, digest};

use std::hint::black_box;

/// The 16 bytes of an MD5 digest.
pub type Digest = [u8; 16];

/// Writes the digest of every input to the same place of `into`. If the two differ in length, only the places that both have are done.
pub fn digest_many(inputs: &[&[u8]], into: &mut [Digest]) {
    Engine::best().digest_many(inputs, into);
}

/// Writes the digest of messages that lie in parts: message `i` is made of the parts before `ends[i]` that no earlier message has.
/// If `ends` and `into` differ in length, only the places that both have are done.
///
/// # Panics
/// The `ends` descend, or lead beyond the parts.
pub fn digest_parts(parts: &[&[u8]], ends: &[usize], into: &mut [Digest]) {
    Engine::best().digest_parts(parts, ends, into);
}

/// A vector to which the next `messages` are appended, one after the other.
#[derive(Debug)]
pub struct Appended<'t> {
    /// How many.
    pub messages: usize,
    /// The vector.
    pub to: &'t mut Vec<u8>,
}

/// Puts messages together that lie in parts, as in [`digest_parts`], and writes the digest of those that have one in `into`. Each byte is
/// read once for both.
///
/// # Panics
/// The `ends` descend, or lead beyond the parts; or `to` takes more messages than there are `ends` or places in `into`.
pub fn append_parts(parts: &[&[u8]], ends: &[usize], into: &mut [Option<Digest>], to: &mut [Appended<'_>]) {
    Engine::best().append_parts(parts, ends, into, to);
}

/// Whether two digests are the same, in a time that does not tell where they differ.
#[must_use]
pub fn equal(one: &Digest, other: &Digest) -> bool {
    let difference = u128::from_ne_bytes(*one) ^ u128::from_ne_bytes(*other);
    black_box(difference) == 0
}
