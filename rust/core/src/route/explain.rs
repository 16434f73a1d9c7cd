//! Explains a decision: decides again and records what each step found and why routes did not match.

use std::cell::RefCell;
use std::collections::HashSet;

use unicode_normalization::UnicodeNormalization;

use crate::catalog::{BROKER_CONFIGURATION, LOCAL, NONE, RouteRow};
use crate::guid::Guid;
use crate::route::decide::{
    Chosen, Decision, End, Found, Outcome, PassContext, PassResult, Query, Reason, ResolvedHop, Scratch,
};
use crate::route::index::{CLASSES, Class, RouteIndex};
use crate::route::tie_break::{Picker, TieBreak, Ties};

/// The maximum number of rejected routes that a step lists; further routes are only counted.
const REJECTED_SHOWN: usize = 20;

/// A decision and how it was made.
#[derive(Debug)]
pub struct Explanation {
    /// The routing tables that were searched: one, or two after a re-entry (R41).
    pub passes: Vec<Pass>,
    /// The decision.
    pub decision: Decision,
    /// A tie had to be broken by the hash of a conversation id that was not given; the first candidate was used
    /// instead.
    pub picks_undetermined: bool,
}

/// Why a routing table was searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The conversation started in this database.
    StartedHere,
    /// The message came from another instance.
    FromOutside,
    /// The next hop was this instance (R41).
    ReEntered,
}

/// One pass over a routing table.
#[derive(Debug)]
pub struct Pass {
    /// The database whose table was searched.
    pub database: u16,
    /// Why it was searched.
    pub origin: Origin,
    /// Message delivery is disabled in the database in which the conversation started (R34).
    pub sender_disabled: bool,
    /// In that case, the other database in which its broker id is enabled (I7).
    pub id_enabled_in: Option<u16>,
    /// For a reply, the databases with its broker id (R7), and whether there are any.
    pub reply: Option<(Vec<HostTrace>, bool)>,
    /// The number of routes in the table.
    pub route_count: usize,
    /// The number of expired routes.
    pub expired_count: usize,
    /// The steps, up to the one that ended the search.
    pub steps: Vec<StepTrace>,
    /// The classes, up to the class from which a route was chosen.
    pub classes: Vec<ClassTrace>,
    /// How the service was located.
    pub locate: Option<LocateTrace>,
    /// The next hop, and whether it is this instance.
    pub next_hop: Option<ResolvedHop>,
    /// The result as one word.
    pub result: &'static str,
}

/// A route: a row of the catalog, or `None` for the implied route of R16.
pub type RouteRef = Option<u32>;

/// Why a route did not match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mismatch {
    /// It has expired (R3).
    Expired,
    /// It names another broker id.
    OtherBrokerId,
    /// It names a broker id, which this step does not look for.
    NamesBrokerId,
    /// The names differ only in case.
    NameDiffersInCase,
    /// The names differ only in white space.
    NameDiffersInWhiteSpace,
    /// The names look alike but consist of different Unicode characters.
    NameDiffersInUnicodeForm,
    /// A request for the service is already pending (R14).
    PendingRequest,
    /// Another broker id was picked (R13).
    NotThePickedId,
}

impl Mismatch {
    /// Returns the label used in the dictionary form.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::OtherBrokerId => "other_broker_id",
            Self::NamesBrokerId => "names_broker_id",
            Self::NameDiffersInCase => "name_differs_in_case",
            Self::NameDiffersInWhiteSpace => "name_differs_in_white_space",
            Self::NameDiffersInUnicodeForm => "name_differs_in_unicode_form",
            Self::PendingRequest => "pending_request",
            Self::NotThePickedId => "not_the_picked_id",
        }
    }
}

/// A step of *Find*.
#[derive(Debug, Default)]
pub struct StepTrace {
    /// The number, 1 to 7; its rule is R11 to R17.
    pub step: i8,
    /// Whether the step applies to the conversation.
    pub tried: bool,
    /// Why the step was skipped, or what it found.
    pub note: &'static str,
    /// The live routes that match.
    pub matched: Vec<RouteRef>,
    /// Routes that almost match, and why they do not.
    pub rejected: Vec<(u32, Mismatch)>,
    /// The number of routes that almost match.
    pub rejected_count: usize,
    /// The broker ids to pick from (R13).
    pub candidate_brokers: Vec<Guid>,
    /// The picked broker id.
    pub picked_broker: Option<Guid>,
    /// The databases that have the service (R16).
    pub hosts: Vec<u16>,
}

