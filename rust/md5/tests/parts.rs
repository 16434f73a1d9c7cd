//! Messages in parts, by every engine of this machine, against another implementation of MD5.

use md5::{Digest as _, Md5};
use proptest::prelude::*;
use ssbroker_md5::{Appended, Digest, Engine, digest_parts};

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

/// Appends the messages in turns to two vectors that have bytes already; every third one is not digested.
fn appended_by(engine: Engine, messages: &[Vec<&[u8]>]) -> (Vec<Option<Digest>>, Vec<u8>) {
    let parts: Vec<&[u8]> = messages.concat();
    let ends = messages.iter().scan(0, |end, message| {
        *end += message.len();
        Some(*end)
    });
    let mut digests: Vec<_> = (0..messages.len()).map(|place| (place % 3 != 2).then_some([0xaa; 16])).collect();
    let (mut first, mut second) = (b"begun".to_vec(), Vec::new());
    let half = messages.len() / 2;
    let mut to =
        [Appended { messages: half, to: &mut first }, Appended { messages: messages.len() - half, to: &mut second }];
    engine.append_parts(&parts, &ends.collect::<Vec<_>>(), &mut digests, &mut to);
    first.extend(second);
    (digests, first)
}

fn check(messages: &[Vec<&[u8]>]) {
    let expected: Vec<Digest> = messages.iter().map(|parts| Md5::digest(parts.concat()).into()).collect();
    let together = [b"begun".to_vec(), messages.concat().concat()].concat();
    let digested = |(place, digest): (usize, &Digest)| (place % 3 != 2).then_some(*digest);
    let digested: Vec<_> = expected.iter().enumerate().map(digested).collect();
    for engine in Engine::available() {
        assert_eq!(by(engine, messages), expected, "{}", engine.name());
        let (digests, bytes) = appended_by(engine, messages);
        assert_eq!(digests, digested, "{}", engine.name());
        assert!(bytes == together, "{} put other bytes together", engine.name());
    }
}

#[test]
fn no_messages_no_parts_and_empty_parts() {
    check(&[]);
    check(&[vec![], vec![b""], vec![b"", b"abc", b""]]);
}

#[test]
fn a_message_cut_at_every_place_of_a_block() {
    let data: Vec<u8> = (0..9_000u32).map(|place| ((place * place) >> 5) as u8).collect();
    let cut = |place: usize| vec![&data[..place], &data[place..4_500], &data[4_500..]];
    check(&(0..=130).map(cut).collect::<Vec<_>>());
}

#[test]
fn the_first_ends_alone_are_done() {
    let mut digests = [[0xaa; 16]; 2];
    digest_parts(&[b"a", b"b"], &[1], &mut digests);
    assert_eq!(digests, [Md5::digest(b"a").into(), [0xaa; 16]]);
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
        let data: Vec<u8> = (0..30_000u32).map(|place| (place.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let parts = |parts: &Vec<(usize, usize)>| parts.iter().map(|&(start, len)| &data[start..start + len]).collect();
        check(&messages.iter().map(parts).collect::<Vec<Vec<&[u8]>>>());
    }
}
