//! Compiles a catalog to the decision table: applies the rules to every kind of conversation.
//!
//! The kinds of an entry are: no broker id; each id that the routes of the service name; the id of a database that has
//! the service; any other id. If several candidates are equal, all of them are decided, and one is picked later.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use crate::address::next_hop_of_service_name;
use crate::catalog::{BROKER_CONFIGURATION, Catalog, Interner, LOCAL, NEVER, NONE, NameId, TRANSPORT};
use crate::guid::Guid;
use crate::hash::{NameHash, Seed, quarters, short_key};
use crate::route::bloom_filter::BloomFilter;
use crate::route::decide::{
    Decision, End, Found, Located, NextHop, PassContext, Query, Reason, Scratch, no_route_decision, reply_decision,
    unusable_decision,
};
use crate::route::decision_table::{Action, Cell, Entry, Next, Pair, RoutingTable, Source, Target, host_owner};
use crate::route::expiry::{LiveEntry, Window};
use crate::route::index::{CLASSES, Class, Options, RouteIndex};
use crate::route::perfect_hash::PerfectHash;
use crate::route::service_databases::ServiceDatabases;
use crate::route::tie_break::{RoundRobinCounters, TieBreak, Ties};

/// The maximum number of entries for the names of hosted services and pending requests that no route of their source
/// names, counted over all sources; and, separately, of entries for the names of the routes of `msdb`. A source that would
/// exceed the limit gets none of these entries, and leaves these names to `decide`. Replies have no limit.
const ENTRIES_WITHOUT_ROUTES: usize = 1 << 18;
/// No route has expired yet.
const BEFORE_ALL: i64 = i64::MIN;

impl RouteIndex {
    /// Compiles a catalog. `seed` must be secret from anyone who can choose names or ids.
    #[must_use]
    pub fn new(catalog: Arc<Catalog>, options: Options, seed: Seed) -> Self {
        Self::with_limit(catalog, options, seed, ENTRIES_WITHOUT_ROUTES)
    }

    /// Compiles a catalog with a limit other than [`ENTRIES_WITHOUT_ROUTES`].
    pub(crate) fn with_limit(catalog: Arc<Catalog>, options: Options, seed: Seed, limit: usize) -> Self {
        let order = sorted_rows(&catalog);
        let service_databases = ServiceDatabases::new(&catalog);
        let unlisted = unlisted_broker(&catalog);
        let mut index = Self {
            options,
            hash: NameHash::new(seed),
            entry_slots: PerfectHash::default(),
            entries: Vec::new(),
            omitted_names: BloomFilter::default(),
            omitting_sources: Vec::new(),
            routes_at: Vec::new(),
            pair_slots: PerfectHash::default(),
            pair_at: vec![0],
            pairs: Vec::new(),
            cells: Vec::new(),
            tables: Vec::with_capacity(catalog.databases.len()),
            hops_from_names: Interner::new(seed),
            unlisted,
            round_robin: RoundRobinCounters::default(),
            catalog,
            order,
            service_databases,
        };
        index.add_tables();
        let (defaults, omitted) = index.add_entries(seed, limit);
        index.assign_slots(seed);
        let hash = |&(source, name): &(Source, NameId)| index.hash.of(index.catalog.name(name), source);
        index.omitted_names = BloomFilter::new(omitted.iter().map(hash));
        index.routes_at.resize(index.entries.len() + defaults.len(), [0; 2]);
        index.entries.extend(defaults);
        if options.tie_break == TieBreak::RoundRobin {
            let zeros = |count| std::iter::repeat_with(|| AtomicU32::new(0)).take(count).collect();
            index.round_robin = RoundRobinCounters {
                brokers: zeros(index.entries.len()),
                routes: zeros(index.order.len() * CLASSES.len()),
                databases: zeros(index.catalog.names.texts().len()),
            };
        }
        index
    }