/// A class of R22.
#[derive(Debug)]
pub struct ClassTrace {
    /// The name.
    pub class: &'static str,
    /// The routes; those with the same address count as one (R21).
    pub routes: Vec<RouteRef>,
    /// The usable routes.
    pub usable: Vec<RouteRef>,
    /// The unusable routes, and why.
    pub unusable: Vec<(RouteRef, Reason)>,
    /// The chosen route.
    pub picked: Option<RouteRef>,
}

/// A database that was considered.
#[derive(Clone, Copy, Debug)]
pub struct HostTrace {
    /// Its number.
    pub database: u16,
    /// Whether it has the service.
    pub has_service: bool,
    /// If it is disabled, the other database in which its broker id is enabled (I7).
    pub id_enabled_in: Option<u16>,
}

/// *Locate*.
#[derive(Debug)]
pub struct LocateTrace {
    /// The broker id that the database must have (R31); `None` for any database with the service (R32).
    pub broker: Option<Guid>,
    /// The databases that were considered.
    pub databases: Vec<HostTrace>,
    /// The databases that could take the message.
    pub candidates: Vec<u16>,
    /// The database that takes it.
    pub picked: Option<u16>,
}

impl Class {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Mirror => "mirror",
            Self::Local => "local",
            Self::Network => "network",
            Self::Transport => "transport",
        }
    }
}

impl StepTrace {
    pub(crate) fn skip(&mut self, note: &'static str) {
        self.tried = false;
        self.note = note;
    }

    pub(crate) fn reject_rows(&mut self, rows: impl Iterator<Item = u32>, mismatch: impl Fn(u32) -> Option<Mismatch>) {
        for row in rows {
            if let Some(why) = mismatch(row) {
                self.reject(row, why);
            }
        }
    }

    fn reject(&mut self, row: u32, why: Mismatch) {
        self.rejected_count += 1;
        if self.rejected.len() < REJECTED_SHOWN {
            self.rejected.push((row, why));
        }
    }

    /// Describes the result of a step that did not end the search.
    pub(crate) fn miss_note(&self) -> &'static str {
        match self.step {
            1 => "no live route has exactly this service name and this broker id",
            2 => "no live route has exactly this service name and no broker id",
            3 => "no live route has exactly this service name and a broker id",
            4 if self.rejected.iter().any(|&(_, why)| why == Mismatch::PendingRequest) => {
                "a request for this service is already pending"
            }
            4 => "there is no live route to the configuration service",
            5 => "no live route omits both service name and broker id",
            6 => "no enabled database of the instance has a service with this name",
            _ => "no step found a route",
        }
    }

    /// Completes the step that ended the search.
    pub(crate) fn finish(&mut self, index: &RouteIndex, found: Option<&Found>, now: i64) {
        self.note = match (self.step, found) {
            (4, _) => "routing information is requested from the configuration service",
            (6, _) => "the instance has a service with this name, so a LOCAL route is implied",
            (7, _) => "no step found a route",
            _ => "found",
        };
        match found {
            Some(Found::Routes { positions, broker, step }) => {
                self.picked_broker = broker.filter(|_| *step == 3);
                let rows = index.order[positions.clone()].iter().copied();
                self.matched = rows.filter(|&row| index.row(row).is_live(now)).map(Some).collect();
                if *step == 3 {
                    self.reject_other_ids(index, *broker);
                }
            }
            Some(Found::Implied { .. }) => self.matched = vec![None],
            _ => {}
        }
    }

    fn reject_other_ids(&mut self, index: &RouteIndex, picked: Option<Guid>) {
        let Some(&Some(first)) = self.matched.first() else { return };
        let first = *index.row(first);
        for row in 0..index.catalog.routes.len() as u32 {
            let route = index.row(row);
            let same = (route.database, route.service) == (first.database, first.service);
            if same
                && route.broker.is_some()
                && route.broker != picked
                && !self.rejected.iter().any(|&(other, _)| other == row)
            {
                self.reject(row, Mismatch::NotThePickedId);
            }
        }
    }
}

