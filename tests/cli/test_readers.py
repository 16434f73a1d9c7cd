"""Readers yield chunks of bounded size, with the number of their first row and the position in the file."""

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
from ssbroker.cli.input_columns import CONVERSATION_COLUMNS
from ssbroker.cli.input_files import open_inputs
from tests.cli.conftest import Run, conversations
from tests.cli.formats import SUFFIXES, read, write


def open_files(files: list[Path], *, keep_json_lines: bool = False) -> list[chunks.InputFile]:
    return open_inputs(files, CONVERSATION_COLUMNS, keep_json_lines=keep_json_lines, threads=2, progress=False)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_chunks_are_contiguous(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 100)
    monkeypatch.setattr(readers, "BLOCK_BYTES", 10_000)
    table = conversations(3000).drop_columns(["note"])
    given = write(table, tmp_path / f"in{suffix}")

    (source,) = open_files([given], keep_json_lines=True)
    found = list(source.chunks())

    rows = [chunk.load().batch for chunk in found]
    assert sum(batch.num_rows for batch in rows) == 3000
    assert max(batch.num_rows for batch in rows) <= 100
    assert [chunk.first_row for chunk in found] == [sum(batch.num_rows for batch in rows[:n]) for n in range(len(rows))]
    positions = [chunk.end_position for chunk in found]
    assert positions == sorted(positions)
    assert 0.99 * given.stat().st_size < positions[-1] <= given.stat().st_size  # a stream has an end mark


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".arrows"])
def test_wide_rows_make_short_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 100_000)
    table = conversations(3000).append_column("message_body", pa.array([b"x" * 5000] * 3000))
    given = write(table, tmp_path / f"in{suffix}")

    (source,) = open_files([given])

    assert max(chunk.load().batch.nbytes for chunk in source.chunks()) <= 110_000


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".arrows"])
def test_small_batches_are_joined(tmp_path: Path, suffix: str) -> None:
    """Even if their dictionaries differ."""
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

    (source,) = open_files([given])
    (chunk,) = source.chunks()

    assert chunk.load().batch["to_service_name"].to_pylist() == [f"//{number}" for number in range(200)]


@pytest.mark.parametrize("suffix", [".arrow", ".arrows"])
@pytest.mark.parametrize("output", ["out.parquet", "out.arrow", "out.csv", "out.jsonl"])
def test_polars_categories(tmp_path: Path, catalog: Path, run: Run, suffix: str, output: str) -> None:
    """Polars writes them as dictionaries of views, which pyarrow cannot look up."""
    frame = pl.DataFrame({"database": ["Sales", None], "to_service_name": ["//A", "//B"], "note": ["é", None]})
    given = tmp_path / f"in{suffix}"
    categories = frame.with_columns(pl.all().cast(pl.Categorical))
    categories.write_ipc(given) if suffix == ".arrow" else categories.write_ipc_stream(given)
    done = run(*("route", catalog, "--conversations", given, "--tie-break", "first", "-o", tmp_path / output))
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
    ids=["plain", "byte order mark", "UTF-16", "null", "quotes", "header only", "header line only"],
)
def test_csv_variants(tmp_path: Path, data: bytes, wanted: list[tuple[str | None, str]]) -> None:
    (tmp_path / "in.csv").write_bytes(data)
    (source,) = open_files([tmp_path / "in.csv"])
    rows = [row for chunk in source.chunks() for row in chunk.load().batch.to_pylist()]
    assert [(row["database"], row["to_service_name"]) for row in rows] == wanted


def test_json_lines_longer_than_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "BLOCK_BYTES", 64)
    given = write(conversations(20), tmp_path / "in.jsonl")
    (source,) = open_files([given], keep_json_lines=True)
    lines = [line for chunk in source.chunks() for line in chunk.load().json_lines.to_pylist()]
    assert lines == given.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("output", ["out.jsonl", "out.csv"])
