//! Compares operations on an assembler with a model: pushes of any size, checkpoints, and forgetting messages.
#![no_main]

use arbitrary::{Arbitrary, Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use ssbroker_core::reassembly::{Assembler, Limits};
use ssbroker_core::{Guid, Header, Seed, Signature};
use ssbroker_fuzz::{Model, SEED, Sent, digest, push};

#[derive(Debug)]
enum Operation {
    Push(Vec<Sent>),
    Restore,
    Forget(Guid, bool, i64),
}

#[derive(Debug)]
struct Run {
    limits: Limits,
    in_order: bool,
    operations: Vec<Operation>,
}

impl<'a> Arbitrary<'a> for Run {
    fn arbitrary(from: &mut Unstructured<'a>) -> Result<Self> {
        let tight = Limits {
            pending_bytes: from.int_in_range(300..=4_000)?,
            pending_messages: from.int_in_range(1..=8)?,
            message_bytes: from.int_in_range(0..=40)?,
            fragments_per_message: from.int_in_range(1..=9)?,
            sequence_distance: from.int_in_range(1..=5)?,
        };
        let limits = if from.ratio(1, 3)? { tight } else { Limits::NONE };
        let in_order = from.ratio(2, 3)?;
        let mut operations = Vec::new();
        while !from.is_empty() && operations.len() < 60 {
            operations.push(match from.int_in_range(0..=9)? {
                0 => Operation::Restore,
                1 => Operation::Forget(id(from)?, from.arbitrary()?, from.int_in_range(0..=4)?),
                _ => Operation::Push(several(from)?),
            });
        }
        Ok(Self { limits, in_order, operations })
    }
}

fn id(from: &mut Unstructured<'_>) -> Result<Guid> {
    Ok(Guid([from.int_in_range(0..=2)?; 16]))
}

/// Generates some or all fragments of one message in any order; one of them may be invalid.
fn several(from: &mut Unstructured<'_>) -> Result<Vec<Sent>> {
    let (conversation, is_initiator) = (id(from)?, from.ratio(3, 4)?);
    let sequence = from.int_in_range(0..=5)?;
    let count: i32 = from.int_in_range(1..=8)?;
    let part = |number: i32| vec![sequence as u8 * 16 + number as u8; (number as usize + sequence as usize) % 4];
    let whole: Vec<u8> = (0..count).flat_map(part).collect();
    let message = if from.ratio(1, 8)? { Signature::Missing } else { Signature::Given(digest(&whole)) };
    let mut all = Vec::new();
    let mut numbers: Vec<i32> = (0..count).collect();
    for position in 1..numbers.len() {
        numbers.swap(position, from.int_in_range(0..=position)?);
    }
    if from.ratio(1, 3)? {
        numbers.truncate(from.int_in_range(1..=numbers.len())?);
    }
    if from.ratio(1, 4)? {
        numbers.push(from.int_in_range(0..=count - 1)?);
    }
    for number in numbers {
        let body = part(number);
        let fragment = if from.ratio(1, 2)? { Signature::Missing } else { Signature::Given(digest(&body)) };
        let header = Header { conversation, is_initiator, sequence, number, count };
        let mut sent = Sent { header, body, message, fragment };
        match from.int_in_range(0..=40)? {
            0 => sent.header.sequence = i64::MAX - from.int_in_range(0..=1)?,
            1 => sent.header.number = from.int_in_range(-1..=9)?,
            2 => sent.header.count = from.int_in_range(0..=9)?,
            3 => sent.body.push(7),
            4 => sent.message = Signature::Unreadable,
            5 => sent.message = Signature::Given([from.int_in_range(0..=1)?; 16]),
            6 => sent.fragment = Signature::Given([0; 16]),
            _ => {}
        }
        all.push(sent);
    }
    Ok(all)
}

fuzz_target!(|run: Run| {
    let mut assembler = Assembler::new(run.limits, run.in_order, SEED);
    let mut model = Model::new(run.limits, run.in_order);
    for operation in &run.operations {
        match operation {
            Operation::Push(sent) => assert_eq!(push(&mut assembler, sent), model.push(sent)),
            Operation::Forget(conversation, is_initiator, sequence) => assert_eq!(
                assembler.forget(*conversation, *is_initiator, *sequence),
                model.forget((*conversation, *is_initiator), *sequence)
            ),
            Operation::Restore => {
                let (state, extra) = assembler.checkpoint();
                let extra = extra.into_iter().map(Into::into).collect();
                let restored = Assembler::restore(&state, extra, Seed([5, 6])).expect("a valid checkpoint");
                assert_eq!(restored.checkpoint().0, state);
                assembler = restored;
            }
        }
        assert_eq!(assembler.pending_bytes(), model.pending_bytes());
    }
});