impl RouteIndex {
    /// Decides one conversation without advancing the round robin, and records every step.
    #[must_use]
    pub fn explain(&self, query: &Query<'_>, now: i64) -> Explanation {
        let mut scratch = Scratch::default();
        let (simulated, ties) = (RefCell::default(), Ties::of(query.conversation));
        let picker = Picker { simulated: Some(&simulated), ..self.picker(&ties) };
        let mut context = self.first_pass(query, now, picker);
        let mut passes = Vec::new();
        loop {
            let result = self.pass(query, &context, &mut scratch);
            passes.push(self.trace_pass(query, &context, &result));
            match result.end {
                End::Decided(decision) => {
                    let by_hash = self.options.tie_break == TieBreak::Hash && query.conversation.is_none();
                    let picks_undetermined = by_hash && ties.has_tie.get();
                    return Explanation { passes, decision, picks_undetermined };
                }
                End::ReEnter => context = self.second_pass(query, &context),
            }
        }
    }

    fn trace_pass(&self, query: &Query<'_>, context: &PassContext<'_>, result: &PassResult) -> Pass {
        let origin = match (context.database, context.re_entered) {
            (Some(_), _) => Origin::StartedHere,
            (None, true) => Origin::ReEntered,
            (None, false) => Origin::FromOutside,
        };
        let by_table = || self.catalog.routes.iter().filter(|route| route.database == context.table);
        let sender_disabled =
            matches!(&result.end, End::Decided(decision) if decision.reason == Reason::SenderDisabled);
        let is_matched = !sender_disabled && !result.is_reply;
        let (classes, locate) = match &result.chosen {
            Some(chosen) => self.trace_choice(query, context, result, chosen),
            None => (Vec::new(), None),
        };
        Pass {
            database: context.table,
            origin,
            sender_disabled,
            id_enabled_in: if sender_disabled { self.id_enabled_in(context.table) } else { None },
            reply: self.trace_reply(query, context, sender_disabled),
            route_count: by_table().count(),
            expired_count: by_table().filter(|route| !route.is_live(context.now)).count(),
            steps: if is_matched { self.trace_steps(query, context, result.found.as_ref()) } else { Vec::new() },
            classes,
            locate,
            next_hop: result.next_hop.clone(),
            result: result_label(&result.end),
        }
    }

    fn trace_reply(
        &self,
        query: &Query<'_>,
        context: &PassContext<'_>,
        sender_disabled: bool,
    ) -> Option<(Vec<HostTrace>, bool)> {
        let looked = context.database.is_none() && !query.is_initiator && !sender_disabled;
        let broker = query.broker.filter(|_| looked)?;
        let trace = self
            .trace_databases(query, |database, _| self.catalog.databases[usize::from(database)].broker == Some(broker));
        let applies = !trace.is_empty();
        Some((trace, applies))
    }

    /// Returns the databases accepted by `is_included`, whose argument tells whether the database has the service.
    fn trace_databases(&self, query: &Query<'_>, is_included: impl Fn(u16, bool) -> bool) -> Vec<HostTrace> {
        let name = self.catalog.find_name(query.name);
        let services = self.catalog.services.iter().filter(|(_, service)| Some(*service) == name);
        let hosts: HashSet<u16> = services.map(|&(database, _)| database).collect();
        let all = (0..self.catalog.databases.len() as u16).map(|database| (database, hosts.contains(&database)));
        all.filter(|&(database, has_service)| is_included(database, has_service))
            .map(|(database, has_service)| HostTrace {
                database,
                has_service,
                id_enabled_in: self.id_enabled_in(database),
            })
            .collect()
    }

    /// Returns the enabled database with the broker id of this disabled one (I7).
    fn id_enabled_in(&self, database: u16) -> Option<u16> {
        let databases = &self.catalog.databases;
        let disabled = databases.get(usize::from(database)).filter(|disabled| !disabled.enabled)?;
        let broker = disabled.broker?;
        let holder = databases.iter().position(|other| other.enabled && other.broker == Some(broker))?;
        u16::try_from(holder).ok()
    }

