//! A perfect hash: maps each key of a fixed set to its own slot without comparing keys.
//!
//! Keys are divided into small groups. Each group has a pilot: a number that makes the keys of the group hash to
//! slots that no other key uses. The pilots of a million keys fit into a second-level cache of 2 MB, so that a lookup
//! waits for memory only once, for the entry itself.

use std::cmp::Reverse;

/// Keys per group; smaller groups make pilots easier to find but need more of them.
const GROUP: usize = 3;
/// The number of pilots to try.
const TRIES: u32 = 1 << 16;

/// The slots of a set of keys, by their hashes.
#[derive(Debug)]
pub(crate) struct PerfectHash {
    /// The factor for the hashes of each group.
    pilots: Vec<u32>,
    /// The number of slots: the number of keys plus a quarter, plus one.
    pub(crate) slots: usize,
}

impl Default for PerfectHash {
    fn default() -> Self {
        Self { pilots: vec![0], slots: 1 }
    }
}

impl PerfectHash {
    /// Assigns a slot to each hash. `None` if two hashes are equal or no pilot is found; then try other hashes.
    pub(crate) fn new(hashes: &[u64]) -> Option<(Self, Vec<u32>)> {
        let slots = hashes.len() + hashes.len() / 4 + 1;
        let mut perfect = Self { pilots: vec![0; hashes.len() / GROUP + 1], slots };
        let mut keys: Vec<(u32, u32)> =
            hashes.iter().zip(0..).map(|(&hash, key)| (perfect.group(hash) as u32, key)).collect();
        keys.sort_unstable();
        // Largest groups first, while most slots are free.
        let mut groups: Vec<&[(u32, u32)]> = keys.chunk_by(|one, other| one.0 == other.0).collect();
        groups.sort_by_key(|group| Reverse(group.len()));
        let mut slot_of = vec![0; hashes.len()];
        let mut taken = vec![false; slots];
        for keys in groups {
            let mut pilots = (1..TRIES).map(|number| number.wrapping_mul(0x9e37_79b9) | 1);
            let pilot = pilots.find(|&pilot| perfect.take(keys, hashes, pilot, &mut taken))?;
            for &(group, key) in keys {
                perfect.pilots[group as usize] = pilot;
                slot_of[key as usize] = perfect.slot_with(hashes[key as usize], pilot) as u32;
            }
        }
        Some((perfect, slot_of))
    }

    /// Returns the slot of a key; an arbitrary slot for anything else.
    #[inline]
    pub(crate) fn slot(&self, hash: u64) -> usize {
        self.slot_with(hash, self.pilots[self.group(hash)])
    }

    pub(crate) fn nbytes(&self) -> usize {
        size_of_val(&self.pilots[..])
    }

    #[inline]
    fn group(&self, hash: u64) -> usize {
        high(hash, self.pilots.len())
    }

    #[inline]
    fn slot_with(&self, hash: u64, pilot: u32) -> usize {
        high(hash.wrapping_mul(u64::from(pilot)), self.slots)
    }

    /// Takes the slots of a group's keys with this pilot, or none of them if one is already taken.
    fn take(&self, keys: &[(u32, u32)], hashes: &[u64], pilot: u32, taken: &mut [bool]) -> bool {
        let slot = |&(_, key): &(u32, u32)| self.slot_with(hashes[key as usize], pilot);
        for (count, key) in keys.iter().enumerate() {
            if std::mem::replace(&mut taken[slot(key)], true) {
                keys[..count].iter().for_each(|key| taken[slot(key)] = false);
                return false;
            }
        }
        true
    }
}

/// Scales the high bits of a hash to a number below `count`.
#[inline]
pub(crate) fn high(hash: u64, count: usize) -> usize {
    ((u128::from(hash) * count as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_key_has_its_own_slot(hashes in proptest::collection::hash_set(any::<u64>(), 0..400)) {
            let hashes: Vec<u64> = hashes.into_iter().collect();
            let (perfect, slots) = PerfectHash::new(&hashes).expect("distinct hashes");
            let mut taken = vec![false; perfect.slots];
            for (&hash, slot) in hashes.iter().zip(slots) {
                prop_assert_eq!(perfect.slot(hash), slot as usize);
                prop_assert!(!std::mem::replace(&mut taken[slot as usize], true));
            }
        }

        #[test]
        fn other_hashes_map_to_a_valid_slot(hashes in proptest::collection::hash_set(any::<u64>(), 0..40), other in any::<u64>()) {
            let (perfect, _) = PerfectHash::new(&hashes.into_iter().collect::<Vec<_>>()).expect("distinct hashes");
            for hash in [other, 0, u64::MAX] {
                prop_assert!(perfect.slot(hash) < perfect.slots);
            }
        }
    }

    #[test]
    fn rejects_equal_hashes() {
        assert!(PerfectHash::new(&[7, 1 << 60, 7]).is_none());
    }

    #[test]
    fn assigns_slots_to_many_keys() {
        let hashes: Vec<u64> =
            (0..200_000u64).map(|key| crate::stable_hash(crate::Guid(u128::from(key).to_be_bytes()))).collect();
        let (perfect, _) = PerfectHash::new(&hashes).expect("distinct hashes");
        assert!(perfect.slots < hashes.len() * 13 / 10);
    }
}
