"""What is kept of a bucket, as bytes: a magic, a version, the sections with their lengths, a digest (U3).

The last section, by far the largest, is the reassembler's checkpoint, which ends in a digest of its own; only that one is digested again.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from ssbroker.exceptions import MalformedDataError, OptionError
from ssbroker.spark.streams import cells

MAGIC: Final = b"ssbroker bucket\0"
VERSION: Final = 1

_VERSION: Final = struct.Struct("<H")
_LENGTH: Final = struct.Struct("<Q")
_DIGEST_BYTES: Final = 16
_SECTIONS: Final = 5


@dataclass(frozen=True, kw_only=True)
class State:
    """What is kept of a bucket.

    Attributes:
        fixed: The options under which it was begun.
        max_pending_age_us: After how long what does not grow is dropped, as of the last step.
        names: Where columns of conversations stand in `delayed`, by their names.
        catalog: The fingerprint of the catalog by which what waits was last routed.
        arrivals: How many messages have come since something waits for a route.
        further: The columns that are carried; None before the first row.
        assembler: The checkpoint of the reassembler, empty before the first fragment.
        waits: What is incomplete or behind a gap: `waiting.WAITS`; None for nothing.
        delayed: What waits for a route: messages and `delayed.TURN`; None for nothing.
    """

    fixed: Mapping[str, str | int | bool | None]
    max_pending_age_us: int | None = None
    names: Mapping[str, str]
    catalog: str | None = None
    arrivals: int = 0
    further: pa.Schema | None = None
    assembler: bytes = b""
    waits: pa.Table | None = None
    delayed: pa.Table | None = None

    def to_bytes(self) -> bytes:
        """The state as it is kept."""
        head = {
            "fixed": dict(self.fixed),
            "max_pending_age_us": self.max_pending_age_us,
            "names": dict(self.names),
            "catalog": self.catalog,
            "arrivals": self.arrivals,
        }
        sections = (
            json.dumps(head, sort_keys=True, separators=(",", ":")).encode(),
            b"" if self.further is None else self.further.serialize().to_pybytes(),
            b"" if self.waits is None else cells.to_ipc(self.waits),
            b"" if self.delayed is None else cells.to_ipc(self.delayed),
            self.assembler,
        )
        parts = [MAGIC, _VERSION.pack(VERSION)]
        for section in sections:
            parts += [_LENGTH.pack(len(section)), section]
        return b"".join([*parts, _digest(sections)])

    def checked(self, fixed: Mapping[str, str | int | bool | None]) -> State:
        """The same, if it was begun under these options.

        Args:
            fixed: The options of now.

        Returns:
            The same.

        Raises:
            OptionError: One of them differs.
        """
        for name, value in fixed.items():
            began = self.fixed.get(name)
            if began != value:
                raise OptionError(
                    f"{name}: this checkpoint began with {began!r:.80}, now it is {value!r:.80}; it stays as it is while the "
                    "checkpoint lives: go on as before, or begin with a new checkpoint"
                )
        return replace(self, fixed=fixed)


def of_bytes(kept: bytes) -> State:
    """Reads what is kept; nothing is believed before the digest is compared. What is wrong with `assembler` its reader finds.

    Args:
        kept: What `State.to_bytes` gave.

    Returns:
        The state.

    Raises:
        MalformedDataError: It is cut off, altered or of another version.

    Examples:
        >>> of_bytes(State(fixed={"buckets": 16}, names={}).to_bytes()).fixed
        {'buckets': 16}
    """
    begin = len(MAGIC) + _VERSION.size
    if kept[: len(MAGIC)] != MAGIC or len(kept) < begin + _DIGEST_BYTES:
        raise _malformed("it does not begin as one, or is cut off")
    (version,) = _VERSION.unpack_from(kept, len(MAGIC))
    if version != VERSION:
        raise _malformed(
            f"it was kept by another version of ssbroker: its format is {version}, this version reads {VERSION}"
        )
    end = len(kept) - _DIGEST_BYTES
    try:
        sections = _sections(memoryview(kept)[begin:end])
    except (ValueError, struct.error) as error:
        raise _malformed(f"it is cut off or altered: {error}") from error
    if _digest(sections) != kept[end:]:
        raise _malformed("its digest does not match: it is cut off or altered")
    try:
        return _of_sections(*sections)
    except (ValueError, KeyError, TypeError, OSError, OverflowError, struct.error, pa.ArrowException) as error:
        raise _malformed(f"it contradicts itself: {error}") from error


def _sections(rest: memoryview) -> list[memoryview]:
    found = []
    while rest:
        (length,) = _LENGTH.unpack_from(rest)
        if length > len(rest) - _LENGTH.size:
            raise ValueError("a section is longer than what is there")
        found.append(rest[_LENGTH.size : _LENGTH.size + length])
        rest = rest[_LENGTH.size + length :]
    if len(found) != _SECTIONS:
        raise ValueError(f"it has {len(found)} sections")
    return found


def _of_sections(
    head: memoryview, further: memoryview, waits: memoryview, delayed: memoryview, assembler: memoryview
) -> State:
    told: dict[str, Any] = json.loads(bytes(head))
    return State(
        **told,
        further=pa.ipc.read_schema(pa.py_buffer(further)) if further else None,
        waits=_rows(waits),
        delayed=_rows(delayed),
        assembler=bytes(assembler),
    )


def _rows(section: memoryview) -> pa.Table | None:
    if not section:
        return None
    rows = cells.of_ipc(section)
    rows.validate()
    return rows


def _digest(sections: Sequence[bytes | memoryview]) -> bytes:
    """Of the sections and their lengths, and of the last one only the end, which is the digest of the rest of it."""
    hashed = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for section in sections:
        hashed.update(_LENGTH.pack(len(section)))
    for section in (*sections[:-1], sections[-1][-_DIGEST_BYTES:]):
        hashed.update(section)
    return hashed.digest()


def _malformed(why: str) -> MalformedDataError:
    return MalformedDataError(f"state: this is no state of a stream of ssbroker: {why}")
