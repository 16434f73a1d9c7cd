"""The task that is sent to the workers of a stream: the work for each bucket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ssbroker.router import PendingRequest, TieBreak
from ssbroker.spark.decision_codes import Labels
from ssbroker.spark.shared_values import SharedValue
from ssbroker.spark.streams.stream_catalog import StreamCatalog


@dataclass(frozen=True, kw_only=True)
class AssemblySettings:
    """How fragments are reassembled.

    Attributes:
        in_order: Whether messages wait for earlier messages.
        max_message_bytes: See `ssbroker.Reassembler`.
        max_fragments_per_message: See `ssbroker.Reassembler`.
        max_pending_bytes: See `ssbroker.Reassembler`; for each bucket.
        max_pending_age_us: The time after which a message that gets no more fragments is dropped; None for never.
        session_keys: The column with the keys, or a reference to shared keys.
        acknowledgements: Whether acknowledgements are emitted.
    """

    in_order: bool
    max_message_bytes: int
    max_fragments_per_message: int | None
    max_pending_bytes: int
    max_pending_age_us: int | None
    session_keys: str | SharedValue[dict[bytes, bytes]] | None = field(repr=False)
    acknowledgements: bool


@dataclass(frozen=True, kw_only=True)
class RoutingSettings:
    """How messages are routed.

    Attributes:
        catalog: The catalog.
        tie_break: See `Router`.
        pending_request: See `Router`.
        labels: The outcomes and reasons, in the order of their codes.
        names: For each conversation column that routing reads, the name of its column in messages.
        direction: The columns that define a direction, in which messages stay in order; None if rows are independent.
        max_delayed_bytes: The maximum total size of the delayed messages of a bucket.
    """

    catalog: StreamCatalog
    tie_break: TieBreak
    pending_request: PendingRequest
    labels: Labels
    names: Mapping[str, str]
    direction: tuple[str, ...] | None
    max_delayed_bytes: int


@dataclass(frozen=True, kw_only=True)
class StreamTask:
    """The work for each bucket; small enough to be sent with every task.

    Attributes:
        fixed: The options that must not change during the lifetime of a checkpoint, by name.
        extra_names: The names of the extra columns, by position.
        assembly: How fragments are reassembled; None if the input consists of complete rows.
        routing: How messages are routed; None for no routing.
        has_metrics: Whether each step emits the size of its bucket.
    """

    fixed: Mapping[str, str | int | bool | None]
    extra_names: tuple[str, ...]
    assembly: AssemblySettings | None
    routing: RoutingSettings | None
    has_metrics: bool
