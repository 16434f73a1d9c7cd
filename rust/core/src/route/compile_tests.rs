//! Tests the compiler of the decision table: on random catalogs, the table gives every conversation the decision that
//! the rules give it (`decide`), and it would not if one of many bugs were in the compiler.

use std::sync::Arc;

use crate::address::next_hop_of_service_name;
use crate::catalog::{BROKER_CONFIGURATION, CatalogBuilder, NEVER, RouteInput, Settings};
use crate::guid::Guid;
use crate::hash::Seed;
use crate::route::batch::{Answers, BLOCK, Block, Stages};
use crate::route::bloom_filter::BloomFilter;
use crate::route::decide::{Decision, NextHop, Outcome, Query, Reason, Scratch};
use crate::route::decision_table::{Action, Next, Source};
use crate::route::index::{Options, PendingRequest, RouteIndex};
use crate::route::tie_break::TieBreak;

const DATABASES: [&str; 5] = ["Sales", "Stores", "Archive", "Copy", "msdb"];
const LONG: &str = "//a.service.with.a.name.of.more.than.sixty-four.bytes.example/Orders/Today";
const NAMES: [&str; 7] =
    ["//a/One", "//a/Two", "tcp://hop:7/Service", "tcp://known:1/Service", LONG, "//a/Three", "//a/Nobody"];
const ADDRESSES: [&str; 7] =
    ["LOCAL", "TRANSPORT", "TCP://one:1", "tcp://ONE:01/", "TCP://two", "TCP://me", "TCP://known:1"];
const NOW: i64 = 1_000;
/// Random catalogs per option.
const WORLDS: u64 = 400;

/// A small random number generator (`SplitMix64`).
struct Random(u64);

impl Random {
    fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(mixed ^ mixed >> 31) * count as u128) >> 64) as usize
    }

    fn of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

/// Ids 1 to 4 belong to databases; routes name ids 2 to 6.
fn id(number: usize) -> Guid {
    Guid([number as u8; 16])
}

fn random_index(random: &mut Random, options: Options) -> RouteIndex {
    let settings = Settings {
        addresses: vec!["TCP://me".to_owned()],
        message_forwarding: !random.one_in(3),
        pending_requests: vec![NAMES[0].to_owned(), NAMES[5].to_owned()],
    };
    let mut builder = CatalogBuilder::new(Seed([5, 6]), settings).expect("valid settings");
    for (number, name) in DATABASES.iter().enumerate() {
        let broker = Some(id(number + 1)).filter(|_| number < 4);
        builder.database(number, name.as_bytes(), broker, *name != "Archive").expect("a valid database");
    }
    for row in 0..random.below(14) {
        let service = match random.below(8) {
            0 => Some(BROKER_CONFIGURATION).filter(|_| random.one_in(2)),
            1 => None,
            _ => Some(NAMES[random.below(6)].as_bytes()),
        };
        let input = RouteInput {
            database: Some(random.of(&DATABASES).as_bytes()),
            name: b"route",
            route_id: Some(1_000 - row as i32),
            service,
            broker: Some(id(2 + random.below(5))).filter(|_| service.is_some() && random.one_in(2)),
            expires: random.of(&[NEVER, NEVER, NOW - 1, NOW, NOW + 1]),
            address: random.of(&ADDRESSES).as_bytes(),
            mirror: Some(&b"TCP://mirror"[..]).filter(|_| random.one_in(5)),
        };
        builder.route(row, input).expect("a valid route");
    }
    builder.finish_routes().expect("unique route ids");
    for row in 0..random.below(8) {
        let (database, name) = (random.of(&DATABASES), NAMES[random.below(6)]);
        builder.service(row, database.as_bytes(), name.as_bytes()).expect("a known database");
    }
    let limit = random.of(&[0, 4, usize::MAX]);
    RouteIndex::with_limit(Arc::new(builder.finish()), options, Seed([7, 8]), limit)
}

