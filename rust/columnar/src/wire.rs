//! Decodes batches of fragments from other instances, which are not trusted.
//!
//! The body of a frame is one encapsulated Arrow IPC message: a marker, the length of the metadata, the metadata,
//! and the buffers. The metadata is checked against the actual length first; only then does arrow-rs build columns
//! from the buffers and validate them. All columns are slices of the body, so the result is no larger than the received
//! data.

use std::collections::HashMap;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int8Type, Int32Type, TimestampMicrosecondType};
use arrow_array::{Array, RecordBatch};
use arrow_buffer::Buffer;
use arrow_ipc::reader::RecordBatchDecoder;
use arrow_ipc::{MessageHeader, MetadataVersion, root_as_message_with_opts};
use arrow_schema::{DataType, Schema};
use flatbuffers::VerifierOptions;

use crate::error::{Error, Result};
use crate::schema::{fragments, wire, wire_schema};

const MARKER: [u8; 4] = [0xFF; 4];
/// The marker and the length of the metadata.
const PREFIX: usize = 8;
const ALIGNMENT: usize = 8;
/// Arrow pads buffers to a multiple of at most this.
const PADDING_MAX: usize = 64;
/// A batch of this schema needs less than half of this.
const METADATA_MAX: usize = 8 << 10;
/// A batch is a message and its contents. `FlatBuffers` can share tables, so that a few bytes expand to millions of
/// tables; this limits them.
const METADATA: VerifierOptions = VerifierOptions {
    max_depth: 8,
    max_tables: 8,
    max_apparent_size: 8 * METADATA_MAX,
    ignore_missing_null_terminator: false,
};
const ROWS_MAX: i64 = 1_024;
/// A fragment of 1 MiB with the salt and tag of encryption. A larger one would not fit into a frame when it is
/// forwarded.
const BODY_MAX: i64 = (1 << 20) + 32;
/// 256 characters of four bytes.
const NAME_MAX: i64 = 1_024;
/// 512 runs of 24 bytes.
const AHEAD_MAX: i64 = 512 * 24;
/// Two RSA keys of 16,384 bits and the other fields need less.
const KEY_EXCHANGE_MAX: i64 = 8 << 10;
/// The maximum number of times a row may be forwarded.
pub(crate) const HOPS: i8 = 16;
/// The end of the year 9999, in microseconds since 1970.
pub(crate) const TIMESTAMP_MAX: i64 = 253_402_300_799_999_999;

/// Returns the CRC-32C of `bytes` after earlier bytes; `before` is the checksum of the earlier bytes, or 0.
#[must_use]
pub fn crc32c(bytes: &[u8], before: u32) -> u32 {
    crc32c::crc32c_append(before, bytes)
}

/// Decodes the rows of a body, sharing its memory.
///
/// # Errors
/// The bytes are not a batch of this schema, are inconsistent, or contain a value that no instance sends.
pub fn decode_fragments(body: &Buffer) -> Result<RecordBatch> {
    let (metadata, buffers) = split(body)?;
    let message = root_as_message_with_opts(&METADATA, metadata)
        .map_err(|error| invalid(format!("invalid metadata: {error}")))?;
    if message.version() != MetadataVersion::V5 || message.header_type() != MessageHeader::RecordBatch {
        return Err(invalid("the metadata is not a record batch of version 5"));
    }
    let Some(batch) = message.header_as_record_batch() else { return Err(invalid("no record batch")) };
    if usize::try_from(message.bodyLength()) != Ok(buffers.len()) {
        return Err(invalid(format!("declared {} bytes of buffers, found {}", message.bodyLength(), buffers.len())));
    }
    if batch.compression().is_some() || batch.variadicBufferCounts().is_some() || message.custom_metadata().is_some() {
        return Err(invalid("compression or unexpected metadata"));
    }
    let schema = wire_schema();
    check_metadata(&schema, batch, buffers.len())?;
    let (version, none) = (message.version(), HashMap::new());
    let decoder = RecordBatchDecoder::try_new(&buffers, batch, schema, &none, &version);
    let rows = decoder.and_then(|decoder| decoder.with_require_alignment(true).read_record_batch());
    let rows = rows.map_err(|error| invalid(error.to_string()))?;
    check_size(&rows, buffers.len(), batch.buffers().map_or(0, |each| each.len()))?;
    check_values(&rows)?;
    Ok(rows)
}

fn invalid(what: impl Into<String>) -> Error {
    Error::Wire(what.into())
}

/// Splits a body into the metadata and the buffers.
fn split(body: &Buffer) -> Result<(&[u8], Buffer)> {
    let truncated = |needed: usize| invalid(format!("truncated: {} bytes of at least {needed}", body.len()));
    let rest = body.strip_prefix(&MARKER).ok_or_else(|| invalid("missing marker"))?;
    let (len, rest) = rest.split_first_chunk().ok_or_else(|| truncated(PREFIX))?;
    let declared = i32::from_le_bytes(*len);
    let len = usize::try_from(declared).ok().filter(|len| *len <= METADATA_MAX);
    let len = len.ok_or_else(|| invalid(format!("{declared} bytes of metadata; expected at most {METADATA_MAX}")))?;
    if !(PREFIX + len).is_multiple_of(ALIGNMENT) {
        return Err(invalid(format!("{len} bytes of metadata; expected a multiple of {ALIGNMENT}")));
    }
    let metadata = rest.get(..len).ok_or_else(|| truncated(PREFIX + len))?;
    Ok((metadata, body.slice(PREFIX + len)))
}

