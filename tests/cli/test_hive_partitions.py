"""Files in Hive partitions: the folders of the path are columns, for every command that reads files."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

import ssbroker
from tests.cli.conftest import NOW_TEXT, Run, conversations, expected_decisions
from tests.cli.formats import SUFFIXES, decisions_of, read, write
from tests.cli.fragments import messages

DATABASES = {"Sales": "database=Sales", "Billing": "database=Billing", None: "database=__HIVE_DEFAULT_PARTITION__"}


def partitioned(table: pa.Table, folder: Path, suffix: str) -> list[Path]:
    """Writes the rows of each database into a partition, as Spark would."""
    files = []
    for database, name in DATABASES.items():
        rows = table.filter(pa.array([each == database for each in table["database"].to_pylist()]))
        path = folder / "day=2026-01-01" / name / f"p{suffix}"
        path.parent.mkdir(parents=True)
        files.append(write(rows.drop_columns(["database"]), path))
    return files


@pytest.mark.parametrize("output", [".parquet", ".jsonl"])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_partitions_are_columns(tmp_path: Path, catalog: Path, run: Run, suffix: str, output: str) -> None:
    table = conversations(200)
    files = partitioned(table, tmp_path / "hive", suffix)
    written = tmp_path / f"out{output}"
    pattern = tmp_path / "hive" / "**" / f"*{suffix}"

    result = run("route", catalog, "--conversations", pattern, "-o", written, "--at", NOW_TEXT)

    assert (result.status, result.err) == (0, "")
    found = sorted(read(written), key=lambda row: str(row["conversation_id"]))
    wanted = table.sort_by("conversation_id")
    assert decisions_of(found) == expected_decisions(catalog, wanted)
    assert [row["database"] for row in found] == wanted["database"].to_pylist()
    assert {row["day"] for row in found} == {"2026-01-01"}
    compared = run("compare", catalog, catalog, "--conversations", *files, "--at", NOW_TEXT)
    assert (compared.status, compared.err) == (0, "")
    assert "0 of 200 conversations change." in compared.out


def test_a_database_that_the_catalog_lacks_is_refused(tmp_path: Path, run: Run) -> None:
    (tmp_path / "one.sql").write_text(
        "USE Sales\nCREATE ROUTE Tax WITH SERVICE_NAME = '//Tax', ADDRESS = 'TCP://tax:1'\n"
    )
    table = pa.table({"to_service_name": ["//Tax"]})
    for folder in ("hive/database=Sales", "hive/database=Billing"):
        (tmp_path / folder).mkdir(parents=True)
        write(table, tmp_path / folder / "p.parquet")
    given = ("--conversations", tmp_path / "hive/**/*.parquet", "-o", tmp_path / "out.parquet")
    result = run("route", tmp_path / "one.sql", *given)
    assert result.status == 2
    assert "database=Billing/p.parquet: database, row 0: 'Billing' is not a database of the catalog" in result.err
    rejected = run("route", tmp_path / "one.sql", *given, "--rejected", tmp_path / "no.csv")
    assert (rejected.status, [row["value"] for row in read(tmp_path / "no.csv")]) == (0, ["Billing"])
    not_searched = run(
        "route", tmp_path / "one.sql", "--conversations", tmp_path / "hive", "-o", tmp_path / "out.parquet"
    )
    assert "use a pattern such as 'folder/**/*.parquet'" in not_searched.err


def test_values_are_decoded_and_typed(tmp_path: Path, run: Run) -> None:
    """Those of columns that the command reads get their type; the others are text."""
    sent = messages(1).drop_columns(["is_initiator", "message_sequence_number"])
    folder = tmp_path / "is_initiator=false" / "message_sequence_number=0" / "code=007" / "a%2Fb=%C3%A4%3D1=2"
    folder.mkdir(parents=True)
    whole = {"is_initiator": [False], "message_sequence_number": [0]}
    parts = ssbroker.fragment(
        pa.table(whole | dict(zip(sent.column_names, sent.columns, strict=True))), max_fragment_bytes=64
    )
    write(parts.drop_columns([*whole]), folder / "x=1.parquet")
    result = run("reassemble", folder, "-o", tmp_path / "out.jsonl")
    assert (result.status, result.err) == (0, "")
    (row,) = read(tmp_path / "out.jsonl")
    found = [row[name] for name in ("is_initiator", "message_sequence_number", "code", "a/b")]
    assert found == [False, 0, "007", "ä=1=2"]


def test_an_invalid_value_names_file_and_column(tmp_path: Path, catalog: Path, run: Run) -> None:
    (tmp_path / "is_initiator=maybe").mkdir()
    file = write(conversations(3).drop_columns(["is_initiator"]), tmp_path / "is_initiator=maybe" / "p.parquet")
    result = run("route", catalog, "--conversations", file, "-o", tmp_path / "out.parquet")
    assert result.status == 2
    assert "p.parquet: is_initiator, row 0: 'maybe' is not valid; expected true, false, 1 or 0" in result.err


def test_a_column_that_the_file_has_too_keeps_its_values(tmp_path: Path, catalog: Path, run: Run) -> None:
    """Polars writes the columns of partitions into the files too."""
    frame = pl.DataFrame(conversations(50).drop_columns(["note"]))
    frame.write_parquet(tmp_path / "hive", partition_by=["is_initiator", "priority"])
    given = tmp_path / "hive" / "**" / "*.parquet"
    result = run("route", catalog, "--conversations", given, "-o", tmp_path / "out.parquet", "--json")
    assert (result.status, result.err) == (0, "")
    assert json.loads(result.out)["rows"] == 50
    assert {row["priority"] for row in read(tmp_path / "out.parquet")} == {1, 10, None}


def test_a_file_outside_the_partitions_is_refused(tmp_path: Path, catalog: Path, run: Run) -> None:
    table = conversations(5)
    (tmp_path / "day=1").mkdir()
    files = [write(table, tmp_path / name) for name in ("day=1/a.parquet", "b.parquet")]
    result = run("route", catalog, "--conversations", *files, "-o", tmp_path / "out.parquet")
    assert result.status == 2
    assert "b.parquet: the column day is missing" in result.err


def test_a_partition_that_routing_adds_is_refused(tmp_path: Path, catalog: Path, run: Run) -> None:
    (tmp_path / "outcome=REMOTE").mkdir()
    file = write(conversations(5), tmp_path / "outcome=REMOTE" / "a.jsonl")
    result = run("route", catalog, "--conversations", file, "-o", tmp_path / "out.jsonl")
    assert result.status == 2
    assert "routing adds the column outcome" in result.err


def test_spark_refuses_partitions(tmp_path: Path, catalog: Path, run: Run) -> None:
    """Spark would read the files without the columns."""
    (tmp_path / "database=Sales").mkdir()
    file = write(conversations(5).drop_columns(["database"]), tmp_path / "database=Sales" / "a.parquet")
    routed = run("route", catalog, "--spark", "--conversations", file, "-o", tmp_path / "out")
    whole = run("reassemble", "--spark", file, "-o", tmp_path / "out")
    for result in (routed, whole):
        assert result.status == 2
        assert "--spark does not read the Hive partition column database; omit --spark" in result.err
