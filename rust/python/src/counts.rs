//! `_core.Counts` and `_core.Arrivals`: what plain transactions have done, for who asks, and whether anybody is to be told at once.

use std::collections::HashMap;
use std::mem;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;

/// Messages that were sent, RECEIVE statements, and messages that were put into queues, by whether their receiver was ever reached over the
/// network, and by its priority.
#[derive(Default)]
struct Numbers {
    sent: u64,
    receives: u64,
    enqueued: HashMap<(bool, i64), u64>,
    is_watched: bool,
}

/// What the plain transactions of an instance have done.
#[pyclass(frozen, subclass, name = "Counts", module = "ssbroker._core")]
#[derive(Default)]
pub(crate) struct PyCounts {
    numbers: Mutex<Numbers>,
}

impl PyCounts {
    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether somebody is to hear of each transaction.
    pub(crate) fn is_watched(&self) -> bool {
        self.numbers().is_watched
    }

    /// Counts what a transaction did.
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
struct Told {
    of_queues: HashMap<i64, u64>,
    of_all: u64,
    waiting: usize,
}

/// How often something was told of each queue of a database.
#[pyclass(frozen, subclass, name = "Arrivals", module = "ssbroker._core")]
#[derive(Default)]
pub(crate) struct PyArrivals {
    told: Mutex<Told>,
}

impl PyArrivals {
    fn inner(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts that something came into queues; whether somebody waits, and is to be woken.
    pub(crate) fn add(&self, queue_ids: impl Iterator<Item = i64>) -> bool {
        let mut told = self.inner();
        told.of_all += 1;
        for queue_id in queue_ids {
            *told.of_queues.entry(queue_id).or_default() += 1;
        }
        told.waiting > 0
    }
}

#[pymethods]
impl PyArrivals {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    #[getter]
    fn told(&self) -> u64 {
        self.inner().of_all
    }

    #[pyo3(signature = (queue_id, /))]
    fn count(&self, queue_id: i64) -> u64 {
        self.inner().of_queues.get(&queue_id).copied().unwrap_or(0)
    }

    #[pyo3(signature = (queue_ids, /))]
    fn note(&self, queue_ids: Vec<i64>) -> bool {
        self.add(queue_ids.into_iter())
    }

    #[pyo3(signature = (number, /))]
    fn are_waiting(&self, number: isize) {
        let mut told = self.inner();
        told.waiting = told.waiting.saturating_add_signed(number);
    }
}
