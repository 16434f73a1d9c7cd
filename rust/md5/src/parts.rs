//! Messages that consist of parts: digested without copying, or digested and assembled in one pass over memory.
#![allow(unsafe_code)]

use std::cmp::Reverse;
use std::mem::MaybeUninit;
use std::{array, mem, slice};

use crate::lane_assignment::{LANES_MIN, Lanes, digest_all};
use crate::lanes::{LANES_MAX, Targets, Vectors, copy};
use crate::rounds::{BLOCK, Block, START};
use crate::scalar::{compress, finish};
use crate::{AppendTarget, Digest};

/// Shorter messages are copied first, because handling part boundaries would cost more.
pub(crate) const COPIED_MAX: usize = 8 << 10;

/// A message that consists of parts.
#[derive(Default)]
pub(crate) struct Message<'a, 'c> {
    pub(crate) index: usize,
    pub(crate) len: usize,
    /// The rest of the current part, and the parts after it.
    rest: &'a [u8],
    parts: &'a [&'a [u8]],
    /// The destination of the rest; empty if the message is not copied.
    target: &'c mut [MaybeUninit<u8>],
}

/// Full blocks within one part, and their destination.
type Run<'a, 'c> = (&'a [Block], &'c mut [MaybeUninit<u8>]);

/// Writes the digest of each message; see [`crate::digest_parts`].
pub(crate) fn digest_parts(vectors: Vectors, parts: &[&[u8]], ends: &[usize], into: &mut [Digest]) {
    let mut long = Vec::new();
    let (mut short, mut copied, mut bounds) = (Vec::new(), Vec::new(), vec![0]);
    let mut start = 0;
    for (index, &end) in ends.iter().enumerate() {
        let message = Message::new(index, &parts[start..end]);
        start = end;
        if message.len < COPIED_MAX {
            for part in message.parts {
                copied.extend_from_slice(part);
            }
            bounds.push(copied.len());
            short.push(index);
        } else {
            long.push(message);
        }
    }
    digest_copied(vectors, &copied, &bounds, &short, into);
    digest_long(vectors, long, |index, digest| into[index] = digest);
}

fn digest_copied(vectors: Vectors, copied: &[u8], bounds: &[usize], indices: &[usize], into: &mut [Digest]) {
    let inputs: Vec<&[u8]> = bounds.windows(2).map(|ends| &copied[ends[0]..ends[1]]).collect();
    let mut digests = vec![Digest::default(); inputs.len()];
    digest_all(vectors, &inputs, &mut digests);
    for (&index, digest) in indices.iter().zip(digests) {
        into[index] = digest;
    }
}

/// Each lane processes the blocks of a message part by part. A block that spans parts is processed by scalar code.
pub(crate) fn digest_long<'a, 'c>(
    vectors: Vectors,
    mut messages: Vec<Message<'a, 'c>>,
    mut done: impl FnMut(usize, Digest),
) {
    messages.sort_by_key(|message| Reverse(message.len));
    let mut lanes = Lanes::new();
    let mut targets: Targets<'c> = array::from_fn(|_| &mut [][..]);
    let mut current: [Message<'a, 'c>; LANES_MAX] = array::from_fn(|_| Message::default());
    let mut remaining = messages.into_iter();
    let mut start_next = |done: &mut dyn FnMut(usize, Digest)| {
        for mut message in remaining.by_ref() {
            let mut state = START;
            match message.blocks(&mut state) {
                Some(run) => return Some((message, state, run)),
                None => done(message.index, message.digest(state)),
            }
        }
        None
    };
    while lanes.count < vectors.lanes()
        && let Some((message, state, (blocks, target))) = start_next(&mut done)
    {
        lanes.put(lanes.count, state, message.index, blocks);
        (current[lanes.count], targets[lanes.count]) = (message, target);
        lanes.count += 1;
    }
    while lanes.count >= LANES_MIN {
        lanes.advance_copying(vectors, &mut targets);
        for lane in (0..lanes.count).rev() {
            if !lanes.sources[lane].is_empty() {
                continue;
            }
            let mut state = lanes.states.of(lane);
            if let Some((blocks, target)) = current[lane].blocks(&mut state) {
                lanes.put(lane, state, current[lane].index, blocks);
                targets[lane] = target;
                continue;
            }
            done(current[lane].index, current[lane].digest(state));
            if let Some((message, state, (blocks, target))) = start_next(&mut done) {
                lanes.put(lane, state, message.index, blocks);
                (current[lane], targets[lane]) = (message, target);
            } else {
                lanes.count -= 1;
                lanes.move_from(lanes.count, lane);
                current[lane] = mem::take(&mut current[lanes.count]);
                targets[lane] = mem::take(&mut targets[lanes.count]);
            }
        }
    }
    for lane in 0..lanes.count {
        let mut state = lanes.states.of(lane);
        let (mut blocks, mut target) = (lanes.sources[lane], mem::take(&mut targets[lane]));
        loop {
            compress(&mut state, blocks);
            copy(blocks.as_flattened(), target);
            match current[lane].blocks(&mut state) {
                Some(run) => (blocks, target) = run,
                None => break,
            }
        }
        done(current[lane].index, current[lane].digest(state));
    }
}

