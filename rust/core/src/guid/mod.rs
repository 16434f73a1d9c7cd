//! GUIDs (broker and conversation ids), and parsing of many at once with vector instructions.
//!
//! The text form without braces has 36 characters in fixed positions: they all fit into one vector, one instruction
//! looks them up, and another packs two digits into each byte. A [`GuidReader`] detects the required processor features
//! when it is created. [`Guid::parse`] is the portable equivalent.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;

use std::fmt;

use ssbroker_md5::vector_bits_max;

/// A GUID in the byte order of its text form, as in `uuid.UUID.bytes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Guid(pub [u8; 16]);

const DASHES: [usize; 4] = [8, 13, 18, 23];

impl Guid {
    /// Parses the 36-character form in any case, with or without braces (R5).
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        Self::bare(text).and_then(Self::parse_bare)
    }

    /// Removes the braces; `None` if the rest is not 36 characters long.
    #[must_use]
    #[inline]
    pub fn bare(text: &[u8]) -> Option<&[u8; 36]> {
        text.try_into().ok().or_else(|| text.strip_prefix(b"{")?.strip_suffix(b"}")?.try_into().ok())
    }

    /// Returns the two halves as big-endian numbers, as used by the stable hash.
    #[must_use]
    #[inline]
    pub fn halves(self) -> (u64, u64) {
        let number = u128::from_be_bytes(self.0);
        ((number >> 64) as u64, number as u64)
    }

    // Written with whole words and arrays so that the compiler can vectorize it.
    #[inline]
    pub(crate) fn parse_bare(text: &[u8; 36]) -> Option<Self> {
        let half = |at: usize| u64::from(u32::from_le_bytes(std::array::from_fn(|position| text[at + position])));
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
            // For a digit, `letter` is far above 9; for a letter, `number` is above 15.
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

/// A GUID parser for this machine. All readers give the same results.
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

/// Fastest first.
const ALL: &[Engine] = &[
    #[cfg(target_arch = "x86_64")]
    Engine::Avx512,
    #[cfg(target_arch = "x86_64")]
    Engine::Avx2,
    Engine::Portable,
];

impl Engine {
    fn is_available(self) -> bool {
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

    /// Returns the length of a vector; 0 without vectors.
    const fn vector_bits(self) -> u32 {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => 512,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => 256,
            Self::Portable => 0,
        }
    }
}

impl GuidReader {
    /// Returns the fastest reader of this machine whose vectors are not longer than [`vector_bits_max`].
    #[must_use]
    pub fn best() -> Self {
        let is_usable = |engine: &Engine| engine.vector_bits() <= vector_bits_max() && engine.is_available();
        Self(ALL.iter().copied().find(is_usable).unwrap_or(Engine::Portable))
    }

    /// Returns the readers available on this machine, fastest first.
    pub fn available() -> impl Iterator<Item = Self> {
        ALL.iter().copied().filter(|engine| engine.is_available()).map(Self)
    }

    /// Parses texts without braces, each into its position in `into`. Returns false if one is missing or not a
    /// GUID; `into` is then undefined.
    #[inline]
    pub fn read<'a>(self, texts: impl Iterator<Item = (usize, Option<&'a [u8; 36]>)>, into: &mut [Guid]) -> bool {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a reader is created only if the processor supports its instructions.
            Engine::Avx512 => unsafe { avx512::read(texts, into) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Engine::Avx2 => unsafe { avx2::read(texts, into) },
            Engine::Portable => read(texts, into),
        }
    }
}

fn read<'a>(texts: impl Iterator<Item = (usize, Option<&'a [u8; 36]>)>, into: &mut [Guid]) -> bool {
    for (position, text) in texts {
        let Some(guid) = text.and_then(Guid::parse_bare) else { return false };
        into[position] = guid;
    }
    true
}

