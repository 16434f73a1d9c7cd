//! Sets how long the allocator keeps freed memory. Uses `unsafe` because the allocator is C.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_long};

/// `mi_option_purge_delay` in `mimalloc.h` of version 3.
const PURGE_DELAY: c_int = 15;
/// Ten seconds, the default of jemalloc: a job that routes a table every few seconds reuses the same memory.
const DELAY_MS: c_long = 10_000;

unsafe extern "C" {
    fn mi_collect(force: bool);
    fn mi_option_set_default(option: c_int, value: c_long);
}

/// Keeps freed memory for ten seconds instead of one, unless `MIMALLOC_PURGE_DELAY` is set. New memory must be
/// zeroed by the system, which can take longer than routing.
pub(crate) fn set_purge_delay() {
    // SAFETY: a function of the allocator with this signature; it checks the option itself.
    unsafe { mi_option_set_default(PURGE_DELAY, DELAY_MS) };
}

/// Returns free memory to the system; call it after building something that needed more memory than it keeps.
pub(crate) fn release_free_memory() {
    // SAFETY: a function of the allocator with this signature; it may be called at any time from any thread.
    unsafe { mi_collect(true) };
}
