"""`ssbroker route --spark`: the same decisions and the same summary, as a folder that appears whole or not at all."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import repeat
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import NOW_TEXT, Run, conversations, expected, readable
from tests.cli.formats import decisions_of, write
from tests.cli.spark_calls import SparkCalls


def rows(folder: Path) -> list[dict[str, Any]]:
    return [readable(row) for row in pq.read_table(folder).to_pylist()]


def test_spark_decides_and_counts_the_same(tmp_path: Path, catalog: Path, run: Run, on_spark: SparkCalls) -> None:
    table = conversations(300)
    wanted = expected(catalog, table)
    common = ("route", "--catalog", catalog, "--now", NOW_TEXT, "--json")
    inputs = [write(table, tmp_path / f"in{suffix}") for suffix in (".parquet", ".csv", ".jsonl")]
    bad = tmp_path / "bad.csv"
    bad.write_text("conversation_id,database,to_service_name,is_initiator\nno-guid,Sales,//A,true\n")
    worse = tmp_path / "worse.csv"
    worse.write_text(bad.read_text().replace("true", "maybe"))
    results = tmp_path / "results"
    results.mkdir()
    outputs = [results / file.suffix[1:] for file in inputs]

    told = [on_spark(*common, "--spark", "--conversations", *each) for each in zip(inputs, repeat("-o"), outputs)]
    refused = [
        on_spark(*common, "--spark", "--conversations", *each, "-o", outputs[0])
        for each in (
            (bad,),
            (worse,),
            (inputs[0], "--tie-break", "round_robin"),
        )
    ]

    assert [one.noise for one in (*told, *refused)] == [""] * 6
    assert [one.status for one in (*told, *refused)] == [0, 0, 0, 2, 2, 2]
    for output in outputs:
        found = rows(output)
        order = {row["conversation_id"]: decision for row, decision in zip(table.to_pylist(), wanted, strict=True)}
        assert {row["conversation_id"]: row["route_id"] for row in found} == {
            readable({"id": key})["id"]: decision["route_id"] for key, decision in order.items()
        }
        assert sorted(map(str, decisions_of(found))) == sorted(map(str, wanted))
    local = json.loads(run(*common, "--conversations", inputs[0], "-o", tmp_path / "out.parquet").out)
    for one in told:
        summary = json.loads(one.out)
        for name in ("rows", "outcomes", "reasons", "match_steps", "next_hops", "target_databases"):
            assert summary[name] == local[name]
    assert [one.err.count("\n") for one in refused] == [1, 1, 1]
    assert refused[0].err.startswith("ssbroker: conversation_id, row 0: 'no-guid' is no GUID")
    assert "is_initiator: expected true, false, 1 or 0; got maybe" in refused[1].err
    assert "round_robin" in refused[2].err
    assert len(rows(outputs[0])) == 300
    assert sorted(results.iterdir()) == sorted(outputs)


def test_without_pyspark_one_line_says_what_to_install(tmp_path: Path, catalog: Path) -> None:
    given = write(conversations(5), tmp_path / "in.parquet")
    program = "import sys; sys.modules['pyspark'] = None; from ssbroker.cli import main; sys.exit(main(sys.argv[1:]))"
    arguments = ["route", "--spark", "--catalog", catalog, "--conversations", given, "-o", tmp_path / "out"]
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "pip install 'ssbroker[spark]'" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("files", "options", "wanted"),
    [
        (["1.arrow"], ["-o", "out"], "--spark reads parquet, csv, jsonl, not Arrow IPC"),
        (["1.csv", "2.parquet"], ["-o", "out"], "--spark reads files of one format at a time"),
        (["1.parquet"], ["-o", "out.csv"], "--spark writes a folder of Parquet, no other format"),
        (["1.parquet"], ["-o", "out", "--format", "csv"], "--spark writes a folder of Parquet, no other format"),
        (["1.parquet", "other.parquet"], ["-o", "out"], "lacks the column database"),
    ],
)
def test_what_spark_cannot_do_is_told_before_it_starts(
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
    result = run("route", "--spark", "--catalog", catalog, "--conversations", *files, *options)
    assert (result.status, result.out) == (2, "")
    assert wanted in result.err
    assert result.err.count("\n") == 1
