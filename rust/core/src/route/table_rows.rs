//! The decision table as rows, for engines that route by joins.

use crate::catalog::{AddressId, NEVER, NONE, NameId, RouteRow, TRANSPORT};
use crate::guid::Guid;
use crate::route::decide::{Outcome, Reason, Scratch};
use crate::route::decision_table::{Action, Cell, Entry, Next, Pair, RoutingTable, host_owner};
use crate::route::expiry::LiveEntry;
use crate::route::index::RouteIndex;
use crate::route::tie_break::TieBreak;

/// The maximum product of the candidate counts of one decision.
const COMBINATIONS_MAX: u128 = 1 << 40;
const HASHES: u128 = 1 << 64;

/// A row of the decision table: the conversations that it applies to, and what happens to them.
#[derive(Clone, Debug)]
pub struct TableRow<'a> {
    /// The database in which the conversations started; `None` if they came from another instance.
    pub database: Option<u16>,
    /// The row is for replies (R7).
    pub is_reply: bool,
    /// The service name; `None` for all names without a row in the same database.
    pub name: Option<&'a [u8]>,
    /// Whether the conversations name a broker id.
    pub has_broker: bool,
    /// The broker id that they name; `None` with `has_broker` for all ids without a row.
    pub broker: Option<Guid>,
    /// The first and the last hash that pick this row.
    pub hashes: [i64; 2],
    /// The decision comes from the table for other instances (R41), and not every reply may use it (R7).
    pub only_from_initiator: bool,
    /// The time at which the row expires.
    pub expires: i64,
    /// The decision; `None` if it depends on the conversation.
    pub decided: Option<Decided>,
}

/// A decision of a table row.
#[derive(Clone, Copy, Debug)]
pub struct Decided {
    /// The outcome.
    pub outcome: Outcome,
    /// The reason.
    pub reason: Reason,
    /// The step that matched.
    pub step: Option<i8>,
    /// The id of the chosen route.
    pub route_id: Option<i32>,
    /// The next hop.
    pub next_hop: Option<AddressId>,
    /// The mirror address of the chosen route.
    pub mirror: Option<AddressId>,
    /// The target database.
    pub database: Option<u16>,
    /// The broker id that binds conversations that name none.
    pub binding: Option<Guid>,
}

/// The hashes that lead to a cell: those for which `hash * factor - offset` is below 2^64 and not negative.
#[derive(Clone, Copy)]
struct Share {
    factor: u128,
    offset: u128,
}

impl Share {
    const ALL: Self = Self { factor: 1, offset: 0 };

    /// The share of one of `count` candidates; `None` if there are too many combinations.
    fn of(self, pick: usize, count: usize) -> Option<Self> {
        let factor = Some(self.factor * count as u128).filter(|&factor| factor < COMBINATIONS_MAX)?;
        Some(Self { factor, offset: self.offset * count as u128 + pick as u128 * HASHES })
    }

    /// The first and the last hash, as signed numbers.
    fn hashes(self) -> [i64; 2] {
        let first = self.offset.div_ceil(self.factor) as u64;
        let last = ((self.offset + HASHES).div_ceil(self.factor) - 1) as u64;
        [first, last].map(|hash| (hash ^ 1 << 63).cast_signed())
    }
}

/// An entry that is valid at the time of the table.
struct Current<'a> {
    entry: &'a Entry,
    live: Option<&'a LiveEntry>,
}

/// Writes the rows.
struct Writer<'a> {
    index: &'a RouteIndex,
    now: i64,
    scratch: Scratch,
    /// The broker ids of each slot's pairs.
    ids: Vec<(u32, Guid)>,
    /// For each database, whether a live route of its table may lead to this instance (R41).
    may_re_enter: Vec<bool>,
    rows: Vec<TableRow<'a>>,
}

impl RouteIndex {
    /// Returns the decision table for the time `now`; `None` with `round_robin`.
    #[must_use]
    pub fn decision_table<'a>(&'a self, now: i64) -> Option<Vec<TableRow<'a>>> {
        if self.options.tie_break == TieBreak::RoundRobin {
            return None;
        }
        let mut ids: Vec<(u32, Guid)> = self.pairs.iter().map(|pair| (pair.owner, pair.broker)).collect();
        ids.sort_unstable();
        let may_re_enter = self.tables.iter().map(|table| self.may_re_enter(table, now)).collect();
        let mut writer = Writer { index: self, now, scratch: Scratch::default(), ids, may_re_enter, rows: Vec::new() };
        for slot in 0..self.entries.len() as u32 {
            if slot >= self.default_slot(0) || self.entries[slot as usize].service != NONE {
                writer.add(slot);
            }
        }
        let mut rows = writer.rows;
        let key = |row: &TableRow<'a>| (row.database, row.is_reply, row.name, row.has_broker, row.broker, row.hashes);
        rows.sort_unstable_by(|one, other| key(one).cmp(&key(other)));
        Some(rows)
    }
}

