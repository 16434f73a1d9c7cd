//! Decides blocks of 64 conversations with the decision table.
//!
//! A block passes through the table in stages. Each stage prefetches what the next one reads, so that the memory
//! latencies of 64 conversations overlap. Decisions that are complete in the entry are read without branches; the
//! remaining conversations are grouped by the next lookup. Decisions that depend on the address in an unlisted service
//! name are left to [`RouteIndex::decide`].

use crate::address::has_next_hop;
use crate::catalog::NONE;
use crate::guid::Guid;
use crate::hash::{quarters, short_key};
use crate::masks::{ones, set_bits};
use crate::prefetch::{prefetch, prefetch_line};
use crate::route::decide::Scratch;
use crate::route::decision_table::{Action, Cell, Entry, Next, Pair, Source, Target, host_owner};
use crate::route::index::RouteIndex;
use crate::route::tie_break::{TieBreak, TieNumber};

/// The number of conversations in a block: the bits of a word.
pub const BLOCK: usize = 64;

/// Up to 64 conversations to route.
#[derive(Debug)]
pub struct Block<'a> {
    /// The number of conversations.
    pub len: usize,
    /// The service names.
    pub names: [&'a [u8]; BLOCK],
    /// Their sources; see [`RouteIndex::source`].
    pub sources: [Source; BLOCK],
    /// Mask of the conversations that name a broker id; the ids are in `Answers::brokers`.
    pub has_broker: u64,
    /// Mask of the conversations whose sender is the target.
    pub from_target: u64,
}

/// The decisions for a block, as columns. A mask has one bit per conversation.
#[derive(Debug)]
pub struct Answers {
    /// Input: the broker ids that the conversations name. Output: the broker ids that bind them.
    pub brokers: [Guid; BLOCK],
    /// The codes of the outcomes.
    pub outcomes: [i8; BLOCK],
    /// The codes of the reasons.
    pub reasons: [i8; BLOCK],
    /// The steps that matched; -1 for none.
    pub steps: [i8; BLOCK],
    /// The ids of the chosen routes.
    pub route_ids: [i32; BLOCK],
    /// The next hop or the database.
    pub to: [i32; BLOCK],
    /// The mirror addresses.
    pub mirrors: [i32; BLOCK],
    /// A step matched.
    pub has_step: u64,
    /// A route was chosen.
    pub has_route: u64,
    /// `to` is an address of another instance.
    pub has_hop: u64,
    /// `to` is a database of this instance.
    pub is_local: u64,
    /// The chosen route has a mirror address.
    pub has_mirror: u64,
    /// The conversation names no broker id and is bound to one.
    pub is_bound: u64,
    /// Left to [`RouteIndex::decide`].
    pub needs_decide: u64,
}

/// Scratch memory for the stages of a block.
#[derive(Debug)]
pub struct Stages {
    /// The slot of each conversation's entry.
    slots: [u32; BLOCK],
    /// The `quarters` of the names, or a value that no entry has.
    chunks: [[u128; 4]; BLOCK],
    /// The [`short_key`]s of the names and sources.
    keys: [u32; BLOCK],
    actions: [Action; BLOCK],
    /// Mask of the names that are too long for `chunks`.
    long: u64,
    /// The unfinished conversations, by their next lookup.
    pending: [Rows; Next::COUNT],
    /// For conversations that look up a pair, the slot or number of the pair.
    pairs: [u32; BLOCK],
    /// For conversations that pick, the cell.
    picked: [u32; BLOCK],
    /// For conversations that re-enter, the source and slot.
    second_slots: [(Source, u32); BLOCK],
    numbers: [TieNumber; BLOCK],
}

/// A subset of a block's conversations.
#[derive(Clone, Copy, Debug)]
struct Rows {
    rows: [u8; BLOCK],
    len: usize,
}

