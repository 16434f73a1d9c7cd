//! SEND, as far as it is plain (P33, B8, B9): to a conversation that goes on, where nobody wants an event, a copy or a check of the body.
//! Straight into the queue of the same database, or into the transmission queue where the service stands in no queue of it.

use std::collections::HashMap;

use rusqlite::params;
use ssbroker_core::Guid;
use ssbroker_core::message::Outgoing;

use crate::error::Result;
use crate::metadata::Picture;
use crate::statements::Statements;

/// The state of a conversation that goes on.
const CONVERSING: &str = "CO";
/// The validation of types whose bodies are taken as they are.
const UNVALIDATED: &str = "N";
/// More than this a row cannot hold (8459).
const BODY_MAX: usize = 999_998_976;

/// What became of messages of one conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// They stand in a queue of this database.
    Enqueued {
        /// The queue.
        queue_id: i64,
        /// The priority of the side that receives them.
        priority: i64,
        /// Whether that side has heard of the far one over the network.
        is_remote: bool,
    },
    /// They stand in the transmission queue.
    PutOff {
        /// The sender.
        endpoint_id: i64,
    },
}

/// Where messages of a conversation go that came from elsewhere, and are plain.
#[derive(Clone, Copy, Debug)]
pub struct Enqueued {
    /// The queue.
    pub queue_id: i64,
    /// The priority of the side that receives them.
    pub priority: i64,
    /// That side.
    pub endpoint_id: i64,
    /// Their type.
    pub message_type_id: i64,
    /// The number of the first; each has the number behind that of the one before.
    pub first: i64,
}

/// A row of the queues.
#[derive(Clone, Copy, Debug)]
pub struct QueueRow<'m> {
    /// The queue.
    pub queue_id: i64,
    /// Whether it can be received, is early, or is retained.
    pub status: i64,
    /// The priority of the side that receives it.
    pub priority: i64,
    /// That side.
    pub endpoint_id: i64,
    /// Whether it precedes the other messages of its conversation.
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

/// The sender's side of a conversation, as far as it matters, and where its messages go.
struct Sender {
    endpoint_id: i64,
    is_initiator: bool,
    contract_id: i64,
    send_sequence: i64,
    far: Option<Far>,
}

/// The side that receives, in the same database.
struct Far {
    endpoint_id: i64,
    contract_id: i64,
    queue_id: i64,
    priority: i64,
    is_remote: bool,
}

impl Statements {
    /// Sends a message.
    ///
    /// # Returns
    /// What became of it; `None` where it is not plain, and nothing was done.
    ///
    /// # Errors
    /// The file cannot be read or written; then the transaction is to be undone.
    pub fn send(&self, picture: &Picture, message: &Outgoing<'_>, now: i64) -> Result<Option<Sent>> {
        self.check()?;
        let run = std::slice::from_ref(message);
        let Some(sender) = self.sender(picture, message.conversation_handle, run.iter(), now)? else {
            return Ok(None);
        };
        self.write(picture, &sender, run.iter(), now).map(Some)
    }

    /// Sends messages, those of one conversation in their order.
    ///
    /// # Returns
    /// For each conversation what became of its messages, and how many they were; `None` where one is not plain, and nothing was done.
    ///
    /// # Errors
    /// The file cannot be read or written; then the transaction is to be undone.
    pub fn send_all(
        &self,
        picture: &Picture,
        messages: &[Outgoing<'_>],
        now: i64,
    ) -> Result<Option<Vec<(Sent, usize)>>> {
        self.check()?;
        let runs = by_conversation(messages);
        let mut senders = Vec::with_capacity(runs.len());
        for (handle, run) in &runs {
            let Some(sender) = self.sender(picture, *handle, run.iter().copied(), now)? else { return Ok(None) };
            senders.push(sender);
        }
        let mut sent = Vec::with_capacity(runs.len());
        for ((_, run), sender) in runs.iter().zip(&senders) {
            sent.push((self.write(picture, sender, run.iter().copied(), now)?, run.len()));
        }
        Ok(Some(sent))
    }

    /// Puts messages into a queue that is on, those whose turn it is in their conversation.
    ///
    /// # Errors
    /// The file cannot be written; then the transaction is to be undone.
    pub fn enqueue<'m>(&self, run: Enqueued, bodies: impl Iterator<Item = &'m [u8]>) -> Result<()> {
        self.check()?;
        let Enqueued { queue_id, priority, endpoint_id, message_type_id, .. } = run;
        self.insert_queued(bodies.zip(run.first..).map(|(body, message_sequence_number)| QueueRow {
            queue_id,
            status: READY,
            priority,
            endpoint_id,
            precedence: IN_ORDER,
            message_sequence_number,
            message_type_id,
            message_body: (!body.is_empty()).then_some(body),
        }))
    }

