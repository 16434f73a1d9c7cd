//! A block of conversations that the index has answered, and what is made of blocks.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, FixedSizeBinaryArray, Int8Array, Int32Array, RecordBatch, StringArray};
use arrow_buffer::{ArrowNativeType, BooleanBuffer, Buffer, NullBuffer, ScalarBuffer};
use ssbroker_core::route::{Answers, BLOCK};
use ssbroker_core::{Decision, Guid, NextHop, Outcome, Reason};

use crate::error::{Result, internal};
use crate::schema::decisions_schema;
use crate::view::{ones, set_bits};

/// The answers to up to 64 conversations; a mask has one bit for each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered<'a> {
    pub(crate) answers: &'a Answers,
    /// They name a broker id.
    pub(crate) has_broker: u64,
    pub(crate) from_outside: u64,
    /// What came from outside and may not be forwarded (R25).
    pub(crate) blocked: u64,
    pub(crate) len: usize,
}

/// What is told of each conversation of a block.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) outcome: [i8; BLOCK],
    pub(crate) reason: [i8; BLOCK],
    pub(crate) steps: [i8; BLOCK],
}

/// What takes decisions, block by block.
pub(crate) trait Sink {
    /// Appends the conversations of a block; those that are left to `decide` must be set afterwards.
    fn push(&mut self, block: &Answered<'_>);

    /// Sets a conversation of the last block that was left to `decide`.
    fn set(&mut self, row: usize, decision: Decision);
}

impl Answered<'_> {
    #[inline]
    pub(crate) fn told(&self) -> Told {
        let answers = self.answers;
        let mut outcome = [Outcome::Remote as i8; BLOCK];
        let mut reason = [Reason::Matched as i8; BLOCK];
        for row in set_bits(self.from_outside & answers.network) {
            outcome[row] = Outcome::Forward as i8;
        }
        for row in set_bits(self.blocked & answers.network) {
            (outcome[row], reason[row]) = (Outcome::Dropped as i8, Reason::ForwardingDisabled as i8);
        }
        for row in set_bits(answers.local) {
            outcome[row] = Outcome::Local as i8;
        }
        let mut steps = answers.steps;
        for row in set_bits(answers.no_route) {
            (outcome[row], reason[row], steps[row]) = (Outcome::Delayed as i8, Reason::NoRoute as i8, 7);
        }
        Told { outcome, reason, steps }
    }
}

// The decisions of a batch, gathered by blocks of 64 into columns.

/// A dictionary with more values than this is cut down to those in use where the batch is not much larger than it.
const DICTIONARY_SMALL: usize = 16_384;

/// As many bytes as the columns without a value share, as long as they need no more.
const ZEROS: usize = 1 << 20;

/// The decisions of a batch, but for the dictionaries, which are yet to be put together.
#[derive(Debug)]
pub struct Decided {
    columns: Vec<Column>,
}

#[derive(Debug)]
enum Column {
    Values(ArrayRef),
    Coded(Coded),
}

/// Codes, and the values that they stand for.
///
/// Invariant: a code that is not null is the number of a value.
#[derive(Debug)]
pub struct Coded {
    codes: ArrayRef,
    values: ArrayRef,
}

/// What all batches share: the values of the dictionaries, and zeros.
#[derive(Debug)]
pub(crate) struct Labels {
    outcomes: ArrayRef,
    reasons: ArrayRef,
    endpoints: Arc<StringArray>,
    databases: Arc<StringArray>,
    none: ArrayRef,
    zeros: Buffer,
}

/// A column of a whole batch.
#[derive(Debug)]
struct Whole<T> {
    /// Nothing as long as no row has a value: `empty` counts those rows.
    values: Vec<T>,
    empty: usize,
    room: usize,
    valid: Vec<u64>,
}

/// The decisions of a batch.
#[derive(Debug)]
pub(crate) struct Decisions {
    outcome: Vec<i8>,
    reason: Vec<i8>,
    step: Whole<i8>,
    route_id: Whole<i32>,
    next_hop: Whole<i32>,
    mirror: Whole<i32>,
    database: Whole<i32>,
    broker: Whole<Guid>,
    /// Next hops that stand in service names, behind those of the catalog.
    named: HashMap<String, i32>,
    known: usize,
}

impl Decided {
    /// The record batch. `dictionary` puts codes and values together.
    ///
    /// # Errors
    /// None that is known; the batch is checked against its schema.
    pub fn into_batch(self, dictionary: impl Fn(Coded) -> ArrayRef) -> Result<RecordBatch> {
        let columns = self.columns.into_iter().map(|column| match column {
            Column::Values(values) => values,
            Column::Coded(coded) => dictionary(coded),
        });
        RecordBatch::try_new(decisions_schema(), columns.collect()).map_err(|error| internal(&error))
    }
}

