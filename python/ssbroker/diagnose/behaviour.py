"""Computes every decision that a catalog can make, over all classes of conversations and all tie breaks."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import count, repeat
from operator import getitem
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute

from ssbroker._arrow import without_views
from ssbroker.catalog.catalog import Catalog
from ssbroker.diagnose import catalog_tables
from ssbroker.diagnose.catalog_tables import BROKER_CONFIGURATION, MSDB, TRANSPORT, RouteRow, Tables, encoded
from ssbroker.router import PendingRequest, Router

_OF_ROUTES: Final = ("match_step", "route_id")
_COLUMNS: Final = (
    "outcome",
    "reason",
    *_OF_ROUTES,
    "next_hop_address",
    "mirror_address",
    "target_database",
    "broker_instance",
)

Place = tuple[str | None, bool]
"""Where a conversation began, None from outside; and whether the initiator sends."""
TargetKey = tuple[str, bytes | None]
"""For which service, and with which broker id; such a pair stands for all that get the same answers."""


class Question(NamedTuple):
    """One conversation, but for its id."""

    database: str | None
    """Where it began; None from outside."""
    service: str
    broker: bytes | None = None
    is_initiator: bool = True


class Answer(NamedTuple):
    """One decision that may be taken."""

    outcome: str
    reason: str
    match_step: int | None
    route_id: int | None
    next_hop: str | None
    mirror: str | None
    target_database: str | None
    broker: bytes | None


def decisions_of(router: Router, place: Place, classes: Sequence[TargetKey], now: datetime) -> pa.RecordBatch:
    """What the router decides about each of some questions.

    Args:
        router: The router.
        place: Where all of them come from.
        classes: What each is for.
        now: The moment at which routes expire.

    Returns:
        The decisions, in the schema of `schemas.DECISIONS`.
    """
    database, is_initiator = place
    asked: dict[str, Any] = {
        "database": pa.repeat(pa.scalar(database, pa.string()), len(classes)),
        "to_service_name": pa.array([service for service, _ in classes], pa.string()),
        "to_broker_instance": pa.array([broker for _, broker in classes], pa.binary(16)),
        "is_initiator": pa.repeat(is_initiator, len(classes)),
    }
    return router.route(pa.record_batch(asked), now=now)


class Answers:
    """The sets of answers that questions get, each kept once and numbered: most questions of an instance get equal ones.

    Args:
        with_routes: Whether answers say by which step and route.
    """

    def __init__(self, *, with_routes: bool) -> None:
        self.sets: Final[list[tuple[Answer, ...]]] = []
        """Every set by its number."""
        self._numbers: Final[dict[tuple[Answer, ...], int]] = {}
        self._columns: Final = [name for name in _COLUMNS if with_routes or name not in _OF_ROUTES]
        self._with_routes: Final = with_routes

    def number(self, answers: tuple[Answer, ...]) -> int:
        """The number of a set."""
        number = self._numbers.setdefault(answers, len(self.sets))
        if number == len(self.sets):
            self.sets.append(answers)
        return number

    def numbers(self, decisions: pa.RecordBatch, repeats: Sequence[int]) -> list[int]:
        """The number of the set for each question, which was asked in so many rows one after the other."""
        columns = [encoded(decisions.column(name)) for name in self._columns]
        rows = list(zip(*(indices for indices, _ in columns), strict=True))
        met = _Met(self, [words for _, words in columns], with_routes=self._with_routes)
        if len(rows) == len(repeats):
            return list(map(met.__getitem__, rows))
        found = []
        first = 0
        for times in repeats:
            if times == 1:
                found.append(met[rows[first]])
            else:
                each = (self.sets[met[row]][0] for row in rows[first : first + times])
                found.append(self.number(tuple(dict.fromkeys(each))))
            first += times
        return found


class _Met(dict[tuple[int, ...], int]):
    """The number of the set that holds one decision alone, by the places of its words; worked out when it is first met."""

    def __init__(self, answers: Answers, words: list[list[Any]], *, with_routes: bool) -> None:
        super().__init__()
        self._answers = answers
        self._words = words
        self._with_routes = with_routes

    def __missing__(self, row: tuple[int, ...]) -> int:
        outcome, reason, *rest = map(getitem, self._words, row)
        of_route = () if self._with_routes else (None, None)
        self[row] = number = self._answers.number((Answer(outcome, reason, *of_route, *rest),))
        return number


pc: Any = pyarrow.compute  # its stubs know too little of it
BATCH_ROWS: Final = 1 << 16
_NONE: Final[dict[bytes | None, int]] = {}


class Behaviour:
    """What one instance does.

    Args:
        catalog: The instance.
        now: The moment at which routes expire.
        pending_request: What a pending request for routing information does to step 4.
        rows: The catalog's rows; read from it if left out.
        with_routes: Whether answers say by which step and route. Without, most names get equal answers, which are kept once.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        now: datetime,
        pending_request: PendingRequest = "continue",
        rows: Tables | None = None,
        with_routes: bool = False,
    ) -> None:
        self.now: Final = now
        self.tables: Final = catalog_tables.read(catalog) if rows is None else rows
        self.own_addresses: Final = frozenset(catalog.addresses)
        self._arriving: Final = Router(catalog, tie_break="round_robin", pending_request=pending_request)
        live = [route for route in self.tables.routes if route.lifetime is None or route.lifetime > now]
        self._named: Final = _counted(live)
        self._wild: Final = Counter(route.database for route in live if route.service is None and route.broker is None)
        self._transport: Final = {
            route.database for route in live if route.address == TRANSPORT and route.service is None
        }
        self._back: Final = {
            route.database
            for route in live
            if route.database != MSDB and (route.address in self.own_addresses or route.address == TRANSPORT)
        }
        # Where no route leads back, own addresses change nothing.
        self._leads_back: Final = any(
            route.address in self.own_addresses or (route.address == TRANSPORT and self.own_addresses) for route in live
        )
        self._begun: Final = (
            Router(_without_addresses(catalog), tie_break="round_robin", pending_request=pending_request)
            if self._leads_back
            else self._arriving
        )
        enabled = {name for name, row in self.tables.databases.items() if row.enabled}
        self._hosts: Final = {
            name: sum(database in enabled for database in where) for name, where in self.tables.hosts.items()
        }
        everywhere = {*self._hosts, *catalog.pending_requests}
        self.in_play: Final[dict[str, frozenset[str]]] = {
            database: frozenset(everywhere.union(*(self._named[table] for table in self._read_from(database))))
            for database in self.tables.databases
        }
        """The names that each table, or the instance, knows; every other is treated like every other."""
        self._own_ids: Final = frozenset(row.broker for row in self.tables.databases.values() if row.broker)
        names = (f"any other service{'.' * dots}" for dots in count())
        self.other: Final = next(name for name in names if not any(name in each for each in self.in_play.values()))
        """A name that nothing of the instance knows."""
        ids = self._own_ids | {route.broker for route in self.tables.routes}
        fresh = (number.to_bytes(16, "big") for number in count(0xFFFE << 112))
        self.other_broker: Final = next(broker for broker in fresh if broker not in ids)
        """A broker id that nothing of the instance knows."""
        self._answers: Final = Answers(with_routes=with_routes)
        self._known: Final[defaultdict[Place, dict[TargetKey, int]]] = defaultdict(dict)

    @property
    def answers(self) -> Sequence[tuple[Answer, ...]]:
        """The sets of answers by the numbers that `number` and `learn` give; what names an id that nothing here knows has `other_broker`."""
        return self._answers.sets

    def begun(
        self, database: str, service: str, broker: bytes | None = None, *, is_initiator: bool = True
    ) -> tuple[Answer, ...]:
        """What may happen to a conversation that begins in `database`, which the instance has."""
        return self.ask([Question(database, service, broker, is_initiator)])[0]

    def arriving(self, service: str, broker: bytes | None = None, *, is_initiator: bool = True) -> tuple[Answer, ...]:
        """What may happen to a message from outside."""
        return self.ask([Question(None, service, broker, is_initiator)])[0]

    def ask(self, questions: Sequence[Question]) -> list[tuple[Answer, ...]]:
        """Every decision that may be taken on each question; one answer where no tie is to be broken."""
        by_place: defaultdict[Place, dict[TargetKey, None]] = defaultdict(dict)
        alike = [self.alike(question) for question in questions]
        for database, service, broker, is_initiator in alike:
            by_place[database, is_initiator][service, broker] = None
        for place, classes in by_place.items():
            self._known_to(place, list(classes))
        found = []
        for question, (database, service, broker, is_initiator) in zip(questions, alike, strict=True):
            answers = self.answers[self._known[database, is_initiator][service, broker]]
            found.append(_renamed(answers, broker, question.broker))
        return found

    def number(self, place: Place, service: str, broker: bytes | None) -> int:
        """The number of the set of answers for one question, asked if it has not been."""
        class_ = self._class(place, service, broker)
        known = self._known[place].get(class_)
        return self._known_to(place, [class_])[0] if known is None else known

    def learn(
        self, place: Place, ids: Mapping[str, Collection[bytes | None]], *, reading: Collection[str] = ()
    ) -> Iterator[tuple[TargetKey, int]]:
        """Asks in one go for all names in play, each with the ids that come with it.

        Args:
            place: Where the conversations come from.
            ids: The broker ids that come with each name; names without any are not asked for.
            reading: The names that may begin with an address.

        Returns:
            Each name with each of its ids, and the number of its set of answers.
        """
        table = MSDB if place[0] is None else place[0]
        names = sorted(self.in_play[table])
        if self.asks_names(table):
            names += [name for name in reading if name not in self.in_play[table]]
        first, *rest = (self._named[each] for each in self._read_from(table))
        others = [(self.other, broker) for broker in (None, self.other_broker, *sorted(self._own_ids))]
        classes = {class_: number for number, class_ in enumerate(others)}
        asked: list[TargetKey] = []
        places: list[int] = []
        for service in names:
            known = first.get(service, _NONE)
            for further in rest:
                known = known | further.get(service, _NONE)
            for broker in ids.get(service, ()):
                exact = broker is None or broker in known or broker in self._own_ids
                asked.append((service, broker))
                stand_in = asked[-1] if exact else (service, self.other_broker)
                places.append(classes.setdefault(stand_in, len(classes)))
        numbers = self._numbers(place, list(classes))
        self._known[place].update(zip(others, numbers, strict=False))
        return zip(asked, map(numbers.__getitem__, places), strict=True)

    def picks(self, place: Place, classes: Sequence[TargetKey]) -> set[int]:
        """The routes that are picked first, by route id, for questions that each stand for a class.

        Where a conversation comes back to the instance (R41) is not followed.
        """
        found: set[int] = set()
        for part, repeats in self._parts(place, classes):
            decided = decisions_of(self._begun, place, _repeated(part, repeats), self.now)
            found.update(pc.unique(pc.drop_null(decided.column("route_id"))).to_pylist())
        return found

    def alike(self, question: Question) -> Question:
        """The question that stands for all that get the same answers."""
        database, service, broker, is_initiator = question
        return Question(database, *self._class((database, is_initiator), service, broker), is_initiator)

    def asks_names(self, table: str) -> bool:
        """Whether a name that is not in play may matter in a table, because it may hold an address."""
        return table in self._transport or (table in self._back and MSDB in self._transport)

    def _class(self, place: Place, service: str, broker: bytes | None) -> TargetKey:
        table = MSDB if place[0] is None else place[0]
        if service not in self.in_play[table] and not (self.asks_names(table) and may_hold_address(service)):
            service = self.other
        if broker is not None and broker not in self._own_ids:
            named = (self._named[each].get(service, _NONE) for each in self._read_from(table))
            if not any(broker in each for each in named):
                broker = self.other_broker
        return service, broker

    def _read_from(self, database: str) -> tuple[str, ...]:
        """The tables that may be read for what begins in a database."""
        return (database, MSDB) if database in self._back else (database,)

    def _known_to(self, place: Place, classes: Sequence[TargetKey]) -> list[int]:
        """The numbers for some classes, which are kept."""
        known = self._known[place]
        fresh = [each for each in dict.fromkeys(classes) if each not in known]
        if fresh:
            known.update(zip(fresh, self._numbers(place, fresh), strict=True))
        return [known[each] for each in classes]

    def _numbers(self, place: Place, classes: Sequence[TargetKey]) -> list[int]:
        """Asks the router."""
        router = self._arriving if place[0] is None else self._begun
        numbers: list[int] = []
        for part, repeats in self._parts(place, classes):
            decided = decisions_of(router, place, _repeated(part, repeats), self.now)
            numbers += self._answers.numbers(decided, repeats)
        if self._leads_back and place[0] is not None:
            self._come_back(place, classes, numbers)
        return numbers

    def _come_back(self, place: Place, classes: Sequence[TargetKey], numbers: list[int]) -> None:
        """R41: what is sent to this instance itself is treated as if it came from outside."""
        own = self.own_addresses
        returning = {each for each in set(numbers) if any(answer.next_hop in own for answer in self.answers[each])}
        back = [row for row, number in enumerate(numbers) if number in returning]
        outside = None, place[1]
        arriving = [self._class(outside, *classes[row]) for row in back]
        for row, again, arrived in zip(back, arriving, self._known_to(outside, arriving), strict=True):
            found: dict[Answer, None] = {}
            for answer in self.answers[numbers[row]]:
                if answer.next_hop in own:
                    found.update(dict.fromkeys(_renamed(self.answers[arrived], again[1], classes[row][1])))
                else:
                    found[answer] = None
            numbers[row] = self._answers.number(tuple(found))

    def _parts(self, place: Place, classes: Sequence[TargetKey]) -> Iterator[tuple[Sequence[TargetKey], list[int]]]:
        """Classes, and how often each is asked, as many as make a batch."""
        table = MSDB if place[0] is None else place[0]
        named, hosts, wild = self._named[table], self._hosts, max(1, self._wild[table])
        first = rows = 0
        repeats: list[int] = []
        for number, (service, broker) in enumerate(classes):
            # After how many rows at the latest the turns of this question have come round.
            by_id = named.get(service, _NONE)
            if broker is not None:
                times = by_id.get(broker) or by_id.get(None) or wild
            else:
                routes = (by_id.get(None) or len(by_id) * max(by_id.values())) if by_id else wild
                times = routes * (hosts.get(service) or 1)
            repeats.append(times)
            rows += times
            if rows >= BATCH_ROWS:
                yield classes[first : number + 1], repeats
                first, rows, repeats = number + 1, 0, []
        if repeats:
            yield classes[first:], repeats


