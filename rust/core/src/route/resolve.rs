//! Many conversations at a time.
//!
//! A block of 64 goes through the index in stages, each of which asks the memory for what the next one reads, so that the waits
//! for one conversation's bucket and entry overlap with those of 63 others. What the plans of the index leave open, the verdict
//! [`Verdict::General`] hands to [`RouteIndex::decide`].

use super::index::{Entry, Group, Plan, Quick, RouteIndex, place};
use super::pick::{Choice, TieBreak, pick_by_hash};
use crate::ids::Guid;
use crate::prefetch::{prefetch, prefetch_line};

/// Conversations in a block: as many as a word has bits.
pub const BLOCK: usize = 64;

const MISSING: u32 = u32::MAX;

/// Up to 64 conversations that are to be routed.
#[derive(Debug)]
pub struct Block<'a> {
    /// How many there are.
    pub len: usize,
    /// The service names.
    pub names: [&'a [u8]; BLOCK],
    /// The tables to be read.
    pub tables: [u16; BLOCK],
    /// The broker ids, where `has_broker` says that there is one.
    pub brokers: [Guid; BLOCK],
    /// One bit for each conversation that names a broker id.
    pub has_broker: u64,
    /// One bit for each conversation that is for `decide` whatever the index says.
    pub general: u64,
}

/// What the index alone can say of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It takes `decide`.
    General,
    /// Deliver to this database.
    Local {
        /// The step that matched.
        step: i8,
        /// The chosen route.
        route_id: i32,
        /// The database.
        database: u32,
        /// The broker id of the route, where the conversation has none.
        broker: Option<Guid>,
    },
    /// Send to this address, which is not this instance's.
    Network {
        /// The step that matched.
        step: i8,
        /// The chosen route.
        route_id: i32,
        /// The address.
        endpoint: u32,
        /// The broker id of the route, where the conversation has none.
        broker: Option<Guid>,
    },
    /// No step yields a route (R17).
    NoRoute,
}

/// A pair that must be looked at: known, or to be looked up by broker id.
#[derive(Clone, Copy)]
struct Waiting {
    row: u8,
    step: i8,
    pair: u32,
    entry: u32,
    hash: u64,
}

impl RouteIndex {
    /// Decides as many of a block's conversations as the index alone can; `conversation` gives the id of one of them, and is asked
    /// only where one of several candidates is to be picked.
    pub fn resolve(
        &self,
        block: &Block<'_>,
        now: i64,
        conversation: impl Fn(usize) -> Guid + Copy,
        verdicts: &mut [Verdict; BLOCK],
    ) {
        let len = block.len.min(BLOCK);
        if self.options.tie_break == TieBreak::RoundRobin {
            verdicts[..len].fill(Verdict::General);
            return;
        }
        let mut found = [MISSING; BLOCK];
        if !self.entries.is_empty() {
            self.find_entries(block, len, &mut found);
        }
        let mut waiting = [Waiting { row: 0, step: 0, pair: 0, entry: 0, hash: 0 }; BLOCK];
        let mut waiting_len = 0;
        for row in 0..len {
            if block.general >> row & 1 == 1 {
                verdicts[row] = Verdict::General;
                continue;
            }
            let entry = self.checked(found[row], block, row);
            match self.judge(entry, block, row, now, conversation) {
                Ok(verdict) => verdicts[row] = verdict,
                Err(pair) => {
                    if pair.pair == MISSING {
                        prefetch(&self.pair_buckets, place(pair.hash, self.pair_buckets.len()).0);
                    } else {
                        prefetch(&self.pairs, pair.pair as usize);
                    }
                    waiting[waiting_len] = pair;
                    waiting_len += 1;
                }
            }
        }
        let waiting = &mut waiting[..waiting_len];
        self.find_pairs(waiting);
        for pair in waiting {
            let row = usize::from(pair.row);
            verdicts[row] = self.judge_pair(pair, block, now, conversation);
        }
    }

    /// For each conversation the entry that its fingerprint leads to; most of them are right, none is certain.
    #[inline]
    fn find_entries(&self, block: &Block<'_>, len: usize, found: &mut [u32; BLOCK]) {
        let mut at = [(0usize, 0u16); BLOCK];
        for row in 0..len {
            let hash = self.hash.of(block.names[row], u64::from(block.tables[row]));
            at[row] = place(hash, self.buckets.len());
            prefetch(&self.buckets, at[row].0);
        }
        for row in 0..len {
            let (bucket, fingerprint) = at[row];
            let bucket = &self.buckets[bucket];
            let lanes = bucket.lanes(fingerprint);
            if lanes != 0 {
                found[row] = bucket.value(lanes);
                prefetch_line(&self.entries, found[row] as usize, 0);
                prefetch_line(&self.entries, found[row] as usize, 1);
            } else if bucket.overflows() {
                found[row] = 0;
            }
        }
    }

    /// The entry, after a look at its name; a wrong one is looked up once more.
    #[inline]
    fn checked(&self, found: u32, block: &Block<'_>, row: usize) -> Option<u32> {
        if found == MISSING {
            return None;
        }
        let (table, name) = (block.tables[row], block.names[row]);
        if self.entries[found as usize].is(table, name, &self.catalog) {
            return Some(found);
        }
        self.entry(table, name)
    }

