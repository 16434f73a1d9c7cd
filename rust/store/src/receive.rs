//! RECEIVE (facts 116 to 121, B17): the messages of conversation groups, one group after the other.

use std::collections::HashSet;

use rusqlite::{Connection, Row, params};
use ssbroker_core::Guid;
use ssbroker_core::message::{Inbox, Received};

use crate::error::{Error, Result};
use crate::metadata::Picture;
use crate::statements::Statements;

/// What is looked for.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// The queue.
    pub queue_id: i64,
    /// The most messages to take.
    pub top: usize,
    /// The most conversation groups to take them from.
    pub groups: usize,
    /// After so many bytes of bodies no further message is taken.
    pub bytes_max: usize,
    /// Which conversations.
    pub only: Only,
    /// Whether the messages stay in the queue (B15).
    pub is_retained: bool,
}

/// Which conversations of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Only {
    /// All, those first whose turn it is.
    All,
    /// One, by its endpoint, which is of this queue.
    Endpoint(i64),
    /// Those of one group.
    Group(Guid),
}

impl Statements {
    /// Takes messages out of a queue.
    ///
    /// # Returns
    /// The messages, in the order in which they are to be read; `None` where the group that is asked for is not of this queue.
    ///
    /// # Errors
    /// The file cannot be read or written; then the transaction is to be undone.
    pub fn receive<'p>(&self, picture: &'p Picture, asked: Asked) -> Result<Option<Inbox<'p>>> {
        self.check()?;
        let (messages, bytes) = (asked.top, asked.bytes_max);
        let mut taking = Taking { db: &self.db, picture, asked, messages, bytes, inbox: Inbox::default() };
        let is_here = match asked.only {
            Only::All => taking.in_turn().map(|()| true),
            Only::Endpoint(endpoint_id) => taking.conversation(endpoint_id).map(|()| true),
            Only::Group(group) => taking.named(group),
        }?;
        let last_taken = taking.inbox.messages.iter().map(|message| message.queuing_order).max();
        if let Some(number) = last_taken.filter(|_| !asked.is_retained) {
            self.keep_number(number)?;
        }
        Ok(is_here.then_some(taking.inbox))
    }

    /// Has a number of a queue not be given again whose message was removed (U22): where it was the last, a row with it stays, of no queue.
    ///
    /// # Errors
    /// The file cannot be read or written; then the transaction is to be undone.
    pub fn keep_number(&self, number: i64) -> Result<()> {
        self.check()?;
        let left: Option<i64> = self.db.prepare_cached(LAST)?.query_row([], |row| row.get(0))?;
        if left.unwrap_or(0) < number {
            self.db.prepare_cached(FORGET)?.execute([])?;
            self.db.prepare_cached(KEEP)?.execute(params![number])?;
        }
        Ok(())
    }
}

/// The receiver's side of a conversation.
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

/// What was read of a conversation.
struct Run {
    endpoint_id: i64,
    orders: Vec<i64>,
    /// Whether these are all that can be received.
    is_all: bool,
}

/// One RECEIVE.
struct Taking<'s, 'p> {
    db: &'s Connection,
    picture: &'p Picture,
    asked: Asked,
    /// How many messages may still be taken.
    messages: usize,
    /// And how many bytes of bodies; one message may be longer.
    bytes: usize,
    inbox: Inbox<'p>,
}

