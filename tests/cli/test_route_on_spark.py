"""`ssbroker route --spark`: the same decisions and the same summary, as a folder that appears whole or not at all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import NOW_TEXT, Run, conversations, expected, readable
from tests.cli.formats import decisions_of, write

# Several runs in one process, so that only one JVM is started.
PROGRAM = """
import contextlib, io, json, sys
from ssbroker.cli import main
for arguments in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(arguments)
    print(json.dumps([status, out.getvalue(), err.getvalue()]))
"""


def runs(*calls: tuple[object, ...]) -> tuple[list[tuple[int, str, str]], str]:
    """What each call told, and what else was written on standard error."""
    given = json.dumps([[str(argument) for argument in call] for call in calls])
    done = subprocess.run([sys.executable, "-c", PROGRAM, given], capture_output=True, text=True, check=True)
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()], done.stderr


def rows(folder: Path) -> list[dict[str, Any]]:
    return [readable(row) for row in pq.read_table(folder).to_pylist()]


def test_spark_decides_and_counts_the_same(tmp_path: Path, catalog: Path, run: Run) -> None:
    table = conversations(300)
    wanted = expected(catalog, table)
    common = ("route", "--catalog", catalog, "--now", NOW_TEXT, "--json")
    inputs = [write(table, tmp_path / f"in{suffix}") for suffix in (".parquet", ".csv", ".jsonl")]
    bad = tmp_path / "bad.csv"
    bad.write_text("conversation_id,database,to_service_name,is_initiator\nno-guid,Sales,//A,true\n")
    worse = tmp_path / "worse.csv"
    worse.write_text(bad.read_text().replace("true", "maybe"))
    output = tmp_path / "result" / "out"
    output.parent.mkdir()

    told, noise = runs(
        *((*common, "--spark", "--conversations", file, "-o", tmp_path / f"out-{file.suffix[1:]}") for file in inputs),
        (*common, "--spark", "--conversations", inputs[0], "-o", output),
        (*common, "--spark", "--conversations", bad, "-o", output),
        (*common, "--spark", "--conversations", worse, "-o", output),
        (*common, "--spark", "--conversations", inputs[0], "-o", output, "--tie-break", "round_robin"),
    )

    assert noise == ""
    assert [status for status, _, _ in told] == [0, 0, 0, 0, 2, 2, 2]
    for file in inputs:
        found = rows(tmp_path / f"out-{file.suffix[1:]}")
        order = {row["conversation_id"]: decision for row, decision in zip(table.to_pylist(), wanted, strict=True)}
        assert {row["conversation_id"]: row["route_id"] for row in found} == {
            readable({"id": key})["id"]: decision["route_id"] for key, decision in order.items()
        }
        assert sorted(map(str, decisions_of(found))) == sorted(map(str, wanted))
    local = json.loads(run(*common, "--conversations", inputs[0], "-o", tmp_path / "out.parquet").out)
    for _, out, _ in told[:4]:
        summary = json.loads(out)
        for name in ("rows", "outcomes", "reasons", "match_steps", "next_hops", "target_databases"):
            assert summary[name] == local[name]
    assert [err.count("\n") for _, _, err in told[4:]] == [1, 1, 1]
    assert told[4][2].startswith("ssbroker: conversation_id, row 0: 'no-guid' is no GUID")
    assert "is_initiator: maybe is not true, false, 1 or 0" in told[5][2]
    assert "round_robin" in told[6][2]
    assert len(rows(output)) == 300
    assert [entry.name for entry in output.parent.iterdir()] == ["out"]


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
