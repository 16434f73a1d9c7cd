//! Messages that were received, as a record batch.

use std::sync::Arc;

use arrow_array::{ArrayRef, BinaryArray, BooleanArray, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow_buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::ArrowError;
use ssbroker_core::message::{Inbox, Received};

use crate::arrays::sixteens;
use crate::catalog::internal;
use crate::error::Result;
use crate::schema::received_schema;

/// The messages of an inbox; `status` is what RECEIVE says of all of them (fact 155).
///
/// # Errors
/// The bodies together are longer than a column can hold.
pub fn received(inbox: Inbox<'_>, status: i32) -> Result<RecordBatch> {
    let rows = &inbox.messages;
    let texts = |text: for<'a> fn(&'a Received<'a>) -> &'a str| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(rows.iter().map(text)))
    };
    let columns: Vec<ArrayRef> = vec![
        sixteens(rows.iter().map(|row| row.conversation_id.0).collect(), None)?,
        Arc::new(rows.iter().map(|row| Some(row.is_initiator)).collect::<BooleanArray>()),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.message_sequence_number))),
        Arc::new(bodies(inbox.bodies, &inbox.ends)?),
        sixteens(vec![[0; 16]; rows.len()], Some(NullBuffer::new_null(rows.len())))?,
        sixteens(rows.iter().map(|row| row.conversation_handle.0).collect(), None)?,
        sixteens(rows.iter().map(|row| row.conversation_group_id.0).collect(), None)?,
        texts(|row| row.message_type_name),
        texts(|row| row.service_name),
        texts(|row| row.service_contract_name),
        Arc::new(Int32Array::from_iter_values(rows.iter().map(|row| row.priority))),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.queuing_order))),
        Arc::new(Int32Array::from_value(status, rows.len())),
        texts(|row| row.validation),
    ];
    RecordBatch::try_new(received_schema(), columns).map_err(|error| internal(&error))
}

/// Bodies that lie one behind the other, each up to its end; `None` is null.
pub(crate) fn bodies(values: Vec<u8>, ends: &[Option<usize>]) -> Result<BinaryArray> {
    let mut offsets = Vec::with_capacity(ends.len() + 1);
    let mut last = 0;
    offsets.push(0);
    for end in ends {
        let too_long = |_| internal(&ArrowError::OffsetOverflowError(values.len()));
        last = i32::try_from(end.unwrap_or(0)).map_err(too_long)?.max(last);
        offsets.push(last);
    }
    let nulls = ends.iter().any(Option::is_none).then(|| ends.iter().map(Option::is_some).collect());
    let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
    BinaryArray::try_new(offsets, Buffer::from_vec(values), nulls).map_err(|error| internal(&error))
}
