//! Bit masks of up to 64 rows.

/// A mask of the lowest `len` bits.
#[must_use]
#[inline]
pub fn ones(len: usize) -> u64 {
    if len >= 64 { u64::MAX } else { (1 << len) - 1 }
}

/// Returns the positions of the set bits.
#[inline]
pub fn set_bits(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let position = bits.trailing_zeros() as usize;
        bits &= bits.wrapping_sub(1);
        (position < 64).then_some(position)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_bits_are_complete_and_ascending() {
        assert_eq!(set_bits(0).count(), 0);
        assert_eq!(set_bits(1 << 63 | 1 << 5 | 1).collect::<Vec<_>>(), [0, 5, 63]);
        assert_eq!(set_bits(u64::MAX).count(), 64);
    }

    #[test]
    fn ones_are_the_lowest_bits() {
        assert_eq!([0, 1, 63, 64].map(ones), [0, 1, u64::MAX >> 1, u64::MAX]);
    }
}
