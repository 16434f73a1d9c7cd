//! What SQLite may say instead of an answer.

use std::fmt;

/// A result that can say why the file gave no answer.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a file gave no answer.
#[derive(Debug)]
pub enum Error {
    /// The tables are not those of the file's version: somebody has altered them.
    Altered(String),
    /// SQLite failed: its extended code, and what it said.
    Sqlite(i32, String),
    /// The transaction is not there any more: SQLite has undone it.
    Undone,
}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        match error {
            rusqlite::Error::SqliteFailure(failure, said) => {
                Self::Sqlite(failure.extended_code, said.unwrap_or_else(|| failure.to_string()))
            }
            other => Self::Altered(other.to_string()),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Altered(said) | Self::Sqlite(_, said) => out.write_str(said),
            Self::Undone => out.write_str("the transaction was undone"),
        }
    }
}

impl std::error::Error for Error {}
