//! `_core.Session`: one transaction of a database file, with the fast path of SEND, RECEIVE and commit.

use std::ffi::CString;
use std::mem;
use std::sync::{Mutex, MutexGuard};

use pyo3::exceptions::{PyFileNotFoundError, PyResourceWarning, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString, PyTuple};
use ssbroker_columnar::read_outgoing;
use ssbroker_core::Guid;
use ssbroker_core::message::Outgoing;
use ssbroker_store::{BeginResult, QueueState, ReceiveRequest, Selection, Statements, Taking};

use crate::arrow::import_batch;
use crate::counts::{PyArrivals, PyCounts};
use crate::metadata::PyMetadataSnapshot;
use crate::statements::{Message, PyStatements, StoredAt, stored_at};
use crate::write_lock::{PyWriteLock, Writer};

/// The effects of a transaction: the number of sent messages; where they were stored, with the number of messages in
/// each place; and for each RECEIVE, the queue id and whether it found nothing.
type Summary = (usize, Vec<(StoredAt, usize)>, Vec<(i64, bool)>);

/// A commit that Python must announce: whether rows have changed, and the effects.
type Committed = (bool, Summary);

/// The kinds of calls that other processes see; Python has the same numbers.
const SENT: u32 = 1;
const RECEIVED: u32 = 2;

/// The parts of a transaction that the fast path uses.
struct FastPath<'s> {
    statements: &'s PyStatements,
    metadata: &'s PyMetadataSnapshot,
    queue_state: &'s mut Option<QueueState>,
    summary: &'s mut Summary,
    write_lock: &'s PyWriteLock,
}

impl FastPath<'_> {
    /// Returns the request to receive everything from a queue in the default schema; `None` if there is no such queue,
    /// it is disabled, the clock cannot be read, or a wait has ended.
    fn request_for(
        &mut self,
        py: Python<'_>,
        name: &Bound<'_, PyString>,
        now: Option<i64>,
    ) -> PyResult<Option<ReceiveRequest>> {
        let Some((queue_id, queue)) = name.to_str().ok().and_then(|name| self.metadata.0.queue_named(name)) else {
            return Ok(None);
        };
        if !queue.is_receive_enabled {
            return Ok(None);
        }
        let state = match *self.queue_state {
            Some(known) if known.queue_id == queue_id => known,
            _ => *self.queue_state.insert(self.statements.with_gil(py, |statements| statements.queue_state(queue_id))?),
        };
        let now = if state.has_leases {
            let Some(now) = now.or_else(ssbroker_store::now) else { return Ok(None) };
            if self.statements.with_gil(py, |statements| statements.has_ended_waits(now))? {
                return Ok(None); // Python makes their messages available
            }
            Some(now)
        } else {
            None
        };
        let taking = if queue.is_retention_enabled { Taking::Retain } else { Taking::Remove };
        let (top, groups, bytes_max) = (usize::MAX, usize::MAX, usize::MAX);
        Ok(Some(ReceiveRequest { queue_id, top, groups, bytes_max, selection: Selection::All, taking, now }))
    }

    /// Records that messages were received from a queue, which ends its consecutive rollbacks.
    fn record_receive(&mut self, py: Python<'_>, queue_id: i64) -> PyResult<()> {
        if let Some(state) = self.queue_state.as_mut().filter(|state| state.has_rollbacks) {
            self.statements.with_gil(py, |statements| statements.reset_rollback_count(queue_id))?;
            state.has_rollbacks = false;
        }
        if self.summary.2.is_empty() {
            self.write_lock.record_calls(RECEIVED);
        }
        self.summary.2.push((queue_id, false));
        Ok(())
    }
}

/// The state that all transactions of a database file share.
#[pyclass(frozen, name = "SessionContext", module = "ssbroker._core")]
pub(crate) struct PySessionContext {
    write_lock: Py<PyWriteLock>,
    /// Counts commits and wakes receivers without Python; if `None`, commits are not announced.
    announcer: Option<Announcer>,
}

struct Announcer {
    counts: Py<PyCounts>,
    arrivals: Py<PyArrivals>,
    /// The queue that the instance itself reads.
    own_queue_id: i64,
}

#[pymethods]
impl PySessionContext {
    #[new]
    #[pyo3(signature = (write_lock, announcer=None, /))]
    fn new(write_lock: Py<PyWriteLock>, announcer: Option<(Py<PyCounts>, Py<PyArrivals>, i64)>) -> Self {
        let announcer = announcer.map(|(counts, arrivals, own_queue_id)| Announcer { counts, arrivals, own_queue_id });
        Self { write_lock, announcer }
    }
}

