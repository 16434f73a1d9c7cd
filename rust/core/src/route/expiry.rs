//! The live routes at a given time.
//!
//! Expired routes are never deleted (R3), so the live routes would have to be selected for every conversation. The
//! decision table is compiled for the time before any expiry; each entry stores when it expires. After that, the entry
//! is compiled again for the current time and cached until the next expiry, or until `now` goes back to before the
//! previous expiry (`RouteIndex::live_entry` in `compile.rs`, for `look_up_live` in `batch.rs`).

use std::collections::HashMap;

use crate::catalog::NEVER;
use crate::guid::Guid;
use crate::prefetch::{CACHE_LINE, prefetch, prefetch_line};
use crate::route::decision_table::{Cell, Entry};
use crate::route::index::{CLASSES, Class, RouteIndex};

/// The time for which the same routes are live: `from <= now < until`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) from: i64,
    pub(crate) until: i64,
}

impl Default for Window {
    fn default() -> Self {
        Self { from: i64::MIN, until: NEVER }
    }
}

impl Window {
    /// Ends the window around `now` at an expiry.
    #[inline]
    pub(crate) fn add(&mut self, expires: i64, now: i64) {
        if now < expires {
            self.until = self.until.min(expires);
        } else {
            self.from = self.from.max(expires);
        }
    }

    /// Restricts the window to the intersection with another window.
    pub(crate) fn narrow(&mut self, other: Self) {
        (self.from, self.until) = (self.from.max(other.from), self.until.min(other.until));
    }

    fn contains(self, now: i64) -> bool {
        self.from <= now && now < self.until
    }
}

/// The live routes of a table without service name and broker id (step 5).
#[derive(Debug)]
pub(crate) struct LiveWildcards {
    pub(crate) window: Window,
    /// Their rows by class; one row for each address (R21).
    pub(crate) classes: [Vec<u32>; CLASSES.len()],
}

/// The live wildcard routes of each table.
#[derive(Debug, Default)]
pub(crate) struct WildcardCache {
    by_table: Vec<Option<LiveWildcards>>,
}

impl WildcardCache {
    /// Returns the live wildcard routes of a table at `now`.
    pub(crate) fn get(&mut self, index: &RouteIndex, table: u16, now: i64) -> &LiveWildcards {
        if self.by_table.is_empty() {
            self.by_table.resize_with(index.tables.len(), || None);
        }
        let cached = &mut self.by_table[usize::from(table)];
        if cached.as_ref().is_some_and(|live| !live.window.contains(now)) {
            *cached = None;
        }
        cached.get_or_insert_with(|| LiveWildcards::new(index, table, now))
    }
}

impl LiveWildcards {
    fn new(index: &RouteIndex, table: u16, now: i64) -> Self {
        let mut window = Window::default();
        let mut classes = [const { Vec::new() }; CLASSES.len()];
        for &row in &index.order[index.tables[usize::from(table)].wildcards.clone()] {
            let route = index.row(row);
            window.add(route.expires, now);
            if route.is_live(now) {
                classes[Class::of(route) as usize].push(row);
            }
        }
        for class in &mut classes {
            index.merge(class);
        }
        Self { window, classes }
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.classes.iter().all(Vec::is_empty)
    }
}

/// An entry of the decision table, compiled again after an expiry.
#[derive(Debug)]
pub(crate) struct LiveEntry {
    pub(crate) window: Window,
    pub(crate) entry: Entry,
    pub(crate) cells: Vec<Cell>,
    pub(crate) pairs: HashMap<Guid, Cell>,
}

/// The cached entries.
#[derive(Debug, Default)]
pub(crate) struct LiveEntries {
    /// For each slot, the number of its cached entry, counted from 1; 0 if there is none.
    numbers: Vec<u32>,
    all: Vec<LiveEntry>,
}

impl LiveEntries {
    /// Prefetches the number of a slot's cached entry.
    #[inline]
    pub(crate) fn prefetch_number(&self, slot: u32) {
        prefetch(&self.numbers, slot as usize);
    }

    /// Prefetches the cached entry of a slot, if there is one.
    #[inline]
    pub(crate) fn prefetch_entry(&self, slot: u32) {
        let number = self.numbers.get(slot as usize).copied().unwrap_or_default() as usize;
        for line in 0..size_of::<LiveEntry>() / CACHE_LINE {
            prefetch_line(&self.all, number.wrapping_sub(1), line);
        }
    }

    /// Returns the number of a slot's cached entry if it is valid at `now`.
    #[inline]
    pub(crate) fn number(&self, slot: u32, now: i64) -> Option<usize> {
        let number = (*self.numbers.get(slot as usize)? as usize).checked_sub(1)?;
        self.all.get(number).is_some_and(|live| live.window.contains(now)).then_some(number)
    }

    /// Returns the cached entry with a number.
    #[inline]
    pub(crate) fn get(&self, number: usize) -> &LiveEntry {
        &self.all[number]
    }

    /// Caches the entry of a slot, and returns its number.
    pub(crate) fn set(&mut self, slots: usize, slot: u32, live: LiveEntry) -> usize {
        self.numbers.resize(slots, 0);
        let number = &mut self.numbers[slot as usize];
        if *number == 0 {
            self.all.push(live);
            *number = self.all.len() as u32;
        } else {
            self.all[*number as usize - 1] = live;
        }
        *number as usize - 1
    }
}
