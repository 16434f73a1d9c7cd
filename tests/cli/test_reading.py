"""Readers hand on pieces of bounded size, with the number of their first row and how far the file is read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ssbroker.cli import chunks, readers
from ssbroker.cli.chunks import CONVERSATIONS
from ssbroker.cli.readers import open_sources
from tests.cli.conftest import Run, conversations
from tests.cli.formats import SUFFIXES, read, write


def opened(files: list[Path], *, lines: bool = False) -> list[chunks.InputFile]:
    return open_sources(files, CONVERSATIONS, lines=lines, threads=2, progress=False)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_pieces_follow_each_other_without_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    monkeypatch.setattr(chunks, "PIECE_ROWS", 100)
    monkeypatch.setattr(readers, "BLOCK_BYTES", 10_000)
    table = conversations(3000).drop_columns(["note"])
    given = write(table, tmp_path / f"in{suffix}")

    (source,) = opened([given], lines=True)
    found = list(source.pieces())

    rows = [piece.load().columns for piece in found]
    assert sum(batch.num_rows for batch in rows) == 3000
    assert max(batch.num_rows for batch in rows) <= 100
    assert [piece.first_row for piece in found] == [sum(batch.num_rows for batch in rows[:n]) for n in range(len(rows))]
    positions = [piece.position for piece in found]
    assert positions == sorted(positions)
    assert 0.99 * given.stat().st_size < positions[-1] <= given.stat().st_size  # a stream has an end mark


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".arrows"])
def test_wide_rows_make_short_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    monkeypatch.setattr(chunks, "PIECE_BYTES", 100_000)
    table = conversations(3000).append_column("message_body", pa.array([b"x" * 5000] * 3000))
    given = write(table, tmp_path / f"in{suffix}")

    (source,) = opened([given])

    assert max(piece.load().columns.nbytes for piece in source.pieces()) <= 110_000


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".arrows"])
def test_small_batches_are_put_together(tmp_path: Path, suffix: str) -> None:
    """Dictionaries that differ from batch to batch are no hindrance."""
    parts = [pa.table({"to_service_name": pa.array([f"//{number}"]).dictionary_encode()}) for number in range(200)]
    table = pa.concat_tables(parts)
    given = tmp_path / f"in{suffix}"
    if suffix == ".parquet":
        pq.write_table(table, given, row_group_size=1)
    else:
        options = pa.ipc.IpcWriteOptions(unify_dictionaries=True)
        kind = pa.ipc.new_file if suffix == ".arrow" else pa.ipc.new_stream
        with kind(str(given), table.schema, options=options) as writer:
            writer.write_table(table)

    (source,) = opened([given])
    (piece,) = source.pieces()

    assert piece.load().columns["to_service_name"].to_pylist() == [f"//{number}" for number in range(200)]


@pytest.mark.parametrize("suffix", [".arrow", ".arrows"])
@pytest.mark.parametrize("output", ["out.parquet", "out.arrow", "out.csv", "out.jsonl"])
def test_categories_of_polars_are_read(tmp_path: Path, catalog: Path, run: Run, suffix: str, output: str) -> None:
    """It writes them as dictionaries of views, in which pyarrow looks nothing up."""
    frame = pl.DataFrame({"database": ["Sales", None], "to_service_name": ["//A", "//B"], "note": ["é", None]})
    given = tmp_path / f"in{suffix}"
    categories = frame.with_columns(pl.all().cast(pl.Categorical))
    categories.write_ipc(given) if suffix == ".arrow" else categories.write_ipc_stream(given)
    done = run(
        *("route", "--catalog", catalog, "--conversations", given, "--tie-break", "first", "-o", tmp_path / output)
    )
    assert (done.status, done.err) == (0, "")
    columns = ("database", "to_service_name", "note")
    found = [tuple(row[name] or None for name in columns) for row in read(tmp_path / output)]
    assert found == [("Sales", "//A", "é"), (None, "//B", None)]
    compared = run("compare", catalog, catalog, "--conversations", given, "--tie-break", "first")
    assert (compared.status, compared.err) == (0, "")


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        (b"database,to_service_name\nSales,//A\n", [("Sales", "//A")]),
        (b"\xef\xbb\xbfdatabase,to_service_name\r\nSales,//A\r\n", [("Sales", "//A")]),
        ("database,to_service_name\nSales,//Ä\n".encode("utf-16"), [("Sales", "//Ä")]),
        (
            b'"database","to_service_name"\n"NULL","//A"\n"","//B"\n,NULL\n',
            [(None, "//A"), (None, "//B"), (None, "NULL")],
        ),
        (b'database,to_service_name\nSales,"//A,\n""B"""\n\nSales,//C', [("Sales", '//A,\n"B"'), ("Sales", "//C")]),
        (b"database,to_service_name", []),
        (b"database,to_service_name\r\n", []),
    ],
    ids=["plain", "byte order mark", "UTF-16", "no value", "quotes", "header alone", "header line alone"],
)
def test_csv_as_tools_write_it(tmp_path: Path, data: bytes, wanted: list[tuple[str | None, str]]) -> None:
    (tmp_path / "in.csv").write_bytes(data)
    (source,) = opened([tmp_path / "in.csv"])
    rows = [row for piece in source.pieces() for row in piece.load().columns.to_pylist()]
    assert [(row["database"], row["to_service_name"]) for row in rows] == wanted