/// A transaction in progress.
struct Transaction {
    writer: Writer,
    /// The version of the metadata that the transaction sees.
    version: i64,
    /// The metadata snapshot of that version, if there is one.
    metadata: Option<Py<PyMetadataSnapshot>>,
    /// The number of rows that the connection had changed before.
    changes_before: u64,
    /// The state of the queue of the last RECEIVE; `None` if unknown. Only Python adds leases and rollbacks.
    queue_state: Option<QueueState>,
}

#[derive(Default)]
struct State {
    is_open: bool,
    has_ended: bool,
    /// Whether Python also uses the connection, which may then have a commit hook or open cursors.
    is_shared: bool,
    transaction: Option<Transaction>,
    summary: Summary,
}

/// See `_core.pyi`.
#[pyclass(frozen, subclass, name = "Session", module = "ssbroker._core")]
pub(crate) struct PySession {
    context: Py<PySessionContext>,
    thread: u64,
    state: Mutex<State>,
}

impl PySession {
    fn write_lock(&self) -> &PyWriteLock {
        self.context.get().write_lock.get()
    }

    fn state(&self) -> PyResult<MutexGuard<'_, State>> {
        self.state.try_lock().map_err(|_| PyRuntimeError::new_err("only one thread may use a transaction at a time"))
    }

    /// Returns the transaction if the fast path is possible; starts it if this does not require waiting.
    fn fast<'s>(&'s self, py: Python<'_>, state: &'s mut State) -> PyResult<Option<FastPath<'s>>> {
        if !state.is_open || self.write_lock().is_unavailable() {
            return Ok(None);
        }
        match &mut state.transaction {
            Some(transaction) if !transaction.writer.statements.get().in_transaction(py) => return Ok(None),
            Some(transaction) if transaction.metadata.is_none() => {
                transaction.metadata = self.write_lock().metadata(py, transaction.version);
            }
            Some(_) => {}
            None => state.transaction = self.begin_without_waiting(py)?,
        }
        let State { transaction: Some(transaction), summary, .. } = state else { return Ok(None) };
        let Transaction { writer, metadata, queue_state, .. } = transaction;
        let (statements, write_lock) = (writer.statements.get(), self.write_lock());
        Ok(metadata.as_ref().map(|metadata| FastPath {
            statements,
            metadata: metadata.get(),
            queue_state,
            summary,
            write_lock,
        }))
    }

    /// Starts the transaction if the lock and its connection are free and no other process is writing.
    fn begin_without_waiting(&self, py: Python<'_>) -> PyResult<Option<Transaction>> {
        let write_lock = self.write_lock();
        let Some(writer) = write_lock.try_acquire_writer(py, self.thread) else { return Ok(None) };
        let started = writer.statements.get().with_gil(py, |statements| {
            let changes_before = statements.total_changes();
            let is_started = statements.begin()? == BeginResult::Started;
            Ok(if is_started { Some((changes_before, statements.catalog_version()?)) } else { None })
        });
        if let Ok(Some((changes_before, version))) = started {
            write_lock.record_holder();
            let metadata = write_lock.metadata(py, version);
            return Ok(Some(Transaction { writer, version, metadata, changes_before, queue_state: None }));
        }
        // Python tries again with waiting, and reports the reason if that fails too.
        roll_back(py, write_lock, writer)?;
        Ok(None)
    }

    /// Counts the effects and wakes receivers; returns the effects if Python must announce them.
    fn announce(&self, py: Python<'_>, has_changed: bool, summary: Summary) -> PyResult<Option<Committed>> {
        let Some(announcer) = &self.context.get().announcer else { return Ok(Some((has_changed, summary))) };
        let (sent, places, received) = &summary;
        let is_for_python = |queue_id: Option<i64>| queue_id.is_none_or(|queue_id| queue_id == announcer.own_queue_id);
        if announcer.counts.get().is_watched()
            || (has_changed && self.write_lock().is_failing())
            || places.iter().any(|((queue_id, ..), _)| is_for_python(*queue_id))
        {
            return Ok(Some((has_changed, summary)));
        }
        let enqueued = places.iter().map(|((_, priority, is_remote), number)| ((*is_remote, *priority), *number));
        announcer.counts.get().add(*sent, received.len(), enqueued);
        let queue_ids = places.iter().filter_map(|((queue_id, ..), _)| *queue_id);
        if !places.is_empty() && announcer.arrivals.get().add(queue_ids) {
            announcer.arrivals.call_method0(py, "wake")?;
        }
        Ok(None)
    }
}

#[pymethods]
impl PySession {
    #[new]
    #[pyo3(signature = (context, thread, /, *_args))]
    fn new(context: Py<PySessionContext>, thread: u64, _args: &Bound<'_, PyTuple>) -> Self {
        Self { context, thread, state: Mutex::default() }
    }

    fn open(&self) -> PyResult<bool> {
        let mut state = self.state()?;
        let is_new = !state.is_open && !state.has_ended;
        state.is_open |= is_new;
        Ok(is_new)
    }

