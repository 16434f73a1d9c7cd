//! Runs kernels: releases the GIL, catches panics, and maps errors.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::prelude::*;
use ssbroker_columnar::Result;

use crate::errors::{panicked, to_python};

/// Runs `work` without the GIL.
pub(crate) fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    map_result(py, py.detach(|| catch_unwind(AssertUnwindSafe(work))))
}

/// Runs `work` with the GIL, for work that is shorter than reacquiring it would take.
pub(crate) fn attached<T>(py: Python<'_>, work: impl FnOnce() -> Result<T>) -> PyResult<T> {
    map_result(py, catch_unwind(AssertUnwindSafe(work)))
}

fn map_result<T>(py: Python<'_>, outcome: std::result::Result<Result<T>, Box<dyn Any + Send>>) -> PyResult<T> {
    match outcome {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(to_python(py, &error)),
        Err(panic) => Err(panicked(py, &*panic)),
    }
}
