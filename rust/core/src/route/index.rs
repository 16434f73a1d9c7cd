//! The main type of routing: a catalog compiled into a decision table, and the options with which it was compiled.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use crate::catalog::{AddressId, Catalog, Interner, LOCAL, NONE, NameId, RouteRow, TRANSPORT};
use crate::guid::Guid;
use crate::hash::NameHash;
use crate::route::bloom_filter::BloomFilter;
use crate::route::decision_table::{Cell, Entry, Pair, RoutingTable, Source};
use crate::route::perfect_hash::PerfectHash;
use crate::route::service_databases::ServiceDatabases;
use crate::route::tie_break::{RoundRobinCounters, TieBreak};

/// What step 4 does while a request for the service is pending (R14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PendingRequest {
    /// Continue with step 5.
    Continue,
    /// Delay the conversation.
    Delay,
}

/// The options of a router.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How to pick one of several equal candidates.
    pub tie_break: TieBreak,
    /// What step 4 does while a request is pending.
    pub pending_request: PendingRequest,
}

/// A compiled catalog: built once, shared by many threads.
#[derive(Debug)]
pub struct RouteIndex {
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) options: Options,
    pub(crate) hash: NameHash,
    /// Rows of the catalog sorted by (database, service name, broker id, route id); rows without a name come last, and
    /// rows without an id come first.
    pub(crate) order: Vec<u32>,
    /// Maps a name in a source to its slot in `entries`.
    pub(crate) entry_slots: PerfectHash,
    /// One per slot, `Entry::NONE` in a free slot; then the default entry of each source.
    pub(crate) entries: Vec<Entry>,
    /// The names that have no entry in the sources for which the limit omits them. The names of services of a database
    /// and of pending requests are hashed as names of `replies`, and the names of the routes of `msdb` as names of
    /// `msdb`.
    pub(crate) omitted_names: BloomFilter,
    /// For each source, whether the limit omits names.
    pub(crate) omitting_sources: Vec<bool>,
    /// The routes of each slot's entry, as positions in `order`.
    pub(crate) routes_at: Vec<[u32; 2]>,
    /// Maps a broker id of an entry or service to its slot in `pair_at`.
    pub(crate) pair_slots: PerfectHash,
    pub(crate) pair_at: Vec<u32>,
    pub(crate) pairs: Vec<Pair>,
    /// The cells that entries and pairs refer to.
    pub(crate) cells: Vec<Cell>,
    pub(crate) tables: Vec<RoutingTable>,
    pub(crate) service_databases: ServiceDatabases,
    /// Next hops from service names (R23) that are not addresses of the catalog; their numbers follow its addresses.
    pub(crate) hops_from_names: Interner,
    /// A broker id that no route and no database has.
    pub(crate) unlisted: Guid,
    pub(crate) round_robin: RoundRobinCounters,
}

/// The classes of R22, in order of preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Mirror = 0,
    Local = 1,
    Network = 2,
    Transport = 3,
}

pub(crate) const CLASSES: [Class; 4] = [Class::Mirror, Class::Local, Class::Network, Class::Transport];

impl Class {
    pub(crate) fn of(route: &RouteRow) -> Self {
        match route.address {
            _ if route.mirror != NONE => Self::Mirror,
            LOCAL => Self::Local,
            TRANSPORT => Self::Transport,
            _ => Self::Network,
        }
    }
}

impl RouteIndex {
    /// Returns the catalog.
    #[must_use]
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// Returns the options.
    #[must_use]
    pub fn options(&self) -> Options {
        self.options
    }

    /// Returns the size of the index in bytes, without the catalog.
    #[must_use]
    pub fn nbytes(&self) -> usize {
        let turns = self.round_robin.brokers.len() + self.round_robin.routes.len() + self.round_robin.databases.len();
        size_of_val(&self.order[..])
            + self.entry_slots.nbytes()
            + size_of_val(&self.entries[..])
            + self.omitted_names.nbytes()
            + size_of_val(&self.routes_at[..])
            + self.pair_slots.nbytes()
            + size_of_val(&self.pair_at[..])
            + size_of_val(&self.pairs[..])
            + size_of_val(&self.cells[..])
            + size_of_val(&self.tables[..])
            + self.service_databases.nbytes()
            + turns * size_of::<AtomicU32>()
    }

