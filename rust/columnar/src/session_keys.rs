//! Session keys, given by conversation or in a column.

use std::collections::HashMap;

use ssbroker_core::SessionKey;
use ssbroker_core::{Guid, InvalidKind};

use crate::columns::Source;
use crate::error::Result;

const NO_KEY: u32 = u32::MAX;

/// Session keys by conversation.
#[derive(Debug, Default)]
pub struct SessionKeys(HashMap<Guid, SessionKey>);

/// The source of a batch's session keys.
#[derive(Clone, Copy, Debug)]
pub enum SessionKeySource<'a> {
    /// No session keys.
    None,
    /// A column of the batch; null means no key.
    Column(&'a str),
    /// A mapping by conversation; missing conversations have no key.
    Mapping(&'a SessionKeys),
}

/// The session keys of a batch's rows.
#[derive(Debug)]
pub(crate) enum RowKeys<'a> {
    None,
    Column {
        keys: Vec<SessionKey>,
        /// The index of each row's key.
        indices: Vec<u32>,
    },
    Mapping(&'a SessionKeys),
}

impl SessionKeys {
    /// Creates a mapping of keys by conversation.
    ///
    /// # Errors
    /// The first conversation with a key that is not 16, 24 or 32 bytes long, and the length of the key.
    pub fn new(keys: impl Iterator<Item = (Guid, Vec<u8>)>) -> std::result::Result<Self, (Guid, usize)> {
        let key = |(id, bytes): (_, Vec<u8>)| SessionKey::new(&bytes).map(|key| (id, key)).ok_or((id, bytes.len()));
        keys.map(key).collect::<std::result::Result<_, _>>().map(Self)
    }
}

impl<'a> SessionKeySource<'a> {
    /// Returns the column with the keys.
    pub(crate) fn column(&self) -> Option<&'a str> {
        match self {
            Self::Column(name) => Some(name),
            Self::None | Self::Mapping(_) => None,
        }
    }

    /// Reads and validates the keys of a batch.
    pub(crate) fn read(&self, source: Source<'a>) -> Result<RowKeys<'a>> {
        match self {
            Self::None => Ok(RowKeys::None),
            Self::Column(name) => read_column(source, name),
            Self::Mapping(keys) => Ok(RowKeys::Mapping(keys)),
        }
    }
}

impl RowKeys<'_> {
    /// Returns the key of a row of a conversation.
    #[inline]
    pub(crate) fn get(&self, row: usize, conversation: Guid) -> Option<&SessionKey> {
        match self {
            Self::None => None,
            Self::Column { keys, indices } => keys.get(indices[row] as usize),
            Self::Mapping(keys) => keys.0.get(&conversation),
        }
    }
}

fn read_column<'a>(source: Source<'a>, name: &str) -> Result<RowKeys<'a>> {
    let view = source.optional_bytes(name)?.ok_or_else(|| source.mistyped(name, "binary: session keys", None))?;
    let (mut keys, mut known) = (Vec::new(), HashMap::new());
    let mut indices = Vec::with_capacity(source.batch.num_rows());
    let mut last: (&[u8], u32) = (&[], NO_KEY);
    for row in 0..source.batch.num_rows() {
        if view.is_null(row) {
            indices.push(NO_KEY);
            continue;
        }
        let bytes = view.get(row).map_err(|_| source.out_of_bounds(name, row))?;
        if bytes != last.0 || bytes.is_empty() {
            let index = known.get(bytes).copied();
            match index.map_or_else(|| new_key(source, name, row, bytes, &mut keys), Ok) {
                Ok(index) => {
                    known.insert(bytes, index);
                    last = (bytes, index);
                }
                Err(error) => {
                    source.reject(error)?;
                    indices.push(NO_KEY);
                    continue;
                }
            }
        }
        indices.push(last.1);
    }
    Ok(RowKeys::Column { keys, indices })
}

fn new_key(source: Source<'_>, name: &str, row: usize, bytes: &[u8], keys: &mut Vec<SessionKey>) -> Result<u32> {
    let Some(key) = SessionKey::new(bytes) else {
        // Errors must not reveal the key.
        let shown = format!("{} bytes", bytes.len());
        let expected = "a key of 16, 24 or 32 bytes, or null";
        return Err(source.invalid(InvalidKind::OutOfRange, name, row, Some(shown.as_bytes()), expected));
    };
    keys.push(key);
    Ok(keys.len() as u32 - 1)
}