/// Returns the buffers of a column of this type, validity first, as bytes per value (1 for bits and bytes).
fn buffers_of(kind: &DataType) -> &'static [usize] {
    match kind {
        DataType::Utf8 | DataType::Binary => &[1, size_of::<i32>(), 1],
        DataType::Int32 => &[1, size_of::<i32>()],
        DataType::Int64 | DataType::Timestamp(..) => &[1, size_of::<i64>()],
        _ => &[1, 1],
    }
}

/// Checks that the metadata describes columns of this schema, with buffers in order, of whole values, and within
/// `len` bytes. arrow-rs panics on a buffer that ends within a value.
fn check_metadata(schema: &Schema, batch: arrow_ipc::RecordBatch<'_>, len: usize) -> Result<()> {
    let rows = batch.length();
    if !(1..=ROWS_MAX).contains(&rows) {
        return Err(invalid(format!("{rows} rows; expected 1 to {ROWS_MAX}")));
    }
    let fields = schema.fields();
    let (Some(nodes), Some(buffers)) = (batch.nodes(), batch.buffers()) else {
        return Err(invalid("no columns"));
    };
    let widths: Vec<_> = fields
        .iter()
        .flat_map(|field| buffers_of(field.data_type()).iter().map(move |width| (field.name(), *width)))
        .collect();
    if nodes.len() != fields.len() || buffers.len() != widths.len() {
        return Err(invalid(format!("{} columns; expected {}", nodes.len(), fields.len())));
    }
    for (field, node) in fields.iter().zip(nodes) {
        let nulls_max = if field.is_nullable() { rows } else { 0 };
        if node.length() != rows || !(0..=nulls_max).contains(&node.null_count()) {
            let (name, found, nulls) = (field.name(), node.length(), node.null_count());
            let (what, expected) =
                ("wrong number of rows or nulls", format!("expected {rows} and at most {nulls_max}"));
            return Err(invalid(format!("{name}: {what}: {found} and {nulls}; {expected}")));
        }
    }
    let mut end = 0;
    for (buffer, (name, width)) in buffers.iter().zip(widths) {
        let start =
            usize::try_from(buffer.offset()).ok().filter(|start| *start >= end && start.is_multiple_of(ALIGNMENT));
        let size = usize::try_from(buffer.length()).ok();
        if !size.is_some_and(|size| size.is_multiple_of(width)) {
            let size = buffer.length();
            return Err(invalid(format!("{name}: a buffer of {size} bytes ends within a value of {width}")));
        }
        let last = start.zip(size).and_then(|(start, len)| start.checked_add(len));
        end = last.filter(|last| *last <= len).ok_or_else(|| {
            let (at, size) = (buffer.offset(), buffer.length());
            let expected = format!("expected them within {end} to {len}, at a multiple of {ALIGNMENT}");
            invalid(format!("{name}: {size} bytes at {at}; {expected}"))
        })?;
    }
    Ok(())
}

/// Checks that the buffers contain only values and padding, because the rows keep the whole body in memory.
fn check_size(rows: &RecordBatch, len: usize, buffers: usize) -> Result<()> {
    let mut needed = buffers * PADDING_MAX;
    for column in rows.columns() {
        needed += column.to_data().get_slice_memory_size().map_err(|error| invalid(error.to_string()))?;
    }
    if len > needed {
        return Err(invalid(format!("{len} bytes of buffers, but the values need at most {needed}")));
    }
    Ok(())
}

/// Checks that the values are within what an instance may send.
fn check_values(rows: &RecordBatch) -> Result<()> {
    for (name, expected) in [
        (fragments::MESSAGE_BODY, 0..=BODY_MAX),
        (wire::FROM_SERVICE_NAME, 1..=NAME_MAX),
        (wire::TO_SERVICE_NAME, 1..=NAME_MAX),
        (wire::SERVICE_CONTRACT_NAME, 1..=NAME_MAX),
        (wire::MESSAGE_TYPE_NAME, 1..=NAME_MAX),
        (wire::ACKED_AHEAD, 0..=AHEAD_MAX),
        (wire::KEY_EXCHANGE, 1..=KEY_EXCHANGE_MAX),
        (wire::HOPS_REMAINING, 0..=i64::from(HOPS)),
        (wire::TIME_TO_LIVE, 0..=i64::from(i32::MAX)),
        (wire::TIME_CONSUMED, 0..=i64::from(i32::MAX)),
        (wire::LIFETIME, 0..=TIMESTAMP_MAX),
    ] {
        let column = rows.column_by_name(name).ok_or_else(|| invalid(format!("missing column {name}")))?;
        let measured = measures(column).ok_or_else(|| invalid(format!("{name}: unsupported type")))?;
        if let Some(measure) = measured.into_iter().find(|measure| !expected.contains(measure)) {
            let (least, most) = expected.into_inner();
            return Err(invalid(format!(
                "{name}: value or length {measure} is out of range; expected {least} to {most}"
            )));
        }
    }
    Ok(())
}

/// Returns the values of a numeric column or the lengths of other values, without nulls.
fn measures(column: &dyn Array) -> Option<Vec<i64>> {
    let len = |len: usize| i64::try_from(len).unwrap_or(i64::MAX);
    if let Some(texts) = column.as_string_opt::<i32>() {
        Some(texts.iter().flatten().map(|text| len(text.len())).collect())
    } else if let Some(bytes) = column.as_binary_opt::<i32>() {
        Some(bytes.iter().flatten().map(|bytes| len(bytes.len())).collect())
    } else if let Some(numbers) = column.as_primitive_opt::<Int8Type>() {
        Some(numbers.iter().flatten().map(i64::from).collect())
    } else if let Some(numbers) = column.as_primitive_opt::<Int32Type>() {
        Some(numbers.iter().flatten().map(i64::from).collect())
    } else {
        let timestamps = column.as_primitive_opt::<TimestampMicrosecondType>()?;
        Some(timestamps.iter().flatten().collect())
    }
}
