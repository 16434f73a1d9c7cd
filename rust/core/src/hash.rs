//! Hash functions: [`NameHash`] is keyed and used for lookups; [`stable_hash`] never changes and breaks ties.

use crate::Guid;

/// The secret key of an index's hashes. It affects speed, never a result.
#[derive(Clone, Copy, Debug)]
pub struct Seed(pub [u64; 2]);

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
const KEYS: usize = 64;
const BLOCK: usize = KEYS * 8;
/// The maximum number of bytes that three chunks can cover.
const THREE_CHUNKS: usize = 48;

#[inline]
fn mix(mut x: u64) -> u64 {
    x ^= x >> 30;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 27;
    x = x.wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The hash of a conversation id that breaks ties (R24): XXH64 of its 16 bytes with the seed 42, as Spark's `xxhash64`
/// computes it; the same on every machine and in every version.
#[must_use]
#[inline]
pub fn stable_hash(conversation: Guid) -> u64 {
    const PRIMES: [u64; 5] = [
        0x9e37_79b1_85eb_ca87,
        0xc2b2_ae3d_27d4_eb4f,
        0x1656_67b1_9e37_79f9,
        0x85eb_ca77_c2b2_ae63,
        0x27d4_eb2f_1656_67c5,
    ];
    const SEED: u64 = 42;
    let (words, _) = conversation.0.as_chunks::<8>();
    let mut hash = words.iter().fold(SEED.wrapping_add(PRIMES[4]).wrapping_add(16), |hash, word| {
        let word = u64::from_le_bytes(*word).wrapping_mul(PRIMES[1]).rotate_left(31).wrapping_mul(PRIMES[0]);
        (hash ^ word).rotate_left(27).wrapping_mul(PRIMES[0]).wrapping_add(PRIMES[3])
    });
    hash = (hash ^ hash >> 33).wrapping_mul(PRIMES[1]);
    hash = (hash ^ hash >> 29).wrapping_mul(PRIMES[2]);
    hash ^ hash >> 32
}

/// A keyed universal hash (the NH family of UMAC, with 128-bit sums). Two names chosen without knowing the key
/// collide with a probability of about 2^-64, so an attacker cannot prepare names that make an index slow.
#[derive(Debug)]
pub(crate) struct NameHash {
    keys: [u64; KEYS],
    last: [u64; 2],
}

impl NameHash {
    pub(crate) fn new(seed: Seed) -> Self {
        let mut state = seed.0[0];
        let mut next = || {
            state = state.wrapping_add(GOLDEN);
            mix(mix(state) ^ seed.0[1])
        };
        Self { keys: std::array::from_fn(|_| next()), last: [next(), next()] }
    }

    /// Hashes `bytes` with a salt.
    #[inline]
    pub(crate) fn of(&self, bytes: &[u8], salt: u16) -> u64 {
        match quarters(bytes) {
            Some(chunks) => self.of_short(&chunks, bytes.len(), short_key(salt, bytes.len())),
            None => self.of_long(bytes, u64::from(salt)),
        }
    }

    /// Hashes a text of `len` bytes from its `quarters`; `key` is its [`short_key`].
    #[inline]
    pub(crate) fn of_short(&self, chunks: &[u128; 4], len: usize, key: u32) -> u64 {
        let product =
            |position: usize| self.product(position * 2, chunks[position] as u64, (chunks[position] >> 64) as u64);
        let three = product(0).wrapping_add(product(1)).wrapping_add(product(2));
        let sum = if len > THREE_CHUNKS { three.wrapping_add(product(3)) } else { three };
        self.fold(sum, self.last[0], u64::from(key))
    }

    fn of_long(&self, bytes: &[u8], salt: u64) -> u64 {
        let mut state = salt.wrapping_mul(GOLDEN) ^ self.last[0];
        let mut rest = bytes;
        while rest.len() > BLOCK {
            let (block, after) = rest.split_at(BLOCK);
            state = self.fold(self.sum(block), state, BLOCK as u64);
            rest = after;
        }
        self.fold(self.sum(rest), state, rest.len() as u64)
    }

    /// Hashes a GUID that belongs to `owner`.
    #[inline]
    pub(crate) fn of_guid(&self, guid: Guid, owner: u32) -> u64 {
        let (high, low) = guid.halves();
        self.of_words(high, low, u64::from(owner))
    }

    /// Hashes two words with a salt.
    #[inline]
    pub(crate) fn of_words(&self, high: u64, low: u64, salt: u64) -> u64 {
        self.fold(self.product(0, high, low), salt.wrapping_mul(GOLDEN) ^ self.last[0], 16)
    }

    // Reads a block in chunks of 16 bytes; the last chunk overlaps the one before it. The chunks and the length,
    // which `fold` adds, determine the block.
    fn sum(&self, block: &[u8]) -> u128 {
        let (chunks, rest) = block.as_chunks::<16>();
        let mut padded = [0u8; 16];
        padded[..rest.len()].copy_from_slice(rest);
        let last = Some(block.last_chunk::<16>().unwrap_or(&padded)).filter(|_| !rest.is_empty());
        let words = chunks.iter().chain(last).map(|chunk| u128::from_le_bytes(*chunk)).enumerate();
        words.fold(0, |sum: u128, (position, chunk)| {
            sum.wrapping_add(self.product(position * 2, chunk as u64, (chunk >> 64) as u64))
        })
    }

    #[inline]
    fn product(&self, position: usize, low: u64, high: u64) -> u128 {
        let first = low.wrapping_add(self.keys[position % KEYS]);
        let second = high.wrapping_add(self.keys[(position + 1) % KEYS]);
        u128::from(first) * u128::from(second)
    }

    #[inline]
    fn fold(&self, sum: u128, state: u64, len: u64) -> u64 {
        let low = (sum as u64 ^ state).wrapping_add(len);
        let high = ((sum >> 64) as u64).wrapping_add(self.last[1]);
        let product = u128::from(low | 1) * u128::from(high ^ low.rotate_left(32));
        product as u64 ^ (product >> 64) as u64 ^ low
    }
}

/// Combines the length of a short text with a salt.
#[inline]
pub(crate) fn short_key(salt: u16, len: usize) -> u32 {
    u32::from(salt) << 16 | u32::from(len as u16)
}

/// Reads up to 64 bytes as four overlapping words that, with the length, determine the text; `None` for longer
/// texts. Texts of up to 48 bytes, the usual length of a name, need three words; the fourth is 0.
#[inline]
pub(crate) fn quarters(text: &[u8]) -> Option<[u128; 4]> {
    let len = text.len();
    if len < 16 {
        let mut padded = [0u8; 16];
        padded[..len].copy_from_slice(text);
        let padded = u128::from_le_bytes(padded);
        return Some([padded, padded, padded, 0]);
    }
    let chunk = |start: usize| <[u8; 16]>::try_from(text.get(start..start + 16)?).ok().map(u128::from_le_bytes);
    let first = u128::from_le_bytes(*text.first_chunk()?);
    let last = u128::from_le_bytes(*text.last_chunk()?);
    if len <= THREE_CHUNKS {
        Some([first, chunk((len - 16).min(16))?, last, 0])
    } else if len <= 64 {
        Some([first, chunk(16)?, chunk(len - 32)?, last])
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    /// R24
    #[test]
    fn the_stable_hash_never_changes() {
        let zero = Guid([0; 16]);
        let counted = Guid(std::array::from_fn(|position| position as u8));
        assert_eq!(stable_hash(zero), 0xcf49_2c84_babe_f8b1);
        assert_eq!(stable_hash(counted), 0x59bd_dd55_0740_a760);
    }

    #[test]
    fn different_names_have_different_hashes() {
        let hash = NameHash::new(Seed([1, 2]));
        let mut seen = HashSet::new();
        let mut count = 0;
        for len in 0..1_200usize {
            for position in [0, len / 2, len.saturating_sub(1)] {
                let mut name = vec![b'a'; len];
                if let Some(byte) = name.get_mut(position) {
                    *byte = b'b';
                }
                seen.insert(hash.of(&name, 0));
                count += usize::from(len > 2 || position == 0);
            }
        }
        assert!(seen.len() + 3 >= count, "{} of {count}", seen.len());
        assert_ne!(hash.of(b"name", 0), hash.of(b"name", 1));
    }

    #[test]
    fn hashes_of_sequential_names_and_ids_are_uniform() {
        let hash = NameHash::new(Seed([7, 9]));
        let mut buckets = [[0u32; 256]; 4];
        for number in 0..65_536u32 {
            let name = hash.of(format!("//Adventure-Works.com/Service{number:07}").as_bytes(), 3);
            let mut bytes = [0u8; 16];
            bytes[12..].copy_from_slice(&number.to_be_bytes());
            let id = hash.of_guid(Guid(bytes), 5);
            for (table, value) in [(0, name), (1, name >> 56), (2, id), (3, id >> 56)] {
                buckets[table][(value & 255) as usize] += 1;
            }
        }
        for table in buckets {
            let chi: f64 = table.iter().map(|&seen| (f64::from(seen) - 256.0).powi(2) / 256.0).sum();
            assert!(chi < 400.0, "chi-square {chi} over 255 degrees of freedom");
        }
    }

    /// T12
    #[test]
    fn names_that_collide_under_one_key_spread_under_another() {
        let known = NameHash::new(Seed([1, 2]));
        let chosen: Vec<Vec<u8>> = (0..4_000_000u32)
            .map(|number| format!("//Adventure-Works.com/Service{number:07}").into_bytes())
            .filter(|name| known.of(name, 3).trailing_zeros() >= 10)
            .take(2_048)
            .collect();
        assert_eq!(chosen.len(), 2_048);
        for seed in 3..11 {
            let unknown = NameHash::new(Seed([seed, 2]));
            let mut buckets = [0u32; 1_024];
            for name in &chosen {
                buckets[(unknown.of(name, 3) & 1023) as usize] += 1;
            }
            let fullest = buckets.iter().max().copied().unwrap_or_default();
            assert!(fullest < 16, "{fullest} of 2,048 in one of 1,024 buckets; expected about 2");
        }
    }

    proptest! {
        #[test]
        fn quarters_distinguish_short_texts_of_one_length(one in text(), at in 0..64usize, byte in any::<u8>()) {
            let mut other = one.clone();
            if let Some(position) = other.get_mut(at) {
                *position = byte;
            }
            prop_assert_eq!(quarters(&one) == quarters(&other), one == other);
        }
    }

    /// Texts of up to 64 bytes that often differ in only one byte.
    fn text() -> impl Strategy<Value = Vec<u8>> {
        (0..=64usize, 0..64usize, any::<u8>()).prop_map(|(len, position, byte)| {
            let mut text = vec![7; len];
            if let Some(at) = text.get_mut(position) {
                *at = byte;
            }
            text
        })
    }
}
