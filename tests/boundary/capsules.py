"""Objects that offer the Arrow PyCapsule protocol and do not keep it, by families of cases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from ssbroker import Catalog
from tests.boundary.attempts import CLEAN, Case, Families, try_families
from tests.boundary.malformed import COLUMNS, GOOD, ROUTER, ROWS
from tests.unit.conversations import NOW, Capsule, ForeignArray, ForeignStream

REFUSED = "MalformedDataError | SchemaError"
NO_CAPSULES = "SchemaError"
ROUTES: Any = pa.record_batch({"name": ["R"], "address": ["LOCAL"]})


class Gives(Capsule):
    """Gives the same thing whenever it is asked for an array."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> Any:
        return self._value


class Streams(Capsule):
    """Gives the same thing whenever it is asked for a stream."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> Any:
        return self._value


class Asks(Capsule):
    """Calls a function whenever it is asked for an array."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> Any:
        return self._value()


class AsksStream(Capsule):
    """Calls a function whenever it is asked for a stream."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> Any:
        return self._value()


class Odd:
    """Has a method that is none."""

    __arrow_c_array__ = 5


class OddStream:
    """Has a method that is none."""

    __arrow_c_stream__ = None


def array_capsules() -> Any:
    """The capsules of the good conversations, schema and array."""
    good: Any = GOOD
    return good.__arrow_c_array__()


def stream_capsule() -> Any:
    """The capsule of the good conversations as a stream."""
    good: Any = pa.Table.from_batches([GOOD])
    return good.__arrow_c_stream__()


def wrong_answers() -> dict[str, Any]:
    """What an object may answer instead of two capsules, or one."""
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
        "a batch": GOOD,
    }


def answers() -> Iterator[Case]:
    """Answers that are no capsules, or the wrong ones."""
    for name, answer in wrong_answers().items():
        yield Case(f"array: {name}", lambda answer=answer: ROUTER.route(Gives(answer), now=NOW), NO_CAPSULES)  # type: ignore[misc]
        yield Case(f"stream: {name}", lambda answer=answer: ROUTER.route(Streams(answer), now=NOW), NO_CAPSULES)  # type: ignore[misc]
    for name, answer in wrong_answers().items():
        yield Case(f"catalog, array: {name}", lambda answer=answer: Catalog(Gives(answer)), NO_CAPSULES)  # type: ignore[misc]
        yield Case(f"catalog, stream: {name}", lambda answer=answer: Catalog(Streams(answer)), NO_CAPSULES)  # type: ignore[misc]
    for odd in (Odd(), OddStream()):
        yield Case(f"{type(odd).__name__} method", lambda odd=odd: ROUTER.route(odd, now=NOW), "builtin TypeError")  # type: ignore[misc]
        yield Case(f"{type(odd).__name__} method, catalog", lambda odd=odd: Catalog(odd), "builtin TypeError")  # type: ignore[misc]


def twice(make: Callable[[], Any], use: Callable[[Any], object]) -> Callable[[], object]:
    """Uses one thing twice, the first time well."""

    def run() -> object:
        made = make()
        use(made)
        return use(made)

    return run


def route(given: Any) -> object:
    """Routes conversations."""
    return ROUTER.route(given, now=NOW)


def consumed() -> Iterator[Case]:
    """Capsules that somebody has taken the data out of."""
    yield Case("an array, routed twice", twice(lambda: Gives(array_capsules()), route), REFUSED)
    yield Case("a stream, routed twice", twice(lambda: Streams(stream_capsule()), route), REFUSED)
    yield Case(
        "a stream, a catalog twice",
        twice(lambda: Streams(pa.chunked_array([ROUTES.to_struct_array()]).__arrow_c_stream__()), Catalog),
        REFUSED,
    )
    yield Case("an array, a catalog twice", twice(lambda: Gives(ROUTES.__arrow_c_array__()), Catalog), REFUSED)
    kinds: Any = pa.Schema

    def without_schema() -> object:
        schema, array = array_capsules()
        kinds._import_from_c_capsule(schema)
        return route(Gives((schema, array)))

    def without_array() -> object:
        schema, array = array_capsules()
        batches: Any = pa.RecordBatch
        batches._import_from_c_capsule(array_capsules()[0], array)
        return route(Gives((schema, array)))

    def without_stream() -> object:
        stream = stream_capsule()
        readers: Any = pa.RecordBatchReader
        readers._import_from_c_capsule(stream).read_all()
        return route(Streams(stream))

    yield Case("a schema", without_schema, REFUSED)
    yield Case("an array", without_array, REFUSED)
    yield Case("a stream", without_stream, REFUSED)
    yield Case("a reader that was read", twice(lambda: pa.table(GOOD).to_reader(), route), "ok")


def contradictions() -> Iterator[Case]:
    """A schema and an array that do not belong together."""
    schemas: dict[str, Any] = {
        "more columns": GOOD.append_column("message_body", pa.nulls(ROWS)),
        "fewer columns": GOOD.select(["to_service_name", "database"]),
        "no column": GOOD.select([]),
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
            lambda other=other: route(Gives((other.__arrow_c_array__()[0], array_capsules()[1]))),  # type: ignore[misc]
            REFUSED,
        )
        yield Case(
            f"the array has {name}",
            lambda other=other: route(Gives((array_capsules()[0], other.__arrow_c_array__()[1]))),  # type: ignore[misc]
            REFUSED,
        )


def structs() -> Iterator[Case]:
    """Arrays of structs with rows that are null, or columns of another length, and arrays of no structs."""
    fields = list(GOOD.schema)
    columns = GOOD.columns
    masked = pa.StructArray.from_arrays(columns, fields=fields, mask=pa.array([False, True, False]))
    all_null = pa.StructArray.from_arrays(columns, fields=fields, mask=pa.array([True] * ROWS))
    kind = pa.struct(fields)
    bitmap = bytearray(b"\x07")
    counted = pa.Array.from_buffers(kind, ROWS, [pa.py_buffer(bitmap)], children=columns)
    assert counted.null_count == 0
    bitmap[:] = b"\x05"
    shorter = pa.Array.from_buffers(kind, ROWS - 1, [None], children=columns)
    ways: dict[str, Callable[[Any], Any]] = {
        "array": lambda array: array,
        "foreign array": ForeignArray,
        "foreign stream": lambda array: ForeignStream(pa.chunked_array([array])),
    }
    for name, wrap in ways.items():
        # A struct may have fewer rows than its columns; of a stream pyarrow makes batches, which may not.
        may_be_shorter = "ok" if name != "foreign stream" else "ok | MalformedDataError"
        yield Case(f"{name}: a row is null", lambda wrap=wrap: route(wrap(masked)), REFUSED)  # type: ignore[misc]
        yield Case(f"{name}: all rows are null", lambda wrap=wrap: route(wrap(all_null)), REFUSED)  # type: ignore[misc]
        yield Case(f"{name}: its bitmap was written to", lambda wrap=wrap: route(wrap(counted)), CLEAN)  # type: ignore[misc]
        yield Case(f"{name}: fewer rows than its columns", lambda wrap=wrap: route(wrap(shorter)), may_be_shorter)  # type: ignore[misc]
        for other in (pa.array([1]), pa.array([[1]]), pa.array(["a"]), pa.nulls(3), pa.array([], pa.string())):
            yield Case(f"{name}: {other.type}", lambda wrap=wrap, other=other: route(wrap(other)), REFUSED)  # type: ignore[misc]


def raising() -> Iterator[Case]:
    """Objects that raise; their own error is what the caller sees."""

    def fail() -> object:
        raise ValueError("the producer's own")

    def after_one() -> Iterator[pa.RecordBatch]:
        yield GOOD
        raise ValueError("the producer's own")

    def stream() -> Any:
        return pa.RecordBatchReader.from_batches(GOOD.schema, after_one())

    yield Case("the array", lambda: route(Asks(fail)), "builtin ValueError")
    yield Case("the stream", lambda: route(AsksStream(fail)), "builtin ValueError")
    yield Case("a catalog's array", lambda: Catalog(Asks(fail)), "builtin ValueError")
    yield Case("a catalog's stream", lambda: Catalog(AsksStream(fail)), "builtin ValueError")
    yield Case("a reader, midway", lambda: route(stream()), "builtin ValueError | MalformedDataError")
    yield Case(
        "a foreign stream, midway", lambda: route(ForeignStream(stream())), "builtin ValueError | MalformedDataError"
    )
    yield Case(
        "a catalog's stream, midway",
        lambda: Catalog(ForeignStream(stream())),
        "builtin ValueError | MalformedDataError",
    )
    other = GOOD.select(["database"])
    yield Case(
        "batches of two schemas",
        lambda: route(ForeignStream(pa.RecordBatchReader.from_batches(GOOD.schema, iter([GOOD, other])))),
        REFUSED,
    )


FAMILIES: Families = {family.__name__: family for family in (answers, consumed, contradictions, structs, raising)}

if __name__ == "__main__":
    try_families(FAMILIES)
