"""`ssbroker reassemble --spark`: the same rows and summary as the local run, in folders of Parquet files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import ssbroker
from tests.cli.conftest import Run
from tests.cli.formats import write
from tests.cli.fragments import KEYS, messages, rows_as_text, shuffled, with_text_ids
from tests.cli.spark_process import SparkProcess


def traffic() -> pa.Table:
    """Returns fragments without conflicts, whose outcome would depend on the order in which Spark reads them."""
    table = ssbroker.fragment(messages(60), max_fragment_bytes=64, session_keys=KEYS)
    kept = shuffled(table).slice(5)
    bodies = pa.array([b"damaged"] * 3, pa.binary())
    damaged = kept.slice(0, 3).set_column(5, kept.schema.field(5), bodies)
    return pa.concat_tables([damaged, kept, kept.slice(20, 10)]).drop_columns(["priority"])


def test_spark_equals_the_local_run(tmp_path: Path, run: Run, run_on_spark: SparkProcess) -> None:
    table = traffic()
    given = [write(table.slice(0, 100), tmp_path / "in-1.parquet"), write(table.slice(100), tmp_path / "in-2.parquet")]
    keys = pa.table({"conversation_id": [id_.bytes for id_ in KEYS], "session_key": list(KEYS.values())})
    by_keys = ("--session-keys", write(keys, tmp_path / "keys.csv"), "--json")
    bad = with_text_ids(table).set_column(0, "conversation_id", pa.array(["no guid"] * table.num_rows))
    later = ssbroker.fragment(messages(40), max_fragment_bytes=1000)
    later = later.filter(pc.field("message_sequence_number") == pc.scalar(1)).slice(0, 1)
    output = tmp_path / "result" / "out"
    output.parent.mkdir()
    tables = ("--rejected", tmp_path / "rejected", "--incomplete", tmp_path / "incomplete")

    calls: list[tuple[object, ...]] = [
        ("reassemble", "--spark", *given, "-o", output, *tables, *by_keys),
        ("reassemble", "--spark", *given, "-o", output, "--any-order", "--max-fragments-per-message", 2, *by_keys),
        ("reassemble", "--spark", write(bad, tmp_path / "bad.parquet"), "-o", output),
        ("reassemble", "--spark", write(later, tmp_path / "later.parquet"), "-o", tmp_path / "later"),
    ]
    results = [run_on_spark(*call) for call in calls]

    assert [result.noise for result in results] == ["", "", "", ""]
    assert [result.status for result in results] == [0, 1, 2, 0]
    assert results[1].err.endswith(
        " exceeded a limit; raise --max-pending-bytes or --max-fragments-per-message (now 2) or --max-message-bytes\n"
    )
    assert results[3].err.startswith(
        "ssbroker: warning: 1 complete message waits for earlier messages that are not in the input"
    )
    wanted = ssbroker.reassemble(table, session_keys=KEYS)
    for folder, rows_wanted in (("rejected", wanted.rejected), ("incomplete", wanted.pending)):
        assert sorted_rows(tmp_path / folder) == sorted(map(str, rows_as_text(rows_wanted)))
    local = ("reassemble", *given, "-o", tmp_path / "out.parquet", *by_keys)
    for result, options in zip(results[:2], ((), ("--any-order", "--max-fragments-per-message", 2)), strict=True):
        assert counts(result.out) == counts(run(*local, *options).out)
    limited = ssbroker.Reassembler(in_order=False, max_fragments_per_message=2, session_keys=KEYS).push(table)
    assert sorted_rows(output) == sorted(map(str, rows_as_text(limited.messages)))
    assert results[2].err.startswith("ssbroker: conversation_id, row ")
    assert "'no guid' is not a valid GUID" in results[2].err
    assert results[2].err.count("\n") == 1
    assert [entry.name for entry in output.parent.iterdir()] == ["out"]


def sorted_rows(folder: Path) -> list[str]:
    return sorted(map(str, rows_as_text(pq.read_table(folder))))


def counts(summary: str) -> dict[str, Any]:
    printed = json.loads(summary)
    tables = {name: {key: value for key, value in printed[name].items() if key != "output"} for name in SUMMARY_TABLES}
    return tables | {"rows": printed["rows"], "fragments": printed["fragments"]}


SUMMARY_TABLES = ("messages", "rejected", "incomplete")


def test_missing_pyspark_is_one_line(tmp_path: Path) -> None:
    given = write(traffic(), tmp_path / "in.parquet")
    program = "import sys; sys.modules['pyspark'] = None; from ssbroker.cli import main; sys.exit(main(sys.argv[1:]))"
    words = ["reassemble", "--spark", str(given), "-o", str(tmp_path / "out")]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "pip install 'ssbroker[local-spark]'" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("files", "options", "wanted"),
    [
        (["1.csv"], [], "1.csv: --spark reads fragments only from Parquet"),
        (["1.parquet"], ["--rejected", "no.csv"], "no.csv: --spark writes only a folder of Parquet files"),
        (["1.parquet"], ["--format", "csv"], "out: --spark writes only a folder of Parquet files"),
        (["1.parquet"], ["--state", "s"], "--spark supports neither --state nor --acknowledgements"),
        (["1.parquet"], ["--acknowledgements", "a"], "--spark supports neither --state nor --acknowledgements"),
        (["1.parquet"], ["--max-sequence-distance", "9"], "--spark does not support --max-sequence-distance"),
        (["1.parquet", "other.parquet"], [], "other.parquet: the column note is missing, but 1.parquet has it"),
    ],
)
def test_unsupported_spark_options(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, files: list[str], options: list[str], wanted: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in files:
        write(traffic().drop_columns(["note"]) if file.startswith("other") else traffic(), tmp_path / file)
    result = run("reassemble", "--spark", *files, "-o", "out", *options)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith(f"ssbroker: {wanted}")
    assert result.err.count("\n") == 1
