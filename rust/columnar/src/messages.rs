//! Messages of the database as record batches, in both directions.

use std::sync::Arc;

use arrow_array::{ArrayRef, BinaryArray, BooleanArray, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow_buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use ssbroker_core::message::{Inbox, Outbox, Outgoing, Received, Waiting};
use ssbroker_core::{Invalid, InvalidKind};

use crate::arrays::binary_16;
use crate::columns::Source;
use crate::error::{Result, internal};
use crate::schema::{fragments, received_schema, waiting_schema, wire};

/// The maximum size of a binary column in bytes.
const BYTES_MAX: usize = i32::MAX as usize;

/// Reads the messages to send from a batch.
///
/// Returns `None` if a column or row is invalid or unusual; the caller then reports it or handles it differently.
#[must_use]
pub fn read_outgoing<'a>(batch: &'a RecordBatch, message_type_name: &'a str) -> Option<Vec<Outgoing<'a>>> {
    let source = Source { batch, table: "", first_row: 0, invalid_rows: None };
    source
        .reject_duplicates(&[fragments::CONVERSATION_HANDLE, fragments::MESSAGE_BODY, wire::MESSAGE_TYPE_NAME])
        .ok()?;
    let handles = source.guids(fragments::CONVERSATION_HANDLE).ok()??;
    let bodies = source.bytes(fragments::MESSAGE_BODY).ok()?;
    let types = source.optional_text(wire::MESSAGE_TYPE_NAME).ok()?;
    if bodies.is_text
        || bodies.first_null().is_some()
        || types.as_ref().is_some_and(|types| types.first_null().is_some())
    {
        return None;
    }
    let message = |row| {
        let message_type =
            types.as_ref().map_or(Some(message_type_name), |types| std::str::from_utf8(types.get(row).ok()?).ok());
        Some(Outgoing {
            conversation_handle: handles.optional(row).ok()??,
            message_type_name: message_type?,
            message_body: bodies.get(row).ok()?,
        })
    };
    (0..batch.num_rows()).map(message).collect()
}

/// Builds the batch of received messages; `status` is the status column for all of them.
///
/// # Errors
/// The bodies together exceed the size of a column.
pub fn received_batch(inbox: Inbox<'_>, status: i32) -> Result<RecordBatch> {
    let rows = &inbox.messages;
    let texts = |text: for<'a> fn(&'a Received<'a>) -> &'a str| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(rows.iter().map(text)))
    };
    let columns: Vec<ArrayRef> = vec![
        binary_16(rows.iter().map(|row| row.conversation_id.0).collect(), None)?,
        Arc::new(rows.iter().map(|row| Some(row.is_initiator)).collect::<BooleanArray>()),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.message_sequence_number))),
        Arc::new(body_array(inbox.bodies, &inbox.ends)?),
        binary_16(vec![[0; 16]; rows.len()], Some(NullBuffer::new_null(rows.len())))?,
        binary_16(rows.iter().map(|row| row.conversation_handle.0).collect(), None)?,
        binary_16(rows.iter().map(|row| row.conversation_group_id.0).collect(), None)?,
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

/// Builds a binary column of concatenated bodies; an end of `None` is null.
pub(crate) fn body_array(values: Vec<u8>, ends: &[Option<usize>]) -> Result<BinaryArray> {
    if values.len() > BYTES_MAX {
        let size = format!("{} bytes in {} messages", values.len(), ends.len());
        let expected = format!("at most {BYTES_MAX} bytes together; receive fewer messages with `top`");
        let (kind, column) = (InvalidKind::OutOfRange, fragments::MESSAGE_BODY);
        return Err(Invalid::new(kind, column, None, Some(size.as_bytes()), expected).into());
    }
    let mut offsets = Vec::with_capacity(ends.len() + 1);
    let mut last = 0;
    offsets.push(0);
    for end in ends {
        last = last.max(end.unwrap_or(0) as i32);
        offsets.push(last);
    }
    let nulls = ends.iter().any(Option::is_none).then(|| ends.iter().map(Option::is_some).collect());
    let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
    BinaryArray::try_new(offsets, Buffer::from_vec(values), nulls).map_err(|error| internal(&error))
}

