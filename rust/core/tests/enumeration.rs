//! Checks the index by enumeration: every table of up to three routes over a small universe, and every
//! conversation, against a second matcher.
//!
//! The universe has two service names, two broker ids, and the addresses that the rules distinguish. The second
//! matcher applies the rules to a list of routes without an index or plans and shares only types with the crate. It
//! implements the tie break `first`.
//!
//! `cargo test` enumerates all tables of up to one route, and samples of tables of two and three. `ENUMERATE=all`
//! in the environment enumerates all tables of up to three routes: a billion decisions, each made in three ways.
#![allow(missing_docs, clippy::match_bool, clippy::struct_excessive_bools, clippy::unwrap_used)]

use std::sync::Arc;

use ssbroker_core::route::{Answers, BLOCK, Block, Scratch, Stages};
use ssbroker_core::{
    Catalog, CatalogBuilder, Decision, Guid, NEVER, NextHop, Options, Outcome, PendingRequest, Query, Reason,
    RouteIndex, RouteInput, Seed, Settings, TieBreak,
};

const NAMES: [&str; 2] = ["tcp://hop:7/Service", "//Other"];
const BCN: &str = "SQL/ServiceBroker/BrokerConfiguration";
const IDS: [Guid; 2] = [Guid([1; 16]), Guid([2; 16])];
const ELSEWHERE: &str = "TCP://a:1";
/// The same address in another spelling (R21).
const SAME_ELSEWHERE: &str = "tcp://A:01/";
const OWN: &str = "TCP://me:4022";
const NOW: i64 = 100;

/// A route of the universe. A table is a list of routes; the route ids are their positions.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Route {
    service: Option<&'static str>,
    broker: Option<Guid>,
    address: &'static str,
    has_mirror: bool,
    is_expired: bool,
}

/// The instance around the table.
#[derive(Clone, Copy, Debug)]
struct World {
    forwarding: bool,
    /// Whether the database with the first of `IDS` is enabled.
    host_enabled: bool,
    /// Whether that database has the first service.
    hosted: bool,
    pending: bool,
}

/// The result of the second matcher: outcome, reason, step and route.
type Verdict = (Outcome, Reason, Option<i8>, Option<i32>);

/// All 168 distinguishable routes.
fn universe() -> Vec<Route> {
    let addresses = [
        ("LOCAL", false),
        ("TRANSPORT", false),
        (ELSEWHERE, false),
        (SAME_ELSEWHERE, false),
        (OWN, false),
        (ELSEWHERE, true),
        ("LOCAL", true),
    ];
    let mut routes = Vec::new();
    for service in [None, Some(NAMES[0]), Some(NAMES[1]), Some(BCN)] {
        for broker in [None, Some(IDS[0]), Some(IDS[1])] {
            for (address, has_mirror) in addresses {
                for is_expired in [false, true] {
                    routes.push(Route { service, broker, address, has_mirror, is_expired });
                }
            }
        }
    }
    routes
}

fn worlds() -> Vec<World> {
    let flags = [false, true];
    let mut worlds = Vec::new();
    for forwarding in flags {
        for (host_enabled, hosted) in [(true, true), (false, true), (true, false)] {
            for pending in flags {
                worlds.push(World { forwarding, host_enabled, hosted, pending });
            }
        }
    }
    worlds
}

fn queries() -> Vec<(&'static str, Option<Guid>, bool, bool)> {
    let mut queries = Vec::new();
    for name in NAMES {
        for broker in [None, Some(IDS[0]), Some(IDS[1])] {
            for (from_outside, is_initiator) in [(false, true), (true, true), (true, false)] {
                queries.push((name, broker, from_outside, is_initiator));
            }
        }
    }
    queries
}

// ------------------------------------------------------------------------------------------------ the second matcher

struct Naive<'a> {
    world: World,
    table: &'a [Route],
    name: &'static str,
    broker: Option<Guid>,
    is_initiator: bool,
}

