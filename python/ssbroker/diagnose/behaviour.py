"""Everything that an instance may do with a conversation, whichever way ties fall: the native router over classes of equal behaviour.

What a routing table does with a service depends on few things: whether a route of the table or a database of the instance names it, which
broker ids come into play, and whether the name begins with an address. Everything else is one class, of which one name is asked.

The router takes its turns (`round_robin`), and each class is asked as often as its turns can take to come round, so every pick is seen. A
conversation that comes back to its instance (R41) is asked in two parts: the first table without own addresses, then `msdb` as from
outside; so the second pick is independent of the first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Final

from ssbroker.catalog import Catalog
from ssbroker.diagnose import tables
from ssbroker.diagnose.questions import Answer, Question, answers_of, decisions_of
from ssbroker.diagnose.tables import MSDB, TRANSPORT, RouteRow, Tables
from ssbroker.routing import PendingRequest, Router

BATCH_ROWS: Final = 1 << 16


class Behaviour:
    """What one instance does.

    Args:
        catalog: The instance.
        now: The moment at which routes expire.
        pending_request: What a pending request for routing information does to step 4.
        rows: The catalog's rows, where they have been read already.
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
            database: frozenset(
                everywhere.union(*(self._named[table] for table in (database, MSDB)[: 1 + (database in self._back)]))
            )
            for database in self.tables.databases
        }
        """The names that each table, or the instance, knows; every other is treated like every other."""
        self._own_ids: Final = frozenset(row.broker for row in self.tables.databases.values() if row.broker)
        taken = {name for names in self.in_play.values() for name in names}
        self.other: Final = next(name for name in _fresh_names() if name not in taken)
        """A name that nothing of the instance knows."""
        ids = self._own_ids | {route.broker for route in self.tables.routes}
        self.other_broker: Final = next(broker for broker in _fresh_ids() if broker not in ids)
        """A broker id that nothing of the instance knows."""
        self._with_routes: Final = with_routes
        self._known: Final[dict[Question, tuple[Answer, ...]]] = {}
        self._kept: Final[dict[tuple[Answer, ...], tuple[Answer, ...]]] = {}

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
        alike = [self.alike(question) for question in questions]
        missing = [question for question in alike if question not in self._known]
        if missing:
            self._learn(missing)
        return [
            self._known[stand_in]
            if stand_in.broker != self.other_broker
            else tuple(_with_broker(answer, stand_in.broker, question.broker) for answer in self._known[stand_in])
            for stand_in, question in zip(alike, questions, strict=True)
        ]

    def picks(self, questions: Iterable[Question]) -> set[tuple[str, int]]:
        """The routes that are picked first, by table and route id, for questions that each stand for a class.

        Where a conversation comes back to the instance (R41) is not followed.
        """
        found: set[tuple[str, int]] = set()
        for part, repeats in self._parts(questions):
            rows = [question for question, times in zip(part, repeats, strict=True) for _ in range(times)]
            ids = decisions_of(self._begun, rows, self.now).column("route_id").to_pylist()
            found.update(
                (row.database or MSDB, route_id)
                for row, route_id in zip(rows, ids, strict=True)
                if route_id is not None
            )
        return found

    def alike(self, question: Question) -> Question:
        """The question that stands for all that get the same answers."""
        database, service, broker, is_initiator = question
        table = MSDB if database is None else database
        if service not in self.in_play[table] and not (self.asks_names(table) and _may_hold_address(service)):
            service = self.other
        if broker is not None and broker not in self._own_ids and not self._names_id(table, service, broker):
            broker = self.other_broker
        if service is question.service and broker is question.broker:
            return question
        return Question(database, service, broker, is_initiator)

    def asks_names(self, table: str) -> bool:
        """Whether a name that is not in play may matter in a table, because it may hold an address."""
        return table in self._transport or (table in self._back and MSDB in self._transport)

    def _names_id(self, table: str, service: str, broker: bytes) -> bool:
        """Whether a route for the service, in a table that may be read, names the broker id."""
        tables = (table, MSDB) if table in self._back else (table,)
        return any(broker in self._named[each].get(service, ()) for each in tables)

    def _learn(self, questions: Iterable[Question]) -> None:
        """Asks the router, and keeps what it may say."""
        fresh = list(dict.fromkeys(questions))
        begun = [question for question in fresh if question.database is not None]
        again = [Question(None, *question[1:]) for question in begun] if self._leads_back else []
        arriving = dict.fromkeys(self.alike(each) for each in (*again, *fresh) if each.database is None)
        self._route(self._arriving, [each for each in arriving if each not in self._known])
        self._route(self._begun, begun)
        for question in begun if self._leads_back else ():
            if any(answer.next_hop in self.own_addresses for answer in self._known[question]):
                self._known[question] = self._come_back(question)

    def _come_back(self, question: Question) -> tuple[Answer, ...]:
        """R41: what is sent to this instance itself is treated as if it came from outside."""
        found: dict[Answer, None] = {}
        for answer in self._known[question]:
            if answer.next_hop not in self.own_addresses:
                found[answer] = None
                continue
            again = self.alike(Question(None, *question[1:]))
            found.update(
                dict.fromkeys(_with_broker(each, again.broker, question.broker) for each in self._known[again])
            )
        return tuple(found)

    def _route(self, router: Router, questions: Sequence[Question]) -> None:
        for part, repeats in self._parts(questions):
            rows = [question for question, times in zip(part, repeats, strict=True) for _ in range(times)]
            answers = answers_of(router, rows, self.now, with_routes=self._with_routes)
            first = 0
            for question, times in zip(part, repeats, strict=True):
                found = (answers[first],) if times == 1 else tuple(dict.fromkeys(answers[first : first + times]))
                self._known[question] = self._kept.setdefault(found, found)
                first += times

    def _parts(self, questions: Iterable[Question]) -> Iterator[tuple[list[Question], list[int]]]:
        """Questions, and how often each is asked, as many as make a batch."""
        part: list[Question] = []
        repeats: list[int] = []
        rows = 0
        for question in questions:
            part.append(question)
            repeats.append(self._turns(question))
            rows += repeats[-1]
            if rows >= BATCH_ROWS:
                yield part, repeats
                part, repeats, rows = [], [], 0
        if part:
            yield part, repeats

    def _turns(self, question: Question) -> int:
        """After how many rows at the latest the turns of this question have come round."""
        database, service, broker, _ = question
        table = MSDB if database is None else database
        by_id: Mapping[bytes | None, int] = self._named[table].get(service, {})
        if broker is not None:
            return by_id.get(broker) or by_id.get(None) or max(1, self._wild[table])
        routes = max(1, self._wild[table])
        if by_id:
            routes = by_id.get(None) or len(by_id) * max(by_id.values())
        return routes * max(1, self._hosts.get(service, 0))