def _repeated(classes: Sequence[TargetKey], repeats: Sequence[int]) -> Sequence[TargetKey]:
    if sum(repeats) == len(classes):
        return classes
    return [each for each, times in zip(classes, repeats, strict=True) for _ in range(times)]


def _renamed(answers: tuple[Answer, ...], stand_in: bytes | None, broker: bytes | None) -> tuple[Answer, ...]:
    """The answers with the id itself where the router was asked with another in its place."""
    if stand_in == broker:
        return answers
    return tuple(answer if answer.broker != stand_in else answer._replace(broker=broker) for answer in answers)


def _counted(live: Iterable[RouteRow]) -> defaultdict[str, dict[str, dict[bytes | None, int]]]:
    """How many live routes each table has for each service and broker id."""
    named: defaultdict[str, dict[str, dict[bytes | None, int]]] = defaultdict(dict)
    for database, _, _, service, broker, *_ in live:
        if service is None:
            continue
        by_id = named[database].get(service)
        if by_id is None:
            named[database][service] = {broker: 1}
        else:
            by_id[broker] = by_id.get(broker, 0) + 1
    return named


def _without_addresses(catalog: Catalog) -> Catalog:
    return Catalog(
        catalog.routes,
        catalog.databases,
        catalog.services,
        message_forwarding=catalog.message_forwarding,
        pending_requests=catalog.pending_requests,
    )


