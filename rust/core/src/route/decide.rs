//! One conversation, decided: the process of R1 to R42 in the order of the rules.

use std::cell::RefCell;

use super::choose::{Candidates, Chosen};
use super::find::Found;
use super::index::RouteIndex;
use super::pick::{Choice, Picker};
use crate::address::next_hop_of_service_name;
use crate::catalog::{EndpointId, LOCAL, NONE, NameId, RouteRow, TRANSPORT};
use crate::ids::Guid;
use crate::outcome::{Outcome, Reason};

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
