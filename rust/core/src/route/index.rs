//! The immutable index over service name and broker id.
//!
//! A look-up reads two places: a bucket of eight fingerprints (one cache line) and the entry they lead to (two lines), which holds
//! the name, the broker id if there is one, and the answer where the routes leave nothing to decide ([`Plan`]). Services with several
//! broker ids have one more bucket and one [`Pair`] for each id. Everything else is in the routes themselves, in the order of `order`.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use super::pick::{Options, TieBreak, Turns};
use crate::catalog::{BROKER_CONFIGURATION, Catalog, NEVER, NONE, RouteRow, TRANSPORT, LOCAL};
use crate::hash::{NameHash, Seed, quarters};
use crate::ids::Guid;

const LANES: usize = 8;
/// Entries for each bucket: at four of eight, one bucket in fifty overflows into the next.
const LOAD: usize = 4;
const NAME_INLINE: usize = 64;

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

/// Eight fingerprints and the numbers they stand for.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Bucket {
    /// Four in a word; 0 is a free lane.
    fingerprints: [u64; LANES / 4],
    values: [u32; LANES],
    overflows: bool,
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

const EMPTY: Group = Group { quick: Quick { route_id: 0, to: 0 }, expires: NEVER, plan: Plan::Empty };

/// The routes of one table that name one service: 64 bytes of answers, then the start of the name.
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
    pub(crate) name_len: u16,
    pub(crate) table: u16,
    pub(crate) plan: [Plan; 2],
    name_start: [u8; NAME_INLINE],
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

/// For each service name, the databases that have it.
#[derive(Debug)]
pub(crate) struct Hosts {
    starts: Vec<u32>,
    databases: Vec<u16>,
}

impl Hosts {
    fn new(catalog: &Catalog) -> Self {
        let mut pairs: Vec<(u32, u16)> = catalog.services.iter().map(|&(database, name)| (name, database)).collect();
        pairs.retain(|&(_, database)| catalog.databases[usize::from(database)].enabled);
        let by_name = |&(name, database): &(u32, u16)| (name, &catalog.databases[usize::from(database)].name);
        pairs.sort_by(|one, other| by_name(one).cmp(&by_name(other)));
        pairs.dedup();
        let count = catalog.names.texts().len();
        let mut starts = vec![0u32; count + 1];
        for &(name, _) in &pairs {
            starts[name as usize + 1] += 1;
        }
        for place in 0..count {
            starts[place + 1] += starts[place];
        }
        Self { starts, databases: pairs.into_iter().map(|(_, database)| database).collect() }
    }

    /// Whether no service is hosted at all.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.databases.is_empty()
    }

    /// The enabled databases that have the service, by name.
    #[inline]
    pub(crate) fn of(&self, name: u32) -> &[u16] {
        let name = name as usize;
        &self.databases[self.starts[name] as usize..self.starts[name + 1] as usize]
    }
}

impl Bucket {
    const EMPTY: Self = Self { fingerprints: [0; LANES / 4], values: [0; LANES], overflows: false };

    /// The lanes with this fingerprint, one bit each. The lowest bit is right; one above it may be a lane too many.
    #[inline]
    pub(crate) fn lanes(&self, fingerprint: u16) -> u32 {
        const ONES: u64 = 0x0001_0001_0001_0001;
        // Brings the lowest bits of four lanes together at bit 48.
        const GATHER: u64 = 1 << 48 | 1 << 33 | 1 << 18 | 1 << 3;
        let zeros = |word: u64| {
            let difference = word ^ ONES.wrapping_mul(u64::from(fingerprint));
            let high = difference.wrapping_sub(ONES) & !difference & ONES << 15;
            (high >> 15).wrapping_mul(GATHER) >> 48 & 0xf
        };
        (zeros(self.fingerprints[0]) | zeros(self.fingerprints[1]) << 4) as u32
    }

    fn fingerprint(&self, lane: usize) -> u16 {
        (self.fingerprints[lane / 4] >> (16 * (lane % 4))) as u16
    }

    /// The value of the lowest of these lanes.
    #[inline]
    pub(crate) fn value(&self, lanes: u32) -> u32 {
        self.values[lanes.trailing_zeros() as usize % LANES]
    }

    #[inline]
    pub(crate) fn overflows(&self) -> bool {
        self.overflows
    }

}

/// The bucket and the fingerprint of a hash.
#[inline]
pub(crate) fn place(hash: u64, buckets: usize) -> (usize, u16) {
    let bucket = (u128::from(hash) * buckets as u128) >> 64;
    (bucket as usize, (hash as u16).max(1))
}

/// The first value under `hash` that `is_it` accepts.
pub(crate) fn look_up(buckets: &[Bucket], hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
    if buckets.is_empty() {
        return None;
    }
    let (mut at, fingerprint) = place(hash, buckets.len());
    loop {
        let bucket = &buckets[at];
        let mut lanes = bucket.lanes(fingerprint);
        while lanes != 0 {
            let value = bucket.value(lanes);
            if is_it(value) {
                return Some(value);
            }
            lanes &= lanes - 1;
        }
        if !bucket.overflows {
            return None;
        }
        at = (at + 1) % buckets.len();
    }
}

