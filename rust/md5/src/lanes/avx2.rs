//! 256-bit vectors with 8 lanes each.

use super::kernel::kernel;
use super::{Copies, LANES_MAX, Line, Sources, States};
use crate::rounds::Block;
use std::arch::x86_64::{
    __m256i, _mm_loadu_si128, _mm_sfence, _mm256_add_epi32, _mm256_and_si256, _mm256_andnot_si256,
    _mm256_castsi128_si256, _mm256_inserti128_si256, _mm256_loadu_si256, _mm256_or_si256, _mm256_set1_epi32,
    _mm256_sllv_epi32, _mm256_srlv_epi32, _mm256_storeu_si256, _mm256_stream_si256, _mm256_sub_epi32,
    _mm256_unpackhi_epi32, _mm256_unpackhi_epi64, _mm256_unpacklo_epi32, _mm256_unpacklo_epi64, _mm256_xor_si256,
};

const WIDTH: usize = 8;
/// The number of lanes that are interleaved.
pub(super) const LANES: usize = 3 * WIDTH;
/// Fewer than for other engines, because 24 lanes at a distance of 4 KiB, for example, use few sets of a cache: lines
/// that are prefetched too early are evicted before they are read.
const AHEAD: usize = 3;

type Vector = __m256i;

kernel!([1 2 3] #[target_feature(enable = "avx2")]);

/// Bypasses the caches, because the copy is read much later.
#[target_feature(enable = "avx2")]
#[inline]
fn copy_line(from: &Block, to: &mut Line) {
    // SAFETY: references to 64 bytes each, i.e. two vectors; the second has that alignment.
    unsafe {
        _mm256_stream_si256(to.0.as_mut_ptr().cast(), _mm256_loadu_si256(from.as_ptr().cast()));
        _mm256_stream_si256(to.0[32..].as_mut_ptr().cast(), _mm256_loadu_si256(from[32..].as_ptr().cast()));
    }
}

/// Makes the non-temporal stores visible to all readers.
#[target_feature(enable = "avx2")]
#[inline]
fn finish_copies() {
    _mm_sfence();
}

#[target_feature(enable = "avx2")]
#[inline]
fn splat(word: u32) -> Vector {
    _mm256_set1_epi32(word as i32)
}

#[target_feature(enable = "avx2")]
#[inline]
fn add(one: Vector, other: Vector) -> Vector {
    _mm256_add_epi32(one, other)
}

#[target_feature(enable = "avx2")]
#[inline]
fn rotate(vector: Vector, shift: u32) -> Vector {
    _mm256_or_si256(_mm256_sllv_epi32(vector, splat(shift)), _mm256_srlv_epi32(vector, splat(32 - shift)))
}

#[target_feature(enable = "avx2")]
#[inline]
fn mix_first(sum: Vector, b: Vector, c: Vector, d: Vector) -> Vector {
    add(sum, _mm256_xor_si256(_mm256_and_si256(_mm256_xor_si256(c, d), b), d))
}

// The halves have no common bits. Adding them separately shortens the critical path: the half without `b`, which is
// known last, need not wait.
#[target_feature(enable = "avx2")]
#[inline]
fn mix_second(sum: Vector, b: Vector, c: Vector, d: Vector) -> Vector {
    add(add(sum, _mm256_andnot_si256(d, c)), _mm256_and_si256(d, b))
}

#[target_feature(enable = "avx2")]
#[inline]
fn mix_third(sum: Vector, b: Vector, c: Vector, d: Vector) -> Vector {
    add(sum, _mm256_xor_si256(_mm256_xor_si256(c, d), b))
}

// There is no `not` instruction. Adding the complement of a value is the same as subtracting the value and 1.
#[target_feature(enable = "avx2")]
#[inline]
fn mix_fourth(sum: Vector, b: Vector, c: Vector, d: Vector) -> Vector {
    _mm256_sub_epi32(add(sum, splat(u32::MAX)), _mm256_xor_si256(_mm256_andnot_si256(b, d), c))
}

#[target_feature(enable = "avx2")]
#[inline]
fn load(words: &[u32; WIDTH]) -> Vector {
    // SAFETY: a reference to 32 bytes, of any alignment.
    unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
#[inline]
fn store(vector: Vector, words: &mut [u32; WIDTH]) {
    // SAFETY: a reference to 32 bytes, of any alignment.
    unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), vector) }
}

/// Loads the words of block `at` of the lanes from `first` on, four words at a time.
#[target_feature(enable = "avx2")]
#[inline]
fn load_words(sources: &Sources<'_>, first: usize, at: usize, words: &mut [Vector; 16]) {
    for quarter in 0..4 {
        // Row `lane` has four words of that lane and the same four words of lane + 4.
        let mut rows = [splat(0); 4];
        for lane in 0..4 {
            let near = &sources[first + lane][at].as_chunks::<16>().0[quarter];
            let far = &sources[first + lane + 4][at].as_chunks::<16>().0[quarter];
            // SAFETY: references to 16 bytes each, of any alignment.
            let (near, far) = unsafe { (_mm_loadu_si128(near.as_ptr().cast()), _mm_loadu_si128(far.as_ptr().cast())) };
            rows[lane] = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(near), far);
        }
        let low = _mm256_unpacklo_epi32(rows[0], rows[1]);
        let high = _mm256_unpackhi_epi32(rows[0], rows[1]);
        let next_low = _mm256_unpacklo_epi32(rows[2], rows[3]);
        let next_high = _mm256_unpackhi_epi32(rows[2], rows[3]);
        words[quarter * 4] = _mm256_unpacklo_epi64(low, next_low);
        words[quarter * 4 + 1] = _mm256_unpackhi_epi64(low, next_low);
        words[quarter * 4 + 2] = _mm256_unpacklo_epi64(high, next_high);
        words[quarter * 4 + 3] = _mm256_unpackhi_epi64(high, next_high);
    }
}
