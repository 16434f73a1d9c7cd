"""Where conversations may end, over all instances: the answers of each instance as the edges of a graph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

from ssbroker.diagnose import tables
from ssbroker.diagnose.behaviour import Behaviour, may_hold_address
from ssbroker.diagnose.fleets import Fleet
from ssbroker.diagnose.questions import Answer, Class, Place, Question
from ssbroker.routing import PendingRequest

Ending = Literal["DELIVERED", "DELAYED", "DROPPED", "ELSEWHERE", "LOOP"]
"""What may become of a message: in a queue; waiting at its sender; discarded on the way; sent to an address that no instance of the fleet
has; going in circles until its lifetime or its hops are used up."""


class Fate(NamedTuple):
    """One way in which it may end."""

    outcome: Ending
    instance: str | None = None
    """Where; None for a loop, which is everywhere in its circle."""
    database: str | None = None
    """Which took it, where it is delivered."""
    address: str | None = None
    """Where it went, where that is none of the fleet's."""
    reason: str | None = None
    """The decision's."""


LOOP: Final = Fate("LOOP", reason="routing_loop")


Fates = frozenset[Fate]
Node = tuple[str, Question]
Ids = tuple[bytes | None, ...]


class Move(NamedTuple):
    """What an instance may do with any conversation of a class: end it, or hand it on."""

    ends: Fates
    hops: tuple[tuple[str, bytes | None], ...]
    """The instances that it may go to, and the broker id that a conversation without one is bound to."""


class Key(NamedTuple):
    """What a message says that is passed from instance to instance: who forwards it cannot change a signed header."""

    service: str
    broker: bytes | None
    is_initiator: bool


