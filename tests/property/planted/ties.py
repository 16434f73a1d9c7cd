from __future__ import annotations

from collections.abc import Hashable, Sequence

from tests.oracle.routing import Conversation, Database, Oracle, Route
from tests.oracle.tables import Reading
from tests.oracle.tie_break import WORD, Candidate, pick_by_turn, stable_hash


class FirstPicksTheLast(Oracle):
    """R24: `first` takes the last."""

    def pick(self, candidates: Sequence[Candidate], conversation: Conversation, salt: int, turn: Hashable) -> Candidate:
        if self.tie_break == "first":
            return candidates[-1]
        return super().pick(candidates, conversation, salt, turn)


class InRowOrder(Oracle):
    """R24: routes are ordered by row, not by id."""

    def by_route_id(self, routes: Sequence[Route]) -> list[Route]:
        return list(routes)


class IdsAreOrderedByBytes(Oracle):
    """R24: the broker ids of step 3 are ordered by their bytes."""

    def pick(self, candidates: Sequence[Candidate], conversation: Conversation, salt: int, turn: Hashable) -> Candidate:
        if salt % 3 == 0:
            candidates = sorted(candidates, key=str)
        return super().pick(candidates, conversation, salt, turn)


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


class HashByRemainder(Oracle):
    """R24: the remainder of the hash is used instead of the upper part."""

    def pick(self, candidates: Sequence[Candidate], conversation: Conversation, salt: int, turn: Hashable) -> Candidate:
        if self.tie_break == "hash" and conversation.conversation_id is not None:
            return candidates[stable_hash(conversation.conversation_id, salt) % len(candidates)]
        return super().pick(candidates, conversation, salt, turn)


class HashOfThirtyTwoBits(Oracle):
    """R24: the lower half of the hash is used."""

    def pick(self, candidates: Sequence[Candidate], conversation: Conversation, salt: int, turn: Hashable) -> Candidate:
        if self.tie_break == "hash" and conversation.conversation_id is not None:
            lower = stable_hash(conversation.conversation_id, salt) % 2**32
            return candidates[lower * 2**32 * len(candidates) // WORD]
        return super().pick(candidates, conversation, salt, turn)


class OneSaltForAll(Oracle):
    """R24: the same salt is used everywhere."""

    def salt(self, kind: int, reading: Reading) -> int:
        return 0


class NoSaltForReEntry(Oracle):
    """R24: a re-entry does not change the salt."""

    def salt(self, kind: int, reading: Reading) -> int:
        return kind


class SingleCandidatesTakeNoTurn(Oracle):
    """R24: only several candidates take a turn."""

    def pick(self, candidates: Sequence[Candidate], conversation: Conversation, salt: int, turn: Hashable) -> Candidate:
        return super().pick(candidates, conversation, salt, turn if len(candidates) > 1 else None)


class _OtherTurns(Oracle):
    def key(self, turn: tuple[object, ...]) -> Hashable:
        return turn

    def pick(self, candidates: Sequence[Candidate], conversation: Conversation, salt: int, turn: Hashable) -> Candidate:
        if self.tie_break == "round_robin" and isinstance(turn, tuple):
            return pick_by_turn(candidates, self.turns, self.key(turn))
        return super().pick(candidates, conversation, salt, turn)


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
