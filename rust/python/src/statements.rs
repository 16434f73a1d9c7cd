//! `_core.Statements`: the fast path on a connection of apsw.

use std::any::Any;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyIndexError, PyLookupError};
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBytes, PyString};
use ssbroker_columnar::{message_bodies, received_batch, transmission_batch};
use ssbroker_core::Guid;
use ssbroker_core::message::{Outbox, Outgoing};
use ssbroker_store::{
    EnqueueTarget, QueueRow, ReadRequest, ReceiveRequest, Result, Selection, Sent, Statements, Taking, TransmissionRow,
};

use crate::arrow::{export_batch, export_with_schema, import_stream};
use crate::errors::{panicked, to_python, unusable};
use crate::metadata::PyMetadataSnapshot;
use crate::sqlite::{statements, to_apsw_error};

/// Sending bodies of up to this total size is faster than releasing the GIL.
const SHORT_BYTES: usize = 64 << 10;
/// The status column of messages that RECEIVE removes, and of messages that it retains.
const READY: i32 = 1;
const RETAINED: i32 = 0;
const NO_CONVERSATION: &str = "the group has no conversation in this queue";

/// The destination of a run of messages: queue id, priority, endpoint id, message type id, first sequence number.
type EnqueueRow = (i64, i64, i64, i64, i64);

/// Which messages of the transmission queue to read: conversation id, whether the endpoint is the initiator, first
/// and last sequence number, maximum number of messages, maximum bytes, largest body, and first message id.
type ReadRequestRow = ([u8; 16], bool, i64, i64, i64, i64, i64, [u8; 16]);

/// Where messages were stored: queue id, priority, whether the receiver has received anything over the network; or
/// `None`, the sender's endpoint id, `False`.
pub(crate) type StoredAt = (Option<i64>, i64, bool);

/// A received message: body, conversation handle, conversation group id, conversation id, whether the initiator sent
/// it, sequence number, message type, service, contract, priority, queuing order, validation.
pub(crate) type Message<'py> = (
    Option<Bound<'py, PyBytes>>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    Bound<'py, PyBytes>,
    bool,
    i64,
    Bound<'py, PyString>,
    Bound<'py, PyString>,
    Bound<'py, PyString>,
    i32,
    i64,
    Bound<'py, PyString>,
);

/// A row of the queues: queue id, status, priority, endpoint id, precedence, sequence number, message type id, body.
type QueuedRow = (i64, i64, i64, i64, i64, i64, i64, Option<PyBackedBytes>);

/// A row of the transmission queue: endpoint id, whether it is inbound, sequence number, message type, whether it is
/// an error, whether it ends the dialog, enqueue time, body.
type TransmittedRow = (i64, bool, i64, PyBackedStr, bool, bool, i64, Option<PyBackedBytes>);

/// See `_core.pyi`.
#[pyclass(frozen, name = "Statements", module = "ssbroker._core")]
pub(crate) struct PyStatements {
    statements: Mutex<Option<Statements>>,
}

