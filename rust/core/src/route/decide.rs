//! The rules: find the routes, choose one, and locate the service (R1 to R42).
//!
//! `decide` applies them to one conversation and picks where several candidates are equal. The compiler of the decision
//! table (`compile`) applies the same functions and keeps all candidates.

use std::ops::Range;

use crate::address::{has_next_hop, next_hop_of_service_name};
use crate::catalog::{AddressId, LOCAL, NONE, NameId, RouteRow, TRANSPORT};
use crate::guid::Guid;
use crate::route::expiry::{LiveEntries, WildcardCache, Window};
use crate::route::index::{CLASSES, Class, PendingRequest, RouteIndex};
use crate::route::tie_break::{Choice, Picker, TieBreak, Ties};

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
    Known(AddressId),
    /// An address from the service name (R23), in normal form.
    Named(String),
}

/// The next hop of a pass over a routing table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedHop {
    /// The next hop.
    pub next_hop: NextHop,
    /// Whether it is this instance.
    pub is_own: bool,
}

/// The match step of a reply (R7).
pub(crate) const REPLY_STEP: i8 = 0;

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
    pub mirror: Option<AddressId>,
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
    pub(crate) next_hop: Option<ResolvedHop>,
    pub(crate) end: End,
}

/// The result of a pass over a routing table.
#[derive(Debug)]
pub(crate) enum End {
    Decided(Decision),
    ReEnter,
}

/// The state of one pass over a routing table.
#[derive(Clone, Debug)]
pub(crate) struct PassContext<'a> {
    pub(crate) table: u16,
    /// The database in which the conversation started; `None` also after a re-entry.
    pub(crate) database: Option<u16>,
    pub(crate) re_entered: bool,
    pub(crate) now: i64,
    /// The number of the service name, if the catalog knows it.
    pub(crate) service: Option<NameId>,
    /// The table's routes with this service name, as positions in `order`, and the slot of their entry.
    pub(crate) routes: Range<usize>,
    pub(crate) slot: u32,
    pub(crate) picker: Picker<'a>,
}

impl RouteIndex {
    /// Decides one conversation at the time `now`, in microseconds since 1970.
    #[must_use]
    pub fn decide(&self, query: &Query<'_>, now: i64) -> Decision {
        self.decide_and_report_ties(query, now, &mut Scratch::default()).0
    }

    /// Decides one conversation, reusing scratch memory; also returns whether a candidate was picked from several.
    #[must_use]
    pub fn decide_and_report_ties(&self, query: &Query<'_>, now: i64, scratch: &mut Scratch) -> (Decision, bool) {
        let ties = Ties::of(query.conversation);
        let mut context = self.first_pass(query, now, self.picker(&ties));
        loop {
            match self.pass(query, &context, scratch).end {
                End::Decided(decision) => return (decision, ties.has_tie.get()),
                End::ReEnter => context = self.second_pass(query, &context),
            }
        }
    }

    pub(crate) fn picker<'a>(&'a self, ties: &'a Ties) -> Picker<'a> {
        Picker { tie_break: self.options.tie_break, ties, round_robin: &self.round_robin, simulated: None }
    }

