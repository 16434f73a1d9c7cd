//! Broker ids and conversation ids.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

use std::fmt;

/// A GUID in the order of `uuid.UUID.bytes`: the bytes as the text form spells them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Guid(pub [u8; 16]);

const DASHES: [usize; 4] = [8, 13, 18, 23];

impl Guid {
    /// Reads the 36-character form, in any case, with or without braces (R5).
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        Self::bare(text).and_then(Self::parse_bare)
    }

    /// The 36 characters without braces, if there are as many.
    #[must_use]
    #[inline]
    pub fn bare(text: &[u8]) -> Option<&[u8; 36]> {
        text.try_into().ok().or_else(|| text.strip_prefix(b"{")?.strip_suffix(b"}")?.try_into().ok())
    }

    /// The two halves as big-endian numbers, as the stable hash reads them.
    #[must_use]
    #[inline]
    pub fn halves(self) -> (u64, u64) {
        let number = u128::from_be_bytes(self.0);
        ((number >> 64) as u64, number as u64)
    }

    // Written over whole words and arrays, so that the compiler turns it into a few vector instructions.
    #[inline]
    pub(crate) fn parse_bare(text: &[u8; 36]) -> Option<Self> {
        let half = |at: usize| u64::from(u32::from_le_bytes(std::array::from_fn(|place| text[at + place])));
        let two = |first: usize, second: usize| half(first) | half(second) << 32;
        let mut digits = [0u8; 32];
        let words = [two(0, 4), two(9, 14), two(19, 24), two(28, 32)];
        for (digits, word) in digits.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *digits = word.to_le_bytes();
        }
        let mut bad = 0u8;
        for digit in &mut digits {
            let number = digit.wrapping_sub(b'0');
            let letter = (*digit | 0x20).wrapping_sub(b'a');
            bad |= number.saturating_sub(9).min(letter.saturating_sub(5));
            // Of a digit, the letter is far above 9; of a letter, the number is above 15.
            *digit = number.min(letter.wrapping_add(10));
        }
        let mut bytes = [0u8; 16];
        for (byte, pair) in bytes.iter_mut().zip(digits.as_chunks::<2>().0) {
            *byte = pair[0] << 4 | pair[1];
        }
        let dashes = DASHES.iter().fold(0, |difference, &dash| difference | (text[dash] ^ b'-'));
        (bad == 0 && dashes == 0).then_some(Self(bytes))
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, byte) in self.0.iter().enumerate() {
            if matches!(position, 4 | 6 | 8 | 10) {
                out.write_str("-")?;
            }
            write!(out, "{byte:02x}")?;
        }
        Ok(())
    }
}

// GUIDs as text, many at a time.
//
// The bare form is 36 characters, always in the same places: a vector holds them all, one instruction looks them up, and another
// packs two digits into each byte. The intrinsics need processors that have them; that is looked up when a [`GuidReader`] is made,
// and whoever holds one may call what it stands for. [`Guid::parse`] is the portable twin.

/// What reads GUIDs on this machine. All readers give the same GUIDs.
#[derive(Clone, Copy, Debug)]
pub struct GuidReader(Engine);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Engine {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Portable,
}

/// The fastest first.
const ALL: &[Engine] = &[
    #[cfg(target_arch = "x86_64")]
    Engine::Avx512,
    #[cfg(target_arch = "x86_64")]
    Engine::Avx2,
    Engine::Portable,
];

impl Engine {
    fn is_here(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vbmi")
                    && is_x86_feature_detected!("bmi1")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("bmi1"),
            Self::Portable => true,
        }
    }
}

impl GuidReader {
    /// The fastest reader of this machine.
    #[must_use]
    pub fn best() -> Self {
        Self(ALL.iter().copied().find(|engine| engine.is_here()).unwrap_or(Engine::Portable))
    }

    /// The readers that this machine has, the fastest first.
    pub fn available() -> impl Iterator<Item = Self> {
        ALL.iter().copied().filter(|engine| engine.is_here()).map(Self)
    }

    /// Reads texts in their bare form, each into its place. False if one of them is no GUID or there is none; then what stands in
    /// `into` means nothing.
    #[inline]
    pub fn read<'a>(self, texts: impl Iterator<Item = (usize, Option<&'a [u8; 36]>)>, into: &mut [Guid]) -> bool {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: whoever made the reader has made sure of the processor.
            Engine::Avx512 => unsafe { avx512::read(texts, into) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Engine::Avx2 => unsafe { avx2::read(texts, into) },
            Engine::Portable => read(texts, into),
        }
    }
}

fn read<'a>(texts: impl Iterator<Item = (usize, Option<&'a [u8; 36]>)>, into: &mut [Guid]) -> bool {
    for (place, text) in texts {
        let Some(guid) = text.and_then(Guid::parse_bare) else { return false };
        into[place] = guid;
    }
    true
}

