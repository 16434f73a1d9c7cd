//! The ways from Python into the kernels: without the GIL, but where there is little to do, and with a guard against panics.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::prelude::*;
use ssbroker_columnar::Result;

use crate::errors::{internal, to_python};

/// Runs `work` with the GIL released, and turns its error into the one of Python.
pub(crate) fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    told(py, py.detach(|| catch_unwind(AssertUnwindSafe(work))))
}

/// The same with the GIL held, for what takes less time than it would take to get it back.
pub(crate) fn attached<T>(py: Python<'_>, work: impl FnOnce() -> Result<T>) -> PyResult<T> {
    told(py, catch_unwind(AssertUnwindSafe(work)))
}

fn told<T>(py: Python<'_>, outcome: std::result::Result<Result<T>, Box<dyn Any + Send>>) -> PyResult<T> {
    match outcome {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(to_python(py, &error)),
        Err(_) => Err(internal(py)),
    }
}