impl Default for Answers {
    fn default() -> Self {
        Self {
            brokers: [Guid::default(); BLOCK],
            outcomes: [0; BLOCK],
            reasons: [0; BLOCK],
            steps: [0; BLOCK],
            route_ids: [0; BLOCK],
            to: [0; BLOCK],
            mirrors: [0; BLOCK],
            has_step: 0,
            has_route: 0,
            has_hop: 0,
            is_local: 0,
            has_mirror: 0,
            is_bound: 0,
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
            long: 0,
            actions: [Action::next(Next::Rules); BLOCK],
            pending: [Rows { rows: [0; BLOCK], len: 0 }; Next::COUNT],
            pairs: [0; BLOCK],
            picked: [0; BLOCK],
            second_slots: [(0, 0); BLOCK],
            numbers: [TieNumber::default(); BLOCK],
        }
    }
}

impl Rows {
    #[inline]
    fn push(&mut self, row: usize) {
        self.rows[self.len % BLOCK] = row as u8;
        self.len += 1;
    }

    #[inline]
    fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.rows[..self.len.min(BLOCK)].iter().map(|&row| usize::from(row) % BLOCK)
    }
}

impl Stages {
    /// Groups the conversations in the mask by their next lookup.
    #[inline]
    fn group_by_next(&mut self, rows: u64) {
        for pending in &mut self.pending {
            pending.len = 0;
        }
        for row in set_bits(rows) {
            if let Some(next) = self.actions[row].next_of() {
                self.pending[next as usize].push(row);
            }
        }
    }

    #[inline]
    fn pending_on(&self, next: Next) -> Rows {
        self.pending[next as usize]
    }

    /// Returns a mask of the conversations whose actions have a flag.
    #[inline]
    fn mask_with_flag(&self, flag: u8) -> u64 {
        mask_of_bit(&self.actions.map(|action| action.flags), u32::from(flag))
    }
}

/// Returns a mask with one bit of each byte, processing eight bytes at a time.
#[inline]
fn mask_of_bit(bytes: &[u8; BLOCK], bit: u32) -> u64 {
    // Gathers the lowest bits of eight bytes in the highest byte.
    const GATHER: u64 = 0x0102_0408_1020_4080;
    bytes.as_chunks::<8>().0.iter().rev().fold(0, |bits, bytes| {
        let lowest = u64::from_le_bytes(*bytes) >> bit & 0x0101_0101_0101_0101;
        bits << 8 | lowest.wrapping_mul(GATHER) >> 56
    })
}

/// The block to decide, and the arguments.
#[derive(Clone, Copy)]
struct Request<'a, F> {
    block: &'a Block<'a>,
    now: i64,
    conversation: F,
}

impl<F: Fn(usize) -> Guid> Request<'_, F> {
    #[inline]
    fn has_broker(&self, row: usize) -> bool {
        self.block.has_broker >> row & 1 == 1
    }

    /// Picks a cell; a single candidate needs no conversation id.
    #[inline]
    fn pick(&self, row: usize, cell: Cell, number: &mut Option<TieNumber>) -> usize {
        let candidates = cell.candidates();
        if candidates.len() == 1 {
            return candidates.start;
        }
        let number = number.get_or_insert_with(|| TieNumber::new((self.conversation)(row)));
        candidates.start + number.pick(candidates.len())
    }

    /// Picks until the cell is not a pick.
    #[inline]
    fn follow_picks(&self, row: usize, mut cell: Cell, cells: &[Cell], number: &mut Option<TieNumber>) -> Cell {
        while cell.action == Action::next(Next::Pick) {
            cell = cells[self.pick(row, cell, number)];
        }
        cell
    }

    /// Picks, and reads the service name if the cell depends on it (R23).
    #[inline]
    fn check_name_and_follow_picks(
        &self,
        row: usize,
        cell: Cell,
        cells: &[Cell],
        number: &mut Option<TieNumber>,
    ) -> Cell {
        if !cell.action.has(Action::UNFINISHED) {
            return cell;
        }
        let cell = if cell.action == Action::next(Next::MaybeAddress) && !has_next_hop(self.block.names[row]) {
            cells[cell.candidates().start]
        } else {
            cell
        };
        self.follow_picks(row, cell, cells, number)
    }
}