/// Where the digits stand in the bare form.
#[cfg(target_arch = "x86_64")]
const DIGITS: [u8; 32] = {
    let (mut digits, mut count, mut place) = ([0; 32], 0, 0);
    while place < 36 {
        if !matches!(place, 8 | 13 | 18 | 23) {
            digits[count] = place;
            count += 1;
        }
        place += 1;
    }
    digits
};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn r5_any_case_with_or_without_braces() {
        let bare = Guid::parse(b"0123abcd-4567-89EF-0123-456789abCDEF");
        assert_eq!(bare.map(|guid| guid.to_string()), Some("0123abcd-4567-89ef-0123-456789abcdef".into()));
        assert_eq!(Guid::parse(b"{0123ABCD-4567-89ef-0123-456789abcdef}"), bare);
    }

    #[test]
    fn r5_what_is_no_guid() {
        for text in [
            "",
            "0123abcd",
            "{0123abcd-4567-89ef-0123-456789abcdef",
            "0123abcd-4567-89ef-0123-456789abcdeg",
            "0123abcd+4567-89ef-0123-456789abcdef",
            "0123abcd-4567-89ef-0123-456789abcde`",
        ] {
            assert_eq!(Guid::parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn every_byte_at_every_place_is_judged() {
        let good = *b"0123abcd-4567-89ef-0123-456789abcdef";
        for place in 0..36 {
            for byte in 0..=255u8 {
                let mut text = good;
                text[place] = byte;
                let valid = if DASHES.contains(&place) { byte == b'-' } else { byte.is_ascii_hexdigit() };
                assert_eq!(Guid::parse(&text).is_some(), valid, "byte {byte} at {place}");
            }
        }
    }

    const GOOD: [u8; 36] = *b"0123abcd-4567-89EF-0a1B-2c3D4e5F6789";
    const OTHER: [u8; 36] = *b"FFFFFFFF-0000-9999-aaaa-ffffffffffff";

    fn is_read(reader: GuidReader, texts: &[[u8; 36]]) -> bool {
        reader.read(texts.iter().map(Some).enumerate(), &mut [Guid::default(); 64])
    }

    #[test]
    fn the_portable_reader_is_always_there_and_the_best_one_is_the_first() {
        let engines: Vec<_> = GuidReader::available().map(|reader| reader.0).collect();
        assert_eq!(engines.first(), Some(&GuidReader::best().0));
        assert_eq!(engines.last(), Some(&Engine::Portable));
    }

    #[test]
    fn every_byte_at_every_place_is_judged_by_every_reader() {
        for reader in GuidReader::available() {
            for place in 0..36 {
                for byte in 0..=255u8 {
                    let mut texts = [GOOD, OTHER, GOOD];
                    texts[1][place] = byte;
                    assert_eq!(
                        is_read(reader, &texts),
                        Guid::parse(&texts[1]).is_some(),
                        "byte {byte} at {place}, {reader:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn every_digit_at_every_place_is_read_by_every_reader() {
        for reader in GuidReader::available() {
            for place in DIGITS {
                for digit in *b"0123456789abcdefABCDEF" {
                    let mut text = OTHER;
                    text[usize::from(place)] = digit;
                    let mut into = [Guid::default(); 1];
                    assert!(reader.read([(0, Some(&text))].into_iter(), &mut into));
                    assert_eq!(Some(into[0]), Guid::parse(&text), "{} at {place}, {reader:?}", char::from(digit));
                }
            }
        }
    }

    #[test]
    fn one_wrong_text_among_64_is_found_in_any_place() {
        for reader in GuidReader::available() {
            for place in 0..64 {
                let mut texts = [GOOD; 64];
                assert!(is_read(reader, &texts));
                texts[place][35] = b'g';
                assert!(!is_read(reader, &texts), "in place {place}, {reader:?}");
            }
        }
    }

    #[test]
    fn a_text_that_is_not_there_is_no_guid_and_no_texts_are_fine() {
        for reader in GuidReader::available() {
            assert!(!reader.read([(0, Some(&GOOD)), (1, None)].into_iter(), &mut [Guid::default(); 2]));
            assert!(reader.read(std::iter::empty(), &mut []));
        }
    }

    proptest! {
        #[test]
        fn all_readers_read_the_same(
            guids in prop::collection::vec((any::<[u8; 16]>(), any::<u64>(), 0..64usize), 0..70),
        ) {
            let texts: Vec<(usize, [u8; 36])> =
                guids.iter().map(|(guid, upper, place)| (*place, spelled(Guid(*guid), *upper))).collect();
            let mut expected = [Guid::default(); 64];
            for (guid, _, place) in &guids {
                expected[*place] = Guid(*guid);
            }
            for reader in GuidReader::available() {
                let mut into = [Guid::default(); 64];
                prop_assert!(reader.read(texts.iter().map(|(place, text)| (*place, Some(text))), &mut into));
                prop_assert_eq!(into, expected);
            }
        }
    }

    /// The bare form; a bit for each character that is to be in upper case.
    fn spelled(guid: Guid, upper: u64) -> [u8; 36] {
        let text = guid.to_string();
        std::array::from_fn(|place| match text.as_bytes()[place] {
            byte if upper >> place & 1 == 1 => byte.to_ascii_uppercase(),
            byte => byte,
        })
    }
}
