//! Decides blocks of 64 conversations.
//!
//! A block passes through the index in stages. Each stage prefetches what the next one reads, so that the memory
//! latencies of 64 conversations overlap. The common case, an answer stored in the entry itself, runs without
//! branches; the remaining conversations are grouped by plan. What no plan can answer is left to
//! [`RouteIndex::decide`].

use crate::guid::Guid;
use crate::hash::{quarters, short_key};
use crate::prefetch::{prefetch, prefetch_line};
use crate::route::decide::Scratch;
use crate::route::index::{Action, Entry, Pair, Plan, RouteIndex, Summary, Target};
use crate::route::tie_break::{Choice, TieBreak, pick_by_hash};

/// The number of conversations in a block: the bits of a word.
pub const BLOCK: usize = 64;

/// Up to 64 conversations to route.
#[derive(Debug)]
pub struct Block<'a> {
    /// The number of conversations.
    pub len: usize,
    /// The service names.
    pub names: [&'a [u8]; BLOCK],
    /// The routing tables to use.
    pub tables: [u16; BLOCK],
    /// Mask of the conversations that name a broker id; the ids are in `Answers::brokers`.
    pub has_broker: u64,
    /// Mask of the conversations that `decide` must handle in any case.
    pub needs_decide: u64,
}

/// What the index alone can decide of a block, as columns. A mask has one bit per conversation.
#[derive(Debug)]
pub struct Answers {
    /// Input: the broker ids that the conversations name. Output: the broker ids that bind them.
    pub brokers: [Guid; BLOCK],
    /// The steps that matched.
    pub steps: [i8; BLOCK],
    /// The ids of the chosen routes.
    pub route_ids: [i32; BLOCK],
    /// The target: an endpoint for `network`, a database for `local`.
    pub to: [i32; BLOCK],
    /// Send to an address of another instance.
    pub network: u64,
    /// Deliver to a database of this instance.
    pub local: u64,
    /// No step yields a route (R17).
    pub no_route: u64,
    /// The conversation names no broker id and is bound by the route's.
    pub bound: u64,
    /// Left to [`RouteIndex::decide`].
    pub needs_decide: u64,
}

/// Scratch memory for the stages of a block.
#[derive(Debug)]
pub struct Stages {
    /// The slot of each conversation's entry.
    pub(crate) slots: [u32; BLOCK],
    /// The `quarters` of the names, or a value that no entry has.
    pub(crate) chunks: [[u128; 4]; BLOCK],
    /// The [`short_key`]s of the names and tables.
    pub(crate) keys: [u32; BLOCK],
    pub(crate) actions: [Action; BLOCK],
    /// The conversations that still need an answer, by plan.
    pub(crate) pending: [Rows; 8],
    /// For conversations that look up a pair, the slot or number of the pair.
    pub(crate) pairs: [u32; BLOCK],
}

/// A subset of a block's conversations.
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
            needs_decide: 0,
        }
    }
}

impl Default for Stages {
    fn default() -> Self {
        Self {
            slots: [0; BLOCK],
            chunks: [[0; 4]; BLOCK],
            keys: [0; BLOCK],
            actions: [Action::new(Plan::Decide, 0); BLOCK],
            pending: [Rows { rows: [0; BLOCK], len: 0 }; 8],
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
    pub(crate) fn write(&mut self, row: usize, step: i8, target: Target) {
        self.steps[row] = step;
        self.route_ids[row] = target.route_id;
        self.to[row] = target.to as i32;
    }

    /// Binds the conversation to the route's broker id.
    #[inline]
    pub(crate) fn bind(&mut self, row: usize, broker: Guid) {
        self.bound |= 1 << row;
        self.brokers[row] = broker;
    }
}

impl Stages {
    /// Groups the conversations in the mask by plan.
    #[inline]
    pub(crate) fn group_by_plan(&mut self, mut rows: u64) {
        for plan in &mut self.pending {
            plan.len = 0;
        }
        while rows != 0 {
            let row = rows.trailing_zeros() as usize;
            rows &= rows - 1;
            self.pending[self.actions[row].plan() as usize].push(row);
        }
    }

    /// Returns the conversations of a plan.
    #[inline]
    pub(crate) fn with(&self, plan: Plan) -> Rows {
        self.pending[plan as usize]
    }
}

/// The block to decide, and the arguments.
#[derive(Clone, Copy)]
struct Request<'a, F> {
    block: &'a Block<'a>,
    len: usize,
    now: i64,
    conversation: F,
}

impl<F> Request<'_, F> {
    #[inline]
    fn has_broker(&self, row: usize) -> bool {
        self.block.has_broker >> row & 1 == 1
    }
}

