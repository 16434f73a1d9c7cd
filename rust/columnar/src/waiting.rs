//! Messages that wait to be sent to another instance, as a record batch.

use std::sync::Arc;

use arrow_array::{ArrayRef, BooleanArray, Int64Array, RecordBatch, StringArray};
use ssbroker_core::message::{Outbox, Waiting};

use crate::arrays::sixteens;
use crate::catalog::internal;
use crate::error::Result;
use crate::received::bodies;
use crate::schema::waiting_schema;

/// The messages of an outbox.
///
/// # Errors
/// The bodies together are longer than a column can hold.
pub fn waiting(outbox: Outbox) -> Result<RecordBatch> {
    let rows = &outbox.messages;
    let flags = |flag: fn(&Waiting) -> bool| -> ArrayRef {
        Arc::new(rows.iter().map(|row| Some(flag(row))).collect::<BooleanArray>())
    };
    let columns: Vec<ArrayRef> = vec![
        sixteens(rows.iter().map(|row| row.conversation_id.0).collect(), None)?,
        flags(|row| row.is_initiator),
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.message_sequence_number))),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|row| &row.message_type_name))),
        sixteens(rows.iter().map(|row| row.message_id.0).collect(), None)?,
        flags(|row| row.is_end_of_dialog),
        flags(|row| row.is_conversation_error),
        Arc::new(bodies(outbox.bodies, &outbox.ends)?),
    ];
    RecordBatch::try_new(waiting_schema(), columns).map_err(|error| internal(&error))
}
