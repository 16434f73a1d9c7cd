//! RECEIVE: takes messages from a queue, one conversation group after another.

use std::collections::HashSet;

use rusqlite::{Row, params};
use ssbroker_core::Guid;
use ssbroker_core::message::{Inbox, Received};

use crate::codes::{CLOSED, READY, RETAINED_RECEIVED};
use crate::connection::BorrowedConnection;
use crate::error::{Error, Result};
use crate::metadata::MetadataSnapshot;
use crate::statements::Statements;

/// The arguments of RECEIVE.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveRequest {
    /// The id of the queue.
    pub queue_id: i64,
    /// The maximum number of messages to take.
    pub top: usize,
    /// The maximum number of conversation groups to take messages from.
    pub groups: usize,
    /// The size of bodies in bytes after which no further message is taken.
    pub bytes_max: usize,
    /// The conversations to take messages from.
    pub selection: Selection,
    /// What happens to the messages.
    pub taking: Taking,
    /// The current time in microseconds since 1970: messages of conversation groups that are leased at this time are
    /// not taken. `None` if there are no leases.
    pub now: Option<i64>,
}

/// What happens to received messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taking {
    /// They are removed from the queue.
    Remove,
    /// They stay in the queue, marked as received.
    Retain,
    /// They stay in the queue and can still be received; the caller leases their conversation group.
    Keep,
}

/// The conversations of a queue to take messages from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// All, in order of priority and age.
    All,
    /// One, by the id of its endpoint, which belongs to this queue.
    Endpoint(i64),
    /// Those of one conversation group.
    Group(Guid),
}

/// The leases and rollbacks that a RECEIVE has to consider.
#[derive(Clone, Copy, Debug)]
pub struct QueueState {
    /// The id of the queue.
    pub queue_id: i64,
    /// Whether any queue has a lease, even an expired lease.
    pub has_leases: bool,
    /// Whether its number of consecutive rollbacks is not 0.
    pub has_rollbacks: bool,
}

impl Statements {
    /// Takes messages from a queue, in the order in which they must be read. Returns `None` if the requested group
    /// has no conversation in this queue.
    ///
    /// # Errors
    /// The file cannot be read or written; the transaction must be rolled back.
    pub fn receive<'p>(&self, metadata: &'p MetadataSnapshot, request: ReceiveRequest) -> Result<Option<Inbox<'p>>> {
        self.ensure_transaction()?;
        let (messages, bytes) = (request.top, request.bytes_max);
        let inbox = Inbox::default();
        let mut receive = Receive { db: &self.db, metadata, request, messages, bytes, inbox, last_in_use: None };
        let is_found = match request.selection {
            Selection::All => receive.take_groups().map(|()| true),
            Selection::Endpoint(endpoint_id) => receive.take_conversation(endpoint_id).map(|()| true),
            Selection::Group(group) => receive.take_named_group(group),
        }?;
        if let Some(number) = receive.last_in_use.filter(|_| request.taking == Taking::Remove) {
            self.reserve_queuing_order(number)?;
        }
        Ok(is_found.then_some(receive.inbox))
    }

    /// Takes messages that were kept, unless another caller has taken them; returns how many were still there.
    ///
    /// # Errors
    /// The file cannot be read or written; the transaction must be rolled back.
    pub fn acknowledge(&self, queuing_orders: &[i64], taking: Taking) -> Result<usize> {
        self.ensure_transaction()?;
        let taken = remove_or_retain(&self.db, queuing_orders, taking)?;
        if let Some(number) = queuing_orders.iter().max().filter(|_| taking == Taking::Remove) {
            self.reserve_queuing_order(*number)?;
        }
        Ok(taken)
    }

    /// Returns the leases and rollbacks that a RECEIVE from a queue has to consider.
    ///
    /// # Errors
    /// The file cannot be read, or there is no such queue.
    pub fn queue_state(&self, queue_id: i64) -> Result<QueueState> {
        let mut statement = self.db.prepare_cached(QUEUE_STATE)?;
        Ok(statement.query_row([queue_id], |row| {
            Ok(QueueState { queue_id, has_leases: row.get(0)?, has_rollbacks: row.get(1)? })
        })?)
    }

    /// Whether a wait for a retry or a scheduled time has ended at the time `now`, and its messages are still hidden.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn has_ended_waits(&self, now: i64) -> Result<bool> {
        Ok(self.db.prepare_cached(ENDED_WAITS)?.exists([now])?)
    }

    /// Prevents the queuing order of a removed message from being reused: if it was the last queuing order, a row
    /// without a queue reserves it.
    ///
    /// # Errors
    /// The file cannot be read or written; the transaction must be rolled back.
    pub fn reserve_queuing_order(&self, number: i64) -> Result<()> {
        self.ensure_transaction()?;
        let left: Option<i64> = self.db.prepare_cached(LAST)?.query_row([], |row| row.get(0))?;
        if left.unwrap_or(0) < number {
            self.db.prepare_cached(DELETE_RESERVED)?.execute([])?;
            self.db.prepare_cached(INSERT_RESERVED)?.execute(params![number])?;
        }
        Ok(())
    }
}

