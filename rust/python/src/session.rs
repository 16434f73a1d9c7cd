//! `_core.Plain` and `_core.PlainSession`: transactions of a database, for as long as they do what is plain.

use std::ffi::CString;
use std::mem;
use std::sync::{Mutex, MutexGuard};

use pyo3::exceptions::{PyFileNotFoundError, PyResourceWarning, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use ssbroker_core::Guid;
use ssbroker_core::message::Outgoing;
use ssbroker_store::{Asked, Begun, Only, Statements};

use crate::counts::{PyArrivals, PyCounts};
use crate::gate::{PyGate, Writer};
use crate::picture::PyPicture;
use crate::statements::{Message, PyStatements, Told, told};

/// How many messages were sent, what became of them, and each RECEIVE: its queue, and whether it found nothing.
type Done = (usize, Vec<(Told, usize)>, Vec<(i64, bool)>);

/// What the transactions of a database have in common.
#[pyclass(frozen, name = "Plain", module = "ssbroker._core")]
pub(crate) struct PyPlain {
    gate: Py<PyGate>,
    counts: Py<PyCounts>,
    arrivals: Py<PyArrivals>,
    /// The queue whose messages the instance itself reads.
    own_queue_id: i64,
}

#[pymethods]
impl PyPlain {
    #[new]
    #[pyo3(signature = (gate, counts, arrivals, own_queue_id, /))]
    fn new(gate: Py<PyGate>, counts: Py<PyCounts>, arrivals: Py<PyArrivals>, own_queue_id: i64) -> Self {
        Self { gate, counts, arrivals, own_queue_id }
    }

    #[pyo3(signature = (thread, /))]
    fn session(own: Py<Self>, thread: u64) -> PyPlainSession {
        PyPlainSession { plain: own, thread, state: Mutex::default() }
    }
}

/// A transaction that is begun.
struct Begin {
    writer: Writer,
    /// What stands in the database, if that is known.
    picture: Option<Py<PyPicture>>,
    /// How many rows the connection had changed before.
    changes: u64,
}

#[derive(Default)]
struct State {
    is_open: bool,
    is_over: bool,
    /// Whether what was begun here is somebody else's.
    is_left: bool,
    begun: Option<Begin>,
    done: Done,
}

/// One transaction, as far as it is plain. Not for several threads at once.
#[pyclass(frozen, name = "PlainSession", module = "ssbroker._core")]
pub(crate) struct PyPlainSession {
    plain: Py<PyPlain>,
    thread: u64,
    state: Mutex<State>,
}

impl PyPlainSession {
    fn gate(&self) -> &PyGate {
        self.plain.get().gate.get()
    }

    fn state(&self) -> PyResult<MutexGuard<'_, State>> {
        self.state.try_lock().map_err(|_| PyRuntimeError::new_err("a transaction is used by one thread at a time"))
    }

    /// What is begun, with its picture; begun now, if nobody has to be waited for. `None` where Python has to do it, or to say why not.
    fn begun<'s>(
        &self,
        py: Python<'_>,
        state: &'s mut State,
    ) -> PyResult<Option<(&'s PyStatements, &'s PyPicture, &'s mut Done)>> {
        if !state.is_open || self.gate().is_shut() {
            return Ok(None);
        }
        match &state.begun {
            Some(begin) if !begin.writer.statements.get().is_begun(py) => return Ok(None),
            Some(_) => {}
            None => state.begun = self.begin(py)?,
        }
        let State { begun: Some(begin), done, .. } = state else { return Ok(None) };
        Ok(begin.picture.as_ref().map(|picture| (begin.writer.statements.get(), picture.get(), done)))
    }

    fn begin(&self, py: Python<'_>) -> PyResult<Option<Begin>> {
        let gate = self.gate();
        let Some(writer) = gate.take(py, self.thread) else { return Ok(None) };
        let begun = writer.statements.get().briefly(py, |statements| {
            let changes = statements.total_changes();
            Ok(if statements.begin()? == Begun::Begun { Some((changes, statements.catalog_version()?)) } else { None })
        });
        if let Ok(Some((changes, version))) = begun {
            return Ok(Some(Begin { writer, picture: gate.picture(py, version), changes }));
        }
        // Why it cannot be begun is found out by who waits for it.
        undo(py, gate, writer)?;
        Ok(None)
    }

    /// Counts what was done, and wakes whoever waits for it; what was done, where Python has to tell others of it.
    fn tell(&self, py: Python<'_>, has_changed: bool, done: Done) -> PyResult<Option<(bool, Done)>> {
        let plain = self.plain.get();
        let (sent, told, received) = &done;
        let is_for_others = |queue_id: Option<i64>| queue_id.is_none_or(|queue_id| queue_id == plain.own_queue_id);
        if plain.counts.get().is_watched()
            || (has_changed && self.gate().is_failing())
            || told.iter().any(|((queue_id, ..), _)| is_for_others(*queue_id))
        {
            return Ok(Some((has_changed, done)));
        }
        let enqueued = told.iter().map(|((_, priority, is_remote), number)| ((*is_remote, *priority), *number));
        plain.counts.get().add(*sent, received.len(), enqueued);
        let queue_ids = told.iter().filter_map(|((queue_id, ..), _)| *queue_id);
        if !told.is_empty() && plain.arrivals.get().add(queue_ids) {
            plain.arrivals.call_method0(py, "wake")?;
        }
        Ok(None)
    }
}

