//! The decisions of a batch, gathered by blocks of 64 into columns.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::types::{ArrowDictionaryKeyType, Int8Type, Int32Type};
use arrow_array::{
    Array, ArrayRef, DictionaryArray, FixedSizeBinaryArray, Int8Array, Int32Array, PrimitiveArray, RecordBatch,
    StringArray,
};
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer, ScalarBuffer};
use ssbroker_core::route::{Answers, BLOCK};
use ssbroker_core::{Decision, NextHop, Outcome, Reason};

use crate::catalog::internal;
use crate::error::Result;
use crate::schema::decisions_schema;
use crate::view::{ones, set_bits};

/// A dictionary with more values than this is cut down to those in use where the batch is not much larger than it.
const DICTIONARY_SMALL: usize = 16_384;

/// The values of the dictionaries, shared by all batches.
#[derive(Debug)]
pub(crate) struct Labels {
    outcomes: ArrayRef,
    reasons: ArrayRef,
    endpoints: Arc<StringArray>,
    databases: Arc<StringArray>,
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

    fn finish(self, rows: usize) -> (Vec<T>, Option<NullBuffer>) {
        let nulls = NullBuffer::new(BooleanBuffer::new(Buffer::from_vec(self.valid), 0, rows));
        // Zeroed memory comes from the system untouched, so a column without a value costs next to nothing.
        let values = if self.values.is_empty() { vec![T::default(); rows] } else { self.values };
        (values, (nulls.null_count() > 0).then_some(nulls))
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

    /// Appends the first `len` rows of a block; those that are left to `decide` must be set afterwards. What is `blocked` came from
    /// outside and may not be forwarded (R25).
    #[inline]
    pub(crate) fn push(&mut self, answers: &Answers, has_broker: u64, from_outside: u64, blocked: u64, len: usize) {
        let mut outcome = [Outcome::Remote as i8; BLOCK];
        let mut reason = [Reason::Matched as i8; BLOCK];
        for row in set_bits(from_outside & answers.network) {
            outcome[row] = Outcome::Forward as i8;
        }
        for row in set_bits(blocked & answers.network) {
            (outcome[row], reason[row]) = (Outcome::Dropped as i8, Reason::ForwardingDisabled as i8);
        }
        for row in set_bits(answers.local) {
            outcome[row] = Outcome::Local as i8;
        }
        let mut steps = answers.steps;
        for row in set_bits(answers.no_route) {
            (outcome[row], reason[row], steps[row]) = (Outcome::Delayed as i8, Reason::NoRoute as i8, 7);
        }
        let mask = ones(len);
        let (network, local) = (answers.network & mask, answers.local & mask);
        let brokers = answers.brokers.map(|broker| i128::from_ne_bytes(broker.0));
        self.outcome.extend_from_slice(&outcome[..len]);
        self.reason.extend_from_slice(&reason[..len]);
        self.step.push(&steps[..len], (network | local | answers.no_route) & mask);
        self.route_id.push(&answers.route_ids[..len], network | local);
        self.next_hop.push(&answers.to[..len], network & !blocked);
        self.mirror.push(&answers.to[..len], 0);
        self.database.push(&answers.to[..len], local);
        self.broker.push(&brokers[..len], (has_broker | answers.bound) & mask);
    }

    /// Sets a row of the last block that was left to `decide`.
    pub(crate) fn set(&mut self, row: usize, decision: Decision) {
        let place = self.outcome.len().saturating_sub(1) / BLOCK * BLOCK + row;
        self.outcome[place] = decision.outcome as i8;
        self.reason[place] = decision.reason as i8;
        self.step.set(row, decision.match_step);
        self.route_id.set(row, decision.route_id);
        self.mirror.set(row, decision.mirror.map(|mirror| mirror as i32));
        self.database.set(row, decision.database.map(i32::from));
        self.broker.set(row, decision.broker.map(|broker| i128::from_ne_bytes(broker.0)));
        let hop = decision.next_hop.map(|hop| self.code(hop));
        self.next_hop.set(row, hop);
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

fn dictionary<K: ArrowDictionaryKeyType>(
    codes: Vec<K::Native>,
    nulls: Option<NullBuffer>,
    values: &ArrayRef,
) -> Result<ArrayRef> {
    let keys = PrimitiveArray::<K>::new(ScalarBuffer::from(codes), nulls);
    let array = DictionaryArray::try_new(keys, Arc::clone(values)).map_err(|error| internal(&error))?;
    Ok(Arc::new(array))
}

/// Codes of addresses or databases, with the values that belong to them: `known` as it is where it is small beside the batch,
/// else only the values in use.
fn addresses(column: Whole<i32>, rows: usize, known: &Arc<StringArray>, named: &[(i32, String)]) -> Result<ArrayRef> {
    let (mut codes, nulls) = column.finish(rows);
    if nulls.as_ref().is_some_and(|nulls| nulls.null_count() == rows) {
        let none: ArrayRef = Arc::new(StringArray::new_null(0));
        return dictionary::<Int32Type>(codes, nulls, &none);
    }
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