/// The receiver's endpoint of a conversation.
struct Endpoint<'p> {
    id: i64,
    conversation_id: Guid,
    is_initiator: bool,
    conversation_handle: Guid,
    conversation_group_id: Guid,
    service_name: &'p str,
    service_contract_name: &'p str,
    priority: i32,
}

/// The messages read of a conversation.
struct Run {
    endpoint_id: i64,
    queuing_orders: Vec<i64>,
    /// Whether these are all messages that can be received.
    is_complete: bool,
}

/// A RECEIVE in progress.
struct Receive<'s, 'p> {
    db: &'s BorrowedConnection,
    metadata: &'p MetadataSnapshot,
    request: ReceiveRequest,
    /// The number of messages that may still be taken.
    messages: usize,
    /// The number of bytes that may still be taken; a single message may exceed it.
    bytes: usize,
    inbox: Inbox<'p>,
    /// The last queuing order in use, if its message is in the inbox.
    last_in_use: Option<i64>,
}

impl<'p> Receive<'_, 'p> {
    /// Takes messages of the next groups, in order.
    fn take_groups(&mut self) -> Result<()> {
        let mut groups = self.request.groups;
        while groups > 0 && !self.is_full() {
            let mut number = if groups > 1 { self.take_single_member_groups(groups)? } else { 0 };
            if number == 0 {
                let Some(first) = self.next_endpoint()? else { break };
                self.take_group(&first)?;
                number = 1;
            }
            groups -= number;
        }
        Ok(())
    }

    /// Takes messages of the next groups that have a single member; returns the number of groups.
    fn take_single_member_groups(&mut self, groups: usize) -> Result<usize> {
        let mut runs: Vec<Run> = Vec::new();
        let mut seen = HashSet::new();
        let db = self.db;
        let mut statement = db.prepare_cached(HEADS)?;
        let mut heads = statement.query(params![self.request.queue_id, READY])?;
        while runs.len() < groups && !self.is_full() {
            let Some(head) = heads.next()? else { break };
            let endpoint_id = head.get(0)?;
            if !seen.insert(endpoint_id) {
                continue;
            }
            let Some(endpoint) = self.read_available(endpoint_id)? else { continue };
            if !self.has_single_member(endpoint.conversation_group_id)? {
                break;
            }
            runs.push(self.read_messages(&endpoint)?);
        }
        drop(heads); // no changes while the statement reads
        for run in &runs {
            self.take_run(run)?;
        }
        Ok(runs.len())
    }

    /// Takes messages of the group of the next endpoint.
    fn take_group(&mut self, first: &Endpoint<'p>) -> Result<()> {
        self.take_messages(first)?;
        if self.is_full() || self.has_single_member(first.conversation_group_id)? {
            return Ok(());
        }
        self.take_members(first.conversation_group_id)
    }

    /// Takes messages of the members of a group, sorted by priority, then by age.
    fn take_members(&mut self, group: Guid) -> Result<()> {
        let ids = self.endpoint_ids(MEMBERS_READY, group)?;
        for endpoint_id in ids {
            self.take_conversation(endpoint_id)?;
            if self.is_full() {
                break;
            }
        }
        Ok(())
    }

    /// Takes messages of the requested group; returns whether it has a member of this queue.
    fn take_named_group(&mut self, group: Guid) -> Result<bool> {
        if let Some(first) = self.next_endpoint()?.filter(|first| first.conversation_group_id == group) {
            self.take_group(&first)?;
            return Ok(true);
        }
        let mut services = self.db.prepare_cached(SERVICES)?;
        let mut services = services.query(params![group.0, CLOSED])?;
        while let Some(service) = services.next()? {
            let queue_of_service = self.metadata.queue_of(service.get(0)?).map(|(queue_id, _)| queue_id);
            if service.get::<_, Option<i64>>(1)?.or(queue_of_service) == Some(self.request.queue_id) {
                drop(services);
                self.take_members(group)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Takes messages of one conversation.
    fn take_conversation(&mut self, endpoint_id: i64) -> Result<()> {
        match self.read_available(endpoint_id)? {
            Some(endpoint) => self.take_messages(&endpoint),
            None => Ok(()),
        }
    }

    fn take_messages(&mut self, endpoint: &Endpoint<'p>) -> Result<()> {
        let run = self.read_messages(endpoint)?;
        self.take_run(&run)
    }

    /// Reads the messages of a conversation that can be received, in order, up to the limits.
    fn read_messages(&mut self, endpoint: &Endpoint<'p>) -> Result<Run> {
        let mut run = Run { endpoint_id: endpoint.id, queuing_orders: Vec::new(), is_complete: true };
        let db = self.db;
        let mut statement = db.prepare_cached(READY_MESSAGES)?;
        let mut rows = statement.query(params![endpoint.id, READY])?;
        while let Some(row) = rows.next()? {
            if self.is_full() {
                run.is_complete = false;
                break;
            }
            run.queuing_orders.push(self.read_message(endpoint, row)?);
        }
        Ok(run)
    }

    /// Reads a message into the inbox; returns its queuing order.
    fn read_message(&mut self, endpoint: &Endpoint<'p>, row: &Row<'_>) -> Result<i64> {
        let queuing_order: i64 = row.get(0)?;
        if row.get(5)? {
            self.last_in_use = self.last_in_use.max(Some(queuing_order));
        }
        let message_type = self
            .metadata
            .message_types
            .get(&row.get(2)?)
            .ok_or_else(|| unexpected(&format!("message {queuing_order} has no message type")))?;
        let message = Received {
            conversation_id: endpoint.conversation_id,
            is_initiator: !endpoint.is_initiator,
            message_sequence_number: row.get(1)?,
            conversation_handle: endpoint.conversation_handle,
            conversation_group_id: endpoint.conversation_group_id,
            message_type_name: &message_type.name,
            validation: &message_type.validation,
            service_name: endpoint.service_name,
            service_contract_name: endpoint.service_contract_name,
            priority: endpoint.priority,
            queuing_order,
        };
        let before = self.inbox.bodies.len();
        if let Some(body) = row
            .get_ref(4)?
            .as_blob_or_null()
            .map_err(|_| unexpected(&format!("the body of message {queuing_order} is not binary")))?
        {
            self.inbox.bodies.extend_from_slice(body);
            self.inbox.push(message);
        } else if let Some(length) = row.get::<_, Option<i64>>(3)? {
            self.read_long(queuing_order, length)?;
            self.inbox.push(message);
        } else if WITHOUT_BODY.contains(&message.message_type_name) {
            self.inbox.push_empty(message);
        } else {
            self.inbox.push(message);
        }
        self.messages -= 1;
        self.bytes = self.bytes.saturating_sub(self.inbox.bodies.len() - before);
        Ok(queuing_order)
    }

    /// Appends a large body to the bodies.
    fn read_long(&mut self, queuing_order: i64, length: i64) -> Result<()> {
        let start = self.inbox.bodies.len();
        let length = usize::try_from(length)
            .map_err(|_| unexpected(&format!("the body of message {queuing_order} has a negative length")))?;
        self.inbox.bodies.resize(start + length, 0);
        let body = self.db.blob_open(c"main", c"ssb_queued_messages", c"message_body", queuing_order, true)?;
        Ok(body.read_at_exact(&mut self.inbox.bodies[start..], 0)?)
    }

    /// Removes the messages from the queue, or retains them, unless they are kept.
    fn take_run(&self, run: &Run) -> Result<()> {
        if self.request.taking == Taking::Keep {
            return Ok(());
        }
        if self.request.taking == Taking::Remove && run.is_complete && run.queuing_orders.len() > 1 {
            self.db.prepare_cached(REMOVE_READY)?.execute(params![run.endpoint_id, READY])?;
            return Ok(());
        }
        remove_or_retain(self.db, &run.queuing_orders, self.request.taking)?;
        Ok(())
    }

    /// Returns the endpoint of the next message: highest priority, then oldest.
    fn next_endpoint(&self) -> Result<Option<Endpoint<'p>>> {
        let mut statement = self.db.prepare_cached(HEADS)?;
        let mut heads = statement.query(params![self.request.queue_id, READY])?;
        let mut skipped = HashSet::new();
        while let Some(head) = heads.next()? {
            let endpoint_id = head.get(0)?;
            if skipped.contains(&endpoint_id) {
                continue;
            }
            if let Some(endpoint) = self.read_available(endpoint_id)? {
                return Ok(Some(endpoint));
            }
            skipped.insert(endpoint_id);
        }
        Ok(None)
    }

    /// Reads an endpoint; `None` if there is none or its group is leased.
    fn read_available(&self, endpoint_id: i64) -> Result<Option<Endpoint<'p>>> {
        let Some(endpoint) = self.read_endpoint(endpoint_id)? else { return Ok(None) };
        let is_leased = match self.request.now {
            Some(now) => self.db.prepare_cached(LEASED)?.exists(params![endpoint.conversation_group_id.0, now])?,
            None => false,
        };
        Ok(Some(endpoint).filter(|_| !is_leased))
    }

    fn read_endpoint(&self, endpoint_id: i64) -> Result<Option<Endpoint<'p>>> {
        let mut statement = self.db.prepare_cached(ENDPOINT)?;
        let mut rows = statement.query(params![endpoint_id])?;
        let Some(row) = rows.next()? else { return Ok(None) };
        let service = self
            .metadata
            .services
            .get(&row.get(4)?)
            .ok_or_else(|| unexpected(&format!("conversation endpoint {endpoint_id} has no service")))?;
        let contract = self
            .metadata
            .contracts
            .get(&row.get(5)?)
            .ok_or_else(|| unexpected(&format!("conversation endpoint {endpoint_id} has no contract")))?;
        Ok(Some(Endpoint {
            id: endpoint_id,
            conversation_id: Guid(row.get(0)?),
            is_initiator: row.get(1)?,
            conversation_handle: Guid(row.get(2)?),
            conversation_group_id: Guid(row.get(3)?),
            service_name: &service.name,
            service_contract_name: &contract.name,
            priority: row.get(6)?,
        }))
    }

    fn has_single_member(&self, group: Guid) -> Result<bool> {
        let mut statement = self.db.prepare_cached(MEMBERS)?;
        let mut members = statement.query(params![group.0])?;
        Ok(members.next()?.is_none() || members.next()?.is_none())
    }

    fn endpoint_ids(&self, sql: &'static str, group: Guid) -> Result<Vec<i64>> {
        let mut statement = self.db.prepare_cached(sql)?;
        let rows = statement.query_map(params![group.0, self.request.queue_id, READY], |row| row.get(0))?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    fn is_full(&self) -> bool {
        self.messages == 0 || self.bytes == 0
    }
}

