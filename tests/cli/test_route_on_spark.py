"""`ssbroker route --spark`: the same decisions and summary as the local run, in a folder of Parquet files."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from itertools import repeat
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import NOW_TEXT, Run, as_text, conversations, expected_decisions
from tests.cli.formats import decisions_of, write
from tests.cli.spark_process import SparkProcess


def rows(folder: Path) -> list[dict[str, Any]]:
    return [as_text(row) for row in pq.read_table(folder).to_pylist()]


def test_spark_equals_the_local_run(tmp_path: Path, catalog: Path, run: Run, run_on_spark: SparkProcess) -> None:
    table = conversations(300)
    wanted = expected_decisions(catalog, table)
    common = ("route", catalog, "--at", NOW_TEXT, "--json")
    inputs = [write(table, tmp_path / f"in{suffix}") for suffix in (".parquet", ".csv", ".jsonl")]
    bad = tmp_path / "bad.csv"
    bad.write_text("conversation_id,database,to_service_name,is_initiator\nno-guid,Sales,//A,true\n")
    worse = tmp_path / "worse.csv"
    worse.write_text(bad.read_text().replace("true", "maybe"))
    folder = tmp_path / "results"
    folder.mkdir()
    outputs = [folder / file.suffix[1:] for file in inputs]

    report = ("--html", tmp_path / "spark.html")
    results = [
        run_on_spark(*common, "--spark", "--conversations", *each, *(report if each[0] is inputs[0] else ()))
        for each in zip(inputs, repeat("-o"), outputs)
    ]
    refused = [
        run_on_spark(*common, "--spark", "--conversations", *each, "-o", outputs[0])
        for each in (
            (bad,),
            (worse,),
            (inputs[0], "--tie-break", "round_robin"),
        )
    ]

    assert [result.noise for result in (*results, *refused)] == [""] * 6
    assert [result.status for result in (*results, *refused)] == [0, 0, 0, 2, 2, 2]
    for output in outputs:
        found = rows(output)
        order = {row["conversation_id"]: decision for row, decision in zip(table.to_pylist(), wanted, strict=True)}
        assert {row["conversation_id"]: row["route_id"] for row in found} == {
            as_text({"id": key})["id"]: decision["route_id"] for key, decision in order.items()
        }
        assert sorted(map(str, decisions_of(found))) == sorted(map(str, wanted))
    html = tmp_path / "local.html"
    local = json.loads(run(*common, "--conversations", inputs[0], "-o", tmp_path / "out.parquet", "--html", html).out)
    assert "<svg" in html.read_text()
    assert (tmp_path / "spark.html").read_text() == html.read_text()
    for result in results:
        summary = json.loads(result.out)
        for name in ("rows", "outcomes", "reasons", "match_steps", "next_hops", "target_databases"):
            assert summary[name] == local[name]
    assert [result.err.count("\n") for result in refused] == [1, 1, 1]
    assert refused[0].err.startswith("ssbroker: conversation_id, row 0: 'no-guid' is not a valid GUID")
    assert "is_initiator: expected true, false, 1 or 0, got maybe" in refused[1].err
    assert "round_robin" in refused[2].err
    assert len(rows(outputs[0])) == 300
    assert sorted(folder.iterdir()) == sorted(outputs)


def test_invalid_rows_are_a_second_folder(tmp_path: Path, catalog: Path, run_on_spark: SparkProcess) -> None:
    given = tmp_path / "mixed.csv"
    header = "conversation_id,database,to_service_name\n"
    ids = [str(uuid.UUID(int=number)) for number in range(3)]
    given.write_text(f"{header}{ids[0]},Sales,//Stock\n7,Sales,//Stock\n{ids[1]},Nowhere,//Stock\n{ids[2]},,//Stock\n")
    outputs = ("-o", tmp_path / "out", "--rejected", tmp_path / "bad")
    result = run_on_spark("route", catalog, "--spark", "--conversations", given, *outputs, "--json")
    assert (result.status, result.noise) == (0, "")
    summary = json.loads(result.out)
    causes = [
        {"column": "conversation_id", "reason": "invalid_guid", "example": "7", "rows": 1},
        {"column": "database", "reason": "unknown_database", "example": "Nowhere", "rows": 1},
    ]
    assert summary["rejected"] == {"rows": 2, "output": str(tmp_path / "bad"), "causes": causes}
    assert summary["rows"] == 2
    assert sorted(
        (row["conversation_id"], row["column"], row["value"], row["reason"]) for row in rows(tmp_path / "bad")
    ) == [
        (ids[1], "database", "Nowhere", "unknown_database"),
        ("7", "conversation_id", "7", "invalid_guid"),
    ]
    assert sorted(row["conversation_id"] for row in rows(tmp_path / "out")) == [ids[0], ids[2]]


def test_replies_without_a_column_of_their_direction(tmp_path: Path, catalog: Path, run_on_spark: SparkProcess) -> None:
    """The output has the columns of the input, without the one that the option adds."""
    given = tmp_path / "in.csv"
    given.write_text("database,to_service_name\nSales,//Stock\nNowhere,//Stock\n")
    outputs = ("-o", tmp_path / "out", "--rejected", tmp_path / "bad")
    common = ("route", catalog, "--spark", "--tie-break", "first", "--from-target", "--conversations")
    assert run_on_spark(*common, given, *outputs).status == 0
    assert list(rows(tmp_path / "out")[0])[:3] == ["database", "to_service_name", "outcome"]
    assert list(rows(tmp_path / "bad")[0]) == ["database", "to_service_name", "column", "value", "reason"]
    given.write_text("database,to_service_name,is_initiator\nSales,//Stock,1\n")
    result = run_on_spark(*common, given, *outputs)
    assert (result.status, "which already specifies which side sent each message" in result.err) == (2, True)


def test_missing_pyspark_is_one_line(tmp_path: Path, catalog: Path) -> None:
    given = write(conversations(5), tmp_path / "in.parquet")
    program = "import sys; sys.modules['pyspark'] = None; from ssbroker.cli import main; sys.exit(main(sys.argv[1:]))"
    arguments = ["route", "--spark", catalog, "--conversations", given, "-o", tmp_path / "out"]
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "pip install 'ssbroker[local-spark]'" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("files", "options", "wanted"),
    [
        (["1.arrow"], ["-o", "out"], "--spark reads parquet, csv, jsonl, but not Arrow IPC"),
        (["semicolons.csv"], ["-o", "out"], "--spark reads only CSV in UTF-8, separated by commas"),
        (["1.csv", "2.parquet"], ["-o", "out"], "--spark reads only one format at a time"),
        (["1.parquet"], ["-o", "out.csv"], "--spark writes only a folder of Parquet files"),
        (["1.parquet"], ["-o", "out", "--format", "csv"], "--spark writes only a folder of Parquet files"),
        (["1.parquet", "other.parquet"], ["-o", "out"], "the column database is missing"),
    ],
)
def test_unsupported_spark_options(
    tmp_path: Path,
    catalog: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    files: list[str],
    options: list[str],
    wanted: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in files:
        table = conversations(5)
        write(table.drop_columns(["database"]) if file.startswith("other") else table, tmp_path / file)
        if file.startswith("semicolons"):
            (tmp_path / file).write_text((tmp_path / file).read_text().replace(",", ";"))
    result = run("route", "--spark", catalog, "--conversations", *files, *options)
    assert (result.status, result.out) == (2, "")
    assert wanted in result.err
    assert result.err.count("\n") == 1
