//! The test suite of RFC 1321.

use ssbroker_md5::{Engine, Hasher, digest, equal};

const SUITE: [(&str, &str); 7] = [
    ("", "d41d8cd98f00b204e9800998ecf8427e"),
    ("a", "0cc175b9c0f1b6a831c399e269772661"),
    ("abc", "900150983cd24fb0d6963f7d28e17f72"),
    ("message digest", "f96b697d7cb7938d525a2f31aaf161d0"),
    ("abcdefghijklmnopqrstuvwxyz", "c3fcd3d76192e4007dfb496cca67e13b"),
    ("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789", "d174ab98d277d9f5a5611c2c9f419d9f"),
    (
        "12345678901234567890123456789012345678901234567890123456789012345678901234567890",
        "57edf4a22be3c955ac49da2e2107b67a",
    ),
];

fn hexadecimal(digest: &[u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(*digest))
}

#[test]
fn the_test_suite_of_the_rfc_one_message_at_a_time() {
    for (message, expected) in SUITE {
        assert_eq!(hexadecimal(&digest(message.as_bytes())), expected);
    }
}

#[test]
fn the_test_suite_of_the_rfc_by_every_engine() {
    let inputs: Vec<&[u8]> = SUITE.iter().map(|(message, _)| message.as_bytes()).collect();
    for engine in Engine::available() {
        let mut digests = [[0; 16]; SUITE.len()];
        engine.digest_many(&inputs, &mut digests);
        assert_eq!(
            digests.map(|digest| hexadecimal(&digest)),
            SUITE.map(|(_, expected)| expected),
            "{}",
            engine.name()
        );
    }
}

#[test]
fn a_message_in_pieces_has_the_digest_of_the_whole() {
    let message: Vec<u8> = (0..=255u8).cycle().take(300).collect();
    for len in [0, 1, 55, 56, 63, 64, 65, 127, 128, 129, 300] {
        for piece in [1, 7, 63, 64, 65, 128, 300] {
            let mut hasher = Hasher::new();
            for piece in message[..len].chunks(piece) {
                hasher.update(piece);
            }
            assert_eq!(hasher.finish(), digest(&message[..len]), "{len} bytes by {piece}");
        }
    }
}

/// P22
#[test]
fn digests_are_equal_if_no_bit_differs() {
    let one = digest(b"one");
    assert!(equal(&one, &one));
    for bit in 0..128 {
        let mut other = one;
        other[bit / 8] ^= 1 << (bit % 8);
        assert!(!equal(&one, &other), "bit {bit}");
    }
}
