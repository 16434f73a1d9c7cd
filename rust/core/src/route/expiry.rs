//! The routes without service name and broker id, as they are at one moment.
//!
//! A table may have thousands of them, and every conversation that no other route matches comes to them. So those that are alive are
//! gathered once, and remembered until the next of them expires, or until `now` goes back to before the last expiry.

use std::collections::HashMap;

use crate::catalog::NONE;
use crate::guid::Guid;
use crate::route::index::{Class, Entry, Group, Pair, Quick, RouteIndex, Summary};

/// The live last-resort routes of a table.
#[derive(Debug)]
pub(crate) struct Tail {
    /// The last moment at which one of the routes expired.
    since: i64,
    /// Their rows by class, those with the same address once (R21).
    pub(crate) classes: [Vec<u32>; 4],
    /// Their plan.
    pub(crate) group: Group,
    /// What the plan spreads over.
    pub(crate) spread: Vec<Quick>,
}

/// The tails that were looked at.
#[derive(Debug, Default)]
pub(crate) struct Tails {
    of_table: HashMap<u16, Tail>,
}

impl Tails {
    /// The tail of a table at the moment `now`.
    pub(crate) fn get(&mut self, index: &RouteIndex, table: u16, now: i64) -> &Tail {
        let tail = self.of_table.entry(table).or_insert_with(|| Tail::new(index, table, now));
        if now < tail.since || tail.group.expires <= now {
            *tail = Tail::new(index, table, now);
        }
        tail
    }
}

impl Tail {
    fn new(index: &RouteIndex, table: u16, now: i64) -> Self {
        let wildcards = index.tables[usize::from(table)].wildcards.clone();
        let rows = index.order[wildcards].iter().copied();
        let expired = rows.clone().map(|row| index.row(row)).filter(|route| !route.is_live(now));
        let since = expired.map(|route| route.expires).max().unwrap_or(i64::MIN);
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
        Self { since, classes, group, spread }
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.classes.iter().all(Vec::is_empty)
    }
}

// The entries of which routes are expired, as they are at one moment.
//
// Expired routes are never deleted (R3), so that an entry with one would be looked through for every conversation. What its live
// routes come to is found once instead, and remembered until the next of them expires, or until `now` goes back to before the last
// expiry.

/// What is known of an entry's live routes between two moments.
#[derive(Debug)]
pub(crate) struct Revision {
    /// The last moment at which one of its routes expired.
    since: i64,
    pub(crate) summary: Summary,
    pub(crate) several: Box<Several>,
}

/// What a revision has beside its summary, where that does not say all.
#[derive(Debug, Default)]
pub(crate) struct Several {
    /// Single answers of the plans that spread over several routes.
    pub(crate) spread: Vec<Quick>,
    /// By their lowest live route id; none where there is but one broker id.
    pub(crate) pairs: Vec<Pair>,
    /// For each of the pairs of the index its place in `pairs`, or `NONE`.
    place_of: Vec<u32>,
}

/// The revisions that were asked for.
#[derive(Debug, Default)]
pub(crate) struct Revisions {
    /// For each place of an entry the number of its revision, counted from 1.
    number_of: Vec<u32>,
    all: Vec<Revision>,
}

impl Revisions {
    /// The revision of the entry at `place` at the moment `now`.
    pub(crate) fn get(&mut self, index: &RouteIndex, place: u32, now: i64) -> &Revision {
        self.number_of.resize(index.entries.len(), 0);
        let number = &mut self.number_of[place as usize];
        if *number == 0 {
            self.all.push(Revision::new(index, place, now));
            *number = self.all.len() as u32;
        }
        let revision = &mut self.all[*number as usize - 1];
        if now < revision.since || revision.summary.expires <= now {
            *revision = Revision::new(index, place, now);
        }
        revision
    }
}

impl Revision {
    fn new(index: &RouteIndex, place: u32, now: i64) -> Self {
        let entry = &index.entries[place as usize];
        let mut several = Box::<Several>::default();
        let (mut since, mut live) = (i64::MIN, Vec::new());
        for &row in &index.order[entry.rows()] {
            let route = index.row(row);
            if route.is_live(now) {
                live.push(row);
            } else {
                since = since.max(route.expires);
            }
        }
        let summary = index.summary(place, &live, &mut several.pairs, &mut several.spread);
        if !several.pairs.is_empty() {
            several.place_of = vec![NONE; entry.pair_count as usize];
            for (at, pair) in several.pairs.iter().enumerate() {
                let number = index.pair_number(place, pair.broker);
                several.place_of[(number - entry.first_pair) as usize] = at as u32;
            }
        }
        Self { since, summary, several }
    }

    /// The pair of a broker id, if one of its routes is alive and there are several ids.
    pub(crate) fn pair(&self, index: &RouteIndex, place: u32, entry: &Entry, broker: Guid) -> Option<&Pair> {
        let number = index.pair_number(place, broker);
        let is_it = index.pairs[number as usize].is(place, broker);
        let at = is_it.then(|| self.several.place_of[(number - entry.first_pair) as usize])?;
        self.several.pairs.get(at as usize)
    }
}
