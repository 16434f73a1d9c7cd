//! What can be said of a fragment by itself (M4 to M7).

use ssbroker_md5::digest_many;

use crate::fragment::{Digest, Header, Signature};
use crate::integrity::{SessionKey, equal};

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
}

/// A judge of many fragments at a time, who keeps the room for that.
#[derive(Debug, Default)]
pub(crate) struct Judge {
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
    /// Writes the verdict of each fragment to the same place of `verdicts`.
    pub(crate) fn judge(&mut self, received: &[Received<'_>], verdicts: &mut Vec<Verdict>) {
        verdicts.clear();
        let mut bodies = Vec::with_capacity(received.len());
        verdicts.extend(received.iter().map(|fragment| {
            if !fragment.header.is_in_range() {
                return Verdict::OutOfRange;
            }
            if !fragment.has_its_signatures() {
                return Verdict::Corrupt;
            }
            if fragment.wants_digest() {
                bodies.push(fragment.body);
            }
            Verdict::Intact(None)
        }));
        self.digests.clear();
        self.digests.resize(bodies.len(), [0; 16]);
        digest_many(&bodies, &mut self.digests);
        let mut digests = self.digests.iter();
        for (fragment, verdict) in received.iter().zip(verdicts) {
            if *verdict == Verdict::Intact(None) && fragment.wants_digest() {
                *verdict = match digests.next() {
                    Some(digest) if fragment.fragment_matches(*digest) => Verdict::Intact(Some(*digest)),
                    _ => Verdict::Corrupt,
                };
            }
        }
    }
}
