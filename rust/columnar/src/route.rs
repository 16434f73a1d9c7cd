//! Conversations in, decisions out.

use std::sync::Mutex;

use arrow_array::{BooleanArray, RecordBatch};
use ssbroker_core::route::{Answers, BLOCK, Block, Scratch, Stages};
use ssbroker_core::{Guid, Invalid, InvalidKind, Query, RouteIndex, TieBreak};

use crate::columns::{Guids, Source};
use crate::decisions::{Answered, Decided, Decisions, Labels, Sink};
use crate::error::{Error, Result};
use crate::packed_decisions::{Places, Verdicts};
use crate::schema::conversations as columns;
use crate::view::{BytesView, bits, ones, set_bits};

/// An index, ready to route record batches.
#[derive(Debug)]
pub struct RouteKernel {
    index: RouteIndex,
    labels: Labels,
    places: Option<Places>,
    any_disabled: bool,
    /// As many as batches were ever routed at once.
    rooms: Mutex<Vec<Scratch>>,
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
    /// The conversation ids, where they lie one after the other.
    fixed_ids: &'a [[u8; 16]],
    /// The database of all rows where the column is left out.
    lone: u16,
}

/// A block of 64 conversations, and what the index does not need to know of them.
#[derive(Debug)]
struct Gathered<'a> {
    block: Block<'a>,
    ids: [Guid; BLOCK],
    from_outside: u64,
    from_target: u64,
}

impl RouteKernel {
    /// A kernel over a compiled catalog.
    #[must_use]
    pub fn new(index: RouteIndex) -> Self {
        let catalog = index.catalog();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let endpoints = (0..catalog.endpoint_count() as u32).map(|id| text(catalog.endpoint(id)));
        let labels = Labels::new(endpoints, catalog.databases().iter().map(|database| text(&database.name)));
        let any_disabled = catalog.databases().iter().any(|database| !database.enabled);
        let places = Places::new(catalog);
        Self { index, labels, places, any_disabled, rooms: Mutex::default() }
    }

    /// The index.
    #[must_use]
    pub fn index(&self) -> &RouteIndex {
        &self.index
    }

    /// Decides every conversation of a batch at the moment `now`, in microseconds since 1970. `first_row` is the place of the batch's
    /// first row in the whole input, for errors.
    ///
    /// # Errors
    /// A missing or mistyped column, or the first value that is not what was expected; then nothing is decided.
    pub fn route(&self, batch: &RecordBatch, now: i64, first_row: usize) -> Result<Decided> {
        let mut decisions = Decisions::new(batch.num_rows(), &self.labels);
        self.decide_into(batch, now, first_row, &mut decisions)?;
        decisions.finish(&self.labels)
    }

    /// The same as numbers, where [`places`](crate::places) has some; the ids that conversations name are left out unless
    /// `tells_named`.
    ///
    /// # Errors
    /// As `route`.
    pub fn verdicts(&self, batch: &RecordBatch, now: i64, tells_named: bool) -> Result<Option<RecordBatch>> {
        let Some(places) = &self.places else { return Ok(None) };
        let mut verdicts = Verdicts::new(batch.num_rows(), places, tells_named);
        self.decide_into(batch, now, 0, &mut verdicts)?;
        verdicts.finish().map(Some)
    }

    fn decide_into(&self, batch: &RecordBatch, now: i64, first_row: usize, sink: &mut impl Sink) -> Result<()> {
        let conversations = self.columns(Source { batch, table: "", first_row })?;
        let len = batch.num_rows();
        let mut gathered = Gathered::new();
        let mut answers = Answers::default();
        let mut stages = Stages::default();
        let mut room = self.take_room();
        let is_forwarding = self.index.catalog().settings().message_forwarding;
        if self.index.options().tie_break == TieBreak::RoundRobin {
            // A batch that raises must take nobody's turn, so all of it is read before the first one is taken.
            for start in (0..len).step_by(BLOCK) {
                self.gather(&conversations, start, &mut gathered, &mut answers)?;
            }
        }
        for start in (0..len).step_by(BLOCK) {
            self.gather(&conversations, start, &mut gathered, &mut answers)?;
            let fixed = conversations.fixed_ids.get(start..);
            let id = |row: usize| fixed.and_then(|ids| ids.get(row)).map_or_else(|| gathered.ids[row], |id| Guid(*id));
            self.index.resolve(&gathered.block, now, id, &mut stages, &mut room, &mut answers);
            let (len, from_outside) = (gathered.block.len, gathered.from_outside);
            let blocked = if is_forwarding { 0 } else { from_outside };
            let has_broker = gathered.block.has_broker;
            sink.push(&Answered { answers: &answers, has_broker, from_outside, blocked, len });
            for row in set_bits(answers.needs_decide & ones(len)) {
                let query = gathered.query(row, answers.brokers[row], id(row));
                let decision = self.index.decide_with(&query, now, &mut room);
                sink.set(row, decision);
            }
        }
        self.give_room(room);
        Ok(())
    }

