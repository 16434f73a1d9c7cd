//! Messages in parts that lie anywhere: digested where they lie.
#![allow(unsafe_code)]

use std::cmp::Reverse;
use std::mem::MaybeUninit;
use std::{array, mem, slice};

use crate::lanes::{LANES_MAX, Targets, Vectors, copy};
use crate::rounds::{BLOCK, Block, START};
use crate::scalar::{compress, finish};
use crate::schedule::{LANES_MIN, Lanes, digest_all};
use crate::{Appended, Digest};

/// Shorter messages are copied together first: their ends would cost more than that.
pub(crate) const COPIED_MAX: usize = 8 << 10;

/// A message in parts.
#[derive(Default)]
pub(crate) struct Message<'a, 'c> {
    pub(crate) place: usize,
    pub(crate) len: usize,
    /// What of the present part is still to come, and the parts after it.
    rest: &'a [u8],
    parts: &'a [&'a [u8]],
    /// Where what is still to come is copied to; empty where it is not.
    target: &'c mut [MaybeUninit<u8>],
}

/// Full blocks that stand in one part, and where they are copied to.
type Run<'a, 'c> = (&'a [Block], &'c mut [MaybeUninit<u8>]);

/// Writes the digest of each message to its place in `into`; message `i` has the parts before `ends[i]` that no earlier one has.
pub(crate) fn digest_parts(vectors: Vectors, parts: &[&[u8]], ends: &[usize], into: &mut [Digest]) {
    let mut long = Vec::new();
    let (mut short, mut copied, mut bounds) = (Vec::new(), Vec::new(), vec![0]);
    let mut start = 0;
    for (place, &end) in ends.iter().enumerate() {
        let message = Message::new(place, &parts[start..end]);
        start = end;
        if message.len < COPIED_MAX {
            for part in message.parts {
                copied.extend_from_slice(part);
            }
            bounds.push(copied.len());
            short.push(place);
        } else {
            long.push(message);
        }
    }
    digest_copied(vectors, &copied, &bounds, &short, into);
    digest_long(vectors, long, |place, digest| into[place] = digest);
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
pub(crate) fn digest_long<'a, 'c>(
    vectors: Vectors,
    mut messages: Vec<Message<'a, 'c>>,
    mut done: impl FnMut(usize, Digest),
) {
    messages.sort_by_key(|message| Reverse(message.len));
    let mut lanes = Lanes::new();
    let mut targets: Targets<'c> = array::from_fn(|_| &mut [][..]);
    let mut present: [Message<'a, 'c>; LANES_MAX] = array::from_fn(|_| Message::default());
    let mut to_come = messages.into_iter();
    let mut begin = |done: &mut dyn FnMut(usize, Digest)| {
        for mut message in to_come.by_ref() {
            let mut state = START;
            match message.blocks(&mut state) {
                Some(run) => return Some((message, state, run)),
                None => done(message.place, message.digest(state)),
            }
        }
        None
    };
    while lanes.count < vectors.lanes()
        && let Some((message, state, (blocks, target))) = begin(&mut done)
    {
        lanes.put(lanes.count, state, message.place, blocks);
        (present[lanes.count], targets[lanes.count]) = (message, target);
        lanes.count += 1;
    }
    while lanes.count >= LANES_MIN {
        lanes.advance_copying(vectors, &mut targets);
        for lane in (0..lanes.count).rev() {
            if !lanes.sources[lane].is_empty() {
                continue;
            }
            let mut state = lanes.states.of(lane);
            if let Some((blocks, target)) = present[lane].blocks(&mut state) {
                lanes.put(lane, state, present[lane].place, blocks);
                targets[lane] = target;
                continue;
            }
            done(present[lane].place, present[lane].digest(state));
            if let Some((message, state, (blocks, target))) = begin(&mut done) {
                lanes.put(lane, state, message.place, blocks);
                (present[lane], targets[lane]) = (message, target);
            } else {
                lanes.count -= 1;
                lanes.move_from(lanes.count, lane);
                present[lane] = mem::take(&mut present[lanes.count]);
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
            match present[lane].blocks(&mut state) {
                Some(run) => (blocks, target) = run,
                None => break,
            }
        }
        done(present[lane].place, present[lane].digest(state));
    }
}

impl<'a, 'c> Message<'a, 'c> {
    pub(crate) fn new(place: usize, parts: &'a [&'a [u8]]) -> Self {
        let len = parts.iter().map(|part| part.len()).sum();
        Self { place, len, parts, ..Self::default() }
    }

    /// It is copied to the target, which is as long as it is.
    pub(crate) fn copied_to(self, target: &'c mut [MaybeUninit<u8>]) -> Self {
        debug_assert_eq!(self.len, target.len());
        Self { target, ..self }
    }

    /// The next full blocks that stand in one part; `state` takes in those before them that do not. `None` before the end.
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

    /// Where the next `len` bytes are copied to.
    fn target(&mut self, len: usize) -> &'c mut [MaybeUninit<u8>] {
        let len = len.min(self.target.len());
        let (now, later) = mem::take(&mut self.target).split_at_mut(len);
        self.target = later;
        now
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
    fn digest(&mut self, mut state: [u32; 4]) -> Digest {
        let mut block = [0; BLOCK];
        let (filled, ..) = self.fill(&mut block);
        copy(&block[..filled], self.target(filled));
        finish(&mut state, &block[..filled], self.len as u64)
    }
}

// Messages in parts that are put together and digested at once: what is read for the one is written for the other.

/// So many bytes of short messages are digested together, while the caches hold them.
const SHORT_BYTES: usize = 256 << 10;

/// Short messages that are copied, and not digested yet.
#[derive(Default)]
struct Short<'c> {
    messages: Vec<&'c [u8]>,
    places: Vec<usize>,
    bytes: usize,
}

