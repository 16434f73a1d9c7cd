"""What `ssbroker reassemble` tells at the end, and on the way."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow.compute as pc
import pytest

import ssbroker
from tests.cli.conftest import Run
from tests.cli.formats import write
from tests.cli.fragments import bytes_of, expected, messages, trouble


def test_the_summary_for_programs_counts_what_came_out(tmp_path: Path, run: Run) -> None:
    table = trouble(200)
    given, output, state = write(table, tmp_path / "in.parquet"), tmp_path / "out.csv", tmp_path / "state.bin"
    files = ("-o", output, "--incomplete", tmp_path / "wait.csv", "--state", state)

    told = json.loads(run("reassemble", given, *files, "--json").out)

    wanted = expected(table)
    pending = wanted["incomplete"]
    reasons = Counter(row["reason"] for row in wanted["rejected"])
    assert told.pop("seconds") > 0
    assert told.pop("rows_per_second") > 0
    assert told == {
        "fragments": [str(given)],
        "state": str(state),
        "rows": table.num_rows,
        "messages": {
            "rows": len(wanted["messages"]),
            "bytes": bytes_of(ssbroker.reassemble(table).messages),
            "output": str(output),
        },
        "rejected": {"rows": len(wanted["rejected"]), "reasons": reasons, "output": None},
        "incomplete": {
            "rows": len(pending),
            "waiting": sum(row["first_missing_fragment"] is None for row in pending),
            "bytes": sum(row["received_bytes"] for row in pending),
            "output": str(tmp_path / "wait.csv"),
        },
        "acknowledgements": {"rows": None, "output": None},
    }
    assert list(told["rejected"]["reasons"].values()) == sorted(reasons.values(), reverse=True)


def test_what_nobody_asked_for_is_told_with_the_option_that_writes_it(tmp_path: Path, run: Run) -> None:
    table = trouble(200)
    given, output = write(table, tmp_path / "in.parquet"), tmp_path / "out.parquet"
    wanted = expected(table)
    waiting = sum(row["first_missing_fragment"] is None for row in wanted["incomplete"])
    incomplete = f"{len(wanted['incomplete']) - waiting} messages incomplete and {waiting} waiting ("

    plain = run("reassemble", given, "-o", output)
    files = [tmp_path / name for name in ("no.csv", "wait.csv", "told.csv", "state.bin")]
    options = ("--rejected", files[0], "--incomplete", files[1], "--acknowledgements", files[2], "--state", files[3])
    asked = run("reassemble", given, "-o", output, *options)

    *table_lines, rejected, pending, done = plain.out.splitlines()
    assert table_lines[0].split() == ["Rejected", "Fragments", "Share"]
    assert {line.split()[0] for line in table_lines[2:-1]} == {row["reason"] for row in wanted["rejected"]}
    assert max(map(len, table_lines)) <= 80
    assert rejected == f"{len(wanted['rejected'])} fragments rejected; --rejected FILE writes which"
    assert pending.startswith(incomplete)
    assert pending.endswith("; --incomplete FILE writes which")
    assert done.startswith(f"{len(wanted['messages'])} messages (")
    assert f" of {table.num_rows} fragments reassembled in " in done
    assert done.endswith(f" rows/s) to {output}")
    assert "\x1b" not in plain.out
    *_, rejected, pending, acknowledged, done = asked.out.splitlines()
    assert rejected == f"{len(wanted['rejected'])} fragments rejected, to {files[0]}"
    assert pending.startswith(incomplete)
    assert pending.endswith(f", to {files[1]}; kept in {files[3]}")
    assert acknowledged == f"{len(wanted['acknowledgements'])} acknowledgements, to {files[2]}"


def test_when_all_is_well_one_line_is_enough(tmp_path: Path, run: Run) -> None:
    table = messages(1)
    given = write(ssbroker.fragment(table, max_fragment_bytes=1000), tmp_path / "in.parquet")
    out = run("reassemble", given, "-o", tmp_path / "out.parquet").out
    assert out.startswith(f"1 message ({bytes_of(table)} B) of 1 fragment reassembled in ")
    assert out.count("\n") == 1


@pytest.mark.parametrize("quiet", ["--quiet", "-q"])
def test_quiet_prints_nothing(tmp_path: Path, run: Run, quiet: str) -> None:
    result = run("reassemble", write(trouble(20), tmp_path / "in.parquet"), "-o", tmp_path / "out.csv", quiet)
    assert (result.status, result.out, result.err) == (0, "", "")


def test_the_bar_tells_rows_and_the_end(tmp_path: Path, run: Run) -> None:
    table = trouble(100)
    given = write(table, tmp_path / "in.parquet")

    shown = run("reassemble", given, "-o", tmp_path / "out.parquet", "--progress", "--json")

    assert json.loads(shown.out)["rows"] == table.num_rows
    assert "Reassembling" in shown.err
    assert "100%" in shown.err
    assert f"{table.num_rows} rows" in shown.err
    assert run("reassemble", given, "-o", tmp_path / "out.parquet").err == ""


def test_what_only_waits_is_not_called_incomplete(tmp_path: Path, run: Run) -> None:
    early = ssbroker.fragment(messages(40), max_fragment_bytes=1000)
    early = early.filter(pc.field("message_sequence_number") > pc.scalar(0))
    given = write(early, tmp_path / "in.parquet")
    out = run("reassemble", given, "-o", tmp_path / "out.parquet").out
    assert out.startswith(f"{early.num_rows} messages waiting (")