@pytest.mark.parametrize("blank", [10, 3_000_000], ids=["a few lines", "more than a block"])
@pytest.mark.parametrize("position", ["only", "before", "between"])
def test_blank_json_lines_are_skipped(
    tmp_path: Path, catalog: Path, run: Run, position: str, blank: int, output: str
) -> None:
    """Even in a file without other lines (`echo > in.jsonl`), or in a whole block."""
    row = '{"database": "Sales", "to_service_name": "//A"}\n'
    first, last = {"only": ("", ""), "before": ("", row), "between": (row, row)}[position]
    (tmp_path / "in.jsonl").write_text(first + "\n" * blank + last)
    given = [catalog, "--conversations", tmp_path / "in.jsonl", "--tie-break", "first"]
    result = run("route", *given, "-o", tmp_path / output)
    assert (result.status, result.err) == (0, "")
    assert len(read(tmp_path / output)) == len((first + last).splitlines())


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_json_text_that_looks_like_a_timestamp_is_kept(tmp_path: Path, catalog: Path, run: Run, suffix: str) -> None:
    """pyarrow would parse it, which loses its spelling and time zone."""
    values = {"day": "2026-01-01", "zoned": "2026-01-01T10:00:00+02:00", "deep": {"day": ["2026-01-01T10:00:00Z"]}}
    lines = [json.dumps({"database": "Sales", "to_service_name": "//A", **values})] * 2
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    given = [catalog, "--conversations", tmp_path / "in.jsonl", "--tie-break", "first"]
    assert run("route", *given, "-o", tmp_path / f"out{suffix}").status == 0
    for row in read(tmp_path / f"out{suffix}"):
        deep = row["deep"] if suffix == ".parquet" else json.loads(row["deep"])
        assert {**{name: row[name] for name in values}, "deep": deep} == values


@pytest.mark.parametrize("end", ["", "\n"])
def test_json_lines_with_and_without_final_newline(tmp_path: Path, catalog: Path, run: Run, end: str) -> None:
    (tmp_path / "in.jsonl").write_text(
        '{"to_service_name": "//A"}\n{"database": "Sales", "to_service_name": "//A"}' + end
    )
    given = [catalog, "--conversations", tmp_path / "in.jsonl", "--tie-break", "first"]
    assert run("route", *given, "-o", tmp_path / "out.jsonl").status == 0


def test_file_without_suffix(tmp_path: Path, catalog: Path, run: Run) -> None:
    write(conversations(5), tmp_path / "part-0.parquet").rename(tmp_path / "plain")
    result = run("route", catalog, "--conversations", tmp_path / "plain", "-o", tmp_path / "out.jsonl")
    assert (result.status, len(read(tmp_path / "out.jsonl"))) == (0, 5)


WIDE_ROWS = 6500
WIDE_BODY = "x" * 100_000


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="the system does not report the peak memory of a process"
)
@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".csv", ".jsonl"])
def test_memory_stays_bounded_when_a_file_is_larger(tmp_path: Path, catalog: Path, suffix: str) -> None:
    """One row group, record batch or text of 650 MB, which the process never holds in memory."""
    given = _wide(tmp_path / f"in{suffix}")
    program = (
        "import pathlib, re, sys; from ssbroker.cli import main; status = main(sys.argv[1:]); "
        "print(status, re.search(r'VmHWM:\\s+(\\d+)', pathlib.Path('/proc/self/status').read_text())[1])"
    )
    files = [catalog, "--conversations", given, "-o", tmp_path / "out.parquet"]
    arguments = ["route", *map(str, files), "--tie-break", "first", "--quiet"]

    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)

    status, peak_kb = map(int, done.stdout.split())
    assert status == 0
    assert peak_kb < 600_000
    assert pq.ParquetFile(tmp_path / "out.parquet").metadata.num_rows == WIDE_ROWS


def _wide(path: Path) -> Path:
    """Returns a file of rows with long bodies, in one row group or batch if the format has them."""
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