    /// A room that remembers what was found in an earlier batch, if there is one. Nobody waits for one: a process that was forked
    /// while another thread held the lock would wait for ever.
    fn take_room(&self) -> Scratch {
        self.rooms.try_lock().ok().and_then(|mut rooms| rooms.pop()).unwrap_or_default()
    }

    fn give_room(&self, room: Scratch) {
        if let Ok(mut rooms) = self.rooms.try_lock() {
            rooms.push(room);
        }
    }

    /// The number of a database.
    ///
    /// # Errors
    /// The catalog has no such database.
    pub fn database(&self, name: &str) -> Result<u16> {
        self.index.catalog().database(name.as_bytes()).ok_or_else(|| {
            let kind = InvalidKind::UnknownDatabase;
            Invalid::new(kind, columns::DATABASE, None, Some(name.as_bytes()), self.known_databases()).into()
        })
    }

    fn known_databases(&self) -> String {
        let databases = self.index.catalog().databases();
        let names = databases.iter().take(10).map(|database| String::from_utf8_lossy(&database.name));
        format!("one of {}", names.collect::<Vec<_>>().join(", "))
    }

    fn columns<'a>(&self, source: Source<'a>) -> Result<Conversations<'a>> {
        source.each_once(&columns::ALL)?;
        let names = source.text(columns::TO_SERVICE_NAME)?;
        let databases = source.optional_text(columns::DATABASE)?;
        let lone = match (&databases, self.index.catalog().user_database()) {
            (None, Some(lone)) => lone,
            (None, None) => {
                let expected = "the name of a database: the catalog has several user databases, or none".to_owned();
                return Err(Error::Schema { column: columns::DATABASE.to_owned(), expected, actual: None });
            }
            (Some(_), _) => 0,
        };
        let mut ids = source.guids(columns::CONVERSATION_ID)?;
        if ids.is_none() {
            ids = source.guids(columns::CONVERSATION_HANDLE)?;
        }
        if ids.is_none() && self.index.options().tie_break == TieBreak::Hash {
            let expected =
                "a GUID for each conversation, by whose hash ties are broken (or tie_break=\"first\")".to_owned();
            return Err(Error::Schema { column: columns::CONVERSATION_ID.to_owned(), expected, actual: None });
        }
        let brokers = source.guids(columns::TO_BROKER_INSTANCE)?;
        let is_initiator = source.booleans(columns::IS_INITIATOR)?;
        let fixed_ids =
            ids.as_ref().and_then(|ids| ids.view.fixed(16)).map_or(&[][..], |bytes| bytes.as_chunks::<16>().0);
        Ok(Conversations { source, names, brokers, databases, is_initiator, ids, fixed_ids, lone })
    }

    fn gather<'a>(
        &self,
        conversations: &Conversations<'a>,
        start: usize,
        into: &mut Gathered<'a>,
        answers: &mut Answers,
    ) -> Result<()> {
        let len = (conversations.source.batch.num_rows() - start).min(BLOCK);
        into.block.len = len;
        conversations.gather_names(start, len, into)?;
        into.block.has_broker = match &conversations.brokers {
            Some(brokers) => brokers.get_block(start, len, &mut answers.brokers)?,
            None => 0,
        };
        conversations.gather_ids(start, len, self.index.options().tie_break, into)?;
        into.from_outside = self.gather_tables(conversations, start, len, &mut into.block.tables)?;
        into.from_target =
            conversations.is_initiator.as_ref().map_or(0, |flags| !flag_bits(flags, start, len) & ones(len));
        into.block.needs_decide = self.needs_decide(into);
        Ok(())
    }

    /// The conversations that the index cannot decide whatever their routes: replies (R7), and what leaves a database whose delivery
    /// is disabled (R34).
    fn needs_decide(&self, gathered: &Gathered<'_>) -> u64 {
        let catalog = self.index.catalog();
        let replies = gathered.from_outside & gathered.from_target;
        let mut disabled = 0;
        if self.any_disabled {
            for (row, &table) in gathered.block.tables[..gathered.block.len].iter().enumerate() {
                disabled |= u64::from(!catalog.databases()[usize::from(table)].enabled) << row;
            }
        }
        replies | disabled
    }

    /// The table that each conversation reads (R2); the result has one bit for each that came from outside.
    fn gather_tables(
        &self,
        conversations: &Conversations<'_>,
        start: usize,
        len: usize,
        into: &mut [u16; BLOCK],
    ) -> Result<u64> {
        let catalog = self.index.catalog();
        let Some(databases) = &conversations.databases else {
            into[..len].fill(conversations.lone);
            return Ok(0);
        };
        let valid = databases.valid_bits(start, len);
        let mut last: (&[u8], u16) = (&[], 0);
        for (place, table) in into[..len].iter_mut().enumerate() {
            if valid >> place & 1 == 0 {
                *table = catalog.msdb();
                continue;
            }
            let row = start + place;
            let name = databases.get(row).map_err(|_| conversations.source.out_of_bounds(columns::DATABASE, row))?;
            if name != last.0 || name.is_empty() {
                let Some(number) = catalog.database(name) else {
                    let expected = self.known_databases();
                    let kind = InvalidKind::UnknownDatabase;
                    return Err(conversations.source.invalid(kind, columns::DATABASE, row, Some(name), &expected));
                };
                last = (name, number);
            }
            *table = last.1;
        }
        Ok(!valid & ones(len))
    }
}

