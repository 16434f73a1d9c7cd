//! Picks one of several equal candidates (R24).

use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::guid::Guid;
use crate::hash::stable_hash;

/// How to pick one of several equal candidates.
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
    /// Continue with step 5.
    Continue,
    /// Delay the conversation.
    Delay,
}

/// The options of a router.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How to pick one of several equal candidates.
    pub tie_break: TieBreak,
    /// What step 4 does while a request is pending.
    pub pending_request: PendingRequest,
}

/// What is picked. Each choice has its own hash, so that the choices of one conversation are independent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    Broker = 0,
    Route = 1,
    Database = 2,
}

/// The counters of `round_robin`.
#[derive(Debug, Default)]
pub(crate) struct RoundRobinCounters {
    /// One per entry of the index.
    pub(crate) brokers: Vec<AtomicU32>,
    /// Four per group of routes, one for each class, at the position of its first route.
    pub(crate) routes: Vec<AtomicU32>,
    /// One per service name.
    pub(crate) databases: Vec<AtomicU32>,
}

/// Picks for one conversation in one pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Picker<'a> {
    pub(crate) tie_break: TieBreak,
    pub(crate) conversation: Option<Guid>,
    pub(crate) re_entered: bool,
    pub(crate) round_robin: &'a RoundRobinCounters,
    /// For an explanation, which must not advance the counters: the picks that it would have counted so far.
    pub(crate) simulated: Option<&'a RefCell<Vec<(Choice, usize)>>>,
}

impl Picker<'_> {
    /// Returns a number below `count`, which is not 0; `turn` is the position of the counter.
    #[inline]
    pub(crate) fn pick(&self, choice: Choice, turn: usize, count: usize) -> usize {
        match self.tie_break {
            TieBreak::First => 0,
            TieBreak::Hash => self.conversation.map_or(0, |id| pick_by_hash(id, choice, self.re_entered, count)),
            TieBreak::RoundRobin => {
                let turns = match choice {
                    Choice::Broker => &self.round_robin.brokers,
                    Choice::Route => &self.round_robin.routes,
                    Choice::Database => &self.round_robin.databases,
                };
                turns.get(turn).map_or(0, |at| self.number(at, (choice, turn)) as usize % count)
            }
        }
    }
}

impl Picker<'_> {
    /// Returns the value of a counter and advances it, unless this is an explanation.
    #[inline]
    fn number(&self, at: &AtomicU32, turn: (Choice, usize)) -> u32 {
        let Some(simulated) = self.simulated else { return at.fetch_add(1, Ordering::Relaxed) };
        let mut taken = simulated.borrow_mut();
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
