//! The vector instructions of the process.

use pyo3::prelude::*;
use ssbroker_md5::Engine;

/// See `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (bits_max, /))]
pub(crate) fn limit_vectors(bits_max: Option<u32>) -> &'static str {
    ssbroker_md5::limit_vectors(bits_max.unwrap_or(u32::MAX));
    Engine::best().name()
}