fn fill(hashes: impl ExactSizeIterator<Item = u64>) -> Vec<Bucket> {
    if hashes.len() == 0 {
        return Vec::new();
    }
    let mut buckets = vec![Bucket::EMPTY; hashes.len().div_ceil(LOAD)];
    for (value, hash) in hashes.enumerate() {
        let (mut at, fingerprint) = place(hash, buckets.len());
        loop {
            let bucket = &mut buckets[at];
            if let Some(lane) = (0..LANES).find(|&lane| bucket.fingerprint(lane) == 0) {
                bucket.fingerprints[lane / 4] |= u64::from(fingerprint) << (16 * (lane % 4));
                bucket.values[lane] = value as u32;
                break;
            }
            bucket.overflows = true;
            at = (at + 1) % buckets.len();
        }
    }
    buckets
}

impl Entry {
    /// Whether this is the entry of `name` in `table`.
    #[inline]
    pub(crate) fn is(&self, table: u16, name: &[u8], index: &RouteIndex) -> bool {
        if self.name_len != short_len(name) || self.table != table {
            return false;
        }
        match quarters(name) {
            Some(chunks) => {
                let own = quarters(&self.name_start[..name.len()]).unwrap_or(chunks);
                (0..4).fold(0, |difference, place| difference | (chunks[place] ^ own[place])) == 0
            }
            None => index.name_of(self) == name,
        }
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

/// The length, as far as it matters: longer names are told apart by their text.
#[inline]
fn short_len(name: &[u8]) -> u16 {
    name.len().min(usize::from(u16::MAX)) as u16
}

impl RouteIndex {
    /// Compiles a catalog. Whoever can choose names or ids must not know `seed`.
    #[must_use]
    pub fn new(catalog: Arc<Catalog>, options: Options, seed: Seed) -> Self {
        let order = sorted_rows(&catalog);
        let hosts = Hosts::new(&catalog);
        let mut index = Self {
            options,
            hash: NameHash::new(seed),
            buckets: Vec::new(),
            entries: Vec::new(),
            pair_buckets: Vec::new(),
            pairs: Vec::new(),
            spread: Vec::new(),
            tables: Vec::with_capacity(catalog.databases.len()),
            turns: Turns::default(),
            catalog,
            order,
            hosts,
        };
        index.add_tables();
        let hash = &index.hash;
        index.buckets = fill(index.entries.iter().map(|entry| hash.of(index.name_of(entry), u64::from(entry.table))));
        index.pair_buckets = fill(index.pairs.iter().map(|pair| hash.of_guid(pair.broker, pair.entry)));
        if options.tie_break == TieBreak::RoundRobin {
            let zeros = |count| std::iter::repeat_with(|| AtomicU32::new(0)).take(count).collect();
            index.turns = Turns {
                brokers: zeros(index.entries.len()),
                routes: zeros(index.order.len() * 4),
                databases: zeros(index.catalog.names.texts().len()),
            };
        }
        index
    }

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
            + size_of_val(&self.hosts.starts[..])
            + size_of_val(&self.hosts.databases[..])
            + turns * size_of::<AtomicU32>()
    }

    pub(crate) fn route(&self, place: usize) -> &RouteRow {
        &self.catalog.routes[self.order[place] as usize]
    }

    fn name_of(&self, entry: &Entry) -> &[u8] {
        self.catalog.name(self.route(entry.start as usize).service)
    }

    /// The entry of a service name in a table.
    pub(crate) fn entry(&self, table: u16, name: &[u8]) -> Option<u32> {
        let hash = self.hash.of(name, u64::from(table));
        look_up(&self.buckets, hash, |value| self.entries[value as usize].is(table, name, self))
    }

    fn add_tables(&mut self) {
        let mut at = 0;
        for table in 0..self.catalog.databases.len() as u16 {
            let start = at;
            while at < self.order.len() && self.route(at).database == table {
                let end = self.end_of_run(at, |one, other| one.database == other.database && one.service == other.service);
                if self.route(at).service == NONE {
                    break;
                }
                self.add_entry(table, at..end);
                at = end;
            }
            let nameless = at;
            while at < self.order.len() && self.route(at).database == table {
                at += 1;
            }
            // Among the routes without a service name, those without a broker id come first; the others can never match (R20).
            let wildcards = (nameless..at).take_while(|&place| self.route(place).broker.is_none()).count();
            let wildcards = nameless..nameless + wildcards;
            let wildcard = self.group(wildcards.clone());
            let dynamic_until = self.dynamic_until(start..nameless);
            self.tables.push(Table { wildcards, wildcard, dynamic_until });
        }
    }

    fn dynamic_until(&self, rows: Range<usize>) -> i64 {
        let Some(name) = self.catalog.find_name(BROKER_CONFIGURATION) else { return i64::MIN };
        let service = |place: &u32| self.catalog.routes[*place as usize].service;
        let rows = &self.order[rows];
        let start = rows.partition_point(|place| service(place) < name);
        let same = rows[start..].iter().take_while(|place| service(place) == name);
        same.map(|&place| self.catalog.routes[place as usize].expires).max().unwrap_or(i64::MIN)
    }

    fn end_of_run(&self, start: usize, same: impl Fn(&RouteRow, &RouteRow) -> bool) -> usize {
        let first = self.route(start);
        let mut end = start + 1;
        while end < self.order.len() && same(first, self.route(end)) {
            end += 1;
        }
        end
    }

    fn add_entry(&mut self, table: u16, rows: Range<usize>) {
        let number = self.entries.len() as u32;
        let service = self.route(rows.start).service;
        let plain_end = rows.start + rows.clone().take_while(|&place| self.route(place).broker.is_none()).count();
        let plain = self.group(rows.start..plain_end);
        let (broker, keyed) = self.keyed(number, plain_end..rows.end);
        let name = self.catalog.name(service);
        let mut name_start = [0; NAME_INLINE];
        let inline = name.len().min(NAME_INLINE);
        name_start[..inline].copy_from_slice(&name[..inline]);
        let entry = Entry {
            broker,
            quick: [plain.quick, keyed.quick],
            expires: [plain.expires, keyed.expires],
            start: rows.start as u32,
            len: rows.len() as u32,
            name_len: short_len(name),
            table,
            plan: [plain.plan, keyed.plan],
            name_start,
        };
        self.entries.push(entry);
    }

    /// The groups of an entry that name a broker id: itself where there is one, pairs where there are several.
    fn keyed(&mut self, entry: u32, rows: Range<usize>) -> (Guid, Group) {
        if rows.is_empty() {
            return (Guid::default(), EMPTY);
        }
        let mut groups = Vec::new();
        let mut at = rows.start;
        while at < rows.end {
            let end = self.end_of_run(at, |one, other| {
                (one.database, one.service, one.broker) == (other.database, other.service, other.broker)
            });
            groups.push(at..end);
            at = end;
        }
        let first = self.pairs.len() as u32;
        let expires = rows.clone().map(|place| self.route(place).expires).min().unwrap_or(NEVER);
        if let [one] = &groups[..] {
            return (self.route(one.start).broker.unwrap_or_default(), self.group(one.clone()));
        }
        groups.sort_by_key(|group| self.route(group.start).route_id);
        for group in &groups {
            let broker = self.route(group.start).broker.unwrap_or_default();
            let Group { quick, expires, plan } = self.group(group.clone());
            self.pairs.push(Pair { broker, quick, expires, entry, plan });
        }
        let quick = Quick { route_id: first as i32, to: groups.len() as u32 };
        (Guid::default(), Group { quick, expires, plan: Plan::Several })
    }

    /// The plan of a group: an answer where every live conversation gets the same, or one of several by the pick alone.
    fn group(&mut self, rows: Range<usize>) -> Group {
        if rows.is_empty() {
            return EMPTY;
        }
        let expires = rows.clone().map(|place| self.route(place).expires).min().unwrap_or(NEVER);
        let general = Group { quick: Quick::default(), expires, plan: Plan::General };
        if rows.clone().any(|place| self.route(place).mirror != NONE) {
            return general;
        }
        if let Some(local) = rows.clone().find(|&place| self.route(place).endpoint == LOCAL) {
            return self.local_group(local, general);
        }
        let mut seen = HashSet::new();
        let mut quicks = Vec::new();
        for place in rows {
            let route = *self.route(place);
            if route.endpoint == TRANSPORT || !seen.insert(route.endpoint) {
                continue;
            }
            if self.catalog.is_own(route.endpoint) {
                return general;
            }
            quicks.push(Quick { route_id: route.route_id, to: route.endpoint });
        }
        match quicks[..] {
            [] => general,
            [quick] => Group { quick, plan: Plan::Network, ..general },
            _ => {
                let quick = Quick { route_id: self.spread.len() as i32, to: quicks.len() as u32 };
                self.spread.extend(quicks);
                Group { quick, plan: Plan::Spread, ..general }
            }
        }
    }

    /// A LOCAL route that names a broker id always leads to the database with that id (R31), if that one can take it.
    fn local_group(&self, local: usize, general: Group) -> Group {
        let route = self.route(local);
        let broker = route.broker.filter(|_| route.service != NONE);
        let Some(database) = broker.and_then(|broker| self.host_with(broker, Some(route.service))) else {
            return general;
        };
        let quick = Quick { route_id: route.route_id, to: u32::from(database) };
        Group { quick, plan: Plan::Local, ..general }
    }
}

/// Rows by (database, service name, broker id, route id). Those without a service name come last, those without an id first.
fn sorted_rows(catalog: &Catalog) -> Vec<u32> {
    let mut order: Vec<u32> = (0..catalog.routes.len() as u32).collect();
    order.sort_unstable_by_key(|&row| {
        let route = &catalog.routes[row as usize];
        (route.database, route.service, route.broker, route.route_id)
    });
    order
}