    #[getter]
    fn is_open(&self) -> PyResult<bool> {
        Ok(self.state()?.is_open)
    }

    #[getter]
    fn has_begun(&self) -> PyResult<bool> {
        Ok(self.state()?.transaction.is_some())
    }

    #[getter]
    fn connection(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        Ok(self.state()?.transaction.as_ref().map(|transaction| transaction.writer.connection.clone_ref(py)))
    }

    #[getter]
    fn has_changed(&self, py: Python<'_>) -> PyResult<bool> {
        let state = self.state()?;
        let Some(transaction) = &state.transaction else { return Ok(false) };
        let statements = transaction.writer.statements.get();
        statements.with_gil(py, |statements| Ok(statements.total_changes() != transaction.changes_before))
    }

    #[pyo3(signature = (handle, body, message_type_name, now, /))]
    fn send(
        &self,
        py: Python<'_>,
        handle: [u8; 16],
        body: &[u8],
        message_type_name: &Bound<'_, PyString>,
        now: Option<i64>,
    ) -> PyResult<bool> {
        // A lone surrogate cannot be encoded.
        let Ok(message_type_name) = message_type_name.to_str() else { return Ok(false) };
        let Some(now) = now.or_else(ssbroker_store::now) else { return Ok(false) };
        let mut state = self.state()?;
        let Some(FastPath { statements, metadata, summary, .. }) = self.fast(py, &mut state)? else { return Ok(false) };
        let message = Outgoing { conversation_handle: Guid(handle), message_type_name, message_body: body };
        let Some(sent) = statements.send_one(py, metadata, &message, now)? else { return Ok(false) };
        summary.0 += 1;
        summary.1.push((stored_at(sent), 1));
        if summary.0 == 1 {
            self.write_lock().record_calls(SENT);
        }
        Ok(true)
    }

    #[pyo3(signature = (batches, message_type_name, now, /))]
    fn send_batch(
        &self,
        py: Python<'_>,
        batches: &Bound<'_, PyList>,
        message_type_name: &str,
        now: Option<i64>,
    ) -> PyResult<bool> {
        let Some(now) = now.or_else(ssbroker_store::now) else { return Ok(false) };
        let mut state = self.state()?;
        let Some(FastPath { statements, metadata, summary, .. }) = self.fast(py, &mut state)? else { return Ok(false) };
        let batches = batches.iter().map(|batch| import_batch(&batch)).collect::<PyResult<Vec<_>>>()?;
        let sent = statements.without_gil(py, |statements| {
            let messages: Option<Vec<_>> =
                batches.iter().map(|batch| read_outgoing(batch, message_type_name)).collect();
            messages.map_or(Ok(None), |messages| statements.send_all(&metadata.0, &messages.concat(), now))
        })?;
        let Some(sent) = sent else { return Ok(false) };
        for (sent, count) in sent {
            summary.0 += count;
            summary.1.push((stored_at(sent), count));
        }
        self.write_lock().record_calls(SENT);
        Ok(true)
    }

