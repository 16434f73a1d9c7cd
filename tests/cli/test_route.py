"""`ssbroker route`: formats, several files, order and options."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ssbroker import Catalog, schemas
from ssbroker.diagnose import Fleet, html_report
from tests.cli.conftest import NOW, NOW_TEXT, Run, as_text, conversations, expected_decisions
from tests.cli.formats import SUFFIXES, decisions_of, read, write


@pytest.mark.parametrize("output", SUFFIXES)
@pytest.mark.parametrize("source", SUFFIXES)
def test_every_input_and_output_format(tmp_path: Path, catalog: Path, run: Run, source: str, output: str) -> None:
    table = conversations(200)
    given = write(table, tmp_path / f"in{source}")
    written = tmp_path / f"out{output}"

    result = run("route", catalog, "--conversations", given, "-o", written, "--at", NOW_TEXT)

    assert (result.status, result.err) == (0, "")
    rows = read(written)
    assert decisions_of(rows) == expected_decisions(catalog, table)
    ids = [row["conversation_id"] for row in rows]
    assert ids == [row["conversation_id"] for row in read(write(table, tmp_path / "again.jsonl"))]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".arrows", ".jsonl"])
def test_extra_columns_are_kept(tmp_path: Path, catalog: Path, run: Run, suffix: str) -> None:
    table = conversations(50)
    given = write(table, tmp_path / f"in{suffix}")
    written = tmp_path / f"out{suffix}"

    assert run("route", catalog, "--conversations", given, "-o", written).status == 0

    names = schemas.DECISIONS.names
    assert [{name: value for name, value in row.items() if name not in names} for row in read(written)] == read(given)


def test_extra_csv_columns_stay_text(tmp_path: Path, catalog: Path, run: Run) -> None:
    (tmp_path / "in.csv").write_text('database,to_service_name,code,note\nSales,//Stock,007,""\nSales,//Stock,1.10,\n')

    assert (
        run(
            "route",
            catalog,
            "--conversations",
            tmp_path / "in.csv",
            "-o",
            tmp_path / "out.parquet",
            "--tie-break",
            "first",
        ).status
        == 0
    )

    rows = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert [(row["code"], row["note"]) for row in rows] == [("007", ""), ("1.10", None)]


def test_json_line_keeps_its_text(tmp_path: Path, catalog: Path, run: Run) -> None:
    line = '{"database": "Sales", "to_service_name": "//Stock",  "amount": 1.10, "nested": {"b": [1e5, null]}, "outcomes": {}}'
    (tmp_path / "in.jsonl").write_bytes(b"\xef\xbb\xbf" + f"\n{line}\r\n\n  {line}".encode())

    result = run(
        "route",
        catalog,
        "--conversations",
        tmp_path / "in.jsonl",
        "-o",
        tmp_path / "out.jsonl",
        "--tie-break",
        "first",
    )

    assert result.status == 0
    written = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [text.startswith(f'{line[:-1]},"outcome":"REMOTE",') for text in written] == [True, True]


def test_json_lines_with_different_extra_columns(tmp_path: Path, catalog: Path, run: Run) -> None:
    lines: list[dict[str, object]] = [
        {"x": 1},
        {"x": 1.5, "when": "2026-11-20T21:00:00Z", "tags": []},
        {"when": "soon", "tags": [{"a": None}]},
    ]
    base: dict[str, object] = {"database": "Sales", "to_service_name": "//Stock"}
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(base | line) + "\n" for line in lines))

    assert (
        run(
            "route",
            catalog,
            "--conversations",
            tmp_path / "in.jsonl",
            "-o",
            tmp_path / "out.parquet",
            "--tie-break",
            "first",
        ).status
        == 0
    )

    rows = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert [(row["x"], row["when"], row["tags"]) for row in rows] == [
        (1.0, None, None),
        (1.5, "2026-11-20T21:00:00Z", []),
        (None, "soon", [{"a": None}]),
    ]


@pytest.mark.parametrize("output", SUFFIXES)
@pytest.mark.parametrize("source", SUFFIXES)
def test_empty_input(tmp_path: Path, catalog: Path, run: Run, source: str, output: str) -> None:
    given = write(conversations(1).slice(0, 0), tmp_path / f"in{source}")

    result = run("route", catalog, "--conversations", given, "-o", tmp_path / f"out{output}")

    assert (result.status, result.err) == (0, "")
    assert read(tmp_path / f"out{output}") == []
    assert "0 conversations" in result.out


def test_files_folders_and_patterns_are_routed_in_order(tmp_path: Path, catalog: Path, run: Run) -> None:
    rows = [as_text(row) for row in conversations(600).drop_columns(["priority"]).to_pylist()]
    parts = [pa.Table.from_pylist(rows[start : start + 100]) for start in range(0, 600, 100)]
    (tmp_path / "day").mkdir()
    (tmp_path / "day" / "_SUCCESS").touch()
    for table, name in zip(
        parts, ["b.csv", "a.parquet", "day/2.arrow", "day/1.parquet", "day/_3.csv", "c.jsonl"], strict=True
    ):
        write(table, tmp_path / name)
    patterns = [tmp_path / "b.csv", tmp_path / "a.parquet", tmp_path / "day", tmp_path / "[c].json*"]

    result = run("route", catalog, "--conversations", *patterns, "-o", tmp_path / "out.jsonl")

    assert (result.status, result.err) == (0, "")
    wanted = [id_ for number in (0, 1, 3, 2, 5) for id_ in parts[number]["conversation_id"].to_pylist()]
    assert [row["conversation_id"] for row in read(tmp_path / "out.jsonl")] == wanted


def test_files_with_different_layouts_of_one_schema(tmp_path: Path, catalog: Path, run: Run) -> None:
    table = conversations(20)
    other = table.select(list(reversed(table.column_names)))
    position = other.column_names.index("to_service_name")
    other = other.set_column(
        position, "to_service_name", other["to_service_name"].cast(pa.large_string()).dictionary_encode()
    )
    write(table, tmp_path / "1.arrow")
    write(other, tmp_path / "2.arrow")

    result = run("route", catalog, "--conversations", tmp_path / "*.arrow", "-o", tmp_path / "out.parquet")

    assert (result.status, result.err) == (0, "")
    assert read(tmp_path / "out.parquet")[:20] == read(tmp_path / "out.parquet")[20:]


@pytest.mark.parametrize("suffix", [".arrow", ".arrows"])
def test_nested_dictionaries_that_differ_between_batches(tmp_path: Path, catalog: Path, run: Run, suffix: str) -> None:
    """An Arrow file can contain only one dictionary for each column, and `pyarrow` does not merge those inside lists."""
    table = conversations(200_000)
    tags = [
        pa.ListArray.from_arrays(pa.array(range(100_001), pa.int32()), pa.array(words).dictionary_encode())
        for words in (["a", "b"] * 50_000, ["c", "d"] * 50_000)
    ]
    given = tmp_path / "in.arrows"
    schema = table.schema.append(pa.field("tags", tags[0].type))
    with pa.OSFile(str(given), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
        for number, chunk in enumerate(tags):
            rows = table.slice(number * 100_000, 100_000)
            writer.write_table(rows.append_column("tags", pa.chunked_array([chunk])))

    result = run("route", catalog, "--conversations", given, "-o", tmp_path / f"out{suffix}")

    assert (result.status, result.err) == (0, "")
    assert [row["tags"] for row in read(tmp_path / f"out{suffix}")][99_998:100_002] == [["a"], ["b"], ["c"], ["d"]]


@pytest.mark.parametrize("threads", [1, 5])
def test_round_robin_follows_row_order(tmp_path: Path, catalog: Path, run: Run, threads: int) -> None:
    table = pa.concat_tables([conversations(90_000)] * 2)
    given = write(table, tmp_path / "in.parquet")

    options = ("--tie-break", "round_robin", "--threads", threads, "--at", NOW_TEXT)
    assert run("route", catalog, "--conversations", given, "-o", tmp_path / "out.parquet", *options).status == 0

    wanted = [row["route_id"] for row in expected_decisions(catalog, table, tie_break="round_robin")]
    assert pq.read_table(tmp_path / "out.parquet")["route_id"].to_pylist() == wanted


def test_format_option(tmp_path: Path, catalog: Path, run: Run) -> None:
    given = write(conversations(3), tmp_path / "in.parquet").rename(tmp_path / "in")

    result = run("route", catalog, "--conversations", given, "-o", tmp_path / "out", "--format", "csv")

    assert result.status == 0
    assert (tmp_path / "out").read_text().startswith('"note","conversation_id"')


def test_now_option_decides_expiry(tmp_path: Path, run: Run) -> None:
    (tmp_path / "routes.csv").write_text(
        "name,remote_service_name,address,lifetime\nA,//A,TCP://a,2026-11-20T21:00:00Z\n"
    )
    (tmp_path / "in.jsonl").write_text('{"to_service_name": "//A"}\n')
    files = (
        tmp_path / "routes.csv",
        "--conversations",
        tmp_path / "in.jsonl",
        "-o",
        tmp_path / "out.jsonl",
    )

    outcomes = []
    for now in ("2026-11-20T20:59:59Z", "2026-11-20T21:00:00Z"):
        assert run("route", *files, "--tie-break", "first", "--at", now, "--quiet").status == 0
        outcomes.append(read(tmp_path / "out.jsonl")[0]["outcome"])

    assert outcomes == ["REMOTE", "DELAYED"]


def test_pending_request_option(tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "pending"
    folder.mkdir()
    rows = "A,SQL/ServiceBroker/BrokerConfiguration,TCP://a\nB,,TCP://b\n"
    (folder / "routes.csv").write_text(f"name,remote_service_name,address\n{rows}")
    (folder / "instance.json").write_text('{"pending_requests": ["//X"]}')
    (tmp_path / "in.jsonl").write_text('{"to_service_name": "//X"}\n')
    files = (
        folder,
        "--conversations",
        tmp_path / "in.jsonl",
        "-o",
        tmp_path / "out.jsonl",
        "--tie-break",
        "first",
    )

    outcomes = []
    for pending in ("continue", "delay"):
        assert run("route", *files, "--pending-request", pending).status == 0
        outcomes.append(read(tmp_path / "out.jsonl")[0]["outcome"])

    assert outcomes == ["REMOTE", "DELAYED"]


def test_html_report_shows_the_traffic(tmp_path: Path, catalog: Path, run: Run) -> None:
    given, written, html = tmp_path / "in.parquet", tmp_path / "out.parquet", tmp_path / "report.html"
    table = conversations(500)
    pq.write_table(table, given)
    parts = ("route", catalog, "--conversations", given, "-o", written, "--at", NOW_TEXT)
    with_report = run(*parts, "--html", html)
    assert with_report.status == 0, with_report.err
    routed = pq.read_table(written)
    assert routed.num_rows == 500
    loaded = Fleet({catalog.name: Catalog.load(catalog, now=NOW)})
    assert html.read_text() == html_report(loaded, traffic=routed, at=NOW)
    refused = run(*parts, "--html", written)
    assert (refused.status, "specified for two outputs" in refused.err) == (2, True)


def test_html_report_of_no_conversations(tmp_path: Path, catalog: Path, run: Run) -> None:
    given, html = tmp_path / "in.parquet", tmp_path / "report.html"
    pq.write_table(conversations(0), given)
    assert run("route", catalog, "--conversations", given, "-o", tmp_path / "out.csv", "--html", html).status == 0
    assert "No conversations." in html.read_text()


def test_scripts_are_read_as_by_other_commands(tmp_path: Path, run: Run) -> None:
    """Variables, an encoding, and statements that T-SQL does not have with --lenient."""
    script = tmp_path / "net.sql"
    text = "CREATE DATABASE Größe\nGO\nUSE Größe\nCREATE ROUTE R WITH SERVICE_NAME = '//Stock', ADDRESS = 'TCP://$(Host)'\nGO\nCREATE QUEU Q"
    script.write_bytes(text.encode("cp1252"))
    (tmp_path / "in.csv").write_text("database,to_service_name\nGröße,//Stock\n", encoding="utf-8")
    files = ("--conversations", tmp_path / "in.csv", "-o", tmp_path / "out.csv")
    arguments = ("route", script, *files, "--tie-break", "first", "--encoding", "cp1252")
    refused = run(*arguments, "-v", "Host=stock")
    assert (refused.status, "CREATE QUEU" in refused.err) == (2, True)
    assert run(*arguments, "--lenient").status == 2  # the variable is not defined
    done = run(*arguments, "-v", "Host=stock", "--lenient")
    assert done.status == 0
    assert "\n1 conversation routed in " in f"\n{done.out}"
    assert [row["next_hop_address"] for row in read(tmp_path / "out.csv")] == ["TCP://stock:4022"]


@pytest.mark.rule("R3")
def test_lifetimes_count_from_the_current_time(tmp_path: Path, run: Run) -> None:
    """Whatever the time of the decisions; otherwise the routes of a script would never expire."""
    script = tmp_path / "net.sql"
    script.write_text("USE Sales; CREATE ROUTE R WITH SERVICE_NAME = '//Stock', LIFETIME = 60, ADDRESS = 'TCP://stock'")
    (tmp_path / "in.csv").write_text("to_service_name\n//Stock\n")
    arguments = ("route", script, "--conversations", tmp_path / "in.csv", "-o", tmp_path / "out.csv")
    assert run(*arguments, "--tie-break", "first", "--at", "2100-01-01").status == 0
    assert [row["outcome"] for row in read(tmp_path / "out.csv")] == ["DELAYED"]
    assert "DELAYED" in run("explain", script, "--to-service", "//Stock", "--at", "2100-01-01").out


@pytest.mark.parametrize("dashes", ["", "---\n"])
def test_number_of_rows_that_sqlcmd_writes_is_no_row(tmp_path: Path, run: Run, dashes: str) -> None:
    """With one column, it has as many cells as the header."""
    (tmp_path / "day.csv").write_text(f"to_service_name\n{dashes}//a\n//b\n\n(2 rows affected)\n")
    (tmp_path / "net.sql").write_text("USE Sales; CREATE ROUTE A WITH SERVICE_NAME = '//a', ADDRESS = 'TCP://a:4022';")
    done = run(
        "route", tmp_path / "net.sql", "--conversations", tmp_path / "day.csv", "-o", tmp_path / "out.csv", "--json"
    )
    assert (done.status, sum(json.loads(done.out)["outcomes"].values())) == (0, 2)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_replies_without_a_column_of_their_direction(tmp_path: Path, run: Run, suffix: str) -> None:
    """The result is that of the column, which the output lacks."""
    script = tmp_path / "net.sql"
    script.write_text(
        "CREATE DATABASE Sales; -- ssbroker: service_broker_guid=5a1e5000-0000-4000-8000-000000000001\n"
        "USE Sales; CREATE QUEUE Q; CREATE SERVICE [//Sales] ON QUEUE Q;\n"
        "USE msdb; CREATE ROUTE Own WITH SERVICE_NAME = N'//Sales', ADDRESS = N'TCP://elsewhere:4022';\n"
    )
    names = {"database": pa.array([None], pa.string()), "to_service_name": ["//Sales"]}
    ids = {"to_broker_instance": ["5a1e5000-0000-4000-8000-000000000001"]}
    given = write(pa.table(names | ids), tmp_path / f"in{suffix}")
    marked = write(pa.table(names | ids | {"is_initiator": [False]}), tmp_path / f"marked{suffix}")
    found = {}
    for source, option in ((given, ()), (given, ("--from-target",)), (marked, ())):
        out = tmp_path / f"out{suffix}"
        result = run("route", script, "--conversations", source, "-o", out, *option)
        assert (result.status, result.err) == (0, "")
        found[source, option] = read(out)
    reply, expected = found[given, ("--from-target",)], found[marked, ()]
    assert [row["outcome"] for row in found[given, ()]] == ["DROPPED"]
    assert [row["outcome"] for row in reply] == ["LOCAL"]
    assert decisions_of(reply) == decisions_of(expected)
    assert list(reply[0]) == [name for name in expected[0] if name != "is_initiator"]
    refused = run("route", script, "--conversations", marked, "-o", tmp_path / "no.csv", "--from-target")
    assert (refused.status, "omit the option, or drop the column" in refused.err) == (2, True)
