"""Invalid conversations raise one error with column, row, value and expectation, and change nothing."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

import ssbroker
from ssbroker import Catalog, Router, schemas
from ssbroker.router import TieBreak
from tests.boundary.layouts import DataType, relaid, replace_with
from tests.routing.conversations import CATALOG, IDS, NOW, ForeignArray, ForeignStream, routes

ROWS = 300
"""Several blocks of 64, and a rest."""
PLACES = (0, 1, 63, 64, 130, ROWS - 1)
ROUTER = Router(CATALOG)
VALID = pa.record_batch(
    {
        "conversation_id": pa.array([IDS[7]] * ROWS, pa.binary(16)),
        "database": pa.array(["Sales"] * ROWS),
        "to_service_name": pa.array(["//Orders"] * ROWS),
        "to_broker_instance": pa.nulls(ROWS, pa.binary(16)),
        "is_initiator": pa.array([True] * ROWS),
    }
)
FORMS: dict[str, Callable[[Any], Any]] = {
    "a batch": lambda batch: batch,
    "a struct": lambda batch: batch.to_struct_array(),
    "a slice": lambda batch: (
        pa.Table.from_batches([batch.slice(0, 5), batch]).combine_chunks().to_batches()[0].slice(5)
    ),
    "a table": lambda batch: pa.Table.from_batches([batch]),
    "a chunked table": lambda batch: pa.Table.from_batches([batch.slice(0, 1), batch.slice(1, 99), batch.slice(100)]),
    "a stream of rows": lambda batch: pa.Table.from_batches([batch]).to_reader(max_chunksize=1),
    "a foreign array": ForeignArray,
    "a foreign stream": lambda batch: ForeignStream(pa.Table.from_batches([batch])),
}
GUID = str(uuid.UUID(int=7))
NO_GUID = "a GUID: 36 characters (braces allowed) or 16 bytes"
NO_GUIDS = (
    "",
    "no guid",
    GUID[:-1],
    GUID + "0",
    GUID.replace("-", ""),
    GUID[:-1] + "g",
    "{" + GUID,
    "(" + GUID + ")",
    " " + GUID,
    "\N{FULLWIDTH DIGIT ZERO}" + GUID[1:],
)


@dataclass(frozen=True)
class InvalidValue:
    """An invalid value among valid ones."""

    column: str
    valid: Any
    invalid: Any
    kind: DataType
    error: type[ssbroker.InputError]
    shown: str | None
    expected: str

    def batch(self, row: int) -> pa.RecordBatch:
        """Returns conversations with the value in one row."""
        values = [self.valid] * row + [self.invalid] + [self.valid] * (ROWS - row - 1)
        return relaid(VALID, {self.column: replace_with(pa.array(values, self.kind))})


def invalid_guid(column: str, valid: Any, invalid: Any, kind: DataType, shown: str) -> InvalidValue:
    return InvalidValue(column, valid, invalid, kind, ssbroker.InvalidGuidError, shown, NO_GUID)


INVALID = {
    **{
        f"{column} {text!r}": invalid_guid(column, GUID, text, pa.string(), text)
        for column in ("conversation_id", "to_broker_instance")
        for text in NO_GUIDS
    },
    **{
        f"{column} of {size} bytes": invalid_guid(column, IDS[7], bytes(size), pa.binary(), "0x" + "00" * size)
        for column in ("conversation_id", "to_broker_instance")
        for size in (0, 15, 17)
    },
    "a long one": invalid_guid("to_broker_instance", None, "x" * 1000, pa.large_string(), "x" * 80 + "…"),
    "many bytes": invalid_guid("to_broker_instance", None, b"x" * 1000, pa.binary_view(), "0x" + "78" * 39 + "…"),
    "unknown database": InvalidValue(
        "database",
        "Sales",
        "sales",
        pa.string(),
        ssbroker.UnknownDatabaseError,
        "sales",
        "one of Sales, msdb; did you mean Sales?",
    ),
    "empty database": InvalidValue(
        "database", "Sales", "", pa.string(), ssbroker.UnknownDatabaseError, "", "one of Sales, msdb"
    ),
    "unknown database among those from outside": InvalidValue(
        "database",
        None,
        "Salés",
        pa.string(),
        ssbroker.UnknownDatabaseError,
        "Salés",
        "one of Sales, msdb; did you mean Sales?",
    ),
    "no service name": InvalidValue(
        "to_service_name", "//Orders", None, pa.string(), ssbroker.NullError, None, "the name of the target service"
    ),
    "no conversation id": InvalidValue(
        "conversation_id",
        IDS[7],
        None,
        pa.binary(16),
        ssbroker.NullError,
        None,
        "a conversation id for each row, to break ties",
    ),
    "no direction": InvalidValue("is_initiator", True, None, pa.bool_(), ssbroker.NullError, None, "true or false"),
}


@pytest.mark.parametrize("invalid", INVALID.values(), ids=INVALID)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_the_error_names_the_invalid_value(invalid: InvalidValue, form: Callable[[Any], Any]) -> None:
    for row in PLACES:
        with pytest.raises(ssbroker.InputError) as caught:
            ROUTER.route(form(invalid.batch(row)), now=NOW)
        error = caught.value
        assert type(error) is invalid.error
        assert (error.column, error.row, error.value, error.expected) == (
            invalid.column,
            row,
            invalid.shown,
            invalid.expected.partition("; did")[0],
        )
        assert isinstance(error, ValueError)
        assert str(error).startswith(f"{invalid.column}, row {row}: ")
        assert str(error).endswith(f"expected {invalid.expected}")
        assert invalid.shown is None or f"'{invalid.shown}'" in str(error)


@pytest.mark.parametrize("invalid", INVALID.values(), ids=INVALID)
def test_the_error_names_the_first_invalid_value(invalid: InvalidValue) -> None:
    values = [invalid.valid] * 70 + [invalid.invalid] * (ROWS - 70)
    batch = relaid(VALID, {invalid.column: replace_with(pa.array(values, invalid.kind))})
    with pytest.raises(invalid.error) as caught:
        ROUTER.route(batch, now=NOW)
    assert caught.value.row == 70


# Only `hash` needs every conversation id.
INVALID_WITH_HASH = {name: invalid for name, invalid in INVALID.items() if name != "no conversation id"}


@pytest.mark.parametrize("invalid", INVALID_WITH_HASH.values(), ids=INVALID_WITH_HASH)
def test_a_batch_that_raises_takes_no_turn(invalid: InvalidValue) -> None:
    """A batch that raises changes nothing, so `round_robin` continues where it was."""
    router = Router(CATALOG, tie_break="round_robin")
    one: Any = VALID.slice(0, 1)
    assert router.route(one, now=NOW)["route_id"].to_pylist() == [65536]
    for row in PLACES:
        with pytest.raises(invalid.error):
            router.route(invalid.batch(row), now=NOW)
    assert router.route(one, now=NOW)["route_id"].to_pylist() == [65537]


def test_a_large_batch_that_raises_takes_no_turn() -> None:
    router = Router(CATALOG, tie_break="round_robin")
    row = 1000
    names = ["//Orders"] * row + [None] + ["//Orders"] * 99
    batch = pa.record_batch({"to_service_name": names, "database": ["Sales"] * len(names)})
    for given in (batch, pa.Table.from_batches([batch]), ForeignArray(batch)):
        with pytest.raises(ssbroker.NullError) as caught:
            router.route(given, now=NOW)
        assert caught.value.row == row
    assert router.route(VALID.slice(0, 3), now=NOW)["route_id"].to_pylist() == [65536, 65537, 65538]


@pytest.mark.parametrize("read", [lambda table: table, lambda table: table.to_reader(), ForeignStream])
def test_batches_before_an_invalid_one_take_their_turns(read: Callable[[pa.Table], Any]) -> None:
    """As documented for tables and streams: they are read batch by batch, and only the invalid one takes no turn."""
    router = Router(CATALOG, tie_break="round_robin")
    batches: list[Any] = [VALID.slice(0, 100), INVALID["no service name"].batch(ROWS - 1), VALID.slice(0, 1)]
    with pytest.raises(ssbroker.NullError) as caught:
        router.route(read(pa.Table.from_batches(batches)), now=NOW)
    assert caught.value.row == 100 + ROWS - 1
    assert router.route(VALID.slice(0, 3), now=NOW)["route_id"].to_pylist() == [65537, 65538, 65536]


def test_conversation_ids_are_required_only_by_hash() -> None:
    """Existing ones must be valid GUIDs anyway."""
    tie_breaks: tuple[TieBreak, ...] = ("first", "round_robin")
    for tie_break in tie_breaks:
        expected = Router(CATALOG, tie_break=tie_break).route(VALID, now=NOW)
        without: Any = VALID.drop_columns(["conversation_id"])
        for batch in (without, INVALID["no conversation id"].batch(5)):
            router = Router(CATALOG, tie_break=tie_break)
            assert router.route(batch, now=NOW).equals(expected)
        with pytest.raises(ssbroker.InvalidGuidError):
            Router(CATALOG, tie_break=tie_break).route(INVALID["conversation_id 'no guid'"].batch(5), now=NOW)


@pytest.mark.parametrize("rows", [0, 1, ROWS])
@pytest.mark.parametrize("column", ["to_service_name", "database"])
@pytest.mark.parametrize("as_table", [False, True])
def test_the_error_names_the_missing_column(column: str, rows: int, *, as_table: bool) -> None:
    """Even without rows, so that a mistake does not wait for the first one."""
    two = Catalog(routes({"name": "A", "address": "LOCAL"}, {"database": "Other", "name": "A", "address": "LOCAL"}))
    batch: Any = VALID.drop_columns([column]).slice(0, rows)
    with pytest.raises(ssbroker.SchemaError, match=f"^{column}: the column is missing; expected ") as caught:
        Router(two).route(pa.Table.from_batches([batch]) if as_table else batch, now=NOW)
    assert (caught.value.column, caught.value.actual) == (column, None)
    assert caught.value.expected
    assert isinstance(caught.value, TypeError)


WRONG_TYPES = (
    pa.int64(),
    pa.float64(),
    pa.date32(),
    pa.timestamp("us"),
    pa.list_(pa.string()),
    pa.struct([("a", pa.string())]),
    pa.dictionary(pa.int8(), pa.int8()),
    pa.binary(15),
    pa.decimal128(5),
)


@pytest.mark.parametrize("rows", [0, 1, ROWS])
@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (column, kind)
        for column in schemas.CONVERSATIONS.names
        for kind in WRONG_TYPES
        if (column, kind) != ("is_initiator", pa.int64())
    ],
    ids=str,
)
def test_the_error_names_the_column_of_the_wrong_type(column: str, kind: DataType, rows: int) -> None:
    batch: Any = relaid(VALID, {column: replace_with(pa.nulls(ROWS, kind))}).slice(0, rows)
    for given in (batch, pa.Table.from_batches([batch])):
        with pytest.raises(ssbroker.SchemaError, match=f"^{column}: expected .*, got ") as caught:
            ROUTER.route(given, now=NOW)
        assert (caught.value.column, bool(caught.value.expected), bool(caught.value.actual)) == (column, True, True)


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ("database", pa.binary()),
        ("to_service_name", pa.binary_view()),
        ("database", pa.dictionary(pa.int8(), pa.binary())),
        ("to_service_name", pa.binary(16)),
        ("to_broker_instance", pa.bool_()),
        ("conversation_id", pa.bool_()),
        ("is_initiator", pa.string()),
        ("is_initiator", pa.float32()),
    ],
    ids=str,
)
def test_the_error_names_the_column_of_a_similar_type(column: str, kind: DataType) -> None:
    with pytest.raises(ssbroker.SchemaError) as caught:
        ROUTER.route(relaid(VALID, {column: replace_with(pa.nulls(ROWS, kind))}), now=NOW)
    assert caught.value.column == column


@pytest.mark.parametrize("column", VALID.schema.names)
def test_the_error_names_the_duplicate_column(column: str) -> None:
    """A join can produce it, and it is unclear which one is meant. Extra columns may be duplicated."""
    names = [*VALID.schema.names, "extra", "extra"]
    batch = pa.RecordBatch.from_arrays([*VALID.columns, VALID["database"], VALID["database"]], names=names)
    assert ROUTER.route(batch, now=NOW).num_rows == ROWS
    twice = batch.append_column(column, VALID[column])
    for given in (*(form(twice) for form in FORMS.values()), twice.slice(0, 0)):
        with pytest.raises(ssbroker.SchemaError, match=f"^{column}: expected unique column names, got two"):
            ROUTER.route(given, now=NOW)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_input_errors_can_be_pickled(form: Callable[[Any], Any]) -> None:
    for invalid in INVALID.values():
        with pytest.raises(ssbroker.InputError) as caught:
            ROUTER.route(form(invalid.batch(3)), now=NOW)
        error = pickle.loads(pickle.dumps(caught.value))
        assert type(error) is type(caught.value)
        assert (str(error), vars(error)) == (str(caught.value), vars(caught.value))


def test_schema_errors_can_be_pickled() -> None:
    with pytest.raises(ssbroker.SchemaError) as caught:
        ROUTER.route(VALID.select(["database"]), now=NOW)
    error = pickle.loads(pickle.dumps(caught.value))
    assert (type(error), str(error), vars(error)) == (ssbroker.SchemaError, str(caught.value), vars(caught.value))


def test_messages_are_one_line() -> None:
    """Whatever the data contain."""
    for text in ("a\nb", "a\r\nb", "\x1b[2J", "a\u2028b"):
        batch = relaid(VALID, {"database": replace_with(pa.array([text] * ROWS))})
        with pytest.raises(ssbroker.UnknownDatabaseError) as caught:
            ROUTER.route(batch, now=NOW)
        assert str(caught.value).isprintable()
        assert len(str(caught.value).splitlines()) == 1
