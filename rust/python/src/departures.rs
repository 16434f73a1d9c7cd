//! `_core.waiting_runs`, `_core.departures`, `_core.sender_runs` and `_core.first_hop`: what goes to another instance, and how.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use ssbroker_columnar::{
    Leaving, SenderRun, WaitingRun, departures as rows_of, first_hop as hop_of, sender_runs as senders_of,
    waiting_runs as runs_of,
};

use crate::capsule::{export_batch, import_stream};
use crate::doorway::{attached, detached};

/// Conversation, whether its initiator sends the messages, the number of the first, and how long the body of each is.
type Run<'py> = (Bound<'py, PyBytes>, bool, i64, Vec<usize>);

/// How many messages wait, how many of them go, the services that they are from and for and their contract, the brokers, the priority, the end of
/// the conversation, and the acknowledgement that goes with them: up to which number, and what beyond.
type Sender = (usize, usize, [String; 3], [u8; 16], Option<[u8; 16]>, i8, Option<i64>, Option<(Option<i64>, Vec<u8>)>);

/// The runs among messages that wait; none where each is to be looked at by itself.
#[pyfunction]
#[pyo3(signature = (messages, /))]
pub(crate) fn waiting_runs<'py>(py: Python<'py>, messages: &Bound<'py, PyAny>) -> PyResult<Option<Vec<Run<'py>>>> {
    let batches = import_stream(messages)?;
    let found = attached(py, || runs_of(&batches))?;
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