impl Coded {
    fn column<T: ArrowNativeType>(codes: &ScalarBuffer<T>, array: ArrayRef, values: ArrayRef) -> Column {
        let is_value = |row: usize, code: &T| array.is_null(row) || code.as_usize() < values.len();
        debug_assert!(codes.iter().enumerate().all(|(row, code)| is_value(row, code)));
        Column::Coded(Self { codes: array, values })
    }

    /// The codes, and the values that they stand for: a code that is not null is the number of a value.
    #[must_use]
    pub fn into_parts(self) -> (ArrayRef, ArrayRef) {
        (self.codes, self.values)
    }
}

impl Labels {
    pub(crate) fn new(endpoints: impl Iterator<Item = String>, databases: impl Iterator<Item = String>) -> Self {
        Self {
            outcomes: Arc::new(StringArray::from_iter_values(Outcome::LABELS)),
            reasons: Arc::new(StringArray::from_iter_values(Reason::LABELS)),
            endpoints: Arc::new(StringArray::from_iter_values(endpoints)),
            databases: Arc::new(StringArray::from_iter_values(databases)),
            none: Arc::new(StringArray::new_null(0)),
            // It comes from the system untouched, and nothing touches it afterwards.
            zeros: Buffer::from_vec(vec![0u8; ZEROS]),
        }
    }
}

impl<T: Copy + Default> Whole<T> {
    fn new(rows: usize) -> Self {
        Self { values: Vec::new(), room: rows, empty: 0, valid: Vec::with_capacity(rows.div_ceil(BLOCK)) }
    }

    /// Appends the rows of a block; a bit of `valid` says which of them have a value.
    #[inline]
    fn push(&mut self, block: &[T], valid: u64) {
        self.valid.push(valid);
        if valid == 0 && self.values.is_empty() {
            self.empty += block.len();
            return;
        }
        self.begin();
        self.values.extend_from_slice(block);
    }

    fn begin(&mut self) {
        if self.values.is_empty() {
            self.values.reserve_exact(self.room);
            self.values.resize(self.empty, T::default());
        }
    }

    /// Sets a row of the last block.
    fn set(&mut self, row: usize, value: Option<T>) {
        let Some(value) = value else { return };
        self.begin();
        let last = self.valid.len().saturating_sub(1);
        self.values[last * BLOCK + row] = value;
        self.valid[last] |= 1 << row;
    }

    /// The values as they lie in memory, and which of them there are.
    fn finish(self, rows: usize, zeros: &Buffer, write: impl Fn(Vec<T>) -> Buffer) -> (Buffer, Option<NullBuffer>) {
        if self.values.is_empty() && rows * size_of::<T>() <= zeros.len() {
            let nulls = NullBuffer::new(BooleanBuffer::new(zeros.clone(), 0, rows));
            return (zeros.slice_with_length(0, rows * size_of::<T>()), Some(nulls));
        }
        let nulls = NullBuffer::new(BooleanBuffer::new(Buffer::from_vec(self.valid), 0, rows));
        let values = if self.values.is_empty() { vec![T::default(); rows] } else { self.values };
        (write(values), (nulls.null_count() > 0).then_some(nulls))
    }
}

impl Decisions {
    pub(crate) fn new(rows: usize, labels: &Labels) -> Self {
        Self {
            outcome: Vec::with_capacity(rows),
            reason: Vec::with_capacity(rows),
            step: Whole::new(rows),
            route_id: Whole::new(rows),
            next_hop: Whole::new(rows),
            mirror: Whole::new(rows),
            database: Whole::new(rows),
            broker: Whole::new(rows),
            named: HashMap::new(),
            known: labels.endpoints.len(),
        }
    }

    fn code(&mut self, hop: NextHop) -> i32 {
        match hop {
            NextHop::Known(endpoint) => endpoint as i32,
            NextHop::Named(normal) => {
                let next = (self.known + self.named.len()) as i32;
                *self.named.entry(normal).or_insert(next)
            }
        }
    }

