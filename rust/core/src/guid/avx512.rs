//! Parses the 36 characters of a GUID in a 512-bit vector, with a lookup table of 128 entries.

use std::arch::x86_64::{
    __m128i, __m512i, _mm_storeu_si128, _mm256_cvtepi16_epi8, _mm256_maddubs_epi16, _mm256_set1_epi16,
    _mm512_castsi512_si256, _mm512_loadu_si512, _mm512_mask_test_epi8_mask, _mm512_maskz_loadu_epi8, _mm512_or_si512,
    _mm512_permutex2var_epi8, _mm512_permutexvar_epi8, _mm512_set1_epi8, _mm512_setzero_si512,
    _mm512_ternarylogic_epi64,
};

use crate::guid::{DIGITS, Guid};

/// Table entries for a dash and for any other character that is not a digit: bits that no digit has.
const DASH: u8 = 0x40;
const OTHER: u8 = 0x80;
const NO_DIGIT: u8 = 0xf0;

/// Mask of the characters of the text.
const TEXT: u64 = (1 << 36) - 1;

/// The lookup table for ASCII.
const TABLE: [[u8; 64]; 2] = {
    let mut table = [[OTHER; 64]; 2];
    let mut value = 0u8;
    while value < 16 {
        if value < 10 {
            table[0][(b'0' + value) as usize] = value;
        } else {
            table[1][(b'A' + value - 10) as usize - 64] = value;
            table[1][(b'a' + value - 10) as usize - 64] = value;
        }
        value += 1;
    }
    table[0][b'-' as usize] = DASH;
    table
};

/// Where the dashes must be.
const DASHES: [u8; 64] = {
    let mut dashes = [0; 64];
    dashes[8] = DASH;
    dashes[13] = DASH;
    dashes[18] = DASH;
    dashes[23] = DASH;
    dashes
};

/// The source position of each digit.
const GATHER: [u8; 64] = {
    let (mut from, mut digit) = ([0; 64], 0);
    while digit < 32 {
        from[digit] = DIGITS[digit];
        digit += 1;
    }
    from
};

/// The truth table of `a | (b ^ c)`.
const OR_DIFFERENT: i32 = 0b1111_0110;

/// See [`super::GuidReader::read`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,bmi1")]
pub(super) fn read<'a>(texts: impl Iterator<Item = (usize, Option<&'a [u8; 36]>)>, into: &mut [Guid]) -> bool {
    let (low, high) = (load(&TABLE[0]), load(&TABLE[1]));
    let (dashes, gather) = (load(&DASHES), load(&GATHER));
    let (mut wrong, mut all) = (_mm512_setzero_si512(), _mm512_setzero_si512());
    for (position, text) in texts {
        let Some(text) = text else { return false };
        let text = load_text(text);
        let values = _mm512_permutex2var_epi8(low, text, high);
        wrong = _mm512_ternarylogic_epi64::<OR_DIFFERENT>(wrong, values, dashes);
        all = _mm512_or_si512(all, text);
        let digits = _mm512_castsi512_si256(_mm512_permutexvar_epi8(gather, values));
        // 16 * the first digit of each pair + the second.
        let bytes = _mm256_maddubs_epi16(digits, _mm256_set1_epi16(0x01_10));
        store(_mm256_cvtepi16_epi8(bytes), &mut into[position]);
    }
    // The lookup ignores the highest bit of a character, which is not set in ASCII.
    let has = |vector: __m512i, bits: u8| _mm512_mask_test_epi8_mask(TEXT, vector, _mm512_set1_epi8(bits as i8)) != 0;
    !has(wrong, NO_DIGIT) && !has(all, 0x80)
}

#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn load_text(text: &[u8; 36]) -> __m512i {
    // SAFETY: the mask limits the read to 36 bytes, which is the size of the referenced array; any alignment is
    // allowed.
    unsafe { _mm512_maskz_loadu_epi8(TEXT, text.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn load(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: a reference to 64 bytes, of any alignment.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn store(bytes: __m128i, guid: &mut Guid) {
    // SAFETY: a reference to 16 bytes, of any alignment.
    unsafe { _mm_storeu_si128(guid.0.as_mut_ptr().cast(), bytes) }
}