/// A block of every kind of conversation with a service name.
fn queries<'a>(index: &RouteIndex, name: &'a str, random: &mut Random) -> Vec<Query<'a>> {
    let mut queries = Vec::new();
    for database in [Some("Sales"), Some("Archive"), Some("msdb"), None] {
        let database = database.and_then(|database| index.catalog().database(database.as_bytes()));
        for broker in [None, Some(1), Some(2), Some(3), Some(4), Some(5), Some(6), Some(9)] {
            for is_initiator in [true, false] {
                let conversation = Some(Guid(std::array::from_fn(|_| random.below(256) as u8)));
                let broker = broker.map(id);
                queries.push(Query { name: name.as_bytes(), broker, database, is_initiator, conversation });
            }
        }
    }
    assert_eq!(queries.len(), BLOCK);
    queries
}

/// Whether a name has no entry in its source or for messages from outside (R41), although the filter of omitted names
/// has it.
fn may_be_left(index: &RouteIndex, source: Source, name: &str) -> bool {
    let is_listed = |source| index.slot(source, name.as_bytes()).is_some();
    let may_be_omitted = |source| index.omitted_names.may_contain(index.hash.of(name.as_bytes(), source));
    let msdb = index.catalog().msdb;
    (may_be_omitted(index.replies()) || source == msdb && may_be_omitted(msdb))
        && !(is_listed(source) && is_listed(index.outside()))
}

/// Whether the table decides all conversations as the rules do, or leaves them to the rules if it may.
fn agrees(index: &RouteIndex, random: &mut Random) -> bool {
    let (mut stages, mut scratch) = (Stages::default(), Scratch::default());
    // Back and forth: what is cached for one time must not be used at another.
    for now in [NOW - 2, NOW - 1, NOW, NOW + 1, NOW + 2, NOW] {
        for name in NAMES {
            let queries = queries(index, name, random);
            let mut answers = Answers::default();
            let mut block = Block {
                len: BLOCK,
                names: [name.as_bytes(); BLOCK],
                sources: [0; BLOCK],
                has_broker: 0,
                from_target: 0,
            };
            for (row, query) in queries.iter().enumerate() {
                block.sources[row] = index.source(query.database, query.is_initiator, query.broker);
                block.has_broker |= u64::from(query.broker.is_some()) << row;
                block.from_target |= u64::from(!query.is_initiator) << row;
                answers.brokers[row] = query.broker.unwrap_or_default();
            }
            let conversation = |row: usize| queries[row].conversation.unwrap_or_default();
            index.resolve(&block, now, conversation, &mut stages, &mut scratch, &mut answers);
            for (row, query) in queries.iter().enumerate() {
                let expected = index.decide(query, now);
                let is_right = match decision(index, &answers, row, query) {
                    Some(answered) => answered == named(index, expected),
                    None => {
                        may_be_left(index, block.sources[row], name) || {
                            expected.match_step == Some(5) && next_hop_of_service_name(name.as_bytes()).is_some()
                        }
                    }
                };
                if !is_right {
                    return false;
                }
            }
        }
    }
    true
}

/// The decision of a row; `None` if it is left to the rules.
fn decision(index: &RouteIndex, answers: &Answers, row: usize, query: &Query<'_>) -> Option<Decision> {
    let is = |bits: u64| bits >> row & 1 == 1;
    if is(answers.needs_decide) {
        return None;
    }
    let hop = is(answers.has_hop).then(|| NextHop::Known(answers.to[row] as u32));
    let decision = Decision {
        outcome: Outcome::ALL[answers.outcomes[row] as usize],
        reason: Reason::ALL[answers.reasons[row] as usize],
        match_step: is(answers.has_step).then_some(answers.steps[row]),
        route_id: is(answers.has_route).then_some(answers.route_ids[row]),
        next_hop: hop,
        mirror: is(answers.has_mirror).then_some(answers.mirrors[row] as u32),
        database: is(answers.is_local).then_some(answers.to[row] as u16),
        broker: query.broker.or(is(answers.is_bound).then(|| answers.brokers[row])),
    };
    Some(named(index, decision))
}

/// The decision with its next hop as text.
fn named(index: &RouteIndex, decision: Decision) -> Decision {
    let hop = decision.next_hop.map(|hop| match hop {
        NextHop::Known(address) => String::from_utf8_lossy(index.address(address)).into_owned(),
        NextHop::Named(hop) => hop,
    });
    Decision { next_hop: hop.map(NextHop::Named), ..decision }
}