    pub(crate) fn finish(self, labels: &Labels) -> Result<Decided> {
        let (rows, zeros) = (self.outcome.len(), &labels.zeros);
        let mut named: Vec<(i32, String)> = self.named.into_iter().map(|(name, code)| (code, name)).collect();
        named.sort_unstable();
        let (broker, nulls) = self.broker.finish(rows, zeros, |brokers| {
            Buffer::from_vec(brokers.into_iter().map(|broker| broker.0).collect::<Vec<_>>().into_flattened())
        });
        let broker = FixedSizeBinaryArray::try_new(16, broker, nulls).map_err(|error| internal(&error))?;
        let (step, nulls) = self.step.finish(rows, zeros, Buffer::from_vec);
        let step = Int8Array::new(ScalarBuffer::new(step, 0, rows), nulls);
        let (route_id, nulls) = self.route_id.finish(rows, zeros, Buffer::from_vec);
        let route_id = Int32Array::new(ScalarBuffer::new(route_id, 0, rows), nulls);
        let columns = vec![
            few(self.outcome, &labels.outcomes),
            Column::Values(Arc::new(step)),
            Column::Values(Arc::new(route_id)),
            many(self.next_hop, rows, labels, &labels.endpoints, &named),
            many(self.mirror, rows, labels, &labels.endpoints, &[]),
            many(self.database, rows, labels, &labels.databases, &[]),
            Column::Values(Arc::new(broker)),
            few(self.reason, &labels.reasons),
        ];
        Ok(Decided { columns })
    }
}

impl Sink for Decisions {
    #[inline]
    fn push(&mut self, block: &Answered<'_>) {
        let Answered { answers, has_broker, blocked, len, .. } = *block;
        let told = block.told();
        let mask = ones(len);
        let (network, local) = (answers.network & mask, answers.local & mask);
        self.outcome.extend_from_slice(&told.outcome[..len]);
        self.reason.extend_from_slice(&told.reason[..len]);
        self.step.push(&told.steps[..len], (network | local | answers.no_route) & mask);
        self.route_id.push(&answers.route_ids[..len], network | local);
        self.next_hop.push(&answers.to[..len], network & !blocked);
        self.mirror.push(&answers.to[..len], 0);
        self.database.push(&answers.to[..len], local);
        self.broker.push(&answers.brokers[..len], (has_broker | answers.bound) & mask);
    }

    fn set(&mut self, row: usize, decision: Decision) {
        let place = self.outcome.len().saturating_sub(1) / BLOCK * BLOCK + row;
        self.outcome[place] = decision.outcome as i8;
        self.reason[place] = decision.reason as i8;
        self.step.set(row, decision.match_step);
        self.route_id.set(row, decision.route_id);
        self.mirror.set(row, decision.mirror.map(|mirror| mirror as i32));
        self.database.set(row, decision.database.map(i32::from));
        self.broker.set(row, decision.broker);
        let hop = decision.next_hop.map(|hop| self.code(hop));
        self.next_hop.set(row, hop);
    }
}

/// Outcomes or reasons.
fn few(codes: Vec<i8>, values: &ArrayRef) -> Column {
    let codes = ScalarBuffer::from(codes);
    Coded::column(&codes, Arc::new(Int8Array::new(codes.clone(), None)), Arc::clone(values))
}

/// Addresses or databases, with the values that belong to them: `known` as it is where it is small beside the batch, else only the
/// values in use.
fn many(column: Whole<i32>, rows: usize, labels: &Labels, known: &Arc<StringArray>, named: &[(i32, String)]) -> Column {
    let with = |codes: ScalarBuffer<i32>, nulls: Option<NullBuffer>, values: ArrayRef| {
        Coded::column(&codes, Arc::new(Int32Array::new(codes.clone(), nulls)), values)
    };
    let is_empty = column.values.is_empty();
    let (codes, nulls) = column.finish(rows, &labels.zeros, Buffer::from_vec);
    let codes = ScalarBuffer::new(codes, 0, rows);
    if is_empty {
        return with(codes, nulls, Arc::clone(&labels.none));
    }
    if named.is_empty() && known.len() <= DICTIONARY_SMALL.max(rows / 4) {
        return with(codes, nulls, Arc::<StringArray>::clone(known));
    }
    let text = |code: i32| match usize::try_from(code).ok().filter(|&code| code < known.len()) {
        Some(code) => known.value(code),
        None => &named[code as usize - known.len()].1,
    };
    let mut places = vec![0i32; known.len() + named.len()];
    let mut used = Vec::new();
    let mut places_of = Vec::with_capacity(rows);
    for (row, &code) in codes.iter().enumerate() {
        if nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
            places_of.push(0);
            continue;
        }
        let place = &mut places[code as usize];
        if *place == 0 {
            used.push(text(code));
            *place = used.len() as i32;
        }
        places_of.push(*place - 1);
    }
    with(ScalarBuffer::from(places_of), nulls, Arc::new(StringArray::from_iter_values(used)))
}
