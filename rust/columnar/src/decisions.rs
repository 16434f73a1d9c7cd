//! Collects the decisions of a batch, block by block, into columns.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{Array, ArrayRef, FixedSizeBinaryArray, Int8Array, Int32Array, RecordBatch, StringArray};
use arrow_buffer::{ArrowNativeType, BooleanBuffer, Buffer, MutableBuffer, NullBuffer, ScalarBuffer};
use ssbroker_core::route::{Answers, BLOCK};
use ssbroker_core::{Decision, Guid, NextHop, Outcome, Reason};

use crate::error::{Result, internal};
use crate::masks::ones;
use crate::schema::decisions_schema;

/// A block of up to 64 conversations after `resolve`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResolvedBlock<'a> {
    pub(crate) answers: &'a Answers,
    /// Mask of the conversations that name a broker id.
    pub(crate) has_broker: u64,
    pub(crate) len: usize,
}

/// Receives decisions block by block.
pub(crate) trait DecisionSink {
    /// Appends a block. The conversations that need `decide` must be set afterwards.
    fn push(&mut self, block: &ResolvedBlock<'_>);

    /// Sets a conversation of the last block that needed `decide`.
    fn set(&mut self, row: usize, decision: &Decision);
}

/// Larger dictionaries are reduced to the values in use, unless the batch is much larger.
const DICTIONARY_SMALL: usize = 16_384;

/// The size of the zero buffer shared by all columns without values.
const ZEROS: usize = 1 << 20;

/// The columns of a batch of decisions, with dictionaries not yet combined.
#[derive(Debug)]
pub struct DecisionColumns {
    columns: Vec<Column>,
}

#[derive(Debug)]
enum Column {
    Values(ArrayRef),
    Dictionary(DictionaryColumn),
}

/// Dictionary codes and values.
///
/// Invariant: every code that is not null is an index of a value.
#[derive(Debug)]
pub struct DictionaryColumn {
    codes: ArrayRef,
    values: ArrayRef,
}

/// What all batches share: dictionary values and zeros.
#[derive(Debug)]
pub(crate) struct SharedValues {
    outcomes: ArrayRef,
    reasons: ArrayRef,
    addresses: Arc<StringArray>,
    databases: Arc<StringArray>,
    none: ArrayRef,
    zeros: Buffer,
}

/// Builds a column.
#[derive(Debug)]
struct ColumnBuilder<T> {
    /// Empty until a row has a value; `empty` counts the rows before.
    values: Vec<T>,
    empty: usize,
    capacity: usize,
    valid: Vec<u64>,
}

/// Builds the decisions of a batch.
#[derive(Debug)]
pub(crate) struct DecisionBuilder {
    outcome: Vec<i8>,
    reason: Vec<i8>,
    step: ColumnBuilder<i8>,
    route_id: ColumnBuilder<i32>,
    next_hop: ColumnBuilder<i32>,
    mirror: ColumnBuilder<i32>,
    database: ColumnBuilder<i32>,
    broker: ColumnBuilder<Guid>,
    /// Next hops from service names; their codes follow those of the catalog.
    from_names: HashMap<String, i32>,
    known: usize,
}

impl DecisionColumns {
    /// Returns the record batch. `dictionary` combines codes and values.
    ///
    /// # Errors
    /// Never expected; the batch is checked against its schema.
    pub fn into_batch(self, dictionary: impl Fn(DictionaryColumn) -> ArrayRef) -> Result<RecordBatch> {
        let columns = self.columns.into_iter().map(|column| match column {
            Column::Values(values) => values,
            Column::Dictionary(coded) => dictionary(coded),
        });
        RecordBatch::try_new(decisions_schema(), columns.collect()).map_err(|error| internal(&error))
    }
}

impl DictionaryColumn {
    fn column<T: ArrowNativeType>(codes: &ScalarBuffer<T>, array: ArrayRef, values: ArrayRef) -> Column {
        let is_value = |row: usize, code: &T| array.is_null(row) || code.as_usize() < values.len();
        debug_assert!(codes.iter().enumerate().all(|(row, code)| is_value(row, code)));
        Column::Dictionary(Self { codes: array, values })
    }

