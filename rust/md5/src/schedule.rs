//! Which message is in which lane, and when.
//!
//! The full blocks of a message go through a lane where they lie. All lanes advance together, by as many blocks as the shortest of them
//! still has; then it takes up the next message. The last one or two blocks of a message, with a bit and the length in them, have to be
//! made up: these wait until there are enough of them for every lane. In between, the state of a message stands where its digest will.
//!
//! What would leave lanes idle is a long message that comes last. So the longest come first, the others in the order of their places.

use crate::Digest;
use crate::lanes::{Copies, LANES_MAX, Sources, States, Targets, Vectors, prefetch};
use crate::rounds::{BLOCK, Block, START};
use crate::scalar::{closing, compress, digest, digest_of, words_of};
use std::cmp::Reverse;
use std::{mem, slice};

/// For fewer messages the plain registers are faster: they digest one as fast as a vector of AVX-512 two and a quarter.
pub(crate) const LANES_MIN: usize = 3;

/// Writes the digest of every input to its place in `into`, which has as many.
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

/// The messages of which all full blocks are done, fewer than twice the lanes.
struct Ends {
    waiting: [End; 2 * LANES_MAX],
    count: usize,
    blocks: [Block; LANES_MAX],
}

/// What one message still has to take in: its last bytes, or only its length.
#[derive(Clone, Copy, Default)]
struct End {
    place: usize,
    is_closing: bool,
}

/// The lanes with messages in them: the first `count`.
pub(crate) struct Lanes<'a> {
    pub(crate) states: States,
    pub(crate) sources: Sources<'a>,
    places: [usize; LANES_MAX],
    pub(crate) count: usize,
}

impl<'a> Batch<'a, '_> {
    fn digest_bodies(&mut self) {
        let mut lanes = Lanes::new();
        while lanes.count < self.vectors.lanes()
            && let Some((place, body)) = self.next_body()
        {
            lanes.put(lanes.count, START, place, body);
            lanes.count += 1;
        }
        while lanes.count >= LANES_MIN {
            lanes.advance(self.vectors);
            self.take_up(&mut lanes);
        }
        for lane in 0..lanes.count {
            let mut state = lanes.states.of(lane);
            compress(&mut state, lanes.sources[lane]);
            self.end(lanes.places[lane], state);
        }
    }

    /// Puts the next message into each lane that has no more blocks. When there are no more messages, the last lane moves there.
    fn take_up(&mut self, lanes: &mut Lanes<'a>) {
        for lane in (0..lanes.count).rev() {
            if !lanes.sources[lane].is_empty() {
                continue;
            }
            self.end(lanes.places[lane], lanes.states.of(lane));
            if let Some((place, body)) = self.next_body() {
                lanes.put(lane, START, place, body);
            } else {
                lanes.count -= 1;
                lanes.move_from(lanes.count, lane);
            }
        }
    }

    /// The next message that has a full block; those before it have ends only.
    fn next_body(&mut self) -> Option<(usize, &'a [Block])> {
        loop {
            let place = self.order.next(self.inputs)?;
            let body = self.inputs[place].as_chunks().0;
            if !body.is_empty() {
                if let Some(soon) = self.inputs.get(self.order.next + LANES_MAX) {
                    prefetch(soon);
                }
                return Some((place, body));
            }
            self.end(place, START);
        }
    }

    /// Keeps the state of a message for its end.
    fn end(&mut self, place: usize, state: [u32; 4]) {
        self.into[place] = digest_of(state);
        self.ends.waiting[self.ends.count] = End { place, is_closing: false };
        self.ends.count += 1;
        while self.ends.count >= self.vectors.lanes() {
            self.digest_ends(self.vectors.lanes());
        }
    }

    /// Takes in a block for each of the last `count` messages that wait. The length of some does not fit, and they wait once more.
    fn digest_ends(&mut self, count: usize) {
        let Ends { waiting, count: all, blocks } = &mut self.ends;
        let first = *all - count;
        let mut states = States::new();
        for (lane, (end, block)) in waiting[first..*all].iter_mut().zip(&mut *blocks).enumerate() {
            let input = self.inputs[end.place];
            states.put(lane, words_of(&self.into[end.place]));
            if end.is_closing {
                *block = closing(input.len() as u64);
            } else {
                end.is_closing = !self.vectors.pad(block, input.as_chunks::<BLOCK>().1, input.len() as u64);
                // From here on it says whether a closing block is still to come.
                continue;
            }
            end.is_closing = false;
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
            self.into[end.place] = digest_of(states.of(lane));
            if end.is_closing {
                waiting[*all] = end;
                *all += 1;
            }
        }
    }
}

impl<'a> Lanes<'a> {
    pub(crate) fn new() -> Self {
        Self { states: States::new(), sources: [&[]; LANES_MAX], places: [0; LANES_MAX], count: 0 }
    }

    pub(crate) fn put(&mut self, lane: usize, state: [u32; 4], place: usize, body: &'a [Block]) {
        self.states.put(lane, state);
        self.sources[lane] = body;
        self.places[lane] = place;
    }

    pub(crate) fn move_from(&mut self, from: usize, to: usize) {
        self.states.put(to, self.states.of(from));
        self.sources[to] = self.sources[from];
        self.places[to] = self.places[from];
    }

    /// Takes in as many blocks as all lanes have.
    pub(crate) fn advance(&mut self, vectors: Vectors) {
        let blocks = self.common();
        vectors.advance(&mut self.states, &self.sources, None, self.count, blocks);
        self.skip(blocks);
    }

    /// As `advance`; each lane also copies what it takes in to its target, unless that is empty.
    pub(crate) fn advance_copying(&mut self, vectors: Vectors, targets: &mut Targets<'_>) {
        let blocks = self.common();
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

    /// How many blocks all lanes have. An idle lane does the work of a busy one once more.
    fn common(&mut self) -> usize {
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

/// The order in which messages come.
struct Order {
    /// The places of the long messages, the longest first.
    long: Vec<usize>,
    /// How many of the long ones have come.
    long_done: usize,
    /// The most blocks of a message that is not long.
    blocks_max: usize,
    /// The place of the next message that may not be long.
    next: usize,
}

/// A message is long if it has more than this part of a lane's share of all blocks; so there are not many.
const LONG_PART: usize = 16;
/// Not worth the sorting.
const SHORT_BLOCKS: usize = 4;

impl Order {
    fn new(inputs: &[&[u8]], lanes: usize) -> Self {
        let mut order = Self { long: Vec::new(), long_done: 0, blocks_max: usize::MAX, next: 0 };
        if inputs.len() <= lanes {
            return order;
        }
        let blocks: usize = inputs.iter().map(|input| input.len() / BLOCK).sum();
        order.blocks_max = (blocks / (lanes * LONG_PART)).max(SHORT_BLOCKS);
        for (place, input) in inputs.iter().enumerate() {
            if input.len() / BLOCK > order.blocks_max {
                order.long.push(place);
            }
        }
        order.long.sort_unstable_by_key(|&place| Reverse(inputs[place].len()));
        order
    }

    #[inline]
    fn next(&mut self, inputs: &[&[u8]]) -> Option<usize> {
        if let Some(&place) = self.long.get(self.long_done) {
            self.long_done += 1;
            return Some(place);
        }
        loop {
            let place = self.next;
            let input = inputs.get(place)?;
            self.next += 1;
            if input.len() / BLOCK <= self.blocks_max {
                return Some(place);
            }
        }
    }
}
