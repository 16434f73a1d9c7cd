//! Bits, a word at a time.

use arrow_buffer::BooleanBuffer;

/// A word whose lowest `len` bits are set.
#[inline]
pub(crate) fn ones(len: usize) -> u64 {
    if len >= 64 { u64::MAX } else { (1 << len) - 1 }
}

/// The places of the bits that are set.
#[inline]
pub(crate) fn set_bits(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let place = bits.trailing_zeros() as usize;
        bits &= bits.wrapping_sub(1);
        (place < 64).then_some(place)
    })
}

/// Up to 64 bits of a bitmap from `start`.
#[inline]
pub(crate) fn bits(bitmap: &BooleanBuffer, start: usize, len: usize) -> u64 {
    let first = bitmap.offset() + start;
    let bytes = &bitmap.values()[first / 8..];
    let mut word = [0u8; 16];
    let count = bytes.len().min(9);
    word[..count].copy_from_slice(&bytes[..count]);
    (u128::from_le_bytes(word) >> (first % 8)) as u64 & ones(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_begin_anywhere() {
        let flags: Vec<bool> = (0..300).map(|place| place % 3 == 0 || place % 7 == 0).collect();
        for offset in 0..20 {
            let bitmap = BooleanBuffer::from(flags.clone()).slice(offset, flags.len() - offset);
            for start in [0, 1, 7, 8, 63, 64, 65, 200] {
                let len = (flags.len() - offset - start).min(64);
                let expected = (0..len).fold(0, |word, place| word | u64::from(flags[offset + start + place]) << place);
                assert_eq!(bits(&bitmap, start, len), expected, "offset {offset}, start {start}");
            }
        }
    }

    #[test]
    fn set_bits_are_all_and_in_order() {
        assert_eq!(set_bits(0).count(), 0);
        assert_eq!(set_bits(1 << 63 | 1 << 5 | 1).collect::<Vec<_>>(), [0, 5, 63]);
        assert_eq!(set_bits(u64::MAX).count(), 64);
    }
}
