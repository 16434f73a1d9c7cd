//! Tests single pushes, and that dividing the fragments into pushes in any way gives the same result.

use std::collections::BTreeMap;

use proptest::prelude::*;
use ssbroker_core::SessionKey;
use ssbroker_core::reassembly::{Assembler, ExtraValues, Limits, Pushed, Received, Rejected};
use ssbroker_core::{Guid, Header, Seed, Signature};

const SEED: Seed = Seed([1, 2]);

/// A fragment that owns its body.
#[derive(Clone, Debug)]
struct Sent {
    header: Header,
    body: Vec<u8>,
    message: Signature,
    fragment: Signature,
}

/// The results of pushes as comparable values.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    messages: Vec<(Guid, bool, i64, Vec<u8>)>,
    rejected: Vec<(Header, Rejected)>,
}

fn header(sequence: i64, number: i32, count: i32) -> Header {
    Header { conversation: Guid([1; 16]), is_initiator: true, sequence, number, count }
}

/// Splits a message without a session key into fragments.
fn split(conversation: u8, sequence: i64, parts: &[&[u8]]) -> Vec<Sent> {
    let signature = Signature::Given(ssbroker_md5::digest(&parts.concat()));
    let of_part = |(number, part): (usize, &&[u8])| Sent {
        header: Header {
            conversation: Guid([conversation; 16]),
            ..header(sequence, number as i32, parts.len() as i32)
        },
        body: part.to_vec(),
        message: signature,
        fragment: Signature::Given(ssbroker_md5::digest(part)),
    };
    parts.iter().enumerate().map(of_part).collect()
}

fn received<'a>(fragment: &'a Sent, key: Option<&'a SessionKey>) -> Received<'a> {
    let Sent { header, ref body, message, fragment } = *fragment;
    Received { header, body, message_signature: message, fragment_signature: fragment, key }
}

impl Seen {
    fn add(&mut self, pushed: Pushed) {
        for batch in pushed.messages {
            for row in 0..batch.sequences.len() {
                let body = &batch.bodies[batch.offsets[row] as usize..batch.offsets[row + 1] as usize];
                let id = (batch.conversations[row], batch.is_initiator[row], batch.sequences[row]);
                self.messages.push((id.0, id.1, id.2, body.to_vec()));
            }
        }
        self.rejected.extend(pushed.rejected.iter().map(|rejection| (rejection.header, rejection.reason)));
    }
}

fn push(assembler: &mut Assembler, fragments: &[Sent]) -> Pushed {
    let bytes = fragments.iter().map(|fragment| fragment.body.len()).sum();
    let block = fragments.iter().map(|fragment| received(fragment, None)).collect();
    assembler.push(std::iter::once(block), bytes, &())
}

fn seen(assembler: &mut Assembler, fragments: &[Sent]) -> Seen {
    let mut seen = Seen::default();
    seen.add(push(assembler, fragments));
    seen
}

fn unlimited() -> Assembler {
    Assembler::new(Limits::NONE, true, SEED)
}

/// P14
#[test]
fn a_gap_holds_back_later_messages() {
    let (first, second) = (split(1, 0, &[b"ab", b"c"]), split(1, 1, &[b"d"]));
    let mut assembler = unlimited();
    assert!(seen(&mut assembler, &second).messages.is_empty());
    assert!(seen(&mut assembler, &first[1..]).messages.is_empty());
    let bodies: Vec<Vec<u8>> =
        seen(&mut assembler, &first[..1]).messages.into_iter().map(|message| message.3).collect();
    assert_eq!(bodies, [b"abc".to_vec(), b"d".to_vec()]);
    assert_eq!((assembler.pending_messages(), assembler.pending_bytes()), (0, 128));
}

/// P23
#[test]
fn a_corrupt_message_is_dropped_and_may_be_sent_again() {
    let mut bad = split(1, 0, &[b"ab", b"c"]);
    for fragment in &mut bad {
        fragment.message = Signature::Given([0; 16]);
    }
    let mut assembler = unlimited();
    let rejected = [0, 1].map(|number| (header(0, number, 2), Rejected::CorruptMessage));
    let pushed = push(&mut assembler, &bad);
    assert!(pushed.acknowledgements.is_empty());
    assert_eq!(pushed.rejected.iter().map(|one| (one.header, one.reason)).collect::<Vec<_>>(), rejected);
    assert_eq!((assembler.pending_messages(), assembler.pending_bytes()), (0, 0));
    assert_eq!(seen(&mut assembler, &split(1, 0, &[b"ab", b"c"])).messages.len(), 1);
}

