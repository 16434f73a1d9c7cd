//! `_core.SharedMemory`: memory shared by the processes that have a database file open.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use ssbroker_store::SharedMemory;

/// See `_core.pyi`.
#[pyclass(frozen, name = "SharedMemory", module = "ssbroker._core")]
pub(crate) struct PySharedMemory(pub(crate) Arc<SharedMemory>);

#[pymethods]
impl PySharedMemory {
    #[new]
    #[pyo3(signature = (path, database, process_id, /))]
    #[allow(clippy::needless_pass_by_value)] // pyo3 extracts an owned path
    fn new(path: PathBuf, database: PathBuf, process_id: u32) -> PyResult<Self> {
        Ok(Self(Arc::new(SharedMemory::open(&path, &database, process_id)?)))
    }

    #[pyo3(signature = (queue_id, /))]
    fn count(&self, queue_id: i64) -> u32 {
        self.0.count(queue_id)
    }

    #[pyo3(signature = (queue_ids, /))]
    fn notify(&self, queue_ids: Vec<i64>) {
        for queue_id in queue_ids {
            self.0.notify(queue_id);
        }
    }

    #[pyo3(signature = (queue_id, seen, timeout, /))]
    fn wait(&self, py: Python<'_>, queue_id: i64, seen: u32, timeout: f64) {
        py.detach(|| self.0.wait(queue_id, seen, timeout));
    }

    #[pyo3(signature = (timeout, /))]
    fn wait_for_release(&self, py: Python<'_>, timeout: f64) -> bool {
        py.detach(|| self.0.wait_for_release(timeout))
    }

    #[getter]
    fn holder(&self) -> Option<(u32, i64, u32)> {
        self.0.holder().map(|holder| (holder.process_id, holder.since, holder.calls))
    }
}
