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
use ssbroker_store::{Asked, Begun, Only, Statements};

use crate::arrow::import_batch;
use crate::counts::{PyArrivals, PyCounts};
use crate::gate::{PyGate, Writer};
use crate::picture::PyPicture;
use crate::statements::{Message, PyStatements, Told, told};

/// How many messages were sent, where they are now, and each RECEIVE: its queue, and whether it found nothing.
type Done = (usize, Vec<(Told, usize)>, Vec<(i64, bool)>);

/// What is told of a commit: whether rows have changed, and what was done.
type Committed = (bool, Done);

/// What the transactions of one database file share.
#[pyclass(frozen, name = "SessionContext", module = "ssbroker._core")]
pub(crate) struct PySessionContext {
    gate: Py<PyGate>,
    /// Counts commits and wakes receivers without Python; a file without them announces nothing.
    announcer: Option<Announcer>,
}

struct Announcer {
    counts: Py<PyCounts>,
    arrivals: Py<PyArrivals>,
    /// The queue whose messages the instance itself reads.
    own_queue_id: i64,
}

#[pymethods]
impl PySessionContext {
    #[new]
    #[pyo3(signature = (gate, announcer=None, /))]
    fn new(gate: Py<PyGate>, announcer: Option<(Py<PyCounts>, Py<PyArrivals>, i64)>) -> Self {
        let announcer = announcer.map(|(counts, arrivals, own_queue_id)| Announcer { counts, arrivals, own_queue_id });
        Self { gate, announcer }
    }
}

/// A transaction that has begun.
struct Begin {
    writer: Writer,
    /// The version of the objects that the transaction sees.
    version: i64,
    /// The objects, if they are known.
    picture: Option<Py<PyPicture>>,
    /// How many rows the connection had changed before.
    changes: u64,
}

#[derive(Default)]
struct State {
    is_open: bool,
    is_over: bool,
    /// Whether Python has the connection too: it may be guarded, or have cursors open.
    is_shared: bool,
    begun: Option<Begin>,
    done: Done,
}

/// One transaction. Not for several threads at once.
#[pyclass(frozen, subclass, name = "Session", module = "ssbroker._core")]
pub(crate) struct PySession {
    context: Py<PySessionContext>,
    thread: u64,
    state: Mutex<State>,
}

impl PySession {
    fn gate(&self) -> &PyGate {
        self.context.get().gate.get()
    }

