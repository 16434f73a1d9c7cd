//! Prefetching of cache lines. Uses `unsafe` because the instruction takes a raw pointer, although prefetching any
//! address is harmless. It does nothing on architectures other than x86-64.
#![allow(unsafe_code)]
// A function call would cost more than the instruction.
#![allow(clippy::inline_always)]

/// The size of a cache line in bytes.
pub(crate) const CACHE_LINE: usize = 64;

/// Prefetches the first cache line of element `position`.
#[inline(always)]
pub(crate) fn prefetch<T>(slice: &[T], position: usize) {
    prefetch_line(slice, position, 0);
}

/// Prefetches cache line `line` of element `position`.
#[inline(always)]
#[cfg_attr(not(target_arch = "x86_64"), allow(unused_variables))]
pub(crate) fn prefetch_line<T>(slice: &[T], position: usize, line: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let address = slice.as_ptr().wrapping_add(position).cast::<i8>().wrapping_add(line * CACHE_LINE);
        // SAFETY: a prefetch never reads memory and never faults, whatever the address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address) };
    }
}

/// Prefetches the bytes from `start` to `end`.
#[inline]
pub fn prefetch_bytes(bytes: &[u8], start: usize, end: usize) {
    for at in (start..end).step_by(CACHE_LINE) {
        prefetch(bytes, at);
    }
}
