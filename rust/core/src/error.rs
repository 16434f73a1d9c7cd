//! Errors for invalid values in rows.

use std::fmt;

/// The kind of an invalid value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidKind {
    /// Not an address, LOCAL or TRANSPORT.
    Address,
    /// A value that must be unique occurs twice.
    Duplicate,
    /// Not a GUID.
    Guid,
    /// A null where a value is required.
    Null,
    /// Outside the allowed range.
    OutOfRange,
    /// Not a database of the catalog.
    UnknownDatabase,
}

/// An invalid value and its location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// What is wrong.
    pub kind: InvalidKind,
    /// The column, qualified by its table if there are several tables.
    pub column: String,
    /// The row, counted from 0.
    pub row: Option<usize>,
    /// The value as text.
    pub value: Option<String>,
    /// What was expected.
    pub expected: String,
}

const CHARACTERS_MAX: usize = 80;

impl Invalid {
    /// Creates an error; `value` is shortened for the message.
    #[must_use]
    pub fn new(
        kind: InvalidKind,
        column: &str,
        row: Option<usize>,
        value: Option<&[u8]>,
        expected: impl Into<String>,
    ) -> Self {
        let value = value.map(|bytes| {
            // Control characters are escaped so that the message stays on one line.
            let text: String = String::from_utf8_lossy(bytes).chars().flat_map(escaped).collect();
            match text.char_indices().nth(CHARACTERS_MAX) {
                Some((end, _)) => format!("{}…", &text[..end]),
                None => text,
            }
        });
        Self { kind, column: column.to_owned(), row, value, expected: expected.into() }
    }
}

/// Yields a printable character as it is, and the escape sequence of any other.
fn escaped(character: char) -> impl Iterator<Item = char> {
    let escape = character.escape_debug();
    let is_hidden = escape.len() > 1 && !matches!(character, '\'' | '"' | '\\');
    let printable = (!is_hidden).then_some(character);
    printable.into_iter().chain(escape.filter(move |_| is_hidden))
}

impl fmt::Display for Invalid {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.column)?;
        if let Some(row) = self.row {
            write!(out, ", row {row}")?;
        }
        match &self.value {
            Some(value) => write!(out, ": '{value}'")?,
            None if self.kind == InvalidKind::Null => write!(out, ": null")?,
            None => write!(out, ": the value")?,
        }
        let what = match self.kind {
            InvalidKind::Address => "is not a valid address",
            InvalidKind::Duplicate => "occurs twice",
            InvalidKind::Guid => "is not a valid GUID",
            InvalidKind::Null => "is not allowed here",
            InvalidKind::OutOfRange => "is out of range",
            InvalidKind::UnknownDatabase => "is not a database of the catalog",
        };
        write!(out, " {what}; expected {}", self.expected)
    }
}

impl std::error::Error for Invalid {}