impl RouteIndex {
    /// Decides the conversations of a block. `answers.brokers` contains the broker ids that they name; `conversation`
    /// returns a conversation id and is called only to pick one of several candidates.
    pub fn resolve(
        &self,
        block: &Block<'_>,
        now: i64,
        conversation: impl Fn(usize) -> Guid + Copy,
        stages: &mut Stages,
        scratch: &mut Scratch,
        answers: &mut Answers,
    ) {
        let len = block.len.min(BLOCK);
        let rows = ones(len);
        if self.options.tie_break == TieBreak::RoundRobin {
            *answers = Answers { brokers: answers.brokers, needs_decide: rows, ..Answers::default() };
            return;
        }
        let request = Request { block, now, conversation };
        self.look_up_entries(block, len, stages);
        let may_be_omitted = self.evaluate(&request, len, stages, answers);
        for row in set_bits(may_be_omitted & !stages.long) {
            if self.is_omitted(block, row, block.sources[row], stages) {
                stages.actions[row] = Action::next(Next::Rules);
            }
        }
        let unfinished = stages.mask_with_flag(Action::UNFINISHED) & rows;
        for row in set_bits(stages.mask_with_flag(Action::BINDS) & !unfinished & rows) {
            answers.brokers[row] = self.entries[stages.slots[row] as usize].broker;
        }
        if unfinished != 0 {
            stages.group_by_next(unfinished);
            self.finish_picks(&request, stages, scratch, answers);
            self.finish_pairs(&request, stages, scratch, answers);
            for row in stages.pending_on(Next::MaybeAddress).iter() {
                let target = Target { route_id: answers.route_ids[row], to: answers.to[row] as u32 };
                let mut number = None;
                let cell = request.check_name_and_follow_picks(
                    row,
                    Cell::next(Next::MaybeAddress, target),
                    &self.cells,
                    &mut number,
                );
                self.finish(&request, row, cell, number, stages, scratch, answers);
            }
            for row in stages.pending_on(Next::LongName).iter() {
                let source = block.sources[row];
                let slot = self.slot(source, block.names[row]);
                self.look_up_or_default(&request, row, (source, slot), None, stages, scratch, answers);
            }
            self.finish_expired(&request, stages, scratch, answers);
            self.finish_second_lookups(&request, stages, scratch, answers);
        }
        self.collect(rows, block.has_broker, stages, answers);
    }

    /// Looks up the slot of each conversation's entry.
    #[inline]
    fn look_up_entries(&self, block: &Block<'_>, len: usize, stages: &mut Stages) {
        stages.long = 0;
        for row in 0..len {
            let (name, source) = (block.names[row], block.sources[row]);
            let key = short_key(source, name.len());
            stages.keys[row] = key;
            let hash = if let Some(chunks) = quarters(name) {
                stages.chunks[row] = chunks;
                self.hash.of_short(&chunks, name.len(), key)
            } else {
                stages.chunks[row] = [u128::MAX; 4];
                stages.long |= 1 << row;
                self.hash.of(name, source)
            };
            stages.slots[row] = self.prefetched_slot(hash);
        }
    }

    /// Returns the slot of a hash, and prefetches the entry there.
    #[inline]
    fn prefetched_slot(&self, hash: u64) -> u32 {
        let slot = self.entry_slots.slot(hash);
        prefetch_line(&self.entries, slot, 0);
        prefetch_line(&self.entries, slot, 1);
        slot as u32
    }

