//! Many conversations at a time.
//!
//! A block of 64 goes through the index in stages, each of which asks the memory for what the next one reads, so that the waits
//! for one conversation's bucket and entry overlap with those of 63 others. What the plans of the index leave open is left to
//! [`RouteIndex::decide`].

use super::block::{Answers, BLOCK, Block, MISSING, Stages, Waiting};
use super::buckets::{look_up, place};
use super::choose::Candidates;
use super::index::{Entry, Group, KEYED, PLAIN, Plan, Quick, RouteIndex};
use super::pick::{Choice, TieBreak, pick_by_hash};
use crate::hash::quarters;
use crate::ids::Guid;
use crate::prefetch::{prefetch, prefetch_line};

impl RouteIndex {
    /// Decides as many of a block's conversations as the index alone can. `answers.brokers` holds the broker ids that they name;
    /// `conversation` gives the id of one of them, and is asked only where one of several candidates is to be picked.
    pub fn resolve(
        &self,
        block: &Block<'_>,
        now: i64,
        conversation: impl Fn(usize) -> Guid + Copy,
        stages: &mut Stages,
        room: &mut Candidates,
        answers: &mut Answers,
    ) {
        let len = block.len.min(BLOCK);
        (answers.network, answers.local, answers.no_route, answers.bound) = (0, 0, 0, 0);
        if self.options.tie_break == TieBreak::RoundRobin {
            answers.general = u64::MAX;
            return;
        }
        answers.general = block.general;
        self.find_entries(block, len, stages);
        stages.waiting_len = 0;
        for row in 0..len {
            if block.general >> row & 1 == 0 && !self.judge_quick(block, row, now, stages, answers) {
                self.judge(block, row, now, conversation, stages, room, answers);
            }
        }
        self.find_pairs(stages);
        for place in 0..stages.waiting_len {
            self.judge_pair(&stages.waiting[place], block, now, conversation, room, answers);
        }
    }

    /// For each conversation the entry that its fingerprint leads to; most of them are right, none is certain.
    #[inline]
    fn find_entries(&self, block: &Block<'_>, len: usize, stages: &mut Stages) {
        if self.entries.is_empty() {
            stages.entries[..len].fill(MISSING);
            return;
        }
        stages.short = u64::MAX;
        for row in 0..len {
            let (name, table) = (block.names[row], u64::from(block.tables[row]));
            let hash = if let Some(chunks) = quarters(name) {
                stages.chunks[row] = chunks;
                self.hash.of_short(&chunks, name.len(), table)
            } else {
                stages.short &= !(1 << row);
                self.hash.of(name, table)
            };
            let (bucket, fingerprint) = place(hash, self.buckets.len());
            prefetch(&self.buckets, bucket);
            stages.buckets[row] = (bucket as u32, fingerprint);
        }
        for row in 0..len {
            let (bucket, fingerprint) = stages.buckets[row];
            let bucket = &self.buckets[bucket as usize];
            let lanes = bucket.lanes(fingerprint);
            // A full bucket sends to the next, so any entry will do to have the right one looked up.
            let absent = if bucket.overflows() { 0 } else { MISSING };
            let entry = if lanes == 0 { absent } else { bucket.value(lanes) };
            prefetch_line(&self.entries, entry as usize, 0);
            prefetch_line(&self.entries, entry as usize, 1);
            stages.entries[row] = entry;
        }
    }

    /// Answers the plain case, one network address by steps 1 to 3; false if it is another.
    ///
    /// Whether a conversation names a broker id is as good as random, so this asks with numbers rather than with branches.
    #[inline]
    #[allow(clippy::needless_bitwise_bool)]
    fn judge_quick(&self, block: &Block<'_>, row: usize, now: i64, stages: &Stages, answers: &mut Answers) -> bool {
        let Some(entry) = self.entries.get(stages.entries[row] as usize) else { return false };
        let has_broker = block.has_broker >> row & 1 == 1;
        let is_broker = entry.broker == answers.brokers[row];
        let has_plain = entry.plan[PLAIN] != Plan::Empty;
        let keyed = (has_broker & is_broker) | (!has_broker & !has_plain);
        let several = (entry.plan[KEYED] == Plan::Several) & (has_broker | !has_plain);
        let group = usize::from(keyed);
        let answered = (entry.plan[group] == Plan::Network) & (now < entry.expires[group]) & !several;
        let is_short = stages.short >> row & 1 == 1;
        if !answered || !is_short || !entry.is_short(block.tables[row], block.names[row], &stages.chunks[row]) {
            return false;
        }
        let binds = keyed & !has_broker;
        let mask = u128::from(binds).wrapping_neg();
        let own = u128::from_ne_bytes(answers.brokers[row].0);
        let broker = own & !mask | u128::from_ne_bytes(entry.broker.0) & mask;
        let quick = entry.quick[group];
        answers.brokers[row] = Guid(broker.to_ne_bytes());
        answers.bound |= u64::from(binds) << row;
        answers.network |= 1 << row;
        answers.steps[row] = if has_broker { 2 - group as i8 } else { 2 + group as i8 };
        answers.route_ids[row] = quick.route_id;
        answers.to[row] = quick.to as i32;
        true
    }

