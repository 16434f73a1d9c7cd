//! Parses the 32 digits of a GUID in a 256-bit vector.

use std::arch::x86_64::{
    __m128i, __m256i, _mm_loadu_si128, _mm_storeu_si128, _mm256_add_epi8, _mm256_broadcastsi128_si256,
    _mm256_castsi128_si256, _mm256_castsi256_si128, _mm256_inserti128_si256, _mm256_loadu_si256, _mm256_maddubs_epi16,
    _mm256_min_epu8, _mm256_or_si256, _mm256_packus_epi16, _mm256_permute4x64_epi64, _mm256_set1_epi8,
    _mm256_set1_epi16, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_sub_epi8, _mm256_subs_epu8,
    _mm256_testz_si256,
};

use crate::guid::{DIGITS, Guid};

/// Shuffle index that yields zero.
const NONE: u8 = 0x80;

/// One half of the vector contains bytes 0 to 15 of the text and the other half bytes 20 to 35, so that the first and
/// last twelve digits are in the half where they end up.
const OUTER: [u8; 32] = {
    let (mut from, mut digit) = ([NONE; 32], 0);
    while digit < 32 {
        match digit {
            0..12 => from[digit] = DIGITS[digit],
            20..32 => from[digit] = DIGITS[digit] - 20,
            _ => {}
        }
        digit += 1;
    }
    from
};

/// Both halves contain bytes 10 to 25, which include the other eight digits.
const INNER: [u8; 32] = {
    let (mut from, mut digit) = ([NONE; 32], 12);
    while digit < 20 {
        from[digit] = DIGITS[digit] - 10;
        digit += 1;
    }
    from
};

/// Bytes 8 to 15 as one number, whose first and sixth bytes are dashes, and bytes 16 to 23, whose third and last
/// bytes are.
const DASHES: [u64; 2] = [dashes(&[0, 5]), dashes(&[2, 7])];
const DASHES_ONLY: [u64; 2] = [DASHES[0] / b'-' as u64 * 255, DASHES[1] / b'-' as u64 * 255];

const fn dashes(positions: &[usize; 2]) -> u64 {
    (b'-' as u64) << (8 * positions[0]) | (b'-' as u64) << (8 * positions[1])
}

/// See [`super::GuidReader::read`].
#[target_feature(enable = "avx2,bmi1")]
pub(super) fn read<'a>(texts: impl Iterator<Item = (usize, Option<&'a [u8; 36]>)>, into: &mut [Guid]) -> bool {
    let (outer, inner) = (load_32(&OUTER), load_32(&INNER));
    let mut wrong = _mm256_setzero_si256();
    let mut wrong_dashes = 0;
    for (position, text) in texts {
        let Some(text) = text else { return false };
        let [begin, middle, end] = [load(text, 0), load(text, 10), load(text, 20)];
        let ends = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(begin), end);
        let middles = _mm256_broadcastsi128_si256(middle);
        let digits = _mm256_or_si256(_mm256_shuffle_epi8(ends, outer), _mm256_shuffle_epi8(middles, inner));
        let number = _mm256_sub_epi8(digits, splat(b'0'));
        let letter = _mm256_sub_epi8(_mm256_or_si256(digits, splat(0x20)), splat(b'a'));
        let beyond = _mm256_min_epu8(_mm256_subs_epu8(number, splat(9)), _mm256_subs_epu8(letter, splat(5)));
        wrong = _mm256_or_si256(wrong, beyond);
        // For a digit, `letter` is far above 9; for a letter, `number` is above 15.
        let values = _mm256_min_epu8(number, _mm256_add_epi8(letter, splat(10)));
        // 16 * the first digit of each pair + the second.
        let bytes = _mm256_maddubs_epi16(values, _mm256_set1_epi16(0x01_10));
        let packed = _mm256_permute4x64_epi64::<0b10_00>(_mm256_packus_epi16(bytes, bytes));
        store(_mm256_castsi256_si128(packed), &mut into[position]);
        wrong_dashes |= (word(text, 8) ^ DASHES[0]) & DASHES_ONLY[0] | (word(text, 16) ^ DASHES[1]) & DASHES_ONLY[1];
    }
    _mm256_testz_si256(wrong, wrong) == 1 && wrong_dashes == 0
}

#[target_feature(enable = "avx2")]
#[inline]
fn splat(byte: u8) -> __m256i {
    _mm256_set1_epi8(byte as i8)
}

#[inline]
fn word(text: &[u8; 36], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|position| text[at + position]))
}

/// Loads 16 bytes from `at`, which is at most 20.
#[target_feature(enable = "avx2")]
#[inline]
fn load(text: &[u8; 36], at: usize) -> __m128i {
    let bytes = &text[at..at + 16];
    // SAFETY: a slice of 16 bytes, of any alignment.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
#[inline]
fn load_32(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: a reference to 32 bytes, of any alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx2")]
#[inline]
fn store(bytes: __m128i, guid: &mut Guid) {
    // SAFETY: a reference to 16 bytes, of any alignment.
    unsafe { _mm_storeu_si128(guid.0.as_mut_ptr().cast(), bytes) }
}
