//! Many conversations at a time.
//!
//! A block of 64 goes through the index in stages, each of which asks the memory for what the next one reads, so that the waits for
//! one conversation overlap with those of 63 others. The common case, an answer that stands in the entry, goes without a branch;
//! the others are gathered by plan. What the plans of the index leave open is left to [`RouteIndex::decide`].

use super::block::{Answers, BLOCK, Block, Stages};
use super::choose::Candidates;
use super::index::{Act, Entry, Pair, Plan, Quick, RouteIndex, Summary};
use super::pick::{Choice, TieBreak, pick_by_hash};
use crate::hash::{quarters, short_key};
use crate::ids::Guid;
use crate::prefetch::{prefetch, prefetch_line};

/// What is asked of a block.
#[derive(Clone, Copy)]
struct Asked<'a, F> {
    block: &'a Block<'a>,
    len: usize,
    now: i64,
    conversation: F,
}

impl<F> Asked<'_, F> {
    #[inline]
    fn has_broker(&self, row: usize) -> bool {
        self.block.has_broker >> row & 1 == 1
    }
}

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
        (answers.network, answers.local, answers.no_route, answers.bound) = (0, 0, 0, 0);
        if self.options.tie_break == TieBreak::RoundRobin {
            answers.general = u64::MAX;
            return;
        }
        answers.general = block.general;
        let asked = Asked { block, len: block.len.min(BLOCK), now, conversation };
        self.find_entries(&asked, stages);
        self.judge(&asked, stages, answers);
        let rows = u64::MAX.checked_shr(64 - asked.len as u32).unwrap_or(0) & !block.general;
        answers.network = Act::networks(&stages.acts) & rows;
        let mut bound = Act::bindings(&stages.acts) & answers.network;
        while bound != 0 {
            let row = bound.trailing_zeros() as usize;
            bound &= bound - 1;
            answers.bind(row, self.entry_of(stages, row).broker);
        }
        stages.sort(rows & !answers.network);
        self.settle(&asked, stages, room, answers);
        self.settle_pairs(&asked, stages, room, answers);
    }

    /// For each conversation the place where its entry is, if it has one.
    #[inline]
    fn find_entries<F>(&self, asked: &Asked<'_, F>, stages: &mut Stages) {
        let block = asked.block;
        for row in 0..asked.len {
            let (name, table) = (block.names[row], block.tables[row]);
            let key = short_key(table, name.len());
            stages.keys[row] = key;
            let hash = if let Some(chunks) = quarters(name) {
                stages.chunks[row] = chunks;
                self.hash.of_short(&chunks, name.len(), key)
            } else {
                stages.chunks[row] = [u128::MAX; 4];
                self.hash.of(name, table)
            };
            let place = self.entry_places.place(hash);
            prefetch_line(&self.entries, place, 0);
            prefetch_line(&self.entries, place, 1);
            stages.places[row] = place as u32;
        }
    }

    /// What is to be done for each conversation, and the answer if it is an answer of its entry.
    ///
    /// Whether a conversation names a broker id is as good as random, so this asks with numbers rather than with branches.
    #[inline]
    fn judge<F>(&self, asked: &Asked<'_, F>, stages: &mut Stages, answers: &mut Answers) {
        for row in 0..asked.len {
            let entry = self.entry_of(stages, row);
            let is_it =
                entry.has_chunks(&stages.chunks[row]) && entry.key == stages.keys[row] && asked.now < entry.expires;
            let case = entry.case(asked.has_broker(row), answers.brokers[row]);
            let act = if is_it { entry.acts[case % 4] } else { Act::new(Plan::Unsure, 0) };
            let quick = entry.quick[act.group()];
            stages.acts[row] = act;
            answers.route_ids[row] = quick.route_id;
            answers.to[row] = quick.to as i32;
        }
        answers.steps = stages.acts.map(Act::step);
    }

    #[inline]
    fn entry_of(&self, stages: &Stages, row: usize) -> &Entry {
        &self.entries[stages.places[row] as usize]
    }

    /// Answers what has no plain answer and needs no pair.
    fn settle(
        &self,
        asked: &Asked<'_, impl Fn(usize) -> Guid>,
        stages: &mut Stages,
        room: &mut Candidates,
        answers: &mut Answers,
    ) {
        for row in stages.with(Plan::Unsure).iter() {
            self.judge_unsure(asked, row, stages, room, answers);
        }
        for plan in [Plan::Local, Plan::Spread, Plan::General] {
            for row in stages.with(plan).iter() {
                let (entry, act) = (self.entry_of(stages, row), stages.acts[row]);
                self.answer(asked, row, act, entry.quick[act.group()], entry.broker, answers);
            }
        }
        for row in stages.with(Plan::Rest).iter() {
            self.judge_rest(asked, row, room, answers);
        }
    }

    /// A conversation whose entry may be another's, or has expired routes.
    fn judge_unsure(
        &self,
        asked: &Asked<'_, impl Fn(usize) -> Guid>,
        row: usize,
        stages: &mut Stages,
        room: &mut Candidates,
        answers: &mut Answers,
    ) {
        let entry = self.entry_of(stages, row);
        let is_short = entry.key == stages.keys[row] && entry.has_chunks(&stages.chunks[row]);
        if !is_short && !entry.is(asked.block.tables[row], asked.block.names[row], self) {
            return self.judge_rest(asked, row, room, answers);
        }
        if asked.now >= entry.expires {
            return self.judge_revised(asked, row, stages.places[row], room, answers);
        }
        // A name of more than 64 bytes.
        stages.acts[row] = entry.acts[entry.case(asked.has_broker(row), answers.brokers[row]) % 4];
        let act = stages.acts[row];
        match act.plan() {
            Plan::Network => self.answer(asked, row, act, entry.quick[act.group()], entry.broker, answers),
            plan => stages.open[plan as usize].push(row),
        }
    }

    /// A conversation of an entry that has expired routes.
    fn judge_revised(
        &self,
        asked: &Asked<'_, impl Fn(usize) -> Guid>,
        row: usize,
        place: u32,
        room: &mut Candidates,
        answers: &mut Answers,
    ) {
        let entry = &self.entries[place as usize];
        if entry.len <= 1 {
            return self.judge_rest(asked, row, room, answers);
        }
        let revision = room.revisions.get(self, place, asked.now);
        let Summary { broker, quick, acts, .. } = revision.summary;
        let act = revision.summary.act(asked.has_broker(row), answers.brokers[row]);
        let of_pair = |pair: &Pair, step| (Act::new(pair.plan, step), pair.quick, pair.broker);
        let (act, quick, broker) = match act.plan() {
            Plan::Pair => match revision.pair(self, place, entry, answers.brokers[row]) {
                Some(pair) => of_pair(pair, 1),
                None => (acts[3], quick[acts[3].group()], broker),
            },
            Plan::Pick => {
                let pairs = &revision.several.pairs;
                of_pair(&pairs[self.pick(asked, row, Choice::Broker, pairs.len())], 3)
            }
            _ => (act, quick[act.group()], broker),
        };
        if act.plan() == Plan::Rest {
            return self.judge_rest(asked, row, room, answers);
        }
        self.answer_from(asked, row, &revision.several.spread, act.plan(), act.step(), quick, answers);
        if act.binds() && answers.general >> row & 1 == 0 {
            answers.bind(row, broker);
        }
    }

    /// Answers by steps 4 to 7.
    fn judge_rest(
        &self,
        asked: &Asked<'_, impl Fn(usize) -> Guid>,
        row: usize,
        room: &mut Candidates,
        answers: &mut Answers,
    ) {
        let table = &self.tables[usize::from(asked.block.tables[row])];
        if asked.now < table.dynamic_until {
            answers.general |= 1 << row;
            return;
        }
        let (group, spread) = if asked.now < table.wildcard.expires {
            (table.wildcard, &self.spread)
        } else {
            let tail = room.tails.get(self, asked.block.tables[row], asked.now);
            (tail.group, &tail.spread)
        };
        match group.plan {
            Plan::Rest if asked.has_broker(row) && !self.hosts.is_empty() => answers.general |= 1 << row,
            Plan::Rest => answers.no_route |= 1 << row,
            plan => self.answer_from(asked, row, spread, plan, 5, group.quick, answers),
        }
    }

    /// Answers with routes of an entry, which may bind the conversation to `broker`.
    #[inline]
    fn answer(
        &self,
        asked: &Asked<'_, impl Fn(usize) -> Guid>,
        row: usize,
        act: Act,
        quick: Quick,
        broker: Guid,
        answers: &mut Answers,
    ) {
        self.answer_from(asked, row, &self.spread, act.plan(), act.step(), quick, answers);
        if act.binds() && answers.general >> row & 1 == 0 {
            answers.bind(row, broker);
        }
    }

    /// Answers with routes of one plan, if they leave nothing but a pick.
    #[inline]
    #[allow(clippy::too_many_arguments)]
    fn answer_from(
        &self,
        asked: &Asked<'_, impl Fn(usize) -> Guid>,
        row: usize,
        spread: &[Quick],
        plan: Plan,
        step: i8,
        quick: Quick,
        answers: &mut Answers,
    ) {
        match plan {
            Plan::Network => {
                answers.network |= 1 << row;
                answers.write(row, step, quick);
            }
            Plan::Local => {
                answers.local |= 1 << row;
                answers.write(row, step, quick);
            }
            Plan::Spread => {
                let Quick { route_id: first, to: count } = quick;
                let pick = self.pick(asked, row, Choice::Route, count as usize);
                answers.network |= 1 << row;
                answers.write(row, step, spread[first as u32 as usize + pick]);
            }
            Plan::General | Plan::Rest | Plan::Pair | Plan::Pick | Plan::Unsure => answers.general |= 1 << row,
        }
    }

    #[inline]
    fn pick(&self, asked: &Asked<'_, impl Fn(usize) -> Guid>, row: usize, choice: Choice, count: usize) -> usize {
        match self.options.tie_break {
            TieBreak::Hash => pick_by_hash((asked.conversation)(row), choice, false, count),
            TieBreak::First | TieBreak::RoundRobin => 0,
        }
    }

    /// Answers with pairs: picked ones, and those of the broker ids that the conversations name.
    fn settle_pairs(
        &self,
        asked: &Asked<'_, impl Fn(usize) -> Guid>,
        stages: &mut Stages,
        room: &mut Candidates,
        answers: &mut Answers,
    ) {
        let (named, picked) = (stages.with(Plan::Pair), stages.with(Plan::Pick));
        for row in named.iter() {
            let hash = self.hash.of_guid(answers.brokers[row], stages.places[row]);
            let place = self.pair_places.place(hash);
            prefetch(&self.pair_at, place);
            stages.pairs[row] = place as u32;
        }
        for row in picked.iter() {
            let entry = self.entry_of(stages, row);
            let pick = self.pick(asked, row, Choice::Broker, entry.pair_count as usize);
            stages.pairs[row] = entry.first_pair + pick as u32;
            prefetch(&self.pairs, stages.pairs[row] as usize);
        }
        for row in named.iter() {
            stages.pairs[row] = self.pair_at[stages.pairs[row] as usize];
            prefetch(&self.pairs, stages.pairs[row] as usize);
        }
        for row in named.iter() {
            let pair = &self.pairs[stages.pairs[row] as usize];
            let entry = self.entry_of(stages, row);
            let without_pair = entry.acts[3];
            if pair.is(stages.places[row], answers.brokers[row]) {
                self.answer(asked, row, Act::new(pair.plan, 1), pair.quick, pair.broker, answers);
            } else if without_pair.plan() == Plan::Rest {
                self.judge_rest(asked, row, room, answers);
            } else {
                self.answer(asked, row, without_pair, entry.quick[without_pair.group()], entry.broker, answers);
            }
        }
        for row in picked.iter() {
            let pair = &self.pairs[stages.pairs[row] as usize];
            self.answer(asked, row, Act::new(pair.plan, 3), pair.quick, pair.broker, answers);
        }
    }
}
