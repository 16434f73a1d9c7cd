"""The summary, progress bar and warnings of `ssbroker route`."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from ssbroker.cli import route_summary
from ssbroker.cli.route_summary import COUNTED_COLUMNS, RouteCounts, count_values
from tests.cli.conftest import NOW_TEXT, Run, conversations, expected_decisions
from tests.cli.formats import write


def test_json_summary(tmp_path: Path, catalog: Path, run: Run) -> None:
    table = conversations(500)
    given = write(table, tmp_path / "in.parquet")

    arguments = (
        catalog,
        "--conversations",
        given,
        "-o",
        tmp_path / "out.csv",
        "--at",
        NOW_TEXT,
        "--json",
    )
    summary = json.loads(run("route", *arguments).out)

    decisions = expected_decisions(catalog, table)
    counted = {name: Counter(row[name] for row in decisions) for name in COUNTED_COLUMNS}
    assert summary["rows"] == 500
    assert summary["outcomes"] == counted["outcome"]
    assert summary["reasons"] == counted["reason"]
    assert summary["match_steps"] == {
        "none" if step is None else str(step): rows for step, rows in counted["match_step"].items()
    }
    hops = counted["next_hop_address"]
    del hops[None]
    assert {hop["address"]: hop["rows"] for hop in summary["next_hops"]} == hops
    assert [hop["rows"] for hop in summary["next_hops"]] == sorted(hops.values(), reverse=True)
    assert summary["target_databases"] == [{"database": "Sales", "rows": counted["target_database"]["Sales"]}]
    assert summary["conversations"] == [str(given)]
    assert (summary["now"], summary["tie_break"], summary["output"]) == (NOW_TEXT, "hash", str(tmp_path / "out.csv"))


def test_text_summary(tmp_path: Path, catalog: Path, run: Run) -> None:
    given = write(conversations(1200), tmp_path / "in.parquet")

    out = run("route", catalog, "--conversations", given, "-o", tmp_path / "out.csv").out

    for title in ("Outcome", "Reason", "Match step", "Busiest next hops", "Target databases"):
        assert f"{title} " in out
    assert "\x1b" not in out
    assert "1,200 conversations routed in " in out
    assert f"rows/s) to {tmp_path / 'out.csv'}\n" in out
    assert max(map(len, out.splitlines()[:-1])) <= 80


@pytest.mark.parametrize("quiet", ["--quiet", "-q"])
def test_quiet_prints_nothing(tmp_path: Path, catalog: Path, run: Run, quiet: str) -> None:
    given = write(conversations(10), tmp_path / "in.csv")
    result = run("route", catalog, "--conversations", given, "-o", tmp_path / "out.csv", quiet)
    assert (result.status, result.out, result.err) == (0, "", "")


def test_progress_bar(tmp_path: Path, catalog: Path, run: Run) -> None:
    given = write(conversations(3000), tmp_path / "in.csv")
    files = (catalog, "--conversations", given, "-o", tmp_path / "out.csv")

    shown = run("route", *files, "--progress", "--json")

    assert json.loads(shown.out)["rows"] == 3000
    assert "Routing" in shown.err
    assert "100%" in shown.err
    assert "3,000 rows" in shown.err
    assert "rows/s" in shown.err
    assert "00:00" in shown.err
    assert run("route", *files).err == ""
    assert run("route", *files, "--no-progress").err == ""


def test_warning_is_printed_once_with_a_report(tmp_path: Path, run: Run) -> None:
    (tmp_path / "net.sql").write_text("CREATE DATABASE Sales\nGO\nALTER DATABASE Sales SET RECOVERY SIMPLE\nGO\n")
    (tmp_path / "in.jsonl").write_text('{"to_service_name": "//A"}\n')
    files = ("--conversations", tmp_path / "in.jsonl", "-o", tmp_path / "out.jsonl", "--html", tmp_path / "report.html")
    result = run("route", tmp_path / "net.sql", *files, "--tie-break", "first")
    assert result.status == 0
    assert result.err.count("ssbroker: warning: ") == 1


def test_warning_is_one_line(tmp_path: Path, run: Run) -> None:
    (tmp_path / "net.sql").write_text("CREATE DATABASE Sales\nGO\nALTER DATABASE Sales SET RECOVERY SIMPLE\nGO\n")
    given = tmp_path / "in.jsonl"
    given.write_text('{"to_service_name": "//A"}\n')
    files = (tmp_path / "net.sql", "--conversations", given, "-o", tmp_path / "out.jsonl")

    result = run("route", *files, "--tie-break", "first")

    assert result.status == 0
    assert result.err.startswith("ssbroker: warning: ")
    assert result.err.count("\n") == 1
    assert run("route", *files, "--tie-break", "first", "--quiet").err == ""


def test_counts_are_merged_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_summary, "UNMERGED_ROWS_MAX", 10)
    counted = RouteCounts()
    for number in range(100):
        values = [f"{number % 7}", f"{number % 5}", None]
        columns = {name: pa.array(values).dictionary_encode() for name in COUNTED_COLUMNS}
        counted.add(count_values(pa.record_batch(columns | {"match_step": pa.array([1, 1, None], pa.int8())})), rows=3)

    wanted = Counter([f"{number % 7}" for number in range(100)] + [f"{number % 5}" for number in range(100)])
    assert dict(counted.of_column("outcome").values) == wanted
    assert dict(counted.of_column("match_step").values) == {1: 200, None: 100}
    assert counted.of_column("outcome", top=2).values == tuple(wanted.most_common(2))
    assert all(sum(table.num_rows for table in tables) <= 20 for tables in counted._counts.values())
    assert counted.rows == 300
