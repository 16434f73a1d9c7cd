//! 128-bit vectors with 4 lanes each.

use super::kernel::kernel;
use super::{AHEAD, Copies, LANES_MAX, Sources, States, copy_line};
use std::arch::x86_64::{
    __m128i, _mm_add_epi32, _mm_and_si128, _mm_andnot_si128, _mm_cvtsi32_si128, _mm_loadu_si128, _mm_or_si128,
    _mm_set1_epi32, _mm_sll_epi32, _mm_srl_epi32, _mm_storeu_si128, _mm_sub_epi32, _mm_unpackhi_epi32,
    _mm_unpackhi_epi64, _mm_unpacklo_epi32, _mm_unpacklo_epi64, _mm_xor_si128,
};

const WIDTH: usize = 4;
/// The number of lanes that are interleaved.
pub(super) const LANES: usize = 3 * WIDTH;

type Vector = __m128i;

kernel!([1 2 3] #[target_feature(enable = "sse2")]);

/// Plain stores need no fence.
#[inline]
fn finish_copies() {}

#[target_feature(enable = "sse2")]
#[inline]
fn splat(word: u32) -> Vector {
    _mm_set1_epi32(word as i32)
}

#[target_feature(enable = "sse2")]
#[inline]
fn add(one: Vector, other: Vector) -> Vector {
    _mm_add_epi32(one, other)
}

#[target_feature(enable = "sse2")]
#[inline]
fn rotate(vector: Vector, shift: u32) -> Vector {
    let (left, right) = (_mm_cvtsi32_si128(shift as i32), _mm_cvtsi32_si128(32 - shift as i32));
    _mm_or_si128(_mm_sll_epi32(vector, left), _mm_srl_epi32(vector, right))
}

#[target_feature(enable = "sse2")]
#[inline]
fn mix_first(sum: Vector, b: Vector, c: Vector, d: Vector) -> Vector {
    add(sum, _mm_xor_si128(_mm_and_si128(_mm_xor_si128(c, d), b), d))
}

// The halves have no common bits. Adding them separately shortens the critical path: the half without `b`, which is
// known last, need not wait.
#[target_feature(enable = "sse2")]
#[inline]
fn mix_second(sum: Vector, b: Vector, c: Vector, d: Vector) -> Vector {
    add(add(sum, _mm_andnot_si128(d, c)), _mm_and_si128(d, b))
}

#[target_feature(enable = "sse2")]
#[inline]
fn mix_third(sum: Vector, b: Vector, c: Vector, d: Vector) -> Vector {
    add(sum, _mm_xor_si128(_mm_xor_si128(c, d), b))
}

// There is no `not` instruction. Adding the complement of a value is the same as subtracting the value and 1.
#[target_feature(enable = "sse2")]
#[inline]
fn mix_fourth(sum: Vector, b: Vector, c: Vector, d: Vector) -> Vector {
    _mm_sub_epi32(add(sum, splat(u32::MAX)), _mm_xor_si128(_mm_andnot_si128(b, d), c))
}

#[target_feature(enable = "sse2")]
#[inline]
fn load(words: &[u32; WIDTH]) -> Vector {
    // SAFETY: a reference to 16 bytes, of any alignment.
    unsafe { _mm_loadu_si128(words.as_ptr().cast()) }
}

#[target_feature(enable = "sse2")]
#[inline]
fn store(vector: Vector, words: &mut [u32; WIDTH]) {
    // SAFETY: a reference to 16 bytes, of any alignment.
    unsafe { _mm_storeu_si128(words.as_mut_ptr().cast(), vector) }
}

/// Loads the words of block `at` of the lanes from `first` on, four words at a time.
#[target_feature(enable = "sse2")]
#[inline]
fn load_words(sources: &Sources<'_>, first: usize, at: usize, words: &mut [Vector; 16]) {
    for quarter in 0..4 {
        let mut rows = [splat(0); 4];
        for lane in 0..4 {
            let four = &sources[first + lane][at].as_chunks::<16>().0[quarter];
            // SAFETY: a reference to 16 bytes, of any alignment.
            rows[lane] = unsafe { _mm_loadu_si128(four.as_ptr().cast()) };
        }
        let low = _mm_unpacklo_epi32(rows[0], rows[1]);
        let high = _mm_unpackhi_epi32(rows[0], rows[1]);
        let next_low = _mm_unpacklo_epi32(rows[2], rows[3]);
        let next_high = _mm_unpackhi_epi32(rows[2], rows[3]);
        words[quarter * 4] = _mm_unpacklo_epi64(low, next_low);
        words[quarter * 4 + 1] = _mm_unpackhi_epi64(low, next_low);
        words[quarter * 4 + 2] = _mm_unpacklo_epi64(high, next_high);
        words[quarter * 4 + 3] = _mm_unpackhi_epi64(high, next_high);
    }
}