    /// Determines the action for each conversation, and its target in the entry. Returns a mask of the conversations
    /// that have no entry, from sources that omit names.
    ///
    /// Which conversations name a broker id is unpredictable, so this computes with numbers instead of branching.
    #[inline]
    fn evaluate<F: Fn(usize) -> Guid>(
        &self,
        request: &Request<'_, F>,
        len: usize,
        stages: &mut Stages,
        answers: &mut Answers,
    ) -> u64 {
        let mut may_be_omitted = 0;
        for row in 0..len {
            let slot = stages.slots[row];
            let entry = &self.entries[slot as usize];
            let is_it = entry.is_of(&stages.chunks[row], stages.keys[row]);
            let slot = if is_it {
                slot
            } else {
                let source = request.block.sources[row];
                may_be_omitted |= u64::from(self.omits_names(source)) << row;
                self.default_slot(source)
            };
            let entry = &self.entries[slot as usize];
            let position = entry.action_position(request.has_broker(row), answers.brokers[row]);
            let is_live = request.now < entry.expires;
            let action = if is_live { entry.actions[position % 3] } else { Action::next(Next::Expired) };
            let target = entry.target(action);
            stages.slots[row] = slot;
            stages.actions[row] = action;
            answers.route_ids[row] = target.route_id;
            answers.to[row] = target.to as i32;
        }
        for row in set_bits(stages.long) {
            stages.actions[row] = Action::next(Next::LongName);
        }
        may_be_omitted
    }

    /// Whether the limit omits the entry of a conversation's name in a source.
    #[inline]
    fn is_omitted(&self, block: &Block<'_>, row: usize, source: Source, stages: &Stages) -> bool {
        let name = block.names[row];
        // The filter appears to contain some names that are not omitted. Every omitted name has an entry in a different source.
        let is_omitted_and_listed = |hashed_in, listed_in| {
            self.omitted_names.may_contain(self.hash_in(block, row, hashed_in, stages))
                && self.slot(listed_in, name).is_some()
        };
        self.omits_names(source)
            && (is_omitted_and_listed(self.replies(), self.replies())
                || source == self.catalog.msdb && is_omitted_and_listed(source, self.outside()))
    }

    /// Returns the hash of a conversation's name in a source.
    #[inline]
    fn hash_in(&self, block: &Block<'_>, row: usize, source: Source, stages: &Stages) -> u64 {
        let name = block.names[row];
        if stages.long >> row & 1 == 1 {
            return self.hash.of(name, source);
        }
        self.hash.of_short(&stages.chunks[row], name.len(), short_key(source, name.len()))
    }

    /// Finishes the conversations whose entries contain a pick.
    fn finish_picks<F: Fn(usize) -> Guid>(
        &self,
        request: &Request<'_, F>,
        stages: &mut Stages,
        scratch: &mut Scratch,
        answers: &mut Answers,
    ) {
        let rows = stages.pending_on(Next::Pick);
        for row in rows.iter() {
            let (first, count) = (answers.route_ids[row] as u32, answers.to[row] as u32);
            let mut pick = 0;
            if count > 1 {
                stages.numbers[row] = TieNumber::new((request.conversation)(row));
                pick = stages.numbers[row].pick(count as usize) as u32;
            }
            stages.picked[row] = first + pick;
            prefetch(&self.cells, stages.picked[row] as usize);
        }
        for row in rows.iter() {
            // A single candidate is finished and leaves no pick to do; its number is that of an earlier block.
            let mut number = Some(stages.numbers[row]);
            let cell = request.follow_picks(row, self.cells[stages.picked[row] as usize], &self.cells, &mut number);
            self.finish(request, row, cell, number, stages, scratch, answers);
        }
    }

