//! Decides one conversation: find the routes, choose one, and locate the service (R1 to R42).

use std::cell::RefCell;
use std::ops::Range;

use crate::address::next_hop_of_service_name;
use crate::catalog::{EndpointId, LOCAL, NONE, NameId, RouteRow, TRANSPORT};
use crate::guid::Guid;
use crate::route::expiry::{LiveRoutesCache, WildcardCache};
use crate::route::index::{CLASSES, Class, Entry, RouteIndex};
use crate::route::tie_break::{Choice, PendingRequest, Picker};

/// A conversation to route.
#[derive(Clone, Copy, Debug)]
pub struct Query<'a> {
    /// The target service.
    pub name: &'a [u8],
    /// The broker id that the conversation names.
    pub broker: Option<Guid>,
    /// The database in which the conversation started; `None` if it came from another instance.
    pub database: Option<u16>,
    /// Whether the initiator sends; false for a reply (R7).
    pub is_initiator: bool,
    /// The conversation id, for the hash tie break.
    pub conversation: Option<Guid>,
}

/// The next hop of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextHop {
    /// An address of the catalog.
    Known(EndpointId),
    /// An address from the service name (R23), in normal form.
    Named(String),
}

/// The decision for a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What happens to the conversation.
    pub outcome: Outcome,
    /// The reason.
    pub reason: Reason,
    /// The step that matched: 1 to 7, 0 for a reply (R7), `None` if nothing was searched (R34).
    pub match_step: Option<i8>,
    /// The id of the chosen route.
    pub route_id: Option<i32>,
    /// The next hop, for REMOTE and FORWARD.
    pub next_hop: Option<NextHop>,
    /// The mirror address of the chosen route.
    pub mirror: Option<EndpointId>,
    /// The target database, for LOCAL.
    pub database: Option<u16>,
    /// The broker id to which the conversation is now bound.
    pub broker: Option<Guid>,
}

/// Everything found in one pass over a routing table. `decide` uses only the end, `explain` all of it.
#[derive(Debug)]
pub(crate) struct PassResult {
    pub(crate) is_reply: bool,
    pub(crate) found: Option<Found>,
    pub(crate) chosen: Option<Chosen>,
    pub(crate) next_hop: Option<(NextHop, bool)>,
    pub(crate) end: End,
}

/// How a pass over a routing table ends.
#[derive(Debug)]
pub(crate) enum End {
    Decided(Decision),
    ReEnter,
}

/// The state of one pass over a routing table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PassContext<'a> {
    pub(crate) table: u16,
    /// The database in which the conversation started; `None` also after a re-entry.
    pub(crate) database: Option<u16>,
    pub(crate) now: i64,
    /// The number of the service name, if the catalog knows it.
    pub(crate) service: Option<NameId>,
    pub(crate) picker: Picker<'a>,
}

impl RouteIndex {
    /// Decides one conversation at the time `now`, in microseconds since 1970.
    #[must_use]
    pub fn decide(&self, query: &Query<'_>, now: i64) -> Decision {
        self.decide_with(query, now, &mut Scratch::default())
    }

    /// Decides one conversation, reusing scratch memory.
    #[must_use]
    pub fn decide_with(&self, query: &Query<'_>, now: i64, scratch: &mut Scratch) -> Decision {
        let mut context = self.first_pass(query, now, None);
        loop {
            match self.pass(query, &context, scratch).end {
                End::Decided(decision) => return decision,
                End::ReEnter => context = self.second_pass(context),
            }
        }
    }

