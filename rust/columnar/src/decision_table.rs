//! Writes the decision table of a router as a record batch.

use std::sync::Arc;

use arrow_array::builder::{FixedSizeBinaryBuilder, StringBuilder};
use arrow_array::{ArrayRef, BooleanArray, Int8Array, Int32Array, Int64Array, RecordBatch, TimestampMicrosecondArray};
use ssbroker_core::route::{Decided, TableRow};
use ssbroker_core::{Guid, NEVER, RouteIndex, stable_hash};

use crate::columns::Source;
use crate::error::{Result, internal};
use crate::schema::{conversations as columns, decision_table_schema};

/// Returns the decision table for the time `now`, in microseconds since 1970; `None` for a router that takes turns.
///
/// # Errors
/// None is known; the batch is checked against its schema.
pub fn decision_table(index: &RouteIndex, now: i64) -> Result<Option<RecordBatch>> {
    let Some(rows) = index.decision_table(now) else { return Ok(None) };
    let decided = || rows.iter().map(|row| row.decided.as_ref());
    let database = |number: Option<u16>| number.map(|number| &*index.catalog().databases()[usize::from(number)].name);
    let texts = |texts: &mut dyn Iterator<Item = Option<&[u8]>>| -> ArrayRef {
        let mut builder = StringBuilder::new();
        texts.for_each(|text| builder.append_option(text.map(String::from_utf8_lossy)));
        Arc::new(builder.finish())
    };
    let label = |of: fn(&Decided) -> &'static str| -> ArrayRef {
        texts(&mut decided().map(|decided| decided.map(|decided| of(decided).as_bytes())))
    };
    let address = |of: fn(&Decided) -> Option<u32>| -> ArrayRef {
        texts(&mut decided().map(|decided| decided.and_then(of).map(|address| index.address(address))))
    };
    let flags = |of: fn(&TableRow<'_>) -> bool| -> ArrayRef {
        Arc::new(rows.iter().map(|row| Some(of(row))).collect::<BooleanArray>())
    };
    let hashes =
        |end: usize| -> ArrayRef { Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.hashes[end]))) };
    let expires = rows.iter().map(|row| Some(row.expires).filter(|&expires| expires != NEVER));
    let columns: Vec<ArrayRef> = vec![
        texts(&mut rows.iter().map(|row| database(row.database))),
        flags(|row| row.is_reply),
        texts(&mut rows.iter().map(|row| row.name)),
        flags(|row| row.has_broker),
        guids(rows.iter().map(|row| row.broker))?,
        hashes(0),
        hashes(1),
        flags(|row| row.only_from_initiator),
        Arc::new(expires.collect::<TimestampMicrosecondArray>().with_timezone("UTC")),
        label(|decided| decided.outcome.label()),
        Arc::new(decided().map(|decided| decided.and_then(|decided| decided.step)).collect::<Int8Array>()),
        Arc::new(decided().map(|decided| decided.and_then(|decided| decided.route_id)).collect::<Int32Array>()),
        address(|decided| decided.next_hop),
        address(|decided| decided.mirror),
        texts(&mut decided().map(|decided| database(decided.and_then(|decided| decided.database)))),
        guids(decided().map(|decided| decided.and_then(|decided| decided.binding)))?,
        label(|decided| decided.reason.label()),
    ];
    RecordBatch::try_new(decision_table_schema(), columns).map(Some).map_err(|error| internal(&error))
}

/// Returns the hashes that select rows of the decision table: a column `hash` for the column `conversation_id`.
///
/// # Errors
/// The column is missing or mistyped, or a value is not a GUID.
pub fn tie_break_hashes(conversations: &RecordBatch, first_row: usize) -> Result<RecordBatch> {
    let source = Source { batch: conversations, table: "", first_row };
    let ids = source.required_guids_or_null(columns::CONVERSATION_ID)?;
    let hashes = (0..conversations.num_rows()).map(|row| {
        if ids.view.is_null(row) { Ok(None) } else { ids.get(row).map(|id| Some(stable_hash(id).cast_signed())) }
    });
    let hashes: ArrayRef = Arc::new(hashes.collect::<Result<Int64Array>>()?);
    RecordBatch::try_from_iter([("hash", hashes)]).map_err(|error| internal(&error))
}

fn guids(ids: impl Iterator<Item = Option<Guid>>) -> Result<ArrayRef> {
    let mut builder = FixedSizeBinaryBuilder::new(16);
    for id in ids {
        match id {
            Some(id) => builder.append_value(id.0).map_err(|error| internal(&error))?,
            None => builder.append_null(),
        }
    }
    Ok(Arc::new(builder.finish()))
}
