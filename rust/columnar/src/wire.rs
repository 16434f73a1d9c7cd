//! A batch of fragments as it comes from another instance: bytes of somebody else, of which nothing is believed (N6).
//!
//! The body of a frame is one encapsulated message of Arrow IPC: a marker, the length of the metadata, the metadata, and the buffers. The
//! metadata are judged first, against the body's real length; only then does arrow-rs make columns of the buffers and look into them. All of
//! them are slices of the one body, so that the result is no larger than what was received.

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
/// Marker and length of the metadata.
const PREFIX: usize = 8;
const ALIGNMENT: usize = 8;
/// Arrow fills buffers up to a multiple of this.
const PADDING_MAX: usize = 64;
/// Those of a batch of this schema take less than half of it.
const METADATA_MAX: usize = 8 << 10;
/// A batch is a message and what it holds. Tables may be shared, so that a few bytes can stand for a million of them: these are few enough.
const METADATA: VerifierOptions = VerifierOptions {
    max_depth: 8,
    max_tables: 8,
    max_apparent_size: 8 * METADATA_MAX,
    ignore_missing_null_terminator: false,
};
const ROWS_MAX: i64 = 1_024;
/// A part of 1 MiB, with the salt and the tag of a sealed one. A longer one would fit no frame when it is to be passed on.
const BODY_MAX: i64 = (1 << 20) + 32;
/// 256 characters of four bytes.
const NAME_MAX: i64 = 1_024;
/// 512 runs of 24 bytes.
const AHEAD_MAX: i64 = 512 * 24;
/// Two keys of RSA with 16,384 bits, and what goes beside them, take less.
const KEY_EXCHANGE_MAX: i64 = 8 << 10;
/// How many times a row may be forwarded.
pub(crate) const HOPS: i8 = 16;
/// The end of the year 9999.
const MOMENT_MAX: i64 = 253_402_300_799_999_999;

/// The CRC-32C of bytes that come after others, whose own is `before`; 0 where there are none.
#[must_use]
pub fn crc32c(bytes: &[u8], before: u32) -> u32 {
    crc32c::crc32c_append(before, bytes)
}

/// The rows of a body, whose memory they share.
///
/// # Errors
/// The bytes are no batch of this schema, contradict themselves, or hold a value that no instance sends.
pub fn decode_fragments(body: &Buffer) -> Result<RecordBatch> {
    let (metadata, buffers) = split(body)?;
    let message = root_as_message_with_opts(&METADATA, metadata)
        .map_err(|error| bad(format!("its metadata are none: {error}")))?;
    if message.version() != MetadataVersion::V5 || message.header_type() != MessageHeader::RecordBatch {
        return Err(bad("its metadata are not those of a record batch of version 5"));
    }
    let Some(batch) = message.header_as_record_batch() else { return Err(bad("it has no record batch")) };
    if usize::try_from(message.bodyLength()) != Ok(buffers.len()) {
        return Err(bad(format!("it declares buffers of {} bytes and has {}", message.bodyLength(), buffers.len())));
    }
    if batch.compression().is_some() || batch.variadicBufferCounts().is_some() || message.custom_metadata().is_some() {
        return Err(bad("it is compressed, or has metadata that no batch of fragments has"));
    }
    let schema = wire_schema();
    judge(&schema, batch, buffers.len())?;
    let (version, none) = (message.version(), HashMap::new());
    let decoder = RecordBatchDecoder::try_new(&buffers, batch, schema, &none, &version);
    let rows = decoder.and_then(|decoder| decoder.with_require_alignment(true).read_record_batch());
    let rows = rows.map_err(|error| bad(error.to_string()))?;
    judge_size(&rows, buffers.len(), batch.buffers().map_or(0, |each| each.len()))?;
    judge_values(&rows)?;
    Ok(rows)
}

fn bad(what: impl Into<String>) -> Error {
    Error::Wire(what.into())
}

/// The metadata, and what stands behind them.
fn split(body: &Buffer) -> Result<(&[u8], Buffer)> {
    const CUT_OFF: &str = "it is cut off";
    let rest = body.strip_prefix(&MARKER).ok_or_else(|| bad("it does not begin as one"))?;
    let (len, rest) = rest.split_first_chunk().ok_or_else(|| bad(CUT_OFF))?;
    let len = usize::try_from(i32::from_le_bytes(*len)).ok().filter(|len| *len <= METADATA_MAX);
    let len = len.ok_or_else(|| bad("its metadata are too long"))?;
    if !(PREFIX + len).is_multiple_of(ALIGNMENT) {
        return Err(bad("its metadata do not end where buffers may begin"));
    }
    let metadata = rest.get(..len).ok_or_else(|| bad(CUT_OFF))?;
    Ok((metadata, body.slice(PREFIX + len)))
}