class Ways:
    """All ways through a fleet.

    Args:
        fleet: The instances.
        now: The moment at which routes expire.
        pending_request: What a pending request for routing information does to step 4.
    """

    def __init__(self, fleet: Fleet, *, now: datetime, pending_request: PendingRequest = "continue") -> None:
        self.fleet: Final = fleet
        self._options: Final[dict[str, Any]] = {"now": now, "pending_request": pending_request}
        self._made: Final[dict[str, Behaviour]] = {}
        self._forms: Final[dict[str, str]] = {}
        self._addresses: Final = fleet.addresses
        self.moves: Final[list[Move]] = []
        """Every move by its number."""
        self._numbers: Final[dict[Move, int]] = {}
        self._moved: Final[defaultdict[str, list[int]]] = defaultdict(list)
        self._arrivals: Final[defaultdict[bool, defaultdict[Class, dict[str, int]]]] = defaultdict(
            lambda: defaultdict(dict)
        )
        self._fates: Final[defaultdict[Key, dict[str, Fates]]] = defaultdict(dict)

    def at(self, instance: str) -> Behaviour:
        """What an instance does, made when it is first asked for."""
        if instance not in self._made:
            catalog = self.fleet[instance]
            rows = tables.read(catalog, self._forms)
            self._made[instance] = Behaviour(catalog, rows=rows, **self._options)
        return self._made[instance]

    @cached_property
    def behaviours(self) -> dict[str, Behaviour]:
        """What every instance does."""
        return {instance: self.at(instance) for instance in self.fleet}

    @cached_property
    def ids(self) -> dict[str, Ids]:
        """Every broker id with which a conversation for each name of a route or a database may arrive, and none."""
        found: defaultdict[str, set[bytes | None]] = defaultdict(lambda: {None})
        for behaviour in self.behaviours.values():
            for route in behaviour.tables.routes:
                if route.service is not None:
                    found[route.service].add(route.broker)
        for service, ids in self.ids_of_hosts.items():
            found[service].update(ids)
        return _in_order(found)

    @cached_property
    def ids_of_hosts(self) -> dict[str, Ids]:
        """The broker ids of the databases that have each service, none where it is not known."""
        found: defaultdict[str, set[bytes | None]] = defaultdict(set)
        for behaviour in self.behaviours.values():
            databases = behaviour.tables.databases
            for service, hosts in behaviour.tables.hosts.items():
                found[service].update(databases[host].broker for host in hosts)
        return _in_order(found)

    @cached_property
    def _reading(self) -> list[str]:
        return sorted(filter(may_hold_address, self.ids))

    def learn(self, instance: str, place: Place, ids: Mapping[str, Ids]) -> Iterator[tuple[Class, int]]:
        """Asks an instance in one go for all names in play there, each with some ids; the number of the move for each."""
        behaviour = self.at(instance)
        learnt = behaviour.learn(place, ids, reading=self._reading)
        self._move(instance, len(behaviour.answers) - 1)
        moved = self._moved[instance]
        return ((class_, moved[number]) for class_, number in learnt)

    def prepare(self, *, is_initiator: bool = True) -> None:
        """Asks every instance in one go for all that may arrive there and is not like everything else."""
        arrivals = self._arrivals[is_initiator]
        if arrivals:
            return
        ids = self.ids if is_initiator else self.ids_of_hosts
        for instance in self.fleet:
            for class_, move in self.learn(instance, (None, is_initiator), ids):
                arrivals[class_][instance] = move

    def move(self, instance: str, question: Question) -> Move:
        """What the instance may do with it."""
        database, service, broker, is_initiator = question
        if database is None:
            return self.arriving(instance, Key(service, broker, is_initiator))
        return self.moves[self.numbered(instance, (database, is_initiator), service, broker)]

    def numbered(self, instance: str, place: Place, service: str, broker: bytes | None) -> int:
        """The number of the move for one question."""
        return self._move(instance, self.at(instance).number(place, service, broker))

    def arriving(self, instance: str, key: Key) -> Move:
        """What the instance may do with what arrives there."""
        service, broker, is_initiator = key
        number = self._arrivals[is_initiator].get((service, broker), _NOWHERE).get(instance)
        if number is None:
            number = self.numbered(instance, (None, is_initiator), service, broker)
        return self.moves[number]

    def fates(self, instance: str, question: Question) -> Fates:
        """Every end that a conversation may come to, whichever way ties fall."""
        return self.joined(self.move(instance, question), Key(*question[1:]))

    def joined(self, move: Move, key: Key) -> Fates:
        """Every end that it may come to after a move."""
        if not move.hops:
            return move.ends
        behind = []
        for there, bound in move.hops:
            # Who begins a conversation binds it to the route's id; one that names an id keeps it.
            onward = key if key.broker or not bound else key._replace(broker=bound)
            fates = self._fates[onward]
            if there not in fates:
                self._solve(onward, there)
            behind.append(fates[there])
        return move.ends.union(*behind)

    def forget(self) -> None:
        """Gives back the memory of what was found; what instances answer is kept."""
        self._fates.clear()

    def onward(self, instance: str, question: Question, answer: Answer) -> Fate | Node:
        """Where one answer leads: to an end, or to the next instance."""
        onward = self._onward(instance, answer)
        if isinstance(onward, Fate):
            return onward
        there, bound = onward
        return there, Question(None, question.service, question.broker or bound, question.is_initiator)

    def _onward(self, instance: str, answer: Answer) -> Fate | tuple[str, bytes | None]:
        if answer.outcome == "LOCAL":
            return Fate("DELIVERED", instance, answer.target_database)
        if answer.next_hop is None:
            return Fate("DELAYED" if answer.outcome == "DELAYED" else "DROPPED", instance, reason=answer.reason)
        there = self._addresses.get(answer.next_hop)
        if there is None:
            return Fate("ELSEWHERE", instance, address=answer.next_hop)
        # Who begins it binds it to the route's id; who passes it on cannot change a signed header.
        return there, answer.broker if answer.outcome == "REMOTE" else None

    def _move(self, instance: str, number: int) -> int:
        """The number of the move that a set of answers leads to."""
        moved, answers = self._moved[instance], self.at(instance).answers
        while len(moved) <= number:
            found = dict.fromkeys(self._onward(instance, answer) for answer in answers[len(moved)])
            ends = frozenset(each for each in found if isinstance(each, Fate))
            move = Move(ends, tuple(each for each in found if not isinstance(each, Fate)))
            moved.append(self._numbers.setdefault(move, len(self.moves)))
            if moved[-1] == len(self.moves):
                self.moves.append(move)
        return moved[number]

    def _solve(self, key: Key, start: str) -> None:
        """Ends for everything that can be reached from an instance: first what surely ends, from the ends back; the rest may go in circles."""
        fates = self._fates[key]
        moves: dict[str, Move] = {}
        waiting = [start]
        while waiting:
            instance = waiting.pop()
            if instance in moves or instance in fates:
                continue
            moves[instance] = move = self.arriving(instance, key)
            if move.hops:
                waiting += [there for there, _ in move.hops]
            else:
                fates[instance] = move.ends
        self._settle({instance: move for instance, move in moves.items() if move.hops}, fates)

    @staticmethod
    def _settle(moves: dict[str, Move], fates: dict[str, Fates]) -> None:
        """Ends for instances that pass it on."""
        callers: defaultdict[str, list[str]] = defaultdict(list)
        left: dict[str, int] = {}
        for instance, move in moves.items():
            inner = [there for there, _ in move.hops if there in moves]
            left[instance] = len(inner)
            for there in inner:
                callers[there].append(instance)
        settled = [instance for instance, count in left.items() if count == 0]
        for instance in settled:  # grows while it is walked
            fates[instance] = moves[instance].ends.union(*(fates[there] for there, _ in moves[instance].hops))
            for caller in callers[instance]:
                left[caller] -= 1
                if left[caller] == 0:
                    settled.append(caller)
        _circle({instance: moves[instance] for instance, count in left.items() if count > 0}, callers, fates)


def _in_order(ids: Mapping[str, set[bytes | None]]) -> dict[str, Ids]:
    return {service: tuple(sorted(found, key=lambda broker: broker or b"")) for service, found in ids.items()}


_NOWHERE: Final[dict[str, int]] = {}


def _circle(moves: dict[str, Move], callers: dict[str, list[str]], fates: dict[str, Fates]) -> None:
    """Each of these can come into a circle: what one may end in, all that lead to it may."""
    loop = frozenset((LOOP,))
    found = {
        instance: loop.union(move.ends, *(fates[there] for there, _ in move.hops if there not in moves))
        for instance, move in moves.items()
    }
    waiting = list(moves)
    while waiting:
        instance = waiting.pop()
        for caller in callers[instance]:
            if caller in moves and not found[instance] <= found[caller]:
                found[caller] |= found[instance]
                waiting.append(caller)
    fates.update(found)
