//! Fragment headers and signatures: MD5 digests, encrypted with the session key if the conversation has one (P21,
//! P23).
//!
//! A signature is the last block of AES in CBC mode over blocks that identify the content, followed by its MD5. The
//! second block differs for messages and fragments, so that neither input is a prefix of the other.

use std::fmt;

use aes::cipher::{Block, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use aes::{Aes128, Aes192, Aes256};
pub use ssbroker_md5::Digest;

use crate::Guid;

/// Identifies a fragment: its conversation and direction, its message, and its number in the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The conversation id.
    pub conversation: Guid,
    /// Whether the initiator is the sender; this is the direction.
    pub is_initiator: bool,
    /// The sequence number of the message in its direction, from 0 (P12).
    pub sequence: i64,
    /// The number of the fragment in its message, from 0.
    pub number: i32,
    /// The number of fragments of the message.
    pub count: i32,
}

/// A signature as received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signature {
    /// No signature.
    Missing,
    /// 16 bytes.
    Given(Digest),
    /// A value that is not 16 bytes long; it matches nothing.
    Unreadable,
}

impl Header {
    /// Whether the numbers are valid.
    #[must_use]
    pub fn is_in_range(&self) -> bool {
        (0..i64::MAX).contains(&self.sequence) && self.count >= 1 && (0..self.count).contains(&self.number)
    }
}

impl Signature {
    /// Returns the 16 bytes, if the signature has them.
    #[must_use]
    pub fn given(&self) -> Option<&Digest> {
        match self {
            Self::Given(digest) => Some(digest),
            Self::Missing | Self::Unreadable => None,
        }
    }
}

const TOP_BIT: u32 = 1 << 31;

/// The session key of a conversation, expanded for use.
#[derive(Clone)]
pub struct SessionKey(Cipher);

#[derive(Clone)]
enum Cipher {
    Aes128(Box<Aes128>),
    Aes192(Box<Aes192>),
    Aes256(Box<Aes256>),
}

impl SessionKey {
    /// Creates a key from 16, 24 or 32 bytes; `None` for any other length.
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let cipher = match bytes.len() {
            16 => Cipher::Aes128(Box::new(Aes128::new_from_slice(bytes).ok()?)),
            24 => Cipher::Aes192(Box::new(Aes192::new_from_slice(bytes).ok()?)),
            32 => Cipher::Aes256(Box::new(Aes256::new_from_slice(bytes).ok()?)),
            _ => return None,
        };
        Some(Self(cipher))
    }

    /// Signs a message with the MD5 `digest`. The signature does not depend on how the message is fragmented.
    #[must_use]
    pub fn message_signature(&self, header: &Header, digest: Digest) -> Digest {
        self.encrypt(xor(digest, self.message_start(header)))
    }

    /// Decrypts the signature of a message and returns the MD5 that it was made from.
    #[must_use]
    pub fn open_message_signature(&self, header: &Header, signature: Digest) -> Digest {
        xor(self.decrypt(signature), self.message_start(header))
    }

    /// Signs a fragment with the MD5 `digest` of the message signed by `message_signature`.
    #[must_use]
    pub fn fragment_signature(&self, header: &Header, message_signature: &Digest, digest: Digest) -> Digest {
        let start = self.start(header, TOP_BIT | header.number.cast_unsigned(), header.count.cast_unsigned());
        self.encrypt(xor(digest, self.encrypt(xor(*message_signature, start))))
    }

    fn message_start(&self, header: &Header) -> Digest {
        self.start(header, 0, 0)
    }

    fn start(&self, header: &Header, number: u32, count: u32) -> Digest {
        let direction = if header.is_initiator { TOP_BIT } else { 0 };
        let position =
            u128::from(number) << 96 | u128::from(count | direction) << 64 | u128::from(header.sequence as u64);
        self.encrypt(xor(position.to_be_bytes(), self.encrypt(header.conversation.0)))
    }

    fn encrypt(&self, block: Digest) -> Digest {
        let mut block = Block::<Aes128>::from(block);
        match &self.0 {
            Cipher::Aes128(cipher) => cipher.encrypt_block(&mut block),
            Cipher::Aes192(cipher) => cipher.encrypt_block(&mut block),
            Cipher::Aes256(cipher) => cipher.encrypt_block(&mut block),
        }
        block.into()
    }

    fn decrypt(&self, block: Digest) -> Digest {
        let mut block = Block::<Aes128>::from(block);
        match &self.0 {
            Cipher::Aes128(cipher) => cipher.decrypt_block(&mut block),
            Cipher::Aes192(cipher) => cipher.decrypt_block(&mut block),
            Cipher::Aes256(cipher) => cipher.decrypt_block(&mut block),
        }
        block.into()
    }
}

/// Does not reveal the key.
impl fmt::Debug for SessionKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("SessionKey")
    }
}

fn xor(one: Digest, other: Digest) -> Digest {
    (u128::from_ne_bytes(one) ^ u128::from_ne_bytes(other)).to_ne_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Guid;

    const HEADER: Header = Header { conversation: Guid([7; 16]), is_initiator: true, sequence: 5, number: 2, count: 9 };

    /// P21
    #[test]
    fn encrypts_one_block_with_aes() {
        // FIPS 197, appendix C.
        let key: Vec<u8> = (0..32).collect();
        let block: [u8; 16] = std::array::from_fn(|position| (position as u8) << 4 | position as u8);
        for (len, first) in
            [(16, [0x69, 0xc4, 0xe0, 0xd8]), (24, [0xdd, 0xa9, 0x7c, 0xa4]), (32, [0x8e, 0xa2, 0xb7, 0xca])]
        {
            let key = SessionKey::new(&key[..len]).unwrap();
            assert_eq!(key.encrypt(block)[..4], first);
            assert_eq!(key.decrypt(key.encrypt(block)), block);
        }
        assert!((0..40).filter(|len| SessionKey::new(&vec![0; *len]).is_some()).eq([16, 24, 32]));
    }

    /// P21
    #[test]
    fn a_message_signature_is_valid_only_for_its_header() {
        let key = SessionKey::new(&[1; 16]).unwrap();
        let signature = key.message_signature(&HEADER, [3; 16]);
        assert_eq!(key.open_message_signature(&HEADER, signature), [3; 16]);
        assert_eq!(key.open_message_signature(&Header { number: 0, count: 1, ..HEADER }, signature), [3; 16]);
        let elsewhere = [
            Header { conversation: Guid([8; 16]), ..HEADER },
            Header { is_initiator: false, ..HEADER },
            Header { sequence: 6, ..HEADER },
        ];
        for header in elsewhere {
            assert_ne!(key.open_message_signature(&header, signature), [3; 16], "{header:?}");
        }
    }

    /// P21
    #[test]
    fn a_fragment_signature_is_valid_only_for_its_header_and_message() {
        let key = SessionKey::new(&[1; 24]).unwrap();
        let signature = key.fragment_signature(&HEADER, &[4; 16], [3; 16]);
        let elsewhere = [
            Header { conversation: Guid([8; 16]), ..HEADER },
            Header { is_initiator: false, ..HEADER },
            Header { sequence: 6, ..HEADER },
            Header { number: 3, ..HEADER },
            Header { count: 10, ..HEADER },
        ];
        for header in elsewhere {
            assert_ne!(key.fragment_signature(&header, &[4; 16], [3; 16]), signature, "{header:?}");
        }
        assert_ne!(key.fragment_signature(&HEADER, &[5; 16], [3; 16]), signature);
        assert_ne!(key.fragment_signature(&HEADER, &[4; 16], [2; 16]), signature);
    }
}
