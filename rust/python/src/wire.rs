//! `_core.decode_fragments`, `_core.header_digests`, `_core.plain_runs` and `_core.crc32c`: what goes to another instance and comes from it.

use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_buffer::MutableBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ssbroker_columnar::{
    crc32c as checksum, decode_fragments as decode, header_digests as digests, plain_runs as runs_of,
};

use crate::capsule::{export_array, export_batch, import_stream};
use crate::doorway::detached;
use crate::frozen::Frozen;

/// From so many bytes on it is worth letting others have the interpreter.
const LONG: usize = 16 << 10;

/// The rows of the body of a frame.
#[pyfunction]
#[pyo3(signature = (body, /))]
#[allow(clippy::needless_pass_by_value)] // what is read of an argument is given, not lent
pub(crate) fn decode_fragments(py: Python<'_>, body: Frozen) -> PyResult<Bound<'_, PyAny>> {
    let body = body.bytes();
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

/// What the rows of a run have in common: conversation, whether its initiator sent them, the brokers that they are from and for, the services
/// that they are from and for, contract and type, the first number, how many, the bytes of their bodies, and of the longest.
type Run<'py> = (
    Bound<'py, PyBytes>,
    bool,
    Option<Bound<'py, PyBytes>>,
    Option<Bound<'py, PyBytes>>,
    [String; 4],
    i64,
    usize,
    usize,
    usize,
);

/// The runs of whole plain messages among rows of the envelope, and of which run each row is.
#[pyfunction]
#[pyo3(signature = (rows, /))]
pub(crate) fn plain_runs<'py>(
    py: Python<'py>,
    rows: &Bound<'py, PyAny>,
) -> PyResult<(Vec<Run<'py>>, Bound<'py, PyAny>)> {
    let batches = import_stream(rows)?;
    let found = detached(py, || runs_of(&batches))?;
    let bytes = |value: [u8; 16]| PyBytes::new(py, &value);
    let runs = found.runs.into_iter().map(|run| {
        let conversation_id = bytes(run.conversation_id);
        let (from, to) = (run.from_broker.map(bytes), run.to_broker.map(bytes));
        (conversation_id, run.is_initiator, from, to, run.names, run.first, run.count, run.body_bytes, run.longest)
    });
    let of_rows: ArrayRef = Arc::new(found.of_rows);
    Ok((runs.collect(), export_array(py, &of_rows)?))
}

/// The CRC-32C of bytes that come after others.
#[pyfunction]
#[pyo3(signature = (data, before, /))]
#[allow(clippy::needless_pass_by_value)]
pub(crate) fn crc32c(py: Python<'_>, data: Frozen, before: u32) -> PyResult<u32> {
    let data = data.bytes();
    if data.len() < LONG { Ok(checksum(data, before)) } else { detached(py, || Ok(checksum(data, before))) }
}