impl RouteIndex {
    /// Decides as many conversations of a block as the index alone can. `answers.brokers` holds the broker ids that
    /// they name; `conversation` returns a conversation id and is called only to pick one of several candidates.
    pub fn resolve(
        &self,
        block: &Block<'_>,
        now: i64,
        conversation: impl Fn(usize) -> Guid + Copy,
        stages: &mut Stages,
        scratch: &mut Scratch,
        answers: &mut Answers,
    ) {
        (answers.network, answers.local, answers.no_route, answers.bound) = (0, 0, 0, 0);
        if self.options.tie_break == TieBreak::RoundRobin {
            answers.needs_decide = u64::MAX;
            return;
        }
        answers.needs_decide = block.needs_decide;
        let request = Request { block, len: block.len.min(BLOCK), now, conversation };
        self.look_up_entries(&request, stages);
        self.evaluate(&request, stages, answers);
        let rows = u64::MAX.checked_shr(64 - request.len as u32).unwrap_or(0) & !block.needs_decide;
        answers.network = Action::network_mask(&stages.actions) & rows;
        let mut bound = Action::binding_mask(&stages.actions) & answers.network;
        while bound != 0 {
            let row = bound.trailing_zeros() as usize;
            bound &= bound - 1;
            answers.bind(row, self.entry_of(stages, row).broker);
        }
        stages.group_by_plan(rows & !answers.network);
        self.answer_remaining(&request, stages, scratch, answers);
        self.answer_pairs(&request, stages, scratch, answers);
    }

    /// Looks up the slot of each conversation's entry.
    #[inline]
    fn look_up_entries<F>(&self, request: &Request<'_, F>, stages: &mut Stages) {
        let block = request.block;
        for row in 0..request.len {
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
            let slot = self.entry_slots.slot(hash);
            prefetch_line(&self.entries, slot, 0);
            prefetch_line(&self.entries, slot, 1);
            stages.slots[row] = slot as u32;
        }
    }

    /// Determines the action for each conversation, and the answer if the entry holds it.
    ///
    /// Whether a conversation names a broker id is unpredictable, so this computes with numbers instead of
    /// branching.
    #[inline]
    fn evaluate<F>(&self, request: &Request<'_, F>, stages: &mut Stages, answers: &mut Answers) {
        for row in 0..request.len {
            let entry = self.entry_of(stages, row);
            let is_it =
                entry.has_chunks(&stages.chunks[row]) && entry.key == stages.keys[row] && request.now < entry.expires;
            let case = entry.case(request.has_broker(row), answers.brokers[row]);
            let action = if is_it { entry.actions[case % 4] } else { Action::new(Plan::Recheck, 0) };
            let target = entry.target[action.group()];
            stages.actions[row] = action;
            answers.route_ids[row] = target.route_id;
            answers.to[row] = target.to as i32;
        }
        answers.steps = stages.actions.map(Action::step);
    }

    #[inline]
    fn entry_of(&self, stages: &Stages, row: usize) -> &Entry {
        &self.entries[stages.slots[row] as usize]
    }