#[test]
fn a_forgotten_message_may_be_sent_again() {
    let mut assembler = unlimited();
    let mut parts = split(1, 0, &[b"ab", b"c"]);
    parts[0].message = Signature::Given([9; 16]);
    push(&mut assembler, &parts[..1]);
    assert_eq!(seen(&mut assembler, &parts[1..]).rejected, [(header(0, 1, 2), Rejected::Conflict)]);
    assert!(assembler.forget(Guid([1; 16]), true, 0));
    assert!(!assembler.forget(Guid([1; 16]), true, 0));
    assert_eq!(assembler.pending_bytes(), 0);
    assert_eq!(seen(&mut assembler, &split(1, 0, &[b"ab", b"c"])).messages.len(), 1);
}

#[test]
fn extra_columns_are_those_of_fragment_0() {
    struct Rows;
    impl ssbroker_core::reassembly::ExtraColumnSource for Rows {
        fn len(&self, row: usize) -> usize {
            row + 1
        }
        fn take(&self, rows: &[usize]) -> Vec<Box<[u8]>> {
            rows.iter().map(|row| vec![7; row + 1].into()).collect()
        }
    }
    let parts = split(1, 0, &[b"ab", b"c"]);
    let mut assembler = unlimited();
    let block = |fragments: &'static [Sent]| fragments.iter().map(|one| received(one, None)).collect::<Vec<_>>();
    let parts: &'static [Sent] = parts.leak();
    assembler.push(std::iter::once(block(&parts[..1])), 0, &Rows);
    assert_eq!(assembler.pending_bytes(), 128 + 256 + 96 + 2 + 1);
    let pushed = assembler.push(std::iter::once(block(&parts[1..])), 0, &Rows);
    assert_eq!(pushed.messages[0].extra, [ExtraValues::Stored([7].into())]);
    let pushed = unlimited().push(std::iter::once(block(parts)), 0, &Rows);
    assert_eq!(pushed.messages[0].extra, [ExtraValues::Row(0)]);
}

/// P21
#[test]
fn only_fragments_signed_with_the_session_key_are_accepted() {
    let key = SessionKey::new(&[5; 32]).unwrap();
    let mut parts = split(1, 3, &[b"ab", b"c"]);
    let message = key.message_signature(&parts[0].header, ssbroker_md5::digest(b"abc"));
    for part in &mut parts {
        part.message = Signature::Given(message);
        let digest = ssbroker_md5::digest(&part.body);
        part.fragment = Signature::Given(key.fragment_signature(&part.header, &message, digest));
    }
    let verdicts = |parts: &[Sent]| {
        let mut assembler = Assembler::new(Limits::NONE, false, SEED);
        let block = parts.iter().map(|part| received(part, Some(&key))).collect();
        let pushed = assembler.push(std::iter::once(block), 3, &());
        (pushed.messages.len(), pushed.rejected.iter().map(|one| one.reason).collect::<Vec<_>>())
    };
    assert_eq!(verdicts(&parts), (1, vec![]));
    let mut moved = parts.clone();
    moved[0].header.sequence = 4;
    moved[1].header.is_initiator = false;
    assert_eq!(verdicts(&moved), (0, vec![Rejected::CorruptFragment; 2]));
}

#[test]
fn an_unreadable_signature_is_corrupt_even_beyond_a_limit() {
    let mut parts = split(1, 0, &[b"ab", b"cd"]);
    for part in &mut parts {
        part.message = Signature::Missing;
    }
    let mut assembler = Assembler::new(Limits { message_bytes: 2, ..Limits::NONE }, true, SEED);
    let mut reasons =
        |parts: &[Sent]| push(&mut assembler, parts).rejected.into_iter().map(|one| one.reason).collect::<Vec<_>>();
    assert_eq!(reasons(&parts), [Rejected::LimitExceeded]);
    parts[1].message = Signature::Unreadable;
    assert_eq!(reasons(&parts[1..]), [Rejected::CorruptFragment]);
}

#[test]
fn a_message_is_never_larger_than_an_arrow_value() {
    let assembler = Assembler::new(Limits { message_bytes: u32::MAX, ..Limits::NONE }, true, SEED);
    assert_eq!(*assembler.limits(), Limits::NONE);
    let (mut state, _) = assembler.checkpoint();
    // After the version, the order, and the two limits of pending messages.
    let limit = &mut state[2 + 1 + 2 * 8..][..8];
    assert_eq!(limit, (i32::MAX as u64).to_le_bytes());
    limit.copy_from_slice(&(1u64 << 31).to_le_bytes());
    assert!(Assembler::restore(&state, Vec::new(), SEED).is_err());
}

