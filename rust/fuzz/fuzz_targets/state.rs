//! Restores checkpoints from arbitrary bytes and pushes arbitrary fragments: must never panic, and a restored
//! checkpoint must be written identically.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ssbroker_core::reassembly::{Assembler, Limits};
use ssbroker_core::{Guid, Header, Signature};
use ssbroker_fuzz::{Model, SEED, Sent, digest, push};

const EXTRA_MAX: usize = 64;

/// Parses fragments: conversation, direction, three numbers, length, body.
fn sent(mut bytes: &[u8]) -> Vec<Sent> {
    let mut all = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<8>() {
        let [conversation, direction, sequence, number, count, len, message, fragment] = *head;
        let (body, rest) = rest.split_at(rest.len().min(usize::from(len)));
        let header = Header {
            conversation: Guid([conversation; 16]),
            is_initiator: direction & 1 == 1,
            sequence: i64::from(sequence.cast_signed()),
            number: i32::from(number.cast_signed()),
            count: i32::from(count.cast_signed()),
        };
        let signature = |kind: u8| match kind % 3 {
            0 => Signature::Missing,
            1 => Signature::Given(digest(body)),
            _ => Signature::Unreadable,
        };
        all.push(Sent { header, body: body.to_vec(), message: signature(message), fragment: signature(fragment) });
        bytes = rest;
    }
    all
}

fuzz_target!(|bytes: &[u8]| {
    let extra = |len: usize| vec![Box::<[u8]>::default(); len];
    for len in 0..EXTRA_MAX {
        if let Ok(mut assembler) = Assembler::restore(bytes, extra(len), SEED) {
            assert_eq!(assembler.checkpoint().0, bytes);
            push(&mut assembler, &sent(bytes));
            assert!(assembler.pending().len() as u64 <= assembler.pending_messages());
            break;
        }
    }
    let mut assembler = Assembler::new(Limits::NONE, true, SEED);
    let mut model = Model::new(Limits::NONE, true);
    for one in sent(bytes) {
        let one = std::slice::from_ref(&one);
        assert_eq!(push(&mut assembler, one), model.push(one));
    }
});
