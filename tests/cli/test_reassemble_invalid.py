"""`ssbroker reassemble --invalid FILE` writes invalid rows to a file and reassembles the others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import ssbroker
from tests.cli.conftest import Run, as_text
from tests.cli.formats import SUFFIXES, read, write
from tests.cli.fragments import CONVERSATIONS, damaged_fragments, expected_tables, messages, with_text_ids

BAD = {17: ("conversation_id", "no guid"), 170: ("conversation_id", "7"), 299: ("is_initiator", None)}
LISTED = {
    17: ("conversation_id", "no guid", "invalid_guid"),
    170: ("conversation_id", "7", "invalid_guid"),
    299: ("is_initiator", None, "null"),
}


def with_bad_rows(table: pa.Table, bad: Mapping[int, tuple[str, Any]]) -> pa.Table:
    """The table with other values in some cells."""
    rows = table.to_pylist()
    for number, (column, value) in bad.items():
        rows[number][column] = value
    return pa.Table.from_pylist(rows, schema=pa.schema([field.with_nullable(True) for field in table.schema]))


def without_rows(table: pa.Table, numbers: Mapping[int, object]) -> pa.Table:
    return table.filter(pa.array([number not in numbers for number in range(table.num_rows)]))


@pytest.mark.parametrize("source", SUFFIXES)
def test_invalid_rows_are_written_with_their_place_and_the_others_are_reassembled(
    tmp_path: Path, run: Run, source: str
) -> None:
    table = with_text_ids(damaged_fragments(200))
    first = write(
        with_text_ids(ssbroker.fragment(messages(1), max_fragment_bytes=64)).slice(0, 0), tmp_path / f"a{source}"
    )
    inputs = [first] if source != ".jsonl" else []
    given = write(with_bad_rows(table, BAD), tmp_path / f"in{source}")
    out, bad, rejected = tmp_path / f"out{source}", tmp_path / f"bad{source}", tmp_path / f"no{source}"

    result = run("reassemble", *inputs, given, "-o", out, "--invalid", bad, "--rejected", rejected)

    assert (result.status, result.err) == (0, "")
    assert (
        f"3 invalid rows ignored, listed in {bad}\n"
        "  2 x conversation_id: invalid_guid, such as 'no guid'\n"
        "  1 x is_initiator: null\n"
    ) in result.out
    assert [(row["file"], int(row["row"]), row["column"], row["value"], row["reason"]) for row in read(bad)] == [
        (str(given), number, *values) for number, values in LISTED.items()
    ]
    expected = expected_tables(without_rows(table, BAD))
    assert len(read(out)) == len(expected["messages"])
    assert [row["message_body"] or "0x" for row in read(out)] == [row["message_body"] for row in expected["messages"]]
    assert read(rejected) == expected["rejected"]


def test_every_kind_of_cell_of_a_csv_file_may_be_invalid(tmp_path: Path, run: Run) -> None:
    """In the order of the file, with its row numbers, each row once with its first invalid column."""
    valid = {
        "conversation_id": str(CONVERSATIONS[0]),
        "is_initiator": "true",
        "message_sequence_number": "0",
        "fragment_number": "0",
        "fragment_count": "1",
        "message_body": "0x61",
        "message_signature": "",
    }
    wrong: list[dict[str, str]] = [
        {"message_signature": "abc"},
        {"fragment_count": "NaN", "message_body": "?"},
        {},
        {"is_initiator": "maybe"},
        {"message_sequence_number": "1", "conversation_id": "7"},
        {"message_sequence_number": str(2**63)},
        {"fragment_number": "1.5"},
        {"message_body": "0x0"},
        {"message_sequence_number": ""},
        {"message_sequence_number": "1"},
    ]
    given = write(pa.Table.from_pylist([valid | row for row in wrong]), tmp_path / "in.csv")
    out, bad = tmp_path / "out.csv", tmp_path / "bad.csv"

    result = run("reassemble", given, "-o", out, "--invalid", bad, "--json")

    assert result.status == 0
    assert [(int(row["row"]), row["column"], row["value"], row["reason"]) for row in read(bad)] == [
        (0, "message_signature", "abc", "out_of_range"),
        (1, "fragment_count", "NaN", "out_of_range"),
        (3, "is_initiator", "maybe", "out_of_range"),
        (4, "conversation_id", "7", "invalid_guid"),
        (5, "message_sequence_number", str(2**63), "out_of_range"),
        (6, "fragment_number", "1.5", "out_of_range"),
        (7, "message_body", "0x0", "out_of_range"),
        (8, "message_sequence_number", None, "null"),
    ]
    assert [row["message_body"] for row in read(out)] == ["0x61", "0x61"]
    summary = json.loads(result.out)
    assert (summary["rows"], summary["messages"]["rows"], summary["invalid"]["rows"]) == (2, 2, 8)
    assert summary["rows"] + summary["invalid"]["rows"] == len(wrong)
    assert summary["invalid"]["output"] == str(bad)
    assert {"column": "conversation_id", "reason": "invalid_guid", "example": "7", "rows": 1} in summary["invalid"][
        "causes"
    ]


def test_text_in_json_that_is_not_hexadecimal_is_listed_with_its_line(tmp_path: Path, run: Run) -> None:
    rows = [as_text(row) for row in ssbroker.fragment(messages(40), max_fragment_bytes=64).to_pylist()]
    good = [json.dumps(row) for row in rows]
    rows[3]["message_body"] = rows[5]["message_signature"] = "0xyz"
    given = tmp_path / "in.jsonl"
    given.write_text("\n\n".join(json.dumps(row) for row in rows))  # each row is followed by a blank line
    bad = tmp_path / "bad.csv"
    result = run("reassemble", given, "-o", tmp_path / "out.csv", "--invalid", bad)
    assert result.status == 0
    assert [(int(row["row"]), row["column"], row["value"]) for row in read(bad)] == [
        (6, "message_body", "0xyz"),
        (10, "message_signature", "0xyz"),
    ]
    kept = tmp_path / "kept.jsonl"
    kept.write_text("\n".join(line for number, line in enumerate(good) if number not in (3, 5)))
    assert run("reassemble", kept, "-o", tmp_path / "expected.csv").status == 0
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "expected.csv").read_bytes()


def test_without_invalid_rows_the_file_is_empty_and_the_output_the_same(tmp_path: Path, run: Run) -> None:
    given = write(damaged_fragments(50), tmp_path / "in.csv")
    assert run("reassemble", given, "-o", tmp_path / "one.csv").status == 0
    result = run("reassemble", given, "-o", tmp_path / "two.csv", "--invalid", tmp_path / "bad.csv", "--json")
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()
    assert json.loads(result.out)["invalid"] == {"rows": 0, "output": str(tmp_path / "bad.csv"), "causes": []}
    assert (tmp_path / "bad.csv").read_text() == '"file","row","column","value","reason"\n'


@pytest.mark.parametrize(
    ("suffix", "column", "value", "line"),
    [
        (".csv", "conversation_id", "no guid", " (line 4 of the file)"),
        (".csv", "message_body", "0x1", " (line 4 of the file)"),
        (".jsonl", "message_body", "0x1", ""),
        (".parquet", "message_body", None, ""),
    ],
)
def test_an_invalid_row_suggests_to_list_it(
    tmp_path: Path, run: Run, suffix: str, column: str, value: str | None, line: str
) -> None:
    table = with_text_ids(ssbroker.fragment(messages(5), max_fragment_bytes=64))
    if suffix != ".parquet":
        digits = pa.array([f"0x{body.hex()}" for body in bodies_of(table)])
        table = table.set_column(5, "message_body", digits)
    given = write(with_bad_rows(table, {2: (column, value)}), tmp_path / f"in{suffix}")
    result = run("reassemble", given, "-o", tmp_path / "out.csv")
    assert result.status == 2
    assert f"in{suffix}: {column}, row 2: " in result.err
    assert result.err.endswith(
        f"{line}; to list invalid rows in a file and reassemble the others, use --invalid FILE\n"
    )


def bodies_of(table: pa.Table) -> list[bytes]:
    bodies: list[Any] = table["message_body"].to_pylist()
    return bodies


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_session_key_of_the_wrong_length_is_not_shown(tmp_path: Path, run: Run, suffix: str) -> None:
    table = damaged_fragments(20)
    keys = [bytes(16), b"secret", *[None] * (table.num_rows - 2)]
    given = write(table.append_column("secret_key", pa.array(keys, pa.binary())), tmp_path / f"in{suffix}")
    bad = tmp_path / "bad.csv"
    arguments = ("reassemble", given, "-o", tmp_path / "out.csv", "--session-key-column", "secret_key")
    assert b"secret".hex() not in run(*arguments).err
    assert run(*arguments, "--invalid", bad).status == 0
    assert [(row["row"], row["column"], row["value"], row["reason"]) for row in read(bad)] == [
        ("1", "secret_key", "6 bytes", "out_of_range")
    ]


def test_a_cell_of_session_keys_that_is_not_hexadecimal_is_not_shown(tmp_path: Path, run: Run) -> None:
    table = damaged_fragments(20)
    keys = ["00" * 16, "secret", *[""] * (table.num_rows - 2)]
    given = write(table.append_column("secret_key", pa.array(keys)), tmp_path / "in.csv")
    bad = tmp_path / "bad.csv"
    arguments = ("reassemble", given, "-o", tmp_path / "out.csv", "--session-key-column", "secret_key")
    assert "secret_key, row 1: '6 characters' is not valid; expected hexadecimal digits" in run(*arguments).err
    assert run(*arguments, "--invalid", bad).status == 0
    assert [(row["row"], row["column"], row["value"]) for row in read(bad)] == [("1", "secret_key", "6 characters")]


def test_spark_does_not_list_invalid_rows(tmp_path: Path, run: Run) -> None:
    given = write(damaged_fragments(5), tmp_path / "in.parquet")
    result = run("reassemble", "--spark", given, "-o", tmp_path / "out", "--invalid", tmp_path / "bad")
    assert (result.status, "--spark does not support --invalid; " in result.err) == (2, True)
