//! Compiles a catalog to a [`RouteIndex`]: groups the routes and determines a plan for each group.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use crate::catalog::{BROKER_CONFIGURATION, Catalog, LOCAL, NEVER, NONE, RouteRow, TRANSPORT};
use crate::guid::Guid;
use crate::hash::{NameHash, Seed, quarters, short_key};
use crate::route::hosts::Hosts;
use crate::route::index::{Action, Entry, Group, Pair, Plan, RouteIndex, Summary, Table, Target};
use crate::route::perfect_hash::PerfectHash;
use crate::route::tie_break::{Options, RoundRobinCounters, TieBreak};

const EMPTY: Group = Group { target: Target { route_id: 0, to: 0 }, expires: NEVER, plan: Plan::LaterSteps };

impl RouteIndex {
    /// Compiles a catalog. `seed` must be secret from anyone who can choose names or ids.
    #[must_use]
    pub fn new(catalog: Arc<Catalog>, options: Options, seed: Seed) -> Self {
        let order = sorted_rows(&catalog);
        let hosts = Hosts::new(&catalog);
        let mut index = Self {
            options,
            hash: NameHash::new(seed),
            entry_slots: PerfectHash::default(),
            entries: Vec::new(),
            pair_slots: PerfectHash::default(),
            pair_at: Vec::new(),
            pairs: Vec::new(),
            spread: Vec::new(),
            tables: Vec::with_capacity(catalog.databases.len()),
            round_robin: RoundRobinCounters::default(),
            catalog,
            order,
            hosts,
        };
        index.add_tables();
        index.assign_slots(seed);
        if options.tie_break == TieBreak::RoundRobin {
            let zeros = |count| std::iter::repeat_with(|| AtomicU32::new(0)).take(count).collect();
            index.round_robin = RoundRobinCounters {
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
            // Routes without a service name: those without a broker id come first; the others can never match
            // (R20).
            let wildcards = (nameless..at).take_while(|&position| self.route(position).broker.is_none()).count();
            let wildcards = nameless..nameless + wildcards;
            let wildcard = self.group(wildcards.clone());
            let dynamic_until = self.dynamic_until(start..nameless);
            self.tables.push(Table { wildcards, wildcard, dynamic_until });
        }
    }

    fn dynamic_until(&self, rows: Range<usize>) -> i64 {
        let Some(name) = self.catalog.find_name(BROKER_CONFIGURATION) else { return i64::MIN };
        let service = |position: &u32| self.catalog.routes[*position as usize].service;
        let rows = &self.order[rows];
        let start = rows.partition_point(|position| service(position) < name);
        let same = rows[start..].iter().take_while(|position| service(position) == name);
        same.map(|&position| self.catalog.routes[position as usize].expires).max().unwrap_or(i64::MIN)
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
        let Summary { broker, target, expires, actions } =
            self.summary(number, &self.order[rows.clone()], &mut pairs, &mut spread);
        let entry = Entry {
            chunks: quarters(name).unwrap_or_default(),
            broker,
            target,
            expires,
            start: rows.start as u32,
            len: rows.len() as u32,
            first_pair,
            pair_count: pairs.len() as u32 - first_pair,
            key: short_key(table, name.len()),
            actions,
        };
        self.entries.push(entry);
        (self.pairs, self.spread) = (pairs, spread);
    }

    /// Summarizes routes of an entry, sorted by broker id and route id, until one of them expires. Appends their
    /// pairs and the targets of plans that spread.
    pub(crate) fn summary(&self, entry: u32, rows: &[u32], pairs: &mut Vec<Pair>, spread: &mut Vec<Target>) -> Summary {
        let (without_broker, with_broker) = rows.split_at(rows.partition_point(|&row| self.row(row).broker.is_none()));
        let without_broker = self.plan(without_broker.iter().copied(), spread);
        let pair_count = pairs.len();
        let with_broker = self.first_broker_group(entry, with_broker, pairs, spread);
        let has_pairs = pairs.len() > pair_count;
        Summary {
            broker: with_broker.map(|(broker, _)| broker).unwrap_or_default(),
            target: [without_broker.target, with_broker.map(|(_, group)| group.target).unwrap_or_default()],
            expires: rows.iter().map(|&row| self.row(row).expires).min().unwrap_or(NEVER),
            actions: self.actions(without_broker.plan, with_broker.map(|(_, group)| group.plan), has_pairs),
        }
    }

    /// Determines the action of an entry for each case from the plans of its routes without a broker id and with
    /// the first one.
    fn actions(&self, without_broker: Plan, with_broker: Option<Plan>, has_pairs: bool) -> [Action; 4] {
        let without_broker_action = if without_broker == Plan::LaterSteps {
            Action::new(without_broker, 0)
        } else {
            Action::new(without_broker, 2)
        };
        let of_none = match with_broker {
            Some(_) if without_broker != Plan::LaterSteps => without_broker_action,
            Some(_) if has_pairs && self.options.tie_break != TieBreak::First => Action::new(Plan::Pick, 3),
            Some(first) => Action::new(first, 3),
            None => without_broker_action,
        };
        let other = if has_pairs { Action::new(Plan::Pair, 1) } else { without_broker_action };
        let same = with_broker.map_or(without_broker_action, |first| Action::new(first, 1));
        [of_none, other, same, without_broker_action]
    }

    /// Returns the first broker id of these routes and its group. If there are several ids, appends a pair for
    /// each.
    fn first_broker_group(
        &self,
        entry: u32,
        rows: &[u32],
        pairs: &mut Vec<Pair>,
        spread: &mut Vec<Target>,
    ) -> Option<(Guid, Group)> {
        let mut groups: Vec<&[u32]> =
            rows.chunk_by(|&one, &other| self.row(one).broker == self.row(other).broker).collect();
        groups.sort_by_key(|group| self.row(group[0]).route_id);
        let mut first = None;
        let has_pairs = groups.len() > 1;
        for rows in groups {
            let broker = self.row(rows[0]).broker.unwrap_or_default();
            let group = self.plan(rows.iter().copied(), spread);
            if has_pairs {
                pairs.push(Pair { broker, target: group.target, entry, plan: group.plan });
            }
            first = first.or(Some((broker, group)));
        }
        first
    }

    /// Assigns slots to entries and pairs, with the first hash that is collision-free.
    fn assign_slots(&mut self, seed: Seed) {
        for attempt in 0.. {
            self.hash = NameHash::new(Seed([seed.0[0], seed.0[1].wrapping_add(attempt)]));
            let name = |entry: &Entry| self.hash.of(self.name_of(entry), entry.table());
            let names: Vec<u64> = self.entries.iter().map(name).collect();
            let Some((entry_slots, entry_at)) = PerfectHash::new(&names) else { continue };
            let id = |pair: &Pair| self.hash.of_guid(pair.broker, entry_at[pair.entry as usize]);
            let ids: Vec<u64> = self.pairs.iter().map(id).collect();
            let Some((pair_slots, pair_at)) = PerfectHash::new(&ids) else { continue };
            for pair in &mut self.pairs {
                pair.entry = entry_at[pair.entry as usize];
            }
            self.move_entries(entry_at, entry_slots.slots);
            self.pair_at = vec![0; pair_slots.slots];
            for (pair, slot) in pair_at.into_iter().enumerate() {
                self.pair_at[slot as usize] = pair as u32;
            }
            (self.entry_slots, self.pair_slots) = (entry_slots, pair_slots);
            return;
        }
    }

    /// Moves each entry to its slot, in place.
    fn move_entries(&mut self, mut at: Vec<u32>, slots: usize) {
        const FREE: u32 = u32::MAX;
        self.entries.resize(slots, Entry::NONE);
        at.resize(slots, FREE);
        for position in 0..slots {
            while at[position] != FREE && at[position] as usize != position {
                let to = at[position] as usize;
                self.entries.swap(position, to);
                at.swap(position, to);
            }
        }
    }

    /// Determines the plan of a group of routes, valid until the first one expires.
    fn group(&mut self, rows: Range<usize>) -> Group {
        let mut spread = std::mem::take(&mut self.spread);
        let group = self.plan(self.order[rows].iter().copied(), &mut spread);
        self.spread = spread;
        group
    }

    /// Determines the plan of rows with one service name and broker id, sorted by route id. If only a pick among
    /// several targets is left to do, the targets are appended to `spread`.
    pub(crate) fn plan(&self, rows: impl Iterator<Item = u32> + Clone, spread: &mut Vec<Target>) -> Group {
        let Some(expires) = rows.clone().map(|row| self.row(row).expires).min() else { return EMPTY };
        let general = Group { target: Target::default(), expires, plan: Plan::Decide };
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
            spread.push(Target { route_id: route.route_id, to: route.endpoint });
        }
        match spread[first..] {
            [] => general,
            [target, ref others @ ..] if others.is_empty() || self.options.tie_break == TieBreak::First => {
                spread.truncate(first);
                Group { target, plan: Plan::Network, ..general }
            }
            _ => {
                let target = Target { route_id: first as i32, to: (spread.len() - first) as u32 };
                Group { target, plan: Plan::Spread, ..general }
            }
        }
    }

    /// A LOCAL route that names a broker id always leads to the database with that id (R31), if it has the service.
    fn local_group(&self, local: u32, general: Group) -> Group {
        let route = self.row(local);
        let broker = route.broker.filter(|_| route.service != NONE);
        let Some(database) = broker.and_then(|broker| self.host_with(broker, Some(route.service))) else {
            return general;
        };
        let target = Target { route_id: route.route_id, to: u32::from(database) };
        Group { target, plan: Plan::Local, ..general }
    }
}

/// Sorts rows by (database, service name, broker id, route id). Routes without a service name come last, routes
/// without a broker id first.
fn sorted_rows(catalog: &Catalog) -> Vec<u32> {
    let route = |row: u32| &catalog.routes[row as usize];
    // Sorting complete keys is faster than comparing rows that must be looked up; equal keys are sorted afterwards.
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
