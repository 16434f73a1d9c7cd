//! The fragments of a message that is not released yet, by number.

use std::collections::BTreeMap;
use std::slice;

use crate::prefetch::{LINE, prefetch_bytes, prefetch_line};

/// Up to so many fragments stand in one vector.
const FEW: usize = 32;
/// Of a message that has more, up to so many stand together.
const RUN: usize = 256;

/// What comes after so many bytes, the processor has noticed by then.
const PREFETCHED: usize = 512;

/// Where the bytes of a fragment are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// In the batch that is being pushed: a number among those it lent.
    Lent(u32),
    /// Here.
    Kept(Box<[u8]>),
}

#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) number: i32,
    pub(crate) body: Body,
}

/// The fragments that are there. They take room as they come, whatever count was declared.
#[derive(Clone, Debug)]
pub(crate) enum Pieces {
    /// The only one takes no room beside that of its message.
    One(Piece),
    Few(Vec<Piece>),
    Many(Box<Many>),
}

/// Runs of fragments. Each is found by a number that is not above its first, and above the last of the run before.
#[derive(Clone, Debug, Default)]
pub(crate) struct Many {
    runs: BTreeMap<i32, Run>,
    /// The numbers of those that came since they were kept.
    recent: Vec<i32>,
}

/// Fragments, column by column: that their numbers can be told is worth a copy of nothing else.
#[derive(Clone, Debug, Default)]
struct Run {
    numbers: Vec<i32>,
    bodies: Vec<Body>,
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

    fn keep(&mut self, lent: &[&[u8]]) {
        if let Self::Lent(number) = self {
            *self = Self::Kept(lent[*number as usize].into());
        }
    }
}

impl Default for Pieces {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl Pieces {
    #[inline]
    pub(crate) fn find(&self, number: i32) -> Option<&Body> {
        match self {
            Self::Many(many) => many.find(number),
            few => few.few().iter().find(|piece| piece.number == number).map(|piece| &piece.body),
        }
    }

    /// Adds a fragment that is not there.
    pub(crate) fn insert(&mut self, piece: Piece) {
        match self {
            Self::Few(few) if few.is_empty() => *self = Self::One(piece),
            Self::One(_) => {
                let Self::One(first) = std::mem::take(self) else { return };
                let both = if first.number < piece.number { [first, piece] } else { [piece, first] };
                *self = Self::Few(both.into());
            }
            Self::Few(few) if few.len() < FEW => {
                let later = few.iter().rev().take_while(|other| other.number > piece.number).count();
                few.insert(few.len() - later, piece);
            }
            Self::Few(few) => {
                let mut many = Many::of(std::mem::take(few));
                many.insert(piece);
                *self = Self::Many(Box::new(many));
            }
            Self::Many(many) => many.insert(piece),
        }
    }

    /// Asks the memory for what stands beside the message, if it is not much.
    #[inline]
    pub(crate) fn prefetch(&self) {
        if let Self::Few(few) = self {
            for line in 0..size_of_val(&**few).div_ceil(LINE) {
                prefetch_line(few, 0, line);
            }
        }
    }

    /// Asks the memory for the body of a lone fragment.
    #[inline]
    pub(crate) fn prefetch_bodies(&self, lent: &[&[u8]]) {
        if let Self::One(piece) = self {
            let bytes = piece.body.bytes(lent);
            prefetch_bytes(bytes, 0, bytes.len().min(PREFETCHED));
        }
    }

    /// Hands all bodies over, by number.
    #[inline]
    pub(crate) fn for_each<'p>(&'p self, mut take: impl FnMut(i32, &'p Body)) {
        for piece in self.few() {
            take(piece.number, &piece.body);
        }
        for run in self.runs() {
            for (&number, body) in run.numbers.iter().zip(&run.bodies) {
                take(number, body);
            }
        }
    }

    /// The numbers of all `count` fragments, ascending.
    pub(crate) fn numbers(&self, count: u32) -> Vec<i32> {
        let mut numbers = Vec::with_capacity(count as usize);
        numbers.extend(self.few().iter().map(|piece| piece.number));
        for run in self.runs() {
            numbers.extend_from_slice(&run.numbers);
        }
        numbers
    }

    /// The first number that is not there.
    pub(crate) fn first_missing(&self) -> i32 {
        let in_place = |(number, expected): &(i32, i32)| number == expected;
        let mut expected = self.few().iter().map(|piece| piece.number).zip(0..).take_while(in_place).count() as i32;
        for run in self.runs() {
            let numbers = run.numbers.iter().copied().zip(expected..);
            let in_place = numbers.take_while(in_place).count();
            expected += in_place as i32;
            if in_place < run.numbers.len() {
                break;
            }
        }
        expected
    }

    /// Copies what is lent.
    pub(crate) fn keep(&mut self, lent: &[&[u8]]) {
        match self {
            Self::One(piece) => piece.body.keep(lent),
            Self::Few(few) => few.iter_mut().for_each(|piece| piece.body.keep(lent)),
            Self::Many(many) => many.keep(lent),
        }
    }

    fn few(&self) -> &[Piece] {
        match self {
            Self::One(piece) => slice::from_ref(piece),
            Self::Few(few) => few,
            Self::Many(_) => &[],
        }
    }