def may_hold_address(service: str) -> bool:
    """Whether a name may begin with an address: one that does has a colon and a digit behind it (K2). The router decides."""
    return re.search(r":\d", service) is not None


ANY_NAME: Final = "any service"
ANY_ADDRESS: Final = "TCP://any.invalid:4022/any service"
"""A name that begins with an address, for routes to TRANSPORT."""
_NO_IDS: Final[set[bytes | None]] = set()


def picked(catalog: Catalog, behaviour: Behaviour) -> set[tuple[str, int]]:
    """The routes that some conversation takes, by table and route id.

    A request for routing information may be pending or not, so both are asked. Own addresses play no part in what is picked first.

    Args:
        catalog: The instance.
        behaviour: What it does.

    Returns:
        The routes. Those of a disabled database are not among them: nothing that begins there is routed.
    """
    rows = behaviour.tables
    found = _picked(behaviour)
    if any(route.service == BROKER_CONFIGURATION for route in rows.routes):
        names = {ANY_NAME, ANY_ADDRESS, *rows.hosts, *catalog.pending_requests}
        names |= {route.service for route in rows.routes if route.service is not None}
        waiting = Catalog(
            catalog.routes,
            catalog.databases,
            catalog.services,
            message_forwarding=catalog.message_forwarding,
            pending_requests=sorted(names),
        )
        found |= _picked(Behaviour(waiting, now=behaviour.now, rows=rows))
    return found


