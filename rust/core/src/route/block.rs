//! A block of conversations, what the index answers, and the room in between.

use super::index::{Act, Plan, Quick};
use crate::ids::Guid;

/// Conversations in a block: as many as a word has bits.
pub const BLOCK: usize = 64;

/// Up to 64 conversations that are to be routed.
#[derive(Debug)]
pub struct Block<'a> {
    /// How many there are.
    pub len: usize,
    /// The service names.
    pub names: [&'a [u8]; BLOCK],
    /// The tables to be read.
    pub tables: [u16; BLOCK],
    /// One bit for each conversation that names a broker id; the ids stand in the answers.
    pub has_broker: u64,
    /// One bit for each conversation that is for `decide` whatever the index says.
    pub general: u64,
}

/// What the index alone can say of a block, as columns; a mask has one bit for each conversation.
#[derive(Debug)]
pub struct Answers {
    /// The broker ids: on the way in those of the conversations, on the way out those that bind them (K18).
    pub brokers: [Guid; BLOCK],
    /// The steps that matched.
    pub steps: [i8; BLOCK],
    /// The chosen routes.
    pub route_ids: [i32; BLOCK],
    /// Where to: an endpoint for `network`, a database for `local`.
    pub to: [i32; BLOCK],
    /// Send to an address, which is not this instance's.
    pub network: u64,
    /// Deliver to a database of this instance.
    pub local: u64,
    /// No step yields a route (R17).
    pub no_route: u64,
    /// The route's broker id binds the conversation, which names none.
    pub bound: u64,
    /// It takes [`RouteIndex::decide`].
    pub general: u64,
}

/// Room for the stages of a block.
#[derive(Debug)]
pub struct Stages {
    /// Where the entries are, if there are such entries.
    pub(crate) places: [u32; BLOCK],
    /// The names in the form of `quarters`, or something that no entry has.
    pub(crate) chunks: [[u128; 4]; BLOCK],
    /// The lengths of the names and the tables, as entries have them.
    pub(crate) keys: [u32; BLOCK],
    pub(crate) acts: [Act; BLOCK],
    /// The conversations that have no answer yet, by plan.
    pub(crate) open: [Rows; 8],
    /// For those that look for a pair, the place where it is found.
    pub(crate) pairs: [u32; BLOCK],
}

/// Some conversations of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    rows: [u8; BLOCK],
    len: usize,
}

impl Default for Answers {
    fn default() -> Self {
        Self {
            brokers: [Guid::default(); BLOCK],
            steps: [0; BLOCK],
            route_ids: [0; BLOCK],
            to: [0; BLOCK],
            network: 0,
            local: 0,
            no_route: 0,
            bound: 0,
            general: 0,
        }
    }
}

impl Default for Stages {
    fn default() -> Self {
        Self {
            places: [0; BLOCK],
            chunks: [[0; 4]; BLOCK],
            keys: [0; BLOCK],
            acts: [Act::new(Plan::General, 0); BLOCK],
            open: [Rows { rows: [0; BLOCK], len: 0 }; 8],
            pairs: [0; BLOCK],
        }
    }
}

impl Rows {
    #[inline]
    pub(crate) fn push(&mut self, row: usize) {
        self.rows[self.len % BLOCK] = row as u8;
        self.len += 1;
    }

    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.rows[..self.len.min(BLOCK)].iter().map(|&row| usize::from(row) % BLOCK)
    }
}

impl Answers {
    #[inline]
    pub(crate) fn write(&mut self, row: usize, step: i8, quick: Quick) {
        self.steps[row] = step;
        self.route_ids[row] = quick.route_id;
        self.to[row] = quick.to as i32;
    }

    /// The route's broker id binds the conversation.
    #[inline]
    pub(crate) fn bind(&mut self, row: usize, broker: Guid) {
        self.bound |= 1 << row;
        self.brokers[row] = broker;
    }
}

impl Stages {
    /// Gathers these conversations by plan.
    #[inline]
    pub(crate) fn sort(&mut self, mut rows: u64) {
        for plan in &mut self.open {
            plan.len = 0;
        }
        while rows != 0 {
            let row = rows.trailing_zeros() as usize;
            rows &= rows - 1;
            self.open[self.acts[row].plan() as usize].push(row);
        }
    }

    /// The conversations of a plan, as they are now.
    #[inline]
    pub(crate) fn with(&self, plan: Plan) -> Rows {
        self.open[plan as usize]
    }
}
