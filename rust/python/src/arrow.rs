//! Arrow in and out by the `PyCapsule` protocol. One of the few places with `unsafe`: the C structures of Arrow are raw memory.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::slice;

use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema, from_ffi, to_ffi};
use arrow_array::ffi_stream::{FFI_ArrowArrayStream, RecordBatchStreamReader};
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchReader, StructArray, make_array};
use arrow_data::ArrayData;
use arrow_schema::{ArrowError, DataType};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};
use ssbroker_columnar::Coded;

use crate::errors::malformed;

const ARRAY: &CStr = c"arrow_array";
const SCHEMA: &CStr = c"arrow_schema";
const STREAM: &CStr = c"arrow_array_stream";

/// One record batch from anything with `__arrow_c_array__`.
pub(crate) fn import_batch(object: &Bound<'_, PyAny>) -> PyResult<RecordBatch> {
    let data = import_data(object)?;
    if !matches!(data.data_type(), DataType::Struct(_)) {
        return Err(malformed(object.py(), "the array is no record batch: its type is not a struct"));
    }
    let rows = StructArray::from(data);
    if rows.null_count() > 0 {
        return Err(malformed(object.py(), "the rows of a record batch cannot be null themselves"));
    }
    Ok(RecordBatch::from(rows))
}

/// One array of any type from anything with `__arrow_c_array__`.
pub(crate) fn import_array(object: &Bound<'_, PyAny>) -> PyResult<ArrayRef> {
    import_data(object).map(make_array)
}

fn import_data(object: &Bound<'_, PyAny>) -> PyResult<ArrayData> {
    let pair = object.call_method0("__arrow_c_array__")?.cast_into::<PyTuple>()?;
    let schema = pair.get_item(0)?.cast_into::<PyCapsule>()?;
    let array = pair.get_item(1)?.cast_into::<PyCapsule>()?;
    let schema = schema.pointer_checked(Some(SCHEMA))?.cast::<FFI_ArrowSchema>();
    let array = array.pointer_checked(Some(ARRAY))?.cast::<FFI_ArrowArray>();
    // SAFETY: the names of the capsules were checked, so the protocol says what they point to; `from_raw` takes the array out of its
    // capsule, which then has nothing left to release, and the schema outlives this block in its own.
    let data = unsafe { from_ffi(FFI_ArrowArray::from_raw(array.as_ptr()), schema.as_ref()) };
    data.map_err(|error| not_readable(object.py(), &error))
}

/// All record batches from anything with `__arrow_c_stream__`.
pub(crate) fn import_stream(object: &Bound<'_, PyAny>) -> PyResult<Vec<RecordBatch>> {
    let capsule = object.call_method0("__arrow_c_stream__")?.cast_into::<PyCapsule>()?;
    let stream = capsule.pointer_checked(Some(STREAM))?.cast::<FFI_ArrowArrayStream>();
    // SAFETY: the name of the capsule was checked; `from_raw` takes the stream out of it, so that it is released once.
    let reader = unsafe { RecordBatchStreamReader::from_raw(stream.as_ptr()) };
    let reader = reader.map_err(|error| not_readable(object.py(), &error))?;
    let schema = reader.schema();
    let mut batches = reader.collect::<Result<Vec<_>, _>>().map_err(|error| not_readable(object.py(), &error))?;
    if batches.is_empty() {
        // Without rows there are still columns, and they are checked like any others.
        batches.push(RecordBatch::new_empty(schema));
    }
    Ok(batches)
}

/// A `pyarrow.RecordBatch`.
pub(crate) fn export_batch(py: Python<'_>, batch: RecordBatch) -> PyResult<Bound<'_, PyAny>> {
    export(py, "RecordBatch", &StructArray::from(batch).into_data())
}

/// A `pyarrow.RecordBatch` of a `pyarrow.Schema`, which is that of the batch: to read the columns' types anew takes as long as all else of a
/// batch of one row.
pub(crate) fn export_known<'py>(
    py: Python<'py>,
    batch: RecordBatch,
    schema: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut array = FFI_ArrowArray::new(&StructArray::from(batch).into_data());
    // pyarrow moves the array out of this place, and leaves it released; where it fails, it is released here.
    let place = &raw mut array as usize;
    py.import("pyarrow")?.getattr("RecordBatch")?.call_method1("_import_from_c", (place, schema))
}

/// `pyarrow.RecordBatch`es in a list.
pub(crate) fn export_batches(py: Python<'_>, batches: Vec<RecordBatch>) -> PyResult<Vec<Bound<'_, PyAny>>> {
    batches.into_iter().map(|batch| export_batch(py, batch)).collect()
}

/// A `pyarrow.Array` of the type that the array has.
pub(crate) fn export_array<'py>(py: Python<'py>, array: &ArrayRef) -> PyResult<Bound<'py, PyAny>> {
    export(py, "Array", &array.to_data())
}

/// Codes and the values that they stand for as an array, without a second look at every code.
pub(crate) fn dictionary(column: Coded) -> ArrayRef {
    let (codes, values) = column.into_parts();
    let data_type = DataType::Dictionary(Box::new(codes.data_type().clone()), Box::new(values.data_type().clone()));
    let builder = codes.to_data().into_builder().data_type(data_type).add_child_data(values.to_data());
    // SAFETY: the codes are an array of their own, and it is what `Coded` is for that each one stands for a value.
    make_array(unsafe { builder.build_unchecked() })
}

fn export<'py>(py: Python<'py>, class: &str, data: &ArrayData) -> PyResult<Bound<'py, PyAny>> {
    let (array, schema) = to_ffi(data).map_err(|error| not_readable(py, &error))?;
    let schema = PyCapsule::new_with_value(py, schema, SCHEMA)?;
    let array = PyCapsule::new_with_value(py, array, ARRAY)?;
    py.import("pyarrow")?.getattr(class)?.call_method1("_import_from_c_capsule", (schema, array))
}

fn not_readable(py: Python<'_>, error: &ArrowError) -> PyErr {
    malformed(py, &error.to_string())
}

// Bytes of Python objects that nobody alters, read where they are. One of the few places with `unsafe`: what the buffer protocol gives is raw
// memory.

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
