//! A slow, literal model of reassembly: one fragment at a time, with everything recomputed each time.

use std::collections::BTreeMap;

use ssbroker_core::reassembly::{Limits, Rejected};
use ssbroker_core::{Guid, Header, Signature};

use crate::{Released, Outcome, Sent, digest};

type Id = (Guid, bool);

#[derive(Clone, Debug, Default)]
struct Direction {
    is_verified: bool,
    next: i64,
    messages: BTreeMap<i64, Message>,
}

#[derive(Clone, Debug)]
enum Message {
    Pending { first: Sent, parts: BTreeMap<i32, Vec<u8>> },
    Number,
}

/// A slow assembler.
#[derive(Clone, Debug)]
pub struct Model {
    limits: Limits,
    in_order: bool,
    directions: BTreeMap<Id, Direction>,
    /// What this push must acknowledge: duplicates, and accepted fragments by message.
    events: Vec<(Id, Option<i64>)>,
}

impl Message {
    fn is_whole(&self) -> bool {
        match self {
            Self::Pending { first, parts } => parts.len() == first.header.count as usize,
            Self::Number => true,
        }
    }

    fn charge(&self) -> (u64, u64) {
        match self {
            Self::Pending { parts, .. } => {
                let parts = parts.values().map(|part| 96 + part.len() as u64 + part.len() as u64 / 8);
                (256 + parts.sum::<u64>(), 1)
            }
            Self::Number => (256, 0),
        }
    }

    fn body(&self) -> Vec<u8> {
        match self {
            Self::Pending { parts, .. } => parts.values().flatten().copied().collect(),
            Self::Number => Vec::new(),
        }
    }
}

impl Direction {
    fn charge(&self) -> (u64, u64) {
        let charges = self.messages.values().map(Message::charge);
        charges.fold((128, 0), |sum, charge| (sum.0 + charge.0, sum.1 + charge.1))
    }
}

impl Model {
    pub fn new(limits: Limits, in_order: bool) -> Self {
        Self { limits, in_order, directions: BTreeMap::new(), events: Vec::new() }
    }

    pub fn pending_bytes(&self) -> u64 {
        self.directions.values().map(|direction| direction.charge().0).sum()
    }

    pub fn push(&mut self, sent: &[Sent]) -> Outcome {
        self.events.clear();
        let mut outcome = Outcome::default();
        for one in sent {
            if let Err(reason) = self.take(one, &mut outcome) {
                outcome.rejected.push((one.header, reason));
            }
        }
        let mut touched = Vec::new();
        for (id, _) in &self.events {
            if !touched.contains(id) {
                touched.push(*id);
            }
        }
        outcome.acknowledged = touched.into_iter().map(|id| self.acknowledge(id)).collect();
        outcome
    }

    fn acknowledge(&self, id: Id) -> (Guid, bool, Option<i64>, Option<(i64, Vec<i32>)>) {
        let direction = self.directions.get(&id).cloned().unwrap_or_default();
        let acked = (direction.next > 0).then(|| direction.next - 1);
        let partial = direction.messages.iter().find_map(|(sequence, message)| match message {
            Message::Pending { parts, .. } if !message.is_whole() => Some((*sequence, parts.keys().copied().collect())),
            _ => None,
        });
        (id.0, id.1, acked, partial)
    }

    /// Drops an incomplete or held message.
    pub fn forget(&mut self, id: Id, sequence: i64) -> bool {
        let Some(direction) = self.directions.get_mut(&id) else { return false };
        let is_there = matches!(direction.messages.get(&sequence), Some(Message::Pending { .. }));
        if is_there {
            direction.messages.remove(&sequence);
        }
        self.tidy(id);
        is_there
    }

    /// Removes a direction that has become empty.
    fn tidy(&mut self, id: Id) {
        self.directions.retain(|other, direction| *other != id || direction.is_verified || !direction.messages.is_empty());
    }

    fn take(&mut self, sent: &Sent, outcome: &mut Outcome) -> Result<(), Rejected> {
        let Header { conversation, is_initiator, sequence, number, count } = sent.header;
        let id = (conversation, is_initiator);
        if sequence < 0 || sequence == i64::MAX || count < 1 || number < 0 || number >= count {
            return Err(Rejected::OutOfRange);
        }
        let found = self.check(sent, id);
        let unreadable = sent.message == Signature::Unreadable || sent.fragment == Signature::Unreadable;
        let is_corrupt = unreadable || sent.fragment.given().is_some_and(|given| *given != digest(&sent.body));
        if is_corrupt && found != Err(Rejected::LimitExceeded) {
            return Err(Rejected::CorruptFragment);
        }
        if found == Err(Rejected::Duplicate) {
            self.events.push((id, None));
        }
        found?;
        self.accept(sent, id, outcome)
    }