    /// R2: uses the table of the database in which the conversation started, or that of `msdb`.
    pub(crate) fn first_pass<'a>(
        &'a self,
        query: &Query<'_>,
        now: i64,
        simulated: Option<&'a RefCell<Vec<(Choice, usize)>>>,
    ) -> PassContext<'a> {
        let picker = Picker {
            tie_break: self.options.tie_break,
            conversation: query.conversation,
            re_entered: false,
            round_robin: &self.round_robin,
            simulated,
        };
        let service = self.catalog.find_name(query.name);
        PassContext {
            table: query.database.unwrap_or(self.catalog.msdb),
            database: query.database,
            now,
            service,
            picker,
        }
    }

    /// R41: repeats the search as if the conversation came from another instance.
    pub(crate) fn second_pass<'a>(&self, first: PassContext<'a>) -> PassContext<'a> {
        let picker = Picker { re_entered: true, ..first.picker };
        PassContext { table: self.catalog.msdb, database: None, picker, ..first }
    }

    /// Searches one routing table.
    pub(crate) fn pass(&self, query: &Query<'_>, context: &PassContext<'_>, scratch: &mut Scratch) -> PassResult {
        let mut result = PassResult { is_reply: false, found: None, chosen: None, next_hop: None, end: End::ReEnter };
        if self.sender_is_disabled(context) {
            result.end = End::Decided(delayed_decision(query, None, Reason::SenderDisabled));
            return result;
        }
        if let Some(broker) = self.reply_broker(query, context) {
            let host = self.host_with(broker, context.service);
            result.is_reply = true;
            result.end = End::Decided(reply_decision(query, host));
            return result;
        }
        let found = self.find(query, context, scratch);
        result.end = match &found {
            Found::Nothing => End::Decided(delayed_decision(query, Some(7), Reason::NoRoute)),
            Found::Request => End::Decided(delayed_decision(query, Some(4), Reason::RouteRequested)),
            Found::Routes { step, .. } | Found::Implied { step } => {
                let chosen = self.choose(query, context, &found, scratch);
                let end = match &chosen {
                    Chosen::None { reason } => End::Decided(unusable_decision(query, context, *step, *reason)),
                    Chosen::Local { .. } | Chosen::Address { .. } => {
                        self.decide_by_route(query, context, *step, &chosen, &mut result.next_hop)
                    }
                };
                result.chosen = Some(chosen);
                end
            }
        };
        result.found = Some(found);
        result
    }

    /// R34: a database with disabled message delivery sends nothing.
    fn sender_is_disabled(&self, context: &PassContext<'_>) -> bool {
        context.database.is_some_and(|database| !self.catalog.databases[usize::from(database)].enabled)
    }

    /// R7: returns the broker id of a reply if a database of this instance has it.
    fn reply_broker(&self, query: &Query<'_>, context: &PassContext<'_>) -> Option<Guid> {
        let broker = query.broker.filter(|_| context.database.is_none() && !query.is_initiator)?;
        self.hosts.is_broker(broker).then_some(broker)
    }

    /// Decides a conversation whose route is chosen.
    fn decide_by_route(
        &self,
        query: &Query<'_>,
        context: &PassContext<'_>,
        step: i8,
        chosen: &Chosen,
        next_hop: &mut Option<(NextHop, bool)>,
    ) -> End {
        let is_from_outside = context.database.is_none();
        let (route, hop) = match chosen {
            Chosen::Local { route, database, .. } => {
                let route = route.map(|row| &self.catalog.routes[row as usize]);
                return End::Decided(self.local_decision(query, step, route, *database));
            }
            Chosen::Address { route, .. } => {
                let route = &self.catalog.routes[*route as usize];
                (route, self.next_hop(query, route))
            }
            Chosen::None { reason } => return End::Decided(unusable_decision(query, context, step, *reason)),
        };
        let Some(hop) = hop else {
            return End::Decided(unusable_decision(query, context, step, Reason::AddressUnusable));
        };
        let is_own = self.is_own_hop(&hop);
        *next_hop = Some((hop.clone(), is_own));
        let decision = Decision {
            outcome: Outcome::Dropped,
            reason: Reason::Matched,
            match_step: Some(step),
            route_id: Some(route.route_id),
            next_hop: None,
            mirror: (route.mirror != NONE).then_some(route.mirror),
            database: None,
            broker: query.broker.or(route.broker),
        };
        if is_from_outside && !self.catalog.settings.message_forwarding {
            return End::Decided(Decision { reason: Reason::ForwardingDisabled, ..decision });
        }
        match (is_own, is_from_outside) {
            (true, true) => End::Decided(Decision { reason: Reason::RoutingLoop, ..decision }),
            (true, false) => End::ReEnter,
            (false, true) => End::Decided(Decision { outcome: Outcome::Forward, next_hop: Some(hop), ..decision }),
            (false, false) => End::Decided(Decision { outcome: Outcome::Remote, next_hop: Some(hop), ..decision }),
        }
    }

    fn local_decision(&self, query: &Query<'_>, step: i8, route: Option<&RouteRow>, database: u16) -> Decision {
        let host = &self.catalog.databases[usize::from(database)];
        Decision {
            outcome: Outcome::Local,
            reason: Reason::Matched,
            match_step: Some(step),
            route_id: route.map(|route| route.route_id),
            next_hop: None,
            mirror: route.map(|route| route.mirror).filter(|&mirror| mirror != NONE),
            database: Some(database),
            broker: query.broker.or(route.and_then(|route| route.broker)).or(host.broker),
        }
    }

    /// Returns the next hop of a route that is not LOCAL; `None` for TRANSPORT if the service name holds no address
    /// (R23).
    pub(crate) fn next_hop(&self, query: &Query<'_>, route: &RouteRow) -> Option<NextHop> {
        debug_assert_ne!(route.endpoint, LOCAL);
        if route.endpoint != TRANSPORT {
            return Some(NextHop::Known(route.endpoint));
        }
        let normal = next_hop_of_service_name(query.name)?;
        Some(match self.catalog.find_endpoint(normal.as_bytes()) {
            Some(known) => NextHop::Known(known),
            None => NextHop::Named(normal),
        })
    }

    fn is_own_hop(&self, hop: &NextHop) -> bool {
        // The instance's own addresses are endpoints of the catalog, so any other hop is another instance.
        matches!(hop, NextHop::Known(endpoint) if self.catalog.is_own(*endpoint))
    }
}

