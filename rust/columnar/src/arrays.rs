//! Builds result columns and divides results into batches.

use std::ops::Range;
use std::sync::Arc;

use arrow_array::builder::StringBuilder;
use arrow_array::{ArrayRef, FixedSizeBinaryArray};
use arrow_buffer::{Buffer, NullBuffer};
use ssbroker_core::{Guid, Invalid, InvalidKind};

use crate::error::{Error, Result, internal};

/// The maximum size of a result batch in bytes, unless a single row is larger.
pub(crate) const BATCH_BYTES: usize = 64 << 20;
/// The maximum number of rows in a result batch.
pub(crate) const BATCH_ROWS: usize = 1 << 20;

/// The maximum size of a text column in bytes.
const TEXT_BYTES_MAX: usize = i32::MAX as usize;

/// Builds a column of GUIDs or digests.
pub(crate) fn binary_16(values: Vec<[u8; 16]>, nulls: Option<NullBuffer>) -> Result<ArrayRef> {
    let array = FixedSizeBinaryArray::try_new(16, Buffer::from_vec(values.into_flattened()), nulls);
    Ok(Arc::new(array.map_err(|error| internal(&error))?))
}

/// Builds a column of GUIDs, which may be null.
pub(crate) fn guids(ids: impl Iterator<Item = Option<Guid>>) -> Result<ArrayRef> {
    let (values, valid): (Vec<_>, Vec<bool>) = ids.map(|id| (id.unwrap_or_default().0, id.is_some())).unzip();
    binary_16(values, Some(NullBuffer::from(valid)))
}

/// Builds a column of texts; `column` is its name in errors.
pub(crate) fn texts<'a>(column: &str, values: impl Iterator<Item = Option<&'a [u8]>>) -> Result<ArrayRef> {
    texts_within(TEXT_BYTES_MAX, column, values)
}

fn texts_within<'a>(
    bytes_max: usize,
    column: &str,
    values: impl Iterator<Item = Option<&'a [u8]>>,
) -> Result<ArrayRef> {
    let mut texts = StringBuilder::new();
    for (row, value) in values.enumerate() {
        let text = value.map(std::str::from_utf8).transpose().map_err(|_| Error::Malformed {
            column: column.to_owned(),
            row: Some(row),
            what: "the text is not UTF-8".to_owned(),
        })?;
        if texts.values_slice().len() + text.map_or(0, str::len) > bytes_max {
            let expected = format!("at most {bytes_max} bytes of text in a column");
            return Err(Invalid::new(InvalidKind::OutOfRange, column, Some(row), None, expected).into());
        }
        texts.append_option(text);
    }
    Ok(Arc::new(texts.finish()))
}

/// Divides rows of these sizes into ranges of at most `bytes` bytes and `rows` rows; a larger row gets its own range.
/// If there are no rows, returns one empty range.
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
    fn texts_that_exceed_a_column_are_an_error() {
        let values = || [Some(&b"ab"[..]), None, Some(b"c")].into_iter();
        assert_eq!(texts_within(3, "routes.name", values()).unwrap().len(), 3);
        assert_eq!(
            texts_within(2, "routes.name", values()).unwrap_err().to_string(),
            "routes.name, row 2: the value is out of range; expected at most 2 bytes of text in a column"
        );
    }

    #[test]
    fn ranges_are_as_large_as_they_may_be() {
        assert_eq!(split_rows([].into_iter(), 10, 10).len(), 1);
        assert_eq!(split_rows([4, 6, 1, 11, 0, 10].into_iter(), 10, 10), [0..2, 2..3, 3..4, 4..6]);
        assert_eq!(split_rows([0; 5].into_iter(), 10, 2), [0..2, 2..4, 4..5]);
        assert_eq!(split_rows([usize::MAX, 1].into_iter(), 10, 9), [0..1, 1..2]);
    }
}