#[test]
fn a_queued_message_verifies_its_direction() {
    let (unverified, known) = (&split(1, 0, &[b"", b""])[..1], split(2, 0, &[b""]));
    let (next, early, incomplete) = (split(2, 1, &[b"ab", b"cd"]), split(3, 1, &[b""]), &split(3, 2, &[b"", b""])[..1]);
    let all = [unverified, &known, &next, &early, incomplete].concat();
    let limits = Limits { pending_messages: 3, ..Limits::NONE };
    let mut assembler = Assembler::new(limits, true, SEED);
    assert_eq!(seen(&mut assembler, &all).rejected, []);
    assert_eq!(assembler.pending_messages(), 3);
}

fn traffic() -> impl Strategy<Value = Vec<Sent>> {
    let message = (0..3u8, 0..4i64, prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3), 1..4));
    let messages = prop::collection::vec((message, any::<u8>()), 1..14);
    messages.prop_flat_map(|messages| {
        let mut all = Vec::new();
        for ((conversation, sequence, parts), fault) in messages {
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let mut fragments = split(conversation, sequence, &parts);
            match fault {
                0..30 => fragments[0].message = Signature::Given([0; 16]),
                30..60 => fragments.iter_mut().for_each(|one| one.message = Signature::Given([0; 16])),
                60..80 => fragments[0].fragment = Signature::Unreadable,
                80..100 => fragments.extend_from_within(..1),
                _ => {}
            }
            all.extend(fragments);
        }
        Just(all).prop_shuffle()
    })
}

fn limits() -> impl Strategy<Value = Limits> {
    let tight = (400..2_500u64, 1..6u64, 1..6u32, 1..4u32, 1..4u64).prop_map(|limits| Limits {
        pending_bytes: limits.0,
        pending_messages: limits.1,
        message_bytes: limits.2,
        fragments_per_message: limits.3,
        sequence_distance: limits.4,
    });
    let few = (2..6u64).prop_map(|pending_messages| Limits { pending_messages, ..Limits::NONE });
    prop_oneof![Just(Limits::NONE), tight, few]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 4_000 }))]

    #[test]
    fn one_push_equals_single_pushes_with_checkpoints_between(
        fragments in traffic(),
        limits in limits(),
        in_order in any::<bool>(),
    ) {
        let mut together = Assembler::new(limits, in_order, SEED);
        let expected = seen(&mut together, &fragments);
        let mut single = Assembler::new(limits, in_order, SEED);
        let mut one_by_one = Seen::default();
        let mut accepted: BTreeMap<(Guid, i64), usize> = BTreeMap::new();
        for fragment in &fragments {
            *accepted.entry((fragment.header.conversation, fragment.header.sequence)).or_default() += fragment.body.len();
            one_by_one.add(push(&mut single, std::slice::from_ref(fragment)));
            let (state, extra) = single.checkpoint();
            let extra = extra.into_iter().map(Into::into).collect();
            single = Assembler::restore(&state, extra, Seed([3, 4])).expect("a valid checkpoint");
        }
        prop_assert_eq!(&expected, &one_by_one);
        prop_assert_eq!(together.pending(), single.pending());
        prop_assert_eq!(together.checkpoint(), single.checkpoint());
        let out: usize = expected.messages.iter().map(|message| message.3.len()).sum();
        let pending: u64 = together.pending().iter().map(|one| one.bytes).sum();
        let all: usize = accepted.values().sum();
        prop_assert!(out as u64 + pending <= all as u64);
    }

    #[test]
    fn a_truncated_or_altered_checkpoint_never_panics(
        fragments in traffic(),
        position in any::<prop::sample::Index>(),
        bit in 0..8u32,
    ) {
        let mut assembler = Assembler::new(Limits::NONE, true, SEED);
        push(&mut assembler, &fragments);
        let (state, extra) = assembler.checkpoint();
        let extra: Vec<Box<[u8]>> = extra.into_iter().map(Into::into).collect();
        let position = position.index(state.len());
        prop_assert!(Assembler::restore(&state[..position], extra.clone(), SEED).is_err());
        let mut altered = state;
        altered[position] ^= 1u8 << bit;
        if let Ok(mut assembler) = Assembler::restore(&altered, extra, SEED) {
            push(&mut assembler, &fragments);
            prop_assert!(assembler.pending().len() as u64 <= assembler.pending_messages());
        }
    }
}
