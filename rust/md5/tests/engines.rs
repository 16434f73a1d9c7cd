//! Compares every engine of this machine with another implementation of MD5.

use std::panic::{AssertUnwindSafe, catch_unwind};

use md5::{Digest as _, Md5};
use proptest::prelude::*;
use ssbroker_md5::{Digest, Engine, Hasher, digest, digest_many};

/// More messages than any engine has lanes.
const FULL: usize = 33;

fn expected(input: &[u8]) -> Digest {
    Md5::digest(input).into()
}

fn by(engine: Engine, inputs: &[&[u8]]) -> Vec<Digest> {
    let mut digests = vec![[0xaa; 16]; inputs.len()];
    engine.digest_many(inputs, &mut digests);
    digests
}

/// Bytes without long repetitions.
fn bytes(len: usize) -> Vec<u8> {
    let mut state = 1u64;
    std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    })
    .take(len)
    .collect()
}

/// Miri is slow, so it tests only the critical lengths, each in some lanes.
const IS_SLOW: bool = cfg!(miri);

/// All lengths up to three blocks, and those around the ends of later blocks.
fn lengths() -> impl Iterator<Item = usize> {
    let around = |blocks: usize| [55, 56, 57, 63, 64, 65].map(|end| blocks * 64 + end);
    let all = (0..=200).chain([3, 7, 15, 16, 63].into_iter().flat_map(around));
    all.filter(|len| !IS_SLOW || [0, 55, 56, 64, 183].contains(len))
}

#[test]
fn engines_have_distinct_names_and_the_portable_one_is_always_available() {
    let engines = Engine::available();
    assert_eq!(engines.last(), Some(&Engine::Portable));
    assert_eq!(engines.first(), Some(&Engine::best()));
    #[cfg(target_arch = "x86_64")]
    assert!(engines.contains(&Engine::Sse2));
    #[cfg(target_arch = "aarch64")]
    assert!(engines.contains(&Engine::Neon));
    let mut names: Vec<_> = engines.iter().map(|engine| engine.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), engines.len());
}

#[test]
fn every_length_alone_and_in_full_lanes() {
    let counts = [1, 2, 3, 4, 5, 8, 9, 12, 13, 16, 17, 24, 25, 31, 32, FULL, 70];
    let data = bytes(5_000);
    for len in lengths() {
        let expected = expected(&data[..len]);
        assert_eq!(digest(&data[..len]), expected, "{len} bytes");
        for engine in Engine::available() {
            for count in counts.iter().copied().step_by(if IS_SLOW { 5 } else { 1 }) {
                assert_eq!(
                    by(engine, &vec![&data[..len]; count]),
                    vec![expected; count],
                    "{engine:?}, {count} of {len}"
                );
            }
        }
    }
}

#[test]
fn every_length_in_every_lane_among_others() {
    let data = bytes(5_000);
    for len in lengths() {
        // The neighbours start at different offsets and have different lengths, so the message meets them in any
        // phase.
        let mut inputs: Vec<&[u8]> =
            (0..FULL).map(|lane| &data[lane..(lane * 37 + len) % if IS_SLOW { 200 } else { 800 } + lane]).collect();
        let mut digests: Vec<Digest> = inputs.iter().map(|input| expected(input)).collect();
        let one = (&data[..len], expected(&data[..len]));
        for lane in (0..FULL).step_by(if IS_SLOW { 32 } else { 1 }) {
            let other = (inputs[lane], digests[lane]);
            (inputs[lane], digests[lane]) = one;
            for engine in Engine::available() {
                assert_eq!(by(engine, &inputs), digests, "{engine:?}, {len} bytes in lane {lane}");
            }
            (inputs[lane], digests[lane]) = other;
        }
    }
}

#[test]
fn a_few_long_messages_among_many_short_ones() {
    let data = bytes(if IS_SLOW { 3_000 } else { 300_000 });
    for long in [0, 1, 2, 7, 31, 299].into_iter().skip(if IS_SLOW { 5 } else { 0 }) {
        let inputs: Vec<&[u8]> = (0..if IS_SLOW { 70 } else { 1_500 })
            .map(|index| if index % 300 == long { &data[index..] } else { &data[..index % 130] })
            .collect();
        let expected: Vec<Digest> = inputs.iter().map(|input| expected(input)).collect();
        for engine in Engine::available() {
            assert_eq!(by(engine, &inputs), expected, "{engine:?}, long at {long}");
        }
    }
}

#[test]
fn inputs_and_digests_of_different_numbers_panic() {
    for engine in Engine::available() {
        for digests in [0, 1, 39, 41] {
            let mut into = vec![[0xaa; 16]; digests];
            let digest = || engine.digest_many(&[&b"message"[..]; 40], &mut into);
            assert!(catch_unwind(AssertUnwindSafe(digest)).is_err(), "{digests} digests");
            assert!(into.iter().all(|digest| *digest == [0xaa; 16]));
        }
    }
}

#[test]
fn an_unsupported_engine_falls_back_to_the_portable_one() {
    let inputs: [&[u8]; 3] = [b"one", b"two", b"three"];
    for engine in [Engine::Avx512, Engine::Avx2, Engine::Sse2, Engine::Neon, Engine::Portable] {
        assert_eq!(by(engine, &inputs), inputs.map(expected));
    }
}

/// Mostly short messages, some empty ones, and a few long ones.
fn length() -> impl Strategy<Value = usize> {
    prop_oneof![
        1 => Just(0),
        8 => 0..130usize,
        4 => (0..64usize, 0..8u32).prop_map(|(more, power)| (64 << power) + more),
        1 => 4_000..40_000usize,
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(if IS_SLOW { 2 } else { 400 }) })]

    #[test]
    fn any_batch_has_the_digests_of_its_messages(
        indices in prop::collection::vec((0..64usize, length()), 0..100),
        same_length in prop::option::of(0..600usize),
    ) {
        let data = bytes(40_064);
        let len = |len| same_length.unwrap_or(len);
        let inputs: Vec<&[u8]> = indices.iter().map(|&(start, of)| &data[start..start + len(of)]).collect();
        let expected: Vec<Digest> = inputs.iter().map(|input| expected(input)).collect();
        for engine in Engine::available() {
            prop_assert_eq!(&by(engine, &inputs), &expected, "{:?}", engine);
        }
        let mut digests = vec![[0; 16]; inputs.len()];
        digest_many(&inputs, &mut digests);
        prop_assert_eq!(&digests, &expected);
    }

    #[test]
    fn any_division_into_pieces_has_the_digest_of_the_whole(pieces in prop::collection::vec(length(), 0..6)) {
        let data = bytes(40_064);
        let mut hasher = Hasher::new();
        let mut whole = Vec::new();
        for len in pieces {
            hasher.update(&data[..len]);
            whole.extend_from_slice(&data[..len]);
        }
        prop_assert_eq!(hasher.finish(), expected(&whole));
        prop_assert_eq!(digest(&whole), expected(&whole));
    }
}
