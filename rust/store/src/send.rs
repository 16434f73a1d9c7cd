//! SEND on established conversations (P33): into a queue of the same database, or into the transmission queue if
//! the database does not have the service. Messages that need an event, a copy or a validated body are left to
//! Python.

use std::collections::HashMap;

use rusqlite::params;
use ssbroker_core::Guid;
use ssbroker_core::message::Outgoing;

use crate::error::Result;
use crate::metadata::MetadataSnapshot;
use crate::statements::Statements;

/// The state of an established conversation.
const ESTABLISHED: &str = "CO";
/// The validation of message types that accept any body.
const UNVALIDATED: &str = "N";
/// The most bytes of a body (error 8459).
const BODY_MAX: usize = 999_998_976;

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
    /// The sequence number of the first message; the others follow without gaps.
    pub first: i64,
}

/// A row of the queues.
#[derive(Clone, Copy, Debug)]
pub struct QueueRow<'m> {
    /// The queue.
    pub queue_id: i64,
    /// Its status: 0 for retained after it was received, 1 for ready, 2 for early, 3 for retained after it was sent.
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
    /// Whether it waits for a queue that is off.
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

/// The status of a message that can be received.
const READY: i64 = 1;
/// The precedence of all messages but timers and errors.
const IN_ORDER: i64 = 2;

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
    /// Sends a message. Returns where it was stored, or `None` if it is not a case for the fast path; then nothing
    /// has changed.
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
    /// stored, and their number; or `None` if one of them is not a case for the fast path; then nothing has
    /// changed.
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
        let rows = bodies.zip(run.first..).map(|(body, message_sequence_number)| QueueRow {
            queue_id,
            status: READY,
            priority,
            endpoint_id,
            precedence: IN_ORDER,
            message_sequence_number,
            message_type_id,
            message_body: (!body.is_empty()).then_some(body),
        });
        self.insert_queued(rows, now)
    }

    /// Adds messages to queues, which arrive there at `now`.
    ///
    /// # Errors
    /// The file cannot be written; the transaction must be rolled back.
    pub fn insert_queued<'m>(&self, rows: impl Iterator<Item = QueueRow<'m>>, now: i64) -> Result<()> {
        self.ensure_transaction()?;
        let mut statement = self.db.prepare_cached(ENQUEUE)?;
        for row in rows {
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
        if row.get_ref(8)?.as_str().ok() != Some(ESTABLISHED) || row.get::<_, i64>(9)? <= now {
            return Ok(None);
        }
        let (service_id, contract_id) = (row.get::<_, i64>(3)?, row.get::<_, i64>(4)?);
        let Some((_, queue)) = metadata.queue_of(service_id) else { return Ok(None) };
        if queue.is_retention_enabled {
            return Ok(None);
        }
        let Ok(far_service) = row.get_ref(5)?.as_str() else { return Ok(None) };
        let mut sender = Sender {
            endpoint_id: row.get(0)?,
            is_initiator: row.get(2)?,
            contract_id,
            send_sequence: row.get(10)?,
            receiver: None,
        };
        if metadata.has_service(far_service) {
            let own = Some(metadata.broker_instance.0);
            let is_local = row.get::<_, bool>(7)?
                && row.get::<_, Option<[u8; 16]>>(6)? == own
                && metadata.services_routed_locally.contains(far_service);
            let conversation = row.get::<_, [u8; 16]>(1)?;
            let receiver = if is_local { self.receiver(metadata, service_id, &sender, conversation)? } else { None };
            if receiver.is_none() {
                return Ok(None);
            }
            sender.receiver = receiver;
        }
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
    fn receiver(
        &self,
        metadata: &MetadataSnapshot,
        service_id: i64,
        sender: &Sender,
        conversation: [u8; 16],
    ) -> Result<Option<Receiver>> {
        let mut statement = self.db.prepare_cached(RECEIVER)?;
        let mut rows = statement.query(params![conversation, !sender.is_initiator])?;
        let Some(row) = rows.next()? else { return Ok(None) };
        let is_bound = row.get::<_, bool>(4)? && row.get::<_, Option<[u8; 16]>>(5)? == Some(metadata.broker_instance.0);
        let service = metadata.services.get(&service_id).map(|service| service.name.as_str());
        if !is_bound || row.get_ref(3)?.as_str().ok() != service || row.get::<_, i64>(7)? != sender.send_sequence {
            return Ok(None);
        }
        let Some((queue_id, queue)) = metadata.queue_of(row.get(1)?) else { return Ok(None) };
        if !queue.is_enqueue_enabled {
            return Ok(None);
        }
        Ok(Some(Receiver {
            endpoint_id: row.get(0)?,
            contract_id: row.get(2)?,
            queue_id,
            priority: row.get(6)?,
            is_remote: row.get(8)?,
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
            let rows = numbered.map(|(message_sequence_number, message, message_body)| QueueRow {
                queue_id: receiver.queue_id,
                status: READY,
                priority: receiver.priority,
                endpoint_id: receiver.endpoint_id,
                precedence: IN_ORDER,
                message_sequence_number,
                message_type_id: receiver.accepted_type(metadata, message, sender.is_initiator).unwrap_or_default(),
                message_body,
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
    FROM ssb_conversation_endpoints WHERE conversation_handle = ?1";
// Status 2: the message is waiting for earlier ones (P14). The messages of groups that poison message handling has moved go
// to another queue.
const RECEIVER: &str = "
    SELECT endpoint_id, service_id, service_contract_id, far_service, is_bound, far_broker_instance, priority, receive_sequence, is_remote
    FROM ssb_conversation_endpoints AS e WHERE conversation_id = ?1 AND is_initiator = ?2 AND state = 'CO'
    AND NOT EXISTS (SELECT 1 FROM ssb_transmission_queue WHERE endpoint_id = e.endpoint_id AND is_inbound = 1)
    AND NOT EXISTS (SELECT 1 FROM ssb_queued_messages WHERE endpoint_id = e.endpoint_id AND status = 2)
    AND NOT EXISTS (
        SELECT 1 FROM ssb_failures AS f WHERE f.conversation_group_id = e.conversation_group_id AND f.moved_to IS NOT NULL)";
const ENQUEUE: &str = "
    INSERT INTO ssb_queued_messages (queue_id, status, priority, endpoint_id, precedence, message_sequence_number, message_type_id,
        enqueue_time, message_body) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
const INSERT_TRANSMISSION: &str = "
    INSERT INTO ssb_transmission_queue (endpoint_id, is_inbound, message_sequence_number, message_type_name, is_conversation_error,
        is_end_of_dialog, enqueue_time, message_body) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
const UPDATE_SEND_SEQUENCE: &str = "UPDATE ssb_conversation_endpoints SET send_sequence = ?1 WHERE endpoint_id = ?2";
const UPDATE_RECEIVE_SEQUENCE: &str =
    "UPDATE ssb_conversation_endpoints SET receive_sequence = ?1 WHERE endpoint_id = ?2";
