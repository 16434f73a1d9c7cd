//! A block of conversations that the index has answered, and what is made of blocks.

use ssbroker_core::route::{Answers, BLOCK};
use ssbroker_core::{Decision, Outcome, Reason};

use crate::bits::set_bits;

/// The answers to up to 64 conversations; a mask has one bit for each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered<'a> {
    pub(crate) answers: &'a Answers,
    /// They name a broker id.
    pub(crate) has_broker: u64,
    pub(crate) from_outside: u64,
    /// What came from outside and may not be forwarded (R25).
    pub(crate) blocked: u64,
    pub(crate) len: usize,
}

/// What is told of each conversation of a block.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) outcome: [i8; BLOCK],
    pub(crate) reason: [i8; BLOCK],
    pub(crate) steps: [i8; BLOCK],
}

/// What takes decisions, block by block.
pub(crate) trait Sink {
    /// Appends the conversations of a block; those that are left to `decide` must be set afterwards.
    fn push(&mut self, block: &Answered<'_>);

    /// Sets a conversation of the last block that was left to `decide`.
    fn set(&mut self, row: usize, decision: Decision);
}

impl Answered<'_> {
    #[inline]
    pub(crate) fn told(&self) -> Told {
        let answers = self.answers;
        let mut outcome = [Outcome::Remote as i8; BLOCK];
        let mut reason = [Reason::Matched as i8; BLOCK];
        for row in set_bits(self.from_outside & answers.network) {
            outcome[row] = Outcome::Forward as i8;
        }
        for row in set_bits(self.blocked & answers.network) {
            (outcome[row], reason[row]) = (Outcome::Dropped as i8, Reason::ForwardingDisabled as i8);
        }
        for row in set_bits(answers.local) {
            outcome[row] = Outcome::Local as i8;
        }
        let mut steps = answers.steps;
        for row in set_bits(answers.no_route) {
            (outcome[row], reason[row], steps[row]) = (Outcome::Delayed as i8, Reason::NoRoute as i8, 7);
        }
        Told { outcome, reason, steps }
    }
}
