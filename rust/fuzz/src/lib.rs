//! Shared code of the fuzz targets: an assembler with fragments that own their bodies, a slow literal model, and
//! wire batches.

mod model;
#[cfg(feature = "wire")]
pub mod sample;

pub use model::Model;

use ssbroker_core::reassembly::{Assembler, Received, Rejected};
use ssbroker_core::{Digest, Guid, Header, Seed, Signature};

pub const SEED: Seed = Seed([17, 4]);

/// A fragment that owns its body.
#[derive(Clone, Debug)]
pub struct Sent {
    pub header: Header,
    pub body: Vec<u8>,
    pub message: Signature,
    pub fragment: Signature,
}

/// A released message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Released {
    pub conversation: Guid,
    pub is_initiator: bool,
    pub sequence: i64,
    pub body: Vec<u8>,
}

/// The result of one push.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub messages: Vec<Released>,
    pub rejected: Vec<(Header, Rejected)>,
    pub acknowledged: Vec<(Guid, bool, Option<i64>, Option<(i64, Vec<i32>)>)>,
}

/// Pushes fragments as one block.
pub fn push(assembler: &mut Assembler, sent: &[Sent]) -> Outcome {
    let block: Vec<Received<'_>> = sent
        .iter()
        .map(|sent| Received {
            header: sent.header,
            body: &sent.body,
            message_signature: sent.message,
            fragment_signature: sent.fragment,
            key: None,
        })
        .collect();
    let bytes = sent.iter().map(|sent| sent.body.len()).sum();
    let pushed = assembler.push(std::iter::once(block), bytes, &());
    let mut outcome = Outcome::default();
    for batch in &pushed.messages {
        for row in 0..batch.sequences.len() {
            let body = batch.bodies[batch.offsets[row] as usize..batch.offsets[row + 1] as usize].to_vec();
            outcome.messages.push(Released {
                conversation: batch.conversations[row],
                is_initiator: batch.is_initiator[row],
                sequence: batch.sequences[row],
                body,
            });
        }
    }
    outcome.rejected = pushed.rejected.iter().map(|rejection| (rejection.header, rejection.reason)).collect();
    let acknowledged = pushed.acknowledgements.into_iter();
    outcome.acknowledged =
        acknowledged.map(|one| (one.conversation, one.is_initiator, one.acked, one.partial)).collect();
    if cfg!(feature = "planted") {
        plant(&mut outcome, sent);
    }
    outcome
}

/// The planted fault: drops the last byte of a message that is completed by fragment 3 of 7.
fn plant(outcome: &mut Outcome, sent: &[Sent]) {
    let Some(last) = sent.last().filter(|sent| sent.header.count == 7 && sent.header.number == 3) else { return };
    for message in &mut outcome.messages {
        if message.sequence == last.header.sequence && message.conversation == last.header.conversation {
            message.body.pop();
        }
    }
}

/// Returns the MD5 of a body.
pub fn digest(body: &[u8]) -> Digest {
    ssbroker_md5::digest(body)
}
