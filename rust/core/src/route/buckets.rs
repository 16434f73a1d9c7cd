//! A hash table in buckets of one cache line: eight fingerprints, and the numbers that they stand for.

const LANES: usize = 8;
/// Entries for each bucket: at four of eight, one bucket in fifty overflows into the next.
const LOAD: usize = 4;

/// Eight fingerprints and the numbers they stand for.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Bucket {
    /// Four in a word; 0 is a free lane.
    fingerprints: [u64; LANES / 4],
    values: [u32; LANES],
    overflows: bool,
}

impl Bucket {
    const EMPTY: Self = Self { fingerprints: [0; LANES / 4], values: [0; LANES], overflows: false };

    /// The lanes with this fingerprint, one bit each. The lowest bit is right; one above it may be a lane too many.
    #[inline]
    pub(crate) fn lanes(&self, fingerprint: u16) -> u32 {
        const ONES: u64 = 0x0001_0001_0001_0001;
        // Brings the lowest bits of four lanes together at bit 48.
        const GATHER: u64 = 1 << 48 | 1 << 33 | 1 << 18 | 1 << 3;
        let zeros = |word: u64| {
            let difference = word ^ ONES.wrapping_mul(u64::from(fingerprint));
            let high = difference.wrapping_sub(ONES) & !difference & ONES << 15;
            (high >> 15).wrapping_mul(GATHER) >> 48 & 0xf
        };
        (zeros(self.fingerprints[0]) | zeros(self.fingerprints[1]) << 4) as u32
    }

    fn fingerprint(&self, lane: usize) -> u16 {
        (self.fingerprints[lane / 4] >> (16 * (lane % 4))) as u16
    }

    /// The value of the lowest of these lanes.
    #[inline]
    pub(crate) fn value(&self, lanes: u32) -> u32 {
        self.values[lanes.trailing_zeros() as usize % LANES]
    }

    #[inline]
    pub(crate) fn overflows(&self) -> bool {
        self.overflows
    }
}

/// The bucket and the fingerprint of a hash.
#[inline]
pub(crate) fn place(hash: u64, buckets: usize) -> (usize, u16) {
    let bucket = (u128::from(hash) * buckets as u128) >> 64;
    (bucket as usize, (hash as u16).max(1))
}

/// The first value under `hash` that `is_it` accepts.
pub(crate) fn look_up(buckets: &[Bucket], hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
    if buckets.is_empty() {
        return None;
    }
    let (mut at, fingerprint) = place(hash, buckets.len());
    loop {
        let bucket = &buckets[at];
        let mut lanes = bucket.lanes(fingerprint);
        while lanes != 0 {
            let value = bucket.value(lanes);
            if is_it(value) {
                return Some(value);
            }
            lanes &= lanes - 1;
        }
        if !bucket.overflows {
            return None;
        }
        at = (at + 1) % buckets.len();
    }
}

/// A table of the numbers from 0, each under its hash.
pub(crate) fn fill(hashes: impl ExactSizeIterator<Item = u64>) -> Vec<Bucket> {
    if hashes.len() == 0 {
        return Vec::new();
    }
    let mut buckets = vec![Bucket::EMPTY; hashes.len().div_ceil(LOAD)];
    for (value, hash) in hashes.enumerate() {
        let (mut at, fingerprint) = place(hash, buckets.len());
        loop {
            let bucket = &mut buckets[at];
            if let Some(lane) = (0..LANES).find(|&lane| bucket.fingerprint(lane) == 0) {
                bucket.fingerprints[lane / 4] |= u64::from(fingerprint) << (16 * (lane % 4));
                bucket.values[lane] = value as u32;
                break;
            }
            bucket.overflows = true;
            at = (at + 1) % buckets.len();
        }
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lanes_one_by_one(bucket: &Bucket, fingerprint: u16) -> u32 {
        (0..LANES).fold(0, |lanes, lane| lanes | u32::from(bucket.fingerprint(lane) == fingerprint) << lane)
    }

    proptest! {
        #[test]
        fn the_lowest_lane_is_the_first_with_the_fingerprint(fingerprints in any::<[u64; 2]>(), near in 0..8usize, by in 0..2u16) {
            let bucket = Bucket { fingerprints, ..Bucket::EMPTY };
            let wanted = bucket.fingerprint(near).wrapping_add(by);
            let (lanes, expected) = (bucket.lanes(wanted), lanes_one_by_one(&bucket, wanted));
            prop_assert_eq!(lanes & expected, expected, "every lane that has it is among them");
            prop_assert_eq!(lanes == 0, expected == 0);
            prop_assert_eq!(lanes.trailing_zeros(), if expected == 0 { 32 } else { expected.trailing_zeros() });
        }

        /// Hashes of which many are equal, so that buckets overflow and the last one wraps around to the first.
        #[test]
        fn whatever_was_filled_in_is_found(hashes in proptest::collection::vec(prop_oneof![Just(0u64), Just(u64::MAX), 0..4u64, any::<u64>()], 0..200)) {
            let buckets = fill(hashes.iter().copied());
            for (value, &hash) in hashes.iter().enumerate() {
                prop_assert_eq!(look_up(&buckets, hash, |found| found == value as u32), Some(value as u32));
            }
            prop_assert_eq!(look_up(&buckets, 12_345, |_| false), None);
        }
    }
}
