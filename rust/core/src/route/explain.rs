//! The whole way of one conversation: what was seen at each step, and why it did not match.

use std::cell::RefCell;

use unicode_normalization::UnicodeNormalization;

use crate::catalog::{BROKER_CONFIGURATION, LOCAL, NONE, RouteRow};
use crate::guid::Guid;
use crate::route::decide::{
    Candidates, Chosen, Decision, End, Found, NextHop, Outcome, PassContext, PassResult, Query, Reason,
};
use crate::route::index::{CLASSES, Class, RouteIndex};
use crate::route::tie_break::TieBreak;

/// Rejected routes that a step shows; the others it counts.
const REJECTED_SHOWN: usize = 20;

/// A decision, and how it came about.
#[derive(Debug)]
pub struct Explanation {
    /// The tables that were read, in order: one, or two after a re-entry (R41).
    pub passes: Vec<Pass>,
    /// The decision.
    pub decision: Decision,
    /// A tie was to be broken by the hash of a conversation id that was not given; the first candidate stands in.
    pub picks_undetermined: bool,
}

/// How a table came to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The conversation began in this database.
    BegunHere,
    /// It arrived from another instance.
    FromOutside,
    /// Its next hop was this instance (R41).
    ReEntered,
}

/// One reading of a routing table.
#[derive(Debug)]
pub struct Pass {
    /// The database whose table was read.
    pub database: u16,
    /// How it came to be read.
    pub origin: Origin,
    /// Delivery is disabled in the database where the conversation began (R34).
    pub sender_disabled: bool,
    /// Where it is: the other database in which its broker id is enabled (I7).
    pub id_enabled_in: Option<u16>,
    /// The databases that a reply was held against (R7), and whether it was one for this instance.
    pub reply: Option<(Vec<HostSeen>, bool)>,
    /// Routes of the table.
    pub route_count: usize,
    /// Those of them that are expired.
    pub expired_count: usize,
    /// The steps, up to the one that ended the search.
    pub steps: Vec<StepSeen>,
    /// The classes, up to the one that was chosen from.
    pub classes: Vec<ClassSeen>,
    /// Where the service was looked for.
    pub locate: Option<LocateSeen>,
    /// Where the message would go next, and whether that is this instance.
    pub next_hop: Option<(NextHop, bool)>,
    /// What came of it, in a word.
    pub result: &'static str,
}

/// A route as a step saw it: a row of the catalog, or the implied route of R16.
pub type RouteSeen = Option<u32>;

/// Why a route did not match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhyNot {
    /// Its lifetime is over (R3).
    Expired,
    /// It names another broker id.
    OtherBrokerId,
    /// It names a broker id, where none was looked for.
    NamesBrokerId,
    /// The names are the same but for upper and lower case.
    NameDiffersInCase,
    /// The names are the same but for white space.
    NameDiffersInWhiteSpace,
    /// The names look the same, but are composed of other characters.
    NameDiffersInUnicodeForm,
    /// A request for the service is pending already (R14).
    PendingRequest,
    /// Another of several broker ids was picked (R13).
    NotThePickedId,
}

impl WhyNot {
    /// The label of the dictionary form.
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
pub struct StepSeen {
    /// Its number, 1 to 7; its rule is R11 to R17.
    pub step: i8,
    /// Whether its condition on the conversation holds.
    pub tried: bool,
    /// Why it was passed over, or what it found.
    pub note: &'static str,
    /// The live routes that it yields.
    pub matched: Vec<RouteSeen>,
    /// Routes that came close, and why they do not match.
    pub rejected: Vec<(u32, WhyNot)>,
    /// How many came close.
    pub rejected_count: usize,
    /// The broker ids to pick from (R13).
    pub candidate_brokers: Vec<Guid>,
    /// The one that was picked.
    pub picked_broker: Option<Guid>,
    /// The databases that have the service (R16).
    pub hosts: Vec<u16>,
}

/// A class of R22.
#[derive(Debug)]
pub struct ClassSeen {
    /// Its name.
    pub class: &'static str,
    /// Its routes; those with the same address count as one (R21).
    pub routes: Vec<RouteSeen>,
    /// Those that lead somewhere.
    pub usable: Vec<RouteSeen>,
    /// Those that do not, and why.
    pub unusable: Vec<(RouteSeen, Reason)>,
    /// The one that was chosen.
    pub picked: Option<RouteSeen>,
}

/// A database that was looked at.
#[derive(Clone, Copy, Debug)]
pub struct HostSeen {
    /// Its number.
    pub database: u16,
    /// Whether it has the service.
    pub has_service: bool,
    /// The other database in which its broker id is enabled, so that it cannot be enabled itself (I7).
    pub id_enabled_in: Option<u16>,
}

/// *Locate*.
#[derive(Debug)]
pub struct LocateSeen {
    /// The broker id by which the database is told (R31); `None` if any with the service will do (R32).
    pub broker: Option<Guid>,
    /// The databases that were looked at.
    pub databases: Vec<HostSeen>,
    /// Those that could take the message.
    pub candidates: Vec<u16>,
    /// The one that takes it.
    pub picked: Option<u16>,
}

impl Pass {
    pub(crate) fn has_tie(&self) -> bool {
        self.steps.iter().any(|step| step.picked_broker.is_some() && step.candidate_brokers.len() > 1)
            || self.classes.iter().any(|class| class.picked.is_some() && class.usable.len() > 1)
            || self.locate.as_ref().is_some_and(|locate| locate.picked.is_some() && locate.candidates.len() > 1)
    }
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

impl StepSeen {
    pub(crate) fn skip(&mut self, note: &'static str) {
        self.tried = false;
        self.note = note;
    }

