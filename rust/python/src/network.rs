//! `_core.waiting_runs`, `_core.departures`, `_core.sender_runs` and `_core.first_hop`: what goes to another instance, and how.

use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_buffer::MutableBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ssbroker_columnar::{
    Leaving, SenderRun, WaitingRun, crc32c as checksum, decode_fragments as decode, departures as rows_of,
    first_hop as hop_of, header_digests as digests, plain_runs as runs_of, sender_runs as senders_of,
    waiting_runs as waiting_runs_of,
};

use crate::arrow::{Frozen, export_array, export_batch, import_stream};
use crate::detach::{attached, detached};

/// Conversation, whether its initiator sends the messages, the number of the first, and how long the body of each is.
type WaitingRow<'py> = (Bound<'py, PyBytes>, bool, i64, Vec<usize>);

/// How many messages wait, how many of them go, the services that they are from and for and their contract, the brokers, the priority, the end of
/// the conversation, and the acknowledgement that goes with them: up to which number, and what beyond.
type Sender = (usize, usize, [String; 3], [u8; 16], Option<[u8; 16]>, i8, Option<i64>, Option<(Option<i64>, Vec<u8>)>);

/// The runs among messages that wait; none where each is to be looked at by itself.
#[pyfunction]
#[pyo3(signature = (messages, /))]
pub(crate) fn waiting_runs<'py>(
    py: Python<'py>,
    messages: &Bound<'py, PyAny>,
) -> PyResult<Option<Vec<WaitingRow<'py>>>> {
    let batches = import_stream(messages)?;
    let found = attached(py, || waiting_runs_of(&batches))?;
    let as_run = |run: WaitingRun| (PyBytes::new(py, &run.conversation_id), run.is_initiator, run.first, run.lengths);
    Ok(found.map(|runs| runs.into_iter().map(as_run).collect()))
}

/// The rows of the envelope in which messages go.
#[pyfunction]
#[pyo3(signature = (messages, senders, /))]
pub(crate) fn departures<'py>(
    py: Python<'py>,
    messages: &Bound<'py, PyAny>,
    senders: Vec<Sender>,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let batches = import_stream(messages)?;
    let leaving: Vec<Leaving> = senders.into_iter().map(as_leaving).collect();
    let made = detached(py, || rows_of(&batches, &leaving))?;
    made.into_iter().map(|rows| export_batch(py, rows)).collect()
}

fn as_leaving(sender: Sender) -> Leaving {
    let (waiting, going, names, from_broker, to_broker, priority, lifetime, acknowledgement) = sender;
    Leaving { waiting, going, names, from_broker, to_broker, priority, lifetime, acknowledgement }
}

/// Conversation, whether its initiator sends the rows, the broker that they are for, and how many they are.
type Senders<'py> = Vec<(Bound<'py, PyBytes>, bool, Option<Bound<'py, PyBytes>>, usize)>;

/// The senders of rows of the envelope as they follow each other, and whether no row is secured.
#[pyfunction]
#[pyo3(signature = (rows, /))]
pub(crate) fn sender_runs<'py>(py: Python<'py>, rows: &Bound<'py, PyAny>) -> PyResult<(Senders<'py>, bool)> {
    let batches = import_stream(rows)?;
    let (found, are_plain) = attached(py, || senders_of(&batches))?;
    let bytes = |value: [u8; 16]| PyBytes::new(py, &value);
    let as_run = |run: SenderRun| (bytes(run.conversation_id), run.is_initiator, run.to_broker.map(bytes), run.rows);
    Ok((found.into_iter().map(as_run).collect(), are_plain))
}

/// What rows of the envelope are given for their first hop.
#[pyfunction]
#[pyo3(signature = (rows, now, /))]
pub(crate) fn first_hop<'py>(py: Python<'py>, rows: &Bound<'py, PyAny>, now: i64) -> PyResult<Bound<'py, PyAny>> {
    let batches = import_stream(rows)?;
    export_batch(py, attached(py, || hop_of(&batches, now))?)
}

// `_core.decode_fragments`, `_core.header_digests`, `_core.plain_runs` and `_core.crc32c`: what goes to another instance and comes from it.

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