    fn add_tables(&mut self) {
        let mut at = 0;
        for table in 0..self.catalog.databases.len() as u16 {
            let routes = at..at + self.order[at..].partition_point(|&row| self.row(row).database <= table);
            let is_named = |&row: &u32| self.row(row).service != NONE;
            let nameless = at + self.order[routes.clone()].partition_point(is_named);
            // Routes without a service name: those without a broker id come first; the others can never match
            // (R20).
            let is_wildcard = |&row: &u32| self.row(row).broker.is_none();
            let wildcards = nameless + self.order[nameless..routes.end].partition_point(is_wildcard);
            let dynamic_until = self.dynamic_until(at..nameless);
            let wildcards = nameless..wildcards;
            let mut later = wildcards.clone().map(|position| self.route(position));
            let expires =
                (NEVER > dynamic_until && dynamic_until > i64::MIN) || later.clone().any(|route| route.expires < NEVER);
            let has_transport_wildcard = later.any(|route| route.address == TRANSPORT);
            self.tables.push(RoutingTable {
                named: at..nameless,
                wildcards,
                dynamic_until,
                has_transport_wildcard,
                shares_later_steps: expires && !has_transport_wildcard,
            });
            at = routes.end;
        }
    }

    /// Returns the last expiry of the routes to the configuration service, among routes with a service name.
    fn dynamic_until(&self, positions: Range<usize>) -> i64 {
        let Some(name) = self.catalog.find_name(BROKER_CONFIGURATION) else { return i64::MIN };
        let service = |row: &u32| self.row(*row).service;
        let rows = &self.order[positions];
        let start = rows.partition_point(|row| service(row) < name);
        let same = rows[start..].iter().take_while(|row| service(row) == name);
        same.map(|&row| self.row(row).expires).max().unwrap_or(i64::MIN)
    }

    /// Adds the entries of all sources; returns the default entries, and the names for [`RouteIndex::omitted_names`] with
    /// the sources of their hashes.
    fn add_entries(&mut self, seed: Seed, limit: usize) -> (Vec<Entry>, Vec<(Source, NameId)>) {
        let mut compiler = Compiler::new(self, BEFORE_ALL, Scratch::default(), Some(Interner::new(seed)));
        let mut entries = Vec::with_capacity(self.catalog.names.texts().len());
        let mut routes_at = Vec::with_capacity(entries.capacity());
        let sources = usize::from(self.replies()) + 1;
        let mut defaults = Vec::with_capacity(sources);
        let mut omitting_sources = Vec::with_capacity(sources);
        let mut names = NamesWithoutRoutes::new(self, limit);
        for source in 0..=self.replies() {
            let to_add = names.of(source);
            for routes in self.runs(source) {
                names.exclude(source, self.route(routes.start).service);
                let subject = compiler.subject(source, Some(self.route(routes.start).service), routes);
                entries.push(compiler.entry(&subject, entries.len() as u32));
                routes_at.push([subject.routes.start as u32, subject.routes.end as u32]);
            }
            for &service in &to_add.names {
                if names.is_excluded(source, service) {
                    continue;
                }
                let subject = compiler.subject(source, Some(service), 0..0);
                entries.push(compiler.entry(&subject, entries.len() as u32));
                routes_at.push([subject.routes.start as u32, subject.routes.end as u32]);
            }
            let subject = compiler.subject(source, None, 0..0);
            defaults.push(compiler.entry(&subject, 0));
            omitting_sources.push(!to_add.is_complete);
        }
        for service in self.service_databases.names() {
            for (broker, database) in self.service_databases.by_broker(service) {
                let target = Target { route_id: 0, to: u32::from(database) };
                let action = Action::next(Next::HostDatabase);
                compiler.pairs.push(Pair { broker, target, owner: host_owner(service), action });
            }
        }
        let omitted = names.omitted();
        let Compiler { cells, pairs, hops, .. } = compiler;
        self.hops_from_names = hops.unwrap_or_else(|| Interner::new(seed));
        (self.entries, self.routes_at, self.cells, self.pairs) = (entries, routes_at, cells, pairs);
        self.omitting_sources = omitting_sources;
        (defaults, omitted)
    }

