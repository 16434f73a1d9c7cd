"""`errors="reject"` routes the valid rows and returns the others with column, value and reason."""

from __future__ import annotations

import random
import uuid
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import ssbroker
from ssbroker import Router, schemas
from tests.boundary.test_errors import FORMS, INVALID, PLACES, ROWS, VALID, InvalidValue
from tests.routing.conversations import CATALOG, IDS, NOW

ROUTER = Router(CATALOG)
REASONS = {
    ssbroker.NullError: "null",
    ssbroker.InvalidGuidError: "invalid_guid",
    ssbroker.UnknownDatabaseError: "unknown_database",
}
REASONS_OF_VALUES = dict.fromkeys(("to_broker_instance", "conversation_id"), "invalid_guid") | {
    "database": "unknown_database"
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("invalid", INVALID.values(), ids=INVALID)
def test_an_invalid_row_is_rejected_and_the_others_are_routed(invalid: InvalidValue, form: Any) -> None:
    for row in PLACES:
        decisions, rejected = ROUTER.route(form(invalid.batch(row)), now=NOW, errors="reject")
        assert rejected.schema == schemas.REJECTED_CONVERSATIONS
        assert rejected.to_pylist() == [
            {"row": row, "column": invalid.column, "value": invalid.shown, "reason": REASONS[invalid.error]}
        ]
        assert decisions.schema == schemas.DECISIONS
        assert decisions.num_rows == ROWS - 1
        if invalid.valid is not None:
            expected = ROUTER.route(form(VALID), now=NOW)["outcome"].to_pylist()
            assert decisions["outcome"].to_pylist() == expected[:row] + expected[row + 1 :]


@pytest.mark.parametrize("integers", [pa.int8(), pa.uint64()], ids=str)
def test_an_integer_that_is_no_boolean_is_rejected(integers: pa.DataType) -> None:
    rows = pa.table(
        {
            "database": ["Sales", "Sales", "Nowhere", "Sales"],
            "to_service_name": ["//a", "//a", "//a", "//a"],
            "conversation_id": IDS[:4],
            "is_initiator": pa.array([1, 2, 3, None], integers),
        }
    )
    decisions, rejected = ROUTER.route(rows, now=NOW, errors="reject")

    assert decisions.num_rows == 1
    assert [tuple(row.values()) for row in rejected.to_pylist()] == [
        (1, "is_initiator", "2", "out_of_range"),
        (2, "database", "Nowhere", "unknown_database"),
        (3, "is_initiator", None, "null"),
    ]
    with pytest.raises(
        ssbroker.InputError, match=r"^is_initiator, row 1: '2' is out of range; expected a bool, 1 or 0$"
    ):
        ROUTER.route(rows.slice(0, 2), now=NOW)


def test_valid_input_gives_the_same_decisions_and_rejects_nothing() -> None:
    for form in FORMS.values():
        decisions, rejected = ROUTER.route(form(VALID), now=NOW, errors="reject")
        assert decisions.equals(ROUTER.route(form(VALID), now=NOW))
        assert (rejected.num_rows, rejected.schema) == (0, schemas.REJECTED_CONVERSATIONS)


@pytest.mark.parametrize("seed", range(20))
def test_many_invalid_rows_of_every_kind_are_found(seed: int) -> None:
    """The rejected rows are those that raise alone, each with its first problem in the order of the columns."""
    chance = random.Random(seed)
    rows = chance.randrange(1, 400)
    share = chance.choice([0.01, 0.3, 0.9, 1.0])
    bad: dict[str, list[Any]] = {
        "to_service_name": [None],
        "to_broker_instance": ["x", ""],
        "conversation_id": ["no guid", None],
        "database": ["Nowhere", ""],
        "is_initiator": [None],
    }
    good: dict[str, Any] = {
        "to_service_name": "//Orders",
        "to_broker_instance": None,
        "conversation_id": "6f9619ff-8b86-d011-b42d-00c04fc964ff",
        "database": "Sales",
        "is_initiator": True,
    }
    kinds: dict[str, Any] = dict.fromkeys(good, pa.string()) | {"is_initiator": pa.bool_()}
    values = [
        {
            name: chance.choice(bad[name]) if chance.random() < share / len(good) else value
            for name, value in good.items()
        }
        for _ in range(rows)
    ]
    table = pa.table({name: pa.array([row[name] for row in values], kinds[name]) for name in good})
    expected, kept = [], []
    for number in range(rows):
        one = table.slice(number, 1)
        try:
            kept.append(ROUTER.route(one, now=NOW).to_pylist()[0])
        except ssbroker.InputError:
            column = next(name for name in good if values[number][name] in bad[name])
            reason = "null" if values[number][column] is None else REASONS_OF_VALUES[column]
            expected.append({"row": number, "column": column, "reason": reason})
    decisions, rejected = ROUTER.route(table, now=NOW, errors="reject")
    assert rejected.drop_columns(["value"]).to_pylist() == expected
    assert decisions.to_pylist() == kept
    chunks = pa.Table.from_batches(table.to_batches(max_chunksize=7))
    again = ROUTER.route(chunks, now=NOW, errors="reject")
    assert (again.decisions.to_pylist(), again.rejected.to_pylist()) == (kept, rejected.to_pylist())


def test_rejected_rows_take_no_turn() -> None:
    router = Router(CATALOG, tie_break="round_robin")
    decisions, _ = router.route(INVALID["no service name"].batch(1).slice(0, 3), now=NOW, errors="reject")
    assert decisions["route_id"].to_pylist() == [65536, 65537]
    assert router.route(VALID.slice(0, 1), now=NOW)["route_id"].to_pylist() == [65538]


def test_a_missing_column_and_unreadable_data_are_errors_of_the_whole_input() -> None:
    with pytest.raises(ssbroker.SchemaError, match=r"to_service_name: the column is missing"):
        ROUTER.route(pa.table({"database": ["Sales"]}), errors="reject")
    with pytest.raises(ssbroker.OptionError, match=r"^errors: expected one of raise, reject, got 'ignore'"):
        ROUTER.route(VALID, errors="ignore")  # type: ignore[call-overload]


def test_frames_keep_their_valid_rows() -> None:
    rows: list[dict[str, Any]] = [
        {"note": "a", "conversation_id": "7", "database": "Sales", "to_service_name": "//Late"},
        {
            "note": "b",
            "conversation_id": str(uuid.UUID(bytes=IDS[7])),
            "database": "Sales",
            "to_service_name": None,
        },
        {"note": "c", "conversation_id": None, "database": "Sales", "to_service_name": "//Late"},
    ]
    good = {
        "note": "d",
        "conversation_id": "6f9619ff-8b86-d011-b42d-00c04fc964ff",
        "database": "Sales",
        "to_service_name": "//Late",
    }
    given: list[dict[str, Any]] = [*rows, good]
    expected = [
        {"row": 0, "column": "conversation_id", "value": "7", "reason": "invalid_guid"},
        {"row": 1, "column": "to_service_name", "value": None, "reason": "null"},
        {"row": 2, "column": "conversation_id", "value": None, "reason": "null"},
    ]
    valid, rejected = ROUTER.with_decisions(given, now=NOW, errors="reject")
    assert [row["note"] for row in valid] == ["d"]
    assert rejected == expected
    frame = pd.DataFrame(given, index=list("wxyz"))
    valid_frame, rejected_frame = ROUTER.with_decisions(frame, now=NOW, errors="reject")
    assert valid_frame.index.tolist() == ["z"]
    assert valid_frame["outcome"].tolist() == ["DELAYED"]
    assert rejected_frame["row"].tolist() == [0, 1, 2]
    polars = ROUTER.with_decisions(pl.DataFrame(given), now=NOW, errors="reject")
    assert polars.decisions["note"].to_list() == ["d"]
    assert polars.rejected.to_dicts() == expected
