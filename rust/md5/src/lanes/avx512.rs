//! Vectors of 512 bits: 16 lanes each, with a rotation and any function of three bits as one instruction.

use super::kernel::kernel;
use super::{LANES_MAX, Sources, States};
use std::arch::x86_64::{
    __m512i, _mm512_add_epi32, _mm512_loadu_si512, _mm512_rolv_epi32, _mm512_set1_epi32, _mm512_shuffle_i32x4,
    _mm512_storeu_si512, _mm512_ternarylogic_epi32, _mm512_unpackhi_epi32, _mm512_unpackhi_epi64,
    _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
};

const WIDTH: usize = 16;
/// How many lanes take turns.
pub(super) const LANES: usize = 2 * WIDTH;

type Vector = __m512i;

kernel!([1 2] #[target_feature(enable = "avx512f,avx512bw")]);

#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn splat(word: u32) -> Vector {
    _mm512_set1_epi32(word as i32)
}

#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn add(one: Vector, other: Vector) -> Vector {
    _mm512_add_epi32(one, other)
}

#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn rotate(vector: Vector, shift: u32) -> Vector {
    _mm512_rolv_epi32(vector, splat(shift))
}

// The number of a function of three bits: bit `4 b + 2 c + d` of it is its value.

#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn mix_first(sum: Vector, b: Vector, c: Vector, d: Vector) -> Vector {
    add(sum, _mm512_ternarylogic_epi32::<0b1100_1010>(b, c, d))
}

#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn mix_second(sum: Vector, b: Vector, c: Vector, d: Vector) -> Vector {
    add(sum, _mm512_ternarylogic_epi32::<0b1110_0100>(b, c, d))
}

#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn mix_third(sum: Vector, b: Vector, c: Vector, d: Vector) -> Vector {
    add(sum, _mm512_ternarylogic_epi32::<0b1001_0110>(b, c, d))
}

#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn mix_fourth(sum: Vector, b: Vector, c: Vector, d: Vector) -> Vector {
    add(sum, _mm512_ternarylogic_epi32::<0b0011_1001>(b, c, d))
}

#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn load(words: &[u32; WIDTH]) -> Vector {
    // SAFETY: a reference to 64 bytes, of any alignment.
    unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn store(vector: Vector, words: &mut [u32; WIDTH]) {
    // SAFETY: a reference to 64 bytes, of any alignment.
    unsafe { _mm512_storeu_si512(words.as_mut_ptr().cast(), vector) }
}

/// The words of block `at` of the lanes from `first` on: a square of 16 by 16 words, turned over.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn words_of_group(sources: &Sources<'_>, first: usize, at: usize) -> [Vector; 16] {
    let mut rows = [splat(0); 16];
    for lane in 0..WIDTH {
        let block = &sources[first + lane][at];
        // SAFETY: a reference to 64 bytes, of any alignment.
        rows[lane] = unsafe { _mm512_loadu_si512(block.as_ptr().cast()) };
    }
    let mut out = rows;
    // Four rows by four words, in each quarter of the vectors.
    for four in 0..4 {
        let row = four * 4;
        let low = _mm512_unpacklo_epi32(rows[row], rows[row + 1]);
        let high = _mm512_unpackhi_epi32(rows[row], rows[row + 1]);
        let next_low = _mm512_unpacklo_epi32(rows[row + 2], rows[row + 3]);
        let next_high = _mm512_unpackhi_epi32(rows[row + 2], rows[row + 3]);
        out[row] = _mm512_unpacklo_epi64(low, next_low);
        out[row + 1] = _mm512_unpackhi_epi64(low, next_low);
        out[row + 2] = _mm512_unpacklo_epi64(high, next_high);
        out[row + 3] = _mm512_unpackhi_epi64(high, next_high);
    }
    // Then the quarters: vector 4 r + w has word 4 q + w of the rows 4 r to 4 r + 3 in its quarter q.
    for word in 0..4 {
        let (one, two, three, four) = (out[word], out[word + 4], out[word + 8], out[word + 12]);
        let even = _mm512_shuffle_i32x4::<0b10_00_10_00>(one, two);
        let odd = _mm512_shuffle_i32x4::<0b11_01_11_01>(one, two);
        let next_even = _mm512_shuffle_i32x4::<0b10_00_10_00>(three, four);
        let next_odd = _mm512_shuffle_i32x4::<0b11_01_11_01>(three, four);
        out[word] = _mm512_shuffle_i32x4::<0b10_00_10_00>(even, next_even);
        out[word + 4] = _mm512_shuffle_i32x4::<0b10_00_10_00>(odd, next_odd);
        out[word + 8] = _mm512_shuffle_i32x4::<0b11_01_11_01>(even, next_even);
        out[word + 12] = _mm512_shuffle_i32x4::<0b11_01_11_01>(odd, next_odd);
    }
    out
}