/// The buffers of a column of this type, that of its nulls first: how many bytes each of their values has, where these are not bits or bytes.
fn buffers_of(kind: &DataType) -> &'static [usize] {
    match kind {
        DataType::Utf8 | DataType::Binary => &[1, size_of::<i32>(), 1],
        DataType::Int32 => &[1, size_of::<i32>()],
        DataType::Int64 | DataType::Timestamp(..) => &[1, size_of::<i64>()],
        _ => &[1, 1],
    }
}

/// Whether the metadata describe columns of this schema, each buffer behind the one before it, of whole values, and all of them within `len`
/// bytes. That a buffer ends within a value is beyond arrow-rs, which panics.
fn judge(schema: &Schema, batch: arrow_ipc::RecordBatch<'_>, len: usize) -> Result<()> {
    let rows = batch.length();
    if !(1..=ROWS_MAX).contains(&rows) {
        return Err(bad(format!("it has {rows} rows; expected 1 to {ROWS_MAX}")));
    }
    let fields = schema.fields();
    let (Some(nodes), Some(buffers)) = (batch.nodes(), batch.buffers()) else {
        return Err(bad("it has no columns"));
    };
    let widths: Vec<usize> = fields.iter().flat_map(|field| buffers_of(field.data_type())).copied().collect();
    if nodes.len() != fields.len() || buffers.len() != widths.len() {
        return Err(bad(format!("it has {} columns; expected {}", nodes.len(), fields.len())));
    }
    for (field, node) in fields.iter().zip(nodes) {
        let nulls_max = if field.is_nullable() { rows } else { 0 };
        if node.length() != rows || !(0..=nulls_max).contains(&node.null_count()) {
            return Err(bad(format!("{} has another number of rows, or nulls that it cannot have", field.name())));
        }
    }
    let mut end = 0;
    for (buffer, width) in buffers.iter().zip(widths) {
        let start =
            usize::try_from(buffer.offset()).ok().filter(|start| *start >= end && start.is_multiple_of(ALIGNMENT));
        let size = usize::try_from(buffer.length()).ok();
        if !size.is_some_and(|size| size.is_multiple_of(width)) {
            return Err(bad("a buffer ends within a value"));
        }
        let last = start.zip(size).and_then(|(start, len)| start.checked_add(len));
        end = last.filter(|last| *last <= len).ok_or_else(|| bad("a buffer lies within another one, or outside"))?;
    }
    Ok(())
}

/// Whether there is nothing between the values, nor behind them, but what fills a buffer up: the rows hold all of the body for as long as they live.
fn judge_size(rows: &RecordBatch, len: usize, buffers: usize) -> Result<()> {
    let mut needed = buffers * PADDING_MAX;
    for column in rows.columns() {
        needed += column.to_data().get_slice_memory_size().map_err(|error| bad(error.to_string()))?;
    }
    if len > needed {
        return Err(bad(format!("its buffers have {len} bytes; its values need {needed} at most")));
    }
    Ok(())
}

/// Whether the values are within what an instance may send, so that nothing behind this has to fear their size.
fn judge_values(rows: &RecordBatch) -> Result<()> {
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
        (wire::LIFETIME, 0..=MOMENT_MAX),
    ] {
        let column = rows.column_by_name(name).ok_or_else(|| bad(format!("it has no {name}")))?;
        let measured = measures(column).ok_or_else(|| bad(format!("{name} cannot be measured")))?;
        if let Some(measure) = measured.into_iter().find(|measure| !expected.contains(measure)) {
            let (least, most) = expected.into_inner();
            return Err(bad(format!("{name} has a value or length of {measure}; expected {least} to {most}")));
        }
    }
    Ok(())
}

/// The numbers of a column, or how many bytes its values have; nulls have none.
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
        let moments = column.as_primitive_opt::<TimestampMicrosecondType>()?;
        Some(moments.iter().flatten().collect())
    }
}