    fn state(&self) -> PyResult<MutexGuard<'_, State>> {
        self.state.try_lock().map_err(|_| PyRuntimeError::new_err("a transaction is used by one thread at a time"))
    }

    /// The begun transaction, if the fast path may be taken in it; begun now, if nobody has to be waited for.
    fn fast<'s>(
        &self,
        py: Python<'_>,
        state: &'s mut State,
    ) -> PyResult<Option<(&'s PyStatements, &'s PyPicture, &'s mut Done)>> {
        if !state.is_open || self.gate().is_shut() {
            return Ok(None);
        }
        match &mut state.begun {
            Some(begin) if !begin.writer.statements.get().is_begun(py) => return Ok(None),
            Some(begin) if begin.picture.is_none() => begin.picture = self.gate().picture(py, begin.version),
            Some(_) => {}
            None => state.begun = self.begin_free(py)?,
        }
        let State { begun: Some(begin), done, .. } = state else { return Ok(None) };
        Ok(begin.picture.as_ref().map(|picture| (begin.writer.statements.get(), picture.get(), done)))
    }

    /// Begins, if the lock and its connection are free and no other process writes.
    fn begin_free(&self, py: Python<'_>) -> PyResult<Option<Begin>> {
        let gate = self.gate();
        let Some(writer) = gate.take(py, self.thread) else { return Ok(None) };
        let begun = writer.statements.get().briefly(py, |statements| {
            let changes = statements.total_changes();
            Ok(if statements.begin()? == Begun::Begun { Some((changes, statements.catalog_version()?)) } else { None })
        });
        if let Ok(Some((changes, version))) = begun {
            let picture = gate.picture(py, version);
            return Ok(Some(Begin { writer, version, picture, changes }));
        }
        // The reason is found by the slow path, which waits.
        undo(py, gate, writer)?;
        Ok(None)
    }

    /// Counts what was done and wakes receivers; returns what Python has to announce.
    fn announce(&self, py: Python<'_>, has_changed: bool, done: Done) -> PyResult<Option<Committed>> {
        let Some(announcer) = &self.context.get().announcer else { return Ok(Some((has_changed, done))) };
        let (sent, places, received) = &done;
        let is_for_python = |queue_id: Option<i64>| queue_id.is_none_or(|queue_id| queue_id == announcer.own_queue_id);
        if announcer.counts.get().is_watched()
            || (has_changed && self.gate().is_failing())
            || places.iter().any(|((queue_id, ..), _)| is_for_python(*queue_id))
        {
            return Ok(Some((has_changed, done)));
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
        let is_new = !state.is_open && !state.is_over;
        state.is_open |= is_new;
        Ok(is_new)
    }

    #[getter]
    fn is_open(&self) -> PyResult<bool> {
        Ok(self.state()?.is_open)
    }

    #[getter]
    fn is_begun(&self) -> PyResult<bool> {
        Ok(self.state()?.begun.is_some())
    }

    /// The connection of the begun transaction.
    #[getter]
    fn connection(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        Ok(self.state()?.begun.as_ref().map(|begin| begin.writer.connection.clone_ref(py)))
    }

    /// Whether rows have changed since the transaction began.
    #[getter]
    fn has_changed(&self, py: Python<'_>) -> PyResult<bool> {
        let state = self.state()?;
        let Some(begin) = &state.begun else { return Ok(false) };
        begin.writer.statements.get().briefly(py, |statements| Ok(statements.total_changes() != begin.changes))
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
        // Half a surrogate pair is no name.
        let Ok(message_type_name) = message_type_name.to_str() else { return Ok(false) };
        let Some(now) = now.or_else(ssbroker_store::now) else { return Ok(false) };
        let mut state = self.state()?;
        let Some((statements, picture, done)) = self.fast(py, &mut state)? else { return Ok(false) };
        let message = Outgoing { conversation_handle: Guid(handle), message_type_name, message_body: body };
        let Some(sent) = statements.send_one(py, picture, &message, now)? else { return Ok(false) };
        done.0 += 1;
        done.1.push((told(sent), 1));
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
        let Some((statements, picture, done)) = self.fast(py, &mut state)? else { return Ok(false) };
        let batches = batches.iter().map(|batch| import_batch(&batch)).collect::<PyResult<Vec<_>>>()?;
        let sent = statements.detached(py, |statements| {
            let messages: Option<Vec<_>> =
                batches.iter().map(|batch| read_outgoing(batch, message_type_name)).collect();
            messages.map_or(Ok(None), |messages| statements.send_all(&picture.0, &messages.concat(), now))
        })?;
        let Some(sent) = sent else { return Ok(false) };
        for (sent, count) in sent {
            done.0 += count;
            done.1.push((told(sent), count));
        }
        Ok(true)
    }

    #[pyo3(signature = (schema, queue, top, groups, bytes_max, /))]
    fn receive<'py>(
        &self,
        py: Python<'py>,
        schema: &Bound<'py, PyAny>,
        queue: &Bound<'_, PyString>,
        top: Option<usize>,
        groups: Option<usize>,
        bytes_max: usize,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let mut state = self.state()?;
        let Some((statements, picture, done)) = self.fast(py, &mut state)? else { return Ok(None) };
        let (top, groups) = (top.unwrap_or(usize::MAX), groups.unwrap_or(usize::MAX));
        let Some(asked) = asked(picture, queue, top, groups, bytes_max) else { return Ok(None) };
        let found = statements.receive_batch(py, picture, asked, schema)?;
        if found.is_some() {
            done.2.push((asked.queue_id, false));
        }
        Ok(found)
    }

    #[pyo3(signature = (queue, /))]
    fn receive_one<'py>(&self, py: Python<'py>, queue: &Bound<'_, PyString>) -> PyResult<Option<Message<'py>>> {
        let mut state = self.state()?;
        let Some((statements, picture, done)) = self.fast(py, &mut state)? else { return Ok(None) };
        let Some(asked) = asked(picture, queue, 1, 1, usize::MAX) else { return Ok(None) };
        let found = statements.receive_one(py, picture, asked)?;
        if found.is_some() {
            done.2.push((asked.queue_id, false));
        }
        Ok(found)
    }

    /// Begins, if nobody has to be waited for. From now on Python has the connection too.
    fn begin_fast(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let mut state = self.state()?;
        if state.begun.is_none() && !self.gate().is_shut() {
            state.begun = self.begin_free(py)?;
        }
        state.is_shared |= state.begun.is_some();
        Ok(state.begun.as_ref().map(|begin| begin.writer.connection.clone_ref(py)))
    }

    /// Takes over the transaction that Python has begun on a connection, which goes with the lock from now on.
    #[pyo3(signature = (connection, /))]
    fn adopt(&self, py: Python<'_>, connection: &Bound<'_, PyAny>) -> PyResult<()> {
        let writer = Writer::new(connection)?;
        let (version, changes) = writer
            .statements
            .get()
            .briefly(py, |statements| Ok((statements.catalog_version().unwrap_or(-1), statements.total_changes())))?;
        let picture = self.gate().picture(py, version);
        let mut state = self.state()?;
        self.gate().lend(connection);
        (state.begun, state.is_shared) = (Some(Begin { writer, version, picture, changes }), true);
        Ok(())
    }

    /// What was done on the fast path since the last call.
    fn take_done(&self) -> PyResult<Done> {
        Ok(mem::take(&mut self.state()?.done))
    }

    /// Commits, unless Python has the connection too.
    fn commit_fast(&self, py: Python<'_>) -> PyResult<(bool, Option<Committed>)> {
        let mut state = self.state()?;
        if state.is_shared {
            return Ok((false, None));
        }
        let Some(begin) = &state.begun else {
            (state.is_open, state.is_over) = (false, true);
            return Ok((true, None));
        };
        let statements = begin.writer.statements.get();
        if self.gate().is_shut() || !statements.is_begun(py) {
            return Ok((false, None));
        }
        for (queue_id, _) in &state.done.2 {
            statements.briefly(py, |statements| statements.forget_rollbacks(*queue_id))?;
        }
        if !statements.commit(py)? {
            return Err(PyFileNotFoundError::new_err("another file stands in its place, or none"));
        }
        let has_changed = statements.briefly(py, |statements| Ok(statements.total_changes()))? != begin.changes;
        (state.is_open, state.is_over) = (false, true);
        if let Some(begin) = state.begun.take() {
            self.gate().give_back(py, begin.writer)?;
        }
        let done = mem::take(&mut state.done);
        drop(state);
        Ok((true, self.announce(py, has_changed, done)?))
    }

    /// Releases the lock together with the connection, whose transaction has ended and of which nothing is open; whether the lock had none.
    fn give_back(&self, py: Python<'_>) -> PyResult<bool> {
        let mut state = self.state()?;
        if !self.gate().can_keep() {
            return Ok(false);
        }
        state.is_shared = false;
        state.begun.take().map_or(Ok(()), |begin| self.gate().give_back(py, begin.writer))?;
        Ok(true)
    }

    /// Leaves the connection to Python, which ends what is open on it; the lock is still held.
    fn leave(&self) -> PyResult<Option<Py<PyAny>>> {
        let mut state = self.state()?;
        state.is_shared = false;
        Ok(state.begun.take().map(|begin| {
            self.gate().leave(&begin.writer.connection);
            begin.writer.connection
        }))
    }

    /// Leaves the block.
    fn end(&self) -> PyResult<()> {
        let mut state = self.state()?;
        (state.is_open, state.is_over) = (false, true);
        Ok(())
    }
}