    /// Returns the routes of each service name in a source, as positions in `order`. Conversations that started in
    /// `msdb` are rare and use the same table as messages from outside; their names count as names without routes.
    fn runs(&self, source: Source) -> impl Iterator<Item = Range<usize>> + use<'_> {
        let table = match source {
            source if source == self.outside() => Some(self.catalog.msdb),
            source if source == self.replies() || source == self.catalog.msdb => None,
            source => Some(source).filter(|&source| self.catalog.databases[usize::from(source)].enabled),
        };
        let mut rest = table.map_or(0..0, |table| self.tables[usize::from(table)].named.clone());
        std::iter::from_fn(move || {
            let start = rest.start;
            let service = self.route(rest.next()?).service;
            while rest.start < rest.end && self.route(rest.start).service == service {
                rest.start += 1;
            }
            Some(start..rest.start)
        })
    }

    /// Returns the entry of a slot for the routes that are live at `now`, from the cache if it is still valid then.
    #[inline]
    pub(crate) fn live_entry<'s>(&self, slot: u32, now: i64, scratch: &'s mut Scratch) -> &'s LiveEntry {
        let number = match scratch.entries.number(slot, now) {
            Some(number) => number,
            None => self.refresh_entry(slot, now, scratch),
        };
        scratch.entries.get(number)
    }

    /// Caches the entry of a slot for the routes that are live at `now`, and returns its number.
    #[cold]
    fn refresh_entry(&self, slot: u32, now: i64, scratch: &mut Scratch) -> usize {
        let live = self.compile_live_entry(slot, now, scratch);
        scratch.entries.set(self.entries.len(), slot, live)
    }

    /// Compiles the entry of a slot again, for the routes that are live at `now`.
    fn compile_live_entry(&self, slot: u32, now: i64, scratch: &mut Scratch) -> LiveEntry {
        let entry = &self.entries[slot as usize];
        let mut compiler = Compiler::new(self, now, std::mem::take(scratch), None);
        let service = Some(entry.service).filter(|&service| service != NONE);
        let subject = compiler.subject(entry.source(), service, self.routes_at(slot));
        let entry = compiler.entry(&subject, slot);
        let window = compiler.scratch.window;
        *scratch = compiler.scratch;
        let pairs = compiler.pairs.iter().map(|pair| (pair.broker, pair.cell())).collect();
        LiveEntry { window, entry, cells: compiler.cells, pairs }
    }

    /// Assigns slots to entries and pairs, with the first hash that is collision-free.
    fn assign_slots(&mut self, seed: Seed) {
        for attempt in 0.. {
            self.hash = NameHash::new(Seed([seed.0[0], seed.0[1].wrapping_add(attempt)]));
            let name = |entry: &Entry| self.hash.of(self.catalog.name(entry.service), entry.source());
            let names: Vec<u64> = self.entries.iter().map(name).collect();
            let Some((entry_slots, entry_at)) = PerfectHash::new(&names) else { continue };
            let owner = |pair: &Pair| entry_at.get(pair.owner as usize).copied().unwrap_or(pair.owner);
            let ids: Vec<u64> = self.pairs.iter().map(|pair| self.hash.of_guid(pair.broker, owner(pair))).collect();
            let Some((pair_slots, pair_at)) = PerfectHash::new(&ids) else { continue };
            for pair in &mut self.pairs {
                pair.owner = entry_at.get(pair.owner as usize).copied().unwrap_or(pair.owner);
            }
            self.move_entries(entry_at, entry_slots.slots);
            self.pair_at = vec![0; pair_slots.slots];
            for (pair, slot) in pair_at.into_iter().enumerate() {
                self.pair_at[slot as usize] = pair as u32;
            }
            (self.entry_slots, self.pair_slots) = (entry_slots, pair_slots);
            return;
        }
    }

    /// Moves each entry to its slot, in place.
    fn move_entries(&mut self, mut at: Vec<u32>, slots: usize) {
        const FREE: u32 = u32::MAX;
        self.entries.resize(slots, Entry::NONE);
        self.routes_at.resize(slots, [0; 2]);
        at.resize(slots, FREE);
        for position in 0..slots {
            while at[position] != FREE && at[position] as usize != position {
                let to = at[position] as usize;
                self.entries.swap(position, to);
                self.routes_at.swap(position, to);
                at.swap(position, to);
            }
        }
    }
}

/// The names that need an entry in a source although no route of its table names them: their decisions depend on the
/// databases that have the service, or on pending requests. In `msdb`, the names of its routes are among them.
struct NamesWithoutRoutes<'a> {
    index: &'a RouteIndex,
    hosted_or_pending: Vec<NameId>,
    /// For each name, the last source from which it was excluded, counted from 1.
    excluded: Vec<u32>,
    /// The number of hosted or pending names, once for each source that lists them.
    count: usize,
    limit: usize,
    /// The names of the routes of `msdb`, if they get no entry.
    omitted_routes: Vec<NameId>,
    omits_hosted_or_pending: bool,
}