fn first_disagreement(plant: impl Fn(&mut RouteIndex)) -> Option<u64> {
    let pending = [PendingRequest::Continue, PendingRequest::Delay];
    (0..WORLDS).find(|&seed| {
        [TieBreak::Hash, TieBreak::First].into_iter().any(|tie_break| {
            let mut random = Random(seed);
            let options = Options { tie_break, pending_request: pending[seed as usize % 2] };
            let mut index = random_index(&mut random, options);
            plant(&mut index);
            !agrees(&index, &mut random)
        })
    })
}

/// R2
#[test]
fn the_table_decides_as_the_rules_do() {
    assert_eq!(first_disagreement(|_| {}), None);
}

/// Changes every decision of the table.
fn change(index: &mut RouteIndex, change: impl Fn(&mut Action)) {
    let entries = index.entries.iter_mut().flat_map(|entry| &mut entry.actions);
    let pairs = index.pairs.iter_mut().map(|pair| &mut pair.action);
    let cells = index.cells.iter_mut().map(|cell| &mut cell.action);
    entries.chain(pairs).chain(cells).for_each(change);
}

fn without(flag: u8) -> impl Fn(&mut RouteIndex) {
    move |index| change(index, |action| action.flags &= !(1 << flag))
}

/// Replaces a value of a field in every precomputed decision.
fn replaced(field: fn(&mut Action) -> &mut i8, from: i8, to: i8) -> impl Fn(&mut RouteIndex) {
    move |index| {
        change(index, |action| {
            if !action.has(Action::UNFINISHED) && *field(action) == from {
                *field(action) = to;
            }
        });
    }
}

