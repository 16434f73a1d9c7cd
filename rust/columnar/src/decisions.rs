//! The decisions of a batch, gathered by blocks of 64 into columns.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::types::{ArrowDictionaryKeyType, Int8Type, Int32Type};
use arrow_array::{Array, ArrayRef, DictionaryArray, FixedSizeBinaryArray, Int8Array, Int32Array, PrimitiveArray, RecordBatch, StringArray};
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer, ScalarBuffer};
use ssbroker_core::route::BLOCK;
use ssbroker_core::{Decision, Guid, NextHop, Outcome, Reason};

use crate::catalog::internal;
use crate::error::Result;
use crate::schema::decisions_schema;

/// A dictionary with more values than this is cut down to those in use where the batch is not much larger than it.
const DICTIONARY_SMALL: usize = 1_024;

/// The values of the dictionaries, shared by all batches.
#[derive(Debug)]
pub(crate) struct Labels {
    outcomes: ArrayRef,
    reasons: ArrayRef,
    endpoints: Arc<StringArray>,
    databases: Arc<StringArray>,
}

/// A column of up to 64 values, and which of them are there.
#[derive(Debug)]
struct Column<T> {
    values: [T; BLOCK],
    valid: u64,
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

/// The decisions of a block.
#[derive(Debug)]
pub(crate) struct Rows {
    outcome: [i8; BLOCK],
    reason: [i8; BLOCK],
    step: Column<i8>,
    route_id: Column<i32>,
    next_hop: Column<i32>,
    mirror: Column<i32>,
    database: Column<i32>,
    /// The bytes of GUIDs, in the order in which they lie in memory.
    broker: Column<i128>,
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
    broker: Whole<i128>,
    /// Next hops that stand in service names, behind those of the catalog.
    named: HashMap<String, i32>,
    known: usize,
}

impl Labels {
    pub(crate) fn new(endpoints: impl Iterator<Item = String>, databases: impl Iterator<Item = String>) -> Self {
        Self {
            outcomes: Arc::new(StringArray::from_iter_values(Outcome::LABELS)),
            reasons: Arc::new(StringArray::from_iter_values(Reason::LABELS)),
            endpoints: Arc::new(StringArray::from_iter_values(endpoints)),
            databases: Arc::new(StringArray::from_iter_values(databases)),
        }
    }
}

impl<T: Copy + Default> Column<T> {
    fn new() -> Self {
        Self { values: [T::default(); BLOCK], valid: 0 }
    }

    #[inline]
    fn set(&mut self, row: usize, value: T) {
        self.values[row] = value;
        self.valid |= 1 << row;
    }

    #[inline]
    fn set_optional(&mut self, row: usize, value: Option<T>) {
        if let Some(value) = value {
            self.set(row, value);
        }
    }
}

impl<T: Copy + Default> Whole<T> {
    fn new(rows: usize) -> Self {
        Self { values: Vec::new(), room: rows, empty: 0, valid: Vec::with_capacity(rows.div_ceil(BLOCK)) }
    }

    #[inline]
    fn push(&mut self, column: &Column<T>, len: usize) {
        self.valid.push(column.valid);
        if column.valid == 0 && self.values.is_empty() {
            self.empty += len;
            return;
        }
        if self.values.is_empty() {
            self.values.reserve_exact(self.room);
            self.values.resize(self.empty, T::default());
        }
        self.values.extend_from_slice(&column.values[..len]);
    }

    fn finish(self, rows: usize) -> (Vec<T>, Option<NullBuffer>) {
        let nulls = NullBuffer::new(BooleanBuffer::new(Buffer::from_vec(self.valid), 0, rows));
        // Zeroed memory comes from the system untouched, so a column without a value costs next to nothing.
        let values = if self.values.is_empty() { vec![T::default(); rows] } else { self.values };
        (values, (nulls.null_count() > 0).then_some(nulls))
    }
}

impl Rows {
    pub(crate) fn new() -> Self {
        Self {
            outcome: [0; BLOCK],
            reason: [0; BLOCK],
            step: Column::new(),
            route_id: Column::new(),
            next_hop: Column::new(),
            mirror: Column::new(),
            database: Column::new(),
            broker: Column::new(),
        }
    }

    /// Begins a block whose conversations name these broker ids.
    #[inline]
    pub(crate) fn begin(&mut self, brokers: &[Guid; BLOCK], has_broker: u64) {
        self.broker = Column { values: brokers.map(bytes_of), valid: has_broker };
        for valid in [&mut self.step.valid, &mut self.route_id.valid, &mut self.next_hop.valid] {
            *valid = 0;
        }
        self.mirror.valid = 0;
        self.database.valid = 0;
    }

    /// The broker id of the route binds a conversation that names none (K18).
    #[inline]
    fn bind(&mut self, row: usize, broker: Option<Guid>) {
        if self.broker.valid >> row & 1 == 0 {
            self.broker.set_optional(row, broker.map(bytes_of));
        }
    }

    #[inline]
    pub(crate) fn network(&mut self, row: usize, step: i8, route_id: i32, endpoint: u32, broker: Option<Guid>, is_from_outside: bool) {
        self.outcome[row] = Outcome::Remote as i8 + i8::from(is_from_outside);
        self.reason[row] = Reason::Matched as i8;
        self.step.set(row, step);
        self.route_id.set(row, route_id);
        self.next_hop.set(row, endpoint as i32);
        self.bind(row, broker);
    }