/// The names without routes that get an entry in a source.
#[derive(Default)]
struct NamesToAdd {
    names: Vec<NameId>,
    /// No name is omitted because of the limit.
    is_complete: bool,
}

impl<'a> NamesWithoutRoutes<'a> {
    fn new(index: &'a RouteIndex, limit: usize) -> Self {
        let mut names: Vec<NameId> =
            index.service_databases.names().chain(index.catalog.pending.iter().copied()).collect();
        names.sort_unstable();
        names.dedup();
        let excluded = vec![0; index.catalog.names.texts().len()];
        // Replies come last but have entries in any case.
        let count = names.len();
        let (omitted_routes, omits_hosted_or_pending) = (Vec::new(), false);
        Self { index, count, hosted_or_pending: names, excluded, limit, omitted_routes, omits_hosted_or_pending }
    }

    /// Returns the names that get an entry. For replies, all names get one, because their entries show which names are
    /// known.
    fn of(&mut self, source: Source) -> NamesToAdd {
        let catalog = &self.index.catalog;
        let mut to_add = NamesToAdd { names: Vec::new(), is_complete: true };
        if catalog.databases.get(usize::from(source)).is_some_and(|database| !database.enabled) {
            return to_add;
        }
        if source == catalog.msdb {
            let routes = self.index.tables[usize::from(source)].named.clone();
            // Sorted, because the routes are.
            to_add.names.extend(routes.map(|position| self.index.route(position).service));
            to_add.names.dedup();
            if to_add.names.len() > self.limit {
                self.omitted_routes = std::mem::take(&mut to_add.names);
                to_add.is_complete = false;
            }
        }
        let count = self.count + self.hosted_or_pending.len();
        if source == self.index.replies() {
            to_add.names.clone_from(&self.hosted_or_pending);
        } else if count <= self.limit {
            self.count = count;
            to_add.names.extend(&self.hosted_or_pending);
            to_add.names.sort_unstable();
            to_add.names.dedup();
        } else {
            self.omits_hosted_or_pending = true;
            to_add.is_complete = false;
        }
        to_add
    }

    /// Returns the names for which a source has no entry, with the sources of their hashes.
    fn omitted(self) -> Vec<(Source, NameId)> {
        let of_routes = self.omitted_routes.into_iter().map(|name| (self.index.catalog.msdb, name));
        let replies = self.index.replies();
        let others = self.hosted_or_pending.into_iter().filter(|_| self.omits_hosted_or_pending);
        of_routes.chain(others.map(|name| (replies, name))).collect()
    }

    fn exclude(&mut self, source: Source, service: NameId) {
        self.excluded[service as usize] = u32::from(source) + 1;
    }

    fn is_excluded(&self, source: Source, service: NameId) -> bool {
        self.excluded[service as usize] == u32::from(source) + 1
    }
}

/// Compiles entries for one time.
struct Compiler<'a> {
    index: &'a RouteIndex,
    now: i64,
    scratch: Scratch,
    cells: Vec<Cell>,
    pairs: Vec<Pair>,
    /// Next hops from service names; `None` if the next hops of the index cannot be extended.
    hops: Option<Interner>,
}

/// What an entry is for.
struct Subject<'a> {
    source: Source,
    /// `None` for unknown names.
    service: Option<NameId>,
    name: &'a [u8],
    routes: Range<usize>,
}

/// A kind of broker id.
#[derive(Clone, Copy)]
enum Kind {
    None,
    Named(Guid),
    /// The id of a database that has the service; this is one of them.
    HostDatabase(Guid),
    Other,
}

impl<'a> Compiler<'a> {
    fn new(index: &'a RouteIndex, now: i64, scratch: Scratch, hops: Option<Interner>) -> Self {
        Self { index, now, scratch, cells: Vec::new(), pairs: Vec::new(), hops }
    }

