//! One message at a time, in the plain registers: what a few messages are digested with, and the ends that no vector is worth.

use crate::Digest;
use crate::rounds::{BLOCK, Block, SINES, START, shift, steps, word};
use std::hint::black_box;

/// A digest that takes in its message piece by piece.
#[derive(Clone, Debug)]
pub struct Hasher {
    state: [u32; 4],
    /// The bytes since the last full block: the first `len % 64` of these.
    begun: Block,
    len: u64,
}

impl Hasher {
    /// The digest of nothing yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { state: START, begun: [0; BLOCK], len: 0 }
    }

    /// Takes in the next bytes of the message.
    pub fn update(&mut self, bytes: &[u8]) {
        let begun = (self.len % BLOCK as u64) as usize;
        self.len = self.len.wrapping_add(bytes.len() as u64);
        let (head, rest) = bytes.split_at(bytes.len().min((BLOCK - begun) % BLOCK));
        self.begun[begun..begun + head.len()].copy_from_slice(head);
        if begun > 0 && begun + head.len() == BLOCK {
            compress(&mut self.state, &[self.begun]);
        }
        let (blocks, end) = rest.as_chunks();
        compress(&mut self.state, blocks);
        // What does not reach here went into a block that is still open.
        self.begun[..end.len()].copy_from_slice(end);
    }

    /// The digest of all that was taken in.
    #[must_use]
    pub fn finish(mut self) -> Digest {
        let begun = (self.len % BLOCK as u64) as usize;
        finish(&mut self.state, &self.begun[..begun], self.len)
    }
}

impl Default for Hasher {
    fn default() -> Self {
        Self::new()
    }
}

/// The MD5 digest of one message.
#[must_use]
pub fn digest(input: &[u8]) -> Digest {
    let (blocks, end) = input.as_chunks();
    let mut state = START;
    compress(&mut state, blocks);
    finish(&mut state, end, input.len() as u64)
}

/// The digest of a message of `len` bytes, all but the `end` of which have gone into the state.
pub(crate) fn finish(state: &mut [u32; 4], end: &[u8], len: u64) -> Digest {
    let mut block = [0; BLOCK];
    if !pad(&mut block, end, len) {
        compress(state, &[block]);
        block = closing(len);
    }
    compress(state, &[block]);
    digest_of(*state)
}

/// The block after the last full one: the `end` of the message, fewer than 64 bytes, a bit, and, if there is room for it, the length.
/// If there is not, this answers `false`, and [`closing`] has to follow.
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

/// Copies up to 64 bytes in two pieces that may overlap: less than a call of what copies any number of them.
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

/// The block that has only the length in it.
#[inline]
pub(crate) fn closing(len: u64) -> Block {
    let mut block = [0; BLOCK];
    block[BLOCK - 8..].copy_from_slice(&bits(len));
    block
}

fn bits(len: u64) -> [u8; 8] {
    len.wrapping_mul(8).to_le_bytes()
}

/// The state as the bytes of a digest.
#[inline]
pub(crate) fn digest_of(state: [u32; 4]) -> Digest {
    let mut digest = [0; 16];
    for (bytes, word) in digest.as_chunks_mut::<4>().0.iter_mut().zip(state) {
        *bytes = word.to_le_bytes();
    }
    digest
}

/// The words of as many bytes.
#[inline]
pub(crate) fn words_of<const WORDS: usize>(bytes: &[u8]) -> [u32; WORDS] {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    words
}

/// Takes blocks into the state.
pub(crate) fn compress(state: &mut [u32; 4], blocks: &[Block]) {
    let [mut a, mut b, mut c, mut d] = *state;
    // The compiler would add what it knows last, after the mix that each step waits for: one of six operations that follow on each other.
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
fn step<const PLACE: usize>(a: u32, b: u32, c: u32, d: u32, (words, sines): &([u32; 16], &[u32; 64])) -> u32 {
    let sum = a.wrapping_add(words[word(PLACE)]).wrapping_add(sines[PLACE]);
    let sum = match PLACE / 16 {
        0 => sum.wrapping_add(((c ^ d) & b) ^ d),
        // The two halves share no bit. Added one by one, the half without `b`, which is the last to be known, need not wait for it.
        1 => sum.wrapping_add(c & !d).wrapping_add(b & d),
        2 => sum.wrapping_add((c ^ d) ^ b),
        _ => sum.wrapping_add(c ^ (b | !d)),
    };
    sum.rotate_left(shift(PLACE)).wrapping_add(b)
}