    /// Answers the conversations that need neither the common case nor a pair.
    fn answer_remaining(
        &self,
        request: &Request<'_, impl Fn(usize) -> Guid>,
        stages: &mut Stages,
        scratch: &mut Scratch,
        answers: &mut Answers,
    ) {
        for row in stages.with(Plan::Recheck).iter() {
            self.answer_rechecked(request, row, stages, scratch, answers);
        }
        for plan in [Plan::Local, Plan::Spread, Plan::Decide] {
            for row in stages.with(plan).iter() {
                let (entry, action) = (self.entry_of(stages, row), stages.actions[row]);
                self.answer(request, row, action, entry.target[action.group()], entry.broker, answers);
            }
        }
        for row in stages.with(Plan::LaterSteps).iter() {
            self.answer_by_later_steps(request, row, scratch, answers);
        }
    }

    /// Answers a conversation whose slot may hold another entry, or an entry with expired routes.
    fn answer_rechecked(
        &self,
        request: &Request<'_, impl Fn(usize) -> Guid>,
        row: usize,
        stages: &mut Stages,
        scratch: &mut Scratch,
        answers: &mut Answers,
    ) {
        let entry = self.entry_of(stages, row);
        let is_short = entry.key == stages.keys[row] && entry.has_chunks(&stages.chunks[row]);
        if !is_short && !entry.is(request.block.tables[row], request.block.names[row], self) {
            return self.answer_by_later_steps(request, row, scratch, answers);
        }
        if request.now >= entry.expires {
            return self.answer_from_live_routes(request, row, stages.slots[row], scratch, answers);
        }
        // A name of more than 64 bytes.
        stages.actions[row] = entry.actions[entry.case(request.has_broker(row), answers.brokers[row]) % 4];
        let action = stages.actions[row];
        match action.plan() {
            Plan::Network => self.answer(request, row, action, entry.target[action.group()], entry.broker, answers),
            plan => stages.pending[plan as usize].push(row),
        }
    }

    /// Answers a conversation whose entry has expired routes.
    fn answer_from_live_routes(
        &self,
        request: &Request<'_, impl Fn(usize) -> Guid>,
        row: usize,
        slot: u32,
        scratch: &mut Scratch,
        answers: &mut Answers,
    ) {
        let entry = &self.entries[slot as usize];
        if entry.len <= 1 {
            return self.answer_by_later_steps(request, row, scratch, answers);
        }
        let live = scratch.live_routes.get(self, slot, request.now);
        let Summary { broker, target, actions, .. } = live.summary;
        let action = live.summary.action(request.has_broker(row), answers.brokers[row]);
        let of_pair = |pair: &Pair, step| (Action::new(pair.plan, step), pair.target, pair.broker);
        let (action, target, broker) = match action.plan() {
            Plan::Pair => match live.pair(self, slot, entry, answers.brokers[row]) {
                Some(pair) => of_pair(pair, 1),
                None => (actions[3], target[actions[3].group()], broker),
            },
            Plan::Pick => {
                let pairs = &live.details.pairs;
                of_pair(&pairs[self.pick(request, row, Choice::Broker, pairs.len())], 3)
            }
            _ => (action, target[action.group()], broker),
        };
        if action.plan() == Plan::LaterSteps {
            return self.answer_by_later_steps(request, row, scratch, answers);
        }
        self.answer_from(request, row, &live.details.spread, action.plan(), action.step(), target, answers);
        if action.binds() && answers.needs_decide >> row & 1 == 0 {
            answers.bind(row, broker);
        }
    }