#[pymethods]
impl PyPlainSession {
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
        let Some((statements, picture, done)) = self.begun(py, &mut state)? else { return Ok(false) };
        let message = Outgoing { conversation_handle: Guid(handle), message_type_name, message_body: body };
        let Some(sent) = statements.send_one(py, picture, &message, now)? else { return Ok(false) };
        done.0 += 1;
        done.1.push((told(sent), 1));
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
        let Some((statements, picture, done)) = self.begun(py, &mut state)? else { return Ok(None) };
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
        let Some((statements, picture, done)) = self.begun(py, &mut state)? else { return Ok(None) };
        let Some(asked) = asked(picture, queue, 1, 1, usize::MAX) else { return Ok(None) };
        let found = statements.receive_one(py, picture, asked)?;
        if found.is_some() {
            done.2.push((asked.queue_id, false));
        }
        Ok(found)
    }

    /// Whether it is committed: otherwise Python has to do it, or to say why not. And what Python has to tell others, if anything.
    fn commit(&self, py: Python<'_>) -> PyResult<(bool, Option<(bool, Done)>)> {
        let mut state = self.state()?;
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
        Ok((true, self.tell(py, has_changed, done)?))
    }

    #[getter]
    fn is_left(&self) -> PyResult<bool> {
        Ok(self.state()?.is_left)
    }

    /// No signal comes in the middle of this: either this session has what was begun, or the other one.
    #[pyo3(signature = (session, used, /))]
    fn leave(&self, session: &Bound<'_, PyAny>, used: &Bound<'_, PyDict>) -> PyResult<Done> {
        let mut state = self.state()?;
        if let Some(begin) = &state.begun {
            let connection = &begin.writer.connection;
            if !self.gate().is_inherited() {
                used.set_item(connection, self.thread)?;
            }
            session.setattr("_changes", begin.changes)?;
            session.setattr("_connection", connection)?;
            self.gate().leave(connection);
            state.is_left = true;
            state.begun = None;
        }
        Ok(mem::take(&mut state.done))
    }

    fn end(&self) -> PyResult<()> {
        let mut state = self.state()?;
        (state.is_open, state.is_over) = (false, true);
        Ok(())
    }
}

impl Drop for PyPlainSession {
    /// Undoes what was entered without `with`, and dropped: nobody else could give back the lock.
    fn drop(&mut self) {
        let Some(begin) = self.state.get_mut().ok().and_then(|state| state.begun.take()) else { return };
        let left = Python::try_attach(|py| {
            let gate = self.gate();
            if gate.is_inherited() {
                mem::forget(begin); // it is the parent's
                return;
            }
            if let Err(error) = dropped(py, gate, begin) {
                error.write_unraisable(py, None);
            }
        });
        debug_assert!(left.is_some(), "an object goes while the interpreter is there");
    }
}

/// Undoes what was begun, if anything, and gives the lock back in any case.
fn undo(py: Python<'_>, gate: &PyGate, writer: Writer) -> PyResult<()> {
    match writer.statements.get().briefly(py, Statements::undo) {
        Ok(()) => gate.give_back(py, writer),
        Err(_) => gate.discard(py, &writer), // closing it undoes it
    }
}

fn dropped(py: Python<'_>, gate: &PyGate, begin: Begin) -> PyResult<()> {
    let path = begin.writer.connection.getattr(py, "filename").and_then(|path| path.extract::<String>(py));
    undo(py, gate, begin.writer)?;
    let path = path?;
    let said = format!("{path}: a transaction was dropped before its end, and is undone; use it in a `with` block");
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
