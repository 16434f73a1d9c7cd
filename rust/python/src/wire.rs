//! `_core.decode_fragments`, `_core.header_digests` and `_core.crc32c`: what goes to another instance and comes from it.

use arrow_buffer::MutableBuffer;
use pyo3::prelude::*;
use ssbroker_columnar::{crc32c as checksum, decode_fragments as decode, header_digests as digests};

use crate::capsule::{export_array, export_batch, import_stream};
use crate::doorway::detached;

/// From so many bytes on it is worth letting others have the interpreter.
const LONG: usize = 16 << 10;

/// The rows of the body of a frame.
#[pyfunction]
#[pyo3(signature = (body, /))]
pub(crate) fn decode_fragments<'py>(py: Python<'py>, body: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    let rows = detached(py, || {
        // What columns may share has to begin at an address that suits all of them.
        let mut aligned = MutableBuffer::with_capacity(body.len());
        aligned.extend_from_slice(body);
        decode(&aligned.into())
    })?;
    export_batch(py, rows)
}

/// The MD5 of the header of each row of the envelope.
#[pyfunction]
#[pyo3(signature = (rows, /))]
pub(crate) fn header_digests<'py>(py: Python<'py>, rows: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let batches = import_stream(rows)?;
    let found = detached(py, || digests(&batches))?;
    export_array(py, &found)
}

/// The CRC-32C of bytes that come after others.
#[pyfunction]
#[pyo3(signature = (data, before, /))]
pub(crate) fn crc32c(py: Python<'_>, data: &[u8], before: u32) -> PyResult<u32> {
    if data.len() < LONG { Ok(checksum(data, before)) } else { detached(py, || Ok(checksum(data, before))) }
}
