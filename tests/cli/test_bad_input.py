"""Wrong use and bad input: exit status 2, one line that names the file, nothing written, the old file still there."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ssbroker.cli import chunks, readers
from tests.cli.conftest import Run, conversations
from tests.cli.formats import SUFFIXES, write

ID = str(uuid.UUID(int=1))
OLD = "what stood there before"


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few thousand rows are many pieces."""
    monkeypatch.setattr(chunks, "PIECE_ROWS", 1000)
    monkeypatch.setattr(readers, "BLOCK_BYTES", 100_000)


def refused(run: Run, catalog: Path, given: Path, *options: object, output: str = "out.csv") -> str:
    """Runs `route` over a file that is to be refused; the one line that it tells."""
    folder = catalog.parent / "result"
    folder.mkdir(exist_ok=True)
    (folder / output).write_text(OLD)

    result = run("route", "--catalog", catalog, "--conversations", given, "-o", folder / output, *options)

    assert result.status == 2
    assert result.out == ""
    assert result.err.startswith("ssbroker: ")
    assert result.err.count("\n") == 1
    assert [entry.name for entry in folder.iterdir()] == [output]
    assert (folder / output).read_text() == OLD
    return result.err.removeprefix("ssbroker: ").rstrip("\n")


def changed(column: str, value: object, *, row: int, rows: int = 3000) -> Callable[[Path, str], Path]:
    """Makes a file in which one value is bad, beyond the first piece."""

    def make(folder: Path, suffix: str) -> Path:
        table = conversations(1).drop_columns(["conversation_id", "to_broker_instance"])
        table = pa.concat_tables([table] * rows).combine_chunks()
        table = table.append_column("conversation_id", pa.array([ID] * rows))
        table = table.append_column("to_broker_instance", pa.nulls(rows, pa.string()))
        values = table[column].to_pylist()
        values[row] = value
        number = table.column_names.index(column)
        return write(table.set_column(number, column, pa.array(values)), folder / f"in{suffix}")

    return make


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (changed("database", "Nowhere", row=2900), "database, row 2900: 'Nowhere' is not a database of the catalog"),
        (changed("conversation_id", "no guid", row=2900), "conversation_id, row 2900: 'no guid' is no GUID"),
        (changed("to_broker_instance", "{12}", row=2900), "to_broker_instance, row 2900: '{12}' is no GUID"),
    ],
    ids=["unknown database", "conversation id", "broker id"],
)
def test_a_bad_value_is_told_with_its_row_in_the_file(
    tmp_path: Path, catalog: Path, run: Run, make: Callable[[Path, str], Path], wanted: str, suffix: str
) -> None:
    given = make(tmp_path, suffix)
    assert refused(run, catalog, given).startswith(f"{given}: {wanted}")


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".arrow"])
def test_a_null_service_name_is_told_with_its_row_in_the_file(
    tmp_path: Path, catalog: Path, run: Run, suffix: str
) -> None:
    given = changed("to_service_name", None, row=2500)(tmp_path, suffix)
    assert refused(run, catalog, given).startswith(f"{given}: to_service_name, row 2500: null is not allowed")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_missing_column_is_told(tmp_path: Path, catalog: Path, run: Run, suffix: str) -> None:
    given = write(conversations(5).drop_columns(["to_service_name"]), tmp_path / f"in{suffix}")
    assert refused(run, catalog, given).startswith(f"{given}: to_service_name: the column is missing")


@pytest.mark.parametrize("output", ["out.csv", "out.jsonl"])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_misspelt_column_is_told(tmp_path: Path, catalog: Path, run: Run, suffix: str, output: str) -> None:
    """Also where lines of JSON are passed on as they stand."""
    table = conversations(5)
    names = ["Database" if name == "database" else name for name in table.column_names]
    given = write(table.rename_columns(names), tmp_path / f"in{suffix}")
    says = f'{given}: database: expected a column of this very name, found "Database"'
    assert refused(run, catalog, given, output=output).startswith(says)


def test_a_mistyped_column_is_told(tmp_path: Path, catalog: Path, run: Run) -> None:
    table = conversations(5)
    number = table.column_names.index("is_initiator")
    given = write(table.set_column(number, "is_initiator", pa.array([1.5] * 5)), tmp_path / "in.parquet")
    assert refused(run, catalog, given).startswith(f"{given}: is_initiator: expected ")


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".arrows"])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.9, 0.999])
def test_a_truncated_file_is_told(tmp_path: Path, catalog: Path, run: Run, suffix: str, share: float) -> None:
    given = write(conversations(3000), tmp_path / f"in{suffix}")
    given.write_bytes(given.read_bytes()[: int(given.stat().st_size * share)])
    assert refused(run, catalog, given).startswith(f"{given}: ")