    fn subject(&self, source: Source, service: Option<NameId>, routes: Range<usize>) -> Subject<'a> {
        let name = service.map_or(&[][..], |service| self.index.catalog.name(service));
        let is_from_msdb = source == self.index.catalog.msdb && service.is_some();
        let routes = if is_from_msdb { self.index.named_routes(source, service) } else { routes };
        Subject { source, service, name, routes }
    }

    /// Compiles an entry, and appends its pairs with this owner. Afterwards, `scratch.window` is the time for which the
    /// entry is valid.
    fn entry(&mut self, subject: &Subject<'_>, owner: u32) -> Entry {
        self.scratch.window = Window::default();
        if self.index.options.tie_break == TieBreak::RoundRobin {
            return Self::undecided(subject);
        }
        // All kinds of conversation depend on the same routes with this name, of which there may be many.
        for position in subject.routes.clone() {
            self.scratch.window.add(self.index.route(position).expires, self.now);
        }
        self.add_hop(subject);
        let mut ids = std::mem::take(&mut self.scratch.brokers);
        if subject.source == self.index.replies() {
            // A reply names the broker id of its database (R7).
            let hosts = subject.service.into_iter().flat_map(|service| self.index.service_databases.by_broker(service));
            ids.clear();
            ids.extend(hosts.map(|(broker, _)| (0, broker)));
        } else {
            self.index.live_brokers(subject.routes.clone(), self.now, &mut ids);
        }
        let entry = self.entry_with_ids(subject, owner, &ids);
        self.scratch.brokers = ids;
        entry
    }

    fn entry_with_ids(&mut self, subject: &Subject<'_>, owner: u32, ids: &[(i32, Guid)]) -> Entry {
        let broker = ids.first().map(|&(_, broker)| broker);
        let none = self.cell(subject, Kind::None);
        let first = broker.map(|broker| self.cell(subject, Kind::Named(broker)));
        let has_hosts = !self.index.hosts_of(subject.service).is_empty();
        // Without broker ids in routes and databases, it does not matter whether a conversation names one.
        let is_regardless = ids.is_empty() && !has_hosts && subject.source != self.index.replies();
        let other = if is_regardless { none } else { self.shared_cell(subject, Kind::Other, none) };
        let host = self.host_kind(subject).map_or(other, |host| self.shared_cell(subject, host, other));
        if ids.len() > 1 {
            for &(_, broker) in &ids[1..] {
                let cell = self.cell(subject, Kind::Named(broker));
                let Cell { target, action, .. } = self.fit_into_entry(cell, broker);
                self.pairs.push(Pair { broker, target, owner, action });
            }
        }
        let bound = broker.unwrap_or_default();
        let [fitted_none, fitted_first, fitted_other] =
            [none, first.unwrap_or(other), other].map(|cell| self.fit_into_entry(cell, bound));
        let mut targets = Targets::default();
        let first_actions =
            [targets.place(fitted_none), targets.place(fitted_first)].map(|action| action.unwrap_or(RULES));
        let placed = if ids.len() > 1 || host != other { None } else { targets.place(fitted_other) };
        let unlisted_cells = self.cells.len() as u32;
        let other_action = placed.unwrap_or_else(|| {
            self.cells.extend([other, host]);
            Action::next(if ids.len() > 1 { Next::Pair } else { Next::HostDatabase })
        });
        let [of_none, of_first] = first_actions;
        let of_first = if broker.is_some() { of_first } else { other_action };
        Entry {
            broker: bound,
            targets: targets.targets,
            expires: self.scratch.window.until,
            actions: [of_none, other_action, of_first],
            unlisted_cells,
            ..Self::undecided(subject)
        }
    }

    /// An entry that leaves everything to `decide`.
    fn undecided(subject: &Subject<'_>) -> Entry {
        Entry {
            chunks: quarters(subject.name).unwrap_or_default(),
            expires: NEVER,
            // The key has 16 bits of the length. That of a longer name must not be the length of a short one.
            key: short_key(subject.source, subject.name.len().min(usize::from(u16::MAX))),
            service: subject.service.unwrap_or(NONE),
            ..Entry::NONE
        }
    }

    /// Returns the kind of the databases that have the service and whose broker ids no live route names.
    fn host_kind(&self, subject: &Subject<'_>) -> Option<Kind> {
        if subject.source == self.index.replies() {
            return None; // replies have pairs for them
        }
        let is_live = |position| self.index.route(position).is_live(self.now);
        let is_named = |id| self.index.routes_with(subject.routes.clone(), Some(id)).any(is_live);
        let mut ids = self.index.service_databases.by_broker(subject.service?).map(|(id, _)| id);
        ids.find(|&id| !is_named(id)).map(Kind::HostDatabase)
    }

    /// Returns `cell` if the decisions for this kind are the same.
    fn shared_cell(&mut self, subject: &Subject<'_>, kind: Kind, cell: Cell) -> Cell {
        let before = self.cells.len();
        let own = self.cell(subject, kind);
        if !self.is_same(own, cell) {
            return own;
        }
        self.cells.truncate(before);
        cell
    }

    fn is_same(&self, one: Cell, other: Cell) -> bool {
        if (one.action, other.action) != (Action::next(Next::Pick), Action::next(Next::Pick)) {
            return one == other;
        }
        let (one, other) = (one.candidates(), other.candidates());
        one.len() == other.len() && one.zip(other).all(|(one, other)| self.is_same(self.cells[one], self.cells[other]))
    }

    /// Returns a cell that fits into an entry or pair with this broker id.
    fn fit_into_entry(&mut self, cell: Cell, broker: Guid) -> Cell {
        let is_bound = !cell.action.has(Action::BINDS) || cell.broker == broker;
        let is_finished = !cell.action.has(Action::UNFINISHED);
        if !is_finished || is_bound && !cell.action.has(Action::HAS_MIRROR) {
            return cell;
        }
        self.cells.push(cell);
        Cell::next(Next::Pick, Target::cells(self.cells.len() - 1, 1))
    }

    /// Applies the rules to one kind of conversation.
    fn cell(&mut self, subject: &Subject<'_>, kind: Kind) -> Cell {
        let index = self.index;
        let broker = match kind {
            Kind::None => None,
            Kind::Named(broker) | Kind::HostDatabase(broker) => Some(broker),
            Kind::Other => Some(index.unlisted),
        };
        let database = Some(subject.source).filter(|&source| source < index.outside());
        let query = Query { name: subject.name, broker, database, is_initiator: true, conversation: None };
        // Unused: compilation breaks no ties.
        let ties = Ties::default();
        let context = PassContext {
            table: index.table(subject.source),
            database,
            re_entered: false,
            now: self.now,
            service: subject.service,
            routes: subject.routes.clone(),
            slot: 0,
            picker: index.picker(&ties),
        };
        let case = Case { query: &query, context: &context, is_host: matches!(kind, Kind::HostDatabase(_)) };
        if subject.source == index.replies() {
            let host = broker.and_then(|broker| index.host_with(broker, subject.service));
            return self.decided(&case, reply_decision(&query, host));
        }
        if let Some(decision) = index.decide_without_table(&query, &context) {
            return self.decided(&case, decision);
        }
        let window = self.scratch.window;
        let found = index.find(&query, &context, &mut self.scratch);
        if self.is_shared(subject, &found) {
            self.scratch.window = window;
            return Cell::next(Next::Unknown, Target::default());
        }
        match found {
            found @ (Found::Nothing | Found::Request) => self.decided(&case, no_route_decision(&query, &found)),
            Found::Brokers => {
                let brokers = std::mem::take(&mut self.scratch.brokers);
                let cell = self.pick(&brokers, |compiler, &(_, broker)| {
                    compiler.chosen(&case, &index.found_with(&context, broker))
                });
                self.scratch.brokers = brokers;
                cell
            }
            found => self.chosen(&case, &found),
        }
    }

    /// Whether the entry for unknown names gives the same decision.
    fn is_shared(&self, subject: &Subject<'_>, found: &Found) -> bool {
        let Some(service) = subject.service else { return false };
        let table = &self.index.tables[usize::from(self.index.table(subject.source))];
        // An entry that is compiled again is for one time, so it holds the decision itself.
        self.now == BEFORE_ALL
            && table.shares_later_steps
            && matches!(found, Found::Request | Found::Nothing | Found::Routes { step: 5, .. })
            && self.index.hosts_of(Some(service)).is_empty()
            && !self.index.catalog.is_pending(service)
    }

    /// Decides with the routes found.
    fn chosen(&mut self, case: &Case<'_>, found: &Found) -> Cell {
        let (index, Case { query, context, .. }) = (self.index, *case);
        let (step, broker) = match *found {
            Found::Routes { step, broker, .. } => (step, broker),
            Found::Implied { step } => return self.located(case, step, None, None),
            Found::Brokers | Found::Nothing | Found::Request => return Cell::next(Next::Rules, Target::default()),
        };
        let usable = index.usable(query, context, found, &mut self.scratch);
        let depends_on_name = context.service.is_none() && self.depends_on_name(context, usable.ok());
        let cell = match usable {
            Ok(_) => {
                let rows = std::mem::take(&mut self.scratch.rows);
                let cell = self.pick(&rows, |compiler, &row| {
                    if index.row(row).address == LOCAL {
                        return compiler.located(case, step, Some(row), broker);
                    }
                    match index.decide_by_address(query, context, step, row, &mut None) {
                        End::Decided(decision) => compiler.decided(case, decision),
                        End::ReEnter => Cell::next(Next::ReEnter, Target::default()),
                    }
                });
                self.scratch.rows = rows;
                cell
            }
            Err(reason) => self.decided(case, unusable_decision(query, context, step, reason)),
        };
        if !depends_on_name {
            return cell;
        }
        // The query has an empty name, so this is the decision for names without an address.
        self.cells.push(cell);
        Cell::next(Next::MaybeAddress, Target::cells(self.cells.len() - 1, 1))
    }

    /// Whether a wildcard with the address TRANSPORT might be chosen, depending on the name.
    fn depends_on_name(&mut self, context: &PassContext<'_>, chosen: Option<Class>) -> bool {
        let classes = &self.scratch.wildcards.get(self.index, context.table, self.now).classes;
        let is_in = |class| classes[class as usize].iter().any(|&row| self.index.row(row).address == TRANSPORT);
        is_in(Class::Mirror) || is_in(Class::Transport) && chosen.is_none()
    }

    /// Decides with a LOCAL route.
    fn located(&mut self, case: &Case<'_>, step: i8, route: Option<u32>, broker: Option<Guid>) -> Cell {
        let (index, Case { query, context, .. }) = (self.index, *case);
        let in_database = |compiler: &mut Self, database: &u16| {
            compiler.decided(case, index.local_decision(query, step, route, *database))
        };
        match index.locate(query, context, broker) {
            Located::Nowhere => self.decided(case, unusable_decision(query, context, step, Reason::ServiceNotFound)),
            Located::In(database) => in_database(self, &database),
            Located::InOneOf(hosts) => self.pick(hosts, in_database),
        }
    }

    /// Decides each of several equal candidates, of which there is at least one.
    fn pick<T>(&mut self, candidates: &[T], mut decide: impl FnMut(&mut Self, &T) -> Cell) -> Cell {
        if candidates.len() == 1 || self.index.options.tie_break == TieBreak::First {
            return decide(self, &candidates[0]);
        }
        let cells: Vec<Cell> = candidates.iter().map(|candidate| decide(self, candidate)).collect();
        let target = Target::cells(self.cells.len(), cells.len());
        self.cells.extend(cells);
        Cell::next(Next::Pick, target)
    }

    fn decided(&mut self, case: &Case<'_>, decision: Decision) -> Cell {
        let hop = match decision.next_hop {
            None => None,
            Some(NextHop::Known(address)) => Some(address),
            Some(NextHop::Named(hop)) => match self.hop_number(&hop) {
                Some(address) => Some(address),
                None => return Cell::next(Next::Rules, Target::default()),
            },
        };
        let is_local = decision.database.is_some();
        let binds = case.query.broker.is_none() && decision.broker.is_some() && !is_local;
        let flags = [
            (Action::HAS_ROUTE, decision.route_id.is_some()),
            (Action::BINDS, binds),
            (Action::HAS_HOP, hop.is_some()),
            (Action::LOCAL, is_local),
            (Action::BY_ID, is_local && case.is_host),
            (Action::HAS_MIRROR, decision.mirror.is_some()),
        ];
        let to = hop.or(decision.database.filter(|_| !case.is_host).map(u32::from)).unwrap_or_default();
        Cell {
            broker: if binds { decision.broker.unwrap_or_default() } else { Guid::default() },
            target: Target { route_id: decision.route_id.unwrap_or_default(), to },
            mirror: decision.mirror.unwrap_or(NONE),
            action: Action {
                outcome: decision.outcome as i8,
                reason: decision.reason as i8,
                step: decision.match_step.unwrap_or(-1),
                flags: flags.iter().fold(0, |flags, &(flag, is_set)| flags | u8::from(is_set) << flag),
            },
        }
    }

    /// Adds the next hop in a service name that a route with the address TRANSPORT may need, also after an expiry.
    fn add_hop(&mut self, subject: &Subject<'_>) {
        let table = &self.index.tables[usize::from(self.index.table(subject.source))];
        let is_transport = |position| self.index.route(position).address == TRANSPORT;
        let Some(hops) = &mut self.hops else { return };
        if (table.has_transport_wildcard || subject.routes.clone().any(is_transport))
            && let Some(hop) = next_hop_of_service_name(subject.name)
            && self.index.catalog.find_address(hop.as_bytes()).is_none()
        {
            hops.intern(hop.as_bytes());
        }
    }

    /// Returns the number of a next hop from a service name.
    fn hop_number(&self, hop: &str) -> Option<u32> {
        let number = self.hops.as_ref().unwrap_or(&self.index.hops_from_names).find(hop.as_bytes())?;
        Some(self.index.catalog.address_count() as u32 + number)
    }
}