    /// Adds messages to queues.
    ///
    /// # Errors
    /// The file cannot be written; then the transaction is to be undone.
    pub fn insert_queued<'m>(&self, rows: impl Iterator<Item = QueueRow<'m>>) -> Result<()> {
        self.check()?;
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
                row.message_body
            ])?;
        }
        Ok(())
    }

    /// Adds messages at the end of the transmission queue.
    ///
    /// # Errors
    /// The file cannot be written; then the transaction is to be undone.
    pub fn insert_transmissions<'m>(&self, rows: impl Iterator<Item = TransmissionRow<'m>>) -> Result<()> {
        self.check()?;
        let mut statement = self.db.prepare_cached(PUT_OFF)?;
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

    /// The sender's side, if it may send all of these now and that is plain. Nothing is written.
    fn sender<'m>(
        &self,
        picture: &Picture,
        handle: Guid,
        mut messages: impl Iterator<Item = &'m Outgoing<'m>>,
        now: i64,
    ) -> Result<Option<Sender>> {
        let mut statement = self.db.prepare_cached(SENDER)?;
        let mut rows = statement.query(params![handle.0])?;
        let Some(row) = rows.next()? else { return Ok(None) };
        if row.get_ref(8)?.as_str().ok() != Some(CONVERSING) || row.get::<_, i64>(9)? <= now {
            return Ok(None);
        }
        let (service_id, contract_id) = (row.get::<_, i64>(3)?, row.get::<_, i64>(4)?);
        let Some((_, queue)) = picture.queue_of(service_id) else { return Ok(None) };
        if queue.is_retention_enabled {
            return Ok(None);
        }
        let Ok(far_service) = row.get_ref(5)?.as_str() else { return Ok(None) };
        let mut sender = Sender {
            endpoint_id: row.get(0)?,
            is_initiator: row.get(2)?,
            contract_id,
            send_sequence: row.get(10)?,
            far: None,
        };
        if picture.hosts(far_service) {
            let own = Some(picture.broker_instance.0);
            let is_here = picture.is_delivering
                && row.get::<_, bool>(7)?
                && row.get::<_, Option<[u8; 16]>>(6)? == own
                && picture.staying.contains(far_service);
            let conversation = row.get::<_, [u8; 16]>(1)?;
            let far = if is_here { self.far(picture, service_id, &sender, conversation)? } else { None };
            if far.is_none() {
                return Ok(None);
            }
            sender.far = far;
        }
        let is_plain = messages.all(|message| {
            message.message_body.len() <= BODY_MAX
                && picture.kind_sent(sender.contract_id, message.message_type_name, sender.is_initiator).is_some()
                && sender.far.as_ref().is_none_or(|far| far.takes(picture, message, sender.is_initiator).is_some())
        });
        Ok(is_plain.then_some(sender))
    }

    /// The receiver's side, if it takes what comes next straight into a queue that is on (P33).
    fn far(&self, picture: &Picture, service_id: i64, sender: &Sender, conversation: [u8; 16]) -> Result<Option<Far>> {
        let mut statement = self.db.prepare_cached(FAR)?;
        let mut rows = statement.query(params![conversation, !sender.is_initiator])?;
        let Some(row) = rows.next()? else { return Ok(None) };
        let is_bound = row.get::<_, bool>(4)? && row.get::<_, Option<[u8; 16]>>(5)? == Some(picture.broker_instance.0);
        let service = picture.services.get(&service_id).map(|service| service.name.as_str());
        if !is_bound || row.get_ref(3)?.as_str().ok() != service || row.get::<_, i64>(7)? != sender.send_sequence {
            return Ok(None);
        }
        let Some((queue_id, queue)) = picture.queue_of(row.get(1)?) else { return Ok(None) };
        if !queue.is_enqueue_enabled {
            return Ok(None);
        }
        Ok(Some(Far {
            endpoint_id: row.get(0)?,
            contract_id: row.get(2)?,
            queue_id,
            priority: row.get(6)?,
            is_remote: row.get(8)?,
        }))
    }

    fn write<'m>(
        &self,
        picture: &Picture,
        sender: &Sender,
        messages: impl Iterator<Item = &'m Outgoing<'m>>,
        now: i64,
    ) -> Result<Sent> {
        let mut number = sender.send_sequence;
        let numbered = messages.map(|message| {
            number += 1;
            (number - 1, message, (!message.message_body.is_empty()).then_some(message.message_body))
        });
        if let Some(far) = &sender.far {
            self.insert_queued(numbered.map(|(message_sequence_number, message, message_body)| QueueRow {
                queue_id: far.queue_id,
                status: READY,
                priority: far.priority,
                endpoint_id: far.endpoint_id,
                precedence: IN_ORDER,
                message_sequence_number,
                message_type_id: far.takes(picture, message, sender.is_initiator).unwrap_or_default(),
                message_body,
            }))?;
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
        self.db.prepare_cached(SENT)?.execute(params![number, sender.endpoint_id])?;
        let Some(far) = &sender.far else { return Ok(Sent::PutOff { endpoint_id: sender.endpoint_id }) };
        self.db.prepare_cached(TAKEN)?.execute(params![number, far.endpoint_id])?;
        Ok(Sent::Enqueued { queue_id: far.queue_id, priority: far.priority, is_remote: far.is_remote })
    }
}

