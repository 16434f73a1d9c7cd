//! How an index comes to be: routes in groups, groups to plans.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use super::buckets::fill;
use super::hosts::Hosts;
use super::index::{Entry, Group, Pair, Plan, Quick, RouteIndex, Table};
use super::pick::{Options, TieBreak, Turns};
use crate::catalog::{BROKER_CONFIGURATION, Catalog, LOCAL, NEVER, NONE, RouteRow, TRANSPORT};
use crate::hash::{NameHash, Seed, quarters};
use crate::ids::Guid;

const EMPTY: Group = Group { quick: Quick { route_id: 0, to: 0 }, expires: NEVER, plan: Plan::Empty };

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

    fn add_tables(&mut self) {
        let mut at = 0;
        for table in 0..self.catalog.databases.len() as u16 {
            let start = at;
            while at < self.order.len() && self.route(at).database == table {
                let end =
                    self.end_of_run(at, |one, other| one.database == other.database && one.service == other.service);
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
        let chunks = quarters(name);
        let name_len = if chunks.is_some() { name.len() as u16 } else { u16::MAX };
        let entry = Entry {
            broker,
            quick: [plain.quick, keyed.quick],
            expires: [plain.expires, keyed.expires],
            start: rows.start as u32,
            len: rows.len() as u32,
            name_len,
            table,
            plan: [plain.plan, keyed.plan],
            chunks: chunks.unwrap_or_default(),
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

    /// The plan of a group of routes, none of them expired before the first one expires.
    fn group(&mut self, rows: Range<usize>) -> Group {
        let mut spread = std::mem::take(&mut self.spread);
        let group = self.plan(self.order[rows].iter().copied(), &mut spread);
        self.spread = spread;
        group
    }

    /// The plan of some rows with one service name and broker id, by route id: an answer where every conversation gets the same, or
    /// one of several, which are appended to `spread`, by the pick alone.
    pub(crate) fn plan(&self, rows: impl Iterator<Item = u32> + Clone, spread: &mut Vec<Quick>) -> Group {
        let Some(expires) = rows.clone().map(|row| self.row(row).expires).min() else { return EMPTY };
        let general = Group { quick: Quick::default(), expires, plan: Plan::General };
        if rows.clone().any(|row| self.row(row).mirror != NONE) {
            return general;
        }
        if let Some(local) = rows.clone().find(|&row| self.row(row).endpoint == LOCAL) {
            return self.local_group(local, general);
        }
        let mut seen = HashSet::new();
        let first = spread.len();
        for route in rows.map(|row| self.row(row)) {
            if route.endpoint == TRANSPORT || !seen.insert(route.endpoint) {
                continue;
            }
            if self.catalog.is_own(route.endpoint) {
                spread.truncate(first);
                return general;
            }
            spread.push(Quick { route_id: route.route_id, to: route.endpoint });
        }
        match spread[first..] {
            [] => general,
            [quick] => {
                spread.truncate(first);
                Group { quick, plan: Plan::Network, ..general }
            }
            _ => {
                let quick = Quick { route_id: first as i32, to: (spread.len() - first) as u32 };
                Group { quick, plan: Plan::Spread, ..general }
            }
        }
    }

    /// A LOCAL route that names a broker id always leads to the database with that id (R31), if that one can take it.
    fn local_group(&self, local: u32, general: Group) -> Group {
        let route = self.row(local);
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
    let route = |row: u32| &catalog.routes[row as usize];
    // Whole keys side by side sort faster than rows that must be looked up; what they leave open is sorted in its place.
    let key = |row: u32| u64::from(route(row).database) << 32 | u64::from(route(row).service);
    let mut keys: Vec<(u64, u32)> = (0..catalog.routes.len() as u32).map(|row| (key(row), row)).collect();
    keys.sort_unstable();
    let mut order: Vec<u32> = keys.iter().map(|&(_, row)| row).collect();
    let mut start = 0;
    for same in keys.chunk_by(|one, other| one.0 == other.0) {
        let end = start + same.len();
        order[start..end].sort_unstable_by_key(|&row| (route(row).broker, route(row).route_id));
        start = end;
    }
    order
}
