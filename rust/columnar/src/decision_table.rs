//! Writes the decision table of a router as a record batch.

use std::sync::Arc;

use arrow_array::{ArrayRef, BooleanArray, Int8Array, Int32Array, Int64Array, RecordBatch, TimestampMicrosecondArray};
use ssbroker_core::route::{Decided, TableRow};
use ssbroker_core::{NEVER, RouteIndex, stable_hash};

use crate::arrays::{guids, texts};
use crate::columns::Source;
use crate::error::{Result, internal};
use crate::schema::{conversations as columns, decision_table_schema};

/// Returns the decision table for the time `now`, in microseconds since 1970; `None` for a router with `round_robin`.
///
/// # Errors
/// The texts of a column exceed 2 GiB.
pub fn decision_table(index: &RouteIndex, now: i64) -> Result<Option<RecordBatch>> {
    let Some(rows) = index.decision_table(now) else { return Ok(None) };
    let decided = || rows.iter().map(|row| row.decided.as_ref());
    let database = |number: Option<u16>| number.map(|number| &*index.catalog().databases()[usize::from(number)].name);
    let label = |name, of: fn(&Decided) -> &'static str| {
        texts(name, decided().map(|decided| decided.map(|decided| of(decided).as_bytes())))
    };
    let address = |name, of: fn(&Decided) -> Option<u32>| {
        texts(name, decided().map(|decided| decided.and_then(of).map(|address| index.address(address))))
    };
    let flags = |of: fn(&TableRow<'_>) -> bool| -> ArrayRef {
        Arc::new(rows.iter().map(|row| Some(of(row))).collect::<BooleanArray>())
    };
    let hashes =
        |end: usize| -> ArrayRef { Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.hashes[end]))) };
    let expires = rows.iter().map(|row| Some(row.expires).filter(|&expires| expires != NEVER));
    let columns: Vec<ArrayRef> = vec![
        texts("database", rows.iter().map(|row| database(row.database)))?,
        flags(|row| row.is_reply),
        texts("to_service_name", rows.iter().map(|row| row.name))?,
        flags(|row| row.has_broker),
        guids(rows.iter().map(|row| row.broker))?,
        hashes(0),
        hashes(1),
        flags(|row| row.only_from_initiator),
        Arc::new(expires.collect::<TimestampMicrosecondArray>().with_timezone("UTC")),
        label("outcome", |decided| decided.outcome.label())?,
        Arc::new(decided().map(|decided| decided.and_then(|decided| decided.step)).collect::<Int8Array>()),
        Arc::new(decided().map(|decided| decided.and_then(|decided| decided.route_id)).collect::<Int32Array>()),
        address("next_hop_address", |decided| decided.next_hop)?,
        address("mirror_address", |decided| decided.mirror)?,
        texts("target_database", decided().map(|decided| database(decided.and_then(|decided| decided.database))))?,
        guids(decided().map(|decided| decided.and_then(|decided| decided.binding)))?,
        label("reason", |decided| decided.reason.label())?,
    ];
    RecordBatch::try_new(decision_table_schema(), columns).map(Some).map_err(|error| internal(&error))
}

/// Returns the hashes that select rows of the decision table: a column `hash` for the column `conversation_id`.
///
/// # Errors
/// The column is missing or has the wrong type, or a value is not a GUID.
pub fn tie_break_hashes(conversations: &RecordBatch, first_row: usize) -> Result<RecordBatch> {
    let source = Source { batch: conversations, table: "", first_row, invalid_rows: None };
    let ids = source.required_guids_or_null(columns::CONVERSATION_ID)?;
    let hashes = (0..conversations.num_rows()).map(|row| {
        if ids.view.is_null(row) { Ok(None) } else { ids.get(row).map(|id| Some(stable_hash(id).cast_signed())) }
    });
    let hashes: ArrayRef = Arc::new(hashes.collect::<Result<Int64Array>>()?);
    RecordBatch::try_from_iter([("hash", hashes)]).map_err(|error| internal(&error))
}
