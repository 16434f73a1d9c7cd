//! `_core.Counts` and `_core.Arrivals`: counters of the fast path, and wake-ups of waiting threads.

use std::collections::HashMap;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use ssbroker_store::SharedMemory;

use crate::shared_memory::PySharedMemory;

/// Counts sent messages, RECEIVE statements, and enqueued messages. Enqueued messages are counted by whether the
/// receiver's endpoint has received anything over the network, and by its priority.
#[derive(Default)]
struct Numbers {
    sent: u64,
    receives: u64,
    enqueued: HashMap<(bool, i64), u64>,
    is_watched: bool,
}

/// See `_core.pyi`.
#[pyclass(frozen, subclass, name = "Counts", module = "ssbroker._core")]
#[derive(Default)]
pub(crate) struct PyCounts {
    numbers: Mutex<Numbers>,
}

impl PyCounts {
    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether Python must be notified of each transaction.
    pub(crate) fn is_watched(&self) -> bool {
        self.numbers().is_watched
    }

    /// Adds the effects of a transaction.
    pub(crate) fn add(&self, sent: usize, receives: usize, enqueued: impl Iterator<Item = ((bool, i64), usize)>) {
        let mut numbers = self.numbers();
        numbers.sent += sent as u64;
        numbers.receives += receives as u64;
        for (kind, number) in enqueued {
            *numbers.enqueued.entry(kind).or_default() += number as u64;
        }
    }
}

#[pymethods]
impl PyCounts {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    #[pyo3(signature = (is_watched, /))]
    fn watch(&self, is_watched: bool) {
        self.numbers().is_watched = is_watched;
    }

    fn take(&self) -> (u64, u64, HashMap<(bool, i64), u64>) {
        let mut numbers = self.numbers();
        (mem::take(&mut numbers.sent), mem::take(&mut numbers.receives), mem::take(&mut numbers.enqueued))
    }
}

#[derive(Default)]
struct ArrivalCounts {
    by_queue: HashMap<i64, u64>,
    waiting: usize,
    /// Notifies other processes.
    shared: Option<Arc<SharedMemory>>,
}

/// See `_core.pyi`.
#[pyclass(frozen, subclass, name = "Arrivals", module = "ssbroker._core")]
#[derive(Default)]
pub(crate) struct PyArrivals {
    arrivals: Mutex<ArrivalCounts>,
}

impl PyArrivals {
    fn inner(&self) -> MutexGuard<'_, ArrivalCounts> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts arrivals in queues; returns whether a thread is waiting and must be woken by Python.
    pub(crate) fn add(&self, queue_ids: impl Iterator<Item = i64>) -> bool {
        let mut arrivals = self.inner();
        if let Some(shared) = &arrivals.shared {
            let mut last = None;
            for queue_id in queue_ids {
                if last.replace(queue_id) != Some(queue_id) {
                    shared.notify(queue_id);
                }
            }
            return false;
        }
        for queue_id in queue_ids {
            *arrivals.by_queue.entry(queue_id).or_default() += 1;
        }
        arrivals.waiting > 0
    }
}

#[pymethods]
impl PyArrivals {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    #[pyo3(signature = (shared, /))]
    fn share(&self, shared: &PySharedMemory) {
        self.inner().shared = Some(shared.0.clone());
    }

    #[pyo3(signature = (queue_id, /))]
    fn count(&self, queue_id: i64) -> u64 {
        let arrivals = self.inner();
        if let Some(shared) = &arrivals.shared {
            return u64::from(shared.count(queue_id));
        }
        arrivals.by_queue.get(&queue_id).copied().unwrap_or(0)
    }

    #[pyo3(signature = (queue_ids, /))]
    fn record(&self, queue_ids: Vec<i64>) -> bool {
        self.add(queue_ids.into_iter())
    }

    #[pyo3(signature = (number, /))]
    fn add_waiting(&self, number: isize) {
        let mut arrivals = self.inner();
        arrivals.waiting = arrivals.waiting.saturating_add_signed(number);
    }
}
