//! Decisions packed into one number each, for callers for which a column costs more than arithmetic.
//!
//! From the lowest bit: step (4 bits, 15 for none), reason (4), outcome (3), destination (20), whether there is no
//! route (1), route id (32). Destination 0 means none. Destinations are the addresses in normal form, sorted by
//! bytes, followed by the databases, sorted by name; so identical catalogs have identical destinations.

use std::sync::Arc;

use arrow_array::{BinaryArray, Int64Array, RecordBatch};
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field, Schema};
use ssbroker_core::route::BLOCK;
use ssbroker_core::{Catalog, Decision, Guid, Invalid, InvalidKind, NONE, NextHop, TRANSPORT};

use crate::decisions::{DecisionSink, ResolvedBlock};
use crate::error::{Result, internal};
use crate::masks::{ones, set_bits};

const REASON: u32 = 4;
const OUTCOME: u32 = 8;
const DESTINATION: u32 = 11;
const NO_ROUTE: i64 = 1 << 31;
const ROUTE: u32 = 32;
const NO_STEP: i64 = 15;
/// The maximum number of destinations: their texts are sent with every task.
const DESTINATIONS: usize = 1 << 16;

/// The destinations of a catalog, by the numbers that addresses and databases have in this process.
#[derive(Debug)]
pub(crate) struct Destinations {
    addresses: Vec<i64>,
    databases: Vec<i64>,
}

/// Builds the packed decisions of a batch, with the broker ids that bind its conversations.
#[derive(Debug)]
pub(crate) struct PackedDecisions<'a> {
    destinations: &'a Destinations,
    numbers: Vec<i64>,
    brokers: Vec<Guid>,
    bound: Vec<u64>,
    /// Whether broker ids that conversations name are returned as well.
    include_named: bool,
    /// Conversations of the last block whose broker id is omitted.
    omitted: u64,
}

/// Returns the addresses and databases of a catalog in the order of their destination numbers. `None` if a next hop
/// can come from a service name (R23), a route has a mirror address, or there are more than 65,536.
#[must_use]
pub fn destinations(catalog: &Catalog) -> Option<(Vec<String>, Vec<String>)> {
    let (addresses, databases) = sorted_destinations(catalog)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let names = databases.into_iter().map(|number| text(&catalog.databases()[number].name));
    Some((addresses.into_iter().map(|id| text(catalog.address(id as u32))).collect(), names.collect()))
}

/// Sorts the addresses and databases by their texts.
fn sorted_destinations(catalog: &Catalog) -> Option<(Vec<usize>, Vec<usize>)> {
    let (addresses, databases) = (catalog.address_count(), catalog.databases());
    let has_more = catalog.routes().iter().any(|route| route.address == TRANSPORT || route.mirror != NONE);
    if has_more || addresses + databases.len() > DESTINATIONS {
        return None;
    }
    let mut addresses: Vec<usize> = (0..addresses).collect();
    addresses.sort_unstable_by_key(|&id| catalog.address(id as u32));
    let mut numbers: Vec<usize> = (0..databases.len()).collect();
    numbers.sort_unstable_by_key(|&number| &databases[number].name);
    Some((addresses, numbers))
}

impl Destinations {
    /// Returns the destinations of a catalog, if it has numbers for them.
    pub(crate) fn new(catalog: &Catalog) -> Option<Self> {
        let (addresses, databases) = sorted_destinations(catalog)?;
        let numbered = |sorted: &[usize], before: usize| {
            let mut destinations = vec![0; sorted.len()];
            for (rank, &number) in sorted.iter().enumerate() {
                destinations[number] = ((before + rank + 1) as i64) << DESTINATION;
            }
            destinations
        };
        Some(Self { databases: numbered(&databases, addresses.len()), addresses: numbered(&addresses, 0) })
    }
}