/// The positions of the digits in the text without braces.
#[cfg(target_arch = "x86_64")]
const DIGITS: [u8; 32] = {
    let (mut digits, mut count, mut position) = ([0; 32], 0, 0);
    while position < 36 {
        if !matches!(position, 8 | 13 | 18 | 23) {
            digits[count] = position;
            count += 1;
        }
        position += 1;
    }
    digits
};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// R5
    #[test]
    fn parses_any_case_with_or_without_braces() {
        let bare = Guid::parse(b"0123abcd-4567-89EF-0123-456789abCDEF");
        assert_eq!(bare.map(|guid| guid.to_string()), Some("0123abcd-4567-89ef-0123-456789abcdef".into()));
        assert_eq!(Guid::parse(b"{0123ABCD-4567-89ef-0123-456789abcdef}"), bare);
    }

    /// R5
    #[test]
    fn rejects_invalid_guids() {
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
    fn checks_every_byte_at_every_position() {
        let good = *b"0123abcd-4567-89ef-0123-456789abcdef";
        for position in 0..36 {
            for byte in 0..=255u8 {
                let mut text = good;
                text[position] = byte;
                let valid = if DASHES.contains(&position) { byte == b'-' } else { byte.is_ascii_hexdigit() };
                assert_eq!(Guid::parse(&text).is_some(), valid, "byte {byte} at {position}");
            }
        }
    }

    const GOOD: [u8; 36] = *b"0123abcd-4567-89EF-0a1B-2c3D4e5F6789";
    const OTHER: [u8; 36] = *b"FFFFFFFF-0000-9999-aaaa-ffffffffffff";

    fn reads_all(reader: GuidReader, texts: &[[u8; 36]]) -> bool {
        reader.read(texts.iter().map(Some).enumerate(), &mut [Guid::default(); 64])
    }

    #[test]
    fn the_portable_reader_is_always_available_and_the_best_is_first() {
        let engines: Vec<_> = GuidReader::available().map(|reader| reader.0).collect();
        assert_eq!(engines.first(), Some(&GuidReader::best().0));
        assert_eq!(engines.last(), Some(&Engine::Portable));
    }

    #[test]
    fn all_readers_check_every_byte_at_every_position() {
        for reader in GuidReader::available() {
            for position in 0..36 {
                for byte in 0..=255u8 {
                    let mut texts = [GOOD, OTHER, GOOD];
                    texts[1][position] = byte;
                    assert_eq!(
                        reads_all(reader, &texts),
                        Guid::parse(&texts[1]).is_some(),
                        "byte {byte} at {position}, {reader:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn all_readers_parse_every_digit_at_every_position() {
        for reader in GuidReader::available() {
            for position in DIGITS {
                for digit in *b"0123456789abcdefABCDEF" {
                    let mut text = OTHER;
                    text[usize::from(position)] = digit;
                    let mut into = [Guid::default(); 1];
                    assert!(reader.read([(0, Some(&text))].into_iter(), &mut into));
                    assert_eq!(Some(into[0]), Guid::parse(&text), "{} at {position}, {reader:?}", char::from(digit));
                }
            }
        }
    }

    #[test]
    fn all_readers_find_one_invalid_text_among_64() {
        for reader in GuidReader::available() {
            for position in 0..64 {
                let mut texts = [GOOD; 64];
                assert!(reads_all(reader, &texts));
                texts[position][35] = b'g';
                assert!(!reads_all(reader, &texts), "in position {position}, {reader:?}");
            }
        }
    }

    #[test]
    fn a_missing_text_is_invalid_and_no_texts_are_valid() {
        for reader in GuidReader::available() {
            assert!(!reader.read([(0, Some(&GOOD)), (1, None)].into_iter(), &mut [Guid::default(); 2]));
            assert!(reader.read(std::iter::empty(), &mut []));
        }
    }

    proptest! {
        #[test]
        fn all_readers_agree(
            guids in prop::collection::vec((any::<[u8; 16]>(), any::<u64>(), 0..64usize), 0..70),
        ) {
            let texts: Vec<(usize, [u8; 36])> =
                guids.iter().map(|(guid, upper, position)| (*position, format_guid(Guid(*guid), *upper))).collect();
            let mut expected = [Guid::default(); 64];
            for (guid, _, position) in &guids {
                expected[*position] = Guid(*guid);
            }
            for reader in GuidReader::available() {
                let mut into = [Guid::default(); 64];
                prop_assert!(reader.read(texts.iter().map(|(position, text)| (*position, Some(text))), &mut into));
                prop_assert_eq!(into, expected);
            }
        }
    }

    /// Formats a GUID without braces; `upper` has a bit for each character to write in upper case.
    fn format_guid(guid: Guid, upper: u64) -> [u8; 36] {
        let text = guid.to_string();
        std::array::from_fn(|position| match text.as_bytes()[position] {
            byte if upper >> position & 1 == 1 => byte.to_ascii_uppercase(),
            byte => byte,
        })
    }
}
