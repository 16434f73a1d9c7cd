"""`ssbroker route --rejected FILE` writes invalid rows to a file and routes the others."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.cli.conftest import NOW_TEXT, Run, as_text, conversations, expected_decisions
from tests.cli.formats import SUFFIXES, decisions_of, read, write

ROWS = 3000
BAD = {17: ("database", "Nowhere"), 1700: ("to_broker_instance", "{12}"), 2999: ("conversation_id", "no guid")}
REASONS = {"database": "unknown_database", "to_broker_instance": "invalid_guid", "conversation_id": "invalid_guid"}


def with_bad_rows(table: pa.Table, bad: Mapping[int, tuple[str, str]] = BAD) -> pa.Table:
    rows: list[dict[str, Any]] = [as_text(row) for row in table.to_pylist()]
    for number, (column, value) in bad.items():
        rows[number][column] = value
    kinds = {"is_initiator": pa.bool_(), "priority": pa.int8()}
    return pa.table({name: pa.array([row[name] for row in rows], kinds.get(name, pa.string())) for name in rows[0]})


@pytest.mark.parametrize("output", SUFFIXES)
@pytest.mark.parametrize("source", SUFFIXES)
def test_invalid_rows_are_written_with_their_place_and_the_others_are_routed(
    tmp_path: Path, catalog: Path, run: Run, source: str, output: str
) -> None:
    table = conversations(ROWS)
    first = write(with_bad_rows(conversations(3), {}), tmp_path / f"first{source}")
    given = write(with_bad_rows(table), tmp_path / f"in{source}")
    written, rejected = tmp_path / f"out{output}", tmp_path / f"bad{output}"

    result = run(
        "route", catalog, "--conversations", first, given, "-o", written, "--rejected", rejected, "--at", NOW_TEXT
    )

    assert (result.status, result.err) == (0, "")
    assert result.out.endswith(
        f"to {written}\n3 invalid rows rejected, listed in {rejected}\n"
        "  1 x conversation_id: invalid_guid, such as 'no guid'\n"
        "  1 x database: unknown_database, such as 'Nowhere'\n"
        "  1 x to_broker_instance: invalid_guid, such as '{12}'\n"
    )
    good = table.filter(pa.array([number not in BAD for number in range(ROWS)]))
    rows = read(written)
    assert decisions_of(rows) == expected_decisions(catalog, conversations(3)) + expected_decisions(catalog, good)
    ids = [as_text(row)["conversation_id"] for part in (conversations(3), good) for row in part.to_pylist()]
    assert [row["conversation_id"] for row in rows] == ids
    # `read` converts text cells of numbers only in columns that it knows.
    assert [row | {"row": int(row["row"])} for row in read(rejected)] == [
        {"file": str(given), "row": number, "column": column, "value": value, "reason": REASONS[column]}
        for number, (column, value) in BAD.items()
    ]


def test_without_invalid_rows_the_file_is_empty_and_the_output_the_same(
    tmp_path: Path, catalog: Path, run: Run
) -> None:
    given = write(conversations(100), tmp_path / "in.csv")
    plain = ["route", catalog, "--conversations", given, "--at", NOW_TEXT, "-o"]
    assert run(*plain, tmp_path / "one.csv").status == 0
    result = run(*plain, tmp_path / "two.csv", "--rejected", tmp_path / "bad.csv", "--json")
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()
    assert json.loads(result.out)["rejected"] == {"rows": 0, "output": str(tmp_path / "bad.csv"), "causes": []}
    assert (tmp_path / "bad.csv").read_text() == '"file","row","column","value","reason"\n'


def test_invalid_rows_are_counted_by_column_and_reason(tmp_path: Path, catalog: Path, run: Run) -> None:
    rows = {"database": ["Sales", "Sale", "Nowhere", "Sales"], "to_service_name": ["//A"] * 4}
    ids = [None, *(str(uuid.UUID(int=number)) for number in range(3))]
    given = write(pa.table({"conversation_id": ids, **rows}), tmp_path / "in.parquet")
    outputs = ("-o", tmp_path / "out.csv", "--rejected", tmp_path / "b.csv")
    arguments = ("route", catalog, "--conversations", given, *outputs)
    result = run(*arguments)
    assert result.out.splitlines()[-3:] == [
        f"3 invalid rows rejected, listed in {tmp_path / 'b.csv'}",
        "  2 x database: unknown_database, such as 'Sale'; did you mean Sales?",
        "  1 x conversation_id: null",
    ]
    assert json.loads(run(*arguments, "--json").out)["rejected"]["causes"] == [
        {"column": "database", "reason": "unknown_database", "example": "Sale", "rows": 2},
        {"column": "conversation_id", "reason": "null", "example": None, "rows": 1},
    ]


def test_an_invalid_row_suggests_to_list_it(tmp_path: Path, catalog: Path, run: Run) -> None:
    given = tmp_path / "in.csv"
    given.write_text("conversation_id,database,to_service_name\n7,Sales,//A\n")
    result = run("route", catalog, "--conversations", given, "-o", tmp_path / "out.csv")
    assert result.err.endswith(
        "(line 2 of the file); to list invalid rows in a file and route the others, use --rejected FILE\n"
    )


def test_an_integer_that_is_no_direction_can_be_rejected(tmp_path: Path, catalog: Path, run: Run) -> None:
    table = conversations(3).drop_columns(["is_initiator"]).append_column("is_initiator", pa.array([1, 2, 0]))
    given = write(table, tmp_path / "in.parquet")
    arguments = ("route", catalog, "--conversations", given, "-o", tmp_path / "out.parquet", "--at", NOW_TEXT)
    assert run(*arguments).err.endswith(
        "expected a bool, 1 or 0; to list invalid rows in a file and route the others, use --rejected FILE\n"
    )
    assert "  1 x is_initiator: out_of_range, such as '2'\n" in run(*arguments, "--rejected", tmp_path / "bad.csv").out


def test_cells_of_csv_files_that_are_no_direction_are_rejected(tmp_path: Path, catalog: Path, run: Run) -> None:
    """In the order of the file, with its row numbers, together with the other invalid rows; each row once."""
    header, valid = "conversation_id,database,to_service_name,is_initiator\n", "{},Sales,//Orders,{}\n"
    cells = ["true", "maybe", "0", "2", "", "False", " 1 ", "yes", "1"]
    rows = [valid.format(uuid.UUID(int=number), cell) for number, cell in enumerate(cells)]
    rows[1] = rows[1].replace("Sales", "Nowhere")
    rows[5] = rows[5].replace("Sales", "Nowhere")
    source, out, bad = tmp_path / "in.csv", tmp_path / "out.csv", tmp_path / "bad.csv"
    source.write_text(header + "".join(rows))
    result = run("route", catalog, "--conversations", source, "-o", out, "--rejected", bad)
    assert result.status == 0
    assert [(row["row"], row["column"], row["value"], row["reason"]) for row in read(bad)] == [
        ("1", "is_initiator", "maybe", "out_of_range"),
        ("3", "is_initiator", "2", "out_of_range"),
        ("4", "is_initiator", None, "null"),
        ("5", "database", "Nowhere", "unknown_database"),
        ("7", "is_initiator", "yes", "out_of_range"),
    ]
    assert [row["is_initiator"] for row in read(out)] == [True, False, True, True]
    message = run("route", catalog, "--conversations", source, "-o", out).err
    assert "is_initiator, row 1: 'maybe' is not valid; expected true, false, 1 or 0 (line 3 of the file)" in message
    assert "to list invalid rows in a file and route the others, use --rejected FILE" in message


def test_the_output_and_the_rejected_rows_need_two_files(tmp_path: Path, catalog: Path, run: Run) -> None:
    given = write(conversations(5), tmp_path / "in.csv")
    result = run("route", catalog, "--conversations", given, "-o", tmp_path / "a.csv", "--rejected", tmp_path / "a.csv")
    assert (result.status, "it is specified for two outputs" in result.err) == (2, True)


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_a_row_that_needs_a_conversation_id_is_named_with_its_row_in_the_file(
    tmp_path: Path, run: Run, suffix: str
) -> None:
    script = tmp_path / "net.sql"
    script.write_text(
        "CREATE ROUTE A WITH SERVICE_NAME = '//Two', ADDRESS = 'TCP://a:4022';\n"
        "CREATE ROUTE B WITH SERVICE_NAME = '//Two', ADDRESS = 'TCP://b:4022';\n"
    )
    names = ["//One"] * 70_000 + ["//Two", "//One"]
    given = write(pa.table({"to_service_name": names}), tmp_path / f"in{suffix}")
    arguments = ["route", script, "--conversations", given, "-o", tmp_path / "out.csv"]
    result = run(*arguments)
    assert result.status == 2
    assert "or --tie-break first, because row 70000 has several equal candidates; the input has" in result.err
    assert run(*arguments, "--tie-break", "first").status == 0