def test_a_broken_page_of_parquet_is_told(tmp_path: Path, catalog: Path, run: Run) -> None:
    given = tmp_path / "in.parquet"
    pq.write_table(conversations(5000), given, use_dictionary=False, compression="zstd")
    data = bytearray(given.read_bytes())
    data[200:4000] = b"\xff" * 3800
    given.write_bytes(data)
    assert refused(run, catalog, given).startswith(f"{given}: ")


def test_broken_offsets_in_arrow_ipc_are_told(tmp_path: Path, catalog: Path, run: Run) -> None:
    names = conversations(100)["to_service_name"].combine_chunks()
    validity, offsets, data = names.buffers()
    broken = bytearray(offsets or b"")
    broken[200:204] = (2**30).to_bytes(4, "little")
    column = pa.Array.from_buffers(pa.string(), 100, [validity, pa.py_buffer(broken), data])
    given = write(conversations(100).set_column(3, "to_service_name", column), tmp_path / "in.arrows")
    assert refused(run, catalog, given).startswith(f"{given}: ")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "is empty; expected a header line"),
        ("database,to_service_name\nSales,//A\n\nSales\n", "row 1: has 1 cells, expected 2: 'Sales'"),
        ("database,to_service_name\nSales,//A,\n", "row 0: has 3 cells, expected 2: 'Sales,//A,'"),
        (
            "database,to_service_name\nSales,//A\nSales,\xff\n",
            "to_service_name, row 1: is no text in UTF-8 (byte 0xff)",
        ),
        ('database,to_service_name\n,//A\n,//A\n",//A\n,//A\n', "row 2: a quote that begins here has no end"),
        ('to_service_name,note\n//A,1\n//A,"2\n//A,3\n', "row 1: a quote that begins here has no end"),
        ('to_service_name,note\n//A,1\n//A,"2', "row 1: a quote that begins here has no end"),
        ("database;to_service_name\nSales;//A\n", "'database;to_service_name', names no known column"),
        ("Sales,//A\n", "'Sales,//A', names no known column; expected a header line with columns such as"),
        ("database,database,to_service_name\nSales,Sales,//A\n", "has the column database twice"),
        (
            "database,to_service_name,is_initiator\nSales,//A,1\nSales,//A,maybe\n",
            "is_initiator, row 1: 'maybe' is not true",
        ),
        ("to_service_name,outcome\n//A,LOCAL\n", "has the column outcome, which routing adds"),
    ],
)
def test_a_bad_csv_file_is_told(tmp_path: Path, catalog: Path, run: Run, text: str, wanted: str) -> None:
    given = tmp_path / "in.csv"
    given.write_bytes(text.encode("latin-1"))
    told = refused(run, catalog, given, "--tie-break", "first")
    assert told.startswith(f"{given}: ")
    assert wanted in told


def test_a_quote_that_never_ends_is_told_however_far_it_reaches(tmp_path: Path, run: Run) -> None:
    """What followed it, further than a block, was the end of one cell: those rows were missing, and all was said to be done."""
    given = tmp_path / "in.csv"
    rows = [f"//A,{number}\n" for number in range(300_000)]
    rows[150_000] = '//A,"open\n'
    given.write_text("to_service_name,note\n" + "".join(rows))
    lone = tmp_path / "lone.csv"
    lone.write_text("name,address\nAll,LOCAL\n")
    told = refused(run, lone, given, "--tie-break", "first")
    assert told.startswith(f"{given}: row 150000: a quote that begins here has no end")
    given.write_text(given.read_text().replace('"open', '5" pipe'))
    done = run("route", "--catalog", lone, "--conversations", given, "--tie-break", "first", "-o", tmp_path / "out.csv")
    assert (done.status, done.err) == (0, "")
    assert "300,000 conversations routed" in done.out


GOOD = '{"database": "Sales", "to_service_name": "//A"}\n'
_FULL = '{"database": "Sales", "to_service_name": "//A", "to_broker_instance": null, "x": 1}\n'
AFTER_BLANK_LINES = f"\n{_FULL}\n \t\n{_FULL}"
"""Two rows in five lines."""


