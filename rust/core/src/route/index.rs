//! The immutable index over service names and broker ids.
//!
//! A perfect hash maps a name to its [`Entry`] (two cache lines), which holds the name, the first broker id, and
//! for each case what to do ([`Action`]); usually this is to return the target stored beside it. Services with
//! several broker ids have one [`Pair`] for each. Everything else is looked up in the routes, sorted by `order`.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use crate::catalog::{Catalog, LOCAL, NONE, RouteRow, TRANSPORT};
use crate::guid::Guid;
use crate::hash::NameHash;
use crate::route::hosts::Hosts;
use crate::route::perfect_hash::PerfectHash;
use crate::route::tie_break::{Options, RoundRobinCounters};

/// A compiled catalog: built once, shared by many threads.
#[derive(Debug)]
pub struct RouteIndex {
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) options: Options,
    pub(crate) hash: NameHash,
    /// Rows of the catalog sorted by (database, service name, broker id, route id); those without a name come last,
    /// those without an id first.
    pub(crate) order: Vec<u32>,
    /// Maps a name in a table to its slot in `entries`.
    pub(crate) entry_slots: PerfectHash,
    /// One per slot; `Entry::NONE` in a free one.
    pub(crate) entries: Vec<Entry>,
    /// Maps a broker id of an entry to its slot in `pair_at`.
    pub(crate) pair_slots: PerfectHash,
    pub(crate) pair_at: Vec<u32>,
    /// Grouped by entry, sorted by lowest route id.
    pub(crate) pairs: Vec<Pair>,
    /// The targets of plans that spread over several routes.
    pub(crate) spread: Vec<Target>,
    pub(crate) tables: Vec<Table>,
    pub(crate) hosts: Hosts,
    pub(crate) round_robin: RoundRobinCounters,
}

/// The target of a group of routes that has only one.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Target {
    pub(crate) route_id: i32,
    /// An endpoint for `Network`, a database for `Local`.
    pub(crate) to: u32,
}

/// What is known of a group of routes until one of them expires, or what to look at next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Plan {
    /// It depends on the conversation or on which routes are live: `decide` must handle it.
    Decide,
    /// There are no such routes: steps 4 to 7 decide.
    LaterSteps,
    /// One target: a database of this instance.
    Local,
    /// Several addresses: `target` is the first position in `spread` and the count.
    Spread,
    /// The pair of the broker id that the conversation names, if there is one.
    Pair,
    /// One of the entry's pairs, by a pick (R13).
    Pick,
    /// The slot may hold another entry, or some routes have expired.
    Recheck,
    /// One target: an address.
    Network,
}

/// A plan and its step in one byte. The highest bits answer what is asked for all conversations of a block at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Action(pub(crate) u8);

/// The routes of a table with one service name and one broker id, or none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) target: Target,
    /// The first expiry.
    pub(crate) expires: i64,
    pub(crate) plan: Plan,
}

/// The routes of a table with one service name.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(128))]
pub(crate) struct Entry {
    /// The `quarters` of the name; 0 if it has more than 64 bytes.
    pub(crate) chunks: [u128; 4],
    /// The only broker id, or the first one.
    pub(crate) broker: Guid,
    /// The targets of the routes without a broker id, and of those with `broker`.
    pub(crate) target: [Target; 2],
    /// The first expiry of all routes.
    pub(crate) expires: i64,
    pub(crate) start: u32,
    pub(crate) len: u32,
    /// The pairs, if there are several broker ids.
    pub(crate) first_pair: u32,
    pub(crate) pair_count: u32,
    /// The `short_key` of table and name. For a name of more than 64 bytes, which is compared again, the length
    /// does not matter.
    pub(crate) key: u32,
    /// What to do for a conversation without a broker id, with one other than `broker`, with `broker`, and with one
    /// that has no pair.
    pub(crate) actions: [Action; 4],
}

/// The part of an entry that changes when routes expire.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Summary {
    pub(crate) broker: Guid,
    pub(crate) target: [Target; 2],
    pub(crate) expires: i64,
    pub(crate) actions: [Action; 4],
}

