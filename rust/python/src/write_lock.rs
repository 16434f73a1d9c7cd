//! `_core.WriteLock`: the lock that each write transaction of a file takes, and the connection that is kept with it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use ssbroker_store::SharedMemory;

use crate::metadata::PyMetadataSnapshot;
use crate::shared_memory::PySharedMemory;
use crate::statements::PyStatements;

/// A connection and its statements. The statements are dropped first, because SQLite cannot close a connection while
/// statements exist.
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

/// Why no more transactions can start.
#[derive(Default, PartialEq, Eq)]
enum End {
    #[default]
    None,
    /// The file is closed.
    Closed,
    /// This process was forked; the connections belong to its parent.
    Inherited,
}

#[derive(Default)]
struct Inner {
    /// The thread that holds the lock.
    holder: Option<u64>,
    /// The `threading.Lock` with which the holder requested the lock; `None` if the holder requested it without one.
    request: Option<Py<PyAny>>,
    /// The waiting threads, each with a `threading.Lock` that is released when the thread gets the lock.
    waiting: VecDeque<(Py<PyAny>, u64)>,
    /// Whether the process is forking.
    is_paused: bool,
    end: End,
    /// The connection that is kept with the lock while it is not in use.
    idle: Option<Writer>,
    /// The connection that the holder of the lock uses.
    in_use: Option<Py<PyAny>>,
    /// The latest metadata snapshot and its version.
    metadata: Option<(i64, Py<PyMetadataSnapshot>)>,
    /// Whether `shared` names the holder of this lock; it may name the holder of another lock of this process.
    is_recorded: bool,
    /// Whether the last commit failed because of a disk error.
    is_failing: bool,
    /// Tells other processes which process holds the lock of the file.
    shared: Option<Arc<SharedMemory>>,
}

impl Inner {
    fn is_unavailable(&self) -> bool {
        self.is_paused || self.end != End::None
    }
}

/// A lock that threads acquire in the order of their requests. No method waits: Python waits on a lock per thread.
#[pyclass(frozen, subclass, name = "WriteLock", module = "ssbroker._core")]
#[derive(Default)]
pub(crate) struct PyWriteLock {
    inner: Mutex<Inner>,
}

impl PyWriteLock {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lock and its connection if both are free; the caller must start a transaction.
    pub(crate) fn try_acquire_writer(&self, py: Python<'_>, holder: u64) -> Option<Writer> {
        let mut inner = self.inner();
        if inner.holder.is_some() || inner.is_unavailable() {
            return None;
        }
        let writer = inner.idle.take()?;
        inner.holder = Some(holder);
        inner.in_use = Some(writer.connection.clone_ref(py));
        Some(writer)
    }

    /// Tells other processes that this process now holds the lock of the file.
    pub(crate) fn record_holder(&self) {
        let mut inner = self.inner();
        if let Some(shared) = &inner.shared {
            shared.set_holder(ssbroker_store::now().unwrap_or(0));
            inner.is_recorded = true;
        }
    }

    /// Tells other processes that the holder of the lock has made these kinds of calls.
    pub(crate) fn record_calls(&self, calls: u32) {
        if let Some(shared) = &self.inner().shared {
            shared.add_calls(calls);
        }
    }

    /// Tells other processes that this process no longer holds the lock of the file, unless they were never told that
    /// it did.
    fn clear_holder(inner: &mut Inner) {
        if std::mem::take(&mut inner.is_recorded)
            && let Some(shared) = &inner.shared
        {
            shared.clear_holder();
        }
    }

    /// Keeps a connection without an open transaction, statement or cursor, and releases the lock. Closes the connection
    /// if the file is closed.
    pub(crate) fn release_writer(&self, py: Python<'_>, writer: Writer) -> PyResult<()> {
        let mut inner = self.inner();
        if inner.end == End::Closed || inner.idle.is_some() {
            drop(inner);
            return self.discard_writer(py, &writer);
        }
        Self::clear_holder(&mut inner);
        // A fork that is waiting closes the connection.
        inner.idle = Some(writer);
        let in_use = inner.in_use.take();
        drop(inner);
        drop(in_use);
        self.release(py)
    }

    /// Closes a connection and releases the lock. A fork waits until the connection is closed.
    pub(crate) fn discard_writer(&self, py: Python<'_>, writer: &Writer) -> PyResult<()> {
        let closed = writer.connection.call_method1(py, "close", (true,));
        let mut inner = self.inner();
        Self::clear_holder(&mut inner);
        let in_use = inner.in_use.take();
        drop(inner);
        drop(in_use);
        self.release(py).and(closed.map(drop))
    }

