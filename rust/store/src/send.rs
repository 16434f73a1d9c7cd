//! SEND on established conversations (P33): into a queue of the same database, or into the transmission queue if
//! the database does not have the service. Messages that need an event, a validated body, or a copy in the
//! sender's queue (RETENTION) are left to Python.

use std::collections::HashMap;

use rusqlite::{Row, params};
use ssbroker_core::Guid;
use ssbroker_core::message::Outgoing;

use crate::codes::{CONVERSING, EARLY, PRECEDENCE_MESSAGE, READY};
use crate::error::{Error, Result};
use crate::metadata::MetadataSnapshot;
use crate::statements::Statements;

/// The validation of message types that accept any body.
const UNVALIDATED: &str = "N";
/// The maximum size of a body in bytes (error 8459): a SQLite row is limited to 1,000,000,000 bytes, and the other
/// columns need some of them.
pub const BODY_MAX: usize = 999_998_976;

/// Where messages of a conversation were stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// In a queue of this database.
    Enqueued {
        /// The id of the queue.
        queue_id: i64,
        /// The priority of the receiver's endpoint.
        priority: i64,
        /// Whether the receiver's endpoint has received anything over the network.
        is_remote: bool,
    },
    /// In the transmission queue.
    Transmission {
        /// The id of the sender's endpoint.
        endpoint_id: i64,
    },
}

/// Where to enqueue messages that came from another instance.
#[derive(Clone, Copy, Debug)]
pub struct EnqueueTarget {
    /// The id of the queue.
    pub queue_id: i64,
    /// The priority of the receiver's endpoint.
    pub priority: i64,
    /// The id of the receiver's endpoint.
    pub endpoint_id: i64,
    /// The id of the message type.
    pub message_type_id: i64,
    /// The sequence number of the first message; the rest follow without gaps.
    pub first: i64,
}

/// A row of the queues.
#[derive(Clone, Copy, Debug)]
pub struct QueueRow<'m> {
    /// The queue.
    pub queue_id: i64,
    /// Its status; see `codes.rs`.
    pub status: i64,
    /// The priority of the endpoint that receives it.
    pub priority: i64,
    /// The endpoint that receives it.
    pub endpoint_id: i64,
    /// Its order in its conversation: 0 for `DialogTimer`, 1 for `Error`, 2 for other messages.
    pub precedence: i64,
    /// Its sequence number.
    pub message_sequence_number: i64,
    /// Its type.
    pub message_type_id: i64,
    /// Its body; `None` if it is empty.
    pub message_body: Option<&'m [u8]>,
}

/// A row of the transmission queue.
#[derive(Clone, Copy, Debug)]
pub struct TransmissionRow<'m> {
    /// The sender, or the receiver of an inbound message.
    pub endpoint_id: i64,
    /// Whether it waits for a disabled queue.
    pub is_inbound: bool,
    /// Its sequence number.
    pub message_sequence_number: i64,
    /// Its type.
    pub message_type_name: &'m str,
    /// Whether it is an Error message.
    pub is_conversation_error: bool,
    /// Whether it ends the conversation.
    pub is_end_of_dialog: bool,
    /// When it was sent, in microseconds since 1970.
    pub enqueue_time: i64,
    /// Its body; `None` if it is empty.
    pub message_body: Option<&'m [u8]>,
}

/// The sender's endpoint, and the receiver's endpoint if it is in the same database.
struct Sender {
    endpoint_id: i64,
    is_initiator: bool,
    contract_id: i64,
    send_sequence: i64,
    receiver: Option<Receiver>,
}

/// The receiver's endpoint in the same database.
struct Receiver {
    endpoint_id: i64,
    contract_id: i64,
    queue_id: i64,
    priority: i64,
    is_remote: bool,
}

impl Statements {
    /// Sends a message. Returns where it was stored, or `None` if the fast path cannot send it; then nothing has
    /// changed.
    ///
    /// # Errors
    /// The file cannot be read or written; the transaction must be rolled back.
    pub fn send(&self, metadata: &MetadataSnapshot, message: &Outgoing<'_>, now: i64) -> Result<Option<Sent>> {
        self.ensure_transaction()?;
        let run = std::slice::from_ref(message);
        let Some(sender) = self.sender(metadata, message.conversation_handle, run.iter(), now)? else {
            return Ok(None);
        };
        self.insert(metadata, &sender, run.iter(), now).map(Some)
    }

