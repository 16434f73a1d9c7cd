//! The session keys of conversations: by conversation, or in a column.

use std::collections::HashMap;

use ssbroker_core::SessionKey;
use ssbroker_core::{Guid, InvalidKind};

use crate::columns::Source;
use crate::error::Result;

const NO_KEY: u32 = u32::MAX;

/// Session keys by conversation.
#[derive(Debug, Default)]
pub struct SessionKeys(HashMap<Guid, SessionKey>);

/// Where the session keys of a batch come from.
#[derive(Clone, Copy, Debug)]
pub enum Keys<'a> {
    /// There are none.
    None,
    /// A column of the batch has them; null is none.
    Column(&'a str),
    /// By conversation; one that is not there has none.
    Mapping(&'a SessionKeys),
}

/// The session keys of a batch's rows.
#[derive(Debug)]
pub(crate) enum RowKeys<'a> {
    None,
    Column {
        keys: Vec<SessionKey>,
        /// For each row the place of its key.
        places: Vec<u32>,
    },
    Mapping(&'a SessionKeys),
}

impl SessionKeys {
    /// Keys by conversation.
    ///
    /// # Errors
    /// The first conversation whose key is not 16, 24 or 32 bytes long, and that key's length.
    pub fn new(keys: impl Iterator<Item = (Guid, Vec<u8>)>) -> std::result::Result<Self, (Guid, usize)> {
        let key = |(id, bytes): (_, Vec<u8>)| SessionKey::new(&bytes).map(|key| (id, key)).ok_or((id, bytes.len()));
        keys.map(key).collect::<std::result::Result<_, _>>().map(Self)
    }
}

impl<'a> Keys<'a> {
    /// The column that holds them.
    pub(crate) fn column(&self) -> Option<&'a str> {
        match self {
            Self::Column(name) => Some(name),
            Self::None | Self::Mapping(_) => None,
        }
    }

    /// Reads and checks those of a batch.
    pub(crate) fn read(&self, source: Source<'a>) -> Result<RowKeys<'a>> {
        match self {
            Self::None => Ok(RowKeys::None),
            Self::Column(name) => read_column(source, name),
            Self::Mapping(keys) => Ok(RowKeys::Mapping(keys)),
        }
    }
}

impl RowKeys<'_> {
    /// The key of a row that is of a conversation.
    #[inline]
    pub(crate) fn get(&self, row: usize, conversation: Guid) -> Option<&SessionKey> {
        match self {
            Self::None => None,
            Self::Column { keys, places } => keys.get(places[row] as usize),
            Self::Mapping(keys) => keys.0.get(&conversation),
        }
    }
}

fn read_column<'a>(source: Source<'a>, name: &str) -> Result<RowKeys<'a>> {
    let view = source.optional_bytes(name)?.ok_or_else(|| source.mistyped(name, "binary: session keys", None))?;
    let (mut keys, mut known) = (Vec::new(), HashMap::new());
    let mut places = Vec::with_capacity(source.batch.num_rows());
    let mut last: (&[u8], u32) = (&[], NO_KEY);
    for row in 0..source.batch.num_rows() {
        if view.is_null(row) {
            places.push(NO_KEY);
            continue;
        }
        let bytes = view.get(row).map_err(|_| source.out_of_bounds(name, row))?;
        if bytes != last.0 || bytes.is_empty() {
            let place = known.get(bytes).copied();
            let place = place.map_or_else(|| new_key(source, name, row, bytes, &mut keys), Ok)?;
            known.insert(bytes, place);
            last = (bytes, place);
        }
        places.push(last.1);
    }
    Ok(RowKeys::Column { keys, places })
}

fn new_key(source: Source<'_>, name: &str, row: usize, bytes: &[u8], keys: &mut Vec<SessionKey>) -> Result<u32> {
    let Some(key) = SessionKey::new(bytes) else {
        // The key itself is nobody's business.
        let shown = format!("{} bytes", bytes.len());
        let expected = "a key of 16, 24 or 32 bytes, or null";
        return Err(source.invalid(InvalidKind::Limit, name, row, Some(shown.as_bytes()), expected));
    };
    keys.push(key);
    Ok(keys.len() as u32 - 1)
}