    /// Rejects duplicates and conflicts.
    fn check(&self, sent: &Sent, id: Id) -> Result<(), Rejected> {
        let Header { sequence, number, count, .. } = sent.header;
        if let Some(direction) = self.directions.get(&id) {
            let there = direction.messages.get(&sequence);
            if sequence < direction.next || there.is_some_and(Message::is_whole) {
                return Err(Rejected::Duplicate);
            }
            if let Some(Message::Pending { first, parts }) = there {
                if first.header.count != count || first.message != sent.message {
                    return Err(Rejected::Conflict);
                }
                match parts.get(&number) {
                    Some(part) if *part == sent.body => return Err(Rejected::Duplicate),
                    Some(_) => return Err(Rejected::Conflict),
                    None => {}
                }
            }
        }
        self.check_limits(sent, id)
    }

    /// Checks the limits by accepting the fragment in a copy and counting what is pending.
    fn check_limits(&self, sent: &Sent, id: Id) -> Result<(), Rejected> {
        let limits = &self.limits;
        let direction = self.directions.get(&id).cloned().unwrap_or_default();
        let so_far = direction.messages.get(&sent.header.sequence).map_or(0, |message| message.body().len());
        let is_far = sent.header.sequence as u64 - direction.next as u64 >= limits.sequence_distance;
        let is_long = so_far as u64 + sent.body.len() as u64 > u64::from(limits.message_bytes);
        if sent.header.count as u32 > limits.fragments_per_message || is_long || is_far {
            return Err(Rejected::LimitExceeded);
        }
        let mut after = self.clone();
        after.add(sent, id);
        if after.directions[&id].messages[&sent.header.sequence].is_whole() {
            after.complete(sent.header.sequence, id, &mut Outcome::default());
        }
        let sum = |unverified: bool| {
            let counted = after.directions.values().filter(|direction| !unverified || !direction.is_verified);
            counted.map(Direction::charge).fold((0, 0), |sum, charge| (sum.0 + charge.0, sum.1 + charge.1))
        };
        let (all, unverified) = (sum(false), sum(true));
        let is_too_much = all.0 > limits.pending_bytes || all.1 > limits.pending_messages;
        let is_unverified = !after.directions[&id].is_verified;
        let is_too_much_unverified = unverified.0 > limits.pending_bytes / 2 || unverified.1 > limits.pending_messages / 2;
        if is_too_much || is_unverified && is_too_much_unverified { Err(Rejected::LimitExceeded) } else { Ok(()) }
    }

    fn add(&mut self, sent: &Sent, id: Id) {
        let messages = &mut self.directions.entry(id).or_default().messages;
        let new = || Message::Pending { first: sent.clone(), parts: BTreeMap::new() };
        if let Message::Pending { parts, .. } = messages.entry(sent.header.sequence).or_insert_with(new) {
            parts.insert(sent.header.number, sent.body.clone());
        }
    }

    fn accept(&mut self, sent: &Sent, id: Id, outcome: &mut Outcome) -> Result<(), Rejected> {
        let Header { sequence, count, .. } = sent.header;
        self.add(sent, id);
        self.events.push((id, Some(sequence)));
        let message = &self.directions[&id].messages[&sequence];
        if !message.is_whole() {
            return Ok(());
        }
        if sent.message.given().is_none_or(|given| *given == digest(&message.body())) {
            self.complete(sequence, id, outcome);
            return Ok(());
        }
        self.events.retain(|event| *event != (id, Some(sequence)));
        let of_number = |number| (Header { number, ..sent.header }, Rejected::CorruptMessage);
        outcome.rejected.extend((0..count).map(of_number));
        self.directions.entry(id).or_default().messages.remove(&sequence);
        self.tidy(id);
        Ok(())
    }

    /// Releases or holds a complete, verified message.
    fn complete(&mut self, sequence: i64, id: Id, outcome: &mut Outcome) {
        let in_order = self.in_order;
        let direction = self.directions.entry(id).or_default();
        direction.is_verified = true;
        let mut give = |sequence: i64, message: &Message| {
            let (conversation, is_initiator) = id;
            outcome.messages.push(Released { conversation, is_initiator, sequence, body: message.body() });
        };
        if !in_order {
            give(sequence, &direction.messages[&sequence]);
            direction.messages.insert(sequence, Message::Number);
        }
        while direction.messages.get(&direction.next).is_some_and(Message::is_whole) {
            if let Some(message @ Message::Pending { .. }) = direction.messages.remove(&direction.next) {
                give(direction.next, &message);
            }
            direction.next += 1;
        }
    }
}