    /// Returns the codes and values. Every code that is not null is an index of a value.
    #[must_use]
    pub fn into_parts(self) -> (ArrayRef, ArrayRef) {
        (self.codes, self.values)
    }
}

impl SharedValues {
    pub(crate) fn new(addresses: impl Iterator<Item = String>, databases: impl Iterator<Item = String>) -> Self {
        Self {
            outcomes: Arc::new(StringArray::from_iter_values(Outcome::LABELS)),
            reasons: Arc::new(StringArray::from_iter_values(Reason::LABELS)),
            addresses: Arc::new(StringArray::from_iter_values(addresses)),
            databases: Arc::new(StringArray::from_iter_values(databases)),
            none: Arc::new(StringArray::new_null(0)),
            // Aligned for all types. The pages are never touched, so they take no memory.
            zeros: MutableBuffer::from_len_zeroed(ZEROS).into(),
        }
    }
}

impl<T: Copy + Default> ColumnBuilder<T> {
    fn new(rows: usize) -> Self {
        Self { values: Vec::new(), capacity: rows, empty: 0, valid: Vec::with_capacity(rows.div_ceil(BLOCK)) }
    }

    /// Appends the rows of a block; `valid` is a mask of the rows with a value.
    #[inline]
    fn push(&mut self, block: &[T], valid: u64) {
        self.valid.push(valid);
        if valid == 0 && self.values.is_empty() {
            self.empty += block.len();
            return;
        }
        self.allocate();
        self.values.extend_from_slice(block);
    }

    fn allocate(&mut self) {
        if self.values.is_empty() {
            self.values.reserve_exact(self.capacity);
            self.values.resize(self.empty, T::default());
        }
    }

    /// Sets a row of the last block.
    fn set(&mut self, row: usize, value: Option<T>) {
        let Some(value) = value else { return };
        self.allocate();
        let last = self.valid.len().saturating_sub(1);
        self.values[last * BLOCK + row] = value;
        self.valid[last] |= 1 << row;
    }

    /// Returns the value buffer and the validity.
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

impl DecisionBuilder {
    pub(crate) fn new(rows: usize, shared: &SharedValues) -> Self {
        Self {
            outcome: Vec::with_capacity(rows),
            reason: Vec::with_capacity(rows),
            step: ColumnBuilder::new(rows),
            route_id: ColumnBuilder::new(rows),
            next_hop: ColumnBuilder::new(rows),
            mirror: ColumnBuilder::new(rows),
            database: ColumnBuilder::new(rows),
            broker: ColumnBuilder::new(rows),
            from_names: HashMap::new(),
            known: shared.addresses.len(),
        }
    }

    fn code(&mut self, hop: &NextHop) -> i32 {
        match hop {
            NextHop::Known(address) => *address as i32,
            NextHop::Named(normal) => self.from_names.get(normal).copied().unwrap_or_else(|| {
                let next = (self.known + self.from_names.len()) as i32;
                self.from_names.insert(normal.clone(), next);
                next
            }),
        }
    }

    pub(crate) fn finish(self, shared: &SharedValues) -> Result<DecisionColumns> {
        let (rows, zeros) = (self.outcome.len(), &shared.zeros);
        let mut from_names: Vec<(i32, String)> = self.from_names.into_iter().map(|(name, code)| (code, name)).collect();
        from_names.sort_unstable();
        let (broker, nulls) = self.broker.finish(rows, zeros, |brokers| {
            Buffer::from_vec(brokers.into_iter().map(|broker| broker.0).collect::<Vec<_>>().into_flattened())
        });
        let broker = FixedSizeBinaryArray::try_new(16, broker, nulls).map_err(|error| internal(&error))?;
        let (step, nulls) = self.step.finish(rows, zeros, Buffer::from_vec);
        let step = Int8Array::new(ScalarBuffer::new(step, 0, rows), nulls);
        let (route_id, nulls) = self.route_id.finish(rows, zeros, Buffer::from_vec);
        let route_id = Int32Array::new(ScalarBuffer::new(route_id, 0, rows), nulls);
        let columns = vec![
            small_dictionary(self.outcome, &shared.outcomes),
            Column::Values(Arc::new(step)),
            Column::Values(Arc::new(route_id)),
            large_dictionary(self.next_hop, rows, shared, &shared.addresses, &from_names),
            large_dictionary(self.mirror, rows, shared, &shared.addresses, &[]),
            large_dictionary(self.database, rows, shared, &shared.databases, &[]),
            Column::Values(Arc::new(broker)),
            small_dictionary(self.reason, &shared.reasons),
        ];
        Ok(DecisionColumns { columns })
    }
}

impl DecisionSink for DecisionBuilder {
    #[inline]
    fn push(&mut self, block: &ResolvedBlock<'_>) {
        let ResolvedBlock { answers, has_broker, len } = *block;
        self.outcome.extend_from_slice(&answers.outcomes[..len]);
        self.reason.extend_from_slice(&answers.reasons[..len]);
        self.step.push(&answers.steps[..len], answers.has_step);
        self.route_id.push(&answers.route_ids[..len], answers.has_route);
        self.next_hop.push(&answers.to[..len], answers.has_hop);
        self.mirror.push(&answers.mirrors[..len], answers.has_mirror);
        self.database.push(&answers.to[..len], answers.is_local);
        self.broker.push(&answers.brokers[..len], (has_broker | answers.is_bound) & ones(len));
    }