    /// Finishes the conversations whose broker ids must be looked up.
    fn finish_pairs<F: Fn(usize) -> Guid>(
        &self,
        request: &Request<'_, F>,
        stages: &mut Stages,
        scratch: &mut Scratch,
        answers: &mut Answers,
    ) {
        let all = [Next::Pair, Next::HostDatabase].map(|next| (next, stages.pending_on(next)));
        for (next, rows) in &all {
            for row in rows.iter() {
                let slot = stages.slots[row];
                let of_host = || host_owner(self.entries[slot as usize].service);
                let owner = if *next == Next::Pair { slot } else { of_host() };
                let pair = self.pair_slots.slot(self.hash.of_guid(answers.brokers[row], owner));
                prefetch(&self.pair_at, pair);
                stages.pairs[row] = pair as u32;
            }
        }
        for (_, rows) in &all {
            for row in rows.iter() {
                stages.pairs[row] = self.pair_at[stages.pairs[row] as usize];
                prefetch(&self.pairs, stages.pairs[row] as usize);
            }
        }
        for (next, rows) in &all {
            for row in rows.iter() {
                let (slot, broker) = (stages.slots[row], answers.brokers[row]);
                let entry = &self.entries[slot as usize];
                let pair = self.pairs.get(stages.pairs[row] as usize);
                let cell = if *next == Next::Pair {
                    let pair = pair.filter(|pair| pair.is(slot, broker));
                    pair.map_or_else(|| self.cell_of_unlisted_id(entry, &self.cells, broker), Pair::cell)
                } else {
                    let is_host = pair.is_some_and(|pair| pair.is(host_owner(entry.service), broker));
                    self.cells[entry.unlisted_cells as usize + usize::from(is_host)]
                };
                let mut number = None;
                let cell = request.follow_picks(row, cell, &self.cells, &mut number);
                self.finish(request, row, cell, number, stages, scratch, answers);
            }
        }
    }

    /// Finishes the conversations whose entries have expired.
    fn finish_expired<F: Fn(usize) -> Guid>(
        &self,
        request: &Request<'_, F>,
        stages: &mut Stages,
        scratch: &mut Scratch,
        answers: &mut Answers,
    ) {
        let rows = stages.pending_on(Next::Expired);
        for row in rows.iter() {
            scratch.entries.prefetch_number(stages.slots[row]);
        }
        for row in rows.iter() {
            scratch.entries.prefetch_entry(stages.slots[row]);
        }
        for row in rows.iter() {
            self.look_up_live(request, row, None, stages, scratch, answers);
        }
    }

    /// Returns the decision for a broker id that the routes of an entry do not name.
    pub(crate) fn cell_of_unlisted_id(&self, entry: &Entry, cells: &[Cell], broker: Guid) -> Cell {
        let is_host = entry.service != NONE && self.pair(host_owner(entry.service), broker).is_some();
        cells[entry.unlisted_cells as usize + usize::from(is_host)]
    }

    /// Finishes the conversations that are decided by a different entry than the one of their source and name, with a
    /// second lookup.
    fn finish_second_lookups<F: Fn(usize) -> Guid>(
        &self,
        request: &Request<'_, F>,
        stages: &mut Stages,
        scratch: &mut Scratch,
        answers: &mut Answers,
    ) {
        for row in stages.pending_on(Next::Unknown).iter() {
            let slot = self.unknown_slot(row, stages);
            self.look_up(request, row, slot, None, stages, scratch, answers);
        }
        let rows = stages.pending_on(Next::ReEnter);
        for row in rows.iter() {
            stages.second_slots[row] = self.find_second_slot(request, row, stages, answers);
        }
        for row in rows.iter() {
            let second = stages.second_slots[row];
            self.re_enter(request, row, second, None, stages, scratch, answers);
        }
    }

    /// Returns the slot of the entry for unknown names in the source of a conversation's entry.
    #[inline]
    fn unknown_slot(&self, row: usize, stages: &Stages) -> u32 {
        self.default_slot(self.entries[stages.slots[row] as usize].source())
    }

    /// Returns the source of a conversation that re-enters and a slot, and prefetches the entry there. The entry may
    /// belong to a different name.
    // Returning the pair through memory would stall the reader.
    #[allow(clippy::inline_always)]
    #[inline(always)]
    fn find_second_slot<F: Fn(usize) -> Guid>(
        &self,
        request: &Request<'_, F>,
        row: usize,
        stages: &Stages,
        answers: &Answers,
    ) -> (Source, u32) {
        let is_initiator = request.block.from_target >> row & 1 == 0;
        let source = self.source(None, is_initiator, request.has_broker(row).then(|| answers.brokers[row]));
        (source, self.prefetched_slot(self.hash_in(request.block, row, source, stages)))
    }

