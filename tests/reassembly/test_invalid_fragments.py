"""`errors="reject"` ignores rows with an invalid value, and returns them with column, value and reason."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import ssbroker
from ssbroker import Reassembler, schemas
from tests.boundary.test_errors import FORMS, PLACES, ROWS
from tests.boundary.test_fragment_errors import INVALID, VALID, InvalidValue

REASONS = {
    ssbroker.NullError: "null",
    ssbroker.InvalidGuidError: "invalid_guid",
    ssbroker.InputError: "out_of_range",
}
CONVERSATION = uuid.UUID(int=7)


def fragments_of(*bodies: bytes) -> list[dict[str, Any]]:
    """One message for each body, in fragments of two bytes, as dicts."""
    messages = {
        "conversation_id": [CONVERSATION.bytes] * len(bodies),
        "is_initiator": [True] * len(bodies),
        "message_sequence_number": list(range(len(bodies))),
        "message_body": list(bodies),
    }
    rows: list[dict[str, Any]] = ssbroker.fragment(pa.table(messages), max_fragment_bytes=2).to_pylist()
    return rows


@pytest.mark.parametrize("invalid", INVALID.values(), ids=INVALID)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_an_invalid_row_is_listed_and_the_others_are_pushed(invalid: InvalidValue, form: Callable[[Any], Any]) -> None:
    for row in PLACES:
        batch = invalid.batch(row)
        result = ssbroker.reassemble(form(batch), errors="reject")
        expected = ssbroker.reassemble(pa.Table.from_batches([batch.slice(0, row), batch.slice(row + 1)]))

        assert result.invalid.schema == schemas.INVALID_FRAGMENTS
        assert result.invalid.to_pylist() == [
            {"row": row, "column": invalid.column, "value": invalid.shown, "reason": REASONS[invalid.error]}
        ]
        for name in ("messages", "rejected", "acknowledgements", "pending"):
            assert getattr(result, name).equals(getattr(expected, name)), name


def test_valid_rows_give_the_same_result_and_no_invalid_rows() -> None:
    for form in FORMS.values():
        result = ssbroker.reassemble(form(VALID), errors="reject")
        assert result == ssbroker.reassemble(form(VALID))
        assert (result.invalid.num_rows, result.invalid.schema) == (0, schemas.INVALID_FRAGMENTS)


def test_the_message_of_an_invalid_row_stays_incomplete_until_its_fragment_arrives() -> None:
    rows = fragments_of(b"first", b"second")
    sound = dict(rows[1])
    rows[1]["message_body"] = None
    reassembler = Reassembler()

    pushed = reassembler.push(rows, errors="reject")
    assert pushed.messages.num_rows == 0
    assert pushed.invalid.to_pylist() == [{"row": 1, "column": "message_body", "value": None, "reason": "null"}]
    assert pushed.pending.select(["message_sequence_number", "first_missing_fragment"]).to_pylist() == [
        {"message_sequence_number": 0, "first_missing_fragment": 1},
        {"message_sequence_number": 1, "first_missing_fragment": None},
    ]
    assert reassembler.push([sound]).messages["message_body"].to_pylist() == [b"first", b"second"]


def test_each_row_is_listed_once_with_its_first_invalid_column() -> None:
    columns = {
        "conversation_id": pa.array([None, b"short", bytes(16), bytes(16), bytes(16)]),
        "is_initiator": pa.array([None, 1, 2, 1, None], pa.int8()),
        "message_sequence_number": pa.array([0.5, 0.0, None, None, 0.0]),
        "fragment_number": pa.array([0, 2**40, 0, 0, 2**40]),
        "fragment_count": pa.array([1, 1, 1, 1, None], pa.int32()),
        "message_body": pa.array([None, None, None, b"", b""], pa.binary()),
    }
    invalid = ssbroker.reassemble(pa.table(columns), errors="reject").invalid
    assert [tuple(row.values()) for row in invalid.to_pylist()] == [
        (0, "conversation_id", None, "null"),
        (1, "conversation_id", "0x73686f7274", "invalid_guid"),
        (2, "is_initiator", "2", "out_of_range"),
        (3, "message_sequence_number", None, "null"),
        (4, "is_initiator", None, "null"),
    ]


def test_session_keys_of_the_wrong_length_are_listed_without_the_key() -> None:
    rows = fragments_of(b"abcdef", b"gh")
    keys = [b"secret", bytes(16), b"secret", None]
    result = ssbroker.reassemble(
        [row | {"key": key} for row, key in zip(rows, keys, strict=True)], session_keys="key", errors="reject"
    )
    assert [tuple(row.values()) for row in result.invalid.to_pylist()] == [
        (0, "key", "6 bytes", "out_of_range"),
        (2, "key", "6 bytes", "out_of_range"),
    ]
    assert result.rejected.num_rows + result.pending.num_rows == 2


def test_extra_columns_belong_to_their_rows() -> None:
    """In the same push, and in a later one."""
    rows = [row | {"note": f"row {number}"} for number, row in enumerate(fragments_of(b"a", b"bcde", b"f", b"gh"))]
    for number in (0, 3):
        rows[number]["conversation_id"] = b"?"
    table = pa.Table.from_pylist(rows)
    reassembler = Reassembler(in_order=False)
    pushed = reassembler.push(pa.Table.from_batches(table.to_batches(max_chunksize=2)), errors="reject")
    assert pushed.invalid["row"].to_pylist() == [0, 3]
    assert pushed.messages.select(["message_body", "note"]).to_pylist() == [
        {"message_body": b"bcde", "note": "row 1"},
        {"message_body": b"gh", "note": "row 4"},
    ]
    late = Reassembler(in_order=False)
    assert late.push(table.slice(0, 2), errors="reject").messages.num_rows == 0
    restored = Reassembler.restore(late.checkpoint())
    assert restored.push(table.slice(2, 1)).messages["note"].to_pylist() == ["row 1"]


def test_all_rows_may_be_invalid() -> None:
    rows = [row | {"conversation_id": None} for row in fragments_of(b"a" * 5000)]
    result = ssbroker.reassemble(rows, errors="reject")
    assert result.invalid["row"].to_pylist() == list(range(2500))
    assert (result.messages.num_rows, result.rejected.num_rows, result.pending.num_rows) == (0, 0, 0)


def test_frames_and_readers_are_read_alike() -> None:
    rows = [row | {"conversation_id": str(CONVERSATION)} for row in fragments_of(b"abc", b"d")]
    rows[0]["conversation_id"] = "7"
    table = pa.Table.from_pylist(rows)
    expected = ssbroker.reassemble(table, errors="reject")
    assert expected.invalid.to_pylist() == [
        {"row": 0, "column": "conversation_id", "value": "7", "reason": "invalid_guid"}
    ]
    for given in (rows, pd.DataFrame(rows), pl.DataFrame(rows), table.to_reader(max_chunksize=1)):
        result = ssbroker.reassemble(given, errors="reject")
        assert (result.invalid, result.pending) == (expected.invalid, expected.pending)


def test_wrong_columns_unreadable_data_and_wrong_options_are_errors() -> None:
    reassembler = Reassembler()
    before = reassembler.checkpoint()
    with pytest.raises(ssbroker.SchemaError, match=r"^fragment_number: the column is missing"):
        reassembler.push(VALID.drop_columns(["fragment_number"]), errors="reject")
    with pytest.raises(ssbroker.SchemaError, match=r"^message_body: expected binary, got string"):
        wrong: Any = VALID.set_column(5, "message_body", pa.array(["a"] * ROWS))
        reassembler.push(wrong, errors="reject")
    with pytest.raises(ssbroker.OptionError, match=r"^errors: expected one of raise, reject, got 'ignore'"):
        ssbroker.reassemble(VALID, errors="ignore")  # type: ignore[arg-type]
    assert reassembler.checkpoint() == before


def test_a_result_shows_its_invalid_rows_and_keeps_them_in_a_pickle() -> None:
    rows = fragments_of(b"abc", b"d")
    rows[2]["fragment_number"] = None
    result = Reassembler().push(rows, errors="reject")
    assert repr(result) == "Reassembly(messages=1, rejected=0, acknowledgements=1, pending=0, invalid=1)"
    assert "1 invalid row" in result._repr_html_()
    copied = pickle.loads(pickle.dumps(result))
    assert copied == result
    assert copied.invalid.equals(result.invalid)