    fn trace_steps(&self, query: &Query<'_>, context: &PassContext<'_>, found: Option<&Found>) -> Vec<StepTrace> {
        let last = match found {
            Some(Found::Routes { step, .. } | Found::Implied { step }) => *step,
            Some(Found::Request) => 4,
            Some(Found::Brokers | Found::Nothing) | None => 7,
        };
        let mut steps: Vec<StepTrace> = (1..=last).map(|step| self.trace_step(query, context, step)).collect();
        if let Some(trace) = steps.last_mut() {
            trace.finish(self, found, context.now);
        }
        steps
    }

    fn trace_step(&self, query: &Query<'_>, context: &PassContext<'_>, step: i8) -> StepTrace {
        let mut trace = StepTrace { step, tried: true, ..StepTrace::default() };
        let rows = (0..self.catalog.routes.len() as u32).filter(|&row| self.row(row).database == context.table);
        let name = self.catalog.find_name(query.name);
        let is_named = |route: &RouteRow| name.is_some_and(|name| route.service == name);
        let live = |route: &RouteRow| route.is_live(context.now);
        match (step, query.broker) {
            (3, Some(_)) => trace.skip("the conversation names a broker id"),
            (1 | 6, None) => trace.skip("the conversation names no broker id"),
            (1, Some(broker)) => trace.reject_rows(rows, |row| match self.row(row) {
                route if !is_named(route) => None,
                route if route.broker == Some(broker) && !live(route) => Some(Mismatch::Expired),
                route if route.broker.is_some_and(|other| other != broker) => Some(Mismatch::OtherBrokerId),
                _ => None,
            }),
            (2, broker) => trace.reject_rows(rows, |row| match self.row(row) {
                route if is_named(route) && route.broker.is_none() => (!live(route)).then_some(Mismatch::Expired),
                route if is_named(route) => broker.is_none().then_some(Mismatch::NamesBrokerId),
                route if route.service == NONE => None,
                route => similar_name(query.name, self.catalog.name(route.service)),
            }),
            (3, None) => {
                trace.reject_rows(rows, |row| {
                    let route = self.row(row);
                    (is_named(route) && route.broker.is_some() && !live(route)).then_some(Mismatch::Expired)
                });
                let mut brokers = Vec::new();
                self.live_brokers(context.routes.clone(), context.now, &mut brokers);
                trace.candidate_brokers = brokers.into_iter().map(|(_, broker)| broker).collect();
            }
            (4, _) => {
                let service = self.catalog.find_name(BROKER_CONFIGURATION);
                trace.reject_rows(rows, |row| match self.row(row) {
                    route if service != Some(route.service) => None,
                    route if !live(route) => Some(Mismatch::Expired),
                    _ => name.is_some_and(|name| self.catalog.is_pending(name)).then_some(Mismatch::PendingRequest),
                });
            }
            (5, _) => trace.reject_rows(rows, |row| match self.row(row) {
                route if route.service != NONE => None,
                route if route.broker.is_some() => Some(Mismatch::NamesBrokerId),
                route => (!live(route)).then_some(Mismatch::Expired),
            }),
            (6, Some(_)) => trace.hosts = self.hosts_of(context.service).to_vec(),
            _ => {}
        }
        trace.note = if trace.tried { trace.miss_note() } else { trace.note };
        trace
    }

