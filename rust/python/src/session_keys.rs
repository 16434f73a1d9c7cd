//! `_core.SessionKeys`: the session keys of conversations, made ready once.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyString;
use ssbroker_columnar::{Keys, SessionKeys};
use ssbroker_core::Guid;

use crate::errors::option;

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
pub(crate) enum Source<'a, 'py> {
    None,
    Column(String),
    Mapping(&'a Bound<'py, PySessionKeys>),
}

impl<'a, 'py> Source<'a, 'py> {
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
