//! Bit masks of up to 64 rows.

use arrow_buffer::BooleanBuffer;
pub(crate) use ssbroker_core::masks::{ones, set_bits};

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
}
