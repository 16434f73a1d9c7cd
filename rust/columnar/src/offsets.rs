//! Byte strings that lie one after the other, each between two offsets.

use arrow_array::ArrowNativeTypeOp;
use arrow_buffer::ArrowNativeType;
use ssbroker_core::prefetch_bytes;

/// The most bytes that are asked for ahead of their use.
const AHEAD_MAX: usize = 8_192;

/// The value cannot be read: an offset, a view or a key leads outside its buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutOfBounds;

/// One value.
#[inline]
pub(crate) fn slice<'a, O: ArrowNativeType>(
    offsets: &[O],
    data: &'a [u8],
    row: usize,
) -> Result<&'a [u8], OutOfBounds> {
    let (Some(start), Some(end)) = (offsets.get(row), offsets.get(row + 1)) else { return Err(OutOfBounds) };
    data.get(start.as_usize()..end.as_usize()).ok_or(OutOfBounds)
}

/// Whether offsets begin within `end` bytes, never decrease, and stay there.
pub(crate) fn ascend<O: ArrowNativeType>(offsets: &[O], end: usize) -> bool {
    // Counted rather than searched for, so that the compiler uses vectors.
    let ordered = offsets.windows(2).map(|ends| usize::from(ends[0] > ends[1])).sum::<usize>() == 0;
    // As unsigned numbers, negative ones are beyond every end.
    let is_within = |offset: Option<&O>| offset.is_none_or(|offset| offset.as_usize() <= end);
    ordered && is_within(offsets.first()) && is_within(offsets.last())
}

/// Consecutive values that have `size` bytes each.
#[inline]
pub(crate) fn run<'a, O: ArrowNativeTypeOp>(
    offsets: &[O],
    data: &'a [u8],
    first: usize,
    len: usize,
    size: O,
) -> Option<&'a [u8]> {
    let own = offsets.get(first..=first + len)?;
    // Asked of all, without a way out, so that the compiler uses vectors.
    let differ = own.windows(2).fold(false, |differ, ends| differ | (ends[1].sub_wrapping(ends[0]) != size));
    if differ {
        return None;
    }
    data.get(own[0].as_usize()..own[len].as_usize())
}

/// Asks the memory for the bytes of `len` values.
#[inline]
pub(crate) fn ask_for<O: ArrowNativeType>(offsets: &[O], data: &[u8], first: usize, len: usize) {
    let (Some(start), Some(end)) = (offsets.get(first), offsets.get((first + len).min(offsets.len() - 1))) else {
        return;
    };
    let start = start.as_usize();
    // Wrong offsets could ask for the whole memory; names are short.
    prefetch_bytes(data, start, end.as_usize().min(start.saturating_add(AHEAD_MAX)));
}

/// Reads consecutive values, and asks the memory for as many that follow; false if one of them cannot be read.
#[inline]
pub(crate) fn slices<'a, O: ArrowNativeType>(
    offsets: &[O],
    data: &'a [u8],
    first: usize,
    into: &mut [&'a [u8]],
) -> bool {
    let end = first + into.len();
    let Some(own) = offsets.get(first..=end) else { return false };
    ask_for(offsets, data, end, into.len());
    let mut all = true;
    for (value, ends) in into.iter_mut().zip(own.windows(2)) {
        match data.get(ends[0].as_usize()..ends[1].as_usize()) {
            Some(bytes) => *value = bytes,
            None => all = false,
        }
    }
    all
}