impl<'a, 'c> Message<'a, 'c> {
    pub(crate) fn new(index: usize, parts: &'a [&'a [u8]]) -> Self {
        let len = parts.iter().map(|part| part.len()).sum();
        Self { index, len, parts, ..Self::default() }
    }

    /// Copies the message to a destination of the same length.
    pub(crate) fn copied_to(self, target: &'c mut [MaybeUninit<u8>]) -> Self {
        assert_eq!(self.len, target.len(), "the destination has another length than the message");
        Self { target, ..self }
    }

    /// Returns the next full blocks within one part, after processing the blocks before them that span parts.
    /// `None` at the end.
    fn blocks(&mut self, state: &mut [u32; 4]) -> Option<Run<'a, 'c>> {
        loop {
            let (blocks, rest) = self.rest.as_chunks();
            if !blocks.is_empty() {
                self.rest = rest;
                return Some((blocks, self.target(blocks.len() * BLOCK)));
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
            copy(&block, self.target(BLOCK));
            (self.rest, self.parts) = (rest, parts);
        }
    }

    /// Takes the destination of the next `len` bytes.
    fn target(&mut self, len: usize) -> &'c mut [MaybeUninit<u8>] {
        let len = len.min(self.target.len());
        let (now, later) = mem::take(&mut self.target).split_at_mut(len);
        self.target = later;
        now
    }

    /// Fills a block from the rest of this part and the next parts. Returns the number of bytes and what follows.
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

    /// Returns the digest if less than a block remains.
    fn digest(&mut self, mut state: [u32; 4]) -> Digest {
        let mut block = [0; BLOCK];
        let (filled, ..) = self.fill(&mut block);
        copy(&block[..filled], self.target(filled));
        finish(&mut state, &block[..filled], self.len as u64)
    }
}

/// Short messages are digested together in batches of this many bytes, which fit into the caches.
const SHORT_BYTES: usize = 256 << 10;

/// Short messages that have been copied but not digested.
#[derive(Default)]
struct Short<'c> {
    messages: Vec<&'c [u8]>,
    indices: Vec<usize>,
    bytes: usize,
}

/// See [`crate::append_parts`].
pub(crate) fn append_parts(
    vectors: Vectors,
    parts: &[&[u8]],
    ends: &[usize],
    into: &mut [Option<Digest>],
    to: &mut [AppendTarget<'_>],
) {
    let (mut long, mut short, mut lengths) = (Vec::new(), Short::default(), Vec::with_capacity(to.len()));
    let (mut start, mut index) = (0, 0);
    for AppendTarget { messages, to } in &mut *to {
        let ends = &ends[index..index + *messages];
        let all = &parts[start..ends.last().copied().unwrap_or(start)];
        let total = all.iter().map(|part| part.len()).sum();
        lengths.push(to.len() + total);
        to.reserve(total);
        let mut spare = &mut to.spare_capacity_mut()[..total];
        for &end in ends {
            let message = Message::new(index, &parts[start..end]);
            let (target, rest) = spare.split_at_mut(message.len);
            spare = rest;
            match &into[index] {
                Some(_) if message.len >= COPIED_MAX => long.push(message.copied_to(target)),
                Some(_) => short.add(index, copy_all(&parts[start..end], target)),
                None => _ = copy_all(&parts[start..end], target),
            }
            if short.bytes >= SHORT_BYTES {
                short.digest(vectors, into);
            }
            start = end;
            index += 1;
        }
        assert!(spare.is_empty(), "{} bytes of a vector belong to no message", spare.len());
    }
    short.digest(vectors, into);
    digest_long(vectors, long, |index, digest| into[index] = Some(digest));
    for (AppendTarget { to, .. }, len) in to.iter_mut().zip(lengths) {
        // SAFETY: the capacity was reserved. All bytes belong to destinations of messages: the loop asserts that none
        // is left over. All messages have been copied: `copy_all` asserts it for the short ones; of a long one,
        // `copied_to` asserts that it is as long as its destination, and `digest_long` has copied every part of it,
        // because `copy` asserts equal lengths and `advance` that it processes all lanes.
        unsafe { to.set_len(len) };
    }
}

impl<'c> Short<'c> {
    fn add(&mut self, index: usize, message: &'c [u8]) {
        self.messages.push(message);
        self.indices.push(index);
        self.bytes += message.len();
    }

    fn digest(&mut self, vectors: Vectors, into: &mut [Option<Digest>]) {
        let mut digests = vec![Digest::default(); self.messages.len()];
        digest_all(vectors, &self.messages, &mut digests);
        for (index, digest) in self.indices.drain(..).zip(digests) {
            into[index] = Some(digest);
        }
        self.messages.clear();
        self.bytes = 0;
    }
}

/// Copies parts to a destination of the same total length.
fn copy_all<'c>(parts: &[&[u8]], target: &'c mut [MaybeUninit<u8>]) -> &'c [u8] {
    let mut rest = &mut *target;
    for part in parts {
        let (now, later) = rest.split_at_mut(part.len());
        copy(part, now);
        rest = later;
    }
    assert!(rest.is_empty(), "{} bytes were not written", rest.len());
    // SAFETY: the parts have filled the destination completely.
    unsafe { slice::from_raw_parts(target.as_ptr().cast(), target.len()) }
}