impl Naive<'_> {
    fn live(&self, matches: impl Fn(&Route) -> bool) -> Vec<usize> {
        (0..self.table.len())
            .filter(|&position| !self.table[position].is_expired && matches(&self.table[position]))
            .collect()
    }

    /// Whether the only host takes a message for this broker id.
    fn locates(&self, broker: Option<Guid>) -> bool {
        let hosts = self.world.host_enabled && self.world.hosted && self.name == NAMES[0];
        hosts && broker.is_none_or(|broker| broker == IDS[0])
    }

    fn find(&self) -> (i8, Vec<usize>) {
        let named = |route: &Route| route.service == Some(self.name);
        if self.broker.is_some() {
            let found = self.live(|route| named(route) && route.broker == self.broker);
            if !found.is_empty() {
                return (1, found);
            }
        }
        let found = self.live(|route| named(route) && route.broker.is_none());
        if !found.is_empty() {
            return (2, found);
        }
        if self.broker.is_none() {
            let first = self.live(|route| named(route) && route.broker.is_some()).first().copied();
            if let Some(first) = first {
                return (3, self.live(|route| named(route) && route.broker == self.table[first].broker));
            }
        }
        let asks = !self.live(|route| route.service == Some(BCN)).is_empty();
        if asks && !(self.world.pending && self.name == NAMES[0]) {
            return (4, Vec::new());
        }
        let found = self.live(|route| route.service.is_none() && route.broker.is_none());
        if !found.is_empty() {
            return (5, found);
        }
        let hosted = self.world.host_enabled && self.world.hosted && self.name == NAMES[0];
        if self.broker.is_some() && hosted { (6, Vec::new()) } else { (7, Vec::new()) }
    }

    fn decide(&self, from_outside: bool, re_entered: bool) -> Verdict {
        if from_outside && !self.is_initiator && self.broker == Some(IDS[0]) {
            return match self.locates(self.broker) {
                true => (Outcome::Local, Reason::Reply, Some(0), None),
                false => (Outcome::Dropped, Reason::ServiceNotFound, Some(0), None),
            };
        }
        let (step, found) = self.find();
        match step {
            4 => return (Outcome::Delayed, Reason::RouteRequested, Some(4), None),
            7 => return (Outcome::Delayed, Reason::NoRoute, Some(7), None),
            _ => {}
        }
        let unusable = if from_outside { Outcome::Dropped } else { Outcome::Delayed };
        if step == 6 {
            return match self.locates(self.broker) {
                true => (Outcome::Local, Reason::Matched, Some(6), None),
                false => (unusable, Reason::ServiceNotFound, Some(6), None),
            };
        }
        let Some(chosen) = self.choose(&found) else {
            let is_local = found.iter().any(|&position| self.table[position].address == "LOCAL");
            let reason = if is_local { Reason::ServiceNotFound } else { Reason::AddressUnusable };
            return (unusable, reason, Some(step), None);
        };
        let decided = |outcome, reason| (outcome, reason, Some(step), Some(chosen as i32));
        match self.table[chosen].address {
            "LOCAL" => decided(Outcome::Local, Reason::Matched),
            _ if from_outside && !self.world.forwarding => decided(Outcome::Dropped, Reason::ForwardingDisabled),
            OWN if from_outside => decided(Outcome::Dropped, Reason::RoutingLoop),
            OWN => {
                assert!(!re_entered, "a conversation re-enters once");
                self.decide(true, true)
            }
            _ if from_outside => decided(Outcome::Forward, Reason::Matched),
            _ => decided(Outcome::Remote, Reason::Matched),
        }
    }

    fn choose(&self, found: &[usize]) -> Option<usize> {
        let first =
            |matches: &dyn Fn(&Route) -> bool| found.iter().copied().find(|&position| matches(&self.table[position]));
        let route_broker = found.first().and_then(|&position| self.table[position].broker);
        let has_host = self.locates(self.broker.or(route_broker));
        let is_local = |route: &Route| route.address == "LOCAL";
        let is_network = |route: &Route| [ELSEWHERE, SAME_ELSEWHERE, OWN].contains(&route.address);
        first(&|route| route.has_mirror && (has_host || !is_local(route)))
            .or_else(|| first(&|route| !route.has_mirror && is_local(route) && has_host))
            .or_else(|| first(&|route| !route.has_mirror && is_network(route)))
            .or_else(|| first(&|route| route.address == "TRANSPORT").filter(|_| self.name == NAMES[0]))
    }
}

// ------------------------------------------------------------------------------------------------ the index

fn catalog(world: World, table: &[Route]) -> Catalog {
    let pending_requests = if world.pending { vec![NAMES[0].to_owned()] } else { Vec::new() };
    let settings = Settings { addresses: vec![OWN.to_owned()], message_forwarding: world.forwarding, pending_requests };
    let mut builder = CatalogBuilder::new(Seed([3, 4]), settings).unwrap();
    builder.database(0, b"Started", None, true).unwrap();
    builder.database(1, b"msdb", None, true).unwrap();
    builder.database(2, b"Host", Some(IDS[0]), world.host_enabled).unwrap();
    // Both tables have the same content, so that a re-entry has something to search.
    for (number, database) in ["Started", "msdb"].iter().enumerate() {
        for (position, route) in table.iter().enumerate() {
            let input = RouteInput {
                database: Some(database.as_bytes()),
                name: b"route",
                route_id: Some(position as i32),
                service: route.service.map(str::as_bytes),
                broker: route.broker,
                expires: if route.is_expired { NOW } else { NEVER },
                address: route.address.as_bytes(),
                mirror: route.has_mirror.then_some(b"TCP://m:1"),
            };
            builder.route(number * table.len() + position, input).unwrap();
        }
    }
    builder.finish_routes().unwrap();
    if world.hosted {
        builder.service(0, b"Host", NAMES[0].as_bytes()).unwrap();
    }
    builder.finish()
}

