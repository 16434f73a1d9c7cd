//! Errors of record batches.

use std::fmt;

use arrow_schema::{ArrowError, DataType};
use ssbroker_core::Invalid;

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What is wrong with a record batch.
#[derive(Debug)]
pub enum Error {
    /// A value is invalid.
    Invalid(Invalid),
    /// The buffers of a column are inconsistent.
    Malformed {
        /// The column.
        column: String,
        /// The first affected row.
        row: Option<usize>,
        /// What is wrong.
        what: String,
    },
    /// Not a valid checkpoint of a reassembly.
    State(String),
    /// A column is missing or has the wrong type.
    Schema {
        /// The column.
        column: String,
        /// The expected type.
        expected: String,
        /// The actual type.
        actual: Option<String>,
    },
    /// Not a valid batch of the wire format.
    Wire(String),
    /// A bug of this crate.
    Internal(String),
}

impl From<Invalid> for Error {
    fn from(invalid: Invalid) -> Self {
        Self::Invalid(invalid)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(invalid) => invalid.fmt(out),
            Self::Malformed { column, row: Some(row), what } => {
                write!(out, "{column}, row {row}: malformed Arrow data: {what}")
            }
            Self::Malformed { column, row: None, what } => write!(out, "{column}: malformed Arrow data: {what}"),
            Self::State(what) => write!(
                out,
                "state: not a valid reassembler checkpoint ({what}); restore it from a copy, or start without it"
            ),
            Self::Schema { column, expected, actual: Some(actual) } => {
                write!(out, "{column}: expected {expected}, got {actual}")
            }
            Self::Schema { column, expected, actual: None } => {
                write!(out, "{column}: the column is missing; expected {expected}")
            }
            Self::Wire(what) => write!(out, "not a valid batch of fragments: {what}"),
            Self::Internal(what) => out.write_str(what),
        }
    }
}

impl std::error::Error for Error {}

/// Reports that our own columns do not form a batch. This should never happen, but an error is better than a panic.
pub(crate) fn internal(error: &ArrowError) -> Error {
    Error::Internal(format!("the columns of a result do not fit together: {error}"))
}

/// Names a common type as pyarrow does, because the caller uses pyarrow.
#[must_use]
pub fn type_name(data_type: &DataType) -> String {
    match data_type {
        DataType::Boolean => "bool".to_owned(),
        DataType::Float16 => "halffloat".to_owned(),
        DataType::Float32 => "float".to_owned(),
        DataType::Float64 => "double".to_owned(),
        DataType::Utf8 => "string".to_owned(),
        DataType::LargeUtf8 => "large_string".to_owned(),
        DataType::Utf8View => "string_view".to_owned(),
        DataType::LargeBinary => "large_binary".to_owned(),
        DataType::BinaryView => "binary_view".to_owned(),
        DataType::FixedSizeBinary(bytes) => format!("fixed_size_binary[{bytes}]"),
        DataType::List(items) => format!("list<{}>", type_name(items.data_type())),
        DataType::LargeList(items) => format!("large_list<{}>", type_name(items.data_type())),
        DataType::Dictionary(keys, values) => {
            format!("dictionary<values={}, indices={}>", type_name(values), type_name(keys))
        }
        DataType::Timestamp(_, Some(_)) => data_type.to_string(), // the zone keeps its case
        simple if simple.is_primitive() || matches!(simple, DataType::Null | DataType::Binary) => {
            simple.to_string().to_lowercase()
        }
        other => other.to_string(),
    }
}
