//! A block of conversations, what the index answers, and the room in between.

use super::index::Quick;
use crate::ids::Guid;

/// Conversations in a block: as many as a word has bits.
pub const BLOCK: usize = 64;

/// No entry, or no pair.
pub(crate) const MISSING: u32 = u32::MAX;

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
    pub(crate) buckets: [(u32, u16); BLOCK],
    /// The names in the form of [`quarters`], where they are short enough.
    pub(crate) chunks: [[u128; 4]; BLOCK],
    /// One bit for each name that is.
    pub(crate) short: u64,
    pub(crate) entries: [u32; BLOCK],
    pub(crate) waiting: [Waiting; BLOCK],
    pub(crate) waiting_len: usize,
}

/// A conversation whose answer is in a pair: known, or to be looked up by broker id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(crate) hash: u64,
    pub(crate) pair: u32,
    pub(crate) entry: u32,
    pub(crate) row: u8,
    pub(crate) step: i8,
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
        let waiting = Waiting { hash: 0, pair: 0, entry: 0, row: 0, step: 0 };
        Self {
            buckets: [(0, 0); BLOCK],
            chunks: [[0; 4]; BLOCK],
            short: 0,
            entries: [MISSING; BLOCK],
            waiting: [waiting; BLOCK],
            waiting_len: 0,
        }
    }
}

impl Answers {
    #[inline]
    pub(crate) fn network(&mut self, row: usize, step: i8, quick: Quick, bound: Option<Guid>) {
        self.network |= 1 << row;
        self.write(row, step, quick, bound);
    }

    #[inline]
    pub(crate) fn write(&mut self, row: usize, step: i8, quick: Quick, bound: Option<Guid>) {
        self.steps[row] = step;
        self.route_ids[row] = quick.route_id;
        self.to[row] = quick.to as i32;
        if let Some(broker) = bound {
            self.bound |= 1 << row;
            self.brokers[row] = broker;
        }
    }
}

impl Stages {
    #[inline]
    pub(crate) fn wait(&mut self, waiting: Waiting) {
        self.waiting[self.waiting_len % BLOCK] = waiting;
        self.waiting_len += 1;
    }
}
