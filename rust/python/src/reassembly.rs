//! `_core.Reassembler`, `_core.fragment`, `_core.md5` and `_core.SessionKeys`.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use ssbroker_columnar::{
    Reassembled, ReassemblyKernel, Result, SessionKeySource, SessionKeys, fragment as split, md5 as digest,
};
use ssbroker_core::Guid;
use ssbroker_core::reassembly::Limits;

use crate::arrow::{export_array, export_batches, import_array, import_batch};
use crate::catalog::random_seed;
use crate::detach::detached;
use crate::errors::{in_use_at_fork, option_error, unusable};

type Batches<'py> = Vec<Bound<'py, PyAny>>;

/// See `_core.pyi`.
#[pyclass(frozen, name = "Reassembler", module = "ssbroker._core")]
pub(crate) struct PyReassembler {
    kernel: Mutex<ReassemblyKernel>,
    /// The process in which a call has locked the kernel; 0 if none has.
    user: AtomicU32,
}

/// Why a call cannot use the kernel.
enum Unusable {
    /// A panic has interrupted another call.
    Interrupted,
    /// A thread of the parent used it when this process was forked, and will never unlock it here.
    InUseAtFork,
}

impl PyReassembler {
    fn of(kernel: ReassemblyKernel) -> Self {
        Self { kernel: Mutex::new(kernel), user: AtomicU32::new(0) }
    }

    fn lock(&self, process: u32) -> std::result::Result<MutexGuard<'_, ReassemblyKernel>, Unusable> {
        match self.kernel.try_lock() {
            Ok(kernel) => Ok(kernel),
            Err(TryLockError::Poisoned(_)) => Err(Unusable::Interrupted),
            Err(TryLockError::WouldBlock) => match self.user.load(Ordering::Relaxed) {
                user if user != 0 && user != process => Err(Unusable::InUseAtFork),
                _ => self.kernel.lock().map_err(|_| Unusable::Interrupted),
            },
        }
    }

    /// Runs `work` on the kernel; waits for it without the GIL, so that its current user can finish.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut ReassemblyKernel) -> Result<T> + Send,
    ) -> PyResult<T> {
        let process = py.import("os")?.call_method0("getpid")?.extract()?;
        let worked = detached(py, || match self.lock(process) {
            Ok(mut kernel) => {
                self.user.store(process, Ordering::Relaxed);
                let result = work(&mut kernel);
                self.user.store(0, Ordering::Relaxed);
                result.map(Ok)
            }
            Err(why) => Ok(Err(why)),
        });
        worked?.map_err(|why| match why {
            Unusable::Interrupted => unusable(py),
            Unusable::InUseAtFork => in_use_at_fork(py),
        })
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
        Self::of(ReassemblyKernel::new(limits, in_order, random_seed()))
    }

    #[staticmethod]
    #[pyo3(signature = (state, /))]
    fn restore(py: Python<'_>, state: &[u8]) -> PyResult<Self> {
        detached(py, || ReassemblyKernel::restore(state, random_seed())).map(Self::of)
    }

    #[pyo3(signature = (fragments, session_keys, skip_invalid = false, /))]
    fn push<'py>(
        &self,
        py: Python<'py>,
        fragments: Vec<Bound<'py, PyAny>>,
        session_keys: Option<&Bound<'py, PyAny>>,
        skip_invalid: bool,
    ) -> PyResult<(Batches<'py>, Batches<'py>, Batches<'py>, Batches<'py>)> {
        let batches = fragments.into_iter().map(|batch| import_batch(&batch)).collect::<PyResult<Vec<_>>>()?;
        let source = KeyArgument::new(session_keys)?;
        let keys = source.keys();
        let Reassembled { messages, rejected, acknowledgements, invalid } =
            self.with(py, |kernel| kernel.push(&batches, keys, skip_invalid))?;
        Ok((
            export_batches(py, messages)?,
            export_batches(py, rejected)?,
            export_batches(py, acknowledgements)?,
            export_batches(py, invalid)?,
        ))
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

/// See `_core.pyi`.
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
    let source = KeyArgument::new(session_keys)?;
    let keys = source.keys();
    let fragments = detached(py, || split(&batch, first_row, max_fragment_bytes, keys))?;
    export_batches(py, fragments)
}

/// See `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (values, first_row, /))]
pub(crate) fn md5<'py>(py: Python<'py>, values: &Bound<'py, PyAny>, first_row: usize) -> PyResult<Bound<'py, PyAny>> {
    let values = import_array(values)?;
    let digests = detached(py, || digest(&values, first_row))?;
    export_array(py, &digests)
}

/// See `_core.pyi`.
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
            option_error(py, &format!("session_keys: the key of {id} has {len} bytes; expected 16, 24 or 32"))
        })?;
        Ok(Self { keys })
    }
}

/// The source of session keys as Python passes it: nothing, a column name, or `SessionKeys`.
pub(crate) enum KeyArgument<'a, 'py> {
    None,
    Column(String),
    Mapping(&'a Bound<'py, PySessionKeys>),
}

impl<'a, 'py> KeyArgument<'a, 'py> {
    pub(crate) fn new(keys: Option<&'a Bound<'py, PyAny>>) -> PyResult<Self> {
        let Some(keys) = keys else { return Ok(Self::None) };
        if let Ok(name) = keys.cast::<PyString>() {
            return Ok(Self::Column(name.to_string()));
        }
        let keys = keys
            .cast::<PySessionKeys>()
            .map_err(|_| PyTypeError::new_err("session_keys: expected SessionKeys or a column name"))?;
        Ok(Self::Mapping(keys))
    }

    pub(crate) fn keys(&self) -> SessionKeySource<'_> {
        match self {
            Self::None => SessionKeySource::None,
            Self::Column(name) => SessionKeySource::Column(name),
            Self::Mapping(keys) => SessionKeySource::Mapping(&keys.get().keys),
        }
    }
}
