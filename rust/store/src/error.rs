//! Errors of the database file.

use std::fmt;

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a statement failed.
#[derive(Debug)]
pub enum Error {
    /// The tables or values do not have the expected form, because another program has changed them.
    Schema(String),
    /// A SQLite error: extended code and message.
    Sqlite(i32, String),
    /// SQLite has rolled the transaction back.
    RolledBack,
}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        match error {
            rusqlite::Error::SqliteFailure(failure, message) => {
                Self::Sqlite(failure.extended_code, message.unwrap_or_else(|| failure.to_string()))
            }
            other => Self::Schema(other.to_string()),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Schema(message) | Self::Sqlite(_, message) => out.write_str(message),
            Self::RolledBack => out.write_str("the transaction was rolled back"),
        }
    }
}

impl std::error::Error for Error {}
