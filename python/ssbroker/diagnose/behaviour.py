"""Everything that an instance may do with a conversation, whichever way ties fall: the native router over classes of equal behaviour.

What a routing table does with a service depends on few things: whether a route of the table or a database of the instance names it, which
broker ids come into play, and whether the name begins with an address. Everything else is one class, of which one name is asked.

The router takes its turns (`round_robin`), and each class is asked as often as its turns can take to come round, so every pick is seen. A
conversation that comes back to its instance (R41) is asked in two parts: the first table without own addresses, then `msdb` as from
outside; so the second pick is independent of the first.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import count
from typing import Any, Final

import pyarrow.compute

from ssbroker.catalog import Catalog
from ssbroker.diagnose import tables
from ssbroker.diagnose.questions import Answer, Answers, Class, Place, Question, decisions_of
from ssbroker.diagnose.tables import MSDB, TRANSPORT, RouteRow, Tables
from ssbroker.routing import PendingRequest, Router

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
        self.tables: Final = tables.read(catalog) if rows is None else rows
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
        self._known: Final[defaultdict[Place, dict[Class, int]]] = defaultdict(dict)

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
        by_place: defaultdict[Place, dict[Class, None]] = defaultdict(dict)
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
    ) -> Iterator[tuple[Class, int]]:
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
        asked: list[Class] = []
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

    def picks(self, place: Place, classes: Sequence[Class]) -> set[int]:
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

    def _class(self, place: Place, service: str, broker: bytes | None) -> Class:
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

    def _known_to(self, place: Place, classes: Sequence[Class]) -> list[int]:
        """The numbers for some classes, which are kept."""
        known = self._known[place]
        fresh = [each for each in dict.fromkeys(classes) if each not in known]
        if fresh:
            known.update(zip(fresh, self._numbers(place, fresh), strict=True))
        return [known[each] for each in classes]

    def _numbers(self, place: Place, classes: Sequence[Class]) -> list[int]:
        """Asks the router."""
        router = self._arriving if place[0] is None else self._begun
        numbers: list[int] = []
        for part, repeats in self._parts(place, classes):
            decided = decisions_of(router, place, _repeated(part, repeats), self.now)
            numbers += self._answers.numbers(decided, repeats)
        if self._leads_back and place[0] is not None:
            self._come_back(place, classes, numbers)
        return numbers

    def _come_back(self, place: Place, classes: Sequence[Class], numbers: list[int]) -> None:
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

    def _parts(self, place: Place, classes: Sequence[Class]) -> Iterator[tuple[Sequence[Class], list[int]]]:
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


def _repeated(classes: Sequence[Class], repeats: Sequence[int]) -> Sequence[Class]:
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
