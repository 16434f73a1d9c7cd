//! Assigns messages to lanes.
//!
//! The full blocks of a message are processed without copying. All lanes advance together by the number of blocks that
//! remain in the shortest lane; then that lane gets the next message. The last one or two blocks of a message, which
//! contain padding and length, are built separately and wait until there is one for every lane. Meanwhile, the state of
//! a message is stored in place of its digest.
//!
//! A long message at the end would leave lanes idle, so the longest messages come first and the others in order.

use crate::Digest;
use crate::lanes::{Copies, LANES_MAX, Sources, States, Targets, Vectors, prefetch};
use crate::rounds::{BLOCK, Block, START};
use crate::scalar::{compress, digest, digest_of, length_block, words_of};
use std::cmp::Reverse;
use std::{mem, slice};

/// For fewer messages, scalar code is faster: an AVX-512 vector takes as long as 2.25 scalar digests.
pub(crate) const LANES_MIN: usize = 3;

/// Cache lines at this distance belong to the same set of a first-level cache, which has room for 8 or 12 lines.
const SET_DISTANCE: usize = 4096;
/// Messages with fewer blocks are not staggered: lanes that finish one by one cost more than cache misses.
const STAGGERED_MIN: usize = 64;

/// Writes the digest of each input to `into`, which has the same length.
pub(crate) fn digest_all(vectors: Vectors, inputs: &[&[u8]], into: &mut [Digest]) {
    if inputs.len() < LANES_MIN {
        for (input, into) in inputs.iter().zip(into) {
            *into = digest(input);
        }
        return;
    }
    let mut batch = Batch {
        vectors,
        inputs,
        order: Order::new(inputs, vectors.lanes()),
        into,
        ends: Ends { waiting: [End::default(); 2 * LANES_MAX], count: 0, blocks: [[0; BLOCK]; LANES_MAX] },
    };
    batch.digest_bodies();
    while batch.ends.count > 0 {
        batch.digest_ends(batch.ends.count.min(vectors.lanes()));
    }
}

struct Batch<'a, 'b> {
    vectors: Vectors,
    inputs: &'a [&'a [u8]],
    order: Order,
    into: &'b mut [Digest],
    ends: Ends,
}

/// Messages whose full blocks have all been processed; fewer than twice the number of lanes.
struct Ends {
    waiting: [End; 2 * LANES_MAX],
    count: usize,
    blocks: [Block; LANES_MAX],
}

/// The rest of a message: its last bytes, or only its length.
#[derive(Clone, Copy, Default)]
struct End {
    index: usize,
    is_length: bool,
}

/// The first `count` lanes have messages.
pub(crate) struct Lanes<'a> {
    pub(crate) states: States,
    pub(crate) sources: Sources<'a>,
    indices: [usize; LANES_MAX],
    pub(crate) count: usize,
    /// The address of the message that was added last, modulo `SET_DISTANCE`.
    last_offset: usize,
}

impl<'a> Batch<'a, '_> {
    fn digest_bodies(&mut self) {
        let mut lanes = Lanes::new();
        loop {
            let blocks_max = self.fill(&mut lanes);
            if lanes.count < LANES_MIN {
                break;
            }
            lanes.advance(self.vectors, blocks_max);
            self.refill(&mut lanes);
        }
        for lane in 0..lanes.count {
            let mut state = lanes.states.of(lane);
            compress(&mut state, lanes.sources[lane]);
            self.end(lanes.indices[lane], state);
        }
    }

    /// Puts the next messages into unused lanes; returns the maximum number of blocks to process before the next call.
    fn fill(&mut self, lanes: &mut Lanes<'a>) -> usize {
        while lanes.count < self.vectors.lanes()
            && let Some((index, body)) = self.next_body()
        {
            if lanes.add(START, index, body) {
                return 1;
            }
        }
        usize::MAX
    }

    /// Puts the next message into each lane that has finished. If there is none, the last lane moves there.
    fn refill(&mut self, lanes: &mut Lanes<'a>) {
        for lane in (0..lanes.count).rev() {
            if !lanes.sources[lane].is_empty() {
                continue;
            }
            self.end(lanes.indices[lane], lanes.states.of(lane));
            if let Some((index, body)) = self.next_body() {
                lanes.put(lane, START, index, body);
            } else {
                lanes.count -= 1;
                lanes.move_from(lanes.count, lane);
            }
        }
    }

    /// Returns the next message with a full block. Messages before it consist only of an end.
    fn next_body(&mut self) -> Option<(usize, &'a [Block])> {
        loop {
            let index = self.order.next(self.inputs)?;
            let body = self.inputs[index].as_chunks().0;
            if !body.is_empty() {
                if let Some(soon) = self.inputs.get(self.order.next + LANES_MAX) {
                    prefetch(soon);
                }
                return Some((index, body));
            }
            self.end(index, START);
        }
    }

    /// Stores the state of a message for its end.
    fn end(&mut self, index: usize, state: [u32; 4]) {
        self.into[index] = digest_of(state);
        self.ends.waiting[self.ends.count] = End { index, is_length: false };
        self.ends.count += 1;
        while self.ends.count >= self.vectors.lanes() {
            self.digest_ends(self.vectors.lanes());
        }
    }

    /// Processes one block for each of the last `count` ends. Those whose length does not fit wait for another
    /// block.
    fn digest_ends(&mut self, count: usize) {
        let Ends { waiting, count: all, blocks } = &mut self.ends;
        let first = *all - count;
        let mut states = States::new();
        for (lane, (end, block)) in waiting[first..*all].iter_mut().zip(&mut *blocks).enumerate() {
            let input = self.inputs[end.index];
            states.put(lane, words_of(&self.into[end.index]));
            // From here on, `is_length` means that a length block must follow.
            end.is_length = if end.is_length {
                *block = length_block(input.len() as u64);
                false
            } else {
                !self.vectors.pad(block, input.as_chunks::<BLOCK>().1, input.len() as u64)
            };
        }
        if count < LANES_MIN {
            for (lane, block) in blocks.iter().enumerate().take(count) {
                let mut state = states.of(lane);
                compress(&mut state, slice::from_ref(block));
                states.put(lane, state);
            }
        } else {
            let sources = std::array::from_fn(|lane| slice::from_ref(&blocks[lane]));
            self.vectors.advance(&mut states, &sources, None, count, 1);
        }
        *all = first;
        for lane in 0..count {
            let end = waiting[first + lane];
            self.into[end.index] = digest_of(states.of(lane));
            if end.is_length {
                waiting[*all] = end;
                *all += 1;
            }
        }
    }
}