    /// Decides as if the conversation came from another instance (R41). `second` is the result of `find_second_slot`.
    #[allow(clippy::too_many_arguments)]
    fn re_enter<F: Fn(usize) -> Guid>(
        &self,
        request: &Request<'_, F>,
        row: usize,
        (source, slot): (Source, u32),
        number: Option<TieNumber>,
        stages: &mut Stages,
        scratch: &mut Scratch,
        answers: &mut Answers,
    ) {
        let name = request.block.names[row];
        let is_it = if stages.long >> row & 1 == 1 {
            self.is_in_slot(slot, source, name)
        } else {
            self.entries[slot as usize].is_of(&stages.chunks[row], short_key(source, name.len()))
        };
        let slot = Some(slot).filter(|_| is_it);
        self.look_up_or_default(request, row, (source, slot), number, stages, scratch, answers);
    }

    /// Decides a conversation by the entry in a slot, or if its name has no entry in the source, by the default entry.
    #[allow(clippy::too_many_arguments)]
    #[inline]
    fn look_up_or_default<F: Fn(usize) -> Guid>(
        &self,
        request: &Request<'_, F>,
        row: usize,
        (source, slot): (Source, Option<u32>),
        number: Option<TieNumber>,
        stages: &mut Stages,
        scratch: &mut Scratch,
        answers: &mut Answers,
    ) {
        if slot.is_none() && self.is_omitted(request.block, row, source, stages) {
            stages.actions[row] = Action::next(Next::Rules);
            return;
        }
        let slot = slot.unwrap_or_else(|| self.default_slot(source));
        self.look_up(request, row, slot, number, stages, scratch, answers);
    }

    /// Decides a conversation by the entry in a slot, which may have expired.
    #[allow(clippy::too_many_arguments)]
    #[inline]
    fn look_up<F: Fn(usize) -> Guid>(
        &self,
        request: &Request<'_, F>,
        row: usize,
        slot: u32,
        mut number: Option<TieNumber>,
        stages: &mut Stages,
        scratch: &mut Scratch,
        answers: &mut Answers,
    ) {
        stages.slots[row] = slot;
        let (has_broker, broker) = (request.has_broker(row), answers.brokers[row]);
        let entry = &self.entries[slot as usize];
        if request.now >= entry.expires {
            return self.look_up_live(request, row, number, stages, scratch, answers);
        }
        let action = entry.action(has_broker, broker);
        if !action.has(Action::UNFINISHED) {
            return Self::finish_in_entry(row, entry, action, stages, answers);
        }
        let cell = match entry.cell(action) {
            cell if cell.action == Action::next(Next::Pair) => match self.pair(slot, broker) {
                Some(pair) => pair.cell(),
                None => self.cell_of_unlisted_id(entry, &self.cells, broker),
            },
            cell if cell.action == Action::next(Next::HostDatabase) => {
                self.cell_of_unlisted_id(entry, &self.cells, broker)
            }
            cell => cell,
        };
        let cell = request.check_name_and_follow_picks(row, cell, &self.cells, &mut number);
        self.finish(request, row, cell, number, stages, scratch, answers);
    }