impl<'a> Conversations<'a> {
    fn gather_names(&self, start: usize, len: usize, into: &mut Gathered<'a>) -> Result<()> {
        let names = &mut into.block.names[..len];
        self.names.get_block(start, names).map_err(|row| self.source.out_of_bounds(columns::TO_SERVICE_NAME, row))?;
        let valid = self.names.valid_bits(start, len);
        if valid != ones(len) {
            let row = start + valid.trailing_ones() as usize;
            return Err(self.source.null(columns::TO_SERVICE_NAME, row, "the name of the target service"));
        }
        Ok(())
    }

    fn gather_ids(&self, start: usize, len: usize, tie_break: TieBreak, into: &mut Gathered<'a>) -> Result<()> {
        let Some(ids) = &self.ids else { return Ok(()) };
        let is_hash = tie_break == TieBreak::Hash;
        let valid = match self.fixed_ids {
            [] if is_hash => ids.get_block(start, len, &mut into.ids)?,
            _ => ids.check_block(start, len, &mut into.ids)?,
        };
        if is_hash && valid != ones(len) {
            let row = start + valid.trailing_ones() as usize;
            let expected = "a GUID for each conversation, by whose hash ties are broken";
            return Err(self.source.null(ids.column(), row, expected));
        }
        Ok(())
    }
}

impl<'a> Gathered<'a> {
    fn new() -> Self {
        let block = Block { len: 0, names: [&[]; BLOCK], tables: [0; BLOCK], has_broker: 0, needs_decide: 0 };
        Self { block, ids: [Guid::default(); BLOCK], from_outside: 0, from_target: 0 }
    }

    fn query(&self, row: usize, broker: Guid, id: Guid) -> Query<'a> {
        let is = |bits: u64| bits >> row & 1 == 1;
        Query {
            name: self.block.names[row],
            broker: is(self.block.has_broker).then_some(broker),
            database: (!is(self.from_outside)).then(|| self.block.tables[row]),
            is_initiator: !is(self.from_target),
            conversation: Some(id),
        }
    }
}

/// Up to 64 booleans from `start`, one bit each.
fn flag_bits(flags: &BooleanArray, start: usize, len: usize) -> u64 {
    bits(flags.values(), start, len)
}