impl PyStatements {
    /// Runs short work without releasing the GIL, unless another thread uses the statements.
    pub(crate) fn with_gil<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Statements) -> Result<T> + Send,
    ) -> PyResult<T> {
        match self.statements.try_lock() {
            Ok(held) => Self::map_result(py, catch_unwind(AssertUnwindSafe(|| held.as_ref().map(work)))),
            Err(_) => self.without_gil(py, work),
        }
    }

    /// Runs `work` without the GIL.
    pub(crate) fn without_gil<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Statements) -> Result<T> + Send,
    ) -> PyResult<T> {
        let outcome = py.detach(|| {
            catch_unwind(AssertUnwindSafe(|| self.statements.lock().ok().and_then(|held| held.as_ref().map(work))))
        });
        Self::map_result(py, outcome)
    }

    /// Runs `work`, with the GIL held if it is short.
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        is_short: bool,
        work: impl FnOnce(&Statements) -> Result<T> + Send,
    ) -> PyResult<T> {
        if is_short { self.with_gil(py, work) } else { self.without_gil(py, work) }
    }

    fn map_result<T>(
        py: Python<'_>,
        outcome: std::result::Result<Option<Result<T>>, Box<dyn Any + Send>>,
    ) -> PyResult<T> {
        match outcome {
            Ok(Some(result)) => result.map_err(|error| to_apsw_error(py, &error)),
            Ok(None) => Err(unusable(py)),
            Err(panic) => Err(panicked(py, &*panic)),
        }
    }

    /// Sends a message if the fast path can send it.
    pub(crate) fn send_one(
        &self,
        py: Python<'_>,
        metadata: &PyMetadataSnapshot,
        message: &Outgoing<'_>,
        now: i64,
    ) -> PyResult<Option<Sent>> {
        let is_short = message.message_body.len() <= SHORT_BYTES;
        self.run(py, is_short, |statements| statements.send(&metadata.0, message, now))
    }

    /// Receives messages as rows.
    pub(crate) fn receive_rows<'py>(
        &self,
        py: Python<'py>,
        metadata: &PyMetadataSnapshot,
        request: ReceiveRequest,
    ) -> PyResult<Vec<Message<'py>>> {
        let found = self.without_gil(py, |statements| statements.receive(&metadata.0, request))?;
        let inbox = found.ok_or_else(|| PyLookupError::new_err(NO_CONVERSATION))?;
        let bytes = |guid: Guid| PyBytes::new(py, &guid.0);
        let mut start = 0;
        let rows = inbox.messages.iter().zip(&inbox.ends).map(|(message, end)| {
            let body = end.map(|end| PyBytes::new(py, &inbox.bodies[mem::replace(&mut start, end)..end]));
            (
                body,
                bytes(message.conversation_handle),
                bytes(message.conversation_group_id),
                bytes(message.conversation_id),
                message.is_initiator,
                message.message_sequence_number,
                PyString::new(py, message.message_type_name),
                PyString::new(py, message.service_name),
                PyString::new(py, message.service_contract_name),
                message.priority,
                message.queuing_order,
                PyString::new(py, message.validation),
            )
        });
        Ok(rows.collect())
    }

    /// Receives messages as a batch of `schema`; `None` if there are none.
    pub(crate) fn receive_batch<'py>(
        &self,
        py: Python<'py>,
        metadata: &PyMetadataSnapshot,
        request: ReceiveRequest,
        schema: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let status = if request.taking == Taking::Retain { RETAINED } else { READY };
        let found = self.without_gil(py, |statements| {
            let inbox = statements.receive(&metadata.0, request)?;
            Ok(inbox.map(|inbox| (!inbox.is_empty()).then(|| received_batch(inbox, status))))
        })?;
        match found {
            None => Err(PyLookupError::new_err(NO_CONVERSATION)),
            Some(None) => Ok(None),
            Some(Some(batch)) => {
                export_with_schema(py, batch.map_err(|error| to_python(py, &error))?, schema).map(Some)
            }
        }
    }
}