/// The routes of an entry with one broker id, if the entry has several.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub(crate) struct Pair {
    pub(crate) broker: Guid,
    pub(crate) target: Target,
    pub(crate) entry: u32,
    pub(crate) plan: Plan,
}

/// The part of a table that is not in its entries.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    /// The routes without service name and broker id, as positions in `order`.
    pub(crate) wildcards: Range<usize>,
    pub(crate) wildcard: Group,
    /// The last expiry of the routes to the dynamic routing service; `i64::MIN` if there are none.
    pub(crate) dynamic_until: i64,
}

/// The classes of R22, in order of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Mirror = 0,
    Local = 1,
    Network = 2,
    Transport = 3,
}

pub(crate) const CLASSES: [Class; 4] = [Class::Mirror, Class::Local, Class::Network, Class::Transport];

impl Action {
    const STEP: u8 = 3;
    const PLAN: u32 = 2;
    const BINDS: u32 = 6;
    const NETWORK: u32 = 7;

    /// Step 3 binds the conversation to the route's broker id.
    pub(crate) const fn new(plan: Plan, step: u8) -> Self {
        let is_network = matches!(plan, Plan::Network) as u8;
        let binds = (step == 3) as u8;
        Self(step & Self::STEP | (plan as u8) << Self::PLAN | binds << Self::BINDS | is_network << Self::NETWORK)
    }

    #[inline]
    pub(crate) fn step(self) -> i8 {
        (self.0 & Self::STEP) as i8
    }

    #[inline]
    pub(crate) fn plan(self) -> Plan {
        use Plan::{Decide, LaterSteps, Local, Network, Pair, Pick, Recheck, Spread};
        [Decide, LaterSteps, Local, Spread, Pair, Pick, Recheck, Network][usize::from(self.0 >> Self::PLAN & 7)]
    }

    #[inline]
    pub(crate) fn binds(self) -> bool {
        self.0 >> Self::BINDS & 1 == 1
    }

    /// The target of the entry that the action uses: step 2 is for routes without a broker id.
    #[inline]
    pub(crate) fn group(self) -> usize {
        usize::from(self.0 & 1)
    }

    /// Returns a mask of the actions whose target is an address.
    #[inline]
    pub(crate) fn network_mask(actions: &[Self; 64]) -> u64 {
        gather(actions, Self::NETWORK)
    }

    /// Returns a mask of the actions that bind.
    #[inline]
    pub(crate) fn binding_mask(actions: &[Self; 64]) -> u64 {
        gather(actions, Self::BINDS)
    }
}

/// Gathers one bit of each byte, eight bytes at a time.
#[inline]
fn gather(actions: &[Action; 64], bit: u32) -> u64 {
    // Gathers the lowest bits of eight bytes in the highest byte.
    const GATHER: u64 = 0x0102_0408_1020_4080;
    let bytes = actions.map(|action| action.0);
    bytes.as_chunks::<8>().0.iter().rev().fold(0, |bits, bytes| {
        let lowest = u64::from_le_bytes(*bytes) >> bit & 0x0101_0101_0101_0101;
        bits << 8 | lowest.wrapping_mul(GATHER) >> 56
    })
}

impl Entry {
    /// The content of a free slot; it matches no name.
    pub(crate) const NONE: Self = Self {
        chunks: [0; 4],
        broker: Guid([0; 16]),
        target: [Target { route_id: 0, to: 0 }; 2],
        expires: i64::MIN,
        start: 0,
        len: 0,
        first_pair: 0,
        pair_count: 0,
        key: u32::MAX,
        actions: [Action::new(Plan::LaterSteps, 0); 4],
    };

    /// Whether this is the entry of `name` in `table`.
    pub(crate) fn is(&self, table: u16, name: &[u8], index: &RouteIndex) -> bool {
        self.len > 0 && self.table() == table && index.name_of(self) == name
    }

    /// Whether the name has these chunks. Written out so that it is inlined.
    #[inline]
    pub(crate) fn has_chunks(&self, chunks: &[u128; 4]) -> bool {
        (0..4).fold(0, |difference, position| difference | (self.chunks[position] ^ chunks[position])) == 0
    }