    pub(crate) fn look(&mut self, rows: impl Iterator<Item = u32>, why_not: impl Fn(u32) -> Option<WhyNot>) {
        for row in rows {
            if let Some(why) = why_not(row) {
                self.reject(row, why);
            }
        }
    }

    fn reject(&mut self, row: u32, why: WhyNot) {
        self.rejected_count += 1;
        if self.rejected.len() < REJECTED_SHOWN {
            self.rejected.push((row, why));
        }
    }

    /// What the step came to, if it did not end the search.
    pub(crate) fn missed(&self) -> &'static str {
        match self.step {
            1 => "no live route has exactly this service name and this broker id",
            2 => "no live route has exactly this service name and no broker id",
            3 => "no live route has exactly this service name and a broker id",
            4 if self.rejected.iter().any(|&(_, why)| why == WhyNot::PendingRequest) => {
                "a request for this service is pending already"
            }
            4 => "there is no live route to the dynamic routing service",
            5 => "no live route leaves out both service name and broker id",
            6 => "no enabled database of the instance has a service of this name",
            _ => "no step yields a route",
        }
    }

    /// Completes the step that ended the search.
    pub(crate) fn finish(&mut self, index: &RouteIndex, found: Option<&Found>, now: i64) {
        self.note = match (self.step, found) {
            (4, _) => "routing information is requested from the dynamic routing service",
            (6, _) => "as if there were a LOCAL route: the instance has a service of this name",
            (7, _) => "no step yields a route",
            _ => "found",
        };
        match found {
            Some(Found::Routes { rows, broker, step }) => {
                self.picked_broker = broker.filter(|_| *step == 3);
                let rows = index.order[rows.clone()].iter().copied();
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
                self.reject(row, WhyNot::NotThePickedId);
            }
        }
    }
}

// Tells a decision: decides once more, and writes down what was seen on the way.

impl RouteIndex {
    /// Decides one conversation, takes nobody's turn, and tells the whole way.
    #[must_use]
    pub fn explain(&self, query: &Query<'_>, now: i64) -> Explanation {
        let mut room = Candidates::default();
        let would_take = RefCell::default();
        let mut context = self.first_pass(query, now, Some(&would_take));
        let mut passes = Vec::new();
        loop {
            let result = self.pass(query, &context, &mut room);
            passes.push(self.tell(query, &context, &result));
            match result.end {
                End::Decided(decision) => {
                    let by_hash = self.options.tie_break == TieBreak::Hash && query.conversation.is_none();
                    let picks_undetermined = by_hash && passes.iter().any(Pass::has_tie);
                    return Explanation { passes, decision, picks_undetermined };
                }
                End::ReEnter => context = self.second_pass(context),
            }
        }
    }

    fn tell(&self, query: &Query<'_>, context: &PassContext<'_>, result: &PassResult) -> Pass {
        let origin = match (context.database, context.picker.re_entered) {
            (Some(_), _) => Origin::BegunHere,
            (None, true) => Origin::ReEntered,
            (None, false) => Origin::FromOutside,
        };
        let of_table = || self.catalog.routes.iter().filter(|route| route.database == context.table);
        let sender_disabled =
            matches!(&result.end, End::Decided(decision) if decision.reason == Reason::SenderDisabled);
        let is_matched = !sender_disabled && !result.is_reply;
        let (classes, locate) = match &result.chosen {
            Some(chosen) => self.tell_choice(query, context, result, chosen),
            None => (Vec::new(), None),
        };
        Pass {
            database: context.table,
            origin,
            sender_disabled,
            id_enabled_in: if sender_disabled { self.id_enabled_in(context.table) } else { None },
            reply: self.tell_reply(query, context, sender_disabled),
            route_count: of_table().count(),
            expired_count: of_table().filter(|route| !route.is_live(context.now)).count(),
            steps: if is_matched { self.tell_steps(query, context, result.found.as_ref()) } else { Vec::new() },
            classes,
            locate,
            next_hop: result.next_hop.clone(),
            result: result_label(&result.end),
        }
    }

