//! Tells a decision: decides once more, and writes down what was seen on the way.

use std::cell::RefCell;

use unicode_normalization::UnicodeNormalization;

use super::choose::{CLASSES, Candidates, Chosen, Class};
use super::decide::{End, PassContext, PassResult, Query};
use super::explain::{ClassSeen, Explanation, HostSeen, LocateSeen, Origin, Pass, RouteSeen, StepSeen, WhyNot};
use super::find::Found;
use super::index::RouteIndex;
use super::pick::TieBreak;
use crate::catalog::{BROKER_CONFIGURATION, LOCAL, NONE, RouteRow};
use crate::ids::Guid;
use crate::outcome::{Outcome, Reason};

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
