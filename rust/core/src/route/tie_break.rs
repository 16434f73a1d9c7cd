//! Picking one of several equal candidates (R24, K19 to K21).

use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::guid::Guid;
use crate::hash::stable_hash;

/// How one of several equal candidates is picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TieBreak {
    /// The lowest route id.
    First,
    /// By a stable hash of the conversation id.
    Hash,
    /// In turn.
    RoundRobin,
}

/// What step 4 does while a request for the service is pending (R14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PendingRequest {
    /// The search goes on at step 5.
    Continue,
    /// The conversation stays DELAYED.
    Delay,
}

/// The options of a router.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How one of several equal candidates is picked.
    pub tie_break: TieBreak,
    /// What step 4 does while a request is pending.
    pub pending_request: PendingRequest,
}

/// What is picked; each has a hash of its own, so that the choices of one conversation are independent (K20).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    Broker = 0,
    Route = 1,
    Database = 2,
}

/// Where the turns of `round_robin` stand (K21).
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// One for each entry of the index.
    pub(crate) brokers: Vec<AtomicU32>,
    /// Four, one for each class, for each first route of a group.
    pub(crate) routes: Vec<AtomicU32>,
    /// One for each service name.
    pub(crate) databases: Vec<AtomicU32>,
}

/// Picks for one conversation in one pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Picker<'a> {
    pub(crate) tie_break: TieBreak,
    pub(crate) conversation: Option<Guid>,
    pub(crate) re_entered: bool,
    pub(crate) turns: &'a Turns,
    /// For an explanation, which must not take anybody's turn: those that its conversation would have taken so far.
    pub(crate) would_take: Option<&'a RefCell<Vec<(Choice, usize)>>>,
}

impl Picker<'_> {
    /// A number below `count`, which is not 0; `turn` is the place of this choice among the turns of its kind.
    #[inline]
    pub(crate) fn pick(&self, choice: Choice, turn: usize, count: usize) -> usize {
        match self.tie_break {
            TieBreak::First => 0,
            TieBreak::Hash => self.conversation.map_or(0, |id| pick_by_hash(id, choice, self.re_entered, count)),
            TieBreak::RoundRobin => {
                let turns = match choice {
                    Choice::Broker => &self.turns.brokers,
                    Choice::Route => &self.turns.routes,
                    Choice::Database => &self.turns.databases,
                };
                turns.get(turn).map_or(0, |at| self.number(at, (choice, turn)) as usize % count)
            }
        }
    }
}

impl Picker<'_> {
    /// Whose turn it is, which is taken unless it is only told of.
    #[inline]
    fn number(&self, at: &AtomicU32, turn: (Choice, usize)) -> u32 {
        let Some(would_take) = self.would_take else { return at.fetch_add(1, Ordering::Relaxed) };
        let mut taken = would_take.borrow_mut();
        let before = taken.iter().filter(|&&other| other == turn).count();
        taken.push(turn);
        at.load(Ordering::Relaxed).wrapping_add(before as u32)
    }
}

#[inline]
pub(crate) fn pick_by_hash(conversation: Guid, choice: Choice, re_entered: bool, count: usize) -> usize {
    if count == 1 {
        return 0;
    }
    let hash = stable_hash(conversation, choice as u64 + 3 * u64::from(re_entered));
    ((u128::from(hash) * count as u128) >> 64) as usize
}