    /// Answers what is not plain by steps 1 to 3, or puts it among those that wait for their pair.
    #[allow(clippy::too_many_arguments)]
    fn judge(
        &self,
        block: &Block<'_>,
        row: usize,
        now: i64,
        conversation: impl Fn(usize) -> Guid,
        stages: &mut Stages,
        room: &mut Candidates,
        answers: &mut Answers,
    ) {
        let has_broker = block.has_broker >> row & 1 == 1;
        let Some(number) = self.checked(stages.entries[row], block, row) else {
            return self.judge_rest(block, row, now, conversation, room, answers);
        };
        let entry = &self.entries[number as usize];
        if now >= entry.expires[PLAIN].min(entry.expires[KEYED]) {
            if self.route_of(entry, block, row, now, answers) {
                answers.general |= 1 << row;
                return;
            }
            return self.judge_rest(block, row, now, conversation, room, answers);
        }
        let several = entry.plan[KEYED] == Plan::Several;
        let waiting = Waiting { hash: 0, pair: MISSING, entry: number, row: row as u8, step: 1 };
        match (has_broker, entry.plan[PLAIN]) {
            (true, _) if several => {
                let hash = self.hash.of_guid(answers.brokers[row], number);
                prefetch(&self.pair_buckets, place(hash, self.pair_buckets.len()).0);
                stages.wait(Waiting { hash, ..waiting });
            }
            (true, _) if entry.plan[KEYED] != Plan::Empty && entry.broker == answers.brokers[row] => {
                self.answer(entry.group(KEYED), 1, row, now, conversation, None, answers);
            }
            (true, Plan::Empty) => self.judge_rest(block, row, now, conversation, room, answers),
            (false, Plan::Empty) if several => {
                let Quick { route_id: first, to: count } = entry.quick[KEYED];
                let pick = self.pick(row, Choice::Broker, count as usize, conversation);
                let pair = first as u32 + pick as u32;
                prefetch(&self.pairs, pair as usize);
                stages.wait(Waiting { pair, step: 3, ..waiting });
            }
            (false, Plan::Empty) => {
                self.answer(entry.group(KEYED), 3, row, now, conversation, Some(entry.broker), answers);
            }
            _ => self.answer(entry.group(PLAIN), 2, row, now, conversation, None, answers),
        }
    }

    /// Whether one of an entry's routes, some of which are expired, is for this conversation.
    fn route_of(&self, entry: &Entry, block: &Block<'_>, row: usize, now: i64, answers: &Answers) -> bool {
        let broker = (block.has_broker >> row & 1 == 1).then(|| answers.brokers[row]);
        entry
            .rows()
            .map(|place| self.route(place))
            .any(|route| route.is_live(now) && (broker.is_none() || route.broker.is_none() || route.broker == broker))
    }

    /// The entry, after a look at its name; a wrong one is looked up once more.
    #[inline]
    fn checked(&self, found: u32, block: &Block<'_>, row: usize) -> Option<u32> {
        let (table, name) = (block.tables[row], block.names[row]);
        let entry = self.entries.get(found as usize)?;
        if entry.is(table, name, self) { Some(found) } else { self.entry(table, name) }
    }