    fn tell_reply(
        &self,
        query: &Query<'_>,
        context: &PassContext<'_>,
        sender_disabled: bool,
    ) -> Option<(Vec<HostSeen>, bool)> {
        let looked = context.database.is_none() && !query.is_initiator && !sender_disabled;
        let broker = query.broker.filter(|_| looked)?;
        let seen = self
            .databases_seen(query, |database, _| self.catalog.databases[usize::from(database)].broker == Some(broker));
        let applies = !seen.is_empty();
        Some((seen, applies))
    }

    /// The databases that `is_wanted` accepts, given whether they have the service.
    fn databases_seen(&self, query: &Query<'_>, is_wanted: impl Fn(u16, bool) -> bool) -> Vec<HostSeen> {
        let name = self.catalog.find_name(query.name);
        let has_service = |database: u16| name.is_some_and(|name| self.catalog.services.contains(&(database, name)));
        let all =
            (0..self.catalog.databases.len() as u16).filter(|&database| is_wanted(database, has_service(database)));
        all.map(|database| HostSeen {
            database,
            has_service: has_service(database),
            id_enabled_in: self.id_enabled_in(database),
        })
        .collect()
    }

    /// The enabled database, other than this disabled one, that has its broker id (I7).
    fn id_enabled_in(&self, database: u16) -> Option<u16> {
        let databases = &self.catalog.databases;
        let disabled = databases.get(usize::from(database)).filter(|disabled| !disabled.enabled)?;
        let broker = disabled.broker?;
        let holder = databases.iter().position(|other| other.enabled && other.broker == Some(broker))?;
        u16::try_from(holder).ok()
    }

    fn tell_steps(&self, query: &Query<'_>, context: &PassContext<'_>, found: Option<&Found>) -> Vec<StepSeen> {
        let last = match found {
            Some(Found::Routes { step, .. } | Found::Implied { step }) => *step,
            Some(Found::Request) => 4,
            Some(Found::Nothing) | None => 7,
        };
        let mut steps: Vec<StepSeen> = (1..=last).map(|step| self.tell_step(query, context, step)).collect();
        if let Some(seen) = steps.last_mut() {
            seen.finish(self, found, context.now);
        }
        steps
    }

    fn tell_step(&self, query: &Query<'_>, context: &PassContext<'_>, step: i8) -> StepSeen {
        let mut seen = StepSeen { step, tried: true, ..StepSeen::default() };
        let rows = (0..self.catalog.routes.len() as u32).filter(|&row| self.row(row).database == context.table);
        let name = self.catalog.find_name(query.name);
        let is_named = |route: &RouteRow| name.is_some_and(|name| route.service == name);
        let live = |route: &RouteRow| route.is_live(context.now);
        match (step, query.broker) {
            (3, Some(_)) => seen.skip("the conversation names a broker id"),
            (1 | 6, None) => seen.skip("the conversation names no broker id"),
            (1, Some(broker)) => seen.look(rows, |row| match self.row(row) {
                route if !is_named(route) => None,
                route if route.broker == Some(broker) && !live(route) => Some(WhyNot::Expired),
                route if route.broker.is_some_and(|other| other != broker) => Some(WhyNot::OtherBrokerId),
                _ => None,
            }),
            (2, broker) => seen.look(rows, |row| match self.row(row) {
                route if is_named(route) && route.broker.is_none() => (!live(route)).then_some(WhyNot::Expired),
                route if is_named(route) => broker.is_none().then_some(WhyNot::NamesBrokerId),
                route if route.service == NONE => None,
                route => near_miss(query.name, self.catalog.name(route.service)),
            }),
            (3, None) => {
                seen.look(rows, |row| {
                    let route = self.row(row);
                    (is_named(route) && route.broker.is_some() && !live(route)).then_some(WhyNot::Expired)
                });
                if let Some(entry) = self.entry(context.table, query.name) {
                    let mut room = Candidates::default();
                    self.live_brokers(entry, context.now, &mut room);
                    seen.candidate_brokers = room.brokers.iter().map(|&(_, broker)| broker).collect();
                }
            }
            (4, _) => {
                let service = self.catalog.find_name(BROKER_CONFIGURATION);
                seen.look(rows, |row| match self.row(row) {
                    route if service != Some(route.service) => None,
                    route if !live(route) => Some(WhyNot::Expired),
                    _ => self.catalog.is_pending(query.name).then_some(WhyNot::PendingRequest),
                });
            }
            (5, _) => seen.look(rows, |row| match self.row(row) {
                route if route.service != NONE => None,
                route if route.broker.is_some() => Some(WhyNot::NamesBrokerId),
                route => (!live(route)).then_some(WhyNot::Expired),
            }),
            (6, Some(_)) => seen.hosts = self.hosts_of(context.service).to_vec(),
            _ => {}
        }
        seen.note = if seen.tried { seen.missed() } else { seen.note };
        seen
    }

