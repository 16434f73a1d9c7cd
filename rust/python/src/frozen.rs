//! Bytes of Python objects that nobody alters, read where they are. One of the few places with `unsafe`: what the buffer protocol gives is raw
//! memory.
#![allow(unsafe_code)]

use std::slice;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

/// Bytes that stay as they are for as long as this lives: of a `bytes`, or of a view that cannot be written to.
#[derive(Debug)]
pub(crate) struct Frozen(PyBuffer<u8>);

impl Frozen {
    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        if self.0.len_bytes() == 0 {
            return &[];
        }
        // SAFETY: the buffer is held, so its memory stays, and it lies in one piece; who gives a view that cannot be written to has promised,
        // by the signatures of `_core`, that nobody else writes to what it shows meanwhile.
        unsafe { slice::from_raw_parts(self.0.buf_ptr().cast(), self.0.len_bytes()) }
    }
}

impl<'py> FromPyObject<'_, 'py> for Frozen {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let buffer = PyBuffer::get(&object)?;
        if buffer.readonly() && buffer.is_c_contiguous() {
            Ok(Self(buffer))
        } else {
            Err(PyTypeError::new_err("expected bytes, or a view of bytes that cannot be written to"))
        }
    }
}
