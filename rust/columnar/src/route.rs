//! Decides record batches of conversations.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Mutex;

use arrow_array::{BooleanArray, RecordBatch};
use ssbroker_core::route::{Answers, BLOCK, Block, Scratch, Stages};
use ssbroker_core::{Decision, Guid, Invalid, InvalidKind, Query, RouteIndex, TieBreak};

use crate::columns::{Guids, Source};
use crate::decisions::{DecisionBuilder, DecisionColumns, DecisionSink, ResolvedBlock, SharedValues};
use crate::error::{Error, Result};
use crate::invalid_rows::InvalidRows;
use crate::masks::{bits, ones, set_bits};
use crate::packed_decisions::{Destinations, PackedDecisions};
use crate::schema::conversations as columns;
use crate::view::BytesView;

/// Routes record batches with an index.
#[derive(Debug)]
pub struct RouteKernel {
    index: RouteIndex,
    shared: SharedValues,
    destinations: Option<Destinations>,
    /// Scratch memory, one for each batch that was routed concurrently.
    scratch_pool: Mutex<Vec<Scratch>>,
}

/// The columns of a batch of conversations.
#[derive(Debug)]
struct Conversations<'a> {
    source: Source<'a>,
    names: BytesView<'a>,
    brokers: Option<Guids<'a>>,
    databases: Option<BytesView<'a>>,
    is_initiator: Option<BooleanArray>,
    ids: Option<Guids<'a>>,
    /// The conversation ids if they are contiguous.
    fixed_ids: &'a [[u8; 16]],
    /// The database of all rows if the column is missing.
    only_database: u16,
}