impl Far {
    /// The id of a message's type, if messages of it may come and are not validated.
    fn takes(&self, picture: &Picture, message: &Outgoing<'_>, from_initiator: bool) -> Option<i64> {
        let (id, kind) = picture.kind_sent(self.contract_id, message.message_type_name, from_initiator)?;
        (kind.validation == UNVALIDATED).then_some(id)
    }
}

/// The messages of each conversation, in the order in which the conversations first occur.
fn by_conversation<'m>(messages: &'m [Outgoing<'m>]) -> Vec<(Guid, Vec<&'m Outgoing<'m>>)> {
    let mut runs: Vec<(Guid, Vec<&Outgoing<'_>>)> = Vec::new();
    let mut places: HashMap<Guid, usize> = HashMap::new();
    for message in messages {
        let place = *places.entry(message.conversation_handle).or_insert(runs.len());
        match runs.get_mut(place) {
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
// 2: what came before its turn (P14).
const FAR: &str = "
    SELECT endpoint_id, service_id, service_contract_id, far_service, is_bound, far_broker_instance, priority, receive_sequence, is_remote
    FROM ssb_conversation_endpoints AS e WHERE conversation_id = ?1 AND is_initiator = ?2 AND state = 'CO'
    AND NOT EXISTS (SELECT 1 FROM ssb_transmission_queue WHERE endpoint_id = e.endpoint_id AND is_inbound = 1)
    AND NOT EXISTS (SELECT 1 FROM ssb_queued_messages WHERE endpoint_id = e.endpoint_id AND status = 2)";
const ENQUEUE: &str = "
    INSERT INTO ssb_queued_messages (queue_id, status, priority, endpoint_id, precedence, message_sequence_number, message_type_id,
        message_body) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
const PUT_OFF: &str = "
    INSERT INTO ssb_transmission_queue (endpoint_id, is_inbound, message_sequence_number, message_type_name, is_conversation_error,
        is_end_of_dialog, enqueue_time, message_body) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
const SENT: &str = "UPDATE ssb_conversation_endpoints SET send_sequence = ?1 WHERE endpoint_id = ?2";
const TAKEN: &str = "UPDATE ssb_conversation_endpoints SET receive_sequence = ?1 WHERE endpoint_id = ?2";
