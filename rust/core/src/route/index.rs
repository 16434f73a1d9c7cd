//! The immutable index over service name and broker id.
//!
//! A perfect hash leads a name to its [`Entry`] (two cache lines), which holds the name, the first broker id, and for each kind of
//! conversation what is to be done ([`Act`]): as a rule, to give the answer that stands beside it. Services with several broker ids
//! have one [`Pair`] for each. Everything else is in the routes themselves, in the order of `order`.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use crate::catalog::{Catalog, LOCAL, NONE, RouteRow, TRANSPORT};
use crate::guid::Guid;
use crate::hash::NameHash;
use crate::route::hosts::Hosts;
use crate::route::perfect_hash::Perfect;
use crate::route::tie_break::{Options, Turns};

/// A routing table and its instance, compiled: built once, read by many threads.
#[derive(Debug)]
pub struct RouteIndex {
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) options: Options,
    pub(crate) hash: NameHash,
    /// Rows of the catalog by (database, service name, broker id, route id); those without a name or an id come last or first.
    pub(crate) order: Vec<u32>,
    /// Where in `entries` a name in a table stands.
    pub(crate) entry_places: Perfect,
    /// One for each place, `Entry::NONE` where there is none.
    pub(crate) entries: Vec<Entry>,
    /// Where in `pair_at` a broker id of an entry stands.
    pub(crate) pair_places: Perfect,
    pub(crate) pair_at: Vec<u32>,
    /// Those of an entry one after the other, by their lowest route id.
    pub(crate) pairs: Vec<Pair>,
    /// Single answers of the plans that spread over several routes.
    pub(crate) spread: Vec<Quick>,
    pub(crate) tables: Vec<Table>,
    /// For each service name, the enabled databases that have it, by name.
    pub(crate) hosts: Hosts,
    pub(crate) turns: Turns,
}

/// Where a group's only answer leads.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Quick {
    pub(crate) route_id: i32,
    /// An endpoint for `Network`, a database for `Local`.
    pub(crate) to: u32,
}

/// What is known beforehand of a group of routes, as long as none of them expires, or of what is to be looked at next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Plan {
    /// It depends on the conversation, or on which routes are still alive: `decide` must look.
    General,
    /// There are no such routes: steps 4 to 7 decide.
    Rest,
    /// One answer: this database of this instance.
    Local,
    /// Several addresses: `quick` is the place in `spread` and their count.
    Spread,
    /// The pair of the broker id that the conversation names, if there is one.
    Pair,
    /// One of the entry's pairs, by a pick (R13).
    Pick,
    /// The entry may be another one's, or routes of it are expired.
    Unsure,
    /// One answer: this address.
    Network,
}

/// A plan and the step that it is for, in a byte whose highest bits say what is asked for all conversations of a block at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Act(pub(crate) u8);

/// Routes with one service name and one broker id, or none, in one table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) quick: Quick,
    /// The first expiry among them.
    pub(crate) expires: i64,
    pub(crate) plan: Plan,
}

/// The routes of one table that name one service.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(128))]
pub(crate) struct Entry {
    /// The name, in the form of `quarters`; 0 if it has more than 64 bytes.
    pub(crate) chunks: [u128; 4],
    /// The only broker id, or the first one.
    pub(crate) broker: Guid,
    /// The answers of the routes without a broker id, and of those with `broker`.
    pub(crate) quick: [Quick; 2],
    /// The first expiry among all of them.
    pub(crate) expires: i64,
    pub(crate) start: u32,
    pub(crate) len: u32,
    /// The pairs, where there are several broker ids.
    pub(crate) first_pair: u32,
    pub(crate) pair_count: u32,
    /// The `short_key` of the table and the name. Of a name of more than 64 bytes, which is looked at again, the length does not matter.
    pub(crate) key: u32,
    /// What is to be done for a conversation without broker id, with one that is not `broker`, with `broker`, and with one that is in
    /// no pair.
    pub(crate) acts: [Act; 4],
}

/// What is known of routes that name one service, as long as none of them expires: the part of an entry that time changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Summary {
    pub(crate) broker: Guid,
    pub(crate) quick: [Quick; 2],
    pub(crate) expires: i64,
    pub(crate) acts: [Act; 4],
}

/// The routes of one entry that name one broker id, where the entry has several.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(32))]
pub(crate) struct Pair {
    pub(crate) broker: Guid,
    pub(crate) quick: Quick,
    pub(crate) entry: u32,
    pub(crate) plan: Plan,
}

/// What a table has beside its entries.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    /// The routes without service name and broker id, in `order`.
    pub(crate) wildcards: Range<usize>,
    pub(crate) wildcard: Group,
    /// The last expiry among the routes to the dynamic routing service; `i64::MIN` if there is none.
    pub(crate) dynamic_until: i64,
}

/// The classes of R22, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Mirror = 0,
    Local = 1,
    Network = 2,
    Transport = 3,
}

pub(crate) const CLASSES: [Class; 4] = [Class::Mirror, Class::Local, Class::Network, Class::Transport];

impl Act {
    const STEP: u8 = 3;
    const PLAN: u32 = 2;
    const BINDS: u32 = 6;
    const NETWORK: u32 = 7;

