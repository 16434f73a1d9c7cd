//! Builds result columns and divides results into batches.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::{ArrayRef, FixedSizeBinaryArray};
use arrow_buffer::{Buffer, NullBuffer};

use crate::error::{Result, internal};

/// The most bytes of a result batch, unless a single row is larger.
pub(crate) const BATCH_BYTES: usize = 64 << 20;
/// The most rows of a result batch.
pub(crate) const BATCH_ROWS: usize = 1 << 20;

/// Builds a column of GUIDs or digests.
pub(crate) fn binary_16(values: Vec<[u8; 16]>, nulls: Option<NullBuffer>) -> Result<ArrayRef> {
    let array = FixedSizeBinaryArray::try_new(16, Buffer::from_vec(values.into_flattened()), nulls);
    Ok(Arc::new(array.map_err(|error| internal(&error))?))
}

/// Divides rows of these sizes into ranges of at most `bytes` bytes and `rows` rows, or of one larger row. Without
/// rows, returns one empty range.
pub(crate) fn split_rows(sizes: impl Iterator<Item = usize>, bytes: usize, rows: usize) -> Vec<Range<usize>> {
    let (mut ranges, mut start, mut held, mut end) = (Vec::new(), 0, 0usize, 0);
    for size in sizes {
        if end > start && (held.saturating_add(size) > bytes || end - start >= rows) {
            ranges.push(start..end);
            (start, held) = (end, 0);
        }
        held = held.saturating_add(size);
        end += 1;
    }
    ranges.push(start..end);
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_as_large_as_they_may_be() {
        assert_eq!(split_rows([].into_iter(), 10, 10).len(), 1);
        assert_eq!(split_rows([4, 6, 1, 11, 0, 10].into_iter(), 10, 10), [0..2, 2..3, 3..4, 4..6]);
        assert_eq!(split_rows([0; 5].into_iter(), 10, 2), [0..2, 2..4, 4..5]);
        assert_eq!(split_rows([usize::MAX, 1].into_iter(), 10, 9), [0..1, 1..2]);
    }
}
