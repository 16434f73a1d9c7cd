//! Rows of the envelope to and from other instances: runs of messages, digests, decoding and checksums.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_buffer::MutableBuffer;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;
use ssbroker_columnar::{IncomingRun, OutgoingRun, RunEnvelope, SenderRun};

use crate::arrow::{ReadOnlyBytes, export_array, export_with_known_schema, import_stream};
use crate::detach::{attached, detached};

/// From this many bytes on, releasing the GIL pays off.
const DETACH_BYTES: usize = 16 << 10;

/// Runs `work`, without the GIL if it handles many bytes.
fn detached_if_large<T: Send>(
    py: Python<'_>,
    bytes: usize,
    work: impl FnOnce() -> ssbroker_columnar::Result<T> + Send,
) -> PyResult<T> {
    if bytes < DETACH_BYTES { attached(py, work) } else { detached(py, work) }
}

static ENVELOPE_SCHEMA: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static HOP_SCHEMA: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static WIRE_SCHEMA: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

fn size_of(batches: &[RecordBatch]) -> usize {
    batches.iter().map(RecordBatch::get_array_memory_size).sum()
}

/// A run of waiting messages: conversation id, whether the initiator sends, first sequence number, body lengths.
type OutgoingRunRow<'py> = (Bound<'py, PyBytes>, bool, i64, Vec<usize>);

/// How to send a run: number of messages, number to send, service and contract names, brokers, priority, lifetime,
/// and acknowledgement.
type RunEnvelopeRow =
    (usize, usize, [String; 3], [u8; 16], Option<[u8; 16]>, i8, Option<i64>, Option<(Option<i64>, Vec<u8>)>);

/// See `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (messages, /))]
pub(crate) fn outgoing_runs<'py>(
    py: Python<'py>,
    messages: &Bound<'py, PyAny>,
) -> PyResult<Option<Vec<OutgoingRunRow<'py>>>> {
    let batches = import_stream(messages)?;
    let found = attached(py, || ssbroker_columnar::outgoing_runs(&batches))?;
    let as_run = |run: OutgoingRun| (PyBytes::new(py, &run.conversation_id), run.is_initiator, run.first, run.lengths);
    Ok(found.map(|runs| runs.into_iter().map(as_run).collect()))
}

/// See `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (messages, senders, /))]
pub(crate) fn outgoing_rows<'py>(
    py: Python<'py>,
    messages: &Bound<'py, PyAny>,
    senders: Vec<RunEnvelopeRow>,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let batches = import_stream(messages)?;
    let envelopes: Vec<RunEnvelope> = senders.into_iter().map(as_envelope).collect();
    let row_batches =
        detached_if_large(py, size_of(&batches), || ssbroker_columnar::outgoing_rows(&batches, &envelopes))?;
    row_batches.into_iter().map(|rows| export_with_known_schema(py, rows, &ENVELOPE_SCHEMA)).collect()
}

fn as_envelope(sender: RunEnvelopeRow) -> RunEnvelope {
    let (message_count, send_count, names, from_broker, to_broker, priority, lifetime, acknowledgement) = sender;
    RunEnvelope { message_count, send_count, names, from_broker, to_broker, priority, lifetime, acknowledgement }
}

/// Consecutive rows of a sender: conversation id, whether the initiator sends, receiving broker, number of rows.
type SenderRuns<'py> = Vec<(Bound<'py, PyBytes>, bool, Option<Bound<'py, PyBytes>>, usize)>;

/// See `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (rows, /))]
pub(crate) fn sender_runs<'py>(py: Python<'py>, rows: &Bound<'py, PyAny>) -> PyResult<(SenderRuns<'py>, bool)> {
    let batches = import_stream(rows)?;
    let (found, is_unencrypted) = attached(py, || ssbroker_columnar::sender_runs(&batches))?;
    let bytes = |value: [u8; 16]| PyBytes::new(py, &value);
    let as_run = |run: SenderRun| (bytes(run.conversation_id), run.is_initiator, run.to_broker.map(bytes), run.rows);
    Ok((found.into_iter().map(as_run).collect(), is_unencrypted))
}

/// See `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (rows, now, /))]
pub(crate) fn first_hop<'py>(py: Python<'py>, rows: &Bound<'py, PyAny>, now: i64) -> PyResult<Bound<'py, PyAny>> {
    let batches = import_stream(rows)?;
    export_with_known_schema(py, attached(py, || ssbroker_columnar::first_hop(&batches, now))?, &HOP_SCHEMA)
}

/// See `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (body, /))]
#[allow(clippy::needless_pass_by_value)] // pyo3 passes arguments by value
pub(crate) fn decode_fragments(py: Python<'_>, body: ReadOnlyBytes) -> PyResult<Bound<'_, PyAny>> {
    let body = body.bytes();
    let rows = detached_if_large(py, body.len(), || {
        // Columns that share the memory need an aligned address.
        let mut aligned = MutableBuffer::with_capacity(body.len());
        aligned.extend_from_slice(body);
        ssbroker_columnar::decode_fragments(&aligned.into())
    })?;
    export_with_known_schema(py, rows, &WIRE_SCHEMA)
}

/// See `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (rows, /))]
pub(crate) fn header_digests<'py>(py: Python<'py>, rows: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let batches = import_stream(rows)?;
    let found = detached_if_large(py, size_of(&batches), || ssbroker_columnar::header_digests(&batches))?;
    export_array(py, &found)
}

/// A run of received messages: conversation id, whether the initiator sent them, brokers, names, first sequence
/// number, number of messages, total and largest body size, acknowledged sequence numbers.
type IncomingRunRow<'py> = (
    Bound<'py, PyBytes>,
    bool,
    Option<Bound<'py, PyBytes>>,
    Option<Bound<'py, PyBytes>>,
    [String; 4],
    i64,
    usize,
    usize,
    usize,
    Vec<i64>,
);

/// See `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (rows, /))]
pub(crate) fn incoming_runs<'py>(
    py: Python<'py>,
    rows: &Bound<'py, PyAny>,
) -> PyResult<(Vec<IncomingRunRow<'py>>, Bound<'py, PyAny>)> {
    let batches = import_stream(rows)?;
    let found = detached_if_large(py, size_of(&batches), || ssbroker_columnar::incoming_runs(&batches))?;
    let bytes = |value: [u8; 16]| PyBytes::new(py, &value);
    let runs = found.runs.into_iter().map(|run| {
        let conversation_id = bytes(run.conversation_id);
        let (from, to) = (run.from_broker.map(bytes), run.to_broker.map(bytes));
        let IncomingRun { is_initiator, names, first, count, body_bytes, longest, acked, .. } = run;
        (conversation_id, is_initiator, from, to, names, first, count, body_bytes, longest, acked)
    });
    let of_rows: ArrayRef = Arc::new(found.of_rows);
    Ok((runs.collect(), export_array(py, &of_rows)?))
}

/// See `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (data, before, /))]
#[allow(clippy::needless_pass_by_value)]
pub(crate) fn crc32c(py: Python<'_>, data: ReadOnlyBytes, before: u32) -> PyResult<u32> {
    let data = data.bytes();
    detached_if_large(py, data.len(), || Ok(ssbroker_columnar::crc32c(data, before)))
}