impl<'p> Taking<'_, 'p> {
    /// The groups whose turn it is, one after the other.
    fn in_turn(&mut self) -> Result<()> {
        let mut groups = self.asked.groups;
        while groups > 0 && !self.is_over() {
            let mut number = if groups > 1 { self.alone(groups)? } else { 0 };
            if number == 0 {
                let Some(first) = self.next_endpoint()? else { break };
                self.group(&first)?;
                number = 1;
            }
            groups -= number;
        }
        Ok(())
    }

    /// The next groups that have one member each; how many they are.
    fn alone(&mut self, groups: usize) -> Result<usize> {
        let mut runs: Vec<Run> = Vec::new();
        let mut seen = HashSet::new();
        let db = self.db;
        let mut statement = db.prepare_cached(HEADS)?;
        let mut heads = statement.query(params![self.asked.queue_id])?;
        while runs.len() < groups && !self.is_over() {
            let Some(head) = heads.next()? else { break };
            let endpoint_id = head.get(0)?;
            if !seen.insert(endpoint_id) {
                continue;
            }
            let Some(endpoint) = self.endpoint(endpoint_id)? else { continue };
            if !self.is_alone(endpoint.conversation_group_id)? {
                break;
            }
            runs.push(self.read(&endpoint)?);
        }
        drop(heads); // nothing is changed under what is read
        for run in &runs {
            self.take_off(run)?;
        }
        Ok(runs.len())
    }

    /// The group of the endpoint whose turn it is.
    fn group(&mut self, first: &Endpoint<'p>) -> Result<()> {
        self.take(first)?;
        if self.is_over() || self.is_alone(first.conversation_group_id)? {
            return Ok(());
        }
        self.members(first.conversation_group_id)
    }

    /// The members of a group that have messages: the highest priority first, then who waits longest.
    fn members(&mut self, group: Guid) -> Result<()> {
        let ids = self.numbers(MEMBERS_READY, group)?;
        for endpoint_id in ids {
            self.conversation(endpoint_id)?;
            if self.is_over() {
                break;
            }
        }
        Ok(())
    }

    /// The group that is asked for; whether it has a member of this queue.
    fn named(&mut self, group: Guid) -> Result<bool> {
        if let Some(first) = self.next_endpoint()?.filter(|first| first.conversation_group_id == group) {
            self.group(&first)?;
            return Ok(true);
        }
        let mut services = self.db.prepare_cached(SERVICES)?;
        let mut services = services.query(params![group.0])?;
        while let Some(service) = services.next()? {
            if self.picture.queue_of(service.get(0)?).is_some_and(|(queue_id, _)| queue_id == self.asked.queue_id) {
                drop(services);
                self.members(group)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// One conversation.
    fn conversation(&mut self, endpoint_id: i64) -> Result<()> {
        match self.endpoint(endpoint_id)? {
            Some(endpoint) => self.take(&endpoint),
            None => Ok(()),
        }
    }

    fn take(&mut self, endpoint: &Endpoint<'p>) -> Result<()> {
        let run = self.read(endpoint)?;
        self.take_off(&run)
    }

    /// The messages of a conversation that can be received, in order (fact 118), as many as may be taken.
    fn read(&mut self, endpoint: &Endpoint<'p>) -> Result<Run> {
        let mut run = Run { endpoint_id: endpoint.id, orders: Vec::new(), is_all: true };
        let db = self.db;
        let mut statement = db.prepare_cached(READY)?;
        let mut rows = statement.query(params![endpoint.id])?;
        while let Some(row) = rows.next()? {
            if self.is_over() {
                run.is_all = false;
                break;
            }
            run.orders.push(self.message(endpoint, row)?);
        }
        Ok(run)
    }

    /// Adds a message; its place in the queue.
    fn message(&mut self, endpoint: &Endpoint<'p>, row: &Row<'_>) -> Result<i64> {
        let queuing_order = row.get(0)?;
        let kind = self.picture.kinds.get(&row.get(2)?).ok_or_else(|| altered("a message has no type"))?;
        let message = Received {
            conversation_id: endpoint.conversation_id,
            is_initiator: !endpoint.is_initiator,
            message_sequence_number: row.get(1)?,
            conversation_handle: endpoint.conversation_handle,
            conversation_group_id: endpoint.conversation_group_id,
            message_type_name: &kind.name,
            validation: &kind.validation,
            service_name: endpoint.service_name,
            service_contract_name: endpoint.service_contract_name,
            priority: endpoint.priority,
            queuing_order,
        };
        let before = self.inbox.bodies.len();
        if let Some(body) = row.get_ref(4)?.as_blob_or_null().map_err(|_| altered("a body is no binary value"))? {
            self.inbox.bodies.extend_from_slice(body);
            self.inbox.push(message);
        } else if let Some(length) = row.get::<_, Option<i64>>(3)? {
            self.read_long(queuing_order, length)?;
            self.inbox.push(message);
        } else {
            self.inbox.push_empty(message);
        }
        self.messages -= 1;
        self.bytes = self.bytes.saturating_sub(self.inbox.bodies.len() - before);
        Ok(queuing_order)
    }

    /// Reads a long body behind the others.
    fn read_long(&mut self, queuing_order: i64, length: i64) -> Result<()> {
        let start = self.inbox.bodies.len();
        let length = usize::try_from(length).map_err(|_| altered("a body has a length below 0"))?;
        self.inbox.bodies.resize(start + length, 0);
        let body = self.db.blob_open(c"main", c"ssb_queued_messages", c"message_body", queuing_order, true)?;
        Ok(body.read_at_exact(&mut self.inbox.bodies[start..], 0)?)
    }

    /// Takes what was read off the queue, or keeps it as received (B15).
    fn take_off(&self, run: &Run) -> Result<()> {
        if !self.asked.is_retained && run.is_all && run.orders.len() > 1 {
            self.db.prepare_cached(REMOVE_READY)?.execute(params![run.endpoint_id])?;
            return Ok(());
        }
        let mut statement = self.db.prepare_cached(if self.asked.is_retained { RETAIN } else { REMOVE })?;
        for order in &run.orders {
            statement.execute(params![order])?;
        }
        Ok(())
    }

    /// Whose message is received next: of the highest priority the one that waits longest.
    fn next_endpoint(&self) -> Result<Option<Endpoint<'p>>> {
        let mut statement = self.db.prepare_cached(HEADS)?;
        let mut heads = statement.query(params![self.asked.queue_id])?;
        while let Some(head) = heads.next()? {
            if let Some(endpoint) = self.endpoint(head.get(0)?)? {
                return Ok(Some(endpoint));
            }
        }
        Ok(None)
    }

    fn endpoint(&self, endpoint_id: i64) -> Result<Option<Endpoint<'p>>> {
        let mut statement = self.db.prepare_cached(ENDPOINT)?;
        let mut rows = statement.query(params![endpoint_id])?;
        let Some(row) = rows.next()? else { return Ok(None) };
        let service =
            self.picture.services.get(&row.get(4)?).ok_or_else(|| altered("a conversation has no service"))?;
        let contract =
            self.picture.contracts.get(&row.get(5)?).ok_or_else(|| altered("a conversation has no contract"))?;
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

    fn is_alone(&self, group: Guid) -> Result<bool> {
        let mut statement = self.db.prepare_cached(MEMBERS)?;
        let mut members = statement.query(params![group.0])?;
        Ok(members.next()?.is_none() || members.next()?.is_none())
    }

    fn numbers(&self, sql: &str, group: Guid) -> Result<Vec<i64>> {
        let mut statement = self.db.prepare_cached(sql)?;
        let rows = statement.query_map(params![group.0, self.asked.queue_id], |row| row.get(0))?;
        Ok(rows.collect::<rusqlite::Result<_>>()?)
    }

    fn is_over(&self) -> bool {
        self.messages == 0 || self.bytes == 0
    }
}

fn altered(what: &str) -> Error {
    Error::Altered(what.into())
}

const HEADS: &str = "
    SELECT endpoint_id FROM ssb_queued_messages WHERE queue_id = ?1 AND status = 1 ORDER BY priority DESC, queuing_order";
const ENDPOINT: &str = "
    SELECT conversation_id, is_initiator, conversation_handle, conversation_group_id, service_id, service_contract_id, priority
    FROM ssb_conversation_endpoints WHERE endpoint_id = ?1";
const MEMBERS: &str = "SELECT 1 FROM ssb_conversation_endpoints WHERE conversation_group_id = ?1 LIMIT 2";
const SERVICES: &str = "
    SELECT service_id FROM ssb_conversation_endpoints WHERE conversation_group_id = ?1 AND state <> 'CD'";
// CROSS JOIN: SQLite is to walk the members, not the queue.
const MEMBERS_READY: &str = "
    SELECT e.endpoint_id FROM ssb_conversation_endpoints AS e CROSS JOIN ssb_queued_messages AS m USING (endpoint_id)
    WHERE e.conversation_group_id = ?1 AND m.queue_id = ?2 AND m.status = 1
    GROUP BY e.endpoint_id ORDER BY e.priority DESC, min(m.queuing_order)";
// The length of a body is read without the body.
const READY: &str = "
    SELECT queuing_order, message_sequence_number, message_type_id, length(message_body),
        CASE WHEN length(message_body) < 65536 THEN message_body END
    FROM ssb_queued_messages WHERE endpoint_id = ?1 AND status = 1 ORDER BY precedence, message_sequence_number";
const REMOVE: &str = "DELETE FROM ssb_queued_messages WHERE queuing_order = ?1";
const REMOVE_READY: &str = "DELETE FROM ssb_queued_messages WHERE endpoint_id = ?1 AND status = 1";
const RETAIN: &str = "UPDATE ssb_queued_messages SET status = 0 WHERE queuing_order = ?1";
const LAST: &str = "SELECT max(queuing_order) FROM ssb_queued_messages";
const FORGET: &str = "DELETE FROM ssb_queued_messages WHERE queue_id = 0";
const KEEP: &str = "
    INSERT INTO ssb_queued_messages (queuing_order, queue_id, status, priority, endpoint_id, precedence, message_sequence_number,
        message_type_id) VALUES (?1, 0, 0, 0, 0, 0, 0, 0)";
