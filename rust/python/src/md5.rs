//! `_core.md5`: a column of digests.

use pyo3::prelude::*;
use ssbroker_columnar::md5 as digest;

use crate::capsule::{export_array, import_array};
use crate::doorway::detached;

/// The MD5 digest of every value of a column of bytes or text.
#[pyfunction]
#[pyo3(signature = (values, first_row, /))]
pub(crate) fn md5<'py>(py: Python<'py>, values: &Bound<'py, PyAny>, first_row: usize) -> PyResult<Bound<'py, PyAny>> {
    let values = import_array(values)?;
    let digests = detached(py, || digest(&values, first_row))?;
    export_array(py, &digests)
}
