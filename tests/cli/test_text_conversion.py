"""Columns as text: ids, bytes, dictionaries, quotes and nested values."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ssbroker._arrow import guid_text
from ssbroker.cli.input_columns import fragment_columns
from ssbroker.cli.text_conversion import convert_csv, convert_json, csv_cells, hex_text, json_values

COLUMNS: list[tuple[pa.Array[Any], list[Any]]] = [
    (pa.array([1, None], pa.int8()), [1, None]),
    (pa.array([2**63 - 1], pa.uint64()), [2**63 - 1]),
    (pa.array([1.5, float("nan"), float("inf"), None]), [1.5, None, None, None]),
    (pa.array([decimal.Decimal("1.10")]), [1.1]),
    (pa.array([True, None]), [True, None]),
    (pa.array([dt.datetime(2026, 11, 20, 21, tzinfo=dt.UTC)]), ["2026-11-20 21:00:00.000000Z"]),
    (pa.array([dt.date(2026, 11, 20)]), ["2026-11-20"]),
    (pa.array([dt.time(21, 0)]), ["21:00:00.000000"]),
    (pa.array([dt.timedelta(days=1), None]), ["1 day, 0:00:00", None]),
    (pa.array([b"\x00\xff", None, b""]), ["0x00ff", None, "0x"]),
    (pa.array([b"\x00\xff"], pa.binary_view()), ["0x00ff"]),
    (pa.array([uuid.UUID(int=7).bytes, None], pa.binary(16)), [str(uuid.UUID(int=7)), None]),
    (pa.array([uuid.UUID(int=7).bytes], pa.uuid()), [str(uuid.UUID(int=7))]),
    (pa.array(["a", "b", "a", None]).dictionary_encode(), ["a", "b", "a", None]),
    (pa.array(["a"], pa.string_view()), ["a"]),
    (pa.nulls(2), [None, None]),
    (pa.array([{"a": [b"x", None], "b": float("nan")}, None]), [{"a": ["0x78", None], "b": None}, None]),
]


@pytest.mark.parametrize(("column", "wanted"), COLUMNS, ids=[str(column.type) for column, _ in COLUMNS])
def test_any_column_has_json_values(column: pa.Array[Any], wanted: list[Any]) -> None:
    assert [json.loads(value) for value in json_values(column, name="x").to_pylist()] == wanted


@pytest.mark.parametrize("column", [column for column, _ in COLUMNS], ids=[str(column.type) for column, _ in COLUMNS])
def test_any_column_can_be_written_as_csv(column: pa.Array[Any]) -> None:
    sink = pa.BufferOutputStream()
    pyarrow.csv.write_csv(pa.record_batch({"x": csv_cells(column, name="x")}), sink)
    assert sink.getvalue().to_pybytes().count(b"\n") == 1 + len(column)


@given(st.lists(st.none() | st.text()), st.integers(0, 3))
def test_text_survives_json(values: list[str | None], start: int) -> None:
    column = pa.array(values, pa.string())[start:]
    assert [json.loads(value) for value in json_values(column, name="x").to_pylist()] == values[start:]


@given(st.lists(st.none() | st.uuids()), st.integers(0, 3))
@pytest.mark.parametrize("data_type", [pa.binary(16), pa.binary(), pa.large_binary(), pa.binary_view()])
def test_ids_are_written_as_guids(data_type: pa.DataType, values: list[uuid.UUID | None], start: int) -> None:
    column = pa.array([value and value.bytes for value in values], data_type)[start:]
    assert guid_text(column).to_pylist() == [value and str(value) for value in values[start:]]
    assert csv_cells(column, name="conversation_id").to_pylist() == [value and str(value) for value in values[start:]]


@given(st.lists(st.none() | st.binary()), st.integers(0, 3))
def test_bytes_are_written_as_hexadecimal_digits(values: list[bytes | None], start: int) -> None:
    found = hex_text(pa.array(values, pa.binary())[start:]).to_pylist()
    assert found == [None if value is None else value.hex() for value in values[start:]]


@given(st.lists(st.none() | st.binary()), st.integers(0, 3), st.sampled_from(["", "0x", "0X"]))
def test_hexadecimal_digits_are_read_as_bytes(values: list[bytes | None], start: int, prefix: str) -> None:
    digits = [None if value is None else value.hex() for value in values]
    spelled = [value and prefix + (value.upper() if prefix == "0X" else value) for value in digits]
    text = pa.array(spelled, pa.string())[start:]
    for read, name in (
        (convert_json, "message_body"),
        (convert_json, "message_signature"),
        (convert_csv, "message_body"),
    ):
        batch = read(pa.record_batch({name: text}), fragment_columns(), file=Path("x"))
        assert batch[name].to_pylist() == values[start:]


def test_empty_cell_is_a_null_signature_and_an_empty_body() -> None:
    cells = pa.array(["", "0x", None])
    batch = pa.record_batch({"message_body": cells, "message_signature": cells})
    found = convert_csv(batch, fragment_columns(), file=Path("x"))
    assert found.to_pydict() == {"message_body": [b"", b"", None], "message_signature": [None, b"", None]}


def test_id_column_with_other_lengths_is_hexadecimal() -> None:
    assert csv_cells(pa.array([b"ab"]), name="conversation_id").to_pylist() == ["0x6162"]


@pytest.mark.parametrize("name", ["message_body", "message_signature", "fragment_signature"])
def test_sixteen_bytes_that_are_not_an_id_are_hexadecimal(name: str) -> None:
    assert csv_cells(pa.array([bytes(16)], pa.binary(16)), name=name).to_pylist() == [f"0x{'00' * 16}"]
