//! A perfect hash: a place of its own for each of the keys that it was made for, found without a look at any of them.
//!
//! Keys come into small groups, and each group has a pilot: a number with which all keys of the group hash to places that no other
//! key has. The pilots of a million keys fit into the cache, so that a look-up waits for the memory once, where the key stands.

use std::cmp::Reverse;

/// Keys for each group; fewer make pilots easier to find, and more of them.
const GROUP: usize = 3;
/// How many pilots are tried.
const TRIES: u32 = 1 << 16;

/// The places of a set of keys, by their hashes.
#[derive(Debug)]
pub(crate) struct Perfect {
    /// What the hashes of a group are multiplied with.
    pilots: Vec<u32>,
    /// How many places there are: a few more than keys, and at least one.
    pub(crate) places: usize,
}

impl Default for Perfect {
    fn default() -> Self {
        Self { pilots: vec![0], places: 1 }
    }
}

impl Perfect {
    /// Gives each of the hashes a place. `None` if two of them are the same, or if no pilot is found: then other hashes are to be
    /// tried.
    pub(crate) fn new(hashes: &[u64]) -> Option<(Self, Vec<u32>)> {
        let places = hashes.len() + hashes.len() / 4 + 1;
        let mut perfect = Self { pilots: vec![0; hashes.len() / GROUP + 1], places };
        let mut keys: Vec<(u32, u32)> =
            hashes.iter().zip(0..).map(|(&hash, key)| (perfect.group(hash) as u32, key)).collect();
        keys.sort_unstable();
        // The largest groups first, while most places are free.
        let mut groups: Vec<&[(u32, u32)]> = keys.chunk_by(|one, other| one.0 == other.0).collect();
        groups.sort_by_key(|group| Reverse(group.len()));
        let mut place_of = vec![0; hashes.len()];
        let mut taken = vec![false; places];
        for keys in groups {
            let mut pilots = (1..TRIES).map(|number| number.wrapping_mul(0x9e37_79b9) | 1);
            let pilot = pilots.find(|&pilot| perfect.take(keys, hashes, pilot, &mut taken))?;
            for &(group, key) in keys {
                perfect.pilots[group as usize] = pilot;
                place_of[key as usize] = perfect.place_with(hashes[key as usize], pilot) as u32;
            }
        }
        Some((perfect, place_of))
    }

    /// The place of a key; that of another, or of none, for what is no key.
    #[inline]
    pub(crate) fn place(&self, hash: u64) -> usize {
        self.place_with(hash, self.pilots[self.group(hash)])
    }

    pub(crate) fn nbytes(&self) -> usize {
        size_of_val(&self.pilots[..])
    }

    #[inline]
    fn group(&self, hash: u64) -> usize {
        high(hash, self.pilots.len())
    }

    #[inline]
    fn place_with(&self, hash: u64, pilot: u32) -> usize {
        high(hash.wrapping_mul(u64::from(pilot)), self.places)
    }

    /// Takes the places of a group's keys with this pilot, or none of them if one is taken already.
    fn take(&self, keys: &[(u32, u32)], hashes: &[u64], pilot: u32, taken: &mut [bool]) -> bool {
        let place = |&(_, key): &(u32, u32)| self.place_with(hashes[key as usize], pilot);
        for (count, key) in keys.iter().enumerate() {
            if std::mem::replace(&mut taken[place(key)], true) {
                keys[..count].iter().for_each(|key| taken[place(key)] = false);
                return false;
            }
        }
        true
    }
}

/// A number below `count`, from the high bits of a hash.
#[inline]
fn high(hash: u64, count: usize) -> usize {
    ((u128::from(hash) * count as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_key_has_a_place_of_its_own(hashes in proptest::collection::hash_set(any::<u64>(), 0..400)) {
            let hashes: Vec<u64> = hashes.into_iter().collect();
            let (perfect, places) = Perfect::new(&hashes).expect("hashes that differ");
            let mut taken = vec![false; perfect.places];
            for (&hash, place) in hashes.iter().zip(places) {
                prop_assert_eq!(perfect.place(hash), place as usize);
                prop_assert!(!std::mem::replace(&mut taken[place as usize], true));
            }
        }

        #[test]
        fn what_is_no_key_has_a_place_too(hashes in proptest::collection::hash_set(any::<u64>(), 0..40), other in any::<u64>()) {
            let (perfect, _) = Perfect::new(&hashes.into_iter().collect::<Vec<_>>()).expect("hashes that differ");
            for hash in [other, 0, u64::MAX] {
                prop_assert!(perfect.place(hash) < perfect.places);
            }
        }
    }

    #[test]
    fn equal_hashes_have_no_places() {
        assert!(Perfect::new(&[7, 1 << 60, 7]).is_none());
    }

    #[test]
    fn many_keys_find_their_places() {
        let hashes: Vec<u64> =
            (0..200_000u64).map(|key| crate::stable_hash(crate::Guid(u128::from(key).to_be_bytes()), 0)).collect();
        let (perfect, _) = Perfect::new(&hashes).expect("hashes that differ");
        assert!(perfect.places < hashes.len() * 13 / 10);
    }
}