    fn runs(&self) -> impl Iterator<Item = &Run> {
        let many = if let Self::Many(many) = self { Some(many) } else { None };
        many.into_iter().flat_map(|many| many.runs.values())
    }
}

impl Many {
    fn of(few: Vec<Piece>) -> Self {
        let recent = few.iter().filter(|piece| matches!(piece.body, Body::Lent(_))).map(|piece| piece.number).collect();
        let (numbers, bodies) = few.into_iter().map(|piece| (piece.number, piece.body)).unzip();
        Self { runs: BTreeMap::from([(0, Run { numbers, bodies })]), recent }
    }

    fn find(&self, number: i32) -> Option<&Body> {
        let (_, run) = self.runs.range(..=number).next_back()?;
        run.bodies.get(run.numbers.binary_search(&number).ok()?)
    }

    fn insert(&mut self, piece: Piece) {
        if matches!(piece.body, Body::Lent(_)) {
            self.recent.push(piece.number);
        }
        let Some((_, run)) = self.runs.range_mut(..=piece.number).next_back() else { return };
        let place = run.numbers.partition_point(|&other| other < piece.number);
        if run.numbers.len() < RUN {
            run.insert(place, piece);
            return;
        }
        // What comes after all others leaves a full run behind it.
        let mut next = run.split_off(if place == RUN { RUN } else { RUN / 2 });
        if place > RUN / 2 {
            next.insert(place - (RUN - next.numbers.len()), piece);
        } else {
            run.insert(place, piece);
        }
        if let Some(&first) = next.numbers.first() {
            self.runs.insert(first, next);
        }
    }

    fn keep(&mut self, lent: &[&[u8]]) {
        for number in std::mem::take(&mut self.recent) {
            let Some((_, run)) = self.runs.range_mut(..=number).next_back() else { continue };
            if let Ok(place) = run.numbers.binary_search(&number) {
                run.bodies[place].keep(lent);
            }
        }
    }
}

impl Run {
    fn insert(&mut self, place: usize, piece: Piece) {
        self.numbers.insert(place, piece.number);
        self.bodies.insert(place, piece.body);
    }

    /// Cuts off what stands from `place` on. What stays gives back the room that it does not need.
    fn split_off(&mut self, place: usize) -> Self {
        let next = Self { numbers: self.numbers.split_off(place), bodies: self.bodies.split_off(place) };
        self.numbers.shrink_to_fit();
        self.bodies.shrink_to_fit();
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Numbers that come in order, backwards, or anyhow, and near to each other or far.
    fn arrivals() -> impl Strategy<Value = Vec<i32>> {
        let far = prop::collection::hash_set(0..i32::MAX, 1..1_200);
        let near = (1..1_200).prop_map(|count| (0..count).collect());
        let with_gaps = prop::collection::hash_set(0..700, 1..600);
        let numbers = prop_oneof![far, near, with_gaps].prop_map(|numbers| {
            let mut numbers: Vec<i32> = numbers.into_iter().collect();
            numbers.sort_unstable();
            numbers
        });
        let backwards = numbers.clone().prop_map(|numbers| numbers.into_iter().rev().collect());
        prop_oneof![numbers.clone(), backwards, numbers.prop_shuffle()]
    }

    fn bytes(number: i32) -> [u8; 4] {
        number.to_le_bytes()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 500 }))]

        #[test]
        fn m11_the_fragments_of_a_message_stand_by_number_in_whatever_order_they_came(
            arrivals in arrivals(),
            pushes in 1..20usize,
        ) {
            let (mut pieces, mut sorted) = (Pieces::default(), Vec::new());
            for push in arrivals.chunks(arrivals.len().div_ceil(pushes)) {
                let bodies: Vec<[u8; 4]> = push.iter().map(|&number| bytes(number)).collect();
                let lent: Vec<&[u8]> = bodies.iter().map(<[u8; 4]>::as_slice).collect();
                for (&number, place) in push.iter().zip(0..) {
                    prop_assert!(pieces.find(number).is_none());
                    pieces.insert(Piece { number, body: Body::Lent(place) });
                    prop_assert_eq!(pieces.find(number), Some(&Body::Lent(place)));
                }
                pieces.keep(&lent);
                sorted.extend(push);
                sorted.sort_unstable();
                let numbers = pieces.numbers(sorted.len() as u32);
                prop_assert_eq!(numbers.capacity(), sorted.len());
                prop_assert_eq!(&numbers, &sorted);
                let missing = (0..i32::MAX).find(|number| sorted.binary_search(number).is_err());
                prop_assert_eq!(Some(pieces.first_missing()), missing);
            }
            // Nothing is lent any more.
            let mut told = Vec::new();
            pieces.for_each(|number, body| told.push((number, body.bytes(&[]).to_vec())));
            let sent: Vec<_> = sorted.iter().map(|&number| (number, bytes(number).to_vec())).collect();
            prop_assert_eq!(told, sent);
        }

        #[test]
        fn p26_many_fragments_take_no_more_room_than_twice_what_they_need(arrivals in arrivals()) {
            let mut pieces = Pieces::default();
            for &number in &arrivals {
                pieces.insert(Piece { number, body: Body::Lent(0) });
            }
            let room: usize = pieces.runs().map(|run| run.numbers.capacity().max(run.bodies.capacity())).sum();
            prop_assert!(room <= 2 * arrivals.len(), "{room} for {}", arrivals.len());
        }
    }
}
