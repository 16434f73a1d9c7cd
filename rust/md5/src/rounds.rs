//! The 64 steps of RFC 1321 as a macro, which every engine expands over its own vectors.

/// A block of input.
pub(crate) type Block = [u8; BLOCK];

pub(crate) const BLOCK: usize = 64;

/// The initial state.
pub(crate) const START: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];

/// The rotation of a step in bits.
pub(crate) const fn shift(step: usize) -> u32 {
    const OF_ROUND: [[u32; 4]; 4] = [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];
    OF_ROUND[step / 16][step % 4]
}

/// The index of the block's word that a step uses.
pub(crate) const fn word(step: usize) -> usize {
    match step / 16 {
        0 => step,
        1 => (5 * step + 1) % 16,
        2 => (3 * step + 5) % 16,
        _ => 7 * step % 16,
    }
}

/// The constant of each step: floor(2^32 * abs(sin(step + 1))).
pub(crate) const SINES: [u32; 64] = [
    0xd76a_a478,
    0xe8c7_b756,
    0x2420_70db,
    0xc1bd_ceee,
    0xf57c_0faf,
    0x4787_c62a,
    0xa830_4613,
    0xfd46_9501,
    0x6980_98d8,
    0x8b44_f7af,
    0xffff_5bb1,
    0x895c_d7be,
    0x6b90_1122,
    0xfd98_7193,
    0xa679_438e,
    0x49b4_0821,
    0xf61e_2562,
    0xc040_b340,
    0x265e_5a51,
    0xe9b6_c7aa,
    0xd62f_105d,
    0x0244_1453,
    0xd8a1_e681,
    0xe7d3_fbc8,
    0x21e1_cde6,
    0xc337_07d6,
    0xf4d5_0d87,
    0x455a_14ed,
    0xa9e3_e905,
    0xfcef_a3f8,
    0x676f_02d9,
    0x8d2a_4c8a,
    0xfffa_3942,
    0x8771_f681,
    0x6d9d_6122,
    0xfde5_380c,
    0xa4be_ea44,
    0x4bde_cfa9,
    0xf6bb_4b60,
    0xbebf_bc70,
    0x289b_7ec6,
    0xeaa1_27fa,
    0xd4ef_3085,
    0x0488_1d05,
    0xd9d4_d039,
    0xe6db_99e5,
    0x1fa2_7cf8,
    0xc4ac_5665,
    0xf429_2244,
    0x432a_ff97,
    0xab94_23a7,
    0xfc93_a039,
    0x655b_59c3,
    0x8f0c_cc92,
    0xffef_f47d,
    0x8584_5dd1,
    0x6fa8_7e4f,
    0xfe2c_e6e0,
    0xa301_4314,
    0x4e08_11a1,
    0xf753_7e82,
    0xbd3a_f235,
    0x2ad7_d2bb,
    0xeb86_d391,
];

/// Expands to all 64 steps. `$step::<STEP>(a, b, c, d, words)` expands to `b + rotate(a + mix(b, c, d) + word +
/// sine)`; the four words of the state rotate after each step.
macro_rules! steps {
    ($step:ident, $a:ident, $b:ident, $c:ident, $d:ident, $words:ident $(, $groups:ident)?) => {
        $crate::rounds::steps!(@ $step, $a, $b, $c, $d, $words, [$($groups)?];
            0 1 2 3, 4 5 6 7, 8 9 10 11, 12 13 14 15,
            16 17 18 19, 20 21 22 23, 24 25 26 27, 28 29 30 31,
            32 33 34 35, 36 37 38 39, 40 41 42 43, 44 45 46 47,
            48 49 50 51, 52 53 54 55, 56 57 58 59, 60 61 62 63)
    };
    (@ $step:ident, $a:ident, $b:ident, $c:ident, $d:ident, $words:ident, $groups:tt;
        $($one:literal $two:literal $three:literal $four:literal),*) => {
        $(
            $a = $crate::rounds::steps!(# $step, $one, $groups)($a, $b, $c, $d, &$words);
            $d = $crate::rounds::steps!(# $step, $two, $groups)($d, $a, $b, $c, &$words);
            $c = $crate::rounds::steps!(# $step, $three, $groups)($c, $d, $a, $b, &$words);
            $b = $crate::rounds::steps!(# $step, $four, $groups)($b, $c, $d, $a, &$words);
        )*
    };
    (# $step:ident, $number:literal, [$($groups:ident)?]) => { $step::<$number $(, $groups)?> };
}
pub(crate) use steps;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sines_are_those_of_the_rfc() {
        for (radians, sine) in (1..=64).map(f64::from).zip(SINES) {
            assert_eq!(sine, (radians.sin().abs() * 4_294_967_296.0) as u32, "step {radians}");
        }
    }

    #[test]
    fn every_round_takes_in_every_word_once() {
        for round in 0..4 {
            let mut words: Vec<usize> = (16 * round..16 * round + 16).map(word).collect();
            words.sort_unstable();
            assert_eq!(words, (0..16).collect::<Vec<_>>());
        }
    }
}