impl<'a> PackedDecisions<'a> {
    pub(crate) fn new(rows: usize, destinations: &'a Destinations, include_named: bool) -> Self {
        let blocks = rows.div_ceil(BLOCK);
        Self {
            destinations,
            numbers: Vec::with_capacity(rows),
            brokers: Vec::with_capacity(rows),
            bound: Vec::with_capacity(blocks),
            include_named,
            omitted: 0,
        }
    }

    pub(crate) fn finish(self) -> Result<RecordBatch> {
        let rows = self.numbers.len();
        let valid = NullBuffer::new(BooleanBuffer::new(Buffer::from_vec(self.bound), 0, rows));
        let size = (rows - valid.null_count()) * 16;
        if i32::try_from(size).is_err() {
            let expected = format!("at most {} conversations with a broker id in a batch", i32::MAX / 16);
            return Err(Invalid::new(InvalidKind::OutOfRange, "conversations", None, None, expected).into());
        }
        let mut ids = Vec::with_capacity(size);
        let mut offsets = Vec::with_capacity(rows + 1);
        offsets.push(0i32);
        for (broker, is_bound) in self.brokers.iter().zip(&valid) {
            if is_bound {
                ids.extend_from_slice(&broker.0);
            }
            offsets.push(ids.len() as i32);
        }
        let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
        let brokers =
            BinaryArray::try_new(offsets, Buffer::from_vec(ids), Some(valid)).map_err(|error| internal(&error))?;
        let schema = Schema::new(vec![
            Field::new("decision_number", DataType::Int64, false),
            Field::new("broker_instance", DataType::Binary, true),
        ]);
        let columns = vec![Arc::new(Int64Array::from(self.numbers)) as _, Arc::new(brokers) as _];
        RecordBatch::try_new(Arc::new(schema), columns).map_err(|error| internal(&error))
    }
}

impl DecisionSink for PackedDecisions<'_> {
    #[inline]
    fn push(&mut self, block: &ResolvedBlock<'_>) {
        let ResolvedBlock { answers, has_broker, len } = *block;
        let mut numbers = [0i64; BLOCK];
        for (row, number) in numbers.iter_mut().enumerate() {
            let reason = i64::from(answers.reasons[row]) << REASON;
            let outcome = i64::from(answers.outcomes[row]) << OUTCOME;
            *number = NO_ROUTE | outcome | reason | i64::from(answers.steps[row]) & NO_STEP;
        }
        for row in set_bits(answers.has_route) {
            numbers[row] = numbers[row] & !NO_ROUTE | i64::from(answers.route_ids[row]) << ROUTE;
        }
        for row in set_bits(answers.has_hop) {
            numbers[row] |= self.destinations.addresses[answers.to[row] as usize];
        }
        for row in set_bits(answers.is_local) {
            numbers[row] |= self.destinations.databases[answers.to[row] as usize];
        }
        self.numbers.extend_from_slice(&numbers[..len]);
        self.brokers.extend_from_slice(&answers.brokers[..len]);
        self.omitted = if self.include_named { 0 } else { has_broker };
        self.bound.push((answers.is_bound | has_broker) & !self.omitted & ones(len));
    }

    fn set(&mut self, row: usize, decision: &Decision) {
        let last = self.bound.len().saturating_sub(1);
        let destination = match (&decision.next_hop, decision.database) {
            (Some(NextHop::Known(address)), _) => self.destinations.addresses[*address as usize],
            (_, Some(database)) => self.destinations.databases[usize::from(database)],
            _ => 0,
        };
        let labels = (decision.outcome as i64) << OUTCOME | (decision.reason as i64) << REASON;
        let step = decision.match_step.map_or(NO_STEP, i64::from);
        let route = decision.route_id.map_or(NO_ROUTE, |id| i64::from(id) << ROUTE);
        self.numbers[last * BLOCK + row] = route | destination | labels | step;
        if let Some(broker) = decision.broker.filter(|_| self.omitted >> row & 1 == 0) {
            self.brokers[last * BLOCK + row] = broker;
            self.bound[last] |= 1 << row;
        }
    }
}
