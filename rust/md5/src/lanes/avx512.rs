//! 512-bit vectors with 16 lanes each. Rotation and ternary logic are single instructions.

use super::kernel::kernel;
use super::{AHEAD, Copies, LANES_MAX, Line, Sources, States};
use crate::rounds::{BLOCK, Block};
use std::arch::x86_64::{
    __m128i, __m512i, _mm_loadu_si128, _mm_sfence, _mm512_add_epi32, _mm512_castsi128_si512, _mm512_inserti32x4,
    _mm512_loadu_si512, _mm512_mask_mov_epi8, _mm512_mask_mov_epi64, _mm512_maskz_loadu_epi8, _mm512_rolv_epi32,
    _mm512_set1_epi8, _mm512_set1_epi32, _mm512_set1_epi64, _mm512_storeu_si512, _mm512_stream_si512,
    _mm512_ternarylogic_epi32, _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi32,
    _mm512_unpacklo_epi64,
};

const WIDTH: usize = 16;
/// The number of lanes that are interleaved.
pub(super) const LANES: usize = 2 * WIDTH;

type Vector = __m512i;

kernel!([1 2] #[target_feature(enable = "avx512f,avx512bw")]);

/// Bypasses the caches, because the copy is read much later.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn copy_line(from: &Block, to: &mut Line) {
    // SAFETY: references to 64 bytes each; the second has that alignment.
    unsafe { _mm512_stream_si512(to.0.as_mut_ptr().cast(), _mm512_loadu_si512(from.as_ptr().cast())) };
}

/// Makes the non-temporal stores visible to all readers.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn finish_copies() {
    _mm_sfence();
}

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

// The truth tables of functions of three bits: bit `4 b + 2 c + d` is the value.

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

/// See [`crate::scalar::pad`]; without branches. Masked bytes are not read.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn pad(block: &mut Block, end: &[u8], len: u64) -> bool {
    debug_assert!(end.len() < BLOCK, "{} bytes", end.len());
    let bit = 1 << (end.len() % BLOCK);
    // SAFETY: the mask has a bit for each byte of the slice, which has fewer than 64, and no others.
    let bytes = unsafe { _mm512_maskz_loadu_epi8(bit - 1, end.as_ptr().cast()) };
    let fits = end.len() < BLOCK - 8;
    let bytes = _mm512_mask_mov_epi8(bytes, bit, _mm512_set1_epi8(i8::MIN));
    let bytes = _mm512_mask_mov_epi64(bytes, u8::from(fits) << 7, _mm512_set1_epi64((len * 8) as i64));
    // SAFETY: a reference to 64 bytes, of any alignment.
    unsafe { _mm512_storeu_si512(block.as_mut_ptr().cast(), bytes) };
    fits
}

/// Loads the words of block `at` of the lanes from `first` on, four words at a time.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn load_words(sources: &Sources<'_>, first: usize, at: usize, words: &mut [Vector; 16]) {
    for quarter in 0..4 {
        // Row `lane` has four words of that lane and the same four words of lanes + 4, + 8 and + 12.
        let mut rows = [splat(0); 4];
        for lane in 0..4 {
            let [one, two, three, four] =
                [0, 4, 8, 12].map(|more| &sources[first + lane + more][at].as_chunks::<16>().0[quarter]);
            let row = _mm512_castsi128_si512(load_four(one));
            let row = _mm512_inserti32x4::<1>(row, load_four(two));
            let row = _mm512_inserti32x4::<2>(row, load_four(three));
            rows[lane] = _mm512_inserti32x4::<3>(row, load_four(four));
        }
        let low = _mm512_unpacklo_epi32(rows[0], rows[1]);
        let high = _mm512_unpackhi_epi32(rows[0], rows[1]);
        let next_low = _mm512_unpacklo_epi32(rows[2], rows[3]);
        let next_high = _mm512_unpackhi_epi32(rows[2], rows[3]);
        words[quarter * 4] = _mm512_unpacklo_epi64(low, next_low);
        words[quarter * 4 + 1] = _mm512_unpackhi_epi64(low, next_low);
        words[quarter * 4 + 2] = _mm512_unpacklo_epi64(high, next_high);
        words[quarter * 4 + 3] = _mm512_unpackhi_epi64(high, next_high);
    }
}

#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn load_four(words: &[u8; 16]) -> __m128i {
    // SAFETY: a reference to 16 bytes, of any alignment.
    unsafe { _mm_loadu_si128(words.as_ptr().cast()) }
}