def _with_broker(answer: Answer, stand_in: bytes | None, broker: bytes | None) -> Answer:
    return answer if answer.broker != stand_in or stand_in == broker else Answer(*answer[:-1], broker)


def _counted(live: Iterable[RouteRow]) -> defaultdict[str, dict[str, Counter[bytes | None]]]:
    """How many live routes each table has for each service and broker id."""
    named: defaultdict[str, dict[str, Counter[bytes | None]]] = defaultdict(dict)
    for route in live:
        if route.service is not None:
            named[route.database].setdefault(route.service, Counter())[route.broker] += 1
    return named


def _without_addresses(catalog: Catalog) -> Catalog:
    return Catalog(
        catalog.routes,
        catalog.databases,
        catalog.services,
        message_forwarding=catalog.message_forwarding,
        pending_requests=catalog.pending_requests,
    )


def _may_hold_address(service: str) -> bool:
    """Whether a name may begin with an address: one that does has a colon and a digit behind it (K2). The router decides."""
    return any(sign == ":" and following.isdecimal() for sign, following in pairwise(service))


def _fresh_names() -> Iterable[str]:
    return (f"any other service{'.' * dots}" for dots in range(1 << 20))


def _fresh_ids() -> Iterable[bytes]:
    return (number.to_bytes(16, "big") for number in range(0xFFFE << 112, 0xFFFF << 112))
