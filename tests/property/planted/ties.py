from __future__ import annotations

from collections.abc import Hashable, Sequence
from uuid import UUID

from tests.oracle.routing import Conversation, Database, Decision, Oracle, Route
from tests.oracle.tie_break import WORD, Candidate, HashNumber, pick_by_turn, stable_hash


class FirstPicksTheLast(Oracle):
    """R24: `first` takes the last."""

    def pick(self, candidates: Sequence[Candidate], conversation: Conversation, turn: Hashable) -> Candidate:
        if self.tie_break == "first":
            return candidates[-1]
        return super().pick(candidates, conversation, turn)


class InRowOrder(Oracle):
    """R24: routes are ordered by row, not by id."""

    def by_route_id(self, routes: Sequence[Route]) -> list[Route]:
        return list(routes)


class IdsAreOrderedByBytes(Oracle):
    """R24: the broker ids of step 3 are ordered by their bytes."""

    def pick(self, candidates: Sequence[Candidate], conversation: Conversation, turn: Hashable) -> Candidate:
        if isinstance(turn, tuple) and turn[0] == "broker id":
            candidates = sorted(candidates, key=str)
        return super().pick(candidates, conversation, turn)


class DatabasesInAnyCase(Oracle):
    """R24: databases are ordered by name without regard to case."""

    def hosts(self, service_name: str) -> list[Database]:
        return sorted(super().hosts(service_name), key=lambda database: database.name.lower())


class DatabasesInOrderOfTheCatalog(Oracle):
    """R24: databases are ordered as in the catalog."""

    def hosts(self, service_name: str) -> list[Database]:
        names = [database.name for database in self.world.instance_databases]
        return sorted(super().hosts(service_name), key=lambda database: names.index(database.name))


class DuplicateServicesCountTwice(Oracle):
    """R24: a database listed twice in the table of services counts twice."""

    def hosts(self, service_name: str) -> list[Database]:
        rows = [service.database for service in self.world.services if service.name == service_name]
        return [database for database in super().hosts(service_name) for _ in range(rows.count(database.name))]


class _OtherHash(Oracle):
    number_class: type[HashNumber] = HashNumber

    def start_picking(self, conversation: Conversation) -> None:
        id_ = conversation.conversation_id
        self.number = None if id_ is None else self.number_class(id_)


class _Remainder(HashNumber):
    def pick(self, candidates: Sequence[Candidate]) -> Candidate:
        self.number, position = divmod(self.number, len(candidates))
        return candidates[position]


class HashByRemainder(_OtherHash):
    """R24: the remainder is taken instead of the upper part."""

    number_class = _Remainder


class _LowerHalf(HashNumber):
    def __init__(self, conversation_id: UUID) -> None:
        self.number = stable_hash(conversation_id) % 2**32 * 2**32


class HashOfThirtyTwoBits(_OtherHash):
    """R24: the lower half of the hash is used."""

    number_class = _LowerHalf


class _Unsigned(HashNumber):
    def __init__(self, conversation_id: UUID) -> None:
        self.number = stable_hash(conversation_id)


class HashWithoutASign(_OtherHash):
    """R24: the hash counts from zero."""

    number_class = _Unsigned


class _Whole(HashNumber):
    def pick(self, candidates: Sequence[Candidate]) -> Candidate:
        return candidates[self.number * len(candidates) // WORD]


class EveryPickTakesTheWholeHash(_OtherHash):
    """R24: one conversation takes the same place everywhere."""

    number_class = _Whole


class AReEntryStartsAgain(Oracle):
    """R24: a re-entry starts with the whole hash again."""

    def from_outside(self, conversation: Conversation, *, re_entered: bool) -> Decision:
        self.start_picking(conversation)
        return super().from_outside(conversation, re_entered=re_entered)


class SingleCandidatesTakeNoTurn(Oracle):
    """R24: only several candidates take a turn."""

    def pick(self, candidates: Sequence[Candidate], conversation: Conversation, turn: Hashable) -> Candidate:
        return super().pick(candidates, conversation, turn if len(candidates) > 1 else None)


class _OtherTurns(Oracle):
    def key(self, turn: tuple[object, ...]) -> Hashable:
        return turn

    def pick(self, candidates: Sequence[Candidate], conversation: Conversation, turn: Hashable) -> Candidate:
        if self.tie_break == "round_robin" and isinstance(turn, tuple):
            return pick_by_turn(candidates, self.turns, self.key(turn))
        return super().pick(candidates, conversation, turn)


class OneTurnForAll(_OtherTurns):
    """R24: there is one turn for everything."""

    def key(self, turn: tuple[object, ...]) -> Hashable:
        return 0


class OneTurnForAllClasses(_OtherTurns):
    """R24: the classes of one service share a turn."""

    def key(self, turn: tuple[object, ...]) -> Hashable:
        return (*turn[:2], *turn[3:]) if turn[0] == "route" else turn


class OneTurnForAllIds(_OtherTurns):
    """R24: the broker ids of one service share a turn."""

    def key(self, turn: tuple[object, ...]) -> Hashable:
        return turn[:4] if turn[0] == "route" else turn


class OneTurnForAllTables(_OtherTurns):
    """R24: the tables share a turn."""

    def key(self, turn: tuple[object, ...]) -> Hashable:
        return turn if turn[0] == "database" else (turn[0], *turn[2:])


class OneTurnForAllNamesOfDatabases(_OtherTurns):
    """R24: the databases of all services share a turn."""

    def key(self, turn: tuple[object, ...]) -> Hashable:
        return turn[0] if turn[0] == "database" else turn
