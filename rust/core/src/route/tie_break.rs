//! Picks one of several equal candidates (R24).

use std::cell::{Cell, RefCell};
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
    /// Each candidate in turn.
    RoundRobin,
}

/// The kind of a pick; `round_robin` counts the turns of each kind separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    Broker,
    Route,
    Database,
}

/// The number by which `hash` picks for a conversation. It is uniform, and what remains of it after each pick is
/// uniform too: the picks of one conversation are independent, although they use one hash.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TieNumber(u64);

impl TieNumber {
    /// The hash as a signed number, counted from the lowest one, so that engines without unsigned numbers can compare
    /// it.
    #[inline]
    pub(crate) fn new(conversation: Guid) -> Self {
        Self(stable_hash(conversation) ^ 1 << 63)
    }

    /// Returns a number below `count`, which is not 0.
    #[inline]
    pub(crate) fn pick(&mut self, count: usize) -> usize {
        let product = u128::from(self.0) * count as u128;
        self.0 = product as u64;
        (product >> 64) as usize
    }
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

/// What breaks the ties of one conversation, and whether there was any.
#[derive(Debug, Default)]
pub(crate) struct Ties {
    number: Cell<TieNumber>,
    /// Whether a candidate was picked from several.
    pub(crate) has_tie: Cell<bool>,
}

impl Ties {
    pub(crate) fn of(conversation: Option<Guid>) -> Self {
        Self { number: Cell::new(conversation.map(TieNumber::new).unwrap_or_default()), ..Self::default() }
    }
}

/// Picks for one conversation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Picker<'a> {
    pub(crate) tie_break: TieBreak,
    pub(crate) ties: &'a Ties,
    pub(crate) round_robin: &'a RoundRobinCounters,
    /// For an explanation, which must not advance the counters: the picks that it would have counted so far.
    pub(crate) simulated: Option<&'a RefCell<Vec<(Choice, usize)>>>,
}

impl Picker<'_> {
    /// Returns a number below `count`, which is not 0; `turn` is the position of the counter.
    pub(crate) fn pick(&self, choice: Choice, turn: usize, count: usize) -> usize {
        if count > 1 {
            self.ties.has_tie.set(true);
        }
        match self.tie_break {
            TieBreak::First => 0,
            TieBreak::Hash => {
                let mut number = self.ties.number.get();
                let pick = number.pick(count);
                self.ties.number.set(number);
                pick
            }
            TieBreak::RoundRobin => {
                let turns = match choice {
                    Choice::Broker => &self.round_robin.brokers,
                    Choice::Route => &self.round_robin.routes,
                    Choice::Database => &self.round_robin.databases,
                };
                turns.get(turn).map_or(0, |at| self.turn(at, (choice, turn)) as usize % count)
            }
        }
    }

    /// Returns the value of a counter and advances it, unless this is an explanation.
    fn turn(&self, at: &AtomicU32, turn: (Choice, usize)) -> u32 {
        let Some(simulated) = self.simulated else { return at.fetch_add(1, Ordering::Relaxed) };
        let mut taken = simulated.borrow_mut();
        let before = taken.iter().filter(|&&other| other == turn).count();
        taken.push(turn);
        at.load(Ordering::Relaxed).wrapping_add(before as u32)
    }
}
