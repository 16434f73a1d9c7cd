//! Further columns: those that the schema does not know, of any type, carried along with their rows.

use std::collections::HashSet;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef};
use arrow_schema::{DataType, FieldRef};

use crate::error::{Error, Result};
use crate::read::Source;
use crate::schema::fragments;
use crate::view::BytesView;

/// What a value is charged beside its bytes, in a column of any type.
const VALUE_BYTES: usize = 16;

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
    /// All the same, for nested ones on average.
    Each(usize),
}

impl FurtherColumns {
    /// Those of a batch; `key` is the column that holds session keys.
    pub(crate) fn read(source: Source<'_>, key: Option<&str>) -> Result<Self> {
        let mut seen = HashSet::new();
        let has_id = source.column(fragments::CONVERSATION_ID).is_some();
        let mut own = Self { fields: Vec::new(), arrays: Vec::new() };
        for (field, array) in source.batch.schema_ref().fields().iter().zip(source.batch.columns()) {
            let name = field.name().as_str();
            if !seen.insert(name) {
                let (expected, actual) = ("a column of each name".to_owned(), Some("two of this one".to_owned()));
                return Err(Error::Schema { column: source.qualified(name), expected, actual });
            }
            let is_id = name == fragments::CONVERSATION_HANDLE && !has_id;
            if is_id || fragments::ALL.contains(&name) || key == Some(name) {
                continue;
            }
            // What is only passed by need not be looked at; what is copied by foreign offsets must be sound.
            array.to_data().validate_full().map_err(|error| Error::Malformed {
                column: source.qualified(name),
                row: None,
                what: error.to_string(),
            })?;
            own.fields.push(Arc::clone(field));
            own.arrays.push(Arc::clone(array));
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
            None if is_plain(array.data_type()) => Self::Each(0),
            None => {
                let bytes = array.to_data().get_slice_memory_size().unwrap_or_default();
                Self::Each(bytes.div_ceil(array.len().max(1)))
            }
        }
    }

    /// What the value of a row is charged.
    pub(crate) fn get(&self, row: usize) -> usize {
        VALUE_BYTES
            + match self {
                Self::Bytes(view) if view.is_null(row) => 0,
                Self::Bytes(view) => view.get(row).map_or(0, <[u8]>::len),
                Self::Each(bytes) => *bytes,
            }
    }
}

fn is_plain(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, values) => is_plain(values),
        other => !other.is_nested(),
    }
}
