//! Arrow data in and out by the `PyCapsule` protocol, and bytes by the buffer protocol. Uses `unsafe` because both
//! pass raw memory.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;

use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema, from_ffi, to_ffi};
use arrow_array::ffi_stream::{FFI_ArrowArrayStream, RecordBatchStreamReader};
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchReader, StructArray, make_array};
use arrow_data::ArrayData;
use arrow_schema::{ArrowError, DataType};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyCapsule, PyTuple};
use ssbroker_columnar::{DictionaryColumn, type_name};

use crate::errors::{malformed, panic_text};

const ARRAY: &CStr = c"arrow_array";
const SCHEMA: &CStr = c"arrow_schema";
const STREAM: &CStr = c"arrow_array_stream";

/// Imports one record batch from an object with `__arrow_c_array__`.
pub(crate) fn import_batch(object: &Bound<'_, PyAny>) -> PyResult<RecordBatch> {
    let data = import_data(object)?;
    if !matches!(data.data_type(), DataType::Struct(_)) {
        let found = type_name(data.data_type());
        let what = format!("the array is not a record batch: expected the type struct, got {found}");
        return Err(malformed(object.py(), &what));
    }
    let rows = StructArray::from(data);
    if rows.null_count() > 0 {
        return Err(malformed(object.py(), "the rows of a record batch must not be null"));
    }
    Ok(RecordBatch::from(rows))
}

/// Imports one array from an object with `__arrow_c_array__`.
pub(crate) fn import_array(object: &Bound<'_, PyAny>) -> PyResult<ArrayRef> {
    import_data(object).map(make_array)
}

fn import_data(object: &Bound<'_, PyAny>) -> PyResult<ArrayData> {
    let pair = object.call_method0("__arrow_c_array__")?.cast_into::<PyTuple>()?;
    let schema = pair.get_item(0)?.cast_into::<PyCapsule>()?;
    let array = pair.get_item(1)?.cast_into::<PyCapsule>()?;
    let schema = schema.pointer_checked(Some(SCHEMA))?.cast::<FFI_ArrowSchema>();
    let array = array.pointer_checked(Some(ARRAY))?.cast::<FFI_ArrowArray>();
    // SAFETY: the capsule names were checked, so the protocol defines what they point to. `from_raw` moves the
    // array out of its capsule, which then has nothing to release; the schema stays in its capsule, which outlives
    // this block.
    let (array, schema) = unsafe { (FFI_ArrowArray::from_raw(array.as_ptr()), schema.as_ref()) };
    if array.is_released() || schema.release().is_none() {
        return Err(malformed(object.py(), "the array or its schema has been released, probably by an earlier import"));
    }
    // SAFETY: as above.
    let imported = || unsafe { from_ffi(array, schema) };
    checked(object.py(), imported)
}

/// Imports all record batches from an object with `__arrow_c_stream__`.
pub(crate) fn import_stream(object: &Bound<'_, PyAny>) -> PyResult<Vec<RecordBatch>> {
    let capsule = object.call_method0("__arrow_c_stream__")?.cast_into::<PyCapsule>()?;
    let stream = capsule.pointer_checked(Some(STREAM))?.cast::<FFI_ArrowArrayStream>();
    // SAFETY: the capsule name was checked; `from_raw` moves the stream out of it, so that it is released once.
    let reader = || unsafe { RecordBatchStreamReader::from_raw(stream.as_ptr()) };
    let reader = checked(object.py(), reader)?;
    let schema = reader.schema();
    let mut batches = checked(object.py(), || reader.collect::<Result<Vec<_>, _>>())?;
    if batches.is_empty() {
        // The columns are checked even if there are no rows.
        batches.push(RecordBatch::new_empty(schema));
    }
    Ok(batches)
}

/// Exports a `pyarrow.RecordBatch`.
pub(crate) fn export_batch(py: Python<'_>, batch: RecordBatch) -> PyResult<Bound<'_, PyAny>> {
    export(py, "RecordBatch", &StructArray::from(batch).into_data())
}

/// Exports a `pyarrow.RecordBatch` with a `pyarrow.Schema` that matches it. Importing the schema again would double
/// the time for a batch of one row.
pub(crate) fn export_with_schema<'py>(
    py: Python<'py>,
    batch: RecordBatch,
    schema: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut array = FFI_ArrowArray::new(&StructArray::from(batch).into_data());
    // pyarrow moves the array out of this place and leaves it released; if it fails, it is released here.
    let address = &raw mut array as usize;
    py.import("pyarrow")?.getattr("RecordBatch")?.call_method1("_import_from_c", (address, schema))
}

