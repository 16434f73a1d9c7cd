//! `_core.Gate`: what each transaction of a file goes through: whose turn it is to write, and the connection that goes with the turn.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;

use crate::picture::PyPicture;
use crate::statements::PyStatements;

/// A connection with its statements, which go first: SQLite closes no connection while one is left.
pub(crate) struct Writer {
    pub(crate) statements: Py<PyStatements>,
    pub(crate) connection: Py<PyAny>,
}

impl Writer {
    pub(crate) fn new(connection: &Bound<'_, PyAny>) -> PyResult<Self> {
        let statements = connection.getattr("statements")?.cast_into::<PyStatements>()?.unbind();
        Ok(Self { connection: connection.clone().unbind(), statements })
    }
}

/// Why nobody begins anything any more.
#[derive(Default, PartialEq, Eq)]
enum End {
    #[default]
    None,
    /// The file is closed.
    Closed,
    /// The process was forked: the connections are its parent's.
    Inherited,
}

#[derive(Default)]
struct Inner {
    holder: Option<u64>,
    /// Locks that are released when the turn has come, and the threads that wait for these.
    waiting: VecDeque<(Py<PyAny>, u64)>,
    /// While the process forks.
    is_paused: bool,
    end: End,
    kept: Option<Writer>,
    /// The one that was kept, while the holder has it.
    lent: Option<Py<PyAny>>,
    known: Option<(i64, Py<PyPicture>)>,
    /// Whether the disk did not take the last commit that was tried.
    is_failing: bool,
}

impl Inner {
    fn is_shut(&self) -> bool {
        self.is_paused || self.end != End::None
    }
}

/// A lock for one thread after the other, in the order of asking (B3). Nothing in here waits: that is done on a lock of its own, in Python.
#[pyclass(frozen, subclass, name = "Gate", module = "ssbroker._core")]
#[derive(Default)]
pub(crate) struct PyGate {
    inner: Mutex<Inner>,
}

impl PyGate {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock with the connection that is kept, where both are free; whoever has them has a transaction to begin.
    pub(crate) fn take(&self, py: Python<'_>, holder: u64) -> Option<Writer> {
        let mut inner = self.inner();
        if inner.holder.is_some() || inner.is_shut() {
            return None;
        }
        let writer = inner.kept.take()?;
        inner.holder = Some(holder);
        inner.lent = Some(writer.connection.clone_ref(py));
        Some(writer)
    }

    /// Whether a connection may be given back.
    pub(crate) fn can_keep(&self) -> bool {
        let inner = self.inner();
        inner.kept.is_none() && inner.end == End::None
    }

    /// Takes a connection back that is as it was, and hands the lock on.
    pub(crate) fn give_back(&self, py: Python<'_>, writer: Writer) -> PyResult<()> {
        let mut inner = self.inner();
        if inner.end == End::Closed || inner.kept.is_some() {
            drop(inner);
            return self.discard(py, &writer);
        }
        // Where the process forks, it closes what is kept.
        inner.kept = Some(writer);
        let lent = inner.lent.take();
        drop(inner);
        drop(lent);
        self.release(py)
    }

    /// Closes a connection that nobody is to use again, and hands the lock on. Until it is closed it counts as used: a fork waits for it.
    pub(crate) fn discard(&self, py: Python<'_>, writer: &Writer) -> PyResult<()> {
        let closed = writer.connection.call_method1(py, "close", (true,));
        let lent = self.inner().lent.take();
        drop(lent);
        self.release(py).and(closed.map(drop))
    }

    /// What is known of what stands in the database, if it is of this version.
    pub(crate) fn picture(&self, py: Python<'_>, version: i64) -> Option<Py<PyPicture>> {
        let inner = self.inner();
        inner.known.as_ref().filter(|known| known.0 == version).map(|known| known.1.clone_ref(py))
    }

    pub(crate) fn is_failing(&self) -> bool {
        self.inner().is_failing
    }

    /// Whether a fork goes on, or has been, or the file is closed.
    pub(crate) fn is_shut(&self) -> bool {
        self.inner().is_shut()
    }

