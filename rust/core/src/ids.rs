//! Broker ids and conversation ids.

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

#[cfg(test)]
mod tests {
    use super::*;

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
}