def _picked(behaviour: Behaviour) -> set[tuple[str, int]]:
    return {
        (place[0] or MSDB, route_id)
        for place, classes in _asked(behaviour)
        for route_id in behaviour.picks(place, classes)
    }


def _asked(behaviour: Behaviour) -> Iterator[tuple[Place, list[TargetKey]]]:
    """One conversation of every class that each table can tell apart."""
    rows = behaviour.tables
    ids: defaultdict[tuple[str, str], set[bytes | None]] = defaultdict(set)
    for route in rows.routes:
        if route.service is not None and route.broker is not None:
            ids[route.database, route.service].add(route.broker)
    own: set[bytes | None] = {database.broker for database in rows.databases.values()}
    always: set[bytes | None] = {None, behaviour.other_broker}
    reading = {route.database for route in rows.routes if route.address == TRANSPORT}
    for table in rows.databases:
        names = [*sorted(behaviour.in_play[table]), ANY_NAME, *([ANY_ADDRESS] if table in reading else [])]
        classes = [
            (name, broker)
            for name in names
            for broker in always.union(ids.get((table, name), _NO_IDS), own if name in rows.hosts else _NO_IDS)
        ]
        yield (table, True), classes
        if table == MSDB:
            yield (None, True), classes


def preferred(route: RouteRow, rows: Tables, taken: Collection[tuple[str, int]]) -> list[RouteRow]:
    """The routes that are taken where this one could have been: those of the same service and broker id."""
    return [
        other
        for other in rows.routes
        if other.key in taken
        and (other.database, other.service, other.broker) == (route.database, route.service, route.broker)
    ]


