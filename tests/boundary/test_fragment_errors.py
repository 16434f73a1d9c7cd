"""Invalid fragments and messages raise one error with column, row, value and expectation, and change nothing."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

import ssbroker
from ssbroker import Reassembler, schemas
from tests.boundary.layouts import DataType, relaid, replace_with
from tests.boundary.test_errors import FORMS, NO_GUID, NO_GUIDS, PLACES, ROWS
from tests.reassembly.signed_messages import IDS

VALID: Any = pa.record_batch(
    {
        "conversation_id": pa.array([IDS[0]] * ROWS, pa.binary(16)),
        "is_initiator": [True] * ROWS,
        "message_sequence_number": pa.array(range(ROWS), pa.int64()),
        "fragment_number": pa.array([0] * ROWS, pa.int32()),
        "fragment_count": pa.array([2] * ROWS, pa.int32()),
        "message_body": [b"part"] * ROWS,
        "message_signature": pa.nulls(ROWS, pa.binary(16)),
        "fragment_signature": pa.nulls(ROWS, pa.binary(16)),
    }
)
REQUIRED = VALID.schema.names[:6]
OF_MESSAGES = ("conversation_id", "is_initiator", "message_sequence_number", "message_body")
GUID = "00000000-0000-0000-0000-000000000001"


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
        """Returns fragments with the value in one row."""
        values = [self.valid] * row + [self.invalid] + [self.valid] * (ROWS - row - 1)
        return relaid(VALID, {self.column: replace_with(pa.array(values, self.kind))})


def null(column: str, valid: Any, kind: DataType, expected: str) -> InvalidValue:
    return InvalidValue(column, valid, None, kind, ssbroker.NullError, None, expected)


def too_large(column: str, invalid: int, kind: DataType, bits: int) -> InvalidValue:
    return InvalidValue(column, 1, invalid, kind, ssbroker.InputError, str(invalid), f"a {bits}-bit integer")


NUMBER = "message_sequence_number"
INVALID = {
    **{
        f"id {text!r}": InvalidValue(
            "conversation_id", GUID, text, pa.string(), ssbroker.InvalidGuidError, text, NO_GUID
        )
        for text in NO_GUIDS
    },
    "an id of 15 bytes": InvalidValue(
        "conversation_id", IDS[0], bytes(15), pa.binary(), ssbroker.InvalidGuidError, "0x" + "00" * 15, NO_GUID
    ),
    "no id": null("conversation_id", IDS[0], pa.binary(16), NO_GUID),
    "no text of an id": null("conversation_id", GUID, pa.large_string(), NO_GUID),
    "no direction": null("is_initiator", True, pa.bool_(), "true or false"),
    "no body": null("message_body", b"part", pa.binary(), "bytes (may be empty)"),
    "no view of a body": null("message_body", b"part", pa.binary_view(), "bytes (may be empty)"),
    "no sequence number": null(NUMBER, 1, pa.int64(), "a 64-bit integer"),
    "no small sequence number": null(NUMBER, 1, pa.int8(), "a 64-bit integer"),
    "no number": null("fragment_number", 1, pa.int32(), "a 32-bit integer"),
    "no count": null("fragment_count", 1, pa.int32(), "a 32-bit integer"),
    "a large sequence number": too_large(NUMBER, 2**63, pa.uint64(), 64),
    "a large number": too_large("fragment_number", 2**31, pa.int64(), 32),
    "a small number": too_large("fragment_number", -(2**31) - 1, pa.int64(), 32),
    "a large count": too_large("fragment_count", 2**32 - 1, pa.uint32(), 32),
}


@pytest.mark.parametrize("invalid", INVALID.values(), ids=INVALID)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_the_error_names_the_invalid_value_and_nothing_changes(
    invalid: InvalidValue, form: Callable[[Any], Any]
) -> None:
    reassembler = Reassembler()
    before = reassembler.checkpoint()
    for row in PLACES:
        with pytest.raises(ssbroker.InputError) as caught:
            reassembler.push(form(invalid.batch(row)))
        error = caught.value
        assert type(error) is invalid.error
        assert (error.column, error.row, error.value, error.expected) == (
            invalid.column,
            row,
            invalid.shown,
            invalid.expected,
        )
        assert isinstance(error, ValueError)
        assert str(error).startswith(f"{invalid.column}, row {row}: ")
        assert str(error).endswith(f"expected {invalid.expected}")
        assert str(error).isprintable()
        copied = pickle.loads(pickle.dumps(error))
        assert (type(copied), str(copied), vars(copied)) == (type(error), str(error), vars(error))
    assert reassembler.checkpoint() == before


@pytest.mark.parametrize("invalid", [each for each in INVALID.values() if each.column in OF_MESSAGES], ids=str)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_the_error_names_the_invalid_value_of_a_message(invalid: InvalidValue, form: Callable[[Any], Any]) -> None:
    for row in PLACES:
        with pytest.raises(invalid.error) as caught:
            ssbroker.fragment(form(invalid.batch(row)), max_fragment_bytes=2)
        error = caught.value
        assert (error.column, error.row, error.value, error.expected) == (
            invalid.column,
            row,
            invalid.shown,
            invalid.expected,
        )


@pytest.mark.parametrize("invalid", INVALID.values(), ids=INVALID)
def test_the_error_names_the_first_invalid_value(invalid: InvalidValue) -> None:
    values = pa.array([invalid.valid] * 70 + [invalid.invalid] * (ROWS - 70), invalid.kind)
    arrays: list[Any] = [values]
    if invalid.error is not ssbroker.InvalidGuidError:
        arrays.append(values.dictionary_encode())
    for array in arrays:
        with pytest.raises(invalid.error) as caught:
            ssbroker.reassemble(relaid(VALID, {invalid.column: replace_with(array)}))
        assert (caught.value.column, caught.value.row) == (invalid.column, 70)


@pytest.mark.parametrize("rows", [0, 1, ROWS])
@pytest.mark.parametrize("column", REQUIRED)
def test_the_error_names_the_missing_column(column: str, rows: int) -> None:
    """Even without rows, so that a mistake does not wait for the first one."""
    batch = VALID.drop_columns([column]).slice(0, rows)
    for given in (batch, pa.Table.from_batches([batch])):
        with pytest.raises(ssbroker.SchemaError, match=f"^{column}: the column is missing; expected ") as caught:
            ssbroker.reassemble(given)
        assert (caught.value.column, caught.value.actual) == (column, None)
        assert caught.value.expected
        assert isinstance(caught.value, TypeError)


WRONG_TYPES = (
    pa.float16(),
    pa.date32(),
    pa.timestamp("us"),
    pa.list_(pa.binary()),
    pa.struct([("a", pa.binary())]),
    pa.dictionary(pa.int8(), pa.float16()),
    pa.decimal128(5),
)
NEARLY: dict[str, tuple[DataType, ...]] = {
    "conversation_id": (pa.int64(), pa.binary(15), pa.bool_()),
    "is_initiator": (pa.float64(), pa.string()),
    "message_sequence_number": (pa.string(), pa.bool_()),
    "fragment_number": (pa.string(),),
    "fragment_count": (pa.binary(),),
    "message_body": (pa.string(), pa.string_view(), pa.int8(), pa.dictionary(pa.int8(), pa.string())),
    "message_signature": (pa.string(), pa.uint64()),
    "fragment_signature": (pa.large_string(), pa.bool_()),
}


@pytest.mark.parametrize("rows", [0, 1, ROWS])
@pytest.mark.parametrize("column", schemas.FRAGMENTS.names)
def test_the_error_names_the_column_of_the_wrong_type(column: str, rows: int) -> None:
    for kind in (*WRONG_TYPES, *NEARLY[column]):
        batch: Any = relaid(VALID, {column: replace_with(pa.nulls(ROWS, kind))}).slice(0, rows)
        for given in (batch, pa.Table.from_batches([batch])):
            with pytest.raises(ssbroker.SchemaError, match=f"^{column}: expected .*, got ") as caught:
                ssbroker.reassemble(given)
            assert (caught.value.column, bool(caught.value.expected), bool(caught.value.actual)) == (column, True, True)


def test_the_error_names_the_duplicate_column() -> None:
    for name in ("message_body", "extra"):
        columns = [*VALID.columns, VALID["message_body"], VALID["message_body"]]
        batch = pa.RecordBatch.from_arrays(columns, names=[*VALID.schema.names, name, name])
        with pytest.raises(
            ssbroker.SchemaError, match=f"^{name}: expected unique column names, got two columns with this name"
        ):
            ssbroker.reassemble(batch)
