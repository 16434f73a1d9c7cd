//! Messages in parts that are put together and digested at once: what is read for the one is written for the other.
#![allow(unsafe_code)]

use crate::lanes::{Vectors, copy};
use crate::parts::{COPIED_MAX, Message, digest_long};
use crate::schedule::digest_all;
use crate::{Appended, Digest};
use std::mem::MaybeUninit;
use std::slice;

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