    /// Returns an address in normal form: one of the catalog, or a next hop from a service name.
    #[must_use]
    pub fn address(&self, id: AddressId) -> &[u8] {
        match (id as usize).checked_sub(self.catalog.address_count()) {
            Some(number) => self.hops_from_names.texts().get(number as u32),
            None => self.catalog.address(id),
        }
    }

    /// Returns the number of addresses.
    #[must_use]
    pub fn address_count(&self) -> usize {
        self.catalog.address_count() + self.hops_from_names.texts().len()
    }

    /// Returns the source of a conversation (R2, R7).
    #[must_use]
    #[inline]
    pub fn source(&self, database: Option<u16>, is_initiator: bool, broker: Option<Guid>) -> Source {
        let is_reply = |broker| !is_initiator && self.service_databases.is_broker(broker);
        match database {
            Some(database) => database,
            None if broker.is_some_and(is_reply) => self.replies(),
            None => self.outside(),
        }
    }

    /// The source of messages from other instances.
    #[inline]
    pub(crate) fn outside(&self) -> Source {
        self.catalog.databases.len() as u16
    }

    /// The routing table of a source (R2).
    pub(crate) fn table(&self, source: Source) -> u16 {
        if source < self.outside() { source } else { self.catalog.msdb }
    }

    /// The source of replies from other instances to a database of this one (R7).
    #[inline]
    pub(crate) fn replies(&self) -> Source {
        self.outside() + 1
    }

    /// The slot of the default entry of a source, for unknown names.
    #[inline]
    pub(crate) fn default_slot(&self, source: Source) -> u32 {
        self.entry_slots.slots as u32 + u32::from(source)
    }

    /// Whether the limit omits names of a source.
    #[inline]
    pub(crate) fn omits_names(&self, source: Source) -> bool {
        self.omitting_sources.get(usize::from(source)).copied().unwrap_or_default()
    }

    pub(crate) fn route(&self, position: usize) -> &RouteRow {
        &self.catalog.routes[self.order[position] as usize]
    }

    /// Returns the slot of a name's entry in a source.
    pub(crate) fn slot(&self, source: Source, name: &[u8]) -> Option<u32> {
        let slot = self.entry_slots.slot(self.hash.of(name, source)) as u32;
        self.is_in_slot(slot, source, name).then_some(slot)
    }

    /// Whether a slot contains a name's entry in a source.
    #[inline]
    pub(crate) fn is_in_slot(&self, slot: u32, source: Source, name: &[u8]) -> bool {
        let entry = &self.entries[slot as usize];
        entry.service != NONE && entry.source() == source && self.catalog.name(entry.service) == name
    }

    /// Returns the slot of a service name in a table, and the positions of its routes.
    pub(crate) fn routes_of(&self, table: u16, name: &[u8]) -> (u32, Range<usize>) {
        // Every route of `msdb` is in the entries for messages from outside.
        let source = if table == self.catalog.msdb { self.outside() } else { table };
        self.slot(source, name).map_or((0, 0..0), |slot| (slot, self.routes_at(slot)))
    }

    /// Returns the positions of the routes with this service name in a table.
    pub(crate) fn named_routes(&self, table: u16, service: Option<NameId>) -> Range<usize> {
        let Some(service) = service else { return 0..0 };
        let named = self.tables[usize::from(table)].named.clone();
        let rows = &self.order[named.clone()];
        let start = rows.partition_point(|&row| self.row(row).service < service);
        let end = start + rows[start..].partition_point(|&row| self.row(row).service <= service);
        named.start + start..named.start + end
    }

    pub(crate) fn routes_at(&self, slot: u32) -> Range<usize> {
        let [start, end] = self.routes_at[slot as usize];
        start as usize..end as usize
    }

    /// Returns the pair of an owner and a broker id.
    #[inline]
    pub(crate) fn pair(&self, owner: u32, broker: Guid) -> Option<&Pair> {
        let pair = self.pairs.get(self.pair_at[self.pair_slots.slot(self.hash.of_guid(broker, owner))] as usize);
        pair.filter(|pair| pair.is(owner, broker))
    }
}
