//! The code common to all engines: the 64 steps over groups of vectors.

/// Defines `advance` in terms of the operations that the module has for its `Vector`, a group of `WIDTH` lanes.
///
/// A group is a chain of dependent steps, like a single message. Interleaving `G` groups hides the latency.
macro_rules! kernel {
    ([$($groups:literal)*] $(#[$feature:meta])?) => {
        $(#[$feature])?
        pub(super) fn advance(
            states: &mut States,
            sources: &Sources<'_>,
            copies: Option<&mut Copies<'_, '_>>,
            lanes: usize,
            blocks: usize,
        ) {
            match (lanes.div_ceil(WIDTH), copies.is_some()) {
                $(
                    (..=$groups, false) => advance_groups::<$groups, false>(states, sources, None, blocks),
                    (..=$groups, true) => advance_groups::<$groups, true>(states, sources, copies, blocks),
                )*
                _ => unreachable!("{lanes} lanes"),
            }
        }

        $(#[$feature])?
        fn advance_groups<const G: usize, const COPIES: bool>(
            states: &mut States,
            sources: &Sources<'_>,
            mut copies: Option<&mut Copies<'_, '_>>,
            blocks: usize,
        ) {
            let mut a = load_groups::<G>(&states.0[0]);
            let mut b = load_groups::<G>(&states.0[1]);
            let mut c = load_groups::<G>(&states.0[2]);
            let mut d = load_groups::<G>(&states.0[3]);
            let mut words = [[splat(0); 16]; G];
            for at in 0..blocks {
                for (group, words) in words.iter_mut().enumerate() {
                    $crate::lanes::prefetch_block(&sources[group * WIDTH..][..WIDTH], at + AHEAD);
                    load_words(sources, group * WIDTH, at, words);
                    if COPIES && let Some(copies) = &mut copies {
                        copy_lines(copies, group * WIDTH, at);
                    }
                }
                let before = [a, b, c, d];
                $crate::rounds::steps!(step, a, b, c, d, words, G);
                a = add_groups(a, before[0]);
                b = add_groups(b, before[1]);
                c = add_groups(c, before[2]);
                d = add_groups(d, before[3]);
            }
            if COPIES {
                finish_copies();
            }
            store_groups::<G>(a, &mut states.0[0]);
            store_groups::<G>(b, &mut states.0[1]);
            store_groups::<G>(c, &mut states.0[2]);
            store_groups::<G>(d, &mut states.0[3]);
        }

        $(#[$feature])?
        #[inline]
        fn step<const STEP: usize, const G: usize>(
            a: [Vector; G],
            b: [Vector; G],
            c: [Vector; G],
            d: [Vector; G],
            words: &[[Vector; 16]; G],
        ) -> [Vector; G] {
            let sine = splat($crate::rounds::SINES[STEP]);
            let mut next = a;
            for group in 0..G {
                let (b, c, d) = (b[group], c[group], d[group]);
                let sum = add(add(a[group], sine), words[group][$crate::rounds::word(STEP)]);
                let sum = match STEP / 16 {
                    0 => mix_first(sum, b, c, d),
                    1 => mix_second(sum, b, c, d),
                    2 => mix_third(sum, b, c, d),
                    _ => mix_fourth(sum, b, c, d),
                };
                next[group] = add(rotate(sum, $crate::rounds::shift(STEP)), b);
            }
            next
        }

        /// Copies line `at` of `WIDTH` lanes, starting with lane `first`; skips lanes without this line.
        $(#[$feature])?
        #[inline]
        fn copy_lines(copies: &mut Copies<'_, '_>, first: usize, at: usize) {
            for lane in first..first + WIDTH {
                if let (Some(from), Some(to)) = (copies.from[lane].get(at), copies.to[lane].get_mut(at)) {
                    copy_line(from, to);
                }
            }
        }

        $(#[$feature])?
        #[inline]
        fn add_groups<const G: usize>(one: [Vector; G], other: [Vector; G]) -> [Vector; G] {
            let mut sums = one;
            for group in 0..G {
                sums[group] = add(one[group], other[group]);
            }
            sums
        }

        $(#[$feature])?
        #[inline]
        fn load_groups<const G: usize>(words: &[u32; LANES_MAX]) -> [Vector; G] {
            let mut vectors = [splat(0); G];
            for (vector, words) in vectors.iter_mut().zip(words.as_chunks::<WIDTH>().0) {
                *vector = load(words);
            }
            vectors
        }

        $(#[$feature])?
        #[inline]
        fn store_groups<const G: usize>(vectors: [Vector; G], words: &mut [u32; LANES_MAX]) {
            for (vector, words) in vectors.into_iter().zip(words.as_chunks_mut::<WIDTH>().0) {
                store(vector, words);
            }
        }
    };
}
pub(super) use kernel;
