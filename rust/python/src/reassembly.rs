//! `_core.Reassembler`: fragments in, whole messages in order out.

use std::sync::Mutex;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use ssbroker_columnar::{Keys, Reassembled, ReassemblyKernel, Result, SessionKeys, fragment as cut, md5 as digest};
use ssbroker_core::Guid;
use ssbroker_core::reassembly::Limits;

use crate::arrow::{export_array, export_batches, import_array, import_batch};
use crate::catalog::random_seed;
use crate::detach::detached;
use crate::errors::{internal, option};

type Batches<'py> = Vec<Bound<'py, PyAny>>;

/// Fragments that are put together; used by one thread after the other.
#[pyclass(frozen, name = "Reassembler", module = "ssbroker._core")]
pub(crate) struct PyReassembler {
    kernel: Mutex<ReassemblyKernel>,
}

impl PyReassembler {
    /// Waits for the kernel without the GIL, so that whoever has it can come to an end.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut ReassemblyKernel) -> Result<T> + Send,
    ) -> PyResult<T> {
        let worked = detached(py, || match self.kernel.lock() {
            Ok(mut kernel) => work(&mut kernel).map(Some),
            // A defect of ours has stopped another call midway.
            Err(_) => Ok(None),
        });
        worked?.ok_or_else(|| internal(py))
    }
}

#[pymethods]
impl PyReassembler {
    #[new]
    #[pyo3(signature = (*, max_pending_bytes, max_pending_messages, max_message_bytes, max_fragments_per_message, max_sequence_distance, in_order))]
    fn new(
        max_pending_bytes: Option<u64>,
        max_pending_messages: Option<u64>,
        max_message_bytes: u32,
        max_fragments_per_message: Option<u32>,
        max_sequence_distance: Option<u64>,
        in_order: bool,
    ) -> Self {
        let limits = Limits {
            pending_bytes: max_pending_bytes.unwrap_or(u64::MAX),
            pending_messages: max_pending_messages.unwrap_or(u64::MAX),
            message_bytes: max_message_bytes,
            fragments_per_message: max_fragments_per_message.unwrap_or(u32::MAX),
            sequence_distance: max_sequence_distance.unwrap_or(u64::MAX),
        };
        Self { kernel: Mutex::new(ReassemblyKernel::new(limits, in_order, random_seed())) }
    }

    #[staticmethod]
    #[pyo3(signature = (state, /))]
    fn restore(py: Python<'_>, state: &[u8]) -> PyResult<Self> {
        let kernel = detached(py, || ReassemblyKernel::restore(state, random_seed()))?;
        Ok(Self { kernel: Mutex::new(kernel) })
    }

    #[pyo3(signature = (fragments, session_keys, /))]
    fn push<'py>(
        &self,
        py: Python<'py>,
        fragments: Vec<Bound<'py, PyAny>>,
        session_keys: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(Batches<'py>, Batches<'py>, Batches<'py>)> {
        let batches = fragments.into_iter().map(|batch| import_batch(&batch)).collect::<PyResult<Vec<_>>>()?;
        let source = KeySource::new(session_keys)?;
        let keys = source.keys();
        let Reassembled { messages, rejected, acknowledgements } =
            self.with(py, |kernel| kernel.push(&batches, keys))?;
        Ok((export_batches(py, messages)?, export_batches(py, rejected)?, export_batches(py, acknowledgements)?))
    }

    fn pending<'py>(&self, py: Python<'py>) -> PyResult<Batches<'py>> {
        export_batches(py, self.with(py, |kernel| kernel.pending())?)
    }

    #[getter]
    fn pending_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |kernel| Ok(kernel.pending_bytes()))
    }

    #[getter]
    fn pending_messages(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |kernel| Ok(kernel.pending_messages()))
    }

    #[pyo3(signature = (conversation_id, is_initiator, message_sequence_number, /))]
    fn forget(
        &self,
        py: Python<'_>,
        conversation_id: [u8; 16],
        is_initiator: bool,
        message_sequence_number: i64,
    ) -> PyResult<bool> {
        self.with(py, |kernel| Ok(kernel.forget(Guid(conversation_id), is_initiator, message_sequence_number)))
    }

    fn checkpoint<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let state = self.with(py, |kernel| kernel.checkpoint())?;
        Ok(PyBytes::new(py, &state))
    }
}

// `_core.fragment`: messages cut into fragments.

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
    let source = KeySource::new(session_keys)?;
    let keys = source.keys();
    let fragments = detached(py, || cut(&batch, first_row, max_fragment_bytes, keys))?;
    export_batches(py, fragments)
}

// `_core.md5`: a column of digests.

/// The MD5 digest of every value of a column of bytes or text.
#[pyfunction]
#[pyo3(signature = (values, first_row, /))]
pub(crate) fn md5<'py>(py: Python<'py>, values: &Bound<'py, PyAny>, first_row: usize) -> PyResult<Bound<'py, PyAny>> {
    let values = import_array(values)?;
    let digests = detached(py, || digest(&values, first_row))?;
    export_array(py, &digests)
}

// `_core.SessionKeys`: the session keys of conversations, made ready once.

/// Session keys by conversation; immutable.
#[pyclass(frozen, name = "SessionKeys", module = "ssbroker._core")]
pub(crate) struct PySessionKeys {
    keys: SessionKeys,
}

#[pymethods]
impl PySessionKeys {
    #[new]
    #[pyo3(signature = (keys, /))]
    fn new(py: Python<'_>, keys: Vec<([u8; 16], Vec<u8>)>) -> PyResult<Self> {
        let keys = SessionKeys::new(keys.into_iter().map(|(id, key)| (Guid(id), key)));
        let keys = keys.map_err(|(id, len)| {
            option(py, "session_keys", &format!("{len} bytes for {id}"), "a key of 16, 24 or 32 bytes")
        })?;
        Ok(Self { keys })
    }
}

/// Where session keys come from, as Python says it: nothing, the name of a column, or `SessionKeys`.
pub(crate) enum KeySource<'a, 'py> {
    None,
    Column(String),
    Mapping(&'a Bound<'py, PySessionKeys>),
}

impl<'a, 'py> KeySource<'a, 'py> {
    pub(crate) fn new(keys: Option<&'a Bound<'py, PyAny>>) -> PyResult<Self> {
        let Some(keys) = keys else { return Ok(Self::None) };
        if let Ok(name) = keys.cast::<PyString>() {
            return Ok(Self::Column(name.to_string()));
        }
        let keys = keys.cast::<PySessionKeys>().map_err(|_| PyTypeError::new_err("session_keys: no SessionKeys"))?;
        Ok(Self::Mapping(keys))
    }

    pub(crate) fn keys(&self) -> Keys<'_> {
        match self {
            Self::None => Keys::None,
            Self::Column(name) => Keys::Column(name),
            Self::Mapping(keys) => Keys::Mapping(&keys.get().keys),
        }
    }
}