/// A block of 64 conversations and their ids.
#[derive(Debug)]
struct BlockInput<'a> {
    block: Block<'a>,
    ids: [Guid; BLOCK],
    /// Databases read before, by [`database_slot`].
    recent: [(&'a [u8], u16); RECENT_DATABASES],
}

impl RouteKernel {
    /// Creates a kernel for an index.
    #[must_use]
    pub fn new(index: RouteIndex) -> Self {
        let catalog = index.catalog();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let addresses = (0..index.address_count() as u32).map(|id| text(index.address(id)));
        let shared = SharedValues::new(addresses, catalog.databases().iter().map(|database| text(&database.name)));
        let destinations = Destinations::new(catalog);
        Self { index, shared, destinations, scratch_pool: Mutex::default() }
    }

    /// Returns the index.
    #[must_use]
    pub fn index(&self) -> &RouteIndex {
        &self.index
    }

    /// Decides all conversations of a batch at the time `now`, in microseconds since 1970. `first_row` is the index
    /// of the batch's first row in the whole input, for errors.
    ///
    /// # Errors
    /// A column is missing or has the wrong type, or a value is invalid; then nothing is decided.
    pub fn route(&self, batch: &RecordBatch, now: i64, first_row: usize) -> Result<DecisionColumns> {
        let mut decisions = DecisionBuilder::new(batch.num_rows(), &self.shared);
        self.decide_into(batch, now, first_row, &mut decisions)?;
        decisions.finish(&self.shared)
    }

    /// Returns packed decisions, if the catalog has [`destinations`](crate::destinations). Broker ids that
    /// conversations name are omitted unless `include_named`.
    ///
    /// # Errors
    /// See `route`.
    pub fn route_packed(&self, batch: &RecordBatch, now: i64, include_named: bool) -> Result<Option<RecordBatch>> {
        let Some(destinations) = &self.destinations else { return Ok(None) };
        let mut packed = PackedDecisions::new(batch.num_rows(), destinations, include_named);
        self.decide_into(batch, now, 0, &mut packed)?;
        packed.finish().map(Some)
    }

    fn decide_into(&self, batch: &RecordBatch, now: i64, first_row: usize, sink: &mut impl DecisionSink) -> Result<()> {
        let conversations = self.columns(Source { batch, table: "", first_row, invalid_rows: None })?;
        let len = batch.num_rows();
        conversations.check_directions(0, len)?;
        let lacks_ids = conversations.ids.is_none() && self.index.options().tie_break == TieBreak::Hash;
        let undecided = Cell::new(usize::MAX);
        let mut input = BlockInput::new();
        let mut answers = Answers::default();
        let mut stages = Stages::default();
        let mut scratch = self.take_scratch();
        let mut remembered: HashMap<DecidedBy<'_>, Decision> = HashMap::new();
        let is_round_robin = self.index.options().tie_break == TieBreak::RoundRobin;
        if is_round_robin {
            // A batch with an error must not advance the round robin, so everything is read before.
            for start in (0..len).step_by(BLOCK) {
                self.read_block(&conversations, start, BLOCK, &mut input, &mut answers)?;
            }
        }
        for start in (0..len).step_by(BLOCK) {
            self.read_block(&conversations, start, BLOCK, &mut input, &mut answers)?;
            let fixed = conversations.fixed_ids.get(start..);
            let id = |row: usize| {
                if let Some(id) = fixed.and_then(|ids| ids.get(row)) {
                    return Guid(*id);
                }
                if lacks_ids {
                    undecided.set(undecided.get().min(start + row));
                }
                input.ids[row]
            };
            self.index.resolve(&input.block, now, id, &mut stages, &mut scratch, &mut answers);
            sink.push(&ResolvedBlock { answers: &answers, has_broker: input.block.has_broker, len: input.block.len });
            for row in set_bits(answers.needs_decide) {
                let databases = self.index.catalog().databases().len();
                let conversation = if lacks_ids { Guid::default() } else { id(row) };
                let query = input.query(row, &answers, conversation, databases);
                let decided_by = (query.name, query.broker, query.database, query.is_initiator);
                if let Some(decision) = remembered.get(&decided_by) {
                    sink.set(row, decision);
                    continue;
                }
                let (decision, has_tie) = self.index.decide_and_report_ties(&query, now, &mut scratch);
                if lacks_ids && has_tie {
                    id(row);
                }
                sink.set(row, &decision);
                if !has_tie && !is_round_robin && remembered.len() < REMEMBERED_MAX {
                    remembered.insert(decided_by, decision);
                }
            }
            if undecided.get() < len {
                self.return_scratch(scratch);
                return Err(missing_ids(first_row + undecided.get()));
            }
        }
        self.return_scratch(scratch);
        Ok(())
    }

    /// Finds the rows of a batch that cannot be routed. Returns the first problem of each row, in the order of the
    /// rows. Parameters are those of `route`.
    ///
    /// # Errors
    /// A column is missing, has the wrong type or is unreadable.
    pub fn invalid_rows(&self, batch: &RecordBatch, first_row: usize) -> Result<RecordBatch> {
        let conversations = self.columns(Source { batch, table: "", first_row, invalid_rows: None })?;
        let mut input = BlockInput::new();
        let mut answers = Answers::default();
        let mut read = |start: usize, len: usize| {
            self.read_block(&conversations, start, len, &mut input, &mut answers)?;
            conversations.check_directions(start, len)
        };
        let found = InvalidRows::default();
        for start in (0..batch.num_rows()).step_by(BLOCK) {
            let len = (batch.num_rows() - start).min(BLOCK);
            if read(start, len).is_ok() {
                continue;
            }
            for row in start..start + len {
                match read(row, 1) {
                    Ok(()) => {}
                    Err(Error::Invalid(invalid)) => found.add(first_row + row, invalid),
                    Err(error) => return Err(error),
                }
            }
        }
        found.to_batch()
    }

    /// Returns scratch memory with the caches of an earlier batch, if there is any. Never waits for the lock: in a
    /// forked process, the thread that held it may not exist.
    fn take_scratch(&self) -> Scratch {
        self.scratch_pool.try_lock().ok().and_then(|mut scratch_pool| scratch_pool.pop()).unwrap_or_default()
    }

    fn return_scratch(&self, scratch: Scratch) {
        if let Ok(mut scratch_pool) = self.scratch_pool.try_lock() {
            scratch_pool.push(scratch);
        }
    }

    /// Returns the number of a database.
    ///
    /// # Errors
    /// The catalog has no such database.
    pub fn database(&self, name: &str) -> Result<u16> {
        self.index.catalog().database(name.as_bytes()).ok_or_else(|| {
            let kind = InvalidKind::UnknownDatabase;
            Invalid::new(kind, columns::DATABASE, None, Some(name.as_bytes()), self.index.catalog().expected_database())
                .into()
        })
    }

    fn columns<'a>(&self, source: Source<'a>) -> Result<Conversations<'a>> {
        source.reject_duplicates(&columns::ALL)?;
        let names = source.text(columns::TO_SERVICE_NAME)?;
        let databases = source.optional_text(columns::DATABASE)?;
        let only_database = match (&databases, self.index.catalog().user_database()) {
            (None, Some(only_database)) => only_database,
            (None, None) => {
                let expected =
                    "a database name, because the catalog does not have exactly one user database".to_owned();
                return Err(Error::Schema { column: columns::DATABASE.to_owned(), expected, actual: None });
            }
            (Some(_), _) => 0,
        };
        let mut ids = source.guids(columns::CONVERSATION_ID)?;
        if ids.is_none() {
            ids = source.guids(columns::CONVERSATION_HANDLE)?;
        }
        let brokers = source.guids(columns::TO_BROKER_INSTANCE)?;
        let is_initiator = source.nullable_booleans(columns::IS_INITIATOR)?;
        let fixed_ids =
            ids.as_ref().and_then(|ids| ids.view.fixed(16)).map_or(&[][..], |bytes| bytes.as_chunks::<16>().0);
        Ok(Conversations { source, names, brokers, databases, is_initiator, ids, fixed_ids, only_database })
    }

    /// Reads up to `len` rows, at most a block.
    fn read_block<'a>(
        &self,
        conversations: &Conversations<'a>,
        start: usize,
        len: usize,
        into: &mut BlockInput<'a>,
        answers: &mut Answers,
    ) -> Result<()> {
        let len = (conversations.source.batch.num_rows() - start).min(len);
        into.block.len = len;
        conversations.read_names(start, len, into)?;
        into.block.has_broker = match &conversations.brokers {
            Some(brokers) => brokers.get_block(start, len, &mut answers.brokers)?,
            None => 0,
        };
        conversations.read_ids(start, len, self.index.options().tie_break, into)?;
        let from_outside = self.read_databases(conversations, start, len, into)?;
        into.block.from_target =
            conversations.is_initiator.as_ref().map_or(0, |flags| !bits(flags.values(), start, len) & ones(len));
        let outside = self.index.source(None, true, None);
        for row in set_bits(from_outside) {
            into.block.sources[row] = outside;
        }
        for row in set_bits(from_outside & into.block.from_target & into.block.has_broker) {
            into.block.sources[row] = self.index.source(None, false, Some(answers.brokers[row]));
        }
        Ok(())
    }

    /// Determines the database in which each conversation started. Returns a mask of those from other instances.
    fn read_databases<'a>(
        &self,
        conversations: &Conversations<'a>,
        start: usize,
        len: usize,
        into: &mut BlockInput<'a>,
    ) -> Result<u64> {
        let catalog = self.index.catalog();
        let BlockInput { block: Block { sources: into, .. }, recent, .. } = into;
        let Some(databases) = &conversations.databases else {
            into[..len].fill(conversations.only_database);
            return Ok(0);
        };
        let valid = databases.valid_bits(start, len);
        for (destination, table) in into[..len].iter_mut().enumerate() {
            if valid >> destination & 1 == 0 {
                continue;
            }
            let row = start + destination;
            let name = databases.get(row).map_err(|_| conversations.source.out_of_bounds(columns::DATABASE, row))?;
            let same = &mut recent[database_slot(name)];
            if name != same.0 || name.is_empty() {
                let Some(number) = catalog.database(name) else {
                    let expected = self.index.catalog().expected_database();
                    let kind = InvalidKind::UnknownDatabase;
                    return Err(conversations.source.invalid(kind, columns::DATABASE, row, Some(name), &expected));
                };
                *same = (name, number);
            }
            *table = same.1;
        }
        Ok(!valid & ones(len))
    }
}