/// Removes messages from the queue, or marks them as received if they are retained; returns how many were ready.
fn remove_or_retain(db: &BorrowedConnection, queuing_orders: &[i64], taking: Taking) -> Result<usize> {
    let mut taken = 0;
    if taking == Taking::Retain {
        let mut retain = db.prepare_cached(RETAIN)?;
        for order in queuing_orders {
            taken += retain.execute(params![order, READY, RETAINED_RECEIVED])?;
        }
    } else {
        let mut remove = db.prepare_cached(REMOVE)?;
        for order in queuing_orders {
            taken += remove.execute(params![order, READY])?;
        }
    }
    Ok(taken)
}

fn unexpected(what: &str) -> Error {
    Error::Schema(what.into())
}

/// The messages of the broker that have no body; an empty body of any other message is stored as NULL.
const WITHOUT_BODY: [&str; 2] = [
    "http://schemas.microsoft.com/SQL/ServiceBroker/EndDialog",
    "http://schemas.microsoft.com/SQL/ServiceBroker/DialogTimer",
];
const HEADS: &str = "
    SELECT endpoint_id FROM ssb_queued_messages WHERE queue_id = ?1 AND status = ?2 AND is_hidden = 0
    ORDER BY priority DESC, queuing_order";
const ENDPOINT: &str = "
    SELECT conversation_id, is_initiator, conversation_handle, conversation_group_id, service_id, service_contract_id, priority
    FROM ssb_conversation_endpoints WHERE endpoint_id = ?1";