@pytest.mark.parametrize("output", ["out.jsonl", "out.parquet"])
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (f"{GOOD}{{nothing\n", "row 1: Expecting property name"),
        (f"{GOOD}[1]\n", "row 1: b'[1]' is no object"),
        (f"[{GOOD.strip()}]\n", "is no object; expected one JSON object a line"),
        (f"{GOOD}{GOOD.strip()} {GOOD}", "row 1: Extra data"),
        (GOOD.replace(", ", ",\n") * 2, "row 0: Expecting"),
        (f'{GOOD}{{"to_service_name": 7}}\n', "to_service_name, row 1: 7 is not text"),
        (
            f'{GOOD}{{"to_service_name": "//A", "is_initiator": "no"}}\n',
            'is_initiator, row 1: "no" is not true or false',
        ),
        (f'{GOOD}{{"to_service_name": "//A", "reason": null}}\n', "has the column reason, which routing adds"),
    ],
)
def test_a_bad_file_of_json_lines_is_told(
    tmp_path: Path, catalog: Path, run: Run, text: str, wanted: str, output: str
) -> None:
    given = tmp_path / "in.jsonl"
    given.write_text(text)
    told = refused(run, catalog, given, "--tie-break", "first", output=output)
    assert told.startswith(f"{given}: ")
    assert wanted in told


@pytest.mark.parametrize("output", ["out.jsonl", "out.parquet"])
@pytest.mark.parametrize(
    ("bad", "wanted"),
    [
        ("{nothing", "row 5: Expecting property name"),
        ('{"to_service_name": 7}', "to_service_name, row 5: 7 is not text"),
        ('{"to_service_name": null}', "to_service_name, row 5: null is not allowed"),
        ('{"to_service_name": "//A", "database": "Nowhere"}', "database, row 5: 'Nowhere' is not a database"),
        ('{"to_service_name": "//A", "to_broker_instance": "x"}', "to_broker_instance, row 5: 'x' is no GUID"),
    ],
)
def test_a_blank_line_of_json_counts_as_one_whatever_is_wrong(
    tmp_path: Path, catalog: Path, run: Run, bad: str, wanted: str, output: str
) -> None:
    """The row that is told is the line of the file, counted from 0: by that it is found."""
    given = tmp_path / "in.jsonl"
    given.write_text(f"{AFTER_BLANK_LINES}{bad}\n")
    assert wanted in refused(run, catalog, given, "--tie-break", "first", output=output)


def test_a_blank_line_of_json_counts_where_a_column_changes_its_type(tmp_path: Path, catalog: Path, run: Run) -> None:
    given = tmp_path / "in.jsonl"
    given.write_text(AFTER_BLANK_LINES + '{"to_service_name": "//A", "x": {}}\n')
    assert "x, row 5: is" in refused(run, catalog, given, "--tie-break", "first", output="out.parquet")


def test_a_blank_line_of_json_counts_for_fragments_and_keys(tmp_path: Path, run: Run) -> None:
    keys, fragments = tmp_path / "keys.jsonl", tmp_path / "in.jsonl"
    row = {"is_initiator": True, "message_sequence_number": 0, "fragment_number": 0, "fragment_count": 2}
    lines = [json.dumps({"conversation_id": ID, **row, "message_body": body}) for body in ("00", "no digits")]
    fragments.write_text("\n\n".join(lines) + "\n")
    told = run("reassemble", fragments, "-o", tmp_path / "out.csv").err
    assert "message_body, row 2: 'no digits' is not bytes" in told
    lines = [json.dumps({"conversation_id": ID, "session_key": key}) for key in ("00" * 16, "00")]
    keys.write_text("\n\n".join(lines) + "\n")
    fragments.write_text("")
    told = run("reassemble", fragments, "-o", tmp_path / "out.csv", "--session-keys", keys).err
    assert "session_key, row 2: expected" in told


def test_a_column_of_json_that_appears_late_is_told(tmp_path: Path, catalog: Path, run: Run) -> None:
    """Where a conversation began may not change its meaning in the middle of a file."""
    given = tmp_path / "in.jsonl"
    line = json.dumps({"to_service_name": "//A", "padding": "x" * 1000})
    given.write_text(f"{line}\n" * 300 + GOOD)
    told = refused(run, catalog, given, "--tie-break", "first", output="out.jsonl")
    assert told.startswith(f"{given}: ")
    assert "database" in told


def test_a_column_of_json_with_two_types_is_told(tmp_path: Path, catalog: Path, run: Run) -> None:
    given = tmp_path / "in.jsonl"
    line = json.dumps({"database": "Sales", "to_service_name": "//A", "x": 1, "padding": "x" * 1000})
    given.write_text(f"{line}\n" * 300 + line.replace('"x": 1', '"x": {}') + "\n")
    told = refused(run, catalog, given, "--tie-break", "first", output="out.parquet")
    assert "x, row " in told
    assert "expected one type" in told


