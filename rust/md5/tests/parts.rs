//! Compares messages in parts, by every engine of this machine, with another implementation of MD5.

use std::panic::{AssertUnwindSafe, catch_unwind};

use md5::{Digest as _, Md5};
use proptest::prelude::*;
use ssbroker_md5::{AppendTarget, Digest, Engine, append_parts, digest_parts};

fn by(engine: Engine, messages: &[Vec<&[u8]>]) -> Vec<Digest> {
    let parts: Vec<&[u8]> = messages.concat();
    let ends = messages.iter().scan(0, |end, message| {
        *end += message.len();
        Some(*end)
    });
    let mut digests = vec![[0xaa; 16]; messages.len()];
    engine.digest_parts(&parts, &ends.collect::<Vec<_>>(), &mut digests);
    digests
}

/// Appends the messages to two vectors that already have bytes; every third message is not digested.
fn appended_by(engine: Engine, messages: &[Vec<&[u8]>]) -> (Vec<Option<Digest>>, Vec<u8>) {
    let parts: Vec<&[u8]> = messages.concat();
    let ends = messages.iter().scan(0, |end, message| {
        *end += message.len();
        Some(*end)
    });
    let mut digests: Vec<_> = (0..messages.len()).map(|index| (index % 3 != 2).then_some([0xaa; 16])).collect();
    let (mut first, mut second) = (b"start".to_vec(), Vec::new());
    let half = messages.len() / 2;
    let mut to = [
        AppendTarget { messages: half, to: &mut first },
        AppendTarget { messages: messages.len() - half, to: &mut second },
    ];
    engine.append_parts(&parts, &ends.collect::<Vec<_>>(), &mut digests, &mut to);
    first.extend(second);
    (digests, first)
}

fn check(messages: &[Vec<&[u8]>]) {
    let expected: Vec<Digest> = messages.iter().map(|parts| Md5::digest(parts.concat()).into()).collect();
    let together = [b"start".to_vec(), messages.concat().concat()].concat();
    let digested = |(index, digest): (usize, &Digest)| (index % 3 != 2).then_some(*digest);
    let digested: Vec<_> = expected.iter().enumerate().map(digested).collect();
    for engine in Engine::available() {
        assert_eq!(by(engine, messages), expected, "{}", engine.name());
        let (digests, bytes) = appended_by(engine, messages);
        assert_eq!(digests, digested, "{}", engine.name());
        assert!(bytes == together, "{} assembled other bytes", engine.name());
    }
}

#[test]
fn no_messages_no_parts_and_empty_parts() {
    check(&[]);
    check(&[vec![], vec![b""], vec![b"", b"abc", b""]]);
}

#[test]
fn a_message_split_at_every_position_of_a_block() {
    let data: Vec<u8> = (0..9_000u32).map(|index| ((index * index) >> 5) as u8).collect();
    let cut = |index: usize| vec![&data[..index], &data[index..4_500], &data[4_500..]];
    check(&(0..=130).map(cut).collect::<Vec<_>>());
}

/// Appends messages to a vector with an invalid call; returns what the vector contains after the panic.
fn panicking_append(parts: &[&[u8]], ends: &[usize], messages: usize, digests: usize) -> Option<Vec<u8>> {
    let mut vector = b"start".to_vec();
    let mut into = vec![Some([0; 16]); digests];
    let append = || append_parts(parts, ends, &mut into, &mut [AppendTarget { messages, to: &mut vector }]);
    catch_unwind(AssertUnwindSafe(append)).err().map(|_| vector)
}

#[test]
fn a_call_that_panics_leaves_the_vector_unchanged() {
    let long = [7; 10_000];
    let parts: [&[u8]; 4] = [b"abc", &long, &long, b"def"];
    let unchanged = Some(b"start".to_vec());
    assert_eq!(panicking_append(&parts, &[1, 3, 4], 3, 3), None);
    for ends in [[3, 1, 4], [1, 4, 3], [1, 3, 5]] {
        assert_eq!(panicking_append(&parts, &ends, 3, 3), unchanged, "{ends:?}");
    }
    assert_eq!(panicking_append(&parts, &[1, 3, 4], 4, 4), unchanged);
    assert_eq!(panicking_append(&parts, &[1, 3, 4], 3, 2), unchanged);
}

#[test]
fn ends_that_fit_neither_the_parts_nor_the_digests_panic() {
    let panics = |ends: &[usize]| catch_unwind(|| digest_parts(&[b"a", b"b"], ends, &mut [[0; 16]; 2])).is_err();
    assert!(!panics(&[1, 2]));
    for ends in [&[1, 0][..], &[0, 3], &[1], &[1, 2, 2]] {
        assert!(panics(ends), "{ends:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 300 }))]

    #[test]
    fn any_messages_in_any_parts(
        messages in prop::collection::vec(
            prop::collection::vec((0..20_000usize, prop_oneof![0..200usize, 0..9_000usize, Just(4_096)]), 0..9),
            0..80,
        ),
    ) {
        let data: Vec<u8> = (0..30_000u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let parts = |parts: &Vec<(usize, usize)>| parts.iter().map(|&(start, len)| &data[start..start + len]).collect();
        check(&messages.iter().map(parts).collect::<Vec<Vec<&[u8]>>>());
    }
}
