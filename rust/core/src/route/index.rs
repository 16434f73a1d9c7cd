//! The immutable index over service name and broker id.
//!
//! A look-up reads two places: a bucket of eight fingerprints (one cache line) and the entry they lead to (two lines), which holds
//! the name, the broker id if there is one, and the answer where the routes leave nothing to decide ([`Plan`]). Services with several
//! broker ids have one more bucket and one [`Pair`] for each id. Everything else is in the routes themselves, in the order of `order`.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use super::buckets::{Bucket, look_up};
use super::hosts::Hosts;
use super::pick::{Options, Turns};
use crate::catalog::{Catalog, RouteRow};
use crate::hash::{NameHash, quarters};
use crate::ids::Guid;

/// A routing table and its instance, compiled: built once, read by many threads.
#[derive(Debug)]
pub struct RouteIndex {
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) options: Options,
    pub(crate) hash: NameHash,
    /// Rows of the catalog by (database, service name, broker id, route id); those without a name or an id come last or first.
    pub(crate) order: Vec<u32>,
    pub(crate) buckets: Vec<Bucket>,
    pub(crate) entries: Vec<Entry>,
    pub(crate) pair_buckets: Vec<Bucket>,
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

/// What is known beforehand of a group of routes, as long as none of them expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Plan {
    /// There are no such routes.
    Empty,
    /// It depends on the conversation, or on which routes are still alive: `decide` must look.
    General,
    /// One answer: this database of this instance.
    Local,
    /// One answer: this address.
    Network,
    /// Several broker ids: `quick` is the first pair and their count.
    Several,
    /// Several addresses: `quick` is the place in `spread` and their count.
    Spread,
}

/// Routes with one service name and one broker id, or none, in one table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) quick: Quick,
    /// The first expiry among them.
    pub(crate) expires: i64,
    pub(crate) plan: Plan,
}

/// The routes of one table that name one service: 64 bytes of answers, then the name in the form of [`quarters`].
///
/// In the pairs of fields, `PLAIN` is the routes that name no broker id, `KEYED` those that name `broker`.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(128))]
pub(crate) struct Entry {
    pub(crate) broker: Guid,
    pub(crate) quick: [Quick; 2],
    pub(crate) expires: [i64; 2],
    pub(crate) start: u32,
    pub(crate) len: u32,
    /// The length of the name; a number that no short name has for those of more than 64 bytes.
    pub(crate) name_len: u16,
    pub(crate) table: u16,
    pub(crate) plan: [Plan; 2],
    pub(crate) chunks: [u128; 4],
}

/// The place of the routes without a broker id in an entry.
pub(crate) const PLAIN: usize = 0;
/// The place of the routes with a broker id in an entry.
pub(crate) const KEYED: usize = 1;

/// The routes of one entry that name one broker id, where the entry has several.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Pair {
    pub(crate) broker: Guid,
    pub(crate) quick: Quick,
    pub(crate) expires: i64,
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

impl Entry {
    /// Whether this is the entry of `name` in `table`.
    pub(crate) fn is(&self, table: u16, name: &[u8], index: &RouteIndex) -> bool {
        match quarters(name) {
            Some(chunks) => self.is_short(table, name, &chunks),
            None => self.table == table && index.name_of(self) == name,
        }
    }

    /// The same for a name of up to 64 bytes, whose `quarters` are known.
    #[inline]
    pub(crate) fn is_short(&self, table: u16, name: &[u8], chunks: &[u128; 4]) -> bool {
        let difference = (0..4).fold(0, |difference, place| difference | (chunks[place] ^ self.chunks[place]));
        difference == 0 && usize::from(self.name_len) == name.len() && self.table == table
    }

    pub(crate) fn rows(&self) -> Range<usize> {
        self.start as usize..(self.start + self.len) as usize
    }

    /// The routes without a broker id, or those with one.
    #[inline]
    pub(crate) fn group(&self, place: usize) -> Group {
        Group { quick: self.quick[place], expires: self.expires[place], plan: self.plan[place] }
    }
}

impl Pair {
    /// Whether it belongs to this entry and names this broker id.
    #[inline]
    pub(crate) fn is(&self, entry: u32, broker: Guid) -> bool {
        self.entry == entry && self.broker == broker
    }

    #[inline]
    pub(crate) fn group(&self) -> Group {
        Group { quick: self.quick, expires: self.expires, plan: self.plan }
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
            + size_of_val(&self.buckets[..])
            + size_of_val(&self.entries[..])
            + size_of_val(&self.pair_buckets[..])
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

    /// The entry of a service name in a table.
    pub(crate) fn entry(&self, table: u16, name: &[u8]) -> Option<u32> {
        let hash = self.hash.of(name, u64::from(table));
        look_up(&self.buckets, hash, |value| self.entries[value as usize].is(table, name, self))
    }
}
