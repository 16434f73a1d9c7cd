//! `_core.fragment`: messages cut into fragments.

use pyo3::prelude::*;
use ssbroker_columnar::fragment as cut;

use crate::capsule::{export_batches, import_batch};
use crate::doorway::detached;
use crate::session_keys::Source;

/// Cuts the messages of a batch into signed fragments.
#[pyfunction]
#[pyo3(signature = (messages, first_row, max_fragment_bytes, session_keys, /))]
pub(crate) fn fragment<'py>(
    py: Python<'py>,
    messages: &Bound<'py, PyAny>,
    first_row: usize,
    max_fragment_bytes: usize,
    session_keys: Option<&Bound<'py, PyAny>>,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let batch = import_batch(messages)?;
    let source = Source::new(session_keys)?;
    let keys = source.keys();
    let fragments = detached(py, || cut(&batch, first_row, max_fragment_bytes, keys))?;
    export_batches(py, fragments)
}