impl<'a> Conversations<'a> {
    fn check_directions(&self, start: usize, len: usize) -> Result<()> {
        let Some(flags) = &self.is_initiator else { return Ok(()) };
        self.source.check_booleans(columns::IS_INITIATOR, flags, start, len)
    }

    fn read_names(&self, start: usize, len: usize, into: &mut BlockInput<'a>) -> Result<()> {
        let names = &mut into.block.names[..len];
        self.names.get_block(start, names).map_err(|row| self.source.out_of_bounds(columns::TO_SERVICE_NAME, row))?;
        let valid = self.names.valid_bits(start, len);
        if valid != ones(len) {
            let row = start + valid.trailing_ones() as usize;
            return Err(self.source.null(columns::TO_SERVICE_NAME, row, "the name of the target service"));
        }
        Ok(())
    }

    fn read_ids(&self, start: usize, len: usize, tie_break: TieBreak, into: &mut BlockInput<'a>) -> Result<()> {
        let Some(ids) = &self.ids else { return Ok(()) };
        let is_hash = tie_break == TieBreak::Hash;
        let valid = match self.fixed_ids {
            [] if is_hash => ids.get_block(start, len, &mut into.ids)?,
            _ => ids.check_block(start, len, &mut into.ids)?,
        };
        if is_hash && valid != ones(len) {
            let row = start + valid.trailing_ones() as usize;
            let expected = "a conversation id for each row, to break ties";
            return Err(self.source.null(ids.column(), row, expected));
        }
        Ok(())
    }
}