    fn trace_choice(
        &self,
        query: &Query<'_>,
        context: &PassContext<'_>,
        result: &PassResult,
        chosen: &Chosen,
    ) -> (Vec<ClassTrace>, Option<LocateTrace>) {
        let picked: Option<RouteRef> = match chosen {
            Chosen::Local { route, .. } => Some(*route),
            Chosen::Address { route } => Some(Some(*route)),
            Chosen::None { .. } => None,
        };
        let mut broker = query.broker;
        let mut classes = Vec::new();
        if let Some(Found::Routes { positions, broker: own, .. }) = &result.found {
            broker = broker.or(*own);
            let live: Vec<u32> = self.order[positions.clone()]
                .iter()
                .copied()
                .filter(|&row| self.row(row).is_live(context.now))
                .collect();
            for class in CLASSES {
                let mut members: Vec<u32> =
                    live.iter().copied().filter(|&row| Class::of(self.row(row)) == class).collect();
                self.merge(&mut members);
                let has_picked = picked.flatten().is_some_and(|row| members.contains(&row));
                classes.push(self.trace_class(query, context, class, &members, picked.filter(|_| has_picked)));
                if has_picked {
                    break;
                }
            }
        } else {
            let unusable = if picked.is_none() { vec![(None, Reason::ServiceNotFound)] } else { Vec::new() };
            let usable = picked.into_iter().collect();
            classes.push(ClassTrace { class: "local", routes: vec![None], usable, unusable, picked });
        }
        let is_local = |route: &RouteRef| route.is_none_or(|row| self.row(row).address == LOCAL);
        let looked = classes.iter().any(|class| class.routes.iter().any(is_local));
        (classes, looked.then(|| self.trace_locate(query, context, broker, chosen)))
    }

    fn trace_class(
        &self,
        query: &Query<'_>,
        context: &PassContext<'_>,
        class: Class,
        members: &[u32],
        picked: Option<RouteRef>,
    ) -> ClassTrace {
        let is_usable = |row: &&u32| self.is_usable(query, context, self.row(**row));
        let why = |row: u32| {
            let is_local = self.row(row).address == LOCAL;
            if is_local { Reason::ServiceNotFound } else { Reason::AddressUnusable }
        };
        ClassTrace {
            class: class.label(),
            routes: members.iter().map(|&row| Some(row)).collect(),
            usable: members.iter().filter(is_usable).map(|&row| Some(row)).collect(),
            unusable: members.iter().filter(|row| !is_usable(row)).map(|&row| (Some(row), why(row))).collect(),
            picked,
        }
    }

    fn trace_locate(
        &self,
        query: &Query<'_>,
        context: &PassContext<'_>,
        broker: Option<Guid>,
        chosen: &Chosen,
    ) -> LocateTrace {
        let id_of = |database: u16| self.catalog.databases[usize::from(database)].broker;
        let databases =
            self.trace_databases(query, |database, has| has || (broker.is_some() && id_of(database) == broker));
        let hosts = self.hosts_of(context.service);
        let candidates = match (broker, context.database) {
            (Some(_), _) => hosts.iter().copied().filter(|&host| id_of(host) == broker).collect(),
            (None, Some(holder)) if hosts.contains(&holder) => vec![holder],
            (None, _) => hosts.to_vec(),
        };
        let picked = if let Chosen::Local { database, .. } = chosen { Some(*database) } else { None };
        LocateTrace { broker, databases, candidates, picked }
    }
}

fn result_label(end: &End) -> &'static str {
    let End::Decided(decision) = end else { return "re_enter" };
    match (decision.outcome, decision.reason) {
        (_, Reason::Reply) => "reply",
        (Outcome::Local, _) => "local",
        (Outcome::Remote, _) => "send",
        (Outcome::Forward, _) => "forward",
        (Outcome::Delayed, _) => "delayed",
        (Outcome::Dropped, _) => "dropped",
    }
}

/// Reports a difference between two names that is easy to overlook.
fn similar_name(name: &[u8], other: &[u8]) -> Option<Mismatch> {
    let (name, other) = (std::str::from_utf8(name).ok()?, std::str::from_utf8(other).ok()?);
    let lower = |text: &str| text.to_lowercase();
    let bare = |text: &str| text.split_whitespace().collect::<String>();
    let composed = |text: &str| text.nfkc().collect::<String>();
    let all = |text: &str| bare(&lower(&composed(text)));
    if name == other || all(name) != all(other) {
        return None;
    }
    Some(match () {
        () if bare(name) == bare(other) => Mismatch::NameDiffersInWhiteSpace,
        () if composed(name) == composed(other) => Mismatch::NameDiffersInUnicodeForm,
        () => Mismatch::NameDiffersInCase,
    })
}