/// Builds the batch of messages to transmit.
///
/// # Errors
/// The bodies together exceed the size of a column.
pub fn transmission_batch(outbox: Outbox) -> Result<RecordBatch> {
    let rows = &outbox.messages;
    let flags = |flag: fn(&Waiting) -> bool| -> ArrayRef {
        Arc::new(rows.iter().map(|row| Some(flag(row))).collect::<BooleanArray>())
    };
    let columns: Vec<ArrayRef> = vec![
        binary_16(rows.iter().map(|row| row.conversation_id.0).collect(), None)?,
        flags(|row| row.is_initiator),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.message_sequence_number))),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|row| &row.message_type_name))),
        binary_16(rows.iter().map(|row| row.message_id.0).collect(), None)?,
        flags(|row| row.is_end_of_dialog),
        flags(|row| row.is_conversation_error),
        Arc::new(body_array(outbox.bodies, &outbox.ends)?),
    ];
    RecordBatch::try_new(waiting_schema(), columns).map_err(|error| internal(&error))
}

/// Returns the bodies of all rows without copying.
///
/// # Errors
/// The column is missing, has the wrong type or contains null, or a batch is malformed.
pub fn message_bodies(batches: &[RecordBatch]) -> Result<Vec<&[u8]>> {
    let mut found = Vec::new();
    let mut first_row = 0;
    for batch in batches {
        let source = Source { batch, table: "", first_row, invalid_rows: None };
        let column = source.bytes(fragments::MESSAGE_BODY)?;
        for row in 0..batch.num_rows() {
            found.push(column.get(row).map_err(|_| source.out_of_bounds(fragments::MESSAGE_BODY, row))?);
        }
        first_row += batch.num_rows();
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{ArrayRef, BinaryArray, FixedSizeBinaryArray, StringArray};
    use std::sync::Arc;

    fn handles(values: &[&str]) -> ArrayRef {
        Arc::new(StringArray::from(values.to_vec()))
    }

    const GUID: &str = "00000000-0000-0000-0000-000000000007";

    #[test]
    fn reads_messages_from_rows() {
        let types: ArrayRef = Arc::new(StringArray::from(vec!["order", "return"]));
        let bodies: ArrayRef = Arc::new(BinaryArray::from(vec![&b"a"[..], b""]));
        let named =
            [("conversation_handle", handles(&[GUID, GUID])), ("message_body", bodies), ("message_type_name", types)];
        let batch = RecordBatch::try_from_iter(named).unwrap();
        let found = read_outgoing(&batch, "DEFAULT").unwrap();
        let of = |message: &Outgoing<'_>| {
            (message.conversation_handle.0[15], message.message_type_name.to_owned(), message.message_body.to_vec())
        };
        assert_eq!(
            found.iter().map(of).collect::<Vec<_>>(),
            [(7, "order".into(), b"a".to_vec()), (7, "return".into(), vec![])]
        );
    }

    #[test]
    fn bodies_that_exceed_a_column_are_reported_with_their_size() {
        let size = BYTES_MAX + 1;
        let error = body_array(vec![0; size], &[Some(1), Some(size)]).unwrap_err().to_string();
        let expected = "message_body: '2147483648 bytes in 2 messages' is out of range; \
                        expected at most 2147483647 bytes together; receive fewer messages with `top`";
        assert_eq!(error, expected);
    }

    #[test]
    fn returns_none_for_invalid_or_unusual_rows() {
        let bodies: ArrayRef = Arc::new(BinaryArray::from(vec![&b"a"[..]]));
        let none: ArrayRef = Arc::new(BinaryArray::from(vec![None::<&[u8]>]));
        let short: ArrayRef = Arc::new(FixedSizeBinaryArray::try_from_iter([[1u8; 8]].iter()).unwrap());
        for (handle, body) in [
            (handles(&["7"]), &bodies),
            (short, &bodies),
            (handles(&[GUID]), &none),
            (handles(&[GUID]), &handles(&["a"])),
        ] {
            let batch =
                RecordBatch::try_from_iter([("conversation_handle", handle), ("message_body", body.clone())]).unwrap();
            assert!(read_outgoing(&batch, "DEFAULT").is_none(), "{batch:?}");
        }
        let without_handle =
            RecordBatch::try_from_iter([("handle", handles(&[GUID])), ("message_body", bodies)]).unwrap();
        assert!(read_outgoing(&without_handle, "DEFAULT").is_none());
    }
}