fn delayed_decision(query: &Query<'_>, match_step: Option<i8>, reason: Reason) -> Decision {
    Decision {
        outcome: Outcome::Delayed,
        reason,
        match_step,
        route_id: None,
        next_hop: None,
        mirror: None,
        database: None,
        broker: query.broker,
    }
}

/// R26: a conversation that started here is delayed, a message from another instance is dropped.
fn unusable_decision(query: &Query<'_>, context: &PassContext<'_>, step: i8, reason: Reason) -> Decision {
    let outcome = if context.database.is_some() { Outcome::Delayed } else { Outcome::Dropped };
    Decision { outcome, ..delayed_decision(query, Some(step), reason) }
}

fn reply_decision(query: &Query<'_>, host: Option<u16>) -> Decision {
    let (outcome, reason) = match host {
        Some(_) => (Outcome::Local, Reason::Reply),
        None => (Outcome::Dropped, Reason::ServiceNotFound),
    };
    Decision { outcome, database: host, ..delayed_decision(query, Some(0), reason) }
}

/// What happens to a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i8)]
pub enum Outcome {
    /// Deliver to a database of this instance.
    Local,
    /// Send to another instance; the conversation started here.
    Remote,
    /// Forward to another instance; the conversation came from a third one.
    Forward,
    /// Keep in the transmission queue and route again after a timeout (R18).
    Delayed,
    /// Drop the message without acknowledging it.
    Dropped,
}

impl Outcome {
    /// The labels, indexed by code.
    pub const LABELS: [&'static str; 5] = ["LOCAL", "REMOTE", "FORWARD", "DELAYED", "DROPPED"];

    /// Returns the label used in decision columns.
    #[must_use]
    pub fn label(self) -> &'static str {
        Self::LABELS[self as usize]
    }
}

/// The reason for an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i8)]
pub enum Reason {
    /// A route was found and chosen.
    Matched,
    /// A reply to a database of this instance (R7).
    Reply,
    /// No step yields a route (R17).
    NoRoute,
    /// Routing information was requested from the dynamic routing service (R14).
    RouteRequested,
    /// The chosen routes are LOCAL, and no database takes the message (R26, R7).
    ServiceNotFound,
    /// Message delivery is disabled in the database in which the conversation started (R34).
    SenderDisabled,
    /// The message must be forwarded, and forwarding is off (R25).
    ForwardingDisabled,
    /// The message came from another instance and would return to this one (R42).
    RoutingLoop,
    /// The address is TRANSPORT, and the service name holds no address (R23).
    AddressUnusable,
}

impl Reason {
    /// The labels, indexed by code.
    pub const LABELS: [&'static str; 9] = [
        "matched",
        "reply",
        "no_route",
        "route_requested",
        "service_not_found",
        "sender_disabled",
        "forwarding_disabled",
        "routing_loop",
        "address_unusable",
    ];

    /// Returns the label used in decision columns.
    #[must_use]
    pub fn label(self) -> &'static str {
        Self::LABELS[self as usize]
    }
}

// Find: the first of seven steps that yields a route ends the search (R11 to R17).

/// The result of the seven steps.
#[derive(Debug)]
pub(crate) enum Found {
    /// Routes with one service name and one broker id or none, as positions in the index order, including expired
    /// ones.
    Routes { step: i8, rows: Range<usize>, broker: Option<Guid> },
    /// The implied LOCAL route of R16.
    Implied { step: i8 },
    /// Routing information is requested, or a request is pending (R14).
    Request,
    /// No step yields a route (R17).
    Nothing,
}