SIDE: Final = (
    "outcome",
    "reason",
    "match_step",
    "route_id",
    "next_hop_address",
    "mirror_address",
    "target_database",
)
"""The columns of a decision that are compared. The broker id follows from them and the conversation's own."""


class DecisionSide(NamedTuple):
    """What is decided with one catalog."""

    outcome: str
    reason: str
    match_step: int | None
    route_id: int | None
    next_hop: str | None
    mirror: str | None
    target_database: str | None

    def __str__(self) -> str:
        where = self.target_database if self.outcome == "LOCAL" else self.next_hop
        return f"{self.outcome} {where}" if where is not None else f"{self.outcome} ({self.reason})"


NOT_BEGUN: Final = DecisionSide("NONE", "no such database", None, None, None, None, None)
"""Stands for the decision with a catalog that lacks the database: no conversation is begun there."""


class DecisionPair(NamedTuple):
    """Conversations that are alike, and what is decided with each of two catalogs."""

    database: str | None
    """Where they begin; None from outside."""
    service: str | None
    """None stands for every service that neither catalog knows."""
    before: DecisionSide
    after: DecisionSide


def counted(
    conversations: pa.RecordBatch, before: pa.RecordBatch, after: pa.RecordBatch, *, database: str | None
) -> Counter[DecisionPair]:
    """How many conversations of a batch there are of each pair.

    Args:
        conversations: The columns `database`, which may be left out, and `to_service_name`.
        before: Their decisions with the one catalog.
        after: Their decisions with the other.
        database: Where they begin if there is no such column.

    Returns:
        The numbers.
    """
    columns: dict[str, Any] = {"to_service_name": _plain(conversations.column("to_service_name"))}
    if "database" in conversations.schema.names:
        columns["database"] = _plain(conversations.column("database"))
    for which, decisions in (("before", before), ("after", after)):
        columns.update({f"{which} {name}": _plain(decisions.column(name)) for name in SIDE})
    table = pa.table(columns)
    grouped = table.group_by(list(columns)).aggregate([([], "count_all")])
    found: Counter[DecisionPair] = Counter()
    for row in grouped.to_pylist():
        found[pair({"database": database, **row})] += row["count_all"]
    return found