    #[pyo3(signature = (schema, queue, top, groups, bytes_max, now, /))]
    #[allow(clippy::too_many_arguments)]
    fn receive<'py>(
        &self,
        py: Python<'py>,
        schema: &Bound<'py, PyAny>,
        queue: &Bound<'_, PyString>,
        top: Option<usize>,
        groups: Option<usize>,
        bytes_max: usize,
        now: Option<i64>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let mut state = self.state()?;
        let Some(mut fast) = self.fast(py, &mut state)? else { return Ok(None) };
        let Some(all) = fast.request_for(py, queue, now)? else { return Ok(None) };
        let (top, groups) = (top.unwrap_or(all.top), groups.unwrap_or(all.groups));
        let request = ReceiveRequest { top, groups, bytes_max, ..all };
        let found = fast.statements.receive_batch(py, fast.metadata, request, schema)?;
        if found.is_some() {
            fast.record_receive(py, request.queue_id)?;
        }
        Ok(found)
    }

    #[pyo3(signature = (queue, now, /))]
    fn receive_one<'py>(
        &self,
        py: Python<'py>,
        queue: &Bound<'_, PyString>,
        now: Option<i64>,
    ) -> PyResult<Option<Message<'py>>> {
        let mut state = self.state()?;
        let Some(mut fast) = self.fast(py, &mut state)? else { return Ok(None) };
        let Some(all) = fast.request_for(py, queue, now)? else { return Ok(None) };
        let request = ReceiveRequest { top: 1, groups: 1, ..all };
        let found = fast.statements.receive_rows(py, fast.metadata, request)?.into_iter().next();
        if found.is_some() {
            fast.record_receive(py, request.queue_id)?;
        }
        Ok(found)
    }

    fn begin_fast(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let mut state = self.state()?;
        match &mut state.transaction {
            Some(transaction) => transaction.queue_state = None, // the caller may change it
            None if self.write_lock().is_unavailable() => {}
            none => *none = self.begin_without_waiting(py)?,
        }
        state.is_shared |= state.transaction.is_some();
        Ok(state.transaction.as_ref().map(|transaction| transaction.writer.connection.clone_ref(py)))
    }

    #[pyo3(signature = (connection, /))]
    fn adopt(&self, py: Python<'_>, connection: &Bound<'_, PyAny>) -> PyResult<()> {
        let writer = Writer::new(connection)?;
        let (version, changes_before) = writer
            .statements
            .get()
            .with_gil(py, |statements| Ok((statements.catalog_version().unwrap_or(-1), statements.total_changes())))?;
        let metadata = self.write_lock().metadata(py, version);
        let mut state = self.state()?;
        self.write_lock().set_in_use(connection);
        self.write_lock().record_holder();
        state.transaction = Some(Transaction { writer, version, metadata, changes_before, queue_state: None });
        state.is_shared = true;
        Ok(())
    }

    fn take_summary(&self) -> PyResult<Summary> {
        Ok(mem::take(&mut self.state()?.summary))
    }

    fn commit_fast(&self, py: Python<'_>) -> PyResult<(bool, Option<Committed>)> {
        let mut state = self.state()?;
        if state.is_shared {
            return Ok((false, None));
        }
        let Some(transaction) = &state.transaction else {
            (state.is_open, state.has_ended) = (false, true);
            return Ok((true, None));
        };
        let statements = transaction.writer.statements.get();
        if self.write_lock().is_unavailable() || !statements.in_transaction(py) {
            return Ok((false, None));
        }
        if !statements.commit(py, true)? {
            return Err(PyFileNotFoundError::new_err("the file was moved, deleted or replaced"));
        }
        let changes = statements.with_gil(py, |statements| Ok(statements.total_changes()))?;
        let has_changed = changes != transaction.changes_before;
        (state.is_open, state.has_ended) = (false, true);
        if let Some(transaction) = state.transaction.take() {
            self.write_lock().release_writer(py, transaction.writer)?;
        }
        let summary = mem::take(&mut state.summary);
        drop(state);
        Ok((true, self.announce(py, has_changed, summary)?))
    }

    #[pyo3(signature = (is_reusable, /))]
    fn release(&self, py: Python<'_>, is_reusable: bool) -> PyResult<()> {
        let mut state = self.state()?;
        state.is_shared = false;
        let Some(Transaction { writer, .. }) = state.transaction.take() else { return Ok(()) };
        drop(state);
        if is_reusable {
            self.write_lock().release_writer(py, writer)
        } else {
            self.write_lock().discard_writer(py, &writer)
        }
    }

    fn end(&self) -> PyResult<()> {
        let mut state = self.state()?;
        (state.is_open, state.has_ended) = (false, true);
        Ok(())
    }
}

impl Drop for PySession {
    /// Rolls back a transaction that was entered without `with` and dropped: nothing else can release the lock.
    fn drop(&mut self) {
        let Some(state) = self.state.get_mut().ok() else { return };
        let is_shared = state.is_shared;
        let Some(transaction) = state.transaction.take() else { return };
        let attached = Python::try_attach(|py| {
            let write_lock = self.write_lock();
            if write_lock.is_inherited() {
                mem::forget(transaction); // it belongs to the parent process
                return;
            }
            if let Err(error) = roll_back_dropped(py, write_lock, transaction, is_shared) {
                error.write_unraisable(py, None);
            }
        });
        debug_assert!(attached.is_some(), "Python objects are dropped before the interpreter ends");
    }
}

/// Rolls back, and releases the lock even if that fails.
fn roll_back(py: Python<'_>, write_lock: &PyWriteLock, writer: Writer) -> PyResult<()> {
    match writer.statements.get().with_gil(py, Statements::roll_back) {
        Ok(()) => write_lock.release_writer(py, writer),
        Err(_) => write_lock.discard_writer(py, &writer), // closing the connection rolls back
    }
}

fn roll_back_dropped(
    py: Python<'_>,
    write_lock: &PyWriteLock,
    transaction: Transaction,
    is_shared: bool,
) -> PyResult<()> {
    let filename = transaction.writer.connection.getattr(py, "filename");
    let path = filename.and_then(|path| path.extract::<String>(py));
    if is_shared {
        write_lock.discard_writer(py, &transaction.writer)?;
    } else {
        roll_back(py, write_lock, transaction.writer)?;
    }
    let path = path?;
    let message =
        format!("{path}: a transaction was deleted before it ended, and is rolled back; use it in a `with` block");
    PyErr::warn(py, &py.get_type::<PyResourceWarning>(), &CString::new(message)?, 1)
}
