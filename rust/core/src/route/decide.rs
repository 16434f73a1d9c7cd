//! One conversation, decided: the process of R1 to R42 in the order of the rules.

use std::cell::RefCell;
use std::ops::Range;

use crate::address::next_hop_of_service_name;
use crate::catalog::{EndpointId, LOCAL, NONE, NameId, RouteRow, TRANSPORT};
use crate::guid::Guid;
use crate::route::expiry::{Revisions, Tails};
use crate::route::index::{CLASSES, Class, Entry, RouteIndex};
use crate::route::tie_break::{Choice, PendingRequest, Picker};

/// What is to be routed.
#[derive(Clone, Copy, Debug)]
pub struct Query<'a> {
    /// The target service.
    pub name: &'a [u8],
    /// The broker id that the conversation names.
    pub broker: Option<Guid>,
    /// Where it began; `None` if it arrived from outside.
    pub database: Option<u16>,
    /// False for a message from the target (R7).
    pub is_initiator: bool,
    /// Its identity, for the hash of the tie break.
    pub conversation: Option<Guid>,
}

/// Where a message goes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextHop {
    /// To an address of the catalog.
    Known(EndpointId),
    /// To an address that stands in the service name (R23), in its normal form.
    Named(String),
}

/// Where the conversation would go, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What becomes of it.
    pub outcome: Outcome,
    /// Why.
    pub reason: Reason,
    /// The step that matched: 1 to 7, 0 for a reply (R7), `None` if it was not matched (R34).
    pub match_step: Option<i8>,
    /// The id of the chosen route.
    pub route_id: Option<i32>,
    /// The next hop, for REMOTE and FORWARD.
    pub next_hop: Option<NextHop>,
    /// The mirror address of the chosen route.
    pub mirror: Option<EndpointId>,
    /// The database, for LOCAL.
    pub database: Option<u16>,
    /// The broker id that now binds the conversation.
    pub broker: Option<Guid>,
}

/// Everything that one reading of a table came to; `explain` tells it, `decide` keeps its end.
#[derive(Debug)]
pub(crate) struct PassResult {
    pub(crate) is_reply: bool,
    pub(crate) found: Option<Found>,
    pub(crate) chosen: Option<Chosen>,
    pub(crate) next_hop: Option<(NextHop, bool)>,
    pub(crate) end: End,
}

/// How a reading of a table ends.
#[derive(Debug)]
pub(crate) enum End {
    Decided(Decision),
    ReEnter,
}

/// What holds while one table is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PassContext<'a> {
    pub(crate) table: u16,
    /// Where it began, `None` also after a re-entry.
    pub(crate) database: Option<u16>,
    pub(crate) now: i64,
    /// The number of the service name, if the catalog knows it.
    pub(crate) service: Option<NameId>,
    pub(crate) picker: Picker<'a>,
}

impl RouteIndex {
    /// Decides one conversation at the moment `now`, in microseconds since 1970.
    #[must_use]
    pub fn decide(&self, query: &Query<'_>, now: i64) -> Decision {
        self.decide_with(query, now, &mut Candidates::default())
    }

    /// The same, with room for candidates that is used again.
    #[must_use]
    pub fn decide_with(&self, query: &Query<'_>, now: i64, room: &mut Candidates) -> Decision {
        let mut context = self.first_pass(query, now, None);
        loop {
            match self.pass(query, &context, room).end {
                End::Decided(decision) => return decision,
                End::ReEnter => context = self.second_pass(context),
            }
        }
    }

