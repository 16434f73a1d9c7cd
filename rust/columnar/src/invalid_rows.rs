//! The rows with invalid values in the batches of one call.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use ssbroker_core::{Invalid, InvalidKind};

use crate::arrays::{BATCH_ROWS, texts};
use crate::error::{Result, internal};
use crate::schema::rejected_rows_schema;

/// The first invalid value of each row, in the order in which the columns are read.
#[derive(Debug, Default)]
pub(crate) struct InvalidRows(RefCell<BTreeMap<usize, InvalidValue>>);

/// An invalid value. Unlike `Invalid`, does not hold what was expected, because there may be millions of them.
#[derive(Debug)]
struct InvalidValue {
    column: String,
    value: Option<String>,
    reason: &'static str,
}

impl InvalidRows {
    /// Adds an invalid value, unless its row already has one.
    pub(crate) fn add(&self, row: usize, invalid: Invalid) {
        let Invalid { kind, column, value, .. } = invalid;
        self.0.borrow_mut().entry(row).or_insert(InvalidValue { column, value, reason: reason(kind) });
    }

    /// Returns the row numbers in ascending order.
    pub(crate) fn rows(&self) -> Vec<usize> {
        self.0.borrow().keys().copied().collect()
    }

    /// Returns the rows in ascending order, in one batch.
    pub(crate) fn to_batch(&self) -> Result<RecordBatch> {
        batch_of(&self.0.borrow().iter().collect::<Vec<_>>())
    }

    /// Returns the rows in ascending order, in batches; none if there are no rows.
    pub(crate) fn to_batches(&self) -> Result<Vec<RecordBatch>> {
        self.0.borrow().iter().collect::<Vec<_>>().chunks(BATCH_ROWS).map(batch_of).collect()
    }
}

fn batch_of(rows: &[(&usize, &InvalidValue)]) -> Result<RecordBatch> {
    let column = |name, text: fn(&InvalidValue) -> Option<&str>| {
        texts(name, rows.iter().map(|(_, invalid)| text(invalid).map(str::as_bytes)))
    };
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|&(&row, _)| row as i64))),
        column("column", |invalid| Some(&invalid.column))?,
        column("value", |invalid| invalid.value.as_deref())?,
        column("reason", |invalid| Some(invalid.reason))?,
    ];
    RecordBatch::try_new(rejected_rows_schema(), columns).map_err(|error| internal(&error))
}

fn reason(kind: InvalidKind) -> &'static str {
    match kind {
        InvalidKind::Guid => "invalid_guid",
        InvalidKind::Null => "null",
        InvalidKind::OutOfRange => "out_of_range",
        InvalidKind::UnknownDatabase => "unknown_database",
        InvalidKind::Address | InvalidKind::Duplicate => "invalid",
    }
}
