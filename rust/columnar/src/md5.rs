//! MD5 digests of a column.

use arrow_array::{Array, ArrayRef};
use arrow_buffer::NullBuffer;
use ssbroker_md5::digest_many;

use crate::arrays::binary_16;
use crate::error::{Error, Result, type_name};
use crate::masks::{ones, set_bits};
use crate::view::BytesView;

/// The number of values to digest at a time, enough to keep the vector lanes busy with long values.
const BLOCK: usize = 8_192;
const VALUES: &str = "values";

/// Returns the digest of each value of a binary or text column; null stays null. `first_row` is the index of the
/// first value in the whole input, for errors.
///
/// # Errors
/// The column has the wrong type, or a value cannot be read.
pub fn md5(array: &ArrayRef, first_row: usize) -> Result<ArrayRef> {
    let view = BytesView::new(array).ok_or_else(|| Error::Schema {
        column: VALUES.to_owned(),
        expected: "binary or text".to_owned(),
        actual: Some(type_name(array.data_type())),
    })?;
    let mut digests = vec![[0; 16]; array.len()];
    let mut words = Vec::with_capacity(array.len().div_ceil(64));
    let mut values = vec![&[][..]; BLOCK.min(array.len())];
    for (number, digests) in digests.chunks_mut(BLOCK).enumerate() {
        let (start, values) = (number * BLOCK, &mut values[..digests.len()]);
        view.get_block(start, values).map_err(|row| Error::Malformed {
            column: VALUES.to_owned(),
            row: Some(first_row + row),
            what: "an offset, view or dictionary key is out of bounds".to_owned(),
        })?;
        let first_word = words.len();
        for (number, values) in values.chunks_mut(64).enumerate() {
            words.push(view.valid_bits(start + number * 64, values.len()));
            for row in set_bits(!words[first_word + number] & ones(values.len())) {
                values[row] = &[];
            }
        }
        digest_many(values, digests);
        for (digests, word) in digests.chunks_mut(64).zip(&words[first_word..]) {
            set_bits(!word & ones(digests.len())).for_each(|row| digests[row] = [0; 16]);
        }
    }
    let nulls = NullBuffer::new(arrow_buffer::BooleanBuffer::new(words.into(), 0, array.len()));
    binary_16(digests, Some(nulls).filter(|nulls| nulls.null_count() > 0))
}
