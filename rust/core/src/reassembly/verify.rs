//! Verification of single fragments (P21, P23).

use ssbroker_md5::{digest_many, equal};

use crate::signature::{Digest, Header, SessionKey, Signature};

/// A fragment as received.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// Identifies the fragment.
    pub header: Header,
    /// The fragment's part of the message body.
    pub body: &'a [u8],
    /// The signature of the message.
    pub message_signature: Signature,
    /// The signature of the fragment.
    pub fragment_signature: Signature,
    /// The session key of the conversation, if it has one.
    pub key: Option<&'a SessionKey>,
}

/// The result of verifying a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verification {
    /// A number is invalid.
    OutOfRange,
    /// A signature does not match, or a required one is missing.
    Corrupt,
    /// The fragment is intact; contains the MD5 of its body if it was needed.
    Intact(Option<Digest>),
    /// The body has not been read.
    Unverified,
}

/// Verifies blocks of fragments, reusing memory.
#[derive(Debug, Default)]
pub(crate) struct Verifier {
    results: Vec<Verification>,
    digests: Vec<Digest>,
}

impl Received<'_> {
    /// Decrypts the MD5 of the message from its signature; `None` without a session key.
    pub(crate) fn decrypted_digest(&self) -> Option<Digest> {
        Some(self.key?.open_message_signature(&self.header, *self.message_signature.given()?))
    }

    /// Whether this body with the MD5 `digest` matches the message signature, if there is one.
    pub(crate) fn matches_message(&self, digest: Option<&Digest>) -> bool {
        match (self.message_signature.given(), digest, self.decrypted_digest()) {
            (Some(_), Some(digest), Some(decrypted)) => equal(&decrypted, digest),
            (Some(signature), Some(digest), None) => equal(signature, digest),
            _ => true,
        }
    }

    /// Whether the sender has the session key, if there is one. A fragment signature has already been verified.
    pub(crate) fn is_authentic(&self, digest: Option<&Digest>) -> bool {
        self.key.is_none() || self.fragment_signature != Signature::Missing || self.matches_message(digest)
    }

    /// Whether the message consists of this fragment only.
    pub(crate) fn is_single(&self) -> bool {
        self.header.count == 1
    }

    fn has_required_signatures(&self) -> bool {
        let unreadable = [self.message_signature, self.fragment_signature].contains(&Signature::Unreadable);
        let is_enough = self.message_signature != Signature::Missing
            && (self.is_single() || self.fragment_signature != Signature::Missing);
        !unreadable && (self.key.is_none() || is_enough)
    }

    fn needs_digest(&self) -> bool {
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

impl Verifier {
    /// Verifies a block. Bodies for which `is_deferred` returns true are read only on demand.
    pub(crate) fn start_block(&mut self, block: &[Received<'_>], mut is_deferred: impl FnMut(usize) -> bool) {
        self.results.clear();
        self.results.extend(block.iter().map(|fragment| {
            if !fragment.header.is_in_range() {
                Verification::OutOfRange
            } else if !fragment.has_required_signatures() {
                Verification::Corrupt
            } else if fragment.needs_digest() {
                Verification::Unverified
            } else {
                Verification::Intact(None)
            }
        }));
        self.read(block, |position| !is_deferred(position));
    }

    /// Returns the result for a fragment of the block.
    #[inline]
    pub(crate) fn result(&self, position: usize) -> &Verification {
        &self.results[position]
    }

    /// Returns the result after reading the body. If one deferred body must be read, the following bodies probably must
    /// be read too, and reading many together costs little more.
    #[inline]
    pub(crate) fn verify_body(&mut self, block: &[Received<'_>], position: usize) -> &Verification {
        if self.results[position] == Verification::Unverified {
            self.read(block, |other| other >= position);
        }
        &self.results[position]
    }

    /// Digests the needed bodies that have not been read.
    fn read(&mut self, block: &[Received<'_>], mut is_needed: impl FnMut(usize) -> bool) {
        let mut positions = Vec::with_capacity(block.len());
        positions.extend(
            (0..block.len())
                .filter(|&position| self.results[position] == Verification::Unverified && is_needed(position)),
        );
        let bodies: Vec<&[u8]> = positions.iter().map(|&position| block[position].body).collect();
        self.digests.clear();
        self.digests.resize(bodies.len(), [0; 16]);
        digest_many(&bodies, &mut self.digests);
        for (&position, digest) in positions.iter().zip(&self.digests) {
            let matches = block[position].fragment_matches(*digest);
            self.results[position] = if matches { Verification::Intact(Some(*digest)) } else { Verification::Corrupt };
        }
    }
}