type Bug = (&'static str, Box<dyn Fn(&mut RouteIndex)>);

// A list, however long it is.
#[allow(clippy::too_many_lines)]
fn bugs() -> Vec<Bug> {
    vec![
        ("entries never expire", Box::new(|index| index.entries.iter_mut().for_each(|entry| entry.expires = NEVER))),
        (
            "entries expire late",
            Box::new(|index| {
                index.entries.iter_mut().for_each(|entry| entry.expires = entry.expires.saturating_add(1));
            }),
        ),
        (
            "the kinds of broker id are swapped",
            Box::new(|index| index.entries.iter_mut().for_each(|entry| entry.actions.swap(1, 2))),
        ),
        (
            "a conversation without a broker id is like one with another id",
            Box::new(|index| index.entries.iter_mut().for_each(|entry| entry.actions[0] = entry.actions[1])),
        ),
        ("route ids are lost", Box::new(without(Action::HAS_ROUTE))),
        ("broker ids of routes do not bind", Box::new(without(Action::BINDS))),
        ("next hops are lost", Box::new(without(Action::HAS_HOP))),
        ("databases are lost", Box::new(without(Action::LOCAL))),
        ("the broker id of a database finds the first database", Box::new(without(Action::BY_ID))),
        ("mirror addresses are lost", Box::new(without(Action::HAS_MIRROR))),
        ("an entry has one target", Box::new(without(Action::SECOND_TARGET))),
        (
            "the broker id of a database is any id",
            Box::new(|index| {
                for entry in &index.entries {
                    if matches!(entry.actions[1].next_of(), Some(Next::HostDatabase | Next::Pair)) {
                        let unlisted = entry.unlisted_cells as usize;
                        index.cells[unlisted + 1] = index.cells[unlisted];
                    }
                }
            }),
        ),
        ("pairs are not found", Box::new(|index| index.pairs.clear())),
        (
            "a pick takes the first",
            Box::new(|index| {
                for entry in &mut index.entries {
                    for target in entry.targets.iter_mut().filter(|target| target.to > 1) {
                        target.to = 1;
                    }
                }
            }),
        ),
        (
            "a re-entry is a loop",
            Box::new(|index| {
                change(index, |action| {
                    if action.next_of() == Some(Next::ReEnter) {
                        let (outcome, reason) = (Outcome::Dropped as i8, Reason::RoutingLoop as i8);
                        *action = Action { outcome, reason, step: 2, flags: 0 };
                    }
                });
            }),
        ),
        (
            "names without an entry have no route",
            Box::new(|index| {
                let (outcome, reason) = (Outcome::Delayed as i8, Reason::NoRoute as i8);
                let first = index.default_slot(0) as usize;
                let actions = [Action { outcome, reason, step: 7, flags: 0 }; 3];
                index.entries[first..].iter_mut().for_each(|entry| entry.actions = actions);
            }),
        ),
        ("no name without an entry is known", Box::new(|index| index.omitting_sources.fill(false))),
        ("no name is omitted", Box::new(|index| index.omitted_names = BloomFilter::default())),
        (
            "addresses in names are not read",
            Box::new(|index| {
                change(index, |action| {
                    if action.next_of() == Some(Next::MaybeAddress) {
                        *action = Action { flags: action.flags, ..Action::next(Next::Pick) };
                    }
                });
            }),
        ),
        (
            "a disabled database sends",
            Box::new(|index| {
                let [enabled, disabled] = [0, 2].map(|source| index.default_slot(source) as usize);
                index.entries[disabled].actions = index.entries[enabled].actions;
            }),
        ),
        (
            "messages from outside start here",
            Box::new(replaced(|action| &mut action.outcome, Outcome::Forward as i8, Outcome::Remote as i8)),
        ),
        (
            "nothing is dropped",
            Box::new(replaced(|action| &mut action.outcome, Outcome::Dropped as i8, Outcome::Delayed as i8)),
        ),
        (
            "a reply is like any message",
            Box::new(replaced(|action| &mut action.reason, Reason::Reply as i8, Reason::Matched as i8)),
        ),
        ("step 3 is step 2", Box::new(replaced(|action| &mut action.step, 3, 2))),
    ]
}

#[test]
fn planted_bugs_are_found() {
    for (bug, plant) in bugs() {
        assert!(first_disagreement(plant).is_some(), "not found: {bug}");
    }
}

/// With too many databases and services, names without a route are left to the rules, and others are not, those with a
/// route in `msdb` included.
#[test]
fn names_beyond_the_limit_are_left_to_the_rules() {
    let (databases, services) = (300, 1_000);
    let mut builder = CatalogBuilder::new(Seed([5, 6]), Settings::default()).expect("valid settings");
    for number in 0..databases {
        let name = if number == databases - 1 { "msdb".to_owned() } else { format!("D{number}") };
        builder.database(number, name.as_bytes(), None, true).expect("a valid database");
        for (row, service) in [(0, Some(&b"//a/One"[..])), (1, None)] {
            let input = RouteInput {
                database: Some(name.as_bytes()),
                name: b"route",
                route_id: None,
                service,
                broker: None,
                expires: NEVER,
                address: if row == 0 { b"TCP://one" } else { b"LOCAL" },
                mirror: None,
            };
            builder.route(2 * number + row, input).expect("a valid route");
        }
    }
    builder.finish_routes().expect("unique route ids");
    for service in 0..services {
        builder.service(service, b"D7", format!("//service/{service}").as_bytes()).expect("a known database");
    }
    let options = Options { tie_break: TieBreak::First, pending_request: PendingRequest::Continue };
    let index = RouteIndex::new(Arc::new(builder.finish()), options, Seed([7, 8]));
    for (database, is_compiled) in [(0, true), (databases as u16 - 1, false)] {
        let names = ["//a/One", "//service/999"];
        let mut block =
            Block { len: 2, names: [&[]; BLOCK], sources: [database; BLOCK], has_broker: 0, from_target: 0 };
        (block.names[0], block.names[1]) = (names[0].as_bytes(), names[1].as_bytes());
        let mut answers = Answers::default();
        let conversation = |_| Guid::default();
        index.resolve(&block, NOW, conversation, &mut Stages::default(), &mut Scratch::default(), &mut answers);
        assert_eq!(answers.needs_decide, if is_compiled { 0 } else { 2 });
        assert_eq!(answers.outcomes[0], Outcome::Remote as i8);
        let query = Query {
            name: names[1].as_bytes(),
            broker: None,
            database: Some(database),
            is_initiator: true,
            conversation: None,
        };
        let decision = index.decide(&query, NOW);
        assert_eq!((decision.outcome, decision.database), (Outcome::Local, index.catalog().database(b"D7")));
    }
}
