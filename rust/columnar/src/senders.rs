//! Who sends rows of the envelope, and what they are given for their first hop.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Int8Type, TimestampMicrosecondType};
use arrow_array::{Int8Array, Int32Array, RecordBatch};
use arrow_schema::Schema;

use crate::catalog::internal;
use crate::error::Result;
use crate::headers::column;
use crate::runs::{PLAIN, sixteen};
use crate::schema::{fragments, wire, wire_schema};
use crate::wire::HOPS;

const SECOND: i64 = 1_000_000;

/// Rows of one sender, one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderRun {
    /// The conversation.
    pub conversation_id: [u8; 16],
    /// Whether its initiator sends them.
    pub is_initiator: bool,
    /// The broker that they are for, where it is known.
    pub to_broker: Option<[u8; 16]>,
    /// How many rows.
    pub rows: usize,
}

/// The senders of rows, as they follow each other, and whether no row is secured.
///
/// # Errors
/// A column is not there, or of another type.
pub fn sender_runs(batches: &[RecordBatch]) -> Result<(Vec<SenderRun>, bool)> {
    let (mut runs, mut are_plain) = (Vec::<SenderRun>::new(), true);
    for batch in batches {
        let fixed = |name| column(batch, name, "binary(16)", |array| array.as_fixed_size_binary_opt());
        let (conversations, brokers) = (fixed(fragments::CONVERSATION_ID)?, fixed(wire::TO_BROKER_INSTANCE)?);
        let sides = column(batch, fragments::IS_INITIATOR, "bool", |array| array.as_boolean_opt())?;
        let security = column(batch, wire::SECURITY, "int8", |array| array.as_primitive_opt::<Int8Type>())?;
        are_plain &= security.values().iter().all(|&level| level == PLAIN);
        for row in 0..batch.num_rows() {
            let conversation_id = sixteen(conversations, row).unwrap_or_default();
            let run = SenderRun {
                conversation_id,
                is_initiator: sides.value(row),
                to_broker: sixteen(brokers, row),
                rows: 1,
            };
            match runs.last_mut() {
                Some(last) if (SenderRun { rows: 1, ..*last }) == run => last.rows += 1,
                _ => runs.push(run),
            }
        }
    }
    Ok((runs, are_plain))
}

/// How many hops rows have left, how many whole seconds they live from `now` on, and how many of these have passed: none.
///
/// # Errors
/// A column is not there, or of another type.
pub fn first_hop(batches: &[RecordBatch], now: i64) -> Result<RecordBatch> {
    let mut left = Vec::new();
    for batch in batches {
        let ends = column(batch, wire::LIFETIME, "timestamp[us]", |array| {
            array.as_primitive_opt::<TimestampMicrosecondType>()
        })?;
        left.extend(ends.iter().map(|end| end.map_or(i32::MAX, |end| seconds(end.saturating_sub(now)))));
    }
    let rows = left.len();
    let fields = [wire::HOPS_REMAINING, wire::TIME_TO_LIVE, wire::TIME_CONSUMED];
    let schema = wire_schema();
    let fields: std::result::Result<Vec<_>, _> =
        fields.iter().map(|name| schema.field_with_name(name).cloned()).collect();
    let schema = Schema::new(fields.map_err(|error| internal(&error))?);
    let made = RecordBatch::try_new(
        Arc::new(schema),
        vec![
            Arc::new(Int8Array::from(vec![HOPS; rows])),
            Arc::new(Int32Array::from(left)),
            Arc::new(Int32Array::from(vec![0; rows])),
        ],
    );
    made.map_err(|error| internal(&error))
}

fn seconds(microseconds: i64) -> i32 {
    i32::try_from((microseconds / SECOND).max(0)).unwrap_or(i32::MAX)
}
