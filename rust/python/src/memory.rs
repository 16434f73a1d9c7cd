//! How long the allocator keeps the memory of results for the next ones. One of the few places with `unsafe`: its options are C.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_long};

/// `mi_option_purge_delay` in `mimalloc.h` of version 3.
const PURGE_DELAY: c_int = 15;
/// Ten seconds, as jemalloc does by default: a job that routes a table every few seconds gets the same memory each time.
const DELAY_MS: c_long = 10_000;

unsafe extern "C" {
    fn mi_collect(force: bool);
    fn mi_option_set_default(option: c_int, value: c_long);
}

/// Has memory given back that was not used for ten seconds, rather than for one, unless `MIMALLOC_PURGE_DELAY` says otherwise.
/// Memory that the system gives anew has to be cleared, which can take longer than routing.
pub(crate) fn keep_for_a_while() {
    // SAFETY: the function is the allocator's own, of this signature, and it looks itself whether there is such an option.
    unsafe { mi_option_set_default(PURGE_DELAY, DELAY_MS) };
}

/// Gives back what is free now: for after the making of what stays, which takes more memory than it leaves.
pub(crate) fn give_back() {
    // SAFETY: the function is the allocator's own, of this signature, and may be called at any time from any thread.
    unsafe { mi_collect(true) };
}