    /// The table of the database where it began, or `msdb`'s for what came from outside (R2).
    pub(crate) fn first_pass<'a>(
        &'a self,
        query: &Query<'_>,
        now: i64,
        would_take: Option<&'a RefCell<Vec<(Choice, usize)>>>,
    ) -> PassContext<'a> {
        let picker = Picker {
            tie_break: self.options.tie_break,
            conversation: query.conversation,
            re_entered: false,
            turns: &self.turns,
            would_take,
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

    /// Once more, as if it came from outside (R41).
    pub(crate) fn second_pass<'a>(&self, first: PassContext<'a>) -> PassContext<'a> {
        let picker = Picker { re_entered: true, ..first.picker };
        PassContext { table: self.catalog.msdb, database: None, picker, ..first }
    }

    /// Reads one table.
    pub(crate) fn pass(&self, query: &Query<'_>, context: &PassContext<'_>, room: &mut Candidates) -> PassResult {
        let mut result = PassResult { is_reply: false, found: None, chosen: None, next_hop: None, end: End::ReEnter };
        if self.sender_is_disabled(context) {
            result.end = End::Decided(delayed(query, None, Reason::SenderDisabled));
            return result;
        }
        if let Some(broker) = self.replied_to(query, context) {
            let host = self.host_with(broker, context.service);
            result.is_reply = true;
            result.end = End::Decided(replied(query, host));
            return result;
        }
        let found = self.find(query, context, room);
        result.end = match &found {
            Found::Nothing => End::Decided(delayed(query, Some(7), Reason::NoRoute)),
            Found::Request => End::Decided(delayed(query, Some(4), Reason::RouteRequested)),
            Found::Routes { step, .. } | Found::Implied { step } => {
                let chosen = self.choose(query, context, &found, room);
                let end = match &chosen {
                    Chosen::None { reason } => End::Decided(unusable(query, context, *step, *reason)),
                    Chosen::Local { .. } | Chosen::Address { .. } => {
                        self.conclude(query, context, *step, &chosen, &mut result.next_hop)
                    }
                };
                result.chosen = Some(chosen);
                end
            }
        };
        result.found = Some(found);
        result
    }

    /// R34: nothing leaves a database whose message delivery is disabled.
    fn sender_is_disabled(&self, context: &PassContext<'_>) -> bool {
        context.database.is_some_and(|database| !self.catalog.databases[usize::from(database)].enabled)
    }

    /// R7: the broker id of a message from a target, if it is one of this instance's.
    fn replied_to(&self, query: &Query<'_>, context: &PassContext<'_>) -> Option<Guid> {
        let broker = query.broker.filter(|_| context.database.is_none() && !query.is_initiator)?;
        self.hosts.is_broker(broker).then_some(broker)
    }

    /// What becomes of a conversation whose route is chosen (K14).
    fn conclude(
        &self,
        query: &Query<'_>,
        context: &PassContext<'_>,
        step: i8,
        chosen: &Chosen,
        seen: &mut Option<(NextHop, bool)>,
    ) -> End {
        let is_from_outside = context.database.is_none();
        let (route, hop) = match chosen {
            Chosen::Local { route, database, .. } => {
                let route = route.map(|row| &self.catalog.routes[row as usize]);
                return End::Decided(self.local(query, step, route, *database));
            }
            Chosen::Address { route, .. } => {
                let route = &self.catalog.routes[*route as usize];
                (route, self.next_hop(query, route))
            }
            Chosen::None { reason } => return End::Decided(unusable(query, context, step, *reason)),
        };
        let Some(hop) = hop else { return End::Decided(unusable(query, context, step, Reason::AddressUnusable)) };
        let is_own = self.is_own_hop(&hop);
        *seen = Some((hop.clone(), is_own));
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

    fn local(&self, query: &Query<'_>, step: i8, route: Option<&RouteRow>, database: u16) -> Decision {
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

    /// The address where a route leads that is not LOCAL; `None` for TRANSPORT with a name that holds no address (R23).
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
        // The instance's own addresses are endpoints of the catalog, so a hop that is none is not this instance.
        matches!(hop, NextHop::Known(endpoint) if self.catalog.is_own(*endpoint))
    }
}

