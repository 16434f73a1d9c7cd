"""Rows of others that go one way together (R43): what they count, how long they may take, what is told of them."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from ssbroker.protocol.adjacent.batch import HOPS, WIRE
from ssbroker.protocol.columns import listed
from ssbroker.protocol.events import ForwardedMessageDropped, ForwardedMessageSent
from ssbroker.protocol.retry import SECOND

ROW_BYTES: Final = 512
"""What a row counts beside its values of no fixed length (N21)."""

Key: TypeAlias = tuple[bytes, bool, int, int, bytes]
"""What makes two rows the same: conversation, direction, numbers, and the signature of the header."""

_KEY: Final = (
    "conversation_id",
    "is_initiator",
    "message_sequence_number",
    "fragment_number",
    "header_signature",
)
_VARYING: Final = tuple(field.name for field in WIRE if field.type in (pa.binary(), pa.string()))
_TOLD: Final = (
    "conversation_id",
    "is_initiator",
    "to_service_name",
    "to_broker_instance",
    "from_service_name",
    "from_broker_instance",
    "message_sequence_number",
    "fragment_number",
    "hops_remaining",
    "time_to_live",
    "message_id",
)
_GUIDS: Final = ("conversation_id", "to_broker_instance", "from_broker_instance", "message_id")
_SERVICES: Final = _TOLD.index("message_sequence_number")
_SECONDS_MAX: Final = 2**31 - 1


class Course(NamedTuple):
    """Where rows go, as routing decided."""

    address: str
    mirror_address: str | None = None
    broker_instance: bytes | None = None


NOWHERE: Final = Course("")
"""That of rows that are not passed on."""


def values(rows: pa.Table, column: str) -> list[Any]:
    """The values of a column.

    Args:
        rows: Rows of `WIRE`.
        column: Its name.

    Returns:
        The values.
    """
    return listed(rows[column])


def courses_of(decisions: pa.Table) -> dict[Course, Sequence[int]]:
    """Where rows go; the broker id matters to mirrored routes only, so that without one all rows to an address go together.

    Args:
        decisions: `schemas.DECISIONS`, a row for each.

    Returns:
        The rows of each course; `NOWHERE` is that of those that are not passed on.
    """
    addresses = decisions["next_hop_address"].unique().to_pylist()
    if len(addresses) == 1 and decisions["mirror_address"].null_count == decisions.num_rows:
        return {Course(addresses[0] or ""): range(decisions.num_rows)}
    courses: defaultdict[Course, list[int]] = defaultdict(list)
    names = ("next_hop_address", "mirror_address", "broker_instance")
    for row, (address, mirror, broker) in enumerate(zip(*(values(decisions, name) for name in names), strict=True)):
        if address is None:
            courses[NOWHERE].append(row)
        else:
            courses[Course(address) if mirror is None else Course(address, mirror, broker)].append(row)
    return {**courses}


def keys_of(rows: pa.Table) -> list[Key]:
    """What tells rows from each other.

    Args:
        rows: Rows of `WIRE`.

    Returns:
        The keys.
    """
    return [*zip(*(values(rows, name) for name in _KEY), strict=True)]


def sizes_of(rows: pa.Table) -> list[int]:
    """What rows count against `message_forward_size`.

    Args:
        rows: Rows of `WIRE`.

    Returns:
        Their bytes.
    """
    lengths = (pc.fill_null(pc.binary_length(rows[name]), 0).to_pylist() for name in _VARYING)
    return [ROW_BYTES + sum(each) for each in zip(*lengths, strict=True)]


def hops_after(rows: pa.Table) -> list[int]:
    """How many hops are left once this instance has counted its own; a neighbour cannot give more than there are.

    Args:
        rows: Rows of `WIRE`.

    Returns:
        The hops; at 0 a row goes no further.
    """
    return [max(min(hops, HOPS) - 1, 0) for hops in values(rows, "hops_remaining")]


@dataclass(slots=True)
class Parcel:
    """Rows of others that go one way together.

    Attributes:
        rows: Rows of `WIRE`, as they go on.
        keys: What tells them from each other.
        sizes: What they count.
        since: When they came.
        came_from: The instance that brought them.
        course: Where they go.
        end: How many rows their outbox had taken when it had taken these.
    """

    rows: pa.Table
    keys: list[Key]
    sizes: list[int]
    since: int
    came_from: bytes
    course: Course = NOWHERE
    end: int = 0

    def bound_for(self, course: Course) -> Parcel:
        """The rows with another course."""
        return replace(self, course=course)

    def picked(self, indices: Sequence[int]) -> Parcel:
        """Some of the rows, in the order given. What they do not hold is not kept alive by them."""
        if len(indices) == len(self.keys):
            return self
        return Parcel(
            self.rows.take(pa.array(indices, pa.int64())),
            [self.keys[each] for each in indices],
            [self.sizes[each] for each in indices],
            self.since,
            self.came_from,
            self.course,
        )

    def without(self, indices: Collection[int]) -> Parcel:
        """The rows but for some."""
        return self.picked([each for each in range(len(self.keys)) if each not in indices])

    def consumed(self, *, now: int) -> list[int]:
        """The seconds that each row has been on its way, those here among them."""
        held = max(now - self.since, 0) // SECOND
        return [min(max(each, 0) + held, _SECONDS_MAX) for each in values(self.rows, "time_consumed")]

    def late(self, *, now: int) -> list[int]:
        """The rows whose time to live is over."""
        lives = values(self.rows, "time_to_live")
        return [row for row, (used, life) in enumerate(zip(self.consumed(now=now), lives, strict=True)) if used >= life]

    def deadline(self) -> int:
        """When the time to live of the first row is over."""
        lives: Any = self.rows["time_to_live"].cast(pa.int64())
        left = pc.min(pc.subtract(lives, pa.array(self.consumed(now=self.since), pa.int64()))).as_py()
        return self.since + SECOND * (left or 0)

    def aged(self, *, now: int) -> pa.Table:
        """The rows as they go on now."""
        at = WIRE.get_field_index("time_consumed")
        return self.rows.set_column(at, WIRE.field(at), pa.array(self.consumed(now=now), pa.int32()))

    def view_rows(self, *, now: int) -> Iterator[tuple[Any, ...]]:
        """What `sys.dm_broker_forwarded_messages` shows of them (fact 78)."""
        columns = [values(self.rows, name) for name in _TOLD]
        for *shown, message_id, used in zip(*columns, self.consumed(now=now), strict=True):
            yield (*shown[:_SERVICES], self.course.address, *shown[_SERVICES:], used, message_id)

    def sent(self, *, at: int, next_hop: str) -> Iterator[ForwardedMessageSent]:
        """The events of rows that go on."""
        for told in self._told(range(len(self.keys)), at=at):
            yield ForwardedMessageSent(next_hop_address=next_hop, **told)

    def dropped(self, indices: Collection[int], *, at: int, error: int, text: str) -> Iterator[ForwardedMessageDropped]:
        """The events of rows that go no further."""
        for told in self._told(indices, at=at):
            yield ForwardedMessageDropped(next_hop_address=self.course.address, error=error, text=text, **told)

    def _told(self, indices: Collection[int], *, at: int) -> Iterator[dict[str, Any]]:
        rows = self.rows if len(indices) == len(self.keys) else self.rows.take(pa.array(indices, pa.int64()))
        columns = {name: values(rows, name) for name in _TOLD if name != "is_initiator"}
        consumed = self.consumed(now=at)
        for index, row in zip(indices, zip(*columns.values(), strict=True), strict=True):
            told: dict[str, Any] = dict(zip(columns, row, strict=True))
            told |= {name: _guid(told[name]) for name in _GUIDS}
            yield {"at": at, "time_consumed": consumed[index], **told}


def _guid(value: bytes | None) -> uuid.UUID | None:
    return None if value is None else uuid.UUID(bytes=value)
