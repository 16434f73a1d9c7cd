//! Bit masks of up to 64 rows.

use arrow_buffer::BooleanBuffer;

/// A mask of the lowest `len` bits.
#[inline]
pub(crate) fn ones(len: usize) -> u64 {
    if len >= 64 { u64::MAX } else { (1 << len) - 1 }
}

/// Returns the positions of the set bits.
#[inline]
pub(crate) fn set_bits(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let position = bits.trailing_zeros() as usize;
        bits &= bits.wrapping_sub(1);
        (position < 64).then_some(position)
    })
}

/// Reads up to 64 bits of a bitmap from `start`.
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
    fn reads_bits_at_any_offset() {
        let flags: Vec<bool> = (0..300).map(|position| position % 3 == 0 || position % 7 == 0).collect();
        for offset in 0..20 {
            let bitmap = BooleanBuffer::from(flags.clone()).slice(offset, flags.len() - offset);
            for start in [0, 1, 7, 8, 63, 64, 65, 200] {
                let len = (flags.len() - offset - start).min(64);
                let expected =
                    (0..len).fold(0, |word, position| word | u64::from(flags[offset + start + position]) << position);
                assert_eq!(bits(&bitmap, start, len), expected, "offset {offset}, start {start}");
            }
        }
    }

    #[test]
    fn set_bits_are_complete_and_ascending() {
        assert_eq!(set_bits(0).count(), 0);
        assert_eq!(set_bits(1 << 63 | 1 << 5 | 1).collect::<Vec<_>>(), [0, 5, 63]);
        assert_eq!(set_bits(u64::MAX).count(), 64);
    }
}