fn delayed(query: &Query<'_>, match_step: Option<i8>, reason: Reason) -> Decision {
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

/// R26: what was begun here waits, what came from outside is dropped.
fn unusable(query: &Query<'_>, context: &PassContext<'_>, step: i8, reason: Reason) -> Decision {
    let outcome = if context.database.is_some() { Outcome::Delayed } else { Outcome::Dropped };
    Decision { outcome, ..delayed(query, Some(step), reason) }
}

fn replied(query: &Query<'_>, host: Option<u16>) -> Decision {
    let (outcome, reason) = match host {
        Some(_) => (Outcome::Local, Reason::Reply),
        None => (Outcome::Dropped, Reason::ServiceNotFound),
    };
    Decision { outcome, database: host, ..delayed(query, Some(0), reason) }
}

// What a decision says.

/// What becomes of the conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i8)]
pub enum Outcome {
    /// Deliver in this instance.
    Local,
    /// Send; the conversation was begun here.
    Remote,
    /// Pass on; the conversation came from outside.
    Forward,
    /// Wait in the transmission queue, and match again after a time-out (R18).
    Delayed,
    /// The message is dropped, and not acknowledged.
    Dropped,
}

impl Outcome {
    /// The labels, at the place of their code.
    pub const LABELS: [&'static str; 5] = ["LOCAL", "REMOTE", "FORWARD", "DELAYED", "DROPPED"];

    /// The label of the contract.
    #[must_use]
    pub fn label(self) -> &'static str {
        Self::LABELS[self as usize]
    }
}

/// Why the outcome is what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i8)]
pub enum Reason {
    /// A route was found and chosen.
    Matched,
    /// A reply to a database of this instance (R7).
    Reply,
    /// The search ended without a route (R17).
    NoRoute,
    /// Routing information is requested from the dynamic routing service (R14).
    RouteRequested,
    /// The chosen routes are LOCAL, and no database takes the message (R26, R7).
    ServiceNotFound,
    /// Message delivery is disabled in the database where the conversation began (R34).
    SenderDisabled,
    /// The message would have to be forwarded, and forwarding is off (R25).
    ForwardingDisabled,
    /// The message came from outside and would go back to this instance (R42).
    RoutingLoop,
    /// TRANSPORT, and the service name holds no address (R23).
    AddressUnusable,
}

impl Reason {
    /// The labels, at the place of their code.
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

    /// The label of the contract.
    #[must_use]
    pub fn label(self) -> &'static str {
        Self::LABELS[self as usize]
    }
}

// Find: seven steps, the first that yields a route ends the search (R11 to R17).

/// What the seven steps yield.
#[derive(Debug)]
pub(crate) enum Found {
    /// Routes of one service name and one broker id, or none: their places in the order of the index, expired ones among them.
    Routes { step: i8, rows: Range<usize>, broker: Option<Guid> },
    /// As if there were a LOCAL route for the service (R16).
    Implied { step: i8 },
    /// Routing information is requested, or waited for (R14).
    Request,
    /// No step yields a route (R17).
    Nothing,
}

impl RouteIndex {
    pub(crate) fn find(&self, query: &Query<'_>, context: &PassContext<'_>, room: &mut Candidates) -> Found {
        let table = &self.tables[usize::from(context.table)];
        let live = |rows: &Range<usize>| rows.clone().any(|place| self.route(place).is_live(context.now));
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
            let picked = if query.broker.is_none() { self.pick_broker(number, context, room) } else { None };
            if let Some(broker) = picked {
                return Found::Routes { step: 3, rows: self.rows_with(entry, Some(broker)), broker: Some(broker) };
            }
        }
        if context.now < table.dynamic_until && self.asks_for_route(query) {
            return Found::Request;
        }
        if !room.tails.get(self, context.table, context.now).is_empty() {
            return Found::Routes { step: 5, rows: table.wildcards.clone(), broker: None };
        }
        if query.broker.is_some() && !self.hosts_of(context.service).is_empty() {
            return Found::Implied { step: 6 };
        }
        Found::Nothing
    }

    /// The routes of an entry with this broker id, or with none.
    pub(crate) fn rows_with(&self, entry: &Entry, broker: Option<Guid>) -> Range<usize> {
        let rows = entry.rows();
        let order = &self.order[rows.clone()];
        let broker_of = |row: &u32| self.catalog.routes[*row as usize].broker;
        let start = order.partition_point(|row| broker_of(row) < broker);
        let end = order.partition_point(|row| broker_of(row) <= broker);
        rows.start + start..rows.start + end
    }

    /// R14: whether a live route to the dynamic routing service delays the conversation.
    fn asks_for_route(&self, query: &Query<'_>) -> bool {
        self.options.pending_request == PendingRequest::Delay || !self.catalog.is_pending(query.name)
    }

    /// R13: one of the broker ids of the live routes, which stand by their lowest live route id (K19).
    fn pick_broker(&self, entry: u32, context: &PassContext<'_>, room: &mut Candidates) -> Option<Guid> {
        self.live_brokers(entry, context.now, room);
        let count = room.brokers.len();
        (count > 0).then(|| room.brokers[context.picker.pick(Choice::Broker, entry as usize, count)].1)
    }

    /// Leaves the broker ids of the live routes, with their lowest route ids, in `room.brokers`.
    pub(crate) fn live_brokers(&self, entry: u32, now: i64, room: &mut Candidates) {
        room.brokers.clear();
        // The rows of an entry stand by broker id and then by route id.
        for place in self.entries[entry as usize].rows() {
            let route = self.route(place);
            let Some(broker) = route.broker.filter(|_| route.is_live(now)) else { continue };
            if room.brokers.last().is_none_or(|&(_, last)| last != broker) {
                room.brokers.push((route.route_id, broker));
            }
        }
        room.brokers.sort_unstable();
    }
}

