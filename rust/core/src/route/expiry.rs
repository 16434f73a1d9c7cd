//! Caches of live routes.
//!
//! Expired routes are never deleted (R3), so the live ones would have to be filtered for every conversation. They
//! are filtered once instead and cached until the next of them expires, or until `now` goes back before the last
//! expiry.

use std::collections::HashMap;

use crate::catalog::NONE;
use crate::guid::Guid;
use crate::route::index::{Class, Entry, Group, Pair, RouteIndex, Summary, Target};

/// The live routes of a table without service name and broker id (step 5).
#[derive(Debug)]
pub(crate) struct LiveWildcards {
    /// The last expiry at or before the time of the search.
    valid_from: i64,
    /// Their rows by class; one of those with the same address (R21).
    pub(crate) classes: [Vec<u32>; 4],
    /// Their plan.
    pub(crate) group: Group,
    /// The targets of a plan that spreads.
    pub(crate) spread: Vec<Target>,
}

/// The live wildcard routes of each table.
#[derive(Debug, Default)]
pub(crate) struct WildcardCache {
    by_table: HashMap<u16, LiveWildcards>,
}

impl WildcardCache {
    /// Returns the live wildcard routes of a table at `now`.
    pub(crate) fn get(&mut self, index: &RouteIndex, table: u16, now: i64) -> &LiveWildcards {
        let live = self.by_table.entry(table).or_insert_with(|| LiveWildcards::new(index, table, now));
        if now < live.valid_from || live.group.expires <= now {
            *live = LiveWildcards::new(index, table, now);
        }
        live
    }
}

impl LiveWildcards {
    fn new(index: &RouteIndex, table: u16, now: i64) -> Self {
        let wildcards = index.tables[usize::from(table)].wildcards.clone();
        let rows = index.order[wildcards].iter().copied();
        let expired = rows.clone().map(|row| index.row(row)).filter(|route| !route.is_live(now));
        let valid_from = expired.map(|route| route.expires).max().unwrap_or(i64::MIN);
        let live = rows.filter(|&row| index.row(row).is_live(now));
        let mut spread = Vec::new();
        let group = index.plan(live.clone(), &mut spread);
        let mut classes = [const { Vec::new() }; 4];
        for row in live {
            classes[Class::of(index.row(row)) as usize].push(row);
        }
        for class in &mut classes {
            index.merge(class);
        }
        Self { valid_from, classes, group, spread }
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.classes.iter().all(Vec::is_empty)
    }
}

/// The live routes of an entry between two expiries.
#[derive(Debug)]
pub(crate) struct LiveRoutes {
    /// The last expiry at or before the time of the search.
    valid_from: i64,
    pub(crate) summary: Summary,
    pub(crate) details: Box<Details>,
}

/// What the summary does not hold.
#[derive(Debug, Default)]
pub(crate) struct Details {
    /// The targets of plans that spread over several routes.
    pub(crate) spread: Vec<Target>,
    /// The pairs, sorted by lowest live route id; empty if there is only one broker id.
    pub(crate) pairs: Vec<Pair>,
    /// For each pair of the index, its position in `pairs`, or `NONE`.
    position_of: Vec<u32>,
}

/// The cached live routes of entries.
#[derive(Debug, Default)]
pub(crate) struct LiveRoutesCache {
    /// For each slot, the number of its cached routes, counted from 1; 0 if there are none.
    numbers: Vec<u32>,
    all: Vec<LiveRoutes>,
}

impl LiveRoutesCache {
    /// Returns the live routes of the entry in a slot at `now`.
    pub(crate) fn get(&mut self, index: &RouteIndex, slot: u32, now: i64) -> &LiveRoutes {
        self.numbers.resize(index.entries.len(), 0);
        let number = &mut self.numbers[slot as usize];
        if *number == 0 {
            self.all.push(LiveRoutes::new(index, slot, now));
            *number = self.all.len() as u32;
        }
        let live = &mut self.all[*number as usize - 1];
        if now < live.valid_from || live.summary.expires <= now {
            *live = LiveRoutes::new(index, slot, now);
        }
        live
    }
}

impl LiveRoutes {
    fn new(index: &RouteIndex, slot: u32, now: i64) -> Self {
        let entry = &index.entries[slot as usize];
        let mut details = Box::<Details>::default();
        let (mut valid_from, mut live) = (i64::MIN, Vec::new());
        for &row in &index.order[entry.rows()] {
            let route = index.row(row);
            if route.is_live(now) {
                live.push(row);
            } else {
                valid_from = valid_from.max(route.expires);
            }
        }
        let summary = index.summary(slot, &live, &mut details.pairs, &mut details.spread);
        if !details.pairs.is_empty() {
            details.position_of = vec![NONE; entry.pair_count as usize];
            for (at, pair) in details.pairs.iter().enumerate() {
                let number = index.pair_number(slot, pair.broker);
                details.position_of[(number - entry.first_pair) as usize] = at as u32;
            }
        }
        Self { valid_from, summary, details }
    }

    /// Returns the pair of a broker id if one of its routes is live and there are several ids.
    pub(crate) fn pair(&self, index: &RouteIndex, slot: u32, entry: &Entry, broker: Guid) -> Option<&Pair> {
        let number = index.pair_number(slot, broker);
        let is_it = index.pairs[number as usize].is(slot, broker);
        let at = is_it.then(|| self.details.position_of[(number - entry.first_pair) as usize])?;
        self.details.pairs.get(at as usize)
    }
}