impl<'a> Lanes<'a> {
    pub(crate) fn new() -> Self {
        Self {
            states: States::new(),
            sources: [&[]; LANES_MAX],
            indices: [0; LANES_MAX],
            count: 0,
            last_offset: usize::MAX,
        }
    }

    /// Puts a message into the next unused lane. Returns whether the next message should start a block later, so that
    /// the lanes do not read lines of the same cache set at the same time.
    fn add(&mut self, state: [u32; 4], index: usize, body: &'a [Block]) -> bool {
        self.put(self.count, state, index, body);
        self.count += 1;
        let offset = body.as_ptr().addr() % SET_DISTANCE;
        let is_same_set = offset == mem::replace(&mut self.last_offset, offset);
        is_same_set && body.len() >= STAGGERED_MIN && self.count >= LANES_MIN
    }

    pub(crate) fn put(&mut self, lane: usize, state: [u32; 4], index: usize, body: &'a [Block]) {
        self.states.put(lane, state);
        self.sources[lane] = body;
        self.indices[lane] = index;
    }

    pub(crate) fn move_from(&mut self, from: usize, to: usize) {
        self.states.put(to, self.states.of(from));
        self.sources[to] = self.sources[from];
        self.indices[to] = self.indices[from];
    }

    /// Processes the blocks that all lanes have, up to `blocks_max`.
    fn advance(&mut self, vectors: Vectors, blocks_max: usize) {
        let blocks = self.common_blocks().min(blocks_max);
        vectors.advance(&mut self.states, &self.sources, None, self.count, blocks);
        self.skip(blocks);
    }

    /// Like `advance`, but each lane also copies its input to its destination, unless that is empty.
    pub(crate) fn advance_copying(&mut self, vectors: Vectors, targets: &mut Targets<'_>) {
        let blocks = self.common_blocks();
        let mut copies = Copies::new();
        for (lane, target) in targets.iter_mut().enumerate().take(self.count) {
            if !target.is_empty() {
                let (now, later) = mem::take(target).split_at_mut(blocks * BLOCK);
                copies.put(lane, self.sources[lane][..blocks].as_flattened(), now);
                *target = later;
            }
        }
        vectors.advance(&mut self.states, &self.sources, Some(&mut copies), self.count, blocks);
        self.skip(blocks);
    }

    /// Returns the number of blocks that all lanes have. Idle lanes repeat the work of a busy one.
    fn common_blocks(&mut self) -> usize {
        let (busy, idle) = self.sources.split_at_mut(self.count);
        idle.fill(busy[0]);
        busy.iter().map(|source| source.len()).min().unwrap_or_default()
    }

    fn skip(&mut self, blocks: usize) {
        for source in &mut self.sources[..self.count] {
            *source = &source[blocks..];
        }
    }
}

/// The order in which messages are processed.
struct Order {
    /// The indices of the long messages, longest first.
    long: Vec<usize>,
    /// The number of long messages that have been returned.
    long_done: usize,
    /// The maximum number of blocks of a message that is not long.
    blocks_max: usize,
    /// The index of the next message to check.
    next: usize,
}

/// A message is long if it exceeds this fraction of a lane's share of all blocks; so there are few.
const LONG_PART: usize = 16;
/// Shorter messages are not worth sorting.
const SHORT_BLOCKS: usize = 4;

impl Order {
    fn new(inputs: &[&[u8]], lanes: usize) -> Self {
        let mut order = Self { long: Vec::new(), long_done: 0, blocks_max: usize::MAX, next: 0 };
        if inputs.len() <= lanes {
            return order;
        }
        let blocks: usize = inputs.iter().map(|input| input.len() / BLOCK).sum();
        order.blocks_max = (blocks / (lanes * LONG_PART)).max(SHORT_BLOCKS);
        for (index, input) in inputs.iter().enumerate() {
            if input.len() / BLOCK > order.blocks_max {
                order.long.push(index);
            }
        }
        order.long.sort_unstable_by_key(|&index| Reverse(inputs[index].len()));
        order
    }

    #[inline]
    fn next(&mut self, inputs: &[&[u8]]) -> Option<usize> {
        if let Some(&index) = self.long.get(self.long_done) {
            self.long_done += 1;
            return Some(index);
        }
        loop {
            let index = self.next;
            let input = inputs.get(index)?;
            self.next += 1;
            if input.len() / BLOCK <= self.blocks_max {
                return Some(index);
            }
        }
    }
}