    /// Sends messages; those of a conversation stay in order. Returns for each conversation where its messages were
    /// stored, and their number; or `None` if the fast path cannot send one of them; then nothing has changed.
    ///
    /// # Errors
    /// The file cannot be read or written; the transaction must be rolled back.
    pub fn send_all(
        &self,
        metadata: &MetadataSnapshot,
        messages: &[Outgoing<'_>],
        now: i64,
    ) -> Result<Option<Vec<(Sent, usize)>>> {
        self.ensure_transaction()?;
        let runs = by_conversation(messages);
        let mut senders = Vec::with_capacity(runs.len());
        for (handle, run) in &runs {
            let Some(sender) = self.sender(metadata, *handle, run.iter().copied(), now)? else { return Ok(None) };
            senders.push(sender);
        }
        let mut sent = Vec::with_capacity(runs.len());
        for ((_, run), sender) in runs.iter().zip(&senders) {
            sent.push((self.insert(metadata, sender, run.iter().copied(), now)?, run.len()));
        }
        Ok(Some(sent))
    }

    /// Enqueues the next messages of a conversation.
    ///
    /// # Errors
    /// The file cannot be written; the transaction must be rolled back.
    pub fn enqueue<'m>(&self, run: EnqueueTarget, bodies: impl Iterator<Item = &'m [u8]>, now: i64) -> Result<()> {
        self.ensure_transaction()?;
        let EnqueueTarget { queue_id, priority, endpoint_id, message_type_id, .. } = run;
        let rows = bodies.zip(run.first..).map(|(body, message_sequence_number)| {
            Ok(QueueRow {
                queue_id,
                status: READY,
                priority,
                endpoint_id,
                precedence: PRECEDENCE_MESSAGE,
                message_sequence_number,
                message_type_id,
                message_body: (!body.is_empty()).then_some(body),
            })
        });
        self.insert_queued(rows, now)
    }

