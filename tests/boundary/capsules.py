"""Objects that violate the Arrow PyCapsule protocol, as families of cases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from ssbroker import Catalog
from tests.boundary.attempts import CLEAN, Case, Families, try_families
from tests.boundary.malformed import COLUMNS, ROUTER, ROWS, VALID
from tests.routing.conversations import HAS_STREAMS_OF_COLUMNS, NOW, Capsule, ForeignArray, ForeignStream

REFUSED = "MalformedDataError | SchemaError"
NO_CAPSULES = "SchemaError"
ROUTES: Any = pa.record_batch({"name": ["R"], "address": ["LOCAL"]})


class ArrayOf(Capsule):
    """Returns the same object whenever an array is requested."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> Any:
        return self._value


class StreamOf(Capsule):
    """Returns the same object whenever a stream is requested."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> Any:
        return self._value


class ArrayFrom(Capsule):
    """Calls a function whenever an array is requested."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> Any:
        return self._value()


class StreamFrom(Capsule):
    """Calls a function whenever a stream is requested."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> Any:
        return self._value()


class NoArrayMethod:
    """Has an attribute instead of the method for arrays."""

    __arrow_c_array__ = 5


class NoStreamMethod:
    """Has an attribute instead of the method for streams."""

    __arrow_c_stream__ = None


def array_capsules() -> Any:
    """Returns the schema and array capsules of valid conversations."""
    valid: Any = VALID
    return valid.__arrow_c_array__()


def stream_capsule() -> Any:
    """Returns the stream capsule of valid conversations."""
    valid: Any = pa.Table.from_batches([VALID])
    return valid.__arrow_c_stream__()


def wrong_results() -> dict[str, Any]:
    """Values that an object may return instead of capsules."""
    schema, array = array_capsules()
    return {
        "None": None,
        "a number": 5,
        "text": "arrow_array",
        "nothing": (),
        "a schema": (schema,),
        "two numbers": (1, 2),
        "two Nones": (None, None),
        "the wrong order": (array, schema),
        "a schema twice": (schema, schema),
        "a stream twice": (stream_capsule(), stream_capsule()),
        "a schema alone": schema,
        "an array alone": array,
        "a set": {1, 2},
        "a batch": VALID,
    }


def answers() -> Iterator[Case]:
    """Values that are not capsules, or the wrong capsules."""
    for name, answer in wrong_results().items():
        yield Case(f"array: {name}", lambda answer=answer: ROUTER.route(ArrayOf(answer), now=NOW), NO_CAPSULES)  # type: ignore[misc]
        yield Case(f"stream: {name}", lambda answer=answer: ROUTER.route(StreamOf(answer), now=NOW), NO_CAPSULES)  # type: ignore[misc]
    for name, answer in wrong_results().items():
        yield Case(f"catalog, array: {name}", lambda answer=answer: Catalog(ArrayOf(answer)), NO_CAPSULES)  # type: ignore[misc]
        yield Case(f"catalog, stream: {name}", lambda answer=answer: Catalog(StreamOf(answer)), NO_CAPSULES)  # type: ignore[misc]
    for odd in (NoArrayMethod(), NoStreamMethod()):
        yield Case(f"{type(odd).__name__} method", lambda odd=odd: ROUTER.route(odd, now=NOW), "builtin TypeError")  # type: ignore[misc]
        yield Case(f"{type(odd).__name__} method, catalog", lambda odd=odd: Catalog(odd), "builtin TypeError")  # type: ignore[misc]


def twice(make: Callable[[], Any], use: Callable[[Any], object]) -> Callable[[], object]:
    """Uses an object twice; the first use succeeds."""

    def run() -> object:
        made = make()
        use(made)
        return use(made)

    return run


def route(given: Any) -> object:
    """Routes conversations."""
    return ROUTER.route(given, now=NOW)


def consumed() -> Iterator[Case]:
    """Capsules whose data have been moved out."""
    yield Case("an array, routed twice", twice(lambda: ArrayOf(array_capsules()), route), REFUSED)
    yield Case("a stream, routed twice", twice(lambda: StreamOf(stream_capsule()), route), REFUSED)
    rows: Any = pa.chunked_array([ROUTES.to_struct_array()]) if HAS_STREAMS_OF_COLUMNS else pa.table(ROUTES)
    yield Case("a stream, a catalog twice", twice(lambda: StreamOf(rows.__arrow_c_stream__()), Catalog), REFUSED)
    yield Case("an array, a catalog twice", twice(lambda: ArrayOf(ROUTES.__arrow_c_array__()), Catalog), REFUSED)
    kinds: Any = pa.Schema

    def without_schema() -> object:
        schema, array = array_capsules()
        kinds._import_from_c_capsule(schema)
        return route(ArrayOf((schema, array)))

    def without_array() -> object:
        schema, array = array_capsules()
        batches: Any = pa.RecordBatch
        batches._import_from_c_capsule(array_capsules()[0], array)
        return route(ArrayOf((schema, array)))

    def without_stream() -> object:
        stream = stream_capsule()
        readers: Any = pa.RecordBatchReader
        readers._import_from_c_capsule(stream).read_all()
        return route(StreamOf(stream))

    yield Case("a schema", without_schema, REFUSED)
    yield Case("an array", without_array, REFUSED)
    yield Case("a stream", without_stream, REFUSED)
    yield Case("a reader that was read", twice(lambda: pa.table(VALID).to_reader(), route), "ok")


def contradictions() -> Iterator[Case]:
    """Schemas and arrays that do not match."""
    schemas: dict[str, Any] = {
        "more columns": VALID.append_column("message_body", pa.nulls(ROWS)),
        "fewer columns": VALID.select(["to_service_name", "database"]),
        "no column": VALID.select([]),
        "columns of another number of buffers": pa.record_batch({name: pa.array([1] * ROWS) for name in COLUMNS}),
        "lists": pa.record_batch({name: pa.array([[1]] * ROWS) for name in COLUMNS}),
        "structs": pa.record_batch({name: pa.array([{"a": 1}] * ROWS) for name in COLUMNS}),
        "dictionaries": pa.record_batch({name: column.dictionary_encode() for name, column in COLUMNS.items()}),
        "nulls": pa.record_batch({name: pa.nulls(ROWS) for name in COLUMNS}),
        "a single column": COLUMNS["database"],
    }
    for name, other in schemas.items():
        yield Case(
            f"the schema has {name}",
            lambda other=other: route(ArrayOf((other.__arrow_c_array__()[0], array_capsules()[1]))),  # type: ignore[misc]
            REFUSED,
        )
        yield Case(
            f"the array has {name}",
            lambda other=other: route(ArrayOf((array_capsules()[0], other.__arrow_c_array__()[1]))),  # type: ignore[misc]
            REFUSED,
        )


def structs() -> Iterator[Case]:
    """Struct arrays with null rows or columns of another length, and arrays of other types."""
    fields = list(VALID.schema)
    columns = VALID.columns
    masked = pa.StructArray.from_arrays(columns, fields=fields, mask=pa.array([False, True, False]))
    all_null = pa.StructArray.from_arrays(columns, fields=fields, mask=pa.array([True] * ROWS))
    kind = pa.struct(fields)
    bitmap = bytearray(b"\x07")
    counted = pa.Array.from_buffers(kind, ROWS, [pa.py_buffer(bitmap)], children=columns)
    assert counted.null_count == 0
    bitmap[:] = b"\x05"
    shorter = pa.Array.from_buffers(kind, ROWS - 1, [None], children=columns)
    forms: dict[str, Callable[[Any], Any]] = {
        "array": lambda array: array,
        "foreign array": ForeignArray,
    }
    if HAS_STREAMS_OF_COLUMNS:
        forms["foreign stream"] = lambda array: ForeignStream(pa.chunked_array([array]))
    for name, wrap in forms.items():
        # A struct may have fewer rows than its columns; pyarrow converts streams to batches, which may not.
        may_be_shorter = "ok" if name != "foreign stream" else "ok | MalformedDataError"
        yield Case(f"{name}: a row is null", lambda wrap=wrap: route(wrap(masked)), REFUSED)  # type: ignore[misc]
        yield Case(f"{name}: all rows are null", lambda wrap=wrap: route(wrap(all_null)), REFUSED)  # type: ignore[misc]
        yield Case(f"{name}: its bitmap was written to", lambda wrap=wrap: route(wrap(counted)), CLEAN)  # type: ignore[misc]
        yield Case(f"{name}: fewer rows than its columns", lambda wrap=wrap: route(wrap(shorter)), may_be_shorter)  # type: ignore[misc]
        for other in (pa.array([1]), pa.array([[1]]), pa.array(["a"]), pa.nulls(3), pa.array([], pa.string())):
            yield Case(f"{name}: {other.type}", lambda wrap=wrap, other=other: route(wrap(other)), REFUSED)  # type: ignore[misc]


def raising() -> Iterator[Case]:
    """Objects that raise; the caller sees their own error."""

    def fail() -> object:
        raise ValueError("the producer's own")

    def after_first() -> Iterator[pa.RecordBatch]:
        yield VALID
        raise ValueError("the producer's own")

    def stream() -> Any:
        return pa.RecordBatchReader.from_batches(VALID.schema, after_first())

    yield Case("the array", lambda: route(ArrayFrom(fail)), "builtin ValueError")
    yield Case("the stream", lambda: route(StreamFrom(fail)), "builtin ValueError")
    yield Case("a catalog's array", lambda: Catalog(ArrayFrom(fail)), "builtin ValueError")
    yield Case("a catalog's stream", lambda: Catalog(StreamFrom(fail)), "builtin ValueError")
    yield Case("a reader, midway", lambda: route(stream()), "builtin ValueError | MalformedDataError")
    yield Case(
        "a foreign stream, midway", lambda: route(ForeignStream(stream())), "builtin ValueError | MalformedDataError"
    )
    yield Case(
        "a catalog's stream, midway",
        lambda: Catalog(ForeignStream(stream())),
        "builtin ValueError | MalformedDataError",
    )
    other = VALID.select(["database"])
    yield Case(
        "batches of two schemas",
        lambda: route(ForeignStream(pa.RecordBatchReader.from_batches(VALID.schema, iter([VALID, other])))),
        REFUSED,
    )


FAMILIES: Families = {family.__name__: family for family in (answers, consumed, contradictions, structs, raising)}

if __name__ == "__main__":
    try_families(FAMILIES)
