"""R1 to R6: the routes that are read, and equality of names and addresses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from tests.oracle.address import normal_address
from tests.oracle.tie_break import Turns
from tests.oracle.world import Route, World


@dataclass(frozen=True)
class Reading:
    """A reading of one routing table: its database, and whether the conversation counts as one from outside."""

    table: str
    from_outside: bool
    re_entered: bool = False


@dataclass(frozen=True)
class Found:
    """The result of *Find*: its last step, and the routes that this step yields."""

    step: int
    routes: Sequence[Route] = ()


class Tables:
    """A world at one time, and its tables.

    Args:
        world: The instance.
        now: The time for expiry.
        tie_break: `hash`, `round_robin` or `first`.
        pending_request: `continue` or `delay`.
        turns: The turns of `round_robin`, which continue from there.
    """

    def __init__(
        self,
        world: World,
        *,
        now: datetime,
        tie_break: str = "hash",
        pending_request: str = "continue",
        turns: Turns | None = None,
    ) -> None:
        self.world = world
        self.now = now
        self.tie_break = tie_break
        self.pending_request = pending_request
        self.turns = Turns() if turns is None else turns

    def live_routes(self, table: str) -> list[Route]:
        """R1, R3: returns the routes of one table without the expired ones."""
        return [route for route in self.world.tables[table] if not self.is_expired(route)]

    def is_expired(self, route: Route) -> bool:
        """R3: a route is expired when `now >= lifetime`."""
        return route.lifetime is not None and self.now >= route.lifetime

    def same_name(self, one: str | None, other: str | None) -> bool:
        """R5: names compare byte by byte."""
        return one is not None and other is not None and one.encode() == other.encode()

    def normalize(self, address: str) -> str:
        """R6: two addresses are the same if their normal forms are equal."""
        return normal_address(address)
