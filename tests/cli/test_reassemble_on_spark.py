"""`ssbroker reassemble --spark`: the same rows and the same summary, as folders that appear whole or not at all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import ssbroker
from tests.cli.conftest import Run
from tests.cli.formats import write
from tests.cli.fragments import KEYS, messages, rows, shuffled, text_ids
from tests.cli.spark_calls import SparkCalls


def traffic() -> pa.Table:
    """Fragments without contradictions, whose outcome would hang on the order in which Spark brings them."""
    table = ssbroker.fragment(messages(60), max_fragment_bytes=64, session_keys=KEYS)
    kept = shuffled(table).slice(5)
    bodies = pa.array([b"damaged"] * 3, pa.binary())
    damaged = kept.slice(0, 3).set_column(5, kept.schema.field(5), bodies)
    return pa.concat_tables([damaged, kept, kept.slice(20, 10)]).drop_columns(["priority"])


def test_spark_reassembles_and_counts_the_same(tmp_path: Path, run: Run, on_spark: SparkCalls) -> None:
    table = traffic()
    given = [write(table.slice(0, 100), tmp_path / "in-1.parquet"), write(table.slice(100), tmp_path / "in-2.parquet")]
    keys = pa.table({"conversation_id": [id_.bytes for id_ in KEYS], "session_key": list(KEYS.values())})
    by_keys = ("--session-keys", write(keys, tmp_path / "keys.csv"), "--json")
    bad = text_ids(table).set_column(0, "conversation_id", pa.array(["no guid"] * table.num_rows))
    output = tmp_path / "result" / "out"
    output.parent.mkdir()
    tables = ("--rejected", tmp_path / "rejected", "--incomplete", tmp_path / "incomplete")

    calls: list[tuple[object, ...]] = [
        ("reassemble", "--spark", *given, "-o", output, *tables, *by_keys),
        ("reassemble", "--spark", *given, "-o", output, "--any-order", "--max-fragments-per-message", 2, *by_keys),
        ("reassemble", "--spark", write(bad, tmp_path / "bad.parquet"), "-o", output),
    ]
    told = [on_spark(*call) for call in calls]

    assert [one.noise for one in told] == ["", "", ""]
    assert [one.status for one in told] == [0, 0, 2]
    wanted = ssbroker.reassemble(table, session_keys=KEYS)
    for folder, rows_wanted in (("rejected", wanted.rejected), ("incomplete", wanted.pending)):
        assert by_text(tmp_path / folder) == sorted(map(str, rows(rows_wanted)))
    local = ("reassemble", *given, "-o", tmp_path / "out.parquet", *by_keys)
    for one, options in zip(told[:2], ((), ("--any-order", "--max-fragments-per-message", 2)), strict=True):
        assert counts(one.out) == counts(run(*local, *options).out)
    limited = ssbroker.Reassembler(in_order=False, max_fragments_per_message=2, session_keys=KEYS).push(table)
    assert by_text(output) == sorted(map(str, rows(limited.messages)))
    assert told[2].err.startswith("ssbroker: conversation_id, row ")
    assert "'no guid' is no GUID" in told[2].err
    assert told[2].err.count("\n") == 1
    assert [entry.name for entry in output.parent.iterdir()] == ["out"]


def by_text(folder: Path) -> list[str]:
    return sorted(map(str, rows(pq.read_table(folder))))


def counts(summary: str) -> dict[str, Any]:
    told = json.loads(summary)
    places = {name: {key: value for key, value in told[name].items() if key != "output"} for name in WITH_PLACES}
    return places | {"rows": told["rows"], "fragments": told["fragments"]}


WITH_PLACES = ("messages", "rejected", "incomplete")


def test_without_pyspark_one_line_says_what_to_install(tmp_path: Path) -> None:
    given = write(traffic(), tmp_path / "in.parquet")
    program = "import sys; sys.modules['pyspark'] = None; from ssbroker.cli import main; sys.exit(main(sys.argv[1:]))"
    words = ["reassemble", "--spark", str(given), "-o", str(tmp_path / "out")]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "pip install 'ssbroker[spark]'" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("files", "options", "wanted"),
    [
        (["1.csv"], [], "1.csv: --spark reads fragments from Parquet alone"),
        (["1.parquet"], ["--rejected", "no.csv"], "no.csv: --spark writes folders of Parquet, no other format"),
        (["1.parquet"], ["--format", "csv"], "out: --spark writes folders of Parquet, no other format"),
        (["1.parquet"], ["--state", "s"], "--spark leaves neither --state nor --acknowledgements"),
        (["1.parquet"], ["--acknowledgements", "a"], "--spark leaves neither --state nor --acknowledgements"),
        (["1.parquet"], ["--max-sequence-distance", "9"], "--spark has no limit --max-sequence-distance"),
        (["1.parquet", "other.parquet"], [], "other.parquet: lacks the column note, which 1.parquet has"),
    ],
)
def test_what_spark_cannot_do_is_told_before_it_starts(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, files: list[str], options: list[str], wanted: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in files:
        write(traffic().drop_columns(["note"]) if file.startswith("other") else traffic(), tmp_path / file)
    result = run("reassemble", "--spark", *files, "-o", "out", *options)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith(f"ssbroker: {wanted}")
    assert result.err.count("\n") == 1
