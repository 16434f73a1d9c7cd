//! What a reassembly gives back, as record batches.

use std::sync::Arc;

use arrow_array::types::Int8Type;
use arrow_array::{
    ArrayRef, BinaryArray, BooleanArray, DictionaryArray, Int8Array, Int32Array, Int64Array, ListArray, RecordBatch,
    StringArray,
};
use arrow_buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{ArrowError, SchemaRef};
use ssbroker_core::Guid;
use ssbroker_core::reassembly::{Acknowledgement, MessageBatch, Pending, Rejected, Rejection};

use crate::arrays::{BATCH_BYTES, BATCH_ROWS, cut, sixteens};
use crate::carry::{Carried, Shape};
use crate::catalog::internal;
use crate::error::Result;
use crate::schema::{acknowledgements_schema, item_field, messages_schema, pending_schema, rejected_schema};

/// Messages, in at least one batch; the bodies are not copied.
pub(crate) fn messages(batches: Vec<MessageBatch>, shape: &Shape, carried: &Carried<'_>) -> Result<Vec<RecordBatch>> {
    let schema = messages_schema(&shape.fields);
    if batches.is_empty() {
        return Ok(vec![RecordBatch::new_empty(schema)]);
    }
    let mut told = Vec::with_capacity(batches.len());
    for batch in batches {
        let valid = NullBuffer::from(batch.is_signed);
        let offsets = OffsetBuffer::new(ScalarBuffer::from(batch.offsets));
        let bodies = BinaryArray::try_new(offsets, Buffer::from_vec(fitting(batch.bodies)), None);
        let own: Vec<ArrayRef> = vec![
            sixteens(ids(batch.conversations), None)?,
            Arc::new(BooleanArray::from(batch.is_initiator)),
            Arc::new(Int64Array::from(batch.sequences)),
            Arc::new(bodies.map_err(|error| internal(&error))?),
            sixteens(batch.signatures, Some(valid).filter(|valid| valid.null_count() > 0))?,
        ];
        if shape.fields.is_empty() {
            told.push(batch_of(&schema, own)?);
            continue;
        }
        for range in cut(batch.further.iter().map(|of| carried.size(of)), BATCH_BYTES, usize::MAX) {
            let mut columns: Vec<_> = own.iter().map(|array| array.slice(range.start, range.len())).collect();
            columns.extend(carried.columns(&batch.further[range]).map_err(|error| internal(&error))?);
            told.push(batch_of(&schema, columns)?);
        }
    }
    Ok(told)
}

/// Rejected fragments, in at least one batch.
pub(crate) fn rejected(rejections: &[Rejection]) -> Result<Vec<RecordBatch>> {
    let labels: ArrayRef = Arc::new(StringArray::from_iter_values(Rejected::LABELS));
    in_pieces(rejections, |rows| {
        let headers = || rows.iter().map(|row| row.header);
        let reasons = Int8Array::from_iter_values(rows.iter().map(|row| row.reason as i8));
        let reasons = DictionaryArray::<Int8Type>::try_new(reasons, Arc::clone(&labels));
        let columns: Vec<ArrayRef> = vec![
            sixteens(headers().map(|header| header.conversation.0).collect(), None)?,
            Arc::new(BooleanArray::new(headers().map(|header| header.is_initiator).collect(), None)),
            Arc::new(Int64Array::from_iter_values(headers().map(|header| header.sequence))),
            Arc::new(Int32Array::from_iter_values(headers().map(|header| header.number))),
            Arc::new(Int32Array::from_iter_values(headers().map(|header| header.count))),
            Arc::new(reasons.map_err(|error| internal(&error))?),
        ];
        batch_of(&rejected_schema(), columns)
    })
}

/// Acknowledgements, in at least one batch.
pub(crate) fn acknowledgements(all: &[Acknowledgement]) -> Result<Vec<RecordBatch>> {
    let bytes = |row: &Acknowledgement| row.partial.as_ref().map_or(0, |(_, fragments)| 4 * fragments.len());
    let ranges = cut(all.iter().map(bytes), BATCH_BYTES, BATCH_ROWS);
    ranges.into_iter().map(|range| acknowledged(&all[range])).collect()
}

fn acknowledged(rows: &[Acknowledgement]) -> Result<RecordBatch> {
    let valid: NullBuffer = rows.iter().map(|row| row.partial.is_some()).collect();
    let partial = || rows.iter().map(|row| row.partial.as_ref());
    let lengths = partial().map(|partial| partial.map_or(0, |(_, fragments)| fragments.len()));
    let offsets = OffsetBuffer::from_lengths(lengths);
    // Of a message of many fragments the numbers of all that are there are told again and again.
    let fragments = partial().flatten().map(|(_, fragments)| fragments.as_slice()).collect::<Vec<_>>().concat();
    let fragments = ListArray::try_new(item_field(), offsets, Arc::new(Int32Array::from(fragments)), Some(valid));
    let columns: Vec<ArrayRef> = vec![
        sixteens(rows.iter().map(|row| row.conversation.0).collect(), None)?,
        Arc::new(BooleanArray::new(rows.iter().map(|row| row.is_initiator).collect(), None)),
        Arc::new(rows.iter().map(|row| row.acked).collect::<Int64Array>()),
        Arc::new(partial().map(|partial| partial.map(|&(sequence, _)| sequence)).collect::<Int64Array>()),
        Arc::new(fragments.map_err(|error| internal(&error))?),
    ];
    batch_of(&acknowledgements_schema(), columns)
}

/// Pending messages, in at least one batch.
pub(crate) fn pending(all: &[Pending]) -> Result<Vec<RecordBatch>> {
    in_pieces(all, |rows| {
        let columns: Vec<ArrayRef> = vec![
            sixteens(rows.iter().map(|row| row.conversation.0).collect(), None)?,
            Arc::new(BooleanArray::new(rows.iter().map(|row| row.is_initiator).collect(), None)),
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.sequence))),
            Arc::new(Int32Array::from_iter_values(rows.iter().map(|row| row.count))),
            Arc::new(Int32Array::from_iter_values(rows.iter().map(|row| row.received as i32))),
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.bytes as i64))),
            Arc::new(rows.iter().map(|row| row.first_missing).collect::<Int32Array>()),
            Arc::new(rows.iter().map(|row| row.waits_for).collect::<Int64Array>()),
        ];
        batch_of(&pending_schema(), columns)
    })
}

fn in_pieces<T>(rows: &[T], tell: impl Fn(&[T]) -> Result<RecordBatch>) -> Result<Vec<RecordBatch>> {
    if rows.is_empty() { tell(rows).map(|batch| vec![batch]) } else { rows.chunks(BATCH_ROWS).map(tell).collect() }
}

/// The bytes in no more than twice the room that they need: results may be kept for long.
fn fitting(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.capacity() / 2 > bytes.len() {
        bytes.shrink_to_fit();
    }
    bytes
}

fn ids(guids: Vec<Guid>) -> Vec<[u8; 16]> {
    guids.into_iter().map(|guid| guid.0).collect()
}

fn batch_of(schema: &SchemaRef, columns: Vec<ArrayRef>) -> Result<RecordBatch> {
    let batch = RecordBatch::try_new(Arc::clone(schema), columns);
    batch.map_err(|error: ArrowError| internal(&error))
}
