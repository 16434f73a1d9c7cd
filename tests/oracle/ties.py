"""R24: the order of the candidates, and the pick among them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from tests.oracle.tables import Tables
from tests.oracle.tie_break import Candidate, HashNumber, pick_by_turn
from tests.oracle.world import Conversation, Route


class Ties(Tables):
    """Breaks ties."""

    number: HashNumber | None = None
    """R24: what the earlier picks of the conversation left of its hash."""

    def start_picking(self, conversation: Conversation) -> None:
        """R24: each conversation starts with the hash of its id."""
        id_ = conversation.conversation_id
        self.number = None if id_ is None else HashNumber(id_)

    def pick(self, candidates: Sequence[Candidate], conversation: Conversation, turn: Hashable) -> Candidate:
        """R24: by a stable hash of the conversation id, by turns, or the first."""
        if self.tie_break == "hash":
            assert self.number is not None, "hash requires a conversation id"
            return self.number.pick(candidates)
        if self.tie_break == "round_robin" and turn is not None:
            return pick_by_turn(candidates, self.turns, turn)
        return candidates[0]

    def by_route_id(self, routes: Sequence[Route]) -> list[Route]:
        """R24: orders routes by route id (the implied route of step 6, which has none, is the only one)."""
        return sorted(routes, key=lambda route: route.route_id or 0)
