//! MD5 of a single message, used for small numbers of messages and for remainders that are not worth a vector.

use crate::Digest;
use crate::rounds::{BLOCK, Block, SINES, START, shift, steps, word};
use std::hint::black_box;

/// An incremental MD5.
#[derive(Clone, Debug)]
pub struct Hasher {
    state: [u32; 4],
    /// The bytes since the last full block; the first `len % 64` are valid.
    partial: Block,
    len: u64,
}

impl Hasher {
    /// Creates a hasher.
    #[must_use]
    pub const fn new() -> Self {
        Self { state: START, partial: [0; BLOCK], len: 0 }
    }

    /// Adds the next bytes of the message.
    pub fn update(&mut self, bytes: &[u8]) {
        let partial = (self.len % BLOCK as u64) as usize;
        self.len = self.len.wrapping_add(bytes.len() as u64);
        let (head, rest) = bytes.split_at(bytes.len().min((BLOCK - partial) % BLOCK));
        self.partial[partial..partial + head.len()].copy_from_slice(head);
        if partial > 0 && partial + head.len() == BLOCK {
            compress(&mut self.state, &[self.partial]);
        }
        let (blocks, end) = rest.as_chunks();
        compress(&mut self.state, blocks);
        // Bytes before this point completed or extended the partial block.
        self.partial[..end.len()].copy_from_slice(end);
    }

    /// Returns the digest.
    #[must_use]
    pub fn finish(mut self) -> Digest {
        let partial = (self.len % BLOCK as u64) as usize;
        finish(&mut self.state, &self.partial[..partial], self.len)
    }
}

impl Default for Hasher {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the MD5 of one message.
#[must_use]
pub fn digest(input: &[u8]) -> Digest {
    let (blocks, end) = input.as_chunks();
    let mut state = START;
    compress(&mut state, blocks);
    finish(&mut state, end, input.len() as u64)
}

/// Returns the digest of a message of `len` bytes of which only `end` has not been processed.
pub(crate) fn finish(state: &mut [u32; 4], end: &[u8], len: u64) -> Digest {
    let mut block = [0; BLOCK];
    if !pad(&mut block, end, len) {
        compress(state, &[block]);
        block = length_block(len);
    }
    compress(state, &[block]);
    digest_of(*state)
}

/// Fills the block after the last full one: the last bytes of the message (fewer than 64), a set bit, and the
/// length if it fits. Returns whether it fits; otherwise a [`length_block`] must follow.
#[inline]
pub(crate) fn pad(block: &mut Block, end: &[u8], len: u64) -> bool {
    *block = [0; BLOCK];
    copy_short(block, end);
    block[end.len()] = 0x80;
    let fits = end.len() < BLOCK - 8;
    if fits {
        block[BLOCK - 8..].copy_from_slice(&bits(len));
    }
    fits
}

/// Copies up to 64 bytes in two pieces that may overlap, which is faster than a call of `memcpy`.
#[inline]
fn copy_short(to: &mut Block, from: &[u8]) {
    fn pieces<const LEN: usize>(to: &mut Block, from: &[u8]) -> bool {
        let (Some(first), Some(last)) = (from.first_chunk::<LEN>(), from.last_chunk::<LEN>()) else { return false };
        to[..LEN].copy_from_slice(first);
        to[from.len() - LEN..from.len()].copy_from_slice(last);
        true
    }
    let done = pieces::<32>(to, from) || pieces::<16>(to, from) || pieces::<8>(to, from) || pieces::<4>(to, from);
    if !done {
        for (to, from) in to.iter_mut().zip(from) {
            *to = *from;
        }
    }
}

/// Returns a block that contains only the length.
#[inline]
pub(crate) fn length_block(len: u64) -> Block {
    let mut block = [0; BLOCK];
    block[BLOCK - 8..].copy_from_slice(&bits(len));
    block
}

fn bits(len: u64) -> [u8; 8] {
    len.wrapping_mul(8).to_le_bytes()
}

/// Converts the state to a digest.
#[inline]
pub(crate) fn digest_of(state: [u32; 4]) -> Digest {
    let mut digest = [0; 16];
    for (bytes, word) in digest.as_chunks_mut::<4>().0.iter_mut().zip(state) {
        *bytes = word.to_le_bytes();
    }
    digest
}

/// Converts bytes to words.
#[inline]
pub(crate) fn words_of<const WORDS: usize>(bytes: &[u8]) -> [u32; WORDS] {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    words
}

/// Processes blocks.
pub(crate) fn compress(state: &mut [u32; 4], blocks: &[Block]) {
    let [mut a, mut b, mut c, mut d] = *state;
    // Hides the constants from the compiler, which would otherwise add them last, on the critical path.
    let sines = black_box(&SINES);
    for block in blocks {
        let words = (words_of::<16>(block), sines);
        let before = [a, b, c, d];
        steps!(step, a, b, c, d, words);
        [a, b, c, d] = [a, b, c, d].map({
            let mut old = before.into_iter();
            move |new: u32| new.wrapping_add(old.next().unwrap_or_default())
        });
    }
    *state = [a, b, c, d];
}

#[inline]
fn step<const STEP: usize>(a: u32, b: u32, c: u32, d: u32, (words, sines): &([u32; 16], &[u32; 64])) -> u32 {
    let sum = a.wrapping_add(words[word(STEP)]).wrapping_add(sines[STEP]);
    let sum = match STEP / 16 {
        0 => sum.wrapping_add(((c ^ d) & b) ^ d),
        // The halves have no common bits. Adding them separately shortens the critical path: the half without `b`,
        // which is known last, need not wait.
        1 => sum.wrapping_add(c & !d).wrapping_add(b & d),
        2 => sum.wrapping_add((c ^ d) ^ b),
        _ => sum.wrapping_add(c ^ (b | !d)),
    };
    sum.rotate_left(shift(STEP)).wrapping_add(b)
}
