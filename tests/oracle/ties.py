"""R24: the order of the candidates, and the pick among them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from tests.oracle.tables import Reading, Tables
from tests.oracle.tie_break import SALT_RE_ENTERED, Candidate, pick_by_hash, pick_by_turn
from tests.oracle.world import Conversation, Route


class Ties(Tables):
    """Breaks ties."""

    def pick(self, candidates: Sequence[Candidate], conversation: Conversation, salt: int, turn: Hashable) -> Candidate:
        """R24: picks by a stable hash of the conversation id, by turns, or the first."""
        if self.tie_break == "hash":
            assert conversation.conversation_id is not None, "hash requires a conversation id"
            return pick_by_hash(candidates, conversation.conversation_id, salt)
        if self.tie_break == "round_robin" and turn is not None:
            return pick_by_turn(candidates, self.turns, turn)
        return candidates[0]

    def salt(self, kind: int, reading: Reading) -> int:
        """R24: 0 for the broker id of step 3, 1 for a route, 2 for a database; plus 3 after a re-entry."""
        return kind + SALT_RE_ENTERED if reading.re_entered else kind

    def by_route_id(self, routes: Sequence[Route]) -> list[Route]:
        """R24: orders routes by route id (the implied route of step 6, which has none, is the only one)."""
        return sorted(routes, key=lambda route: route.route_id or 0)
