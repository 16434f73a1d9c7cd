"""What the workers of a stream are told: how to put together, how to route, and what may not change while a checkpoint lives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ssbroker.routing import PendingRequest, TieBreak
from ssbroker.spark.columns import Labels
from ssbroker.spark.shipping import Shipped
from ssbroker.spark.streams.catalogs import Source


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """How fragments are put together.

    Attributes:
        in_order: Whether messages wait for those before them.
        max_message_bytes: As of `ssbroker.Reassembler`.
        max_fragments_per_message: The same.
        max_pending_bytes: The same, for each bucket.
        max_pending_age_us: After how long a message that does not grow is dropped, None for never.
        session_keys: The name of the column, or where the keys are.
        acknowledgements: Whether acknowledgements are told.
    """

    in_order: bool
    max_message_bytes: int
    max_fragments_per_message: int | None
    max_pending_bytes: int
    max_pending_age_us: int | None
    session_keys: str | Shipped[dict[bytes, bytes]] | None = field(repr=False)
    acknowledgements: bool


@dataclass(frozen=True, kw_only=True)
class Routing:
    """How messages are routed.

    Attributes:
        source: Where the catalog is.
        tie_break: As of the router.
        pending_request: The same.
        labels: The labels by number.
        names: Where the columns of conversations stand: their names in messages.
        direction: The columns of what goes in order: what follows a message that waits, waits. None where each is for itself.
        max_delayed_bytes: How much may wait for a route in one bucket.
    """

    source: Source
    tie_break: TieBreak
    pending_request: PendingRequest
    labels: Labels
    names: Mapping[str, str]
    direction: tuple[str, ...] | None
    max_delayed_bytes: int


@dataclass(frozen=True, kw_only=True)
class Task:
    """What is done with each bucket: small enough to travel with every task.

    Attributes:
        fixed: The options that must not change while a checkpoint lives, by name.
        carried: The names of the further columns, by their places.
        assembly: How fragments are put together; None where whole rows come.
        routing: How messages are routed, if they are.
        figures: Whether each step tells how large the bucket is.
    """

    fixed: Mapping[str, str | int | bool | None]
    carried: tuple[str, ...]
    assembly: Assembly | None
    routing: Routing | None
    figures: bool