    /// Decides a conversation whose entry has expired, by compiling the entry again for the current time.
    // Called for each conversation whose entry has expired.
    #[inline]
    fn look_up_live<F: Fn(usize) -> Guid>(
        &self,
        request: &Request<'_, F>,
        row: usize,
        mut number: Option<TieNumber>,
        stages: &mut Stages,
        scratch: &mut Scratch,
        answers: &mut Answers,
    ) {
        let slot = stages.slots[row];
        let live = self.live_entry(slot, request.now, scratch);
        let (entry, broker) = (&live.entry, answers.brokers[row]);
        let action = entry.action(request.has_broker(row), broker);
        if !action.has(Action::UNFINISHED) {
            return Self::finish_in_entry(row, entry, action, stages, answers);
        }
        let cell = match entry.cell(action) {
            cell if matches!(cell.action.next_of(), Some(Next::Pair | Next::HostDatabase)) => {
                let pair = live.pairs.get(&broker).copied();
                pair.unwrap_or_else(|| self.cell_of_unlisted_id(entry, &live.cells, broker))
            }
            cell => cell,
        };
        let cell = request.check_name_and_follow_picks(row, cell, &live.cells, &mut number);
        self.finish(request, row, cell, number, stages, scratch, answers);
    }

    /// Stores a decision that is complete in an entry.
    #[inline]
    fn finish_in_entry(row: usize, entry: &Entry, action: Action, stages: &mut Stages, answers: &mut Answers) {
        let target = entry.target(action);
        stages.actions[row] = action;
        answers.route_ids[row] = target.route_id;
        answers.to[row] = target.to as i32;
        if action.has(Action::BINDS) {
            answers.brokers[row] = entry.broker;
        }
    }

    /// Stores the decision of a conversation.
    #[inline]
    #[allow(clippy::too_many_arguments)]
    fn finish<F: Fn(usize) -> Guid>(
        &self,
        request: &Request<'_, F>,
        row: usize,
        cell: Cell,
        number: Option<TieNumber>,
        stages: &mut Stages,
        scratch: &mut Scratch,
        answers: &mut Answers,
    ) {
        match cell.action.next_of() {
            Some(Next::Unknown) => {
                let slot = self.unknown_slot(row, stages);
                return self.look_up(request, row, slot, number, stages, scratch, answers);
            }
            Some(Next::ReEnter) => {
                let second = self.find_second_slot(request, row, stages, answers);
                return self.re_enter(request, row, second, number, stages, scratch, answers);
            }
            _ => {}
        }
        stages.actions[row] = cell.action;
        answers.route_ids[row] = cell.target.route_id;
        answers.to[row] = cell.target.to as i32;
        answers.mirrors[row] = cell.mirror as i32;
        if cell.action.has(Action::BY_ID) {
            let service = self.entries[stages.slots[row] as usize].service;
            let host = self.pair(host_owner(service), answers.brokers[row]);
            answers.to[row] = host.map_or(0, |pair| pair.target.to as i32);
        }
        if cell.action.has(Action::BINDS) {
            answers.brokers[row] = cell.broker;
        }
    }

    /// Turns the actions into columns and masks.
    #[inline]
    fn collect(&self, rows: u64, has_broker: u64, stages: &Stages, answers: &mut Answers) {
        answers.outcomes = stages.actions.map(|action| action.outcome);
        answers.reasons = stages.actions.map(|action| action.reason);
        answers.steps = stages.actions.map(|action| action.step);
        answers.needs_decide = stages.mask_with_flag(Action::UNFINISHED) & rows;
        let finished = rows & !answers.needs_decide;
        answers.has_step = !mask_of_bit(&answers.steps.map(i8::cast_unsigned), 7) & finished;
        answers.has_route = stages.mask_with_flag(Action::HAS_ROUTE) & finished;
        answers.has_hop = stages.mask_with_flag(Action::HAS_HOP) & finished;
        answers.is_local = stages.mask_with_flag(Action::LOCAL) & finished;
        answers.has_mirror = stages.mask_with_flag(Action::HAS_MIRROR) & finished;
        answers.is_bound = stages.mask_with_flag(Action::BINDS) & finished & !has_broker;
        for row in set_bits(answers.is_local & !has_broker) {
            if let Some(broker) = self.catalog.databases[answers.to[row] as usize].broker {
                answers.brokers[row] = broker;
                answers.is_bound |= 1 << row;
            }
        }
    }
}