    /// The verdict by steps 1 to 3, or the pair that has it.
    #[inline]
    fn judge(
        &self,
        number: Option<u32>,
        block: &Block<'_>,
        row: usize,
        now: i64,
        conversation: impl Fn(usize) -> Guid,
    ) -> Result<Verdict, Waiting> {
        let has_broker = block.has_broker >> row & 1 == 1;
        let Some(number) = number else { return Ok(self.judge_rest(block, row, now, conversation)) };
        let entry = &self.entries[number as usize];
        if has_broker {
            let broker = block.brokers[row];
            if entry.keyed_plan == Plan::Several {
                let hash = self.hash.of_guid(broker, number);
                return Err(Waiting { row: row as u8, step: 1, pair: MISSING, entry: number, hash });
            }
            if entry.keyed_plan != Plan::Empty && entry.broker == broker {
                return Ok(self.answer(entry.keyed(), 1, row, now, conversation, None));
            }
            return Ok(self.judge_plain(entry, block, row, now, conversation));
        }
        match (entry.plain_plan, entry.keyed_plan) {
            (Plan::Empty, Plan::Several) if now < entry.keyed_expires => {
                let count = entry.keyed_quick.to as usize;
                let pick = match self.options.tie_break {
                    TieBreak::Hash => pick_by_hash(conversation(row), Choice::Broker, false, count),
                    TieBreak::First | TieBreak::RoundRobin => 0,
                };
                let pair = entry.keyed_quick.route_id as u32 + pick as u32;
                Err(Waiting { row: row as u8, step: 3, pair, entry: number, hash: 0 })
            }
            (Plan::Empty, Plan::Several) => Ok(Verdict::General),
            (Plan::Empty, _) => Ok(self.answer(entry.keyed(), 3, row, now, conversation, Some(entry.broker))),
            _ => Ok(self.answer(entry.plain(), 2, row, now, conversation, None)),
        }
    }

    /// The verdict where the conversation's broker id is not among the entry's.
    #[inline]
    fn judge_plain(
        &self,
        entry: &Entry,
        block: &Block<'_>,
        row: usize,
        now: i64,
        conversation: impl Fn(usize) -> Guid,
    ) -> Verdict {
        match entry.plain_plan {
            Plan::Empty => self.judge_rest(block, row, now, conversation),
            _ => self.answer(entry.plain(), 2, row, now, conversation, None),
        }
    }

    /// The verdict by steps 4 to 7.
    #[inline]
    fn judge_rest(&self, block: &Block<'_>, row: usize, now: i64, conversation: impl Fn(usize) -> Guid) -> Verdict {
        let table = &self.tables[usize::from(block.tables[row])];
        if now < table.dynamic_until {
            return Verdict::General;
        }
        match table.wildcard.plan {
            Plan::Empty if block.has_broker >> row & 1 == 0 || self.hosts.is_empty() => Verdict::NoRoute,
            Plan::Empty => Verdict::General,
            _ => self.answer(table.wildcard, 5, row, now, conversation, None),
        }
    }

    /// The verdict of a group whose routes are all alive.
    #[inline]
    fn answer(
        &self,
        group: Group,
        step: i8,
        row: usize,
        now: i64,
        conversation: impl Fn(usize) -> Guid,
        broker: Option<Guid>,
    ) -> Verdict {
        if now >= group.expires {
            return Verdict::General;
        }
        let Quick { route_id, to } = match group.plan {
            Plan::Network => group.quick,
            Plan::Local => {
                return Verdict::Local { step, route_id: group.quick.route_id, database: group.quick.to, broker };
            }
            Plan::Spread => {
                let count = group.quick.to as usize;
                let pick = match self.options.tie_break {
                    TieBreak::Hash => pick_by_hash(conversation(row), Choice::Route, false, count),
                    TieBreak::First | TieBreak::RoundRobin => 0,
                };
                self.spread[group.quick.route_id as u32 as usize + pick]
            }
            Plan::Empty | Plan::General | Plan::Several => return Verdict::General,
        };
        Verdict::Network { step, route_id, endpoint: to, broker }
    }

    fn find_pairs(&self, waiting: &mut [Waiting]) {
        for pair in waiting.iter_mut().filter(|pair| pair.pair == MISSING) {
            let (bucket, fingerprint) = place(pair.hash, self.pair_buckets.len());
            let lanes = self.pair_buckets[bucket].lanes(fingerprint);
            if lanes != 0 {
                pair.pair = self.pair_buckets[bucket].value(lanes);
                prefetch(&self.pairs, pair.pair as usize);
            } else if self.pair_buckets[bucket].overflows() {
                pair.pair = 0;
            }
        }
    }

    fn judge_pair(
        &self,
        waiting: &Waiting,
        block: &Block<'_>,
        now: i64,
        conversation: impl Fn(usize) -> Guid,
    ) -> Verdict {
        let row = usize::from(waiting.row);
        if waiting.step == 3 {
            let pair = &self.pairs[waiting.pair as usize];
            return self.answer(pair.group(), 3, row, now, conversation, Some(pair.broker));
        }
        let entry = &self.entries[waiting.entry as usize];
        let is_it = |pair: u32| {
            let pair = &self.pairs[pair as usize];
            pair.entry == waiting.entry && pair.broker == block.brokers[row]
        };
        let pair = match waiting.pair {
            MISSING => None,
            pair if is_it(pair) => Some(pair),
            _ => super::index::look_up(&self.pair_buckets, waiting.hash, is_it),
        };
        match pair {
            Some(pair) => self.answer(self.pairs[pair as usize].group(), 1, row, now, conversation, None),
            None => self.judge_plain(entry, block, row, now, conversation),
        }
    }
}