impl Drop for PySession {
    /// Undoes a transaction that was entered without `with` and dropped: nobody else could release the lock.
    fn drop(&mut self) {
        let Some(state) = self.state.get_mut().ok() else { return };
        let is_shared = state.is_shared;
        let Some(begin) = state.begun.take() else { return };
        let left = Python::try_attach(|py| {
            let gate = self.gate();
            if gate.is_inherited() {
                mem::forget(begin); // it is the parent's
                return;
            }
            if let Err(error) = dropped(py, gate, begin, is_shared) {
                error.write_unraisable(py, None);
            }
        });
        debug_assert!(left.is_some(), "an object goes while the interpreter is there");
    }
}

/// Undoes what was begun, if anything, and releases the lock in any case.
fn undo(py: Python<'_>, gate: &PyGate, writer: Writer) -> PyResult<()> {
    match writer.statements.get().briefly(py, Statements::undo) {
        Ok(()) => gate.give_back(py, writer),
        Err(_) => gate.discard(py, &writer), // closing it undoes it
    }
}

fn dropped(py: Python<'_>, gate: &PyGate, begin: Begin, is_shared: bool) -> PyResult<()> {
    let path = begin.writer.connection.getattr(py, "filename").and_then(|path| path.extract::<String>(py));
    if is_shared {
        gate.discard(py, &begin.writer)?;
    } else {
        undo(py, gate, begin.writer)?;
    }
    let path = path?;
    let said = format!("{path}: a transaction was dropped before its end and is rolled back; use it in a `with` block");
    PyErr::warn(py, &py.get_type::<PyResourceWarning>(), &CString::new(said)?, 1)
}

/// What RECEIVE looks for in a queue of the schema that names without one are of, if it is there and on.
fn asked(
    picture: &PyPicture,
    queue: &Bound<'_, PyString>,
    top: usize,
    groups: usize,
    bytes_max: usize,
) -> Option<Asked> {
    let (queue_id, queue) = picture.0.queue_named(queue.to_str().ok()?)?;
    let is_retained = queue.is_retention_enabled;
    queue.is_receive_enabled.then_some(Asked { queue_id, top, groups, bytes_max, only: Only::All, is_retained })
}