    /// Adds messages to queues, with `now` as their time of arrival.
    ///
    /// # Errors
    /// A row is an error, or the file cannot be written; the transaction must be rolled back.
    pub fn insert_queued<'m>(&self, rows: impl Iterator<Item = Result<QueueRow<'m>>>, now: i64) -> Result<()> {
        self.ensure_transaction()?;
        let mut statement = self.db.prepare_cached(ENQUEUE)?;
        for row in rows {
            let row = row?;
            statement.execute(params![
                row.queue_id,
                row.status,
                row.priority,
                row.endpoint_id,
                row.precedence,
                row.message_sequence_number,
                row.message_type_id,
                now,
                row.message_body
            ])?;
        }
        Ok(())
    }

    /// Adds messages at the end of the transmission queue.
    ///
    /// # Errors
    /// The file cannot be written; the transaction must be rolled back.
    pub fn insert_transmissions<'m>(&self, rows: impl Iterator<Item = TransmissionRow<'m>>) -> Result<()> {
        self.ensure_transaction()?;
        let mut statement = self.db.prepare_cached(INSERT_TRANSMISSION)?;
        for row in rows {
            statement.execute(params![
                row.endpoint_id,
                row.is_inbound,
                row.message_sequence_number,
                row.message_type_name,
                row.is_conversation_error,
                row.is_end_of_dialog,
                row.enqueue_time,
                row.message_body
            ])?;
        }
        Ok(())
    }

    /// Returns the sender's endpoint if all messages can be sent on the fast path. Writes nothing.
    fn sender<'m>(
        &self,
        metadata: &MetadataSnapshot,
        handle: Guid,
        mut messages: impl Iterator<Item = &'m Outgoing<'m>>,
        now: i64,
    ) -> Result<Option<Sender>> {
        let mut statement = self.db.prepare_cached(SENDER)?;
        let mut rows = statement.query(params![handle.0])?;
        let Some(row) = rows.next()? else { return Ok(None) };
        let row = SenderRow::from_row(row)?;
        if row.state != Some(CONVERSING) || row.lifetime <= now {
            return Ok(None);
        }
        let Some((_, queue)) = metadata.queue_of(row.service_id) else { return Ok(None) };
        if queue.is_retention_enabled {
            return Ok(None);
        }
        let Some(far_service) = row.far_service else { return Ok(None) };
        let receiver = if metadata.has_service(far_service) {
            let is_local = row.is_bound
                && row.far_broker_instance == Some(metadata.broker_instance.0)
                && metadata.services_routed_locally.contains(far_service);
            if !is_local {
                return Ok(None);
            }
            let Some(receiver) = self.receiver(metadata, &row)? else { return Ok(None) };
            Some(receiver)
        } else {
            None
        };
        let sender = Sender {
            endpoint_id: row.endpoint_id,
            is_initiator: row.is_initiator,
            contract_id: row.contract_id,
            send_sequence: row.send_sequence,
            receiver,
        };
        let is_fast = messages.all(|message| {
            message.message_body.len() <= BODY_MAX
                && metadata
                    .message_type_sent(sender.contract_id, message.message_type_name, sender.is_initiator)
                    .is_some()
                && sender
                    .receiver
                    .as_ref()
                    .is_none_or(|receiver| receiver.accepted_type(metadata, message, sender.is_initiator).is_some())
        });
        Ok(is_fast.then_some(sender))
    }

    /// P33: returns the receiver's endpoint if it can take the next message directly into its queue.
    fn receiver(&self, metadata: &MetadataSnapshot, sender: &SenderRow<'_>) -> Result<Option<Receiver>> {
        let mut statement = self.db.prepare_cached(RECEIVER)?;
        let mut rows = statement.query(params![sender.conversation_id, !sender.is_initiator, CONVERSING, EARLY])?;
        let Some(row) = rows.next()? else { return Ok(None) };
        let row = ReceiverRow::from_row(row)?;
        let is_bound = row.is_bound && row.far_broker_instance == Some(metadata.broker_instance.0);
        let service = metadata.services.get(&sender.service_id).map(|service| service.name.as_str());
        if !is_bound || row.far_service != service || row.receive_sequence != sender.send_sequence {
            return Ok(None);
        }
        let Some((queue_id, queue)) = metadata.queue_of(row.service_id) else { return Ok(None) };
        if !queue.is_enqueue_enabled {
            return Ok(None);
        }
        Ok(Some(Receiver {
            endpoint_id: row.endpoint_id,
            contract_id: row.contract_id,
            queue_id,
            priority: row.priority,
            is_remote: row.is_remote,
        }))
    }

    fn insert<'m>(
        &self,
        metadata: &MetadataSnapshot,
        sender: &Sender,
        messages: impl Iterator<Item = &'m Outgoing<'m>>,
        now: i64,
    ) -> Result<Sent> {
        let mut number = sender.send_sequence;
        let numbered = messages.map(|message| {
            number += 1;
            (number - 1, message, (!message.message_body.is_empty()).then_some(message.message_body))
        });
        if let Some(receiver) = &sender.receiver {
            let rows = numbered.map(|(message_sequence_number, message, message_body)| {
                let message_type_id = receiver
                    .accepted_type(metadata, message, sender.is_initiator)
                    .ok_or_else(|| Error::Schema("a message type that the receiver does not accept".into()))?;
                Ok(QueueRow {
                    queue_id: receiver.queue_id,
                    status: READY,
                    priority: receiver.priority,
                    endpoint_id: receiver.endpoint_id,
                    precedence: PRECEDENCE_MESSAGE,
                    message_sequence_number,
                    message_type_id,
                    message_body,
                })
            });
            self.insert_queued(rows, now)?;
        } else {
            self.insert_transmissions(numbered.map(|(message_sequence_number, message, message_body)| {
                TransmissionRow {
                    endpoint_id: sender.endpoint_id,
                    is_inbound: false,
                    message_sequence_number,
                    message_type_name: message.message_type_name,
                    is_conversation_error: false,
                    is_end_of_dialog: false,
                    enqueue_time: now,
                    message_body,
                }
            }))?;
        }
        self.db.prepare_cached(UPDATE_SEND_SEQUENCE)?.execute(params![number, sender.endpoint_id])?;
        let Some(receiver) = &sender.receiver else {
            return Ok(Sent::Transmission { endpoint_id: sender.endpoint_id });
        };
        self.db.prepare_cached(UPDATE_RECEIVE_SEQUENCE)?.execute(params![number, receiver.endpoint_id])?;
        Ok(Sent::Enqueued { queue_id: receiver.queue_id, priority: receiver.priority, is_remote: receiver.is_remote })
    }
}

impl Receiver {
    /// Returns the id of the message type if the receiver accepts it and does not validate it.
    fn accepted_type(&self, metadata: &MetadataSnapshot, message: &Outgoing<'_>, from_initiator: bool) -> Option<i64> {
        let (id, message_type) =
            metadata.message_type_sent(self.contract_id, message.message_type_name, from_initiator)?;
        (message_type.validation == UNVALIDATED).then_some(id)
    }
}

