//! The bodies of messages in record batches.

use arrow_array::RecordBatch;

use crate::error::Result;
use crate::read::Source;
use crate::schema::fragments;

/// The bodies of all rows, where they lie.
///
/// # Errors
/// The column is not there, or holds no byte strings, or null; or the batch contradicts itself.
pub fn bodies(batches: &[RecordBatch]) -> Result<Vec<&[u8]>> {
    let mut found = Vec::new();
    let mut first_row = 0;
    for batch in batches {
        let source = Source { batch, table: "", first_row };
        let column = source.bytes(fragments::MESSAGE_BODY)?;
        for row in 0..batch.num_rows() {
            found.push(column.get(row).map_err(|_| source.out_of_bounds(fragments::MESSAGE_BODY, row))?);
        }
        first_row += batch.num_rows();
    }
    Ok(found)
}