impl<'a> Writer<'a> {
    /// Adds the rows of a slot.
    fn add(&mut self, slot: u32) {
        let index = self.index;
        let entry = &index.entries[slot as usize];
        let (source, service) = (entry.source(), entry.service);
        let is_reply = source == index.replies();
        if is_reply && service == NONE {
            // No id is excluded: every database has a row, whatever its services are.
            let mut ids: Vec<Guid> = index.catalog.databases.iter().filter_map(|database| database.broker).collect();
            ids.sort_unstable();
            ids.dedup();
            for id in ids {
                self.add_kind(slot, None, true, Some(id));
            }
            return;
        }
        let re_enters = self.may_re_enter.get(usize::from(source)).copied().unwrap_or_default();
        let name = (service != NONE).then_some(service);
        if let Some(name) = name {
            self.add_name(slot, name, re_enters);
        } else {
            self.add_kind(slot, None, false, None);
            self.add_kind(slot, None, true, None);
        }
        if name.is_none() && re_enters {
            // What happens to a name that only the table for other instances lists is not known without the name.
            for other in 0..index.default_slot(0) {
                let entry = &index.entries[other as usize];
                let is_listed = || index.slot(source, index.catalog.name(entry.service)).is_some();
                if entry.service != NONE && entry.source() == index.outside() && !is_listed() {
                    self.add_name(slot, entry.service, true);
                }
            }
        }
    }

    /// Adds the rows of a slot for a name.
    fn add_name(&mut self, slot: u32, name: NameId, re_enters: bool) {
        let index = self.index;
        let source = index.entries[slot as usize].source();
        let mut slots = vec![slot];
        if re_enters {
            slots.extend(index.slot(index.outside(), index.catalog.name(name)));
        }
        let mut ids = self.ids_of(host_owner(name));
        for slot in slots {
            ids.extend(self.ids_of(slot));
            let routes = index.routes_at(slot).map(|position| index.route(position));
            ids.extend(routes.filter_map(|route| route.broker));
        }
        ids.sort_unstable();
        ids.dedup();
        if source != index.replies() {
            self.add_kind(slot, Some(name), false, None);
            self.add_kind(slot, Some(name), true, None);
        }
        for id in ids {
            self.add_kind(slot, Some(name), true, Some(id));
        }
    }

    fn ids_of(&self, owner: u32) -> Vec<Guid> {
        let start = self.ids.partition_point(|&(other, _)| other < owner);
        self.ids[start..].iter().take_while(|&&(other, _)| other == owner).map(|&(_, id)| id).collect()
    }

    /// Adds the rows of a slot for one kind of broker id.
    fn add_kind(&mut self, slot: u32, name: Option<NameId>, has_broker: bool, broker: Option<Guid>) {
        let index = self.index;
        let entry = &index.entries[slot as usize];
        let source = entry.source();
        let row = TableRow {
            database: Some(source).filter(|&source| source < index.outside()),
            is_reply: source == index.replies(),
            name: name.map(|name| index.catalog.name(name)),
            has_broker,
            broker,
            hashes: Share::ALL.hashes(),
            only_from_initiator: false,
            expires: NEVER,
            decided: None,
        };
        if name.is_none() && index.omits_names(source) {
            self.rows.push(row);
            return;
        }
        let named = has_broker.then(|| broker.unwrap_or(index.unlisted));
        self.add_entry(slot, named, Share::ALL, &row);
    }

