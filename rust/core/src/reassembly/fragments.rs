//! The fragments of a message that has not been released, sorted by number.

use std::collections::BTreeMap;
use std::slice;

use crate::prefetch::{CACHE_LINE, prefetch_bytes, prefetch_line};

/// Up to this many fragments are kept in one vector.
const FEW: usize = 32;
/// The maximum number of fragments in a run if a message has more than `FEW`.
const RUN: usize = 256;

/// After this many bytes the hardware prefetcher takes over.
const PREFETCHED: usize = 512;

/// The bytes of a fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    /// Borrowed from the batch that is being pushed, by index in the borrowed bodies.
    Borrowed(u32),
    /// Owned.
    Owned(Box<[u8]>),
}

#[derive(Clone, Debug)]
pub(crate) struct Fragment {
    pub(crate) number: i32,
    pub(crate) body: Body,
}

/// The fragments received so far. Memory grows with them, not with the declared count (P26).
#[derive(Clone, Debug)]
pub(crate) enum Fragments {
    /// A single fragment needs no allocation besides its message.
    One(Fragment),
    Few(Vec<Fragment>),
    Many(Box<Many>),
}

/// Runs of fragments. A run's key is not above its first number and above the last number of the run before.
#[derive(Clone, Debug, Default)]
pub(crate) struct Many {
    runs: BTreeMap<i32, Run>,
    /// The numbers of the fragments received since the last `make_owned`.
    recent: Vec<i32>,
}

/// A run as columns, so that its numbers can be copied in one piece.
#[derive(Clone, Debug, Default)]
struct Run {
    numbers: Vec<i32>,
    bodies: Vec<Body>,
}

impl Body {
    /// Returns the bytes; `borrowed` are the borrowed bodies of the current push.
    #[inline]
    pub(crate) fn bytes<'b>(&'b self, borrowed: &[&'b [u8]]) -> &'b [u8] {
        match self {
            Self::Borrowed(number) => borrowed[*number as usize],
            Self::Owned(bytes) => bytes,
        }
    }

    fn make_owned(&mut self, borrowed: &[&[u8]]) {
        if let Self::Borrowed(number) = self {
            *self = Self::Owned(borrowed[*number as usize].into());
        }
    }
}

impl Default for Fragments {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl Fragments {
    #[inline]
    pub(crate) fn find(&self, number: i32) -> Option<&Body> {
        match self {
            Self::Many(many) => many.find(number),
            few => few.small().iter().find(|fragment| fragment.number == number).map(|fragment| &fragment.body),
        }
    }

    /// Adds a fragment that is not present.
    pub(crate) fn insert(&mut self, fragment: Fragment) {
        match self {
            Self::Few(few) if few.is_empty() => *self = Self::One(fragment),
            Self::One(_) => {
                let Self::One(first) = std::mem::take(self) else { return };
                let both = if first.number < fragment.number { [first, fragment] } else { [fragment, first] };
                *self = Self::Few(both.into());
            }
            Self::Few(few) if few.len() < FEW => {
                let later = few.iter().rev().take_while(|other| other.number > fragment.number).count();
                few.insert(few.len() - later, fragment);
            }
            Self::Few(few) => {
                let mut many = Many::of(std::mem::take(few));
                many.insert(fragment);
                *self = Self::Many(Box::new(many));
            }
            Self::Many(many) => many.insert(fragment),
        }
    }

    /// Prefetches the message's data outside of the message itself, if it is small.
    #[inline]
    pub(crate) fn prefetch(&self) {
        if let Self::Few(few) = self {
            for line in 0..size_of_val(&**few).div_ceil(CACHE_LINE) {
                prefetch_line(few, 0, line);
            }
        }
    }

    /// Prefetches the body of a single fragment.
    #[inline]
    pub(crate) fn prefetch_bodies(&self, borrowed: &[&[u8]]) {
        if let Self::One(fragment) = self {
            let bytes = fragment.body.bytes(borrowed);
            prefetch_bytes(bytes, 0, bytes.len().min(PREFETCHED));
        }
    }

    /// Calls `take` with all bodies, sorted by number.
    #[inline]
    pub(crate) fn for_each<'p>(&'p self, mut take: impl FnMut(i32, &'p Body)) {
        for fragment in self.small() {
            take(fragment.number, &fragment.body);
        }
        for run in self.runs() {
            for (&number, body) in run.numbers.iter().zip(&run.bodies) {
                take(number, body);
            }
        }
    }

    /// Returns the numbers of all `count` fragments in ascending order.
    pub(crate) fn numbers(&self, count: u32) -> Vec<i32> {
        let mut numbers = Vec::with_capacity(count as usize);
        numbers.extend(self.small().iter().map(|fragment| fragment.number));
        for run in self.runs() {
            numbers.extend_from_slice(&run.numbers);
        }
        numbers
    }