    #[inline]
    pub(crate) fn local(&mut self, row: usize, step: i8, route_id: i32, database: u32, broker: Option<Guid>) {
        self.outcome[row] = Outcome::Local as i8;
        self.reason[row] = Reason::Matched as i8;
        self.step.set(row, step);
        self.route_id.set(row, route_id);
        self.database.set(row, database as i32);
        self.bind(row, broker);
    }

    #[inline]
    pub(crate) fn no_route(&mut self, row: usize) {
        self.outcome[row] = Outcome::Delayed as i8;
        self.reason[row] = Reason::NoRoute as i8;
        self.step.set(row, 7);
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

    /// Writes a decision into its row of a block.
    pub(crate) fn set(&mut self, rows: &mut Rows, row: usize, decision: Decision) {
        rows.outcome[row] = decision.outcome as i8;
        rows.reason[row] = decision.reason as i8;
        rows.step.set_optional(row, decision.match_step);
        rows.route_id.set_optional(row, decision.route_id);
        rows.mirror.set_optional(row, decision.mirror.map(|mirror| mirror as i32));
        rows.database.set_optional(row, decision.database.map(i32::from));
        rows.bind(row, decision.broker);
        rows.next_hop.set_optional(row, decision.next_hop.map(|hop| self.code(hop)));
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

    /// Appends the first `len` rows of a block.
    #[inline]
    pub(crate) fn push(&mut self, rows: &Rows, len: usize) {
        self.outcome.extend_from_slice(&rows.outcome[..len]);
        self.reason.extend_from_slice(&rows.reason[..len]);
        self.step.push(&rows.step, len);
        self.route_id.push(&rows.route_id, len);
        self.next_hop.push(&rows.next_hop, len);
        self.mirror.push(&rows.mirror, len);
        self.database.push(&rows.database, len);
        self.broker.push(&rows.broker, len);
    }

    pub(crate) fn finish(self, labels: &Labels) -> Result<RecordBatch> {
        let rows = self.outcome.len();
        let mut named: Vec<(i32, String)> = self.named.into_iter().map(|(name, code)| (code, name)).collect();
        named.sort_unstable();
        let (broker, nulls) = self.broker.finish(rows);
        let broker = FixedSizeBinaryArray::try_new(16, Buffer::from_vec(broker), nulls);
        let (step, step_nulls) = self.step.finish(rows);
        let (route_id, route_nulls) = self.route_id.finish(rows);
        let columns: Vec<ArrayRef> = vec![
            dictionary::<Int8Type>(self.outcome, None, &labels.outcomes)?,
            Arc::new(Int8Array::new(step.into(), step_nulls)),
            Arc::new(Int32Array::new(route_id.into(), route_nulls)),
            addresses(self.next_hop, rows, &labels.endpoints, &named)?,
            addresses(self.mirror, rows, &labels.endpoints, &[])?,
            addresses(self.database, rows, &labels.databases, &[])?,
            Arc::new(broker.map_err(|error| internal(&error))?),
            dictionary::<Int8Type>(self.reason, None, &labels.reasons)?,
        ];
        RecordBatch::try_new(decisions_schema(), columns).map_err(|error| internal(&error))
    }
}

#[inline]
fn bytes_of(guid: Guid) -> i128 {
    i128::from_ne_bytes(guid.0)
}

fn dictionary<K: ArrowDictionaryKeyType>(codes: Vec<K::Native>, nulls: Option<NullBuffer>, values: &ArrayRef) -> Result<ArrayRef> {
    let keys = PrimitiveArray::<K>::new(ScalarBuffer::from(codes), nulls);
    let array = DictionaryArray::try_new(keys, Arc::clone(values)).map_err(|error| internal(&error))?;
    Ok(Arc::new(array))
}

/// Codes of addresses or databases, with the values that belong to them: `known` as it is where it is small beside the batch,
/// else only the values in use.
fn addresses(column: Whole<i32>, rows: usize, known: &Arc<StringArray>, named: &[(i32, String)]) -> Result<ArrayRef> {
    let (mut codes, nulls) = column.finish(rows);
    if named.is_empty() && known.len() <= DICTIONARY_SMALL.max(rows / 4) {
        let values: ArrayRef = Arc::<StringArray>::clone(known);
        return dictionary::<Int32Type>(codes, nulls, &values);
    }
    let text = |code: i32| match usize::try_from(code).ok().filter(|&code| code < known.len()) {
        Some(code) => known.value(code),
        None => &named[code as usize - known.len()].1,
    };
    let mut places = vec![0i32; known.len() + named.len()];
    let mut used = Vec::new();
    for (row, code) in codes.iter_mut().enumerate() {
        if nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
            *code = 0;
            continue;
        }
        let place = &mut places[*code as usize];
        if *place == 0 {
            used.push(text(*code));
            *place = used.len() as i32;
        }
        *code = *place - 1;
    }
    let values: ArrayRef = Arc::new(StringArray::from_iter_values(used));
    dictionary::<Int32Type>(codes, nulls, &values)
}
