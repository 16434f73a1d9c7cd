//! What can be said of a fragment by itself (M4 to M7).

use ssbroker_md5::digest_many;

use crate::signature::{Digest, Header, SessionKey, Signature, equal};

/// A fragment as it was received.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// Where it belongs.
    pub header: Header,
    /// This fragment's part of the body.
    pub body: &'a [u8],
    /// The signature of the whole message.
    pub message_signature: Signature,
    /// The signature of this part.
    pub fragment_signature: Signature,
    /// The session key of its conversation, where there is one.
    pub key: Option<&'a SessionKey>,
}

/// What is found of a fragment by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A number that cannot be (M4).
    OutOfRange,
    /// A signature that does not match, or is missing where it must not be (M5).
    Corrupt,
    /// Nothing is wrong; with the MD5 of the part, where it was needed.
    Intact(Option<Digest>),
    /// Its part has not been looked at.
    Unread,
}

/// A judge of a block of fragments, who keeps the room for the next one.
#[derive(Debug, Default)]
pub(crate) struct Judge {
    verdicts: Vec<Verdict>,
    digests: Vec<Digest>,
}

impl Received<'_> {
    /// The MD5 that the whole message must have, where a session key hides it in the signature.
    pub(crate) fn opened(&self) -> Option<Digest> {
        Some(self.key?.open_message_signature(&self.header, *self.message_signature.given()?))
    }

    /// Whether this part, whose MD5 is `digest`, is the whole that its message's signature tells of (M12).
    pub(crate) fn is_the_whole(&self, digest: Option<&Digest>) -> bool {
        match (self.message_signature.given(), digest, self.opened()) {
            (Some(_), Some(digest), Some(opened)) => equal(&opened, digest),
            (Some(signature), Some(digest), None) => equal(signature, digest),
            _ => true,
        }
    }

    /// Whether who sent it has the session key, if there is one (M8). What has a signature of its own has been compared (M5).
    pub(crate) fn is_authentic(&self, digest: Option<&Digest>) -> bool {
        self.key.is_none() || self.fragment_signature != Signature::Missing || self.is_the_whole(digest)
    }

    /// Whether the whole message is this part.
    pub(crate) fn is_single(&self) -> bool {
        self.header.count == 1
    }

    fn has_its_signatures(&self) -> bool {
        let unreadable = [self.message_signature, self.fragment_signature].contains(&Signature::Unreadable);
        let is_enough = self.message_signature != Signature::Missing
            && (self.is_single() || self.fragment_signature != Signature::Missing);
        !unreadable && (self.key.is_none() || is_enough)
    }

    fn wants_digest(&self) -> bool {
        self.fragment_signature != Signature::Missing
            || self.is_single() && self.message_signature != Signature::Missing
    }

    fn fragment_matches(&self, digest: Digest) -> bool {
        let Some(given) = self.fragment_signature.given() else { return true };
        let signature = match (self.key, self.message_signature.given()) {
            (Some(key), Some(message)) => key.fragment_signature(&self.header, message, digest),
            _ => digest,
        };
        equal(&signature, given)
    }
}

impl Judge {
    /// Judges a block. The parts of those that are `spared` are not read before somebody asks.
    pub(crate) fn begin(&mut self, block: &[Received<'_>], mut is_spared: impl FnMut(usize) -> bool) {
        self.verdicts.clear();
        self.verdicts.extend(block.iter().map(|fragment| {
            if !fragment.header.is_in_range() {
                Verdict::OutOfRange
            } else if !fragment.has_its_signatures() {
                Verdict::Corrupt
            } else if fragment.wants_digest() {
                Verdict::Unread
            } else {
                Verdict::Intact(None)
            }
        }));
        self.read(block, |place| !is_spared(place));
    }

    /// What was found of a fragment of the block.
    #[inline]
    pub(crate) fn verdict(&self, place: usize) -> &Verdict {
        &self.verdicts[place]
    }

    /// The same, once its part is read. Where one has to be read after all, all that follow probably have to: many cost little more than one.
    #[inline]
    pub(crate) fn verdict_of_part(&mut self, block: &[Received<'_>], place: usize) -> &Verdict {
        if self.verdicts[place] == Verdict::Unread {
            self.read(block, |other| other >= place);
        }
        &self.verdicts[place]
    }

    /// Reads the parts that are wanted and have not been read.
    fn read(&mut self, block: &[Received<'_>], mut is_wanted: impl FnMut(usize) -> bool) {
        let mut places = Vec::with_capacity(block.len());
        places.extend((0..block.len()).filter(|&place| self.verdicts[place] == Verdict::Unread && is_wanted(place)));
        let bodies: Vec<&[u8]> = places.iter().map(|&place| block[place].body).collect();
        self.digests.clear();
        self.digests.resize(bodies.len(), [0; 16]);
        digest_many(&bodies, &mut self.digests);
        for (&place, digest) in places.iter().zip(&self.digests) {
            let matches = block[place].fragment_matches(*digest);
            self.verdicts[place] = if matches { Verdict::Intact(Some(*digest)) } else { Verdict::Corrupt };
        }
    }
}
