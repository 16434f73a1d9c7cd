//! The fragments of the messages that are not released yet.

use hashbrown::HashTable;

use super::slab::Slab;
use crate::hash::NameHash;

/// The end of a chain of fragments.
pub(crate) const NO_PIECE: u32 = u32::MAX;
/// Tells the hashes of fragments from those of other keys.
const SALT: u64 = 3;

/// Where the bytes of a fragment are.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    /// In the batch that is being pushed: a number among those it lent.
    Lent(u32),
    /// Here.
    Kept(Box<[u8]>),
}

#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) message: u32,
    pub(crate) number: i32,
    pub(crate) before: u32,
    pub(crate) body: Body,
}

#[derive(Clone, Debug)]
pub(crate) struct Pieces {
    slab: Slab<Piece>,
    table: HashTable<u32>,
}

impl Default for Piece {
    fn default() -> Self {
        Self { message: 0, number: 0, before: NO_PIECE, body: Body::Lent(0) }
    }
}

impl Body {
    /// The bytes, with those that are `lent` for the time of a push.
    #[inline]
    pub(crate) fn bytes<'b>(&'b self, lent: &[&'b [u8]]) -> &'b [u8] {
        match self {
            Self::Lent(number) => lent[*number as usize],
            Self::Kept(bytes) => bytes,
        }
    }
}

fn key(hash: &NameHash, message: u32, number: i32) -> u64 {
    hash.of_words(u64::from(message), number as u64, SALT)
}

impl Pieces {
    pub(crate) fn new() -> Self {
        Self { slab: Slab::new(), table: HashTable::new() }
    }

    #[inline]
    pub(crate) fn find(&self, hash: &NameHash, message: u32, number: i32) -> Option<u32> {
        let found = self.table.find(key(hash, message, number), |&place| {
            let piece = &self.slab[place];
            piece.number == number && piece.message == message
        });
        found.copied()
    }

    /// Adds a fragment that is not there.
    pub(crate) fn insert(&mut self, hash: &NameHash, piece: Piece) -> u32 {
        let own = key(hash, piece.message, piece.number);
        let place = self.slab.insert(piece);
        let slab = &self.slab;
        self.table.insert_unique(own, place, |&place| key(hash, slab[place].message, slab[place].number));
        place
    }

    /// Removes the chain that ends in `last`.
    pub(crate) fn remove_all(&mut self, hash: &NameHash, last: u32) {
        let mut place = last;
        while place != NO_PIECE {
            let piece = self.slab.remove(place);
            if let Ok(entry) = self.table.find_entry(key(hash, piece.message, piece.number), |&other| other == place) {
                entry.remove();
            }
            place = piece.before;
        }
    }

    /// The fragments of the chain that ends in `last`, the last one first.
    pub(crate) fn chain(&self, last: u32) -> impl Iterator<Item = &Piece> {
        let mut place = last;
        std::iter::from_fn(move || {
            let piece = (place != NO_PIECE).then(|| &self.slab[place])?;
            place = piece.before;
            Some(piece)
        })
    }

    /// Writes the fragments of a whole message into `order`, each at the place of its number.
    pub(crate) fn in_order<'p>(&'p self, last: u32, order: &mut Vec<&'p Body>, count: usize) {
        let Some(any) = self.chain(last).next() else { return };
        order.clear();
        order.resize(count, &any.body);
        for piece in self.chain(last) {
            order[piece.number as usize] = &piece.body;
        }
    }

    /// Copies what is lent of the chain that ends in `last`; whatever is lent came after all that is kept.
    pub(crate) fn keep(&mut self, last: u32, lent: &[&[u8]]) {
        let mut place = last;
        while place != NO_PIECE {
            let piece = &mut self.slab[place];
            let Body::Lent(number) = piece.body else { return };
            piece.body = Body::Kept(lent[number as usize].into());
            place = piece.before;
        }
    }

    #[inline]
    pub(crate) fn get(&self, place: u32) -> &Piece {
        &self.slab[place]
    }
}