    /// R2: uses the table of the database in which the conversation started, or that of `msdb`.
    pub(crate) fn first_pass<'a>(&'a self, query: &Query<'_>, now: i64, picker: Picker<'a>) -> PassContext<'a> {
        let service = self.catalog.find_name(query.name);
        let table = query.database.unwrap_or(self.catalog.msdb);
        let (slot, routes) = self.routes_of(table, query.name);
        PassContext { table, database: query.database, re_entered: false, now, service, routes, slot, picker }
    }

    /// R41: repeats the search as if the conversation came from another instance.
    pub(crate) fn second_pass<'a>(&self, query: &Query<'_>, first: &PassContext<'a>) -> PassContext<'a> {
        let table = self.catalog.msdb;
        let (slot, routes) = self.routes_of(table, query.name);
        PassContext { table, database: None, re_entered: true, routes, slot, ..first.clone() }
    }

    /// Searches one routing table.
    pub(crate) fn pass(&self, query: &Query<'_>, context: &PassContext<'_>, scratch: &mut Scratch) -> PassResult {
        let mut result = PassResult { is_reply: false, found: None, chosen: None, next_hop: None, end: End::ReEnter };
        if let Some(decision) = self.decide_without_table(query, context) {
            result.is_reply = decision.match_step == Some(REPLY_STEP);
            result.end = End::Decided(decision);
            return result;
        }
        let found = match self.find(query, context, scratch) {
            Found::Brokers => {
                let brokers = &scratch.brokers;
                let pick = context.picker.pick(Choice::Broker, context.slot as usize, brokers.len());
                self.found_with(context, brokers[pick].1)
            }
            found => found,
        };
        result.end = match &found {
            Found::Nothing | Found::Request | Found::Brokers => End::Decided(no_route_decision(query, &found)),
            Found::Routes { step, .. } | Found::Implied { step } => {
                let chosen = self.choose(query, context, &found, scratch);
                let end = match &chosen {
                    Chosen::None { reason } => End::Decided(unusable_decision(query, context, *step, *reason)),
                    Chosen::Local { route, database } => {
                        End::Decided(self.local_decision(query, *step, *route, *database))
                    }
                    Chosen::Address { route } => {
                        self.decide_by_address(query, context, *step, *route, &mut result.next_hop)
                    }
                };
                result.chosen = Some(chosen);
                end
            }
        };
        result.found = Some(found);
        result
    }

    /// Decides a conversation for which no table is read: one from a database with disabled message delivery (R34), and
    /// a reply to a database of this instance (R7).
    pub(crate) fn decide_without_table(&self, query: &Query<'_>, context: &PassContext<'_>) -> Option<Decision> {
        if self.sender_is_disabled(context) {
            return Some(delayed_decision(query, None, Reason::SenderDisabled));
        }
        let broker = self.reply_broker(query, context)?;
        Some(reply_decision(query, self.host_with(broker, context.service)))
    }

    /// R34: a database with disabled message delivery sends nothing.
    fn sender_is_disabled(&self, context: &PassContext<'_>) -> bool {
        context.database.is_some_and(|database| !self.catalog.databases[usize::from(database)].enabled)
    }

    /// R7: returns the broker id of a reply if a database of this instance has it.
    fn reply_broker(&self, query: &Query<'_>, context: &PassContext<'_>) -> Option<Guid> {
        let broker = query.broker.filter(|_| context.database.is_none() && !query.is_initiator)?;
        self.service_databases.is_broker(broker).then_some(broker)
    }

    /// Decides a conversation whose route has a network address or TRANSPORT.
    pub(crate) fn decide_by_address(
        &self,
        query: &Query<'_>,
        context: &PassContext<'_>,
        step: i8,
        route: u32,
        next_hop: &mut Option<ResolvedHop>,
    ) -> End {
        let is_from_outside = context.database.is_none();
        let route = self.row(route);
        let hop = self.next_hop(query, route);
        let Some(hop) = hop else {
            return End::Decided(unusable_decision(query, context, step, Reason::AddressUnusable));
        };
        let is_own = self.is_own_hop(&hop);
        *next_hop = Some(ResolvedHop { next_hop: hop.clone(), is_own });
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
        // R25
        if is_from_outside && !self.catalog.settings.message_forwarding {
            return End::Decided(Decision { reason: Reason::ForwardingDisabled, ..decision });
        }
        match (is_own, is_from_outside) {
            // R42
            (true, true) => End::Decided(Decision { reason: Reason::RoutingLoop, ..decision }),
            // R41
            (true, false) => End::ReEnter,
            (false, true) => End::Decided(Decision { outcome: Outcome::Forward, next_hop: Some(hop), ..decision }),
            (false, false) => End::Decided(Decision { outcome: Outcome::Remote, next_hop: Some(hop), ..decision }),
        }
    }

    pub(crate) fn local_decision(&self, query: &Query<'_>, step: i8, route: Option<u32>, database: u16) -> Decision {
        let route = route.map(|row| self.row(row));
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

    /// Returns the next hop of a route that is not LOCAL; `None` for TRANSPORT if the service name contains no address
    /// (R23).
    pub(crate) fn next_hop(&self, query: &Query<'_>, route: &RouteRow) -> Option<NextHop> {
        debug_assert_ne!(route.address, LOCAL);
        if route.address != TRANSPORT {
            return Some(NextHop::Known(route.address));
        }
        let normal = next_hop_of_service_name(query.name)?;
        Some(match self.catalog.find_address(normal.as_bytes()) {
            Some(known) => NextHop::Known(known),
            None => NextHop::Named(normal),
        })
    }

    fn is_own_hop(&self, hop: &NextHop) -> bool {
        // The instance's own addresses are addresses of the catalog, so any other hop is another instance.
        matches!(hop, NextHop::Known(address) if self.catalog.is_own(*address))
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

/// The decision if no step yields a route (R17), or routing information is requested (R14).
pub(crate) fn no_route_decision(query: &Query<'_>, found: &Found) -> Decision {
    match found {
        Found::Request => delayed_decision(query, Some(4), Reason::RouteRequested),
        _ => delayed_decision(query, Some(7), Reason::NoRoute),
    }
}

/// R26: a conversation that started here is delayed, a message from another instance is dropped.
pub(crate) fn unusable_decision(query: &Query<'_>, context: &PassContext<'_>, step: i8, reason: Reason) -> Decision {
    let outcome = if context.database.is_some() { Outcome::Delayed } else { Outcome::Dropped };
    Decision { outcome, ..delayed_decision(query, Some(step), reason) }
}

pub(crate) fn reply_decision(query: &Query<'_>, host: Option<u16>) -> Decision {
    let (outcome, reason) = match host {
        Some(_) => (Outcome::Local, Reason::Reply),
        None => (Outcome::Dropped, Reason::ServiceNotFound),
    };
    Decision { outcome, database: host, ..delayed_decision(query, Some(REPLY_STEP), reason) }
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
    /// All outcomes, indexed by code.
    pub(crate) const ALL: [Self; 5] = [Self::Local, Self::Remote, Self::Forward, Self::Delayed, Self::Dropped];

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
    /// Routing information was requested from the configuration service (R14).
    RouteRequested,
    /// The chosen routes are LOCAL, and no database takes the message (R26, R7).
    ServiceNotFound,
    /// Message delivery is disabled in the database in which the conversation started (R34).
    SenderDisabled,
    /// The message must be forwarded, and forwarding is off (R25).
    ForwardingDisabled,
    /// The message came from another instance and would return to this one (R42).
    RoutingLoop,
    /// The address is TRANSPORT, and the service name contains no address (R23).
    AddressUnusable,
}

impl Reason {
    /// All reasons, indexed by code.
    pub(crate) const ALL: [Self; 9] = [
        Self::Matched,
        Self::Reply,
        Self::NoRoute,
        Self::RouteRequested,
        Self::ServiceNotFound,
        Self::SenderDisabled,
        Self::ForwardingDisabled,
        Self::RoutingLoop,
        Self::AddressUnusable,
    ];

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
    Routes { step: i8, positions: Range<usize>, broker: Option<Guid> },
    /// Routes with several broker ids, of which one must be picked (R13): those in `scratch.brokers`.
    Brokers,
    /// The implied LOCAL route of R16.
    Implied { step: i8 },
    /// Routing information is requested, or a request is pending (R14).
    Request,
    /// No step yields a route (R17).
    Nothing,
}

impl RouteIndex {
    /// Searches a table, and restricts `scratch.window` to the time for which the routes found are the same; the caller
    /// restricts it by the routes with this service name.
    pub(crate) fn find(&self, query: &Query<'_>, context: &PassContext<'_>, scratch: &mut Scratch) -> Found {
        let (table, now) = (&self.tables[usize::from(context.table)], context.now);
        let named = context.routes.clone();
        let has_live = |positions: &Range<usize>| positions.clone().any(|position| self.route(position).is_live(now));
        // R11
        if let Some(broker) = query.broker {
            let positions = self.routes_with(named.clone(), Some(broker));
            if has_live(&positions) {
                return Found::Routes { step: 1, positions, broker: Some(broker) };
            }
        }
        // R12
        let without_broker = self.routes_with(named.clone(), None);
        if has_live(&without_broker) {
            return Found::Routes { step: 2, positions: without_broker, broker: None };
        }
        // R13
        if query.broker.is_none() && !named.is_empty() {
            self.live_brokers(named, now, &mut scratch.brokers);
            match scratch.brokers[..] {
                [] => {}
                [(_, broker)] if self.options.tie_break != TieBreak::RoundRobin => {
                    return self.found_with(context, broker);
                }
                _ => return Found::Brokers,
            }
        }
        // R14
        scratch.window.add(table.dynamic_until, now);
        if now < table.dynamic_until && self.may_request_route(context) {
            return Found::Request;
        }
        // R15
        let wildcards = scratch.wildcards.get(self, context.table, now);
        scratch.window.narrow(wildcards.window);
        if !wildcards.is_empty() {
            return Found::Routes { step: 5, positions: table.wildcards.clone(), broker: None };
        }
        // R16
        if query.broker.is_some() && !self.hosts_of(context.service).is_empty() {
            return Found::Implied { step: 6 };
        }
        // R17
        Found::Nothing
    }

    /// Step 3 with this broker id (R13).
    pub(crate) fn found_with(&self, context: &PassContext<'_>, broker: Guid) -> Found {
        let positions = self.routes_with(context.routes.clone(), Some(broker));
        Found::Routes { step: 3, positions, broker: Some(broker) }
    }

    /// Returns the positions of a service's routes with this broker id, or without one.
    pub(crate) fn routes_with(&self, positions: Range<usize>, broker: Option<Guid>) -> Range<usize> {
        let rows = &self.order[positions.clone()];
        let broker_of = |row: &u32| self.catalog.routes[*row as usize].broker;
        let start = rows.partition_point(|row| broker_of(row) < broker);
        let end = start + rows[start..].partition_point(|row| broker_of(row) <= broker);
        positions.start + start..positions.start + end
    }

    /// R14: whether a route may be requested: no request for the service is pending, or a pending one delays the
    /// conversation.
    fn may_request_route(&self, context: &PassContext<'_>) -> bool {
        let is_pending = || context.service.is_some_and(|service| self.catalog.is_pending(service));
        self.options.pending_request == PendingRequest::Delay || !is_pending()
    }

    /// Lists the broker ids of a service's live routes, with their lowest live route ids and in the order of these ids.
    pub(crate) fn live_brokers(&self, positions: Range<usize>, now: i64, into: &mut Vec<(i32, Guid)>) {
        into.clear();
        // The routes of a service are sorted by broker id, then by route id.
        for position in positions {
            let route = self.route(position);
            let Some(broker) = route.broker.filter(|_| route.is_live(now)) else { continue };
            if into.last().is_none_or(|&(_, last)| last != broker) {
                into.push((route.route_id, broker));
            }
        }
        into.sort_unstable();
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

/// The databases that can take a message.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Located<'a> {
    Nowhere,
    In(u16),
    /// One of these databases, by a pick (R32).
    InOneOf(&'a [u16]),
}

/// Scratch memory reused for the conversations of one index, and caches of live routes.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Row numbers of routes.
    pub(crate) rows: Vec<u32>,
    pub(crate) brokers: Vec<(i32, Guid)>,
    pub(crate) window: Window,
    pub(crate) wildcards: WildcardCache,
    pub(crate) entries: LiveEntries,
}

impl RouteIndex {
    pub(crate) fn choose(
        &self,
        query: &Query<'_>,
        context: &PassContext<'_>,
        found: &Found,
        scratch: &mut Scratch,
    ) -> Chosen {
        let (route, broker) = match found {
            Found::Routes { positions, broker, .. } => match self.usable(query, context, found, scratch) {
                Ok(class) => {
                    let turn = positions.start * CLASSES.len() + class as usize;
                    let pick = context.picker.pick(Choice::Route, turn, scratch.rows.len());
                    (Some(scratch.rows[pick]), *broker)
                }
                Err(reason) => return Chosen::None { reason },
            },
            _ => (None, None),
        };
        if let Some(route) = route.filter(|&route| self.row(route).address != LOCAL) {
            return Chosen::Address { route };
        }
        match self.locate(query, context, broker) {
            Located::Nowhere => Chosen::None { reason: Reason::ServiceNotFound },
            Located::In(database) => Chosen::Local { route, database },
            Located::InOneOf(hosts) => {
                let turn = context.service.unwrap_or_default() as usize;
                Chosen::Local { route, database: hosts[context.picker.pick(Choice::Database, turn, hosts.len())] }
            }
        }
    }

    /// Stores the usable routes of the first class that has any in `scratch.rows` (R22). Fails if no class has one
    /// (R26).
    pub(crate) fn usable(
        &self,
        query: &Query<'_>,
        context: &PassContext<'_>,
        found: &Found,
        scratch: &mut Scratch,
    ) -> Result<Class, Reason> {
        let mut has_local = false;
        for class in CLASSES {
            let Scratch { rows: into, wildcards, .. } = scratch;
            into.clear();
            match found {
                Found::Routes { step: 5, .. } => {
                    into.extend_from_slice(&wildcards.get(self, context.table, context.now).classes[class as usize]);
                }
                Found::Routes { positions, .. } => {
                    let live =
                        self.order[positions.clone()].iter().copied().filter(|&row| self.row(row).is_live(context.now));
                    into.extend(live.filter(|&row| Class::of(self.row(row)) == class));
                    self.merge(into);
                }
                _ => {}
            }
            has_local |= into.iter().any(|&row| self.row(row).address == LOCAL);
            if class != Class::Network {
                into.retain(|&row| self.is_usable(query, context, self.row(row)));
            }
            if !into.is_empty() {
                return Ok(class);
            }
        }
        Err(if has_local { Reason::ServiceNotFound } else { Reason::AddressUnusable })
    }

    /// Whether a route can be used for this conversation (R22).
    pub(crate) fn is_usable(&self, query: &Query<'_>, context: &PassContext<'_>, route: &RouteRow) -> bool {
        match route.address {
            LOCAL => self.can_locate(query, context, route.broker),
            TRANSPORT => has_next_hop(query.name),
            _ => true,
        }
    }

    /// R21: of the rows with the same address, keeps the one with the lowest route id.
    pub(crate) fn merge(&self, rows: &mut Vec<u32>) {
        if rows.len() > 1 {
            rows.sort_by_key(|&row| self.row(row).address);
            rows.dedup_by_key(|row| self.row(*row).address);
            rows.sort_by_key(|&row| self.row(row).route_id);
        }
    }

    /// Returns the route in a row of the catalog; `route` returns the one at a position of `order`.
    pub(crate) fn row(&self, row: u32) -> &RouteRow {
        &self.catalog.routes[row as usize]
    }
}

// Locate: the database that takes the message (R31 to R34).

impl RouteIndex {
    /// Returns the enabled databases that have the service, sorted by name (R33).
    pub(crate) fn hosts_of(&self, service: Option<NameId>) -> &[u16] {
        service.map_or(&[], |service| self.service_databases.of(service))
    }

    /// R31: returns the database with this broker id if it is enabled and has the service.
    pub(crate) fn host_with(&self, broker: Guid, service: Option<NameId>) -> Option<u16> {
        self.service_databases.with(service?, broker)
    }

    /// Whether *Locate* finds a database; this makes a LOCAL route usable.
    pub(crate) fn can_locate(&self, query: &Query<'_>, context: &PassContext<'_>, route_broker: Option<Guid>) -> bool {
        !matches!(self.locate(query, context, route_broker), Located::Nowhere)
    }

    /// Returns the databases that can take the message.
    pub(crate) fn locate(
        &self,
        query: &Query<'_>,
        context: &PassContext<'_>,
        route_broker: Option<Guid>,
    ) -> Located<'_> {
        // R31
        if let Some(broker) = query.broker.or(route_broker) {
            return self.host_with(broker, context.service).map_or(Located::Nowhere, Located::In);
        }
        // R32
        let hosts = self.hosts_of(context.service);
        match (hosts, context.database.filter(|holder| hosts.contains(holder))) {
            ([], _) => Located::Nowhere,
            (_, Some(holder)) => Located::In(holder),
            ([_, ..], None) => Located::InOneOf(hosts),
        }
    }
}