#[pymethods]
impl PyStatements {
    #[new]
    #[pyo3(signature = (connection, /))]
    fn new(connection: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self { statements: Mutex::new(Some(statements(connection)?)) })
    }

    #[getter]
    pub(crate) fn in_transaction(&self, py: Python<'_>) -> bool {
        let in_transaction = |held: &Option<Statements>| held.as_ref().is_some_and(Statements::in_transaction);
        match self.statements.try_lock() {
            Ok(held) => in_transaction(&held),
            Err(_) => py.detach(|| self.statements.lock().is_ok_and(|held| in_transaction(&held))),
        }
    }

    #[pyo3(signature = (*, is_durable=true))]
    pub(crate) fn commit(&self, py: Python<'_>, is_durable: bool) -> PyResult<bool> {
        self.without_gil(py, |statements| statements.commit(is_durable))
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.without_gil(py, Statements::sync)
    }

    fn catalog_version(&self, py: Python<'_>) -> PyResult<i64> {
        self.with_gil(py, Statements::catalog_version)
    }

    #[pyo3(signature = (queue_id, /))]
    fn reset_rollback_count(&self, py: Python<'_>, queue_id: i64) -> PyResult<()> {
        self.with_gil(py, |statements| statements.reset_rollback_count(queue_id))
    }

    #[pyo3(signature = (number, /))]
    fn reserve_queuing_order(&self, py: Python<'_>, number: i64) -> PyResult<()> {
        self.with_gil(py, |statements| statements.reserve_queuing_order(number))
    }

    #[pyo3(signature = (requests, /))]
    fn read_transmission_queue<'py>(
        &self,
        py: Python<'py>,
        requests: Vec<ReadRequestRow>,
    ) -> PyResult<(Vec<Bound<'py, PyAny>>, Vec<usize>)> {
        let (outboxes, counts) = self.without_gil(py, |statements| {
            let mut outboxes = vec![Outbox::default()];
            let mut counts = Vec::with_capacity(requests.len());
            for (conversation_id, is_initiator, first, last, max_messages, max_bytes, max_body_bytes, message_id) in
                requests
            {
                let (conversation_id, message_id) = (Guid(conversation_id), Guid(message_id));
                let request = ReadRequest {
                    conversation_id,
                    is_initiator,
                    first,
                    last,
                    max_messages,
                    max_bytes,
                    max_body_bytes,
                    message_id,
                };
                counts.push(statements.read_transmission_queue(request, &mut outboxes)?);
            }
            Ok((outboxes, counts))
        })?;
        let exported = |outbox| export_batch(py, transmission_batch(outbox).map_err(|error| to_python(py, &error))?);
        Ok((outboxes.into_iter().map(exported).collect::<PyResult<_>>()?, counts))
    }

    #[pyo3(signature = (rows, runs, now, /))]
    fn enqueue(
        &self,
        py: Python<'_>,
        rows: &Bound<'_, PyAny>,
        runs: Vec<(usize, usize, EnqueueRow)>,
        now: i64,
    ) -> PyResult<()> {
        let batches = import_stream(rows)?;
        let bodies = message_bodies(&batches).map_err(|error| to_python(py, &error))?;
        let mut targets = Vec::with_capacity(runs.len());
        for (start, count, (queue_id, priority, endpoint_id, message_type_id, first)) in runs {
            let run_bodies = start.checked_add(count).and_then(|end| bodies.get(start..end));
            let run_bodies = run_bodies.ok_or_else(|| PyIndexError::new_err("a run exceeds the rows"))?;
            targets.push((EnqueueTarget { queue_id, priority, endpoint_id, message_type_id, first }, run_bodies));
        }
        self.without_gil(py, |statements| {
            targets.into_iter().try_for_each(|(run, bodies)| statements.enqueue(run, bodies.iter().copied(), now))
        })
    }

    #[pyo3(signature = (rows, now, /))]
    #[allow(clippy::needless_pass_by_value)] // pyo3 extracts an owned vector
    fn insert_queued(&self, py: Python<'_>, rows: Vec<QueuedRow>, now: i64) -> PyResult<()> {
        let is_short = is_short(rows.iter().map(|row| &row.7));
        self.run(py, is_short, |statements| {
            let queued = rows.iter().map(|row| {
                Ok(QueueRow {
                    queue_id: row.0,
                    status: row.1,
                    priority: row.2,
                    endpoint_id: row.3,
                    precedence: row.4,
                    message_sequence_number: row.5,
                    message_type_id: row.6,
                    message_body: row.7.as_deref(),
                })
            });
            statements.insert_queued(queued, now)
        })
    }

    #[pyo3(signature = (rows, /))]
    #[allow(clippy::needless_pass_by_value)] // pyo3 extracts an owned vector
    fn insert_transmissions(&self, py: Python<'_>, rows: Vec<TransmittedRow>) -> PyResult<()> {
        let is_short = is_short(rows.iter().map(|row| &row.7));
        self.run(py, is_short, |statements| {
            statements.insert_transmissions(rows.iter().map(|row| TransmissionRow {
                endpoint_id: row.0,
                is_inbound: row.1,
                message_sequence_number: row.2,
                message_type_name: &row.3,
                is_conversation_error: row.4,
                is_end_of_dialog: row.5,
                enqueue_time: row.6,
                message_body: row.7.as_deref(),
            }))
        })
    }

    #[pyo3(signature = (metadata, schema, queue_id, /, *, top, groups, bytes_max, endpoint_id, group, is_retained, now))]
    #[allow(clippy::too_many_arguments)]
    fn receive<'py>(
        &self,
        py: Python<'py>,
        metadata: &PyMetadataSnapshot,
        schema: &Bound<'py, PyAny>,
        queue_id: i64,
        top: Option<usize>,
        groups: Option<usize>,
        bytes_max: usize,
        endpoint_id: Option<i64>,
        group: Option<[u8; 16]>,
        is_retained: bool,
        now: i64,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let selection = match (endpoint_id, group) {
            (Some(endpoint_id), _) => Selection::Endpoint(endpoint_id),
            (None, Some(group)) => Selection::Group(Guid(group)),
            (None, None) => Selection::All,
        };
        let (top, groups) = (top.unwrap_or(usize::MAX), groups.unwrap_or(usize::MAX));
        let taking = if is_retained { Taking::Retain } else { Taking::Remove };
        let request = ReceiveRequest { queue_id, top, groups, bytes_max, selection, taking, now: Some(now) };
        self.receive_batch(py, metadata, request, schema)
    }

    #[pyo3(signature = (metadata, queue_id, /, *, top, bytes_max, now))]
    fn read_next_group<'py>(
        &self,
        py: Python<'py>,
        metadata: &PyMetadataSnapshot,
        queue_id: i64,
        top: Option<usize>,
        bytes_max: usize,
        now: i64,
    ) -> PyResult<Vec<Message<'py>>> {
        let (top, selection, taking) = (top.unwrap_or(usize::MAX), Selection::All, Taking::Keep);
        let request = ReceiveRequest { queue_id, top, groups: 1, bytes_max, selection, taking, now: Some(now) };
        self.receive_rows(py, metadata, request)
    }

    #[pyo3(signature = (queuing_orders, /, *, is_retained))]
    #[allow(clippy::needless_pass_by_value)] // pyo3 extracts an owned vector
    fn acknowledge(&self, py: Python<'_>, queuing_orders: Vec<i64>, is_retained: bool) -> PyResult<usize> {
        let taking = if is_retained { Taking::Retain } else { Taking::Remove };
        self.without_gil(py, |statements| statements.acknowledge(&queuing_orders, taking))
    }

    fn close(&self, py: Python<'_>) {
        // Also after a panic, because the connection cannot be closed while statements exist.
        py.detach(|| drop(self.statements.lock().unwrap_or_else(PoisonError::into_inner).take()));
    }
}

/// Whether writing the bodies is faster than releasing the GIL.
fn is_short<'b>(bodies: impl Iterator<Item = &'b Option<PyBackedBytes>>) -> bool {
    bodies.map(|body| body.as_ref().map_or(0, |body| body.len())).sum::<usize>() <= SHORT_BYTES
}

pub(crate) fn stored_at(sent: Sent) -> StoredAt {
    match sent {
        Sent::Enqueued { queue_id, priority, is_remote } => (Some(queue_id), priority, is_remote),
        Sent::Transmission { endpoint_id } => (None, endpoint_id, false),
    }
}