    /// Adds the rows of an entry for a broker id.
    fn add_entry(&mut self, slot: u32, named: Option<Guid>, share: Share, row: &TableRow<'a>) {
        let index = self.index;
        let entry = &index.entries[slot as usize];
        let live = (self.now >= entry.expires).then(|| index.live_entry(slot, self.now, &mut self.scratch));
        let current = Current { entry: live.map_or(entry, |live| &live.entry), live };
        let cells = live.map_or(&index.cells, |live| &live.cells);
        let expires = row.expires.min(current.entry.expires);
        let mut leaves = Vec::new();
        flatten(index.entry_cell(&current, slot, named), cells, share, &mut leaves);
        for (cell, share) in leaves {
            let row = TableRow { expires, ..row.clone() };
            match (cell.action.next_of(), share) {
                (None, Some(share)) => {
                    let decided = Some(index.decided_by(&cell, named, index.entries[slot as usize].service));
                    self.rows.push(TableRow { hashes: share.hashes(), decided, ..row });
                }
                (Some(Next::Unknown), Some(share)) => {
                    let slot = index.default_slot(index.entries[slot as usize].source());
                    self.add_entry(slot, named, share, &row);
                }
                (Some(Next::ReEnter), Some(share)) => {
                    let slot = row.name.and_then(|name| index.slot(index.outside(), name));
                    let row = TableRow { only_from_initiator: true, ..row };
                    if slot.is_none() && index.omits_names(index.outside()) {
                        self.rows.push(TableRow { hashes: share.hashes(), ..row });
                        continue;
                    }
                    let slot = slot.unwrap_or_else(|| index.default_slot(index.outside()));
                    self.add_entry(slot, named, share, &row);
                }
                (_, share) => {
                    let hashes = share.unwrap_or(Share::ALL).hashes();
                    self.rows.push(TableRow { hashes, decided: None, ..row });
                }
            }
        }
    }
}

/// Lists the possible picks from a cell, each with the hashes that pick it; no hashes if there are too many
/// combinations.
fn flatten(cell: Cell, cells: &[Cell], share: Share, into: &mut Vec<(Cell, Option<Share>)>) {
    if cell.action.next_of() != Some(Next::Pick) {
        return into.push((cell, Some(share)));
    }
    let candidates = &cells[cell.candidates()];
    for (pick, &candidate) in candidates.iter().enumerate() {
        match share.of(pick, candidates.len()) {
            Some(share) => flatten(candidate, cells, share, into),
            None => return into.push((Cell { action: Action::next(Next::Rules), ..cell }, Some(share))),
        }
    }
}

impl RouteIndex {
    /// Whether a live route of a table may lead to this instance (R41).
    fn may_re_enter(&self, table: &RoutingTable, now: i64) -> bool {
        let own = &self.catalog.own_addresses;
        let is_own = |route: &RouteRow| route.address == TRANSPORT || own.contains(&route.address);
        let mut routes = table.named.clone().chain(table.wildcards.clone()).map(|position| self.route(position));
        !own.is_empty() && routes.any(|route| route.is_live(now) && is_own(route))
    }

    /// Returns the decision of an entry for a broker id.
    fn entry_cell(&self, current: &Current<'_>, slot: u32, named: Option<Guid>) -> Cell {
        let Current { entry, live } = *current;
        let broker = named.unwrap_or_default();
        let cell = entry.cell(entry.action(named.is_some(), broker));
        if !matches!(cell.action.next_of(), Some(Next::Pair | Next::HostDatabase)) {
            return cell;
        }
        let (pair, cells) = match live {
            Some(live) => (live.pairs.get(&broker).copied(), &live.cells),
            None => (self.pair(slot, broker).map(Pair::cell), &self.cells),
        };
        pair.unwrap_or_else(|| self.cell_of_unlisted_id(entry, cells, broker))
    }

    fn decided_by(&self, cell: &Cell, named: Option<Guid>, service: u32) -> Decided {
        let Action { outcome, reason, step, .. } = cell.action;
        let has = |flag| cell.action.has(flag);
        let by_id = || named.and_then(|broker| self.pair(host_owner(service), broker)).map_or(0, |pair| pair.target.to);
        let to = if has(Action::BY_ID) { by_id() } else { cell.target.to };
        let database = has(Action::LOCAL).then_some(to as u16);
        let of_database = database.and_then(|database| self.catalog.databases[usize::from(database)].broker);
        let binding = if has(Action::BINDS) { Some(cell.broker) } else { of_database };
        Decided {
            outcome: Outcome::ALL[outcome as usize],
            reason: Reason::ALL[reason as usize],
            step: (step >= 0).then_some(step),
            route_id: has(Action::HAS_ROUTE).then_some(cell.target.route_id),
            next_hop: has(Action::HAS_HOP).then_some(to),
            mirror: has(Action::HAS_MIRROR).then_some(cell.mirror),
            database,
            binding: binding.filter(|_| named.is_none()),
        }
    }
}