/// Compares every conversation of one table, one at a time and as a block; returns their number.
fn compare(world: World, table: &[Route]) -> u64 {
    let options = Options { tie_break: TieBreak::First, pending_request: PendingRequest::Continue };
    let index = RouteIndex::new(Arc::new(catalog(world, table)), options, Seed([1, 2]));
    let started = index.catalog().database(b"Started");
    let queries = queries();
    let answers = answers(&index, &queries);
    for (row, &(name, broker, from_outside, is_initiator)) in queries.iter().enumerate() {
        let database = started.filter(|_| !from_outside);
        let query = Query { name: name.as_bytes(), broker, database, is_initiator, conversation: None };
        let decision = index.decide(&query, NOW);
        let found = (decision.outcome, decision.reason, decision.match_step, decision.route_id);
        let expected = Naive { world, table, name, broker, is_initiator }.decide(from_outside, false);
        assert_eq!(found, expected, "{world:?} {table:?} {query:?}");
        let is = |bits: u64| bits >> row & 1 == 1;
        if is(answers.needs_decide) {
            let depends_on_name = |route: &Route| route.service.is_none() && route.address == "TRANSPORT";
            assert!(table.iter().any(depends_on_name), "not decided: {world:?} {table:?} {query:?}");
            continue;
        }
        let (outcome, reason) = (decision.outcome as i8, decision.reason as i8);
        assert_eq!((answers.outcomes[row], answers.reasons[row]), (outcome, reason), "{world:?} {table:?} {query:?}");
        let bound = query.broker.or(is(answers.is_bound).then(|| answers.brokers[row]));
        let hop = is(answers.has_hop).then(|| index.address(answers.to[row] as u32).to_vec());
        let answered = (
            is(answers.has_step).then_some(answers.steps[row]),
            is(answers.has_route).then_some(answers.route_ids[row]),
            hop,
            is(answers.has_mirror).then_some(answers.mirrors[row] as u32),
            is(answers.is_local).then_some(answers.to[row] as u16),
            bound,
        );
        let hop = decision.next_hop.map(|hop| match hop {
            NextHop::Known(address) => index.address(address).to_vec(),
            NextHop::Named(hop) => hop.into_bytes(),
        });
        let Decision { match_step, route_id, mirror, database, broker, .. } = decision;
        let decided = (match_step, route_id, hop, mirror, database, broker);
        assert_eq!(answered, decided, "as a block: {world:?} {table:?} {query:?}");
    }
    queries.len() as u64
}

/// Decides all conversations as one block.
fn answers(index: &RouteIndex, queries: &[(&'static str, Option<Guid>, bool, bool)]) -> Answers {
    let database = |name: &[u8]| index.catalog().database(name).unwrap();
    let started = database(b"Started");
    let mut answers = Answers::default();
    let mut block =
        Block { len: queries.len(), names: [&[]; BLOCK], sources: [0; BLOCK], has_broker: 0, from_target: 0 };
    for (row, &(name, broker, from_outside, is_initiator)) in queries.iter().enumerate() {
        block.names[row] = name.as_bytes();
        block.sources[row] = index.source((!from_outside).then_some(started), is_initiator, broker);
        block.has_broker |= u64::from(broker.is_some()) << row;
        block.from_target |= u64::from(!is_initiator) << row;
        answers.brokers[row] = broker.unwrap_or_default();
    }
    index.resolve(&block, NOW, |_| Guid::default(), &mut Stages::default(), &mut Scratch::default(), &mut answers);
    answers
}

fn enumerate(size: usize, keep: impl Fn(usize) -> bool) -> u64 {
    let universe = universe();
    let count = universe.len().pow(size as u32);
    let mut decisions = 0;
    for number in (0..count).filter(|&number| keep(number)) {
        let mut rest = number;
        let table: Vec<Route> = std::iter::repeat_with(|| {
            let route = universe[rest % universe.len()];
            rest /= universe.len();
            route
        })
        .take(size)
        .collect();
        decisions += worlds().into_iter().map(|world| compare(world, &table)).sum::<u64>();
    }
    decisions
}

/// Compares all tables of a size, or one in `every`, on two threads.
fn compare_tables(size: usize, every: usize) -> u64 {
    let every = if std::env::var("ENUMERATE").is_ok_and(|value| value == "all") { 1 } else { every };
    std::thread::scope(|scope| {
        let halves = [0, 1].map(|half| {
            scope.spawn(move || enumerate(size, |number| number % every == 0 && number / every % 2 == half))
        });
        halves.into_iter().map(|half| half.join().unwrap()).sum()
    })
}

#[test]
fn tables_of_up_to_one_route() {
    assert_eq!(compare_tables(0, 1) + compare_tables(1, 1), 169 * 12 * 18);
}

#[test]
fn tables_of_two_routes() {
    assert!(compare_tables(2, 5) >= 168 * 168 / 5 * 12 * 18);
}

#[test]
fn tables_of_three_routes() {
    assert!(compare_tables(3, 1_009) >= 168 * 168 * 168 / 1_009 * 12 * 18);
}
