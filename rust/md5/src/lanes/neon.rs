//! 128-bit vectors on ARM with 4 lanes each. Bitwise selection is a single instruction.

use super::kernel::kernel;
use super::{AHEAD, Copies, LANES_MAX, Sources, States, copy_line};
use std::arch::aarch64::{
    uint32x4_t, vaddq_u32, vbslq_u32, vdupq_n_u32, veorq_u32, vld1q_u8, vld1q_u32, vornq_u32, vorrq_u32,
    vreinterpretq_u32_u8, vreinterpretq_u32_u64, vreinterpretq_u64_u32, vshlq_n_u32, vshrq_n_u32, vst1q_u32,
    vtrn1q_u32, vtrn1q_u64, vtrn2q_u32, vtrn2q_u64,
};

const WIDTH: usize = 4;
/// The number of lanes that are interleaved.
pub(super) const LANES: usize = 4 * WIDTH;

type Vector = uint32x4_t;

kernel!([1 2 4] #[target_feature(enable = "neon")]);

/// Plain stores need no fence.
#[inline]
fn finish_copies() {}

#[target_feature(enable = "neon")]
#[inline]
fn splat(word: u32) -> Vector {
    vdupq_n_u32(word)
}

#[target_feature(enable = "neon")]
#[inline]
fn add(one: Vector, other: Vector) -> Vector {
    vaddq_u32(one, other)
}

#[target_feature(enable = "neon")]
#[inline]
fn rotate(vector: Vector, shift: u32) -> Vector {
    // The shift is part of the instruction, so there is one for each shift of MD5.
    macro_rules! by {
        ($($left:literal)*) => {
            match shift {
                $($left => vorrq_u32(vshlq_n_u32::<$left>(vector), vshrq_n_u32::<{ 32 - $left }>(vector)),)*
                _ => unreachable!("{shift} bits"),
            }
        };
    }
    by!(4 5 6 7 9 10 11 12 14 15 16 17 20 21 22 23)
}

#[target_feature(enable = "neon")]
#[inline]
fn mix_first(sum: Vector, b: Vector, c: Vector, d: Vector) -> Vector {
    add(sum, vbslq_u32(b, c, d))
}

#[target_feature(enable = "neon")]
#[inline]
fn mix_second(sum: Vector, b: Vector, c: Vector, d: Vector) -> Vector {
    add(sum, vbslq_u32(d, b, c))
}

#[target_feature(enable = "neon")]
#[inline]
fn mix_third(sum: Vector, b: Vector, c: Vector, d: Vector) -> Vector {
    add(sum, veorq_u32(veorq_u32(c, d), b))
}

#[target_feature(enable = "neon")]
#[inline]
fn mix_fourth(sum: Vector, b: Vector, c: Vector, d: Vector) -> Vector {
    add(sum, veorq_u32(vornq_u32(b, d), c))
}

#[target_feature(enable = "neon")]
#[inline]
fn load(words: &[u32; WIDTH]) -> Vector {
    // SAFETY: a reference to four words.
    unsafe { vld1q_u32(words.as_ptr()) }
}

#[target_feature(enable = "neon")]
#[inline]
fn store(vector: Vector, words: &mut [u32; WIDTH]) {
    // SAFETY: a reference to four words.
    unsafe { vst1q_u32(words.as_mut_ptr(), vector) }
}

/// Loads the words of block `at` of the lanes from `first` on, four words at a time.
#[target_feature(enable = "neon")]
#[inline]
fn load_words(sources: &Sources<'_>, first: usize, at: usize, words: &mut [Vector; 16]) {
    for quarter in 0..4 {
        let mut rows = [splat(0); 4];
        for lane in 0..4 {
            let four = &sources[first + lane][at].as_chunks::<16>().0[quarter];
            // SAFETY: a reference to 16 bytes, of any alignment.
            let bytes = unsafe { vld1q_u8(four.as_ptr()) };
            // Little-endian like MD5; the intrinsics of the standard library support no other byte order.
            rows[lane] = vreinterpretq_u32_u8(bytes);
        }
        let even = vreinterpretq_u64_u32(vtrn1q_u32(rows[0], rows[1]));
        let odd = vreinterpretq_u64_u32(vtrn2q_u32(rows[0], rows[1]));
        let next_even = vreinterpretq_u64_u32(vtrn1q_u32(rows[2], rows[3]));
        let next_odd = vreinterpretq_u64_u32(vtrn2q_u32(rows[2], rows[3]));
        words[quarter * 4] = vreinterpretq_u32_u64(vtrn1q_u64(even, next_even));
        words[quarter * 4 + 1] = vreinterpretq_u32_u64(vtrn1q_u64(odd, next_odd));
        words[quarter * 4 + 2] = vreinterpretq_u32_u64(vtrn2q_u64(even, next_even));
        words[quarter * 4 + 3] = vreinterpretq_u32_u64(vtrn2q_u64(odd, next_odd));
    }
}
