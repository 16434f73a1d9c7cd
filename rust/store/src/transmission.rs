//! What waits in the transmission queue for another instance.

use rusqlite::params;
use rusqlite::types::ValueRef;
use ssbroker_core::Guid;
use ssbroker_core::message::{Outbox, Waiting};

use crate::error::{Error, Result};
use crate::statements::Statements;

/// So many bytes of bodies one outbox holds, as a column does.
const BYTES_MAX: usize = i32::MAX as usize;

/// Messages of one transmission queue that are to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// The conversation.
    pub conversation_id: Guid,
    /// Whether its initiator sends them.
    pub is_initiator: bool,
    /// The first number.
    pub first: i64,
    /// The last number.
    pub last: i64,
    /// How many are wanted.
    pub messages: i64,
    /// After how many bytes of bodies the rest may stay where it is; at least one message is read.
    pub bytes: i64,
    /// The longest body that is read. A longer message is read without it, and none after it.
    pub longest: i64,
    /// The id of the first message; the number of another one changes the last bits of it.
    pub message_id: Guid,
}

impl Statements {
    /// Reads what an endpoint sent and nobody has acknowledged, in order, into the last of the outboxes, or a further one where that is full.
    ///
    /// # Returns
    /// How many messages were added.
    ///
    /// # Errors
    /// The file cannot be read, or holds what nobody of ours has written.
    pub fn waiting(&self, wanted: Wanted, outboxes: &mut Vec<Outbox>) -> Result<usize> {
        let mut count = 0;
        let mut room = usize::try_from(wanted.bytes).unwrap_or(0);
        let mut statement = self.db.prepare_cached(SENT)?;
        let mut rows = statement.query(params![
            wanted.longest,
            wanted.conversation_id.0,
            wanted.is_initiator,
            wanted.first,
            wanted.last,
            wanted.messages
        ])?;
        while let Some(row) = rows.next()? {
            let number: i64 = row.get(0)?;
            let id = u128::from_be_bytes(wanted.message_id.0) ^ u128::from(number.unsigned_abs());
            let length = row.get_ref(4)?.as_blob().map_or(0, <[u8]>::len);
            if outboxes.last().is_none_or(|outbox| outbox.bodies.len() + length > BYTES_MAX) {
                outboxes.push(Outbox::default());
            }
            let Some(outbox) = outboxes.last_mut() else { break };
            let is_read = match row.get_ref(4)? {
                ValueRef::Blob(body) => {
                    outbox.bodies.extend_from_slice(body);
                    true
                }
                ValueRef::Null => true,
                ValueRef::Integer(_) => false, // in place of one that is longer
                _ => return Err(Error::Altered("a body is no binary value".into())),
            };
            outbox.messages.push(Waiting {
                conversation_id: wanted.conversation_id,
                is_initiator: wanted.is_initiator,
                message_sequence_number: number,
                message_type_name: row.get(1)?,
                message_id: Guid(id.to_be_bytes()),
                is_end_of_dialog: row.get(2)?,
                is_conversation_error: row.get(3)?,
            });
            outbox.ends.push(is_read.then_some(outbox.bodies.len()));
            count += 1;
            room = room.saturating_sub(length);
            if !is_read || room == 0 {
                break;
            }
        }
        Ok(count)
    }
}

// CROSS JOIN: SQLite is to find the endpoint first.
const SENT: &str = "
    SELECT message_sequence_number, message_type_name, is_end_of_dialog, is_conversation_error,
        CASE WHEN length(message_body) > ?1 THEN 0 ELSE message_body END
    FROM ssb_conversation_endpoints AS e CROSS JOIN ssb_transmission_queue AS t USING (endpoint_id)
    WHERE e.conversation_id = ?2 AND e.is_initiator = ?3 AND t.is_inbound = 0 AND t.message_sequence_number BETWEEN ?4 AND ?5
    ORDER BY t.message_sequence_number LIMIT ?6";
