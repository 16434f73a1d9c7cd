//! The one way from Python into the kernels: without the GIL, and with a guard against panics.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::prelude::*;
use ssbroker_columnar::Result;

use crate::errors::{internal, to_python};

/// Runs `work` with the GIL released, and turns its error into the one of Python.
pub(crate) fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Send) -> PyResult<T> {
    match py.detach(|| catch_unwind(AssertUnwindSafe(work))) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(to_python(py, &error)),
        Err(_) => Err(internal(py)),
    }
}