/// Exports a `pyarrow.RecordBatch` whose schema is always the same; `schema` keeps it from the first call on.
pub(crate) fn export_with_known_schema<'py>(
    py: Python<'py>,
    batch: RecordBatch,
    schema: &PyOnceLock<Py<PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    if let Some(schema) = schema.get(py) {
        return export_with_schema(py, batch, schema.bind(py));
    }
    let exported = export_batch(py, batch)?;
    let found = exported.getattr("schema")?.unbind();
    schema.get_or_init(py, || found);
    Ok(exported)
}

/// Exports a list of `pyarrow.RecordBatch`.
pub(crate) fn export_batches(py: Python<'_>, batches: Vec<RecordBatch>) -> PyResult<Vec<Bound<'_, PyAny>>> {
    batches.into_iter().map(|batch| export_batch(py, batch)).collect()
}

/// Exports a `pyarrow.Array`.
pub(crate) fn export_array<'py>(py: Python<'py>, array: &ArrayRef) -> PyResult<Bound<'py, PyAny>> {
    export(py, "Array", &array.to_data())
}

/// Builds a dictionary array without checking every code again.
pub(crate) fn dictionary(column: DictionaryColumn) -> ArrayRef {
    let (codes, values) = column.into_parts();
    let data_type = DataType::Dictionary(Box::new(codes.data_type().clone()), Box::new(values.data_type().clone()));
    let builder = codes.to_data().into_builder().data_type(data_type).add_child_data(values.to_data());
    // SAFETY: `codes` is a valid array, and `DictionaryColumn` guarantees that each code has a value.
    make_array(unsafe { builder.build_unchecked() })
}

fn export<'py>(py: Python<'py>, class: &str, data: &ArrayData) -> PyResult<Bound<'py, PyAny>> {
    let (array, schema) = to_ffi(data).map_err(|error| unreadable(py, &error))?;
    let schema = PyCapsule::new_with_value(py, schema, SCHEMA)?;
    let array = PyCapsule::new_with_value(py, array, ARRAY)?;
    py.import("pyarrow")?.getattr(class)?.call_method1("_import_from_c_capsule", (schema, array))
}

/// Reports errors and panics of arrow-rs, which asserts that what it imports follows the protocol.
fn checked<T>(py: Python<'_>, import: impl FnOnce() -> Result<T, ArrowError>) -> PyResult<T> {
    match catch_unwind(AssertUnwindSafe(import)) {
        Ok(imported) => imported.map_err(|error| unreadable(py, &error)),
        Err(panic) => Err(malformed(py, &format!("it violates the C data interface: {}", panic_text(&*panic)))),
    }
}

fn unreadable(py: Python<'_>, error: &ArrowError) -> PyErr {
    malformed(py, &error.to_string())
}

/// Read-only bytes of a Python object, unchanged for the lifetime of this value.
#[derive(Debug)]
pub(crate) struct ReadOnlyBytes(PyBuffer<u8>);

impl ReadOnlyBytes {
    /// Returns the bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        if self.0.len_bytes() == 0 {
            return &[];
        }
        // SAFETY: the buffer is held, so the memory stays valid, and it is contiguous. The documentation of `_core`
        // requires that nobody writes to the memory behind a read-only view during the call.
        unsafe { slice::from_raw_parts(self.0.buf_ptr().cast(), self.0.len_bytes()) }
    }
}

impl<'py> FromPyObject<'_, 'py> for ReadOnlyBytes {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let buffer = PyBuffer::get(&object)?;
        if buffer.readonly() && buffer.is_c_contiguous() {
            Ok(Self(buffer))
        } else {
            let found = object.get_type().name()?;
            Err(PyTypeError::new_err(format!("expected bytes or a read-only view that is contiguous, got {found}")))
        }
    }
}
