"""The summary and the progress bar of `ssbroker reassemble`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import ssbroker
from tests.cli.conftest import Run
from tests.cli.formats import write
from tests.cli.fragments import CONVERSATIONS, body_bytes, damaged_fragments, expected_tables, messages


def test_json_summary(tmp_path: Path, run: Run) -> None:
    table = damaged_fragments(200)
    given, output, state = write(table, tmp_path / "in.parquet"), tmp_path / "out.csv", tmp_path / "state.bin"
    files = ("-o", output, "--incomplete", tmp_path / "wait.csv", "--state", state)

    summary = json.loads(run("reassemble", given, *files, "--json").out)

    wanted = expected_tables(table)
    pending = wanted["incomplete"]
    reasons = Counter(row["reason"] for row in wanted["rejected"])
    assert summary.pop("seconds") > 0
    assert summary.pop("rows_per_second") > 0
    assert summary == {
        "fragments": [str(given)],
        "state": str(state),
        "rows": table.num_rows,
        "messages": {
            "rows": len(wanted["messages"]),
            "bytes": body_bytes(ssbroker.reassemble(table).messages),
            "output": str(output),
        },
        "rejected": {"rows": len(wanted["rejected"]), "reasons": reasons, "output": None},
        "invalid": None,
        "incomplete": {
            "rows": len(pending),
            "waiting": sum(row["first_missing_fragment"] is None for row in pending),
            "bytes": sum(row["received_bytes"] for row in pending),
            "output": str(tmp_path / "wait.csv"),
        },
        "acknowledgements": {"rows": None, "output": None},
    }
    assert list(summary["rejected"]["reasons"].values()) == sorted(reasons.values(), reverse=True)


def test_text_summary_with_and_without_optional_outputs(tmp_path: Path, run: Run) -> None:
    table = damaged_fragments(200)
    given, output = write(table, tmp_path / "in.parquet"), tmp_path / "out.parquet"
    wanted = expected_tables(table)
    waiting = sum(row["first_missing_fragment"] is None for row in wanted["incomplete"])
    incomplete = f"{len(wanted['incomplete']) - waiting} messages incomplete and {waiting} waiting ("

    plain = run("reassemble", given, "-o", output)
    files = [tmp_path / name for name in ("no.csv", "wait.csv", "ack.csv", "state.bin")]
    options = ("--rejected", files[0], "--incomplete", files[1], "--acknowledgements", files[2], "--state", files[3])
    asked = run("reassemble", given, "-o", output, *options)

    *table_lines, rejected, pending, done = plain.out.splitlines()
    assert table_lines[0].split() == ["Rejected", "Fragments", "Share"]
    assert {line.split()[0] for line in table_lines[2:-1]} == {row["reason"] for row in wanted["rejected"]}
    assert max(map(len, table_lines)) <= 80
    assert rejected == f"{len(wanted['rejected'])} fragments rejected; --rejected FILE lists them"
    assert pending.startswith(incomplete)
    assert pending.endswith("; --incomplete FILE lists them")
    assert done.startswith(f"{len(wanted['messages'])} messages (")
    assert f" of {table.num_rows} fragments reassembled in " in done
    assert done.endswith(f" rows/s) to {output}")
    assert "\x1b" not in plain.out
    *_, rejected, pending, acknowledged, done = asked.out.splitlines()
    assert rejected == f"{len(wanted['rejected'])} fragments rejected, written to {files[0]}"
    assert pending.startswith(incomplete)
    assert pending.endswith(f", written to {files[1]}; saved in {files[3]}")
    assert acknowledged == f"{len(wanted['acknowledgements'])} acknowledgements, written to {files[2]}"


def test_text_summary_is_one_line_without_problems(tmp_path: Path, run: Run) -> None:
    table = messages(1)
    given = write(ssbroker.fragment(table, max_fragment_bytes=1000), tmp_path / "in.parquet")
    out = run("reassemble", given, "-o", tmp_path / "out.parquet").out
    assert out.startswith(f"1 message ({body_bytes(table)} B) of 1 fragment reassembled in ")
    assert out.count("\n") == 1


@pytest.mark.parametrize("quiet", ["--quiet", "-q"])
def test_quiet_prints_nothing(tmp_path: Path, run: Run, quiet: str) -> None:
    result = run("reassemble", write(damaged_fragments(20), tmp_path / "in.parquet"), "-o", tmp_path / "out.csv", quiet)
    assert (result.status, result.out, result.err) == (0, "", "")


def test_progress_bar(tmp_path: Path, run: Run) -> None:
    table = damaged_fragments(100)
    given = write(table, tmp_path / "in.parquet")

    shown = run("reassemble", given, "-o", tmp_path / "out.parquet", "--progress", "--json")

    assert json.loads(shown.out)["rows"] == table.num_rows
    assert "Reassembling" in shown.err
    assert "100%" in shown.err
    assert f"{table.num_rows} rows" in shown.err
    assert run("reassemble", given, "-o", tmp_path / "out.parquet").err == ""


def test_waiting_messages_are_not_called_incomplete(tmp_path: Path, run: Run) -> None:
    early = ssbroker.fragment(messages(40), max_fragment_bytes=1000)
    early = early.filter(pc.field("message_sequence_number") > pc.scalar(0))
    given = write(early, tmp_path / "in.parquet")
    out = run("reassemble", given, "-o", tmp_path / "out.parquet").out
    assert out.startswith(f"{early.num_rows} messages waiting (")


def test_messages_that_wait_for_a_number_outside_the_input_are_a_warning(tmp_path: Path, run: Run) -> None:
    """Message 0 of the first conversation is incomplete, of the second it is missing, and of the third it is whole."""
    bodies = [b"two parts", b"a"]
    sent = pa.table(
        {
            "conversation_id": pa.array([id_.bytes for id_ in CONVERSATIONS for _ in bodies], pa.binary(16)),
            "is_initiator": [True] * 6,
            "message_sequence_number": [0, 1] * 3,
            "message_body": bodies * 3,
        }
    )
    parts = ssbroker.fragment(sent, max_fragment_bytes=5)
    output = tmp_path / "out.parquet"
    given = write(parts.take([0, 2, 5, 6, 7, 8]), tmp_path / "in.parquet")

    assert run("reassemble", given, "-o", output).err == (
        "ssbroker: warning: 1 complete message waits for earlier messages that are not in the input (each direction starts at number 0); "
        "if earlier runs read these messages, use --state FILE in all runs, or --any-order\n"
    )
    assert run("reassemble", given, "-o", output, "--quiet").err == ""
    assert run("reassemble", given, "-o", output, "--any-order").err == ""
    assert run("reassemble", given, "-o", output, "--state", tmp_path / "state.bin").err == ""
    whole_or_incomplete = write(parts.take([0, 2, 6, 7, 8]), tmp_path / "in.parquet")
    assert run("reassemble", whole_or_incomplete, "-o", output).err == ""