// Choose: one of the routes that were found (R21 to R26).

/// The route that was chosen.
#[derive(Debug)]
pub(crate) enum Chosen {
    /// Its address is LOCAL, and this database takes the message; no route if it is the implied one.
    Local { route: Option<u32>, database: u16 },
    /// Its address is a network address or TRANSPORT.
    Address { route: u32 },
    /// No class has a usable route (R26).
    None { reason: Reason },
}

/// Room for candidates, used again from one conversation to the next, and what is remembered of the routes that are alive. It is for
/// conversations of one index.
#[derive(Debug, Default)]
pub struct Candidates {
    pub(crate) rows: Vec<u32>,
    pub(crate) brokers: Vec<(i32, Guid)>,
    pub(crate) tails: Tails,
    pub(crate) revisions: Revisions,
}

impl RouteIndex {
    pub(crate) fn choose(
        &self,
        query: &Query<'_>,
        context: &PassContext<'_>,
        found: &Found,
        room: &mut Candidates,
    ) -> Chosen {
        let Found::Routes { rows, broker, .. } = found else {
            return match self.locate(query, context, None) {
                Some(database) => Chosen::Local { route: None, database },
                None => Chosen::None { reason: Reason::ServiceNotFound },
            };
        };
        let mut has_local = false;
        for class in CLASSES {
            self.candidates(query, context, found, class, room, &mut has_local);
            if room.rows.is_empty() {
                continue;
            }
            let turn = rows.start * CLASSES.len() + class as usize;
            let row = room.rows[context.picker.pick(Choice::Route, turn, room.rows.len())];
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

    /// Leaves the usable routes of a class in `room.rows`, and says whether one of the class is LOCAL.
    fn candidates(
        &self,
        query: &Query<'_>,
        context: &PassContext<'_>,
        found: &Found,
        class: Class,
        room: &mut Candidates,
        has_local: &mut bool,
    ) {
        let Candidates { rows: into, tails, .. } = room;
        into.clear();
        match found {
            Found::Routes { step: 5, .. } => {
                into.extend_from_slice(&tails.get(self, context.table, context.now).classes[class as usize]);
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

    /// Whether a route leads anywhere for this conversation (K13).
    pub(crate) fn is_usable(&self, query: &Query<'_>, context: &PassContext<'_>, route: &RouteRow) -> bool {
        match route.endpoint {
            LOCAL => self.can_locate(query, context, route.broker),
            TRANSPORT => self.next_hop(query, route).is_some(),
            _ => true,
        }
    }

    /// Keeps one of the rows with the same address (R21): rows come by route id, and the lowest stands for all.
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

// Locate: which database of the instance takes the message (R31 to R34).

impl RouteIndex {
    /// The enabled databases that have the service, by name (R33).
    pub(crate) fn hosts_of(&self, service: Option<NameId>) -> &[u16] {
        service.map_or(&[], |service| self.hosts.of(service))
    }

    /// R31: the database with this broker id, if its broker is enabled and it has the service.
    pub(crate) fn host_with(&self, broker: Guid, service: Option<NameId>) -> Option<u16> {
        self.hosts.with(service?, broker)
    }

    /// Whether *Locate* would find a database: what makes a LOCAL route usable.
    pub(crate) fn can_locate(&self, query: &Query<'_>, context: &PassContext<'_>, route_broker: Option<Guid>) -> bool {
        match query.broker.or(route_broker) {
            Some(broker) => self.host_with(broker, context.service).is_some(),
            None => !self.hosts_of(context.service).is_empty(),
        }
    }

    /// The database that takes the message.
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