def pair(row: dict[str, Any]) -> DecisionPair:
    """A pair from its columns: `before outcome`, `after outcome` and so on."""
    before, after = (DecisionSide(*(row[f"{which} {name}"] for name in SIDE)) for which in ("before", "after"))
    return DecisionPair(row["database"], row["to_service_name"], before, after)


def _plain(column: Any) -> Any:
    words = without_views(column)
    return words.dictionary_decode() if pa.types.is_dictionary(words.type) else words


class ConversationClass(NamedTuple):
    """Conversations that both catalogs treat alike among themselves."""

    database: str | None
    """Where they begin; None from outside."""
    service: str | None
    """None for every one that neither catalog knows."""
    broker: bytes | None
    before: tuple[DecisionSide, ...]
    """Every decision that may be taken."""
    after: tuple[DecisionSide, ...]


def classes(
    before: Catalog, after: Catalog, *, moments: tuple[datetime, datetime], pending_request: PendingRequest
) -> Iterator[ConversationClass]:
    """The classes, each once.

    What begins in a database that only one of the catalogs has is `NOT_BEGUN` with the other.

    Args:
        before: The one catalog.
        after: The other.
        moments: The moments at which routes expire, of both.
        pending_request: What a pending request for routing information does to step 4.

    Yields:
        Each class with the decisions of both.
    """
    both = [
        Behaviour(catalog, now=now, pending_request=pending_request, with_routes=True)
        for catalog, now in zip((before, after), moments, strict=True)
    ]
    other = _unknown_to(both)
    other_broker = _unknown_id(both)
    ids: defaultdict[str, set[bytes]] = defaultdict(set)
    own: set[bytes] = set()
    for behaviour in both:
        own |= {row.broker for row in behaviour.tables.databases.values() if row.broker is not None}
        for route in behaviour.tables.routes:
            if route.service is not None and route.broker is not None:
                ids[route.service].add(route.broker)
    for database in (None, *sorted(both[0].tables.databases.keys() | both[1].tables.databases.keys())):
        table = MSDB if database is None else database
        names = sorted(frozenset().union(*(behaviour.in_play.get(table, ()) for behaviour in both)))
        reading = [ANY_ADDRESS] if any(behaviour.asks_names(table) for behaviour in both) else []
        questions = [
            Question(database, name, broker, is_initiator)
            for name in (*names, *reading, other)
            for broker in (None, other_broker, *sorted(ids[name] | own))
            for is_initiator in ((True, False) if database is None and broker in own else (True,))
        ]
        sides = [
            map(_sides, behaviour.ask(questions)) if table in behaviour.tables.databases else repeat((NOT_BEGUN,))
            for behaviour in both
        ]
        for question, old, new in zip(questions, *sides, strict=False):
            service = None if question.service == other else question.service
            yield ConversationClass(database, service, question.broker, old, new)


def _sides(answers: tuple[Answer, ...]) -> tuple[DecisionSide, ...]:
    return tuple(
        dict.fromkeys(
            DecisionSide(
                each.outcome,
                each.reason,
                each.match_step,
                each.route_id,
                each.next_hop,
                each.mirror,
                each.target_database,
            )
            for each in answers
        )
    )


def _unknown_to(both: list[Behaviour]) -> str:
    name = "any other service"
    while any(name in names for behaviour in both for names in behaviour.in_play.values()):
        name += "."
    return name


def _unknown_id(both: list[Behaviour]) -> bytes:
    """An id that neither knows; each has one of its own that the other may know."""
    known = {route.broker for behaviour in both for route in behaviour.tables.routes}
    known |= {row.broker for behaviour in both for row in behaviour.tables.databases.values()}
    return next(
        broker
        for number in range(len(known) + 1)
        if (broker := (0xFFFF << 112 | number).to_bytes(16, "big")) not in known
    )