impl RouteIndex {
    pub(crate) fn find(&self, query: &Query<'_>, context: &PassContext<'_>, scratch: &mut Scratch) -> Found {
        let table = &self.tables[usize::from(context.table)];
        let live = |rows: &Range<usize>| rows.clone().any(|position| self.route(position).is_live(context.now));
        if let Some(number) = self.entry(context.table, query.name) {
            let entry = &self.entries[number as usize];
            if let Some(broker) = query.broker {
                let rows = self.rows_with(entry, Some(broker));
                if live(&rows) {
                    return Found::Routes { step: 1, rows, broker: Some(broker) };
                }
            }
            let rows = self.rows_with(entry, None);
            if live(&rows) {
                return Found::Routes { step: 2, rows, broker: None };
            }
            let picked = if query.broker.is_none() { self.pick_broker(number, context, scratch) } else { None };
            if let Some(broker) = picked {
                return Found::Routes { step: 3, rows: self.rows_with(entry, Some(broker)), broker: Some(broker) };
            }
        }
        if context.now < table.dynamic_until && self.requests_route(query) {
            return Found::Request;
        }
        if !scratch.wildcards.get(self, context.table, context.now).is_empty() {
            return Found::Routes { step: 5, rows: table.wildcards.clone(), broker: None };
        }
        if query.broker.is_some() && !self.hosts_of(context.service).is_empty() {
            return Found::Implied { step: 6 };
        }
        Found::Nothing
    }

    /// Returns the routes of an entry with this broker id, or without one.
    pub(crate) fn rows_with(&self, entry: &Entry, broker: Option<Guid>) -> Range<usize> {
        let rows = entry.rows();
        let order = &self.order[rows.clone()];
        let broker_of = |row: &u32| self.catalog.routes[*row as usize].broker;
        let start = order.partition_point(|row| broker_of(row) < broker);
        let end = order.partition_point(|row| broker_of(row) <= broker);
        rows.start + start..rows.start + end
    }

    /// R14: whether a live route to the dynamic routing service delays the conversation.
    fn requests_route(&self, query: &Query<'_>) -> bool {
        self.options.pending_request == PendingRequest::Delay || !self.catalog.is_pending(query.name)
    }

    /// R13: picks one of the broker ids of the live routes, which are sorted by their lowest live route id.
    fn pick_broker(&self, entry: u32, context: &PassContext<'_>, scratch: &mut Scratch) -> Option<Guid> {
        self.live_brokers(entry, context.now, scratch);
        let count = scratch.brokers.len();
        (count > 0).then(|| scratch.brokers[context.picker.pick(Choice::Broker, entry as usize, count)].1)
    }

    /// Stores the broker ids of the live routes, with their lowest route ids, in `scratch.brokers`.
    pub(crate) fn live_brokers(&self, entry: u32, now: i64, scratch: &mut Scratch) {
        scratch.brokers.clear();
        // The rows of an entry are sorted by broker id, then by route id.
        for position in self.entries[entry as usize].rows() {
            let route = self.route(position);
            let Some(broker) = route.broker.filter(|_| route.is_live(now)) else { continue };
            if scratch.brokers.last().is_none_or(|&(_, last)| last != broker) {
                scratch.brokers.push((route.route_id, broker));
            }
        }
        scratch.brokers.sort_unstable();
    }
}

// Choose: one of the routes found (R21 to R26).

/// The chosen route.
#[derive(Debug)]
pub(crate) enum Chosen {
    /// A LOCAL route and the database that takes the message; no route if it is the implied one.
    Local { route: Option<u32>, database: u16 },
    /// A route with a network address or TRANSPORT.
    Address { route: u32 },
    /// No class has a usable route (R26).
    None { reason: Reason },
}

/// Scratch memory reused for the conversations of one index, and caches of the routes that are live.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(crate) rows: Vec<u32>,
    pub(crate) brokers: Vec<(i32, Guid)>,
    pub(crate) wildcards: WildcardCache,
    pub(crate) live_routes: LiveRoutesCache,
}

