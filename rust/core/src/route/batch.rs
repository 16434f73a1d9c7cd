//! A block of conversations, what the index answers, and the room in between.

use crate::guid::Guid;
use crate::hash::{quarters, short_key};
use crate::prefetch::{prefetch, prefetch_line};
use crate::route::decide::Candidates;
use crate::route::index::{Act, Entry, Pair, Plan, Quick, RouteIndex, Summary};
use crate::route::tie_break::{Choice, TieBreak, pick_by_hash};

/// Conversations in a block: as many as a word has bits.
pub const BLOCK: usize = 64;

/// Up to 64 conversations that are to be routed.
#[derive(Debug)]
pub struct Block<'a> {
    /// How many there are.
    pub len: usize,
    /// The service names.
    pub names: [&'a [u8]; BLOCK],
    /// The tables to be read.
    pub tables: [u16; BLOCK],
    /// One bit for each conversation that names a broker id; the ids stand in the answers.
    pub has_broker: u64,
    /// One bit for each conversation that is for `decide` whatever the index says.
    pub general: u64,
}

/// What the index alone can say of a block, as columns; a mask has one bit for each conversation.
#[derive(Debug)]
pub struct Answers {
    /// The broker ids: on the way in those of the conversations, on the way out those that bind them (K18).
    pub brokers: [Guid; BLOCK],
    /// The steps that matched.
    pub steps: [i8; BLOCK],
    /// The chosen routes.
    pub route_ids: [i32; BLOCK],
    /// Where to: an endpoint for `network`, a database for `local`.
    pub to: [i32; BLOCK],
    /// Send to an address, which is not this instance's.
    pub network: u64,
    /// Deliver to a database of this instance.
    pub local: u64,
    /// No step yields a route (R17).
    pub no_route: u64,
    /// The route's broker id binds the conversation, which names none.
    pub bound: u64,
    /// It takes [`RouteIndex::decide`].
    pub general: u64,
}

/// Room for the stages of a block.
#[derive(Debug)]
pub struct Stages {
    /// Where the entries are, if there are such entries.
    pub(crate) places: [u32; BLOCK],
    /// The names in the form of `quarters`, or something that no entry has.
    pub(crate) chunks: [[u128; 4]; BLOCK],
    /// The lengths of the names and the tables, as entries have them.
    pub(crate) keys: [u32; BLOCK],
    pub(crate) acts: [Act; BLOCK],
    /// The conversations that have no answer yet, by plan.
    pub(crate) open: [Rows; 8],
    /// For those that look for a pair, the place where it is found.
    pub(crate) pairs: [u32; BLOCK],
}

/// Some conversations of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    rows: [u8; BLOCK],
    len: usize,
}

impl Default for Answers {
    fn default() -> Self {
        Self {
            brokers: [Guid::default(); BLOCK],
            steps: [0; BLOCK],
            route_ids: [0; BLOCK],
            to: [0; BLOCK],
            network: 0,
            local: 0,
            no_route: 0,
            bound: 0,
            general: 0,
        }
    }
}

impl Default for Stages {
    fn default() -> Self {
        Self {
            places: [0; BLOCK],
            chunks: [[0; 4]; BLOCK],
            keys: [0; BLOCK],
            acts: [Act::new(Plan::General, 0); BLOCK],
            open: [Rows { rows: [0; BLOCK], len: 0 }; 8],
            pairs: [0; BLOCK],
        }
    }
}

impl Rows {
    #[inline]
    pub(crate) fn push(&mut self, row: usize) {
        self.rows[self.len % BLOCK] = row as u8;
        self.len += 1;
    }

    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.rows[..self.len.min(BLOCK)].iter().map(|&row| usize::from(row) % BLOCK)
    }
}

impl Answers {
    #[inline]
    pub(crate) fn write(&mut self, row: usize, step: i8, quick: Quick) {
        self.steps[row] = step;
        self.route_ids[row] = quick.route_id;
        self.to[row] = quick.to as i32;
    }

    /// The route's broker id binds the conversation.
    #[inline]
    pub(crate) fn bind(&mut self, row: usize, broker: Guid) {
        self.bound |= 1 << row;
        self.brokers[row] = broker;
    }
}

impl Stages {
    /// Gathers these conversations by plan.
    #[inline]
    pub(crate) fn sort(&mut self, mut rows: u64) {
        for plan in &mut self.open {
            plan.len = 0;
        }
        while rows != 0 {
            let row = rows.trailing_zeros() as usize;
            rows &= rows - 1;
            self.open[self.acts[row].plan() as usize].push(row);
        }
    }

    /// The conversations of a plan, as they are now.
    #[inline]
    pub(crate) fn with(&self, plan: Plan) -> Rows {
        self.open[plan as usize]
    }
}

// Many conversations at a time.
//
// A block of 64 goes through the index in stages, each of which asks the memory for what the next one reads, so that the waits for
// one conversation overlap with those of 63 others. The common case, an answer that stands in the entry, goes without a branch;
// the others are gathered by plan. What the plans of the index leave open is left to [`RouteIndex::decide`].

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
