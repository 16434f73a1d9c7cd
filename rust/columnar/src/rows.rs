//! The columns that fragments and messages share: where in which conversation they stand.

use std::borrow::Cow;

use arrow_array::types::Int64Type;
use arrow_buffer::{BooleanBuffer, ScalarBuffer};
use ssbroker_core::Guid;

use crate::error::Result;
use crate::read::Source;
use crate::schema::fragments as columns;

/// The conversation, direction and sequence number of each row, checked.
#[derive(Debug)]
pub(crate) struct Places<'a> {
    pub(crate) conversations: Cow<'a, [[u8; 16]]>,
    pub(crate) is_initiator: BooleanBuffer,
    pub(crate) sequences: ScalarBuffer<i64>,
}

impl<'a> Places<'a> {
    pub(crate) fn read(source: Source<'a>) -> Result<Self> {
        Ok(Self {
            conversations: source.required_guids(columns::CONVERSATION_ID, columns::CONVERSATION_HANDLE)?,
            is_initiator: source.required_booleans(columns::IS_INITIATOR)?,
            sequences: source.required_integers::<Int64Type>(columns::MESSAGE_SEQUENCE_NUMBER)?,
        })
    }

    #[inline]
    pub(crate) fn conversation(&self, row: usize) -> Guid {
        Guid(self.conversations[row])
    }
}
