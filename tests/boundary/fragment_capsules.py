"""Objects that violate the Arrow PyCapsule protocol, passed as fragments, messages and values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

import ssbroker
from tests.boundary.attempts import Case, Families, try_families
from tests.boundary.capsules import (
    NO_CAPSULES,
    REFUSED,
    ArrayFrom,
    ArrayOf,
    NoArrayMethod,
    NoStreamMethod,
    StreamFrom,
    StreamOf,
    twice,
)
from tests.boundary.capsules import wrong_results as wrong_capsules
from tests.boundary.malformed_fragments import VALID, cut, push_and_checkpoint
from tests.routing.conversations import HAS_STREAMS_OF_COLUMNS, ForeignArray, ForeignStream

USES: dict[str, Callable[[Any], object]] = {"reassembled": push_and_checkpoint, "cut": cut, "digested": ssbroker.md5}
VALUES: Any = pa.array([b"a", b"b"])


def answers() -> Iterator[Case]:
    """Values that are not capsules, or the wrong capsules."""
    for use_name, use in USES.items():
        for name, answer in wrong_capsules().items():
            yield Case(f"{use_name}, array: {name}", lambda use=use, answer=answer: use(ArrayOf(answer)), NO_CAPSULES)  # type: ignore[misc]
            yield Case(f"{use_name}, stream: {name}", lambda use=use, answer=answer: use(StreamOf(answer)), NO_CAPSULES)  # type: ignore[misc]
        for odd in (NoArrayMethod(), NoStreamMethod()):
            yield Case(f"{use_name}: {type(odd).__name__}", lambda use=use, odd=odd: use(odd), "builtin TypeError")  # type: ignore[misc]


def consumed() -> Iterator[Case]:
    """Capsules whose data have been moved out."""
    given: dict[str, Any] = {"reassembled": VALID, "cut": VALID, "digested": VALUES}
    for name, value in given.items():
        use = USES[name]
        yield Case(
            f"an array, {name} twice",
            twice(lambda value=value: ArrayOf(value.__arrow_c_array__()), use),  # type: ignore[misc]
            REFUSED,
        )
        if name == "digested" and not HAS_STREAMS_OF_COLUMNS:
            continue
        stream: Any = pa.chunked_array([value]) if name == "digested" else pa.Table.from_batches([value])
        yield Case(
            f"a stream, {name} twice",
            twice(lambda stream=stream: StreamOf(stream.__arrow_c_stream__()), use),  # type: ignore[misc]
            REFUSED,
        )


def structs() -> Iterator[Case]:
    """Struct arrays with null rows, and arrays of other types."""
    fields = list(VALID.schema)
    masked = pa.StructArray.from_arrays(VALID.columns, fields=fields, mask=pa.array([False, True, False]))
    others: tuple[Any, ...] = (pa.array([1]), pa.array([[1]]), pa.array(["a"]), pa.nulls(3), pa.array([], pa.string()))
    forms: list[Callable[[Any], Any]] = [lambda array: array, ForeignArray]
    if HAS_STREAMS_OF_COLUMNS:
        forms.append(lambda array: ForeignStream(pa.chunked_array([array])))
    for name in ("reassembled", "cut"):
        use = USES[name]
        for wrap in forms:
            for other in (masked, *others):
                yield Case(
                    f"{name}: {other.type}",
                    lambda use=use, wrap=wrap, other=other: use(wrap(other)),  # type: ignore[misc]
                    REFUSED,
                )


def raising() -> Iterator[Case]:
    """Objects that raise; the caller sees their own error."""

    def fail() -> object:
        raise ValueError("the producer's own")

    def after_first() -> Iterator[pa.RecordBatch]:
        yield VALID
        raise ValueError("the producer's own")

    def stream() -> Any:
        return pa.RecordBatchReader.from_batches(VALID.schema, after_first())

    for name, use in USES.items():
        yield Case(f"the array, {name}", lambda use=use: use(ArrayFrom(fail)), "builtin ValueError")  # type: ignore[misc]
        yield Case(f"the stream, {name}", lambda use=use: use(StreamFrom(fail)), "builtin ValueError")  # type: ignore[misc]
    midway = "builtin ValueError | MalformedDataError"
    for name in ("reassembled", "cut"):
        use = USES[name]
        yield Case(f"a reader, midway, {name}", lambda use=use: use(stream()), midway)  # type: ignore[misc]
        yield Case(f"a foreign stream, midway, {name}", lambda use=use: use(ForeignStream(stream())), midway)  # type: ignore[misc]


FAMILIES: Families = {family.__name__: family for family in (answers, consumed, structs, raising)}

if __name__ == "__main__":
    try_families(FAMILIES)
