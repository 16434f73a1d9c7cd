//! Lanes in arrays, without unsafe code: the fallback for machines without a vector engine.
#![forbid(unsafe_code)]

use super::kernel::kernel;
use super::{AHEAD, Copies, LANES_MAX, Sources, States, copy_line};
use crate::scalar::words_of;

const WIDTH: usize = 4;
/// Only one group: more do not fit into the registers.
pub(super) const LANES: usize = WIDTH;

type Vector = [u32; WIDTH];

kernel!([1]);

/// Plain stores need no fence.
#[inline]
fn finish_copies() {}

#[inline]
fn each(one: Vector, other: Vector, operation: impl Fn(u32, u32) -> u32) -> Vector {
    std::array::from_fn(|lane| operation(one[lane], other[lane]))
}

#[inline]
fn splat(word: u32) -> Vector {
    [word; WIDTH]
}

#[inline]
fn add(one: Vector, other: Vector) -> Vector {
    each(one, other, u32::wrapping_add)
}

#[inline]
fn rotate(vector: Vector, shift: u32) -> Vector {
    vector.map(|word| word.rotate_left(shift))
}

#[inline]
fn mix_first(sum: Vector, b: Vector, c: Vector, d: Vector) -> Vector {
    std::array::from_fn(|lane| sum[lane].wrapping_add(((c[lane] ^ d[lane]) & b[lane]) ^ d[lane]))
}

#[inline]
fn mix_second(sum: Vector, b: Vector, c: Vector, d: Vector) -> Vector {
    std::array::from_fn(|lane| sum[lane].wrapping_add(((b[lane] ^ c[lane]) & d[lane]) ^ c[lane]))
}

#[inline]
fn mix_third(sum: Vector, b: Vector, c: Vector, d: Vector) -> Vector {
    std::array::from_fn(|lane| sum[lane].wrapping_add((c[lane] ^ d[lane]) ^ b[lane]))
}

#[inline]
fn mix_fourth(sum: Vector, b: Vector, c: Vector, d: Vector) -> Vector {
    std::array::from_fn(|lane| sum[lane].wrapping_add(c[lane] ^ (b[lane] | !d[lane])))
}

#[inline]
fn load(words: &[u32; WIDTH]) -> Vector {
    *words
}

#[inline]
fn store(vector: Vector, words: &mut [u32; WIDTH]) {
    *words = vector;
}

/// Loads the words of block `at` of the lanes from `first` on.
#[inline]
fn load_words(sources: &Sources<'_>, first: usize, at: usize, words: &mut [Vector; 16]) {
    let blocks: [[u32; 16]; WIDTH] = std::array::from_fn(|lane| words_of(&sources[first + lane][at]));
    for position in 0..16 {
        words[position] = std::array::from_fn(|lane| blocks[lane][position]);
    }
}