/// Groups messages by conversation, in order of first occurrence.
fn by_conversation<'m>(messages: &'m [Outgoing<'m>]) -> Vec<(Guid, Vec<&'m Outgoing<'m>>)> {
    let mut runs: Vec<(Guid, Vec<&Outgoing<'_>>)> = Vec::new();
    let mut positions: HashMap<Guid, usize> = HashMap::new();
    for message in messages {
        let position = *positions.entry(message.conversation_handle).or_insert(runs.len());
        match runs.get_mut(position) {
            Some((_, run)) => run.push(message),
            None => runs.push((message.conversation_handle, vec![message])),
        }
    }
    runs
}

const SENDER: &str = "
    SELECT endpoint_id, conversation_id, is_initiator, service_id, service_contract_id, far_service, far_broker_instance, is_bound, state,
        lifetime, send_sequence
    FROM ssb_conversation_endpoints AS e WHERE conversation_handle = ?1
    AND NOT EXISTS (
        SELECT 1 FROM ssb_failures AS f WHERE f.conversation_group_id = e.conversation_group_id AND f.moved_to IS NOT NULL)";

/// A row of `SENDER`.
struct SenderRow<'r> {
    endpoint_id: i64,
    conversation_id: [u8; 16],
    is_initiator: bool,
    service_id: i64,
    contract_id: i64,
    far_service: Option<&'r str>,
    far_broker_instance: Option<[u8; 16]>,
    is_bound: bool,
    state: Option<&'r str>,
    lifetime: i64,
    send_sequence: i64,
}

impl<'r> SenderRow<'r> {
    fn from_row(row: &'r Row<'_>) -> Result<Self> {
        Ok(Self {
            endpoint_id: row.get(0)?,
            conversation_id: row.get(1)?,
            is_initiator: row.get(2)?,
            service_id: row.get(3)?,
            contract_id: row.get(4)?,
            far_service: row.get_ref(5)?.as_str().ok(),
            far_broker_instance: row.get(6)?,
            is_bound: row.get(7)?,
            state: row.get_ref(8)?.as_str().ok(),
            lifetime: row.get(9)?,
            send_sequence: row.get(10)?,
        })
    }
}

// As for `SENDER`: the messages of groups that poison message handling has moved go to another queue.
const RECEIVER: &str = "
    SELECT endpoint_id, service_id, service_contract_id, far_service, is_bound, far_broker_instance, priority, receive_sequence, is_remote
    FROM ssb_conversation_endpoints AS e WHERE conversation_id = ?1 AND is_initiator = ?2 AND state = ?3
    AND NOT EXISTS (SELECT 1 FROM ssb_transmission_queue WHERE endpoint_id = e.endpoint_id AND is_inbound = 1)
    AND NOT EXISTS (SELECT 1 FROM ssb_queued_messages WHERE endpoint_id = e.endpoint_id AND status = ?4)
    AND NOT EXISTS (
        SELECT 1 FROM ssb_failures AS f WHERE f.conversation_group_id = e.conversation_group_id AND f.moved_to IS NOT NULL)";

/// A row of `RECEIVER`.
struct ReceiverRow<'r> {
    endpoint_id: i64,
    service_id: i64,
    contract_id: i64,
    far_service: Option<&'r str>,
    is_bound: bool,
    far_broker_instance: Option<[u8; 16]>,
    priority: i64,
    receive_sequence: i64,
    is_remote: bool,
}

impl<'r> ReceiverRow<'r> {
    fn from_row(row: &'r Row<'_>) -> Result<Self> {
        Ok(Self {
            endpoint_id: row.get(0)?,
            service_id: row.get(1)?,
            contract_id: row.get(2)?,
            far_service: row.get_ref(3)?.as_str().ok(),
            is_bound: row.get(4)?,
            far_broker_instance: row.get(5)?,
            priority: row.get(6)?,
            receive_sequence: row.get(7)?,
            is_remote: row.get(8)?,
        })
    }
}

const ENQUEUE: &str = "
    INSERT INTO ssb_queued_messages (queue_id, status, priority, endpoint_id, precedence, message_sequence_number, message_type_id,
        enqueue_time, message_body) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
const INSERT_TRANSMISSION: &str = "
    INSERT INTO ssb_transmission_queue (endpoint_id, is_inbound, message_sequence_number, message_type_name, is_conversation_error,
        is_end_of_dialog, enqueue_time, message_body) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
const UPDATE_SEND_SEQUENCE: &str = "UPDATE ssb_conversation_endpoints SET send_sequence = ?1 WHERE endpoint_id = ?2";
const UPDATE_RECEIVE_SEQUENCE: &str =
    "UPDATE ssb_conversation_endpoints SET receive_sequence = ?1 WHERE endpoint_id = ?2";
