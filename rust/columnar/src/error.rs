//! What can be wrong with a record batch.

use std::fmt;

use arrow_schema::ArrowError;
use ssbroker_core::Invalid;

/// A result that can say what is wrong with the input.
pub type Result<T> = std::result::Result<T, Error>;

/// What is wrong with a record batch.
#[derive(Debug)]
pub enum Error {
    /// A value is not what was expected.
    Invalid(Invalid),
    /// The buffers of a column contradict each other.
    Malformed {
        /// The column.
        column: String,
        /// The first row that shows it.
        row: Option<usize>,
        /// What contradicts what.
        what: String,
    },
    /// Bytes that are no checkpoint of a reassembly.
    State(String),
    /// A column is missing or has another type.
    Schema {
        /// The column.
        column: String,
        /// The type that was expected.
        expected: String,
        /// The type that was found.
        actual: Option<String>,
    },
    /// Bytes that are no batch of the wire.
    Wire(String),
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
            Self::State(what) => write!(out, "state: this is no checkpoint of a reassembler: {what}"),
            Self::Schema { column, expected, actual: Some(actual) } => {
                write!(out, "{column}: expected {expected}, found {actual}")
            }
            Self::Schema { column, expected, actual: None } => {
                write!(out, "{column}: the column is missing; expected {expected}")
            }
            Self::Wire(what) => write!(out, "this is no batch of fragments: {what}"),
        }
    }
}

impl std::error::Error for Error {}

/// A batch that our own columns do not fit: an error rather than a panic, though none is known to cause it.
pub(crate) fn internal(error: &ArrowError) -> Error {
    Error::Malformed { column: "result".to_owned(), row: None, what: error.to_string() }
}