    pub(crate) fn table(&self) -> u16 {
        (self.key >> 16) as u16
    }

    pub(crate) fn rows(&self) -> Range<usize> {
        self.start as usize..(self.start + self.len) as usize
    }

    /// Returns the index of the action for a conversation.
    #[inline]
    pub(crate) fn case(&self, has_broker: bool, broker: Guid) -> usize {
        case(self.broker, has_broker, broker)
    }
}

impl Summary {
    /// Returns the action for a conversation.
    pub(crate) fn action(&self, has_broker: bool, broker: Guid) -> Action {
        self.actions[case(self.broker, has_broker, broker)]
    }
}

#[inline]
#[allow(clippy::needless_bitwise_bool)]
fn case(first: Guid, has_broker: bool, broker: Guid) -> usize {
    usize::from(has_broker) + usize::from(has_broker & (first == broker))
}

impl Pair {
    /// Whether the pair belongs to this entry and broker id.
    #[inline]
    pub(crate) fn is(&self, entry: u32, broker: Guid) -> bool {
        self.entry == entry && self.broker == broker
    }
}

impl Class {
    pub(crate) fn of(route: &RouteRow) -> Self {
        match route.endpoint {
            _ if route.mirror != NONE => Self::Mirror,
            LOCAL => Self::Local,
            TRANSPORT => Self::Transport,
            _ => Self::Network,
        }
    }
}

impl RouteIndex {
    /// Returns the catalog.
    #[must_use]
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// Returns the options.
    #[must_use]
    pub fn options(&self) -> Options {
        self.options
    }

    /// Returns the size of the index in bytes, without the catalog.
    #[must_use]
    pub fn nbytes(&self) -> usize {
        let turns = self.round_robin.brokers.len() + self.round_robin.routes.len() + self.round_robin.databases.len();
        size_of_val(&self.order[..])
            + self.entry_slots.nbytes()
            + size_of_val(&self.entries[..])
            + self.pair_slots.nbytes()
            + size_of_val(&self.pair_at[..])
            + size_of_val(&self.pairs[..])
            + size_of_val(&self.spread[..])
            + size_of_val(&self.tables[..])
            + self.hosts.nbytes()
            + turns * size_of::<AtomicU32>()
    }

    pub(crate) fn route(&self, position: usize) -> &RouteRow {
        &self.catalog.routes[self.order[position] as usize]
    }

    pub(crate) fn name_of(&self, entry: &Entry) -> &[u8] {
        self.catalog.name(self.route(entry.start as usize).service)
    }

    /// Returns the number of the pair that a broker id hashes to, which may belong to another id or entry. There
    /// must be pairs.
    #[inline]
    pub(crate) fn pair_number(&self, entry: u32, broker: Guid) -> u32 {
        self.pair_at[self.pair_slots.slot(self.hash.of_guid(broker, entry))]
    }

    /// Returns the slot of a service name's entry in a table.
    pub(crate) fn entry(&self, table: u16, name: &[u8]) -> Option<u32> {
        let slot = self.entry_slots.slot(self.hash.of(name, table));
        self.entries[slot].is(table, name, self).then_some(slot as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_action_packs_plan_and_step() {
        use Plan::{Decide, LaterSteps, Local, Network, Pair, Pick, Recheck, Spread};
        for plan in [Decide, LaterSteps, Local, Spread, Pair, Pick, Recheck, Network] {
            for step in 0..=3 {
                let action = Action::new(plan, step);
                assert_eq!((action.plan(), action.step(), action.binds()), (plan, step as i8, step == 3));
                let mut actions = [Action::new(Decide, 0); 64];
                actions[37] = action;
                assert_eq!(Action::network_mask(&actions), u64::from(plan == Network) << 37);
                assert_eq!(Action::binding_mask(&actions), u64::from(step == 3) << 37);
            }
        }
    }

    #[test]
    fn an_entry_is_two_cache_lines() {
        assert_eq!((size_of::<Entry>(), size_of::<Pair>()), (128, 32));
    }
}