    /// Answers by steps 4 to 7.
    fn judge_rest(
        &self,
        block: &Block<'_>,
        row: usize,
        now: i64,
        conversation: impl Fn(usize) -> Guid,
        room: &mut Candidates,
        answers: &mut Answers,
    ) {
        let table = &self.tables[usize::from(block.tables[row])];
        let has_broker = block.has_broker >> row & 1 == 1;
        if now < table.dynamic_until {
            answers.general |= 1 << row;
            return;
        }
        let (group, spread) = if now < table.wildcard.expires {
            (table.wildcard, &self.spread)
        } else {
            let tail = room.tails.get(self, block.tables[row], now);
            (tail.group, &tail.spread)
        };
        match group.plan {
            Plan::Empty if has_broker && !self.hosts.is_empty() => answers.general |= 1 << row,
            Plan::Empty => answers.no_route |= 1 << row,
            _ => self.answer_from(spread, group, 5, row, now, conversation, None, answers),
        }
    }

    /// Answers with a group, if all its routes are alive and leave nothing but a pick.
    #[inline]
    #[allow(clippy::too_many_arguments)]
    fn answer(
        &self,
        group: Group,
        step: i8,
        row: usize,
        now: i64,
        conversation: impl Fn(usize) -> Guid,
        bound: Option<Guid>,
        answers: &mut Answers,
    ) {
        self.answer_from(&self.spread, group, step, row, now, conversation, bound, answers);
    }

    #[inline]
    #[allow(clippy::too_many_arguments)]
    fn answer_from(
        &self,
        spread: &[Quick],
        group: Group,
        step: i8,
        row: usize,
        now: i64,
        conversation: impl Fn(usize) -> Guid,
        bound: Option<Guid>,
        answers: &mut Answers,
    ) {
        match group.plan {
            Plan::Network if now < group.expires => answers.network(row, step, group.quick, bound),
            Plan::Local if now < group.expires => {
                answers.local |= 1 << row;
                answers.write(row, step, group.quick, bound);
            }
            Plan::Spread if now < group.expires => {
                let Quick { route_id: first, to: count } = group.quick;
                let pick = self.pick(row, Choice::Route, count as usize, conversation);
                answers.network(row, step, spread[first as u32 as usize + pick], bound);
            }
            _ => answers.general |= 1 << row,
        }
    }

    #[inline]
    fn pick(&self, row: usize, choice: Choice, count: usize, conversation: impl Fn(usize) -> Guid) -> usize {
        match self.options.tie_break {
            TieBreak::Hash => pick_by_hash(conversation(row), choice, false, count),
            TieBreak::First | TieBreak::RoundRobin => 0,
        }
    }

    fn find_pairs(&self, stages: &mut Stages) {
        for waiting in stages.waiting[..stages.waiting_len].iter_mut().filter(|waiting| waiting.pair == MISSING) {
            let (bucket, fingerprint) = place(waiting.hash, self.pair_buckets.len());
            let bucket = &self.pair_buckets[bucket];
            let lanes = bucket.lanes(fingerprint);
            let absent = if bucket.overflows() { 0 } else { MISSING };
            waiting.pair = if lanes == 0 { absent } else { bucket.value(lanes) };
            prefetch(&self.pairs, waiting.pair as usize);
        }
    }

    fn judge_pair(
        &self,
        waiting: &Waiting,
        block: &Block<'_>,
        now: i64,
        conversation: impl Fn(usize) -> Guid,
        room: &mut Candidates,
        answers: &mut Answers,
    ) {
        let row = usize::from(waiting.row);
        if waiting.step == 3 {
            let pair = &self.pairs[waiting.pair as usize];
            return self.answer(pair.group(), 3, row, now, conversation, Some(pair.broker), answers);
        }
        let broker = answers.brokers[row];
        let is_it = |pair: u32| self.pairs.get(pair as usize).is_some_and(|pair| pair.is(waiting.entry, broker));
        let pair = match waiting.pair {
            MISSING => None,
            pair if is_it(pair) => Some(pair),
            _ => look_up(&self.pair_buckets, waiting.hash, is_it),
        };
        let entry = &self.entries[waiting.entry as usize];
        match pair {
            Some(pair) => self.answer(self.pairs[pair as usize].group(), 1, row, now, conversation, None, answers),
            None if entry.plan[PLAIN] == Plan::Empty => self.judge_rest(block, row, now, conversation, room, answers),
            None => self.answer(entry.group(PLAIN), 2, row, now, conversation, None, answers),
        }
    }
}