def test_json_lines_longer_than_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "BLOCK_BYTES", 64)
    given = write(conversations(20), tmp_path / "in.jsonl")
    (source,) = opened([given], lines=True)
    lines = [line for piece in source.pieces() for line in piece.load().lines.to_pylist()]
    assert lines == given.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("output", ["out.jsonl", "out.csv"])
@pytest.mark.parametrize("blank", [10, 3_000_000], ids=["a few lines", "more than a block"])
@pytest.mark.parametrize("place", ["alone", "before", "between"])
def test_blank_lines_of_json_are_no_rows(
    tmp_path: Path, catalog: Path, run: Run, place: str, blank: int, output: str
) -> None:
    """Also where there are no others, as `echo > in.jsonl` makes them, or a whole block of them."""
    row = '{"database": "Sales", "to_service_name": "//A"}\n'
    first, last = {"alone": ("", ""), "before": ("", row), "between": (row, row)}[place]
    (tmp_path / "in.jsonl").write_text(first + "\n" * blank + last)
    given = ["--catalog", catalog, "--conversations", tmp_path / "in.jsonl", "--tie-break", "first"]
    result = run("route", *given, "-o", tmp_path / output)
    assert (result.status, result.err) == (0, "")
    assert len(read(tmp_path / output)) == len((first + last).splitlines())


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_text_of_json_that_looks_like_a_moment_stays_as_it_is(
    tmp_path: Path, catalog: Path, run: Run, suffix: str
) -> None:
    """It was read as a moment: a day got a time, and 10 o'clock two hours east was written as 8 o'clock of nowhere."""
    told = {"day": "2026-01-01", "zoned": "2026-01-01T10:00:00+02:00", "deep": {"day": ["2026-01-01T10:00:00Z"]}}
    lines = [json.dumps({"database": "Sales", "to_service_name": "//A", **told})] * 2
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    given = ["--catalog", catalog, "--conversations", tmp_path / "in.jsonl", "--tie-break", "first"]
    assert run("route", *given, "-o", tmp_path / f"out{suffix}").status == 0
    for row in read(tmp_path / f"out{suffix}"):
        deep = row["deep"] if suffix == ".parquet" else json.loads(row["deep"])
        assert {**{name: row[name] for name in told}, "deep": deep} == told


@pytest.mark.parametrize("end", ["", "\n"])
def test_the_last_line_of_json_belongs_to_its_block_with_a_line_end_or_without(
    tmp_path: Path, catalog: Path, run: Run, end: str
) -> None:
    (tmp_path / "in.jsonl").write_text(
        '{"to_service_name": "//A"}\n{"database": "Sales", "to_service_name": "//A"}' + end
    )
    given = ["--catalog", catalog, "--conversations", tmp_path / "in.jsonl", "--tie-break", "first"]
    assert run("route", *given, "-o", tmp_path / "out.jsonl").status == 0


def test_a_spark_folder_and_a_file_without_a_suffix_are_read(tmp_path: Path, catalog: Path, run: Run) -> None:
    write(conversations(5), tmp_path / "part-0.parquet").rename(tmp_path / "plain")
    result = run("route", "--catalog", catalog, "--conversations", tmp_path / "plain", "-o", tmp_path / "out.jsonl")
    assert (result.status, len(read(tmp_path / "out.jsonl"))) == (0, 5)


WIDE_ROWS = 6500
WIDE_BODY = "x" * 100_000


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell a process its peak")
@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".csv", ".jsonl"])
def test_memory_stays_bounded_when_a_file_is_larger(tmp_path: Path, catalog: Path, suffix: str) -> None:
    """One row group, one record batch or one long text of 650 MB; the process never holds as much."""
    given = _wide(tmp_path / f"in{suffix}")
    program = (
        "import pathlib, re, sys; from ssbroker.cli import main; status = main(sys.argv[1:]); "
        "print(status, re.search(r'VmHWM:\\s+(\\d+)', pathlib.Path('/proc/self/status').read_text())[1])"
    )
    files = ["--catalog", catalog, "--conversations", given, "-o", tmp_path / "out.parquet"]
    arguments = ["route", *map(str, files), "--tie-break", "first", "--quiet"]

    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)

    status, peak_kb = map(int, done.stdout.split())
    assert status == 0
    assert peak_kb < 600_000
    assert pq.ParquetFile(tmp_path / "out.parquet").metadata.num_rows == WIDE_ROWS


def _wide(path: Path) -> Path:
    """A file of rows with long bodies, in one piece where the format has pieces."""
    if path.suffix in {".csv", ".jsonl"}:
        line = f"Sales,//Stock,{WIDE_BODY}\n"
        if path.suffix == ".jsonl":
            line = f'{{"database": "Sales", "to_service_name": "//Stock", "message_body": "{WIDE_BODY}"}}\n'
        with path.open("w") as file:
            file.write("database,to_service_name,message_body\n" if path.suffix == ".csv" else "")
            file.writelines(line for _ in range(WIDE_ROWS))
        return path
    body = pa.array([WIDE_BODY]).take(pa.array([0] * WIDE_ROWS, pa.int32()))
    names = {"database": ["Sales"] * WIDE_ROWS, "to_service_name": ["//Stock"] * WIDE_ROWS}
    table = pa.table(names | {"message_body": body})
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=WIDE_ROWS, use_dictionary=False)
    else:
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table)
    return path