    /// Answers by steps 4 to 7.
    fn answer_by_later_steps(
        &self,
        request: &Request<'_, impl Fn(usize) -> Guid>,
        row: usize,
        scratch: &mut Scratch,
        answers: &mut Answers,
    ) {
        let table = &self.tables[usize::from(request.block.tables[row])];
        if request.now < table.dynamic_until {
            answers.needs_decide |= 1 << row;
            return;
        }
        let (group, spread) = if request.now < table.wildcard.expires {
            (table.wildcard, &self.spread)
        } else {
            let live = scratch.wildcards.get(self, request.block.tables[row], request.now);
            (live.group, &live.spread)
        };
        match group.plan {
            Plan::LaterSteps if request.has_broker(row) && !self.hosts.is_empty() => answers.needs_decide |= 1 << row,
            Plan::LaterSteps => answers.no_route |= 1 << row,
            plan => self.answer_from(request, row, spread, plan, 5, group.target, answers),
        }
    }

    /// Answers with routes of an entry, which may bind the conversation to `broker`.
    #[inline]
    fn answer(
        &self,
        request: &Request<'_, impl Fn(usize) -> Guid>,
        row: usize,
        action: Action,
        target: Target,
        broker: Guid,
        answers: &mut Answers,
    ) {
        self.answer_from(request, row, &self.spread, action.plan(), action.step(), target, answers);
        if action.binds() && answers.needs_decide >> row & 1 == 0 {
            answers.bind(row, broker);
        }
    }

    /// Answers with the routes of one plan if only a pick is left to do.
    #[inline]
    #[allow(clippy::too_many_arguments)]
    fn answer_from(
        &self,
        request: &Request<'_, impl Fn(usize) -> Guid>,
        row: usize,
        spread: &[Target],
        plan: Plan,
        step: i8,
        target: Target,
        answers: &mut Answers,
    ) {
        match plan {
            Plan::Network => {
                answers.network |= 1 << row;
                answers.write(row, step, target);
            }
            Plan::Local => {
                answers.local |= 1 << row;
                answers.write(row, step, target);
            }
            Plan::Spread => {
                let Target { route_id: first, to: count } = target;
                let pick = self.pick(request, row, Choice::Route, count as usize);
                answers.network |= 1 << row;
                answers.write(row, step, spread[first as u32 as usize + pick]);
            }
            Plan::Decide | Plan::LaterSteps | Plan::Pair | Plan::Pick | Plan::Recheck => {
                answers.needs_decide |= 1 << row;
            }
        }
    }

    #[inline]
    fn pick(&self, request: &Request<'_, impl Fn(usize) -> Guid>, row: usize, choice: Choice, count: usize) -> usize {
        match self.options.tie_break {
            TieBreak::Hash => pick_by_hash((request.conversation)(row), choice, false, count),
            TieBreak::First | TieBreak::RoundRobin => 0,
        }
    }

    /// Answers with pairs: picked ones (step 3), and those of the broker ids that the conversations name (step 1).
    fn answer_pairs(
        &self,
        request: &Request<'_, impl Fn(usize) -> Guid>,
        stages: &mut Stages,
        scratch: &mut Scratch,
        answers: &mut Answers,
    ) {
        let (named, picked) = (stages.with(Plan::Pair), stages.with(Plan::Pick));
        for row in named.iter() {
            let hash = self.hash.of_guid(answers.brokers[row], stages.slots[row]);
            let slot = self.pair_slots.slot(hash);
            prefetch(&self.pair_at, slot);
            stages.pairs[row] = slot as u32;
        }
        for row in picked.iter() {
            let entry = self.entry_of(stages, row);
            let pick = self.pick(request, row, Choice::Broker, entry.pair_count as usize);
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
            let without_pair = entry.actions[3];
            if pair.is(stages.slots[row], answers.brokers[row]) {
                self.answer(request, row, Action::new(pair.plan, 1), pair.target, pair.broker, answers);
            } else if without_pair.plan() == Plan::LaterSteps {
                self.answer_by_later_steps(request, row, scratch, answers);
            } else {
                self.answer(request, row, without_pair, entry.target[without_pair.group()], entry.broker, answers);
            }
        }
        for row in picked.iter() {
            let pair = &self.pairs[stages.pairs[row] as usize];
            self.answer(request, row, Action::new(pair.plan, 3), pair.target, pair.broker, answers);
        }
    }
}