    fn tell_choice(
        &self,
        query: &Query<'_>,
        context: &PassContext<'_>,
        result: &PassResult,
        chosen: &Chosen,
    ) -> (Vec<ClassSeen>, Option<LocateSeen>) {
        let picked: Option<RouteSeen> = match chosen {
            Chosen::Local { route, .. } => Some(*route),
            Chosen::Address { route } => Some(Some(*route)),
            Chosen::None { .. } => None,
        };
        let mut broker = query.broker;
        let mut classes = Vec::new();
        if let Some(Found::Routes { rows, broker: own, .. }) = &result.found {
            broker = broker.or(*own);
            let live: Vec<u32> =
                self.order[rows.clone()].iter().copied().filter(|&row| self.row(row).is_live(context.now)).collect();
            for class in CLASSES {
                let mut members: Vec<u32> =
                    live.iter().copied().filter(|&row| Class::of(self.row(row)) == class).collect();
                self.merge(&mut members);
                let has_picked = picked.flatten().is_some_and(|row| members.contains(&row));
                classes.push(self.tell_class(query, context, class, &members, picked.filter(|_| has_picked)));
                if has_picked {
                    break;
                }
            }
        } else {
            let unusable = if picked.is_none() { vec![(None, Reason::ServiceNotFound)] } else { Vec::new() };
            let usable = picked.into_iter().collect();
            classes.push(ClassSeen { class: "local", routes: vec![None], usable, unusable, picked });
        }
        let is_local = |route: &RouteSeen| route.is_none_or(|row| self.row(row).endpoint == LOCAL);
        let looked = classes.iter().any(|class| class.routes.iter().any(is_local));
        (classes, looked.then(|| self.tell_locate(query, context, broker, chosen)))
    }

    fn tell_class(
        &self,
        query: &Query<'_>,
        context: &PassContext<'_>,
        class: Class,
        members: &[u32],
        picked: Option<RouteSeen>,
    ) -> ClassSeen {
        let is_usable = |row: &&u32| self.is_usable(query, context, self.row(**row));
        let why = |row: u32| {
            let is_local = self.row(row).endpoint == LOCAL;
            if is_local { Reason::ServiceNotFound } else { Reason::AddressUnusable }
        };
        ClassSeen {
            class: class.label(),
            routes: members.iter().map(|&row| Some(row)).collect(),
            usable: members.iter().filter(is_usable).map(|&row| Some(row)).collect(),
            unusable: members.iter().filter(|row| !is_usable(row)).map(|&row| (Some(row), why(row))).collect(),
            picked,
        }
    }

    fn tell_locate(
        &self,
        query: &Query<'_>,
        context: &PassContext<'_>,
        broker: Option<Guid>,
        chosen: &Chosen,
    ) -> LocateSeen {
        let id_of = |database: u16| self.catalog.databases[usize::from(database)].broker;
        let databases =
            self.databases_seen(query, |database, has| has || (broker.is_some() && id_of(database) == broker));
        let hosts = self.hosts_of(context.service);
        let candidates = match (broker, context.database) {
            (Some(_), _) => hosts.iter().copied().filter(|&host| id_of(host) == broker).collect(),
            (None, Some(holder)) if hosts.contains(&holder) => vec![holder],
            (None, _) => hosts.to_vec(),
        };
        let picked = if let Chosen::Local { database, .. } = chosen { Some(*database) } else { None };
        LocateSeen { broker, databases, candidates, picked }
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

/// Whether two different names would be the same to a person.
fn near_miss(wanted: &[u8], other: &[u8]) -> Option<WhyNot> {
    let (wanted, other) = (std::str::from_utf8(wanted).ok()?, std::str::from_utf8(other).ok()?);
    let lower = |text: &str| text.to_lowercase();
    let bare = |text: &str| text.split_whitespace().collect::<String>();
    let composed = |text: &str| text.nfkc().collect::<String>();
    let all = |text: &str| bare(&lower(&composed(text)));
    if wanted == other || all(wanted) != all(other) {
        return None;
    }
    Some(match () {
        () if bare(wanted) == bare(other) => WhyNot::NameDiffersInWhiteSpace,
        () if composed(wanted) == composed(other) => WhyNot::NameDiffersInUnicodeForm,
        () => WhyNot::NameDiffersInCase,
    })
}