impl RouteIndex {
    pub(crate) fn choose(
        &self,
        query: &Query<'_>,
        context: &PassContext<'_>,
        found: &Found,
        scratch: &mut Scratch,
    ) -> Chosen {
        let Found::Routes { rows, broker, .. } = found else {
            return match self.locate(query, context, None) {
                Some(database) => Chosen::Local { route: None, database },
                None => Chosen::None { reason: Reason::ServiceNotFound },
            };
        };
        let mut has_local = false;
        for class in CLASSES {
            self.candidates(query, context, found, class, scratch, &mut has_local);
            if scratch.rows.is_empty() {
                continue;
            }
            let turn = rows.start * CLASSES.len() + class as usize;
            let row = scratch.rows[context.picker.pick(Choice::Route, turn, scratch.rows.len())];
            if self.row(row).endpoint != LOCAL {
                return Chosen::Address { route: row };
            }
            if let Some(database) = self.locate(query, context, *broker) {
                return Chosen::Local { route: Some(row), database };
            }
        }
        let reason = if has_local { Reason::ServiceNotFound } else { Reason::AddressUnusable };
        Chosen::None { reason }
    }

    /// Stores the usable routes of a class in `scratch.rows`, and reports whether one of the class is LOCAL.
    fn candidates(
        &self,
        query: &Query<'_>,
        context: &PassContext<'_>,
        found: &Found,
        class: Class,
        scratch: &mut Scratch,
        has_local: &mut bool,
    ) {
        let Scratch { rows: into, wildcards, .. } = scratch;
        into.clear();
        match found {
            Found::Routes { step: 5, .. } => {
                into.extend_from_slice(&wildcards.get(self, context.table, context.now).classes[class as usize]);
            }
            Found::Routes { rows, .. } => {
                let live = self.order[rows.clone()].iter().copied().filter(|&row| self.row(row).is_live(context.now));
                into.extend(live.filter(|&row| Class::of(self.row(row)) == class));
                self.merge(into);
            }
            Found::Implied { .. } | Found::Request | Found::Nothing => {}
        }
        *has_local |= into.iter().any(|&row| self.row(row).endpoint == LOCAL);
        if class != Class::Network {
            into.retain(|&row| self.is_usable(query, context, self.row(row)));
        }
    }

    /// Whether a route can be used for this conversation (R22).
    pub(crate) fn is_usable(&self, query: &Query<'_>, context: &PassContext<'_>, route: &RouteRow) -> bool {
        match route.endpoint {
            LOCAL => self.can_locate(query, context, route.broker),
            TRANSPORT => self.next_hop(query, route).is_some(),
            _ => true,
        }
    }

    /// R21: keeps one of the rows with the same address, the one with the lowest route id.
    pub(crate) fn merge(&self, rows: &mut Vec<u32>) {
        if rows.len() > 1 {
            rows.sort_by_key(|&row| self.row(row).endpoint);
            rows.dedup_by_key(|row| self.row(*row).endpoint);
            rows.sort_by_key(|&row| self.row(row).route_id);
        }
    }

    pub(crate) fn row(&self, row: u32) -> &RouteRow {
        &self.catalog.routes[row as usize]
    }
}

// Locate: the database that takes the message (R31 to R34).

impl RouteIndex {
    /// Returns the enabled databases that have the service, sorted by name (R33).
    pub(crate) fn hosts_of(&self, service: Option<NameId>) -> &[u16] {
        service.map_or(&[], |service| self.hosts.of(service))
    }

    /// R31: returns the database with this broker id if it is enabled and has the service.
    pub(crate) fn host_with(&self, broker: Guid, service: Option<NameId>) -> Option<u16> {
        self.hosts.with(service?, broker)
    }

    /// Whether *Locate* finds a database; this makes a LOCAL route usable.
    pub(crate) fn can_locate(&self, query: &Query<'_>, context: &PassContext<'_>, route_broker: Option<Guid>) -> bool {
        match query.broker.or(route_broker) {
            Some(broker) => self.host_with(broker, context.service).is_some(),
            None => !self.hosts_of(context.service).is_empty(),
        }
    }

    /// Returns the database that takes the message.
    pub(crate) fn locate(
        &self,
        query: &Query<'_>,
        context: &PassContext<'_>,
        route_broker: Option<Guid>,
    ) -> Option<u16> {
        let service = context.service?;
        if let Some(broker) = query.broker.or(route_broker) {
            return self.host_with(broker, Some(service));
        }
        let hosts = self.hosts.of(service);
        if let Some(holder) = context.database.filter(|holder| hosts.contains(holder)) {
            return Some(holder);
        }
        (!hosts.is_empty()).then(|| hosts[context.picker.pick(Choice::Database, service as usize, hosts.len())])
    }
}