@pytest.mark.parametrize(
    ("other", "wanted"),
    [
        (conversations(5).drop_columns(["database"]), "2.parquet: lacks the column database, which "),
        (conversations(5).append_column("further", pa.nulls(5)), "1.parquet: lacks the column further, which "),
        (
            conversations(5).drop_columns(["priority"]).append_column("priority", pa.array(["high"] * 5)),
            "2.parquet: priority is string, and int8 in ",
        ),
    ],
    ids=["less", "more", "another type"],
)
def test_files_that_differ_in_their_columns_are_told(
    tmp_path: Path, catalog: Path, run: Run, other: pa.Table, wanted: str
) -> None:
    write(conversations(5), tmp_path / "1.parquet")
    write(other, tmp_path / "2.parquet")
    assert wanted in refused(run, catalog, tmp_path / "?.parquet")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("nothing.csv", "no such file or folder"),
        ("*.csv", "no file matches the pattern"),
        ("empty", "holds no file of a known format"),
        ("text.txt", "neither suffix nor first bytes tell the format"),
    ],
)
def test_files_that_are_not_there_are_told(tmp_path: Path, catalog: Path, run: Run, given: str, wanted: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("hello")
    assert wanted in refused(run, catalog, tmp_path / given)


def test_a_file_given_twice_is_told(tmp_path: Path, catalog: Path, run: Run) -> None:
    given = write(conversations(5), tmp_path / "1.csv")
    assert "is given twice" in refused(run, catalog, given, "--conversations", tmp_path / "*.csv")


def test_a_bad_catalog_is_told(tmp_path: Path, run: Run, catalog: Path) -> None:
    given = write(conversations(5), tmp_path / "in.csv")
    (tmp_path / "routes.csv").write_text("name,remote_service_name,address\nA,//A,TCP//a\n")
    result = run("route", "--catalog", tmp_path / "routes.csv", "--conversations", given, "-o", tmp_path / "out.csv")
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith(f"ssbroker: {tmp_path / 'routes.csv'}: ")
    assert "row 0" in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["route"], "Missing option '--catalog'; see 'ssbroker route --help'"),
        (["route", "--catalog", "x", "--conversations", "y"], "Missing option '--output' / '-o'"),
        (["route", "--nothing"], "No such option: --nothing"),
        (["root"], "No such command 'root'"),
        (["explain", "--catalog", "x"], "Missing option '--to-service'"),
        (
            ["route", "--catalog", "x", "--conversations", "y", "-o", "z", "--threads", "0"],
            "Invalid value for '--threads'",
        ),
        (
            ["route", "--catalog", "x", "--conversations", "y", "-o", "z", "--tie-break", "dice"],
            "Invalid value for '--tie-break': 'dice' is not one of",
        ),
        (
            ["route", "--catalog", "x", "--conversations", "y", "-o", "z.csv", "--now", "noon"],
            "--now: 'noon' is no moment",
        ),
        (
            ["explain", "--catalog", "no-such-folder", "--to-service", "//A"],
            "no-such-folder: no such file or folder",
        ),
    ],
)
def test_wrong_use_is_told_in_one_line(run: Run, arguments: list[str], wanted: str) -> None:
    result = run(*arguments)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith(f"ssbroker: {wanted}")
    assert result.err.count("\n") == 1


def test_an_output_of_an_unknown_format_is_told(tmp_path: Path, catalog: Path, run: Run) -> None:
    given = write(conversations(5), tmp_path / "in.csv")
    assert "the suffix tells no format" in refused(run, catalog, given, output="out.xlsx")


@pytest.mark.parametrize("quote", ["", '"'])
def test_a_header_of_csv_that_is_very_long_is_told(tmp_path: Path, catalog: Path, run: Run, quote: str) -> None:
    """It was a traceback."""
    given = tmp_path / "in.csv"
    given.write_text(quote + "x" * 200_000 + "\n1\n")
    assert refused(run, catalog, given).startswith(f"{given}: field larger than field limit")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_value_that_is_nested_very_deeply_is_told(tmp_path: Path, catalog: Path, run: Run, suffix: str) -> None:
    """It was a traceback, whatever was written. Pythons differ in how deep JSON may be, and as JSON it may be written again."""
    given = tmp_path / "in.jsonl"
    depth = 100_000 if suffix == ".jsonl" else 1500
    row = f'"conversation_id": "{ID}", "database": "Sales", "to_service_name": "a"'
    given.write_text(f'{{{row}, "x": {"[" * depth}{"]" * depth}}}\n')
    told = refused(run, catalog, given, output=f"out{suffix}")
    assert "nested too deeply" in told or "maximum recursion depth exceeded while decoding" in told


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has none")
def test_a_pipe_is_told(tmp_path: Path, catalog: Path, run: Run) -> None:
    """It was said to be empty."""
    given = tmp_path / "in.csv"
    os.mkfifo(given)
    assert refused(run, catalog, given).startswith(f"{given}: is no regular file")