    /// The route's broker id binds the conversation if it is step 3 that matches (K18).
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
        use Plan::{General, Local, Network, Pair, Pick, Rest, Spread, Unsure};
        [General, Rest, Local, Spread, Pair, Pick, Unsure, Network][usize::from(self.0 >> Self::PLAN & 7)]
    }

    #[inline]
    pub(crate) fn binds(self) -> bool {
        self.0 >> Self::BINDS & 1 == 1
    }

    /// The answer in an entry that it is about: step 2 is for the routes without a broker id.
    #[inline]
    pub(crate) fn group(self) -> usize {
        usize::from(self.0 & 1)
    }

    /// One bit for each that answers with an address.
    #[inline]
    pub(crate) fn networks(acts: &[Self; 64]) -> u64 {
        gather(acts, Self::NETWORK)
    }

    /// One bit for each that binds.
    #[inline]
    pub(crate) fn bindings(acts: &[Self; 64]) -> u64 {
        gather(acts, Self::BINDS)
    }
}

/// One bit of each byte, eight bytes at a time.
#[inline]
fn gather(acts: &[Act; 64], bit: u32) -> u64 {
    // Brings the lowest bits of eight bytes together in the highest one.
    const GATHER: u64 = 0x0102_0408_1020_4080;
    let bytes = acts.map(|act| act.0);
    bytes.as_chunks::<8>().0.iter().rev().fold(0, |bits, bytes| {
        let lowest = u64::from_le_bytes(*bytes) >> bit & 0x0101_0101_0101_0101;
        bits << 8 | lowest.wrapping_mul(GATHER) >> 56
    })
}

impl Entry {
    /// What stands where no entry is; it is that of no name.
    pub(crate) const NONE: Self = Self {
        chunks: [0; 4],
        broker: Guid([0; 16]),
        quick: [Quick { route_id: 0, to: 0 }; 2],
        expires: i64::MIN,
        start: 0,
        len: 0,
        first_pair: 0,
        pair_count: 0,
        key: u32::MAX,
        acts: [Act::new(Plan::Rest, 0); 4],
    };

    /// Whether this is the entry of `name` in `table`.
    pub(crate) fn is(&self, table: u16, name: &[u8], index: &RouteIndex) -> bool {
        self.len > 0 && self.table() == table && index.name_of(self) == name
    }

    /// Whether the name has these chunks. Written out, so that it is no call.
    #[inline]
    pub(crate) fn has_chunks(&self, chunks: &[u128; 4]) -> bool {
        (0..4).fold(0, |difference, place| difference | (self.chunks[place] ^ chunks[place])) == 0
    }

    pub(crate) fn table(&self) -> u16 {
        (self.key >> 16) as u16
    }

    pub(crate) fn rows(&self) -> Range<usize> {
        self.start as usize..(self.start + self.len) as usize
    }

    /// The place of the act for a conversation.
    #[inline]
    pub(crate) fn case(&self, has_broker: bool, broker: Guid) -> usize {
        case(self.broker, has_broker, broker)
    }
}

impl Summary {
    /// What is done for a conversation.
    pub(crate) fn act(&self, has_broker: bool, broker: Guid) -> Act {
        self.acts[case(self.broker, has_broker, broker)]
    }
}

#[inline]
#[allow(clippy::needless_bitwise_bool)]
fn case(first: Guid, has_broker: bool, broker: Guid) -> usize {
    usize::from(has_broker) + usize::from(has_broker & (first == broker))
}

impl Pair {
    /// Whether it belongs to this entry and names this broker id.
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
    /// The catalog that was compiled.
    #[must_use]
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// The options.
    #[must_use]
    pub fn options(&self) -> Options {
        self.options
    }

    /// The bytes that the index holds beside the catalog.
    #[must_use]
    pub fn nbytes(&self) -> usize {
        let turns = self.turns.brokers.len() + self.turns.routes.len() + self.turns.databases.len();
        size_of_val(&self.order[..])
            + self.entry_places.nbytes()
            + size_of_val(&self.entries[..])
            + self.pair_places.nbytes()
            + size_of_val(&self.pair_at[..])
            + size_of_val(&self.pairs[..])
            + size_of_val(&self.spread[..])
            + size_of_val(&self.tables[..])
            + self.hosts.nbytes()
            + turns * size_of::<AtomicU32>()
    }

    pub(crate) fn route(&self, place: usize) -> &RouteRow {
        &self.catalog.routes[self.order[place] as usize]
    }

    pub(crate) fn name_of(&self, entry: &Entry) -> &[u8] {
        self.catalog.name(self.route(entry.start as usize).service)
    }

    /// The number of the pair of a broker id, which may be that of another id or entry. There must be pairs.
    #[inline]
    pub(crate) fn pair_number(&self, entry: u32, broker: Guid) -> u32 {
        self.pair_at[self.pair_places.place(self.hash.of_guid(broker, entry))]
    }

    /// The place of a service name's entry in a table.
    pub(crate) fn entry(&self, table: u16, name: &[u8]) -> Option<u32> {
        let place = self.entry_places.place(self.hash.of(name, table));
        self.entries[place].is(table, name, self).then_some(place as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_act_is_its_plan_and_its_step() {
        use Plan::{General, Local, Network, Pair, Pick, Rest, Spread, Unsure};
        for plan in [General, Rest, Local, Spread, Pair, Pick, Unsure, Network] {
            for step in 0..=3 {
                let act = Act::new(plan, step);
                assert_eq!((act.plan(), act.step(), act.binds()), (plan, step as i8, step == 3));
                let mut acts = [Act::new(General, 0); 64];
                acts[37] = act;
                assert_eq!(Act::networks(&acts), u64::from(plan == Network) << 37);
                assert_eq!(Act::bindings(&acts), u64::from(step == 3) << 37);
            }
        }
    }

    #[test]
    fn an_entry_is_two_cache_lines() {
        assert_eq!((size_of::<Entry>(), size_of::<Pair>()), (128, 32));
    }
}
