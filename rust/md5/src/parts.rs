//! Messages in parts that lie anywhere: digested where they lie.

use crate::Digest;
use crate::lanes::{LANES_MAX, Vectors};
use crate::rounds::{BLOCK, Block, START};
use crate::scalar::{compress, finish};
use crate::schedule::{LANES_MIN, Lanes, digest_all};
use std::slice;

/// Shorter messages are copied together first: their ends would cost more than that.
const COPIED_MAX: usize = 8 << 10;

/// A message in parts.
#[derive(Clone, Copy, Default)]
struct Message<'a> {
    place: usize,
    len: usize,
    /// What of the present part is still to come, and the parts after it.
    rest: &'a [u8],
    parts: &'a [&'a [u8]],
}

/// Writes the digest of each message to its place in `into`; message `i` has the parts before `ends[i]` that no earlier one has.
pub(crate) fn digest_parts(vectors: Vectors, parts: &[&[u8]], ends: &[usize], into: &mut [Digest]) {
    let mut long = Vec::new();
    let (mut short, mut copied, mut bounds) = (Vec::new(), Vec::new(), vec![0]);
    let mut start = 0;
    for (place, &end) in ends.iter().enumerate() {
        let parts = &parts[start..end];
        start = end;
        let len = parts.iter().map(|part| part.len()).sum();
        if len < COPIED_MAX {
            for part in parts {
                copied.extend_from_slice(part);
            }
            bounds.push(copied.len());
            short.push(place);
        } else {
            long.push(Message { place, len, rest: &[], parts });
        }
    }
    digest_copied(vectors, &copied, &bounds, &short, into);
    long.sort_by_key(|message| std::cmp::Reverse(message.len));
    digest_long(vectors, &long, into);
}

fn digest_copied(vectors: Vectors, copied: &[u8], bounds: &[usize], places: &[usize], into: &mut [Digest]) {
    let inputs: Vec<&[u8]> = bounds.windows(2).map(|ends| &copied[ends[0]..ends[1]]).collect();
    let mut digests = vec![Digest::default(); inputs.len()];
    digest_all(vectors, &inputs, &mut digests);
    for (&place, digest) in places.iter().zip(digests) {
        into[place] = digest;
    }
}

/// Each lane takes in the blocks of a message part by part; what of a block stands in two parts goes through the plain registers.
fn digest_long(vectors: Vectors, messages: &[Message<'_>], into: &mut [Digest]) {
    let mut lanes = Lanes::new();
    let mut present = [Message::default(); LANES_MAX];
    let mut to_come = messages.iter().copied();
    let mut begin = |into: &mut [Digest]| {
        for mut message in to_come.by_ref() {
            let mut state = START;
            match message.blocks(&mut state) {
                Some(blocks) => return Some((message, state, blocks)),
                None => into[message.place] = message.digest(state),
            }
        }
        None
    };
    while lanes.count < vectors.lanes()
        && let Some((message, state, blocks)) = begin(into)
    {
        present[lanes.count] = message;
        lanes.put(lanes.count, state, message.place, blocks);
        lanes.count += 1;
    }
    while lanes.count >= LANES_MIN {
        lanes.advance(vectors);
        for lane in (0..lanes.count).rev() {
            if !lanes.sources[lane].is_empty() {
                continue;
            }
            let mut state = lanes.states.of(lane);
            if let Some(blocks) = present[lane].blocks(&mut state) {
                lanes.put(lane, state, present[lane].place, blocks);
                continue;
            }
            into[present[lane].place] = present[lane].digest(state);
            if let Some((message, state, blocks)) = begin(into) {
                present[lane] = message;
                lanes.put(lane, state, message.place, blocks);
            } else {
                lanes.count -= 1;
                lanes.move_from(lanes.count, lane);
                present[lane] = present[lanes.count];
            }
        }
    }
    for lane in 0..lanes.count {
        let mut state = lanes.states.of(lane);
        compress(&mut state, lanes.sources[lane]);
        while let Some(blocks) = present[lane].blocks(&mut state) {
            compress(&mut state, blocks);
        }
        into[present[lane].place] = present[lane].digest(state);
    }
}

impl<'a> Message<'a> {
    /// The next full blocks that stand in one part; `state` takes in those before them that do not. `None` before the end.
    fn blocks(&mut self, state: &mut [u32; 4]) -> Option<&'a [Block]> {
        loop {
            let (blocks, rest) = self.rest.as_chunks();
            if !blocks.is_empty() {
                self.rest = rest;
                return Some(blocks);
            }
            if self.rest.is_empty()
                && let Some((next, parts)) = self.parts.split_first()
            {
                (self.rest, self.parts) = (next, parts);
                continue;
            }
            let mut block = [0; BLOCK];
            let (BLOCK, rest, parts) = self.fill(&mut block) else { return None };
            compress(state, slice::from_ref(&block));
            (self.rest, self.parts) = (rest, parts);
        }
    }

    /// Fills a block from the rest of this part and the next ones. Says how far, and what then comes.
    fn fill(&self, block: &mut Block) -> (usize, &'a [u8], &'a [&'a [u8]]) {
        let (mut rest, mut parts, mut filled) = (self.rest, self.parts, 0);
        loop {
            let len = rest.len().min(BLOCK - filled);
            block[filled..filled + len].copy_from_slice(&rest[..len]);
            filled += len;
            rest = &rest[len..];
            match parts.split_first() {
                Some((next, others)) if filled < BLOCK => (rest, parts) = (next, others),
                _ => return (filled, rest, parts),
            }
        }
    }

    /// The digest, when fewer bytes than a block are to come.
    fn digest(&self, mut state: [u32; 4]) -> Digest {
        let mut block = [0; BLOCK];
        let (filled, ..) = self.fill(&mut block);
        finish(&mut state, &block[..filled], self.len as u64)
    }
}
