//! Reads the messages of the transmission queue that are to be sent to other instances.

use rusqlite::params;
use rusqlite::types::ValueRef;
use ssbroker_core::Guid;
use ssbroker_core::message::{Outbox, Waiting};

use crate::error::{Error, Result};
use crate::statements::Statements;

/// The maximum total size of the bodies in an outbox in bytes; a column cannot contain more.
const MAX_BYTES: usize = i32::MAX as usize;

/// The messages of an endpoint to read.
#[derive(Clone, Copy, Debug)]
pub struct ReadRequest {
    /// The conversation id.
    pub conversation_id: Guid,
    /// Whether the endpoint is the initiator.
    pub is_initiator: bool,
    /// The first sequence number.
    pub first: i64,
    /// The last sequence number.
    pub last: i64,
    /// The maximum number of messages.
    pub max_messages: i64,
    /// The size of bodies in bytes after which no further message is read; at least one is read.
    pub max_bytes: i64,
    /// The size of the largest body to read. A larger message is read without its body, and no message after it.
    pub max_body_bytes: i64,
    /// The message id of sequence number 0; others are derived by XOR with the sequence number.
    pub message_id: Guid,
}

impl Statements {
    /// Reads unacknowledged messages of an endpoint, in order, into the last outbox, or into new ones when it is
    /// full. Returns the number of messages.
    ///
    /// # Errors
    /// The file cannot be read or has unexpected values.
    pub fn read_transmission_queue(&self, request: ReadRequest, outboxes: &mut Vec<Outbox>) -> Result<usize> {
        let mut count = 0;
        let mut remaining = usize::try_from(request.max_bytes).unwrap_or(0);
        let mut statement = self.db.prepare_cached(UNACKNOWLEDGED)?;
        let mut rows = statement.query(params![
            request.max_body_bytes,
            request.conversation_id.0,
            request.is_initiator,
            request.first,
            request.last,
            request.max_messages
        ])?;
        while let Some(row) = rows.next()? {
            let number: i64 = row.get(0)?;
            let id = u128::from_be_bytes(request.message_id.0) ^ u128::from(number.unsigned_abs());
            let length = row.get_ref(4)?.as_blob().map_or(0, <[u8]>::len);
            if outboxes.last().is_none_or(|outbox| outbox.bodies.len() + length > MAX_BYTES) {
                outboxes.push(Outbox::default());
            }
            let Some(outbox) = outboxes.last_mut() else { break };
            let is_read = match row.get_ref(4)? {
                ValueRef::Blob(body) => {
                    outbox.bodies.extend_from_slice(body);
                    true
                }
                ValueRef::Null => true,
                ValueRef::Integer(_) => false, // stands for a larger body
                _ => return Err(Error::Schema("a message body that is not binary".into())),
            };
            outbox.messages.push(Waiting {
                conversation_id: request.conversation_id,
                is_initiator: request.is_initiator,
                message_sequence_number: number,
                message_type_name: row.get(1)?,
                message_id: Guid(id.to_be_bytes()),
                is_end_of_dialog: row.get(2)?,
                is_conversation_error: row.get(3)?,
            });
            outbox.ends.push(is_read.then_some(outbox.bodies.len()));
            count += 1;
            remaining = remaining.saturating_sub(length);
            if !is_read || remaining == 0 {
                break;
            }
        }
        Ok(count)
    }
}

// CROSS JOIN makes SQLite look up the endpoint first.
const UNACKNOWLEDGED: &str = "
    SELECT message_sequence_number, message_type_name, is_end_of_dialog, is_conversation_error,
        CASE WHEN length(message_body) > ?1 THEN 0 ELSE message_body END
    FROM ssb_conversation_endpoints AS e CROSS JOIN ssb_transmission_queue AS t USING (endpoint_id)
    WHERE e.conversation_id = ?2 AND e.is_initiator = ?3 AND t.is_inbound = 0 AND t.message_sequence_number BETWEEN ?4 AND ?5
    ORDER BY t.message_sequence_number LIMIT ?6";
