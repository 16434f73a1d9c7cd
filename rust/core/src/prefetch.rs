//! Asking the memory for a cache line before it is needed. One of the few places with `unsafe`: a prefetch of any address is
//! harmless, but its instruction takes a raw pointer. Elsewhere than on x86-64 it does nothing, and the answers are the same.
#![allow(unsafe_code)]
// A call would cost more than the instruction.
#![allow(clippy::inline_always)]

/// The bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// Asks for the cache line at the start of the slice's element `place`.
#[inline(always)]
pub(crate) fn prefetch<T>(slice: &[T], place: usize) {
    prefetch_line(slice, place, 0);
}

/// Asks for the cache line `line` of the slice's element `place`.
#[inline(always)]
#[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables))]
pub(crate) fn prefetch_line<T>(slice: &[T], place: usize, line: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let address = slice.as_ptr().wrapping_add(place).cast::<i8>().wrapping_add(line * LINE);
        // SAFETY: a prefetch reads nothing and faults never, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address) };
    }
}

/// Asks for all cache lines of the bytes from `start` to `end`.
#[inline]
pub fn prefetch_bytes(bytes: &[u8], start: usize, end: usize) {
    for at in (start..end).step_by(LINE) {
        prefetch(bytes, at);
    }
}