impl<'a> BlockInput<'a> {
    fn new() -> Self {
        let block = Block { len: 0, names: [&[]; BLOCK], sources: [0; BLOCK], has_broker: 0, from_target: 0 };
        Self { block, ids: [Guid::default(); BLOCK], recent: [(&[], 0); RECENT_DATABASES] }
    }

    fn query(&self, row: usize, answers: &Answers, id: Guid, databases: usize) -> Query<'a> {
        let is = |bits: u64| bits >> row & 1 == 1;
        Query {
            name: self.block.names[row],
            broker: is(self.block.has_broker).then(|| answers.brokers[row]),
            database: Some(self.block.sources[row]).filter(|&source| usize::from(source) < databases),
            is_initiator: !is(self.block.from_target),
            conversation: Some(id),
        }
    }
}

/// What a decision without a tie depends on: service name, broker id, database and direction.
type DecidedBy<'a> = (&'a [u8], Option<Guid>, Option<u16>, bool);

/// The maximum number of decisions by `decide` that a batch remembers.
const REMEMBERED_MAX: usize = 1024;

/// The maximum number of database names that a batch remembers.
const RECENT_DATABASES: usize = 16;

/// Returns the slot in which a batch remembers a database; databases with the same slot replace each other.
#[inline]
fn database_slot(name: &[u8]) -> usize {
    let ends = name.first().zip(name.last()).map_or(0, |(&first, &last)| usize::from(first) * 3 + usize::from(last));
    (ends + name.len()) % RECENT_DATABASES
}

/// Reports a row that needs a conversation id in a batch without such a column.
#[cold]
fn missing_ids(row: usize) -> Error {
    let expected = format!(
        "a conversation id for each row, or a router with tie_break=\"first\", because row {row} has several equal candidates"
    );
    Error::Schema { column: columns::CONVERSATION_ID.to_owned(), expected, actual: None }
}