    pub(crate) fn is_inherited(&self) -> bool {
        self.inner().end == End::Inherited
    }

    /// Has a connection go with the lock, which its user holds: it counts as lent until it is given back.
    pub(crate) fn lend(&self, connection: &Bound<'_, PyAny>) {
        debug_assert!(self.inner().holder.is_some(), "whoever lends holds the lock");
        let before = self.inner().lent.replace(connection.clone().unbind());
        drop(before);
    }

    /// Has a connection that is lent belong to its user.
    pub(crate) fn leave(&self, connection: &Py<PyAny>) {
        let lent = self.inner().lent.take_if(|lent| lent.is(connection));
        drop(lent);
    }
}

#[pymethods]
impl PyGate {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    #[getter]
    fn holder(&self) -> Option<u64> {
        self.inner().holder
    }

    #[getter]
    fn waiting(&self) -> usize {
        self.inner().waiting.len()
    }

    #[pyo3(signature = (holder, /))]
    fn acquire_free(&self, holder: u64) -> bool {
        let mut inner = self.inner();
        let is_free = inner.holder.is_none();
        if is_free {
            inner.holder = Some(holder);
        }
        is_free
    }

    #[pyo3(signature = (turn, holder, /))]
    fn stand_in_line(&self, turn: Py<PyAny>, holder: u64) -> bool {
        let mut inner = self.inner();
        let is_free = inner.holder.is_none();
        if is_free {
            inner.holder = Some(holder);
        } else {
            inner.waiting.push_back((turn, holder));
        }
        is_free
    }

    #[pyo3(signature = (holder, /))]
    fn stands_in_line(&self, holder: u64) -> bool {
        self.inner().waiting.iter().any(|(_, waiting)| *waiting == holder)
    }

    #[pyo3(signature = (turn, /))]
    fn had_turn(&self, turn: &Bound<'_, PyAny>) -> bool {
        let mut inner = self.inner();
        let Some(place) = inner.waiting.iter().position(|(waiting, _)| waiting.is(turn)) else { return true };
        let given_up = inner.waiting.remove(place);
        drop(inner);
        drop(given_up);
        false
    }

    fn release(&self, py: Python<'_>) -> PyResult<()> {
        let mut inner = self.inner();
        let next = inner.waiting.pop_front();
        inner.holder = next.as_ref().map(|(_, holder)| *holder);
        drop(inner);
        // Nothing of Python's runs in between: a signal's handler would wait for a thread that nobody has woken.
        next.map_or(Ok(()), |(turn, _)| turn.call_method0(py, "release").map(drop))
    }

    #[pyo3(signature = (connection, /))]
    fn keep(&self, connection: &Bound<'_, PyAny>) -> PyResult<bool> {
        let writer = Writer::new(connection)?;
        let mut inner = self.inner();
        let is_kept = !inner.is_shut() && inner.kept.is_none() && inner.lent.is_none();
        if is_kept {
            inner.kept = Some(writer);
        }
        Ok(is_kept)
    }

    fn take_kept(&self) -> Option<Py<PyAny>> {
        self.inner().kept.take().map(|writer| writer.connection)
    }

    fn lent(&self, py: Python<'_>) -> Option<(Py<PyAny>, Option<u64>)> {
        let inner = self.inner();
        inner.lent.as_ref().map(|connection| (connection.clone_ref(py), inner.holder))
    }

    #[pyo3(signature = (is_paused, /))]
    fn pause(&self, is_paused: bool) {
        self.inner().is_paused = is_paused;
    }

    fn close(&self) {
        self.inner().end = End::Closed;
    }

    fn inherit(&self) {
        self.inner().end = End::Inherited;
    }

    #[pyo3(signature = (is_failing, /))]
    fn fail(&self, is_failing: bool) {
        self.inner().is_failing = is_failing;
    }

    #[pyo3(signature = (version, picture, /))]
    fn know(&self, version: i64, picture: Py<PyPicture>) {
        let before = self.inner().known.replace((version, picture));
        drop(before);
    }
}