    fn set(&mut self, row: usize, decision: &Decision) {
        let position = self.outcome.len().saturating_sub(1) / BLOCK * BLOCK + row;
        self.outcome[position] = decision.outcome as i8;
        self.reason[position] = decision.reason as i8;
        self.step.set(row, decision.match_step);
        self.route_id.set(row, decision.route_id);
        self.mirror.set(row, decision.mirror.map(|mirror| mirror as i32));
        self.database.set(row, decision.database.map(i32::from));
        self.broker.set(row, decision.broker);
        let hop = decision.next_hop.as_ref().map(|hop| self.code(hop));
        self.next_hop.set(row, hop);
    }
}

/// Builds a column of outcomes or reasons.
fn small_dictionary(codes: Vec<i8>, values: &ArrayRef) -> Column {
    let codes = ScalarBuffer::from(codes);
    DictionaryColumn::column(&codes, Arc::new(Int8Array::new(codes.clone(), None)), Arc::clone(values))
}

/// Builds a column of addresses or databases. Its dictionary is `known` and `from_names` if they are small compared to
/// the batch, otherwise only the values in use.
fn large_dictionary(
    column: ColumnBuilder<i32>,
    rows: usize,
    shared: &SharedValues,
    known: &Arc<StringArray>,
    from_names: &[(i32, String)],
) -> Column {
    let with = |codes: ScalarBuffer<i32>, nulls: Option<NullBuffer>, values: ArrayRef| {
        DictionaryColumn::column(&codes, Arc::new(Int32Array::new(codes.clone(), nulls)), values)
    };
    let is_empty = column.values.is_empty();
    let (codes, nulls) = column.finish(rows, &shared.zeros, Buffer::from_vec);
    let codes = ScalarBuffer::new(codes, 0, rows);
    if is_empty {
        return with(codes, nulls, Arc::clone(&shared.none));
    }
    if known.len() + from_names.len() <= DICTIONARY_SMALL.max(rows / 4) {
        let values = if from_names.is_empty() {
            Arc::clone(known)
        } else {
            let named = from_names.iter().map(|(_, name)| name.as_str());
            Arc::new(StringArray::from_iter_values((0..known.len()).map(|code| known.value(code)).chain(named)))
        };
        return with(codes, nulls, values);
    }
    let text = |code: i32| match usize::try_from(code).ok().filter(|&code| code < known.len()) {
        Some(code) => known.value(code),
        None => &from_names[code as usize - known.len()].1,
    };
    let mut positions = vec![0i32; known.len() + from_names.len()];
    let mut used = Vec::new();
    let mut codes_in_use = Vec::with_capacity(rows);
    for (row, &code) in codes.iter().enumerate() {
        if nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
            codes_in_use.push(0);
            continue;
        }
        let position = &mut positions[code as usize];
        if *position == 0 {
            used.push(text(code));
            *position = used.len() as i32;
        }
        codes_in_use.push(*position - 1);
    }
    with(ScalarBuffer::from(codes_in_use), nulls, Arc::new(StringArray::from_iter_values(used)))
}
