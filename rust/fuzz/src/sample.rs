//! Generates batches of fragments as an instance may send them.

use std::sync::Arc;

use arbitrary::{Result, Unstructured};
use arrow_array::{
    ArrayRef, BinaryArray, BooleanArray, FixedSizeBinaryArray, Int8Array, Int32Array, Int64Array, RecordBatch,
    StringArray, TimestampMicrosecondArray,
};
use arrow_ipc::MetadataVersion;
use arrow_ipc::writer::{IpcWriteOptions, StreamWriter};
use arrow_schema::{DataType, Field};
use ssbroker_columnar::schema::wire_schema;

/// Generates one to four rows of the wire schema.
pub fn rows(from: &mut Unstructured<'_>) -> Result<RecordBatch> {
    let count = from.int_in_range(1..=4)?;
    let schema = wire_schema();
    let columns = schema.fields().iter().map(|field| column(from, field, count)).collect::<Result<_>>()?;
    Ok(RecordBatch::try_new(schema, columns).expect("columns of the schema"))
}

/// Encodes the body of a frame.
pub fn body(rows: &RecordBatch) -> Vec<u8> {
    let options = IpcWriteOptions::try_new(8, false, MetadataVersion::V5).expect("options that there are");
    let mut writer = StreamWriter::try_new_with_options(Vec::new(), &rows.schema(), options).expect("a schema");
    let start = 8 + usize::from_le_bytes(length(writer.get_ref()));
    writer.write(rows).expect("rows of the schema");
    let end = writer.get_ref().len();
    writer.into_inner().expect("a whole stream")[start..end].to_vec()
}

/// Reads the length of a message's metadata, which follows its marker.
fn length(message: &[u8]) -> [u8; 8] {
    let mut length = [0; 8];
    length[..4].copy_from_slice(&message[4..8]);
    length
}

fn column(from: &mut Unstructured<'_>, field: &Field, count: usize) -> Result<ArrayRef> {
    let values = (0..count).map(|_| value(from, field)).collect::<Result<Vec<_>>>()?;
    let bytes = || values.iter().map(|value| value.as_ref().map(|(_, bytes)| bytes.as_slice()));
    let numbers = || values.iter().map(|value| value.as_ref().map(|(number, _)| *number));
    Ok(match field.data_type() {
        DataType::Boolean => {
            Arc::new(numbers().map(|number| number.map(|number| number & 1 == 1)).collect::<BooleanArray>())
        }
        DataType::Int8 => {
            Arc::new(numbers().map(|number| number.map(|number| number as i8 & 15)).collect::<Int8Array>())
        }
        DataType::Int32 => {
            Arc::new(numbers().map(|number| number.map(|number| number as i32 & i32::MAX)).collect::<Int32Array>())
        }
        DataType::Int64 => Arc::new(numbers().collect::<Int64Array>()),
        DataType::Timestamp(..) => {
            let moments = numbers().map(|number| number.map(|number| number & 0xFF_FFFF_FFFF_FFFF));
            Arc::new(moments.collect::<TimestampMicrosecondArray>().with_timezone("UTC"))
        }
        DataType::Utf8 => Arc::new(bytes().map(|bytes| bytes.map(text)).collect::<StringArray>()),
        DataType::Binary => Arc::new(bytes().collect::<BinaryArray>()),
        _ => {
            let sixteens = bytes().map(|bytes| bytes.map(|bytes| [bytes.len() as u8; 16]));
            Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(sixteens, 16).expect("sixteen bytes each"))
        }
    })
}

fn value(from: &mut Unstructured<'_>, field: &Field) -> Result<Option<(i64, Vec<u8>)>> {
    if field.is_nullable() && from.ratio(1, 3)? {
        return Ok(None);
    }
    let len = from.int_in_range(1..=24)?;
    let number = if from.ratio(1, 4)? { from.arbitrary()? } else { i64::from(from.arbitrary::<u8>()?) };
    Ok(Some((number, vec![from.arbitrary()?; len])))
}

fn text(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| char::from(*byte)).collect()
}