const MEMBERS: &str = "SELECT 1 FROM ssb_conversation_endpoints WHERE conversation_group_id = ?1 LIMIT 2";
const SERVICES: &str = "
    SELECT service_id, (SELECT moved_to FROM ssb_failures WHERE conversation_group_id = ?1 AND moved_to IS NOT NULL)
    FROM ssb_conversation_endpoints WHERE conversation_group_id = ?1 AND state <> ?2";
// CROSS JOIN makes SQLite scan the members of the group instead of the queue.
const MEMBERS_READY: &str = "
    SELECT e.endpoint_id FROM ssb_conversation_endpoints AS e CROSS JOIN ssb_queued_messages AS m USING (endpoint_id)
    WHERE e.conversation_group_id = ?1 AND m.queue_id = ?2 AND m.status = ?3
    GROUP BY e.endpoint_id ORDER BY e.priority DESC, min(m.queuing_order)";
// The length is read without reading the body. Once the message with the last queuing order is removed, its number has
// to be reserved, so that no later message gets it.
const READY_MESSAGES: &str = "
    SELECT queuing_order, message_sequence_number, message_type_id, length(message_body),
        CASE WHEN length(message_body) < 65536 THEN message_body END,
        queuing_order = (SELECT queuing_order FROM ssb_queued_messages ORDER BY queuing_order DESC LIMIT 1)
    FROM ssb_queued_messages WHERE endpoint_id = ?1 AND status = ?2 ORDER BY precedence, message_sequence_number";
