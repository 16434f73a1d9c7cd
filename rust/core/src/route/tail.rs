//! The routes without service name and broker id, as they are at one moment.
//!
//! A table may have thousands of them, and every conversation that no other route matches comes to them. So those that are alive are
//! gathered once, and remembered until the next of them expires, or until `now` goes back to before the last expiry.

use std::collections::HashMap;

use super::choose::Class;
use super::index::{Group, Quick, RouteIndex};

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
