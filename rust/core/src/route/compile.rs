//! How an index comes to be: routes in groups, groups to plans.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use crate::catalog::{BROKER_CONFIGURATION, Catalog, LOCAL, NEVER, NONE, RouteRow, TRANSPORT};
use crate::guid::Guid;
use crate::hash::{NameHash, Seed, quarters, short_key};
use crate::route::hosts::Hosts;
use crate::route::index::{Act, Entry, Group, Pair, Plan, Quick, RouteIndex, Summary, Table};
use crate::route::perfect_hash::Perfect;
use crate::route::tie_break::{Options, TieBreak, Turns};

const EMPTY: Group = Group { quick: Quick { route_id: 0, to: 0 }, expires: NEVER, plan: Plan::Rest };

impl RouteIndex {
    /// Compiles a catalog. Whoever can choose names or ids must not know `seed`.
    #[must_use]
    pub fn new(catalog: Arc<Catalog>, options: Options, seed: Seed) -> Self {
        let order = sorted_rows(&catalog);
        let hosts = Hosts::new(&catalog);
        let mut index = Self {
            options,
            hash: NameHash::new(seed),
            entry_places: Perfect::default(),
            entries: Vec::new(),
            pair_places: Perfect::default(),
            pair_at: Vec::new(),
            pairs: Vec::new(),
            spread: Vec::new(),
            tables: Vec::with_capacity(catalog.databases.len()),
            turns: Turns::default(),
            catalog,
            order,
            hosts,
        };
        index.add_tables();
        index.place(seed);
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
        let name = self.catalog.name(self.route(rows.start).service);
        let (mut pairs, mut spread) = (std::mem::take(&mut self.pairs), std::mem::take(&mut self.spread));
        let first_pair = pairs.len() as u32;
        let Summary { broker, quick, expires, acts } =
            self.summary(number, &self.order[rows.clone()], &mut pairs, &mut spread);
        let entry = Entry {
            chunks: quarters(name).unwrap_or_default(),
            broker,
            quick,
            expires,
            start: rows.start as u32,
            len: rows.len() as u32,
            first_pair,
            pair_count: pairs.len() as u32 - first_pair,
            key: short_key(table, name.len()),
            acts,
        };
        self.entries.push(entry);
        (self.pairs, self.spread) = (pairs, spread);
    }

    /// What is known of some routes of an entry, which come by broker id and route id, as long as none of them expires; their pairs and
    /// the answers of plans that spread are appended.
    pub(crate) fn summary(&self, entry: u32, rows: &[u32], pairs: &mut Vec<Pair>, spread: &mut Vec<Quick>) -> Summary {
        let (plain, keyed) = rows.split_at(rows.partition_point(|&row| self.row(row).broker.is_none()));
        let plain = self.plan(plain.iter().copied(), spread);
        let pair_count = pairs.len();
        let keyed = self.keyed(entry, keyed, pairs, spread);
        let has_pairs = pairs.len() > pair_count;
        Summary {
            broker: keyed.map(|(broker, _)| broker).unwrap_or_default(),
            quick: [plain.quick, keyed.map(|(_, group)| group.quick).unwrap_or_default()],
            expires: rows.iter().map(|&row| self.row(row).expires).min().unwrap_or(NEVER),
            acts: self.acts(plain.plan, keyed.map(|(_, group)| group.plan), has_pairs),
        }
    }

    /// What an entry does in each case, by the plans of its routes without a broker id and of those with the first one.
    fn acts(&self, plain: Plan, keyed: Option<Plan>, has_pairs: bool) -> [Act; 4] {
        let plainly = if plain == Plan::Rest { Act::new(plain, 0) } else { Act::new(plain, 2) };
        let of_none = match keyed {
            Some(_) if plain != Plan::Rest => plainly,
            Some(_) if has_pairs && self.options.tie_break != TieBreak::First => Act::new(Plan::Pick, 3),
            Some(first) => Act::new(first, 3),
            None => plainly,
        };
        let other = if has_pairs { Act::new(Plan::Pair, 1) } else { plainly };
        let same = keyed.map_or(plainly, |first| Act::new(first, 1));
        [of_none, other, same, plainly]
    }

    /// The first broker id of these routes and its group; where there are several ids, each has a pair.
    fn keyed(&self, entry: u32, rows: &[u32], pairs: &mut Vec<Pair>, spread: &mut Vec<Quick>) -> Option<(Guid, Group)> {
        let mut groups: Vec<&[u32]> =
            rows.chunk_by(|&one, &other| self.row(one).broker == self.row(other).broker).collect();
        groups.sort_by_key(|group| self.row(group[0]).route_id);
        let mut first = None;
        let has_pairs = groups.len() > 1;
        for rows in groups {
            let broker = self.row(rows[0]).broker.unwrap_or_default();
            let group = self.plan(rows.iter().copied(), spread);
            if has_pairs {
                pairs.push(Pair { broker, quick: group.quick, entry, plan: group.plan });
            }
            first = first.or(Some((broker, group)));
        }
        first
    }

    /// Gives entries and pairs their places; with a hash that has one for each, which almost every one has.
    fn place(&mut self, seed: Seed) {
        for attempt in 0.. {
            self.hash = NameHash::new(Seed([seed.0[0], seed.0[1].wrapping_add(attempt)]));
            let name = |entry: &Entry| self.hash.of(self.name_of(entry), entry.table());
            let names: Vec<u64> = self.entries.iter().map(name).collect();
            let Some((entry_places, entry_at)) = Perfect::new(&names) else { continue };
            let id = |pair: &Pair| self.hash.of_guid(pair.broker, entry_at[pair.entry as usize]);
            let ids: Vec<u64> = self.pairs.iter().map(id).collect();
            let Some((pair_places, pair_at)) = Perfect::new(&ids) else { continue };
            for pair in &mut self.pairs {
                pair.entry = entry_at[pair.entry as usize];
            }
            self.move_entries(entry_at, entry_places.places);
            self.pair_at = vec![0; pair_places.places];
            for (pair, place) in pair_at.into_iter().enumerate() {
                self.pair_at[place as usize] = pair as u32;
            }
            (self.entry_places, self.pair_places) = (entry_places, pair_places);
            return;
        }
    }

    /// Moves each entry to its place, within the room that they have.
    fn move_entries(&mut self, mut at: Vec<u32>, places: usize) {
        const FREE: u32 = u32::MAX;
        self.entries.resize(places, Entry::NONE);
        at.resize(places, FREE);
        for place in 0..places {
            while at[place] != FREE && at[place] as usize != place {
                let to = at[place] as usize;
                self.entries.swap(place, to);
                at.swap(place, to);
            }
        }
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
            [quick, ref others @ ..] if others.is_empty() || self.options.tie_break == TieBreak::First => {
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