const QUEUE_STATE: &str = "
    SELECT EXISTS (SELECT 1 FROM ssb_group_leases), rollbacks > 0 FROM ssb_queues WHERE queue_id = ?1";
// The condition is `IS_HELD_SQL` in `leases.py`: a lease of 60 s whose start is more than 60 s in the future was taken
// before the clock was set back.
const LEASED: &str = "
    SELECT 1 FROM ssb_group_leases WHERE conversation_group_id = ?1 AND until > ?2 AND since - (until - since) <= ?2";
// As in `leases.py`. The second condition holds for waits that began before the clock was set back.
const ENDED_WAITS: &str = "
    SELECT 1 FROM ssb_group_leases WHERE lease_id IS NULL AND until > 0 AND until <= ?1
    UNION ALL SELECT 1 FROM ssb_group_leases WHERE lease_id IS NULL AND until > 0 AND 2 * since - until > ?1 AND +until > ?1";
const REMOVE: &str = "DELETE FROM ssb_queued_messages WHERE queuing_order = ?1 AND status = ?2";
const REMOVE_READY: &str = "DELETE FROM ssb_queued_messages WHERE endpoint_id = ?1 AND status = ?2";
const RETAIN: &str = "UPDATE ssb_queued_messages SET status = ?3 WHERE queuing_order = ?1 AND status = ?2";
const LAST: &str = "SELECT max(queuing_order) FROM ssb_queued_messages";
const DELETE_RESERVED: &str = "DELETE FROM ssb_queued_messages WHERE queue_id = 0";
const INSERT_RESERVED: &str = "
    INSERT INTO ssb_queued_messages (queuing_order, queue_id, status, priority, endpoint_id, precedence, message_sequence_number,
        message_type_id) VALUES (?1, 0, 0, 0, 0, 0, 0, 0)";
