"""The state of a bucket: its byte format, and its parts in Spark's state store."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from ssbroker._arrow import from_ipc, to_ipc
from ssbroker._text import shortened_list
from ssbroker.exceptions import MalformedDataError, OptionError
from ssbroker.spark.arrow_columns import ArrowColumn, pc

MAGIC: Final = b"ssbroker bucket\0"
VERSION: Final = 1

_VERSION: Final = struct.Struct("<H")
_LENGTH: Final = struct.Struct("<Q")
_DIGEST_BYTES: Final = 16
_SECTIONS: Final = 5
_BUCKETS_MAX: Final = 10


@dataclass(frozen=True, kw_only=True)
class BucketState:
    """The state of a bucket.

    Attributes:
        fixed: The options with which the state was created.
        max_pending_age_us: The time after which a message that gets no more fragments is dropped, as of the last step.
        names: For each conversation column that routing reads, the name of its column in `delayed`.
        catalog: The fingerprint of the catalog by which delayed messages were last routed.
        arrivals: The number of messages that have arrived since the first message was delayed.
        extra: The extra columns; None before the first row.
        assembler: The checkpoint of the reassembler, empty before the first fragment.
        waits: The messages that are incomplete or wait for an earlier message (`bucket_step.WAITING_SCHEMA`); None for none.
        delayed: The messages that wait for a route, with `delayed_queue.RETRY_COLUMNS`; None for none.
    """

    fixed: Mapping[str, str | int | bool | None]
    max_pending_age_us: int | None = None
    names: Mapping[str, str]
    catalog: str | None = None
    arrivals: int = 0
    extra: pa.Schema | None = None
    assembler: bytes = b""
    waits: pa.Table | None = None
    delayed: pa.Table | None = None

    def to_bytes(self) -> bytes:
        """Serializes the state: magic, version, five sections with their lengths, and a digest."""
        head = {
            "fixed": dict(self.fixed),
            "max_pending_age_us": self.max_pending_age_us,
            "names": dict(self.names),
            "catalog": self.catalog,
            "arrivals": self.arrivals,
        }
        sections = (
            json.dumps(head, sort_keys=True, separators=(",", ":")).encode(),
            b"" if self.extra is None else self.extra.serialize().to_pybytes(),
            b"" if self.waits is None else to_ipc(self.waits),
            b"" if self.delayed is None else to_ipc(self.delayed),
            self.assembler,
        )
        parts = [MAGIC, _VERSION.pack(VERSION)]
        for section in sections:
            parts += [_LENGTH.pack(len(section)), section]
        return b"".join([*parts, _digest(sections)])

    def with_options(self, fixed: Mapping[str, str | int | bool | None]) -> BucketState:
        """Returns the state if it was created with these options; raises `OptionError` if an option differs."""
        for name, value in fixed.items():
            original = self.fixed.get(name)
            if original != value:
                raise OptionError(
                    f"{name}: this checkpoint was created with {original!r:.80}, but the query now has {value!r:.80}; "
                    "restore the value, or start the query with a new checkpoint"
                )
        return replace(self, fixed=fixed)


def state_from_bytes(data: bytes) -> BucketState:
    """Parses a state after verifying its digest; raises `MalformedDataError` if the state is truncated, altered or from a different version.

    The section `assembler` contains a separate digest, which the reader of the section verifies.

    Examples:
        >>> state_from_bytes(BucketState(fixed={"buckets": 16}, names={}).to_bytes()).fixed
        {'buckets': 16}
    """
    start = len(MAGIC) + _VERSION.size
    if data[: len(MAGIC)] != MAGIC or len(data) < start + _DIGEST_BYTES:
        raise _malformed("wrong header; it was truncated, or is not the state of a stream")
    (version,) = _VERSION.unpack_from(data, len(MAGIC))
    if version != VERSION:
        raise MalformedDataError(
            f"the state of an ssbroker stream in this checkpoint has the format {version}, and this version of ssbroker reads only {VERSION}; "
            "use the version of ssbroker that wrote the checkpoint, or start the query with a new checkpoint"
        )
    end = len(data) - _DIGEST_BYTES
    try:
        sections = _sections(memoryview(data)[start:end])
    except (ValueError, struct.error) as error:
        raise _malformed(f"{error}; it was truncated or altered") from error
    if _digest(sections) != data[end:]:
        raise _malformed("digest mismatch; it was truncated or altered")
    try:
        return _from_sections(*sections)
    except (ValueError, KeyError, TypeError, OSError, OverflowError, struct.error, pa.ArrowException) as error:
        raise _malformed(f"inconsistent contents: {error}") from error


def _sections(rest: memoryview) -> list[memoryview]:
    found = []
    while rest:
        (length,) = _LENGTH.unpack_from(rest)
        if length > len(rest) - _LENGTH.size:
            raise ValueError("a section exceeds the data")
        found.append(rest[_LENGTH.size : _LENGTH.size + length])
        rest = rest[_LENGTH.size + length :]
    if len(found) != _SECTIONS:
        raise ValueError(f"{len(found)} sections instead of {_SECTIONS}")
    return found


def _from_sections(
    head: memoryview, extra: memoryview, waits: memoryview, delayed: memoryview, assembler: memoryview
) -> BucketState:
    fields: dict[str, Any] = json.loads(bytes(head))
    return BucketState(
        **fields,
        extra=pa.ipc.read_schema(pa.py_buffer(extra)) if extra else None,
        waits=_read_table(waits),
        delayed=_read_table(delayed),
        assembler=bytes(assembler),
    )


def _read_table(section: memoryview) -> pa.Table | None:
    if not section:
        return None
    rows = from_ipc(section)
    rows.validate()
    return rows


def _digest(sections: Sequence[bytes | memoryview]) -> bytes:
    """Returns the digest of the sections and their lengths; of the last section, only the end is used, which is a digest of the rest."""
    hashed = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for section in sections:
        hashed.update(_LENGTH.pack(len(section)))
    for section in (*sections[:-1], sections[-1][-_DIGEST_BYTES:]):
        hashed.update(section)
    return hashed.digest()


def _malformed(why: str) -> MalformedDataError:
    return MalformedDataError(
        f"the state of an ssbroker stream in this checkpoint is invalid ({why}); restore the checkpoint, or start the query with a new one"
    )


_BITS: Final = 7
_HIGH_BIT: Final = pa.scalar(0x80, pa.uint8())
_LOW_BITS: Final = pa.scalar(0x7F, pa.uint8())


def text_from_bytes(data: bytes) -> str:
    r"""Returns bytes as ASCII text, which has seven bits per character.

    The text begins with characters that each contain the top bits of seven bytes. Then a character for each byte contains
    the other seven bits of that byte.

    Examples:
        >>> text_from_bytes(b"\x01\x82")
        '\x02\x01\x02'
    """
    size = -(-len(data) // _BITS)
    whole = _uint8_array(data)
    high_bits = _uint8_array(bytes(size))
    for place in range(_BITS):
        part = whole.slice(place * size, size)
        bits = pc.shift_right(pc.bit_wise_and(part, _HIGH_BIT), pa.scalar(_BITS - place, pa.uint8()))
        if len(bits) < size:
            bits = pa.concat_arrays([bits, _uint8_array(bytes(size - len(bits)))])
        high_bits = pc.bit_wise_or(high_bits, bits)
    return b"".join([_bytes(high_bits), _bytes(pc.bit_wise_and(whole, _LOW_BITS))]).decode("ascii")


def bytes_from_text(text: str) -> bytes:
    r"""Inverts `text_from_bytes`; raises `MalformedDataError` for text that is not ASCII. The state's digest detects other damage.

    Examples:
        >>> bytes_from_text(text_from_bytes(b"\x01\x82"))
        b'\x01\x82'
    """
    try:
        whole = _uint8_array(text.encode("ascii"))
    except ValueError as error:
        raise _malformed(str(error)) from error
    size = -(-len(whole) // (_BITS + 1))
    high_bits, low_bits = whole.slice(0, size), whole.slice(size)
    parts = []
    for place in range(_BITS):
        part = low_bits.slice(place * size, size)
        bits = pc.bit_wise_and(high_bits.slice(0, len(part)), pa.scalar(1 << place, pa.uint8()))
        parts.append(_bytes(pc.bit_wise_or(part, pc.shift_left(bits, pa.scalar(_BITS - place, pa.uint8())))))
    return b"".join(parts)


def _uint8_array(data: bytes) -> ArrowColumn:
    made: ArrowColumn = pa.Array.from_buffers(pa.uint8(), len(data), [None, pa.py_buffer(data)])
    return made


def _bytes(numbers: ArrowColumn) -> memoryview:
    if not len(numbers):
        return memoryview(b"")
    return memoryview(numbers.buffers()[1])[numbers.offset : numbers.offset + len(numbers)]


STATE_VARIABLE: Final = "bucket"
"""The name of the state variable: a map from part numbers to parts."""

PART_CHARACTERS = 16 << 20
_KEY: Final = "part int"
_VALUE: Final = "state string, parts int"


class StateParts:
    """The state of the current bucket in Spark's state store; `handle` is Spark's `StatefulProcessorHandle`."""

    def __init__(self, handle: Any) -> None:
        self._parts: Final = handle.getMapState(STATE_VARIABLE, _KEY, _VALUE)
        self._count = 0

    def get(self) -> bytes | None:
        """Returns the stored state; None if there is none. Must be called before `put` and `clear`."""
        first = self._parts.getValue((0,))
        if first is None:
            self._count = 0
            return None
        start, self._count = first
        rest = [self._parts.getValue((number,))[0] for number in range(1, self._count)]
        return bytes_from_text("".join([start, *rest]))

    def put(self, state: bytes) -> None:
        """Replaces the stored state."""
        whole = text_from_bytes(state)
        count = -(-len(whole) // PART_CHARACTERS)
        for number in range(count):
            part = whole[number * PART_CHARACTERS : (number + 1) * PART_CHARACTERS]
            self._parts.updateValue((number,), (part, count))
        for number in range(count, self._count):
            self._parts.removeKey((number,))

    def clear(self) -> None:
        """Removes the stored state."""
        self._parts.clear()


def join_state_parts(rows: Iterable[tuple[int, int, str, int]]) -> Iterator[tuple[int, bytes]]:
    """Yields buckets and their states from rows of bucket, part number, part and number of parts, in any order.

    Raises `MalformedDataError` if a part is missing.
    """
    found: dict[int, dict[int, str]] = {}
    for bucket, number, part, count in rows:
        parts = found.setdefault(bucket, {})
        parts[number] = part
        if len(parts) == count:
            yield bucket, bytes_from_text("".join(parts[place] for place in range(count)))
            del found[bucket]
    if found:
        buckets = ", ".join(shortened_list(map(str, sorted(found)), _BUCKETS_MAX))
        raise _malformed(f"parts of these buckets are missing: {buckets}")
