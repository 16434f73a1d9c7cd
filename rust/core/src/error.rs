//! What can be wrong with the rows of a catalog.

use std::fmt;

/// The kind of a wrong value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidKind {
    /// Neither an address nor LOCAL nor TRANSPORT.
    Address,
    /// A value that must occur once occurs again.
    Duplicate,
    /// Not a GUID.
    Guid,
    /// More than the index has room for.
    Limit,
    /// A null where a value is needed.
    Null,
    /// A database that the catalog does not have.
    UnknownDatabase,
}

/// A wrong value, where it stands, and what was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// What is wrong with it.
    pub kind: InvalidKind,
    /// The column, qualified by its table where there are several.
    pub column: String,
    /// The row, counted from 0, where there is one.
    pub row: Option<usize>,
    /// The value, as text.
    pub value: Option<String>,
    /// What was expected instead.
    pub expected: String,
}

const SHOWN_CHARACTERS: usize = 80;

impl Invalid {
    /// A wrong value; `value` is shortened for the message.
    #[must_use]
    pub fn new(
        kind: InvalidKind,
        column: &str,
        row: Option<usize>,
        value: Option<&[u8]>,
        expected: impl Into<String>,
    ) -> Self {
        let value = value.map(|bytes| {
            // One line, whatever the value holds.
            let text: String = String::from_utf8_lossy(bytes).chars().flat_map(shown).collect();
            match text.char_indices().nth(SHOWN_CHARACTERS) {
                Some((end, _)) => format!("{}…", &text[..end]),
                None => text,
            }
        });
        Self { kind, column: column.to_owned(), row, value, expected: expected.into() }
    }
}

/// A character as it is, or its escape if it cannot be seen.
fn shown(character: char) -> impl Iterator<Item = char> {
    let escape = character.escape_debug();
    let is_hidden = escape.len() > 1 && !matches!(character, '\'' | '"' | '\\');
    let plain = (!is_hidden).then_some(character);
    plain.into_iter().chain(escape.filter(move |_| is_hidden))
}

impl fmt::Display for Invalid {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.column)?;
        if let Some(row) = self.row {
            write!(out, ", row {row}")?;
        }
        match &self.value {
            Some(value) => write!(out, ": '{value}'")?,
            None => write!(out, ": null")?,
        }
        let what = match self.kind {
            InvalidKind::Address => "is no address",
            InvalidKind::Duplicate => "occurs twice",
            InvalidKind::Guid => "is no GUID",
            InvalidKind::Limit => "does not fit",
            InvalidKind::Null => "is not allowed here",
            InvalidKind::UnknownDatabase => "is not a database of the catalog",
        };
        write!(out, " {what}; expected {}", self.expected)
    }
}

impl std::error::Error for Invalid {}