/// As [`crate::append_parts`].
pub(crate) fn append_parts(
    vectors: Vectors,
    parts: &[&[u8]],
    ends: &[usize],
    into: &mut [Option<Digest>],
    to: &mut [Appended<'_>],
) {
    let (mut long, mut short, mut lengths) = (Vec::new(), Short::default(), Vec::with_capacity(to.len()));
    let (mut start, mut place) = (0, 0);
    for Appended { messages, to } in &mut *to {
        let ends = &ends[place..place + *messages];
        let all = &parts[start..ends.last().copied().unwrap_or(start)];
        let total = all.iter().map(|part| part.len()).sum();
        lengths.push(to.len() + total);
        to.reserve(total);
        let mut room = &mut to.spare_capacity_mut()[..total];
        for &end in ends {
            let message = Message::new(place, &parts[start..end]);
            let (target, rest) = room.split_at_mut(message.len);
            room = rest;
            match &into[place] {
                Some(_) if message.len >= COPIED_MAX => long.push(message.copied_to(target)),
                Some(_) => short.add(place, copy_all(&parts[start..end], target)),
                None => _ = copy_all(&parts[start..end], target),
            }
            if short.bytes >= SHORT_BYTES {
                short.digest(vectors, into);
            }
            start = end;
            place += 1;
        }
    }
    short.digest(vectors, into);
    digest_long(vectors, long, |place, digest| into[place] = Some(digest));
    for (Appended { to, .. }, len) in to.iter_mut().zip(lengths) {
        // SAFETY: there is room for so many bytes, and each of them belonged to the target of a message, which is copied by now.
        unsafe { to.set_len(len) };
    }
}

impl<'c> Short<'c> {
    fn add(&mut self, place: usize, message: &'c [u8]) {
        self.messages.push(message);
        self.places.push(place);
        self.bytes += message.len();
    }

    fn digest(&mut self, vectors: Vectors, into: &mut [Option<Digest>]) {
        let mut digests = vec![Digest::default(); self.messages.len()];
        digest_all(vectors, &self.messages, &mut digests);
        for (place, digest) in self.places.drain(..).zip(digests) {
            into[place] = Some(digest);
        }
        self.messages.clear();
        self.bytes = 0;
    }
}

/// Copies parts to a target that is as long as they are together.
fn copy_all<'c>(parts: &[&[u8]], target: &'c mut [MaybeUninit<u8>]) -> &'c [u8] {
    let mut rest = &mut *target;
    for part in parts {
        let (now, later) = rest.split_at_mut(part.len());
        copy(part, now);
        rest = later;
    }
    assert!(rest.is_empty(), "{} bytes were not written", rest.len());
    // SAFETY: the parts have filled it to its end.
    unsafe { slice::from_raw_parts(target.as_ptr().cast(), target.len()) }
}
