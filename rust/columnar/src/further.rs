//! Further columns: those that the schema does not know, of any type, carried along with their rows.

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use arrow_row::{RowConverter, SortField};
use arrow_schema::{ArrowError, DataType, FieldRef};
use arrow_select::take::take;

use crate::error::{Error, Result};
use crate::read::Source;
use crate::schema::fragments;
use crate::sound;
use crate::view::BytesView;

/// What a value is charged beside its bytes, in a column of any type.
const VALUE_BYTES: usize = 16;
/// How many rows are written to be counted at a time.
const BLOCK: usize = 8_192;

pub(crate) type Arrow<T> = std::result::Result<T, ArrowError>;

/// The further columns of a batch.
#[derive(Clone, Debug)]
pub(crate) struct FurtherColumns {
    pub(crate) fields: Vec<FieldRef>,
    pub(crate) arrays: Vec<ArrayRef>,
}

/// How large the values of a column are.
#[derive(Debug)]
pub(crate) enum Sizes<'a> {
    /// As many bytes as they have.
    Bytes(BytesView<'a>),
    /// No more than what every value is charged.
    Plain,
    /// Those of the rows that they are kept as; counted when the first of them is asked for.
    Nested(&'a ArrayRef, RefCell<Vec<usize>>),
}

impl FurtherColumns {
    /// Those of a batch; `key` is the column that holds session keys.
    pub(crate) fn read(source: Source<'_>, key: Option<&str>) -> Result<Self> {
        let mut seen = HashSet::new();
        let has_id = source.batch.column_by_name(fragments::CONVERSATION_ID).is_some();
        let mut own = Self { fields: Vec::new(), arrays: Vec::new() };
        for (field, array) in source.batch.schema_ref().fields().iter().zip(source.batch.columns()) {
            let name = field.name().as_str();
            if !seen.insert(name) {
                return Err(source.twice(name));
            }
            let is_id = name == fragments::CONVERSATION_HANDLE && !has_id;
            if is_id || fragments::ALL.contains(&name) || key == Some(name) {
                continue;
            }
            // What is only passed by need not be looked at; what is copied by foreign offsets must be sound.
            let sound = sound::cut(array).and_then(|array| sound::check(&array).map(|()| array));
            own.arrays.push(sound.map_err(|error| Error::Malformed {
                column: source.qualified(name),
                row: None,
                what: error.to_string(),
            })?);
            own.fields.push(Arc::clone(field));
        }
        Ok(own)
    }

    pub(crate) fn sizes(&self) -> Vec<Sizes<'_>> {
        self.arrays.iter().map(Sizes::new).collect()
    }
}

impl<'a> Sizes<'a> {
    fn new(array: &'a ArrayRef) -> Self {
        match BytesView::new(array) {
            Some(view) => Self::Bytes(view),
            None if is_plain(array.data_type()) => Self::Plain,
            None => Self::Nested(array, RefCell::default()),
        }
    }

    /// What the value of a row is charged.
    pub(crate) fn get(&self, row: usize) -> usize {
        VALUE_BYTES
            + match self {
                Self::Bytes(view) => view.len_at(row),
                Self::Plain => 0,
                Self::Nested(array, sizes) => {
                    let mut sizes = sizes.borrow_mut();
                    if sizes.is_empty() {
                        // A type that cannot be kept is never asked for by who keeps.
                        *sizes = row_sizes(array).unwrap_or_else(|_| vec![0; array.len()]);
                    }
                    sizes[row]
                }
            }
    }
}

fn is_plain(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, values) => is_plain(values),
        DataType::Null | DataType::Boolean => true,
        other => other.is_primitive(),
    }
}

fn row_sizes(array: &ArrayRef) -> Arrow<Vec<usize>> {
    let converter = row_converter(array.data_type())?;
    let mut sizes = Vec::with_capacity(array.len());
    for start in (0..array.len()).step_by(BLOCK) {
        let part = without_dictionary(array.slice(start, BLOCK.min(array.len() - start)))?;
        sizes.extend(converter.convert_columns(&[part])?.iter().map(|row| row.as_ref().len()));
    }
    Ok(sizes)
}

/// A converter of the values of a column; those of a dictionary, if it is one.
pub(crate) fn row_converter(data_type: &DataType) -> Arrow<RowConverter> {
    match data_type {
        DataType::Dictionary(_, values) => row_converter(values),
        other => RowConverter::new(vec![SortField::new(other.clone())]),
    }
}

/// The values of a dictionary at the places of its keys; of any other array, the array itself.
pub(crate) fn without_dictionary(array: ArrayRef) -> Arrow<ArrayRef> {
    match array.as_any_dictionary_opt() {
        Some(dictionary) => without_dictionary(take(dictionary.values(), dictionary.keys(), None)?),
        None => Ok(array),
    }
}