    /// Returns the metadata snapshot if it has this version.
    pub(crate) fn metadata(&self, py: Python<'_>, version: i64) -> Option<Py<PyMetadataSnapshot>> {
        let inner = self.inner();
        inner.metadata.as_ref().filter(|latest| latest.0 == version).map(|latest| latest.1.clone_ref(py))
    }

    pub(crate) fn is_failing(&self) -> bool {
        self.inner().is_failing
    }

    /// Whether the process is forking or was forked, or the file is closed.
    pub(crate) fn is_unavailable(&self) -> bool {
        self.inner().is_unavailable()
    }

    pub(crate) fn is_inherited(&self) -> bool {
        self.inner().end == End::Inherited
    }

    /// Records that the holder of the lock uses a connection.
    pub(crate) fn set_in_use(&self, connection: &Bound<'_, PyAny>) {
        debug_assert!(self.inner().holder.is_some(), "the caller must hold the lock");
        let before = self.inner().in_use.replace(connection.clone().unbind());
        drop(before);
    }
}

#[pymethods]
impl PyWriteLock {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    #[getter]
    fn holder(&self) -> Option<u64> {
        self.inner().holder
    }

    #[getter]
    fn is_recorded(&self) -> bool {
        self.inner().is_recorded
    }

    #[getter]
    fn waiting(&self) -> usize {
        self.inner().waiting.len()
    }

    #[pyo3(signature = (holder, /))]
    fn try_acquire(&self, holder: u64) -> bool {
        let mut inner = self.inner();
        let is_free = inner.holder.is_none();
        if is_free {
            inner.holder = Some(holder);
        }
        is_free
    }

    #[pyo3(signature = (signal, holder, /))]
    fn acquire_or_enqueue(&self, signal: Py<PyAny>, holder: u64) -> bool {
        let mut inner = self.inner();
        let is_free = inner.holder.is_none();
        if is_free {
            inner.holder = Some(holder);
            inner.request = Some(signal);
        } else {
            inner.waiting.push_back((signal, holder));
        }
        is_free
    }

    #[pyo3(signature = (holder, /))]
    fn is_waiting(&self, holder: u64) -> bool {
        self.inner().waiting.iter().any(|(_, waiting)| *waiting == holder)
    }

    #[pyo3(signature = (signal, /))]
    fn stop_waiting(&self, signal: &Bound<'_, PyAny>) -> bool {
        let mut inner = self.inner();
        let place = inner.waiting.iter().position(|(waiting, _)| waiting.is(signal));
        let removed = place.and_then(|place| inner.waiting.remove(place));
        let is_holder = inner.request.as_ref().is_some_and(|request| request.is(signal));
        drop(inner);
        drop(removed);
        is_holder
    }

    fn release(&self, py: Python<'_>) -> PyResult<()> {
        let mut inner = self.inner();
        let (next, holder) = inner.waiting.pop_front().unzip();
        inner.holder = holder;
        let before = std::mem::replace(&mut inner.request, next.as_ref().map(|signal| signal.clone_ref(py)));
        drop(inner);
        drop(before);
        // No Python code runs in between: a signal handler would wait for a thread that was not woken yet.
        next.map_or(Ok(()), |signal| signal.call_method0(py, "release").map(drop))
    }

    fn take_idle_connection(&self) -> Option<Py<PyAny>> {
        self.inner().idle.take().map(|writer| writer.connection)
    }

    fn connection_in_use(&self, py: Python<'_>) -> Option<(Py<PyAny>, Option<u64>)> {
        let inner = self.inner();
        inner.in_use.as_ref().map(|connection| (connection.clone_ref(py), inner.holder))
    }

    #[pyo3(signature = (is_paused, /))]
    fn set_paused(&self, is_paused: bool) {
        self.inner().is_paused = is_paused;
    }

    fn close(&self) {
        self.inner().end = End::Closed;
    }

    fn mark_inherited(&self) {
        self.inner().end = End::Inherited;
    }

    #[pyo3(signature = (is_failing, /))]
    fn set_failing(&self, is_failing: bool) {
        self.inner().is_failing = is_failing;
    }

    #[pyo3(signature = (shared, /))]
    fn share(&self, shared: &PySharedMemory) {
        self.inner().shared = Some(shared.0.clone());
    }

    #[pyo3(signature = (calls, /))]
    fn record_call(&self, calls: u32) {
        self.record_calls(calls);
    }

    #[pyo3(signature = (version, snapshot, /))]
    fn set_metadata(&self, version: i64, snapshot: Py<PyMetadataSnapshot>) {
        let before = self.inner().metadata.replace((version, snapshot));
        drop(before);
    }
}