    /// Returns the first missing number.
    pub(crate) fn first_missing(&self) -> i32 {
        let in_place = |(number, expected): &(i32, i32)| number == expected;
        let mut expected =
            self.small().iter().map(|fragment| fragment.number).zip(0..).take_while(in_place).count() as i32;
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

    /// Copies borrowed bodies.
    pub(crate) fn make_owned(&mut self, borrowed: &[&[u8]]) {
        match self {
            Self::One(fragment) => fragment.body.make_owned(borrowed),
            Self::Few(few) => few.iter_mut().for_each(|fragment| fragment.body.make_owned(borrowed)),
            Self::Many(many) => many.make_owned(borrowed),
        }
    }

    fn small(&self) -> &[Fragment] {
        match self {
            Self::One(fragment) => slice::from_ref(fragment),
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
    fn of(few: Vec<Fragment>) -> Self {
        let recent = few
            .iter()
            .filter(|fragment| matches!(fragment.body, Body::Borrowed(_)))
            .map(|fragment| fragment.number)
            .collect();
        let (numbers, bodies) = few.into_iter().map(|fragment| (fragment.number, fragment.body)).unzip();
        Self { runs: BTreeMap::from([(0, Run { numbers, bodies })]), recent }
    }

    fn find(&self, number: i32) -> Option<&Body> {
        let (_, run) = self.runs.range(..=number).next_back()?;
        run.bodies.get(run.numbers.binary_search(&number).ok()?)
    }

    fn insert(&mut self, fragment: Fragment) {
        if matches!(fragment.body, Body::Borrowed(_)) {
            self.recent.push(fragment.number);
        }
        let Some((_, run)) = self.runs.range_mut(..=fragment.number).next_back() else { return };
        let position = run.numbers.partition_point(|&other| other < fragment.number);
        if run.numbers.len() < RUN {
            run.insert(position, fragment);
            return;
        }
        // An append leaves a full run behind.
        let mut next = run.split_off(if position == RUN { RUN } else { RUN / 2 });
        if position > RUN / 2 {
            next.insert(position - (RUN - next.numbers.len()), fragment);
        } else {
            run.insert(position, fragment);
        }
        if let Some(&first) = next.numbers.first() {
            self.runs.insert(first, next);
        }
    }

    fn make_owned(&mut self, borrowed: &[&[u8]]) {
        for number in std::mem::take(&mut self.recent) {
            let Some((_, run)) = self.runs.range_mut(..=number).next_back() else { continue };
            if let Ok(position) = run.numbers.binary_search(&number) {
                run.bodies[position].make_owned(borrowed);
            }
        }
    }
}

impl Run {
    fn insert(&mut self, position: usize, fragment: Fragment) {
        self.numbers.insert(position, fragment.number);
        self.bodies.insert(position, fragment.body);
    }

    /// Splits off the fragments from `position` on, and frees the memory that the others do not need.
    fn split_off(&mut self, position: usize) -> Self {
        let next = Self { numbers: self.numbers.split_off(position), bodies: self.bodies.split_off(position) };
        self.numbers.shrink_to_fit();
        self.bodies.shrink_to_fit();
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Numbers in ascending, descending or random order, dense or sparse.
    fn numbers() -> impl Strategy<Value = Vec<i32>> {
        let sparse = prop::collection::hash_set(0..i32::MAX, 1..1_200);
        let dense = (1..1_200).prop_map(|count| (0..count).collect());
        let with_gaps = prop::collection::hash_set(0..700, 1..600);
        let numbers = prop_oneof![sparse, dense, with_gaps].prop_map(|numbers| {
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
        fn fragments_are_sorted_by_number_in_any_arrival_order(
            numbers in numbers(),
            pushes in 1..20usize,
        ) {
            let (mut fragments, mut sorted) = (Fragments::default(), Vec::new());
            for push in numbers.chunks(numbers.len().div_ceil(pushes)) {
                let bodies: Vec<[u8; 4]> = push.iter().map(|&number| bytes(number)).collect();
                let borrowed: Vec<&[u8]> = bodies.iter().map(<[u8; 4]>::as_slice).collect();
                for (&number, position) in push.iter().zip(0..) {
                    prop_assert!(fragments.find(number).is_none());
                    fragments.insert(Fragment { number, body: Body::Borrowed(position) });
                    prop_assert_eq!(fragments.find(number), Some(&Body::Borrowed(position)));
                }
                fragments.make_owned(&borrowed);
                sorted.extend(push);
                sorted.sort_unstable();
                let numbers = fragments.numbers(sorted.len() as u32);
                prop_assert_eq!(numbers.capacity(), sorted.len());
                prop_assert_eq!(&numbers, &sorted);
                let missing = (0..i32::MAX).find(|number| sorted.binary_search(number).is_err());
                prop_assert_eq!(Some(fragments.first_missing()), missing);
            }
            // Nothing is borrowed any more.
            let mut stored = Vec::new();
            fragments.for_each(|number, body| stored.push((number, body.bytes(&[]).to_vec())));
            let sent: Vec<_> = sorted.iter().map(|&number| (number, bytes(number).to_vec())).collect();
            prop_assert_eq!(stored, sent);
        }

        /// P26
        #[test]
        fn many_fragments_use_at_most_twice_the_memory_they_need(numbers in numbers()) {
            let mut fragments = Fragments::default();
            for &number in &numbers {
                fragments.insert(Fragment { number, body: Body::Borrowed(0) });
            }
            let capacity: usize = fragments.runs().map(|run| run.numbers.capacity().max(run.bodies.capacity())).sum();
            prop_assert!(capacity <= 2 * numbers.len(), "{capacity} for {}", numbers.len());
        }
    }
}