/// A kind of conversation.
#[derive(Clone, Copy)]
struct Case<'a> {
    query: &'a Query<'a>,
    context: &'a PassContext<'a>,
    is_host: bool,
}

const RULES: Action = Action::next(Next::Rules);

/// The targets of an entry.
#[derive(Default)]
struct Targets {
    targets: [Target; 2],
    count: usize,
}

impl Targets {
    /// Returns the action with the position of its target; `None` if the entry already has two other targets.
    fn place(&mut self, cell: Cell) -> Option<Action> {
        let Cell { target, action, .. } = cell;
        let has_target = [Action::HAS_ROUTE, Action::HAS_HOP, Action::LOCAL].iter().any(|&flag| action.has(flag));
        if !has_target && !matches!(action.next_of(), Some(Next::Pick | Next::MaybeAddress)) {
            return Some(action);
        }
        let position = self.targets[..self.count].iter().position(|&known| known == target).unwrap_or(self.count);
        *self.targets.get_mut(position)? = target;
        self.count = self.count.max(position + 1);
        Some(Action { flags: action.flags | (position as u8) << Action::SECOND_TARGET, ..action })
    }
}

/// Returns a broker id that no route and no database has.
fn unlisted_broker(catalog: &Catalog) -> Guid {
    let routes = catalog.routes.iter().filter_map(|route| route.broker);
    let mut listed: Vec<u32> = routes
        .chain(catalog.databases.iter().filter_map(|database| database.broker))
        .map(|broker| broker.halves().0)
        .filter(|&high| high >> 32 == 0)
        .map(|high| high as u32)
        .collect();
    listed.sort_unstable();
    listed.dedup();
    // The first number that is missing in the sorted list.
    let free = listed.iter().zip(0..).find(|&(&number, position)| number != position);
    let free = free.map_or(listed.len() as u32, |(_, position)| position);
    Guid((u128::from(free) << 64).to_be_bytes())
}

/// Sorts rows by (database, service name, broker id, route id). Routes without a service name come last, routes
/// without a broker id first.
fn sorted_rows(catalog: &Catalog) -> Vec<u32> {
    let route = |row: u32| &catalog.routes[row as usize];
    // Sorting complete keys is faster than comparing rows that must be looked up; equal keys are sorted afterwards.
    let key = |row: u32| u64::from(route(row).database) << 32 | u64::from(route(row).service);
    let mut keys: Vec<(u64, u32)> = (0..catalog.routes.len() as u32).map(|row| (key(row), row)).collect();
    keys.sort_unstable();
    let mut order: Vec<u32> = keys.iter().map(|&(_, row)| row).collect();
    let mut start = 0;
    for same in keys.chunk_by(|one, other| one.0 == other.0) {
        let end = start + same.len();
        order[start..end].sort_unstable_by_key(|&row| (route(row).broker, route(row).route_id));
        start = end;
    }
    order
}
