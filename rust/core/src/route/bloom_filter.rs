//! A Bloom filter of service names.

use crate::route::perfect_hash::high;

/// Bits per name: with two bits set for each name, about 2% of other names appear to be in the filter.
const BITS_PER_NAME: usize = 16;

/// A set of names, by their hashes. Contains all added names, and appears to contain a few others.
#[derive(Debug)]
pub(crate) struct BloomFilter {
    words: Vec<u64>,
}

impl Default for BloomFilter {
    fn default() -> Self {
        Self::new(std::iter::empty())
    }
}

impl BloomFilter {
    pub(crate) fn new(hashes: impl ExactSizeIterator<Item = u64>) -> Self {
        let mut filter = Self { words: vec![0; hashes.len() * BITS_PER_NAME / 64 + 1] };
        for hash in hashes {
            let position = filter.position(hash);
            filter.words[position] |= Self::bits(hash);
        }
        filter
    }

    #[inline]
    pub(crate) fn may_contain(&self, hash: u64) -> bool {
        let bits = Self::bits(hash);
        self.words[self.position(hash)] & bits == bits
    }

    pub(crate) fn nbytes(&self) -> usize {
        size_of_val(&self.words[..])
    }

    #[inline]
    fn position(&self, hash: u64) -> usize {
        high(hash, self.words.len())
    }

    /// Two bits, from the low bits of the hash; the high bits are for the position.
    #[inline]
    fn bits(hash: u64) -> u64 {
        1 << (hash & 63) | 1 << (hash >> 6 & 63)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contains_all_names_and_few_others() {
        let hash = |number: u32| crate::stable_hash(crate::Guid(u128::from(number).to_be_bytes()));
        let filter = BloomFilter::new((0..10_000).map(hash));
        assert!((0..10_000).all(|number| filter.may_contain(hash(number))));
        let others = (10_000..110_000).filter(|&number| filter.may_contain(hash(number))).count();
        assert!(others < 4_000, "{others} of 100,000 other names");
    }

    #[test]
    fn an_empty_filter_contains_nothing() {
        let filter = BloomFilter::default();
        assert!(!filter.may_contain(0) && !filter.may_contain(u64::MAX));
    }
}
