"""Wrong use and bad input: exit status 2, one line that names the file, nothing written, the old file kept."""

from __future__ import annotations

import gzip
import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ssbroker.cli import chunks, readers
from ssbroker.cli.file_formats import INPUT_SUFFIXES, OUTPUT_SUFFIXES
from tests.cli.conftest import Run, conversations
from tests.cli.formats import SUFFIXES, write

ID = str(uuid.UUID(int=1))
OLD = "old content"


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes chunks small, so that a few thousand rows are many of them."""
    monkeypatch.setattr(chunks, "CHUNK_ROWS", 1000)
    monkeypatch.setattr(readers, "BLOCK_BYTES", 100_000)


def refused(run: Run, catalog: Path, given: Path, *options: object, output: str = "out.csv") -> str:
    """Runs `route` over a file that must be refused; returns the error message."""
    folder = catalog.parent / "result"
    folder.mkdir(exist_ok=True)
    (folder / output).write_text(OLD)

    result = run("route", catalog, "--conversations", given, "-o", folder / output, *options)

    assert result.status == 2
    assert result.out == ""
    assert result.err.startswith("ssbroker: ")
    assert result.err.count("\n") == 1
    assert [entry.name for entry in folder.iterdir()] == [output]
    assert (folder / output).read_text() == OLD
    return result.err.removeprefix("ssbroker: ").rstrip("\n")


def changed(column: str, value: object, *, row: int, rows: int = 3000) -> Callable[[Path, str], Path]:
    """Returns a function that writes a file with one bad value, after the first chunk."""

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
        (changed("conversation_id", "no guid", row=2900), "conversation_id, row 2900: 'no guid' is not a valid GUID"),
        (changed("to_broker_instance", "{12}", row=2900), "to_broker_instance, row 2900: '{12}' is not a valid GUID"),
    ],
    ids=["unknown database", "conversation id", "broker id"],
)
def test_invalid_value_is_reported_with_its_row_in_the_file(
    tmp_path: Path, catalog: Path, run: Run, make: Callable[[Path, str], Path], wanted: str, suffix: str
) -> None:
    given = make(tmp_path, suffix)
    assert refused(run, catalog, given).startswith(f"{given}: {wanted}")


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".arrow"])
def test_null_service_name_is_reported_with_its_row_in_the_file(
    tmp_path: Path, catalog: Path, run: Run, suffix: str
) -> None:
    given = changed("to_service_name", None, row=2500)(tmp_path, suffix)
    assert refused(run, catalog, given).startswith(f"{given}: to_service_name, row 2500: null is not allowed")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_missing_column(tmp_path: Path, catalog: Path, run: Run, suffix: str) -> None:
    given = write(conversations(5).drop_columns(["to_service_name"]), tmp_path / f"in{suffix}")
    assert refused(run, catalog, given).startswith(f"{given}: to_service_name: the column is missing")


@pytest.mark.parametrize("output", ["out.csv", "out.jsonl"])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_misspelled_column(tmp_path: Path, catalog: Path, run: Run, suffix: str, output: str) -> None:
    """Also when lines of JSON are copied to the output."""
    table = conversations(5)
    names = ["Database" if name == "database" else name for name in table.column_names]
    given = write(table.rename_columns(names), tmp_path / f"in{suffix}")
    message = f'{given}: database: expected a column with exactly this name, got "Database"'
    assert refused(run, catalog, given, output=output).startswith(message)


def test_column_with_wrong_type(tmp_path: Path, catalog: Path, run: Run) -> None:
    table = conversations(5)
    number = table.column_names.index("is_initiator")
    given = write(table.set_column(number, "is_initiator", pa.array([1.5] * 5)), tmp_path / "in.parquet")
    assert refused(run, catalog, given).startswith(f"{given}: is_initiator: expected ")


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".arrows"])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.9, 0.999])
def test_truncated_file(tmp_path: Path, catalog: Path, run: Run, suffix: str, share: float) -> None:
    given = write(conversations(3000), tmp_path / f"in{suffix}")
    given.write_bytes(given.read_bytes()[: int(given.stat().st_size * share)])
    assert refused(run, catalog, given).startswith(f"{given}: ")


def test_corrupt_parquet_page(tmp_path: Path, catalog: Path, run: Run) -> None:
    given = tmp_path / "in.parquet"
    pq.write_table(conversations(5000), given, use_dictionary=False, compression="zstd")
    data = bytearray(given.read_bytes())
    data[200:4000] = b"\xff" * 3800
    given.write_bytes(data)
    assert refused(run, catalog, given).startswith(f"{given}: ")


def test_corrupt_arrow_offsets(tmp_path: Path, catalog: Path, run: Run) -> None:
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
        ("", "the file is empty; expected a header line"),
        ("database,to_service_name\nSales,//A\n\nSales\n", "row 1: expected 2 cells, as in the header, got 1: 'Sales'"),
        ("database,to_service_name\nSales,//A,\n", "row 0: expected 2 cells, as in the header, got 3: 'Sales,//A,'"),
        (
            "database,to_service_name\nSales,//A\nSales,\xff\n",
            "to_service_name, row 1: not valid UTF-8 (byte 0xff)",
        ),
        ('database,to_service_name\n,//A\n,//A\n",//A\n,//A\n', "row 2: a quoted cell that starts here is not closed"),
        ('to_service_name,note\n//A,1\n//A,"2\n//A,3\n', "row 1: a quoted cell that starts here is not closed"),
        ('to_service_name,note\n//A,1\n//A,"2', "row 1: a quoted cell that starts here is not closed"),
        ("database|to_service_name\nSales|//A\n", "no known column in the first line, 'database|to_service_name'"),
        (
            "Sales,//A\n",
            "no known column in the first line, 'Sales,//A'; expected a header line with columns such as",
        ),
        ("database,database,to_service_name\nSales,Sales,//A\n", "duplicate column database"),
        (
            "database,to_service_name,is_initiator\nSales,//A,1\nSales,//A,maybe\n",
            "is_initiator, row 1: 'maybe' is not valid; expected true",
        ),
        (
            "to_service_name,outcome\n//A,LOCAL\n",
            "routing adds the column outcome; rename or drop the column in the input",
        ),
    ],
)
def test_malformed_csv_file(tmp_path: Path, catalog: Path, run: Run, text: str, wanted: str) -> None:
    given = tmp_path / "in.csv"
    given.write_bytes(text.encode("latin-1"))
    message = refused(run, catalog, given, "--tie-break", "first")
    assert message.startswith(f"{given}: ")
    assert wanted in message


def test_quoted_cell_that_is_not_closed_in_a_large_file(tmp_path: Path, run: Run) -> None:
    """The cell extends over more than one block, which would otherwise swallow rows silently."""
    given = tmp_path / "in.csv"
    rows = [f"//A,{number}\n" for number in range(300_000)]
    rows[150_000] = '//A,"open\n'
    given.write_text("to_service_name,note\n" + "".join(rows))
    lone = tmp_path / "lone.csv"
    lone.write_text("name,address\nAll,LOCAL\n")
    message = refused(run, lone, given, "--tie-break", "first")
    assert message.startswith(f"{given}: row 150000: a quoted cell that starts here is not closed")
    given.write_text(given.read_text().replace('"open', '5" pipe'))
    done = run("route", lone, "--conversations", given, "--tie-break", "first", "-o", tmp_path / "out.csv")
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
        (
            f"{GOOD}{{nothing\n",
            "row 1: '{nothing' is not valid JSON (Expecting property name enclosed in double quotes); expected one JSON object per line",
        ),
        (f"{GOOD}[1]\n", "row 1: '[1]' is not a JSON object"),
        (f"[{GOOD.strip()}]\n", "is not a JSON object; expected one JSON object per line"),
        (f"{GOOD}{GOOD.strip()} {GOOD}", "is not valid JSON (Extra data); expected one JSON object per line"),
        (GOOD.replace(", ", ",\n") * 2, 'row 0: \'{"database": "Sales",\' is not valid JSON (Expecting'),
        (f'{GOOD}{{"to_service_name": 7}}\n', "to_service_name, row 1: 7 is not valid; expected a string"),
        (
            f'{GOOD}{{"to_service_name": "//A", "is_initiator": "no"}}\n',
            'is_initiator, row 1: "no" is not valid; expected true or false',
        ),
        (
            f'{GOOD}{{"to_service_name": "//A", "reason": null}}\n',
            "routing adds the column reason; rename or drop the column in the input",
        ),
    ],
)
def test_malformed_json_lines_file(
    tmp_path: Path, catalog: Path, run: Run, text: str, wanted: str, output: str
) -> None:
    given = tmp_path / "in.jsonl"
    given.write_text(text)
    message = refused(run, catalog, given, "--tie-break", "first", output=output)
    assert message.startswith(f"{given}: ")
    assert wanted in message


@pytest.mark.parametrize("output", ["out.jsonl", "out.parquet"])
@pytest.mark.parametrize(
    ("bad", "wanted"),
    [
        ("{nothing", "row 5: '{nothing' is not valid JSON"),
        ('{"to_service_name": 7}', "to_service_name, row 5: 7 is not valid; expected a string"),
        ('{"to_service_name": null}', "to_service_name, row 5: null is not allowed"),
        ('{"to_service_name": "//A", "database": "Nowhere"}', "database, row 5: 'Nowhere' is not a database"),
        ('{"to_service_name": "//A", "to_broker_instance": "x"}', "to_broker_instance, row 5: 'x' is not a valid GUID"),
    ],
)
def test_blank_json_lines_count_in_reported_rows(
    tmp_path: Path, catalog: Path, run: Run, bad: str, wanted: str, output: str
) -> None:
    """The reported row is the line of the file, counted from 0."""
    given = tmp_path / "in.jsonl"
    given.write_text(f"{AFTER_BLANK_LINES}{bad}\n")
    assert wanted in refused(run, catalog, given, "--tie-break", "first", output=output)


def test_blank_json_lines_count_in_reported_row_of_changed_type(tmp_path: Path, catalog: Path, run: Run) -> None:
    given = tmp_path / "in.jsonl"
    given.write_text(AFTER_BLANK_LINES + '{"to_service_name": "//A", "x": {}}\n')
    assert "x, row 5: the type is" in refused(run, catalog, given, "--tie-break", "first", output="out.parquet")


def test_blank_json_lines_count_in_reported_rows_of_fragments_and_keys(tmp_path: Path, run: Run) -> None:
    keys, fragments = tmp_path / "keys.jsonl", tmp_path / "in.jsonl"
    row = {"is_initiator": True, "message_sequence_number": 0, "fragment_number": 0, "fragment_count": 2}
    lines = [json.dumps({"conversation_id": ID, **row, "message_body": body}) for body in ("00", "no digits")]
    fragments.write_text("\n\n".join(lines) + "\n")
    message = run("reassemble", fragments, "-o", tmp_path / "out.csv").err
    assert "message_body, row 2: 'no digits' is not valid; expected hexadecimal" in message
    lines = [json.dumps({"conversation_id": ID, "session_key": key}) for key in ("00" * 16, "00")]
    keys.write_text("\n\n".join(lines) + "\n")
    fragments.write_text("")
    message = run("reassemble", fragments, "-o", tmp_path / "out.csv", "--session-keys", keys).err
    assert "session_key, row 2: expected" in message


def test_json_column_that_appears_late(tmp_path: Path, catalog: Path, run: Run) -> None:
    """The meaning of `database` must not change in the middle of a file."""
    given = tmp_path / "in.jsonl"
    line = json.dumps({"to_service_name": "//A", "padding": "x" * 1000})
    given.write_text(f"{line}\n" * 300 + GOOD)
    message = refused(run, catalog, given, "--tie-break", "first", output="out.jsonl")
    assert message.startswith(f"{given}: ")
    assert "database" in message


def test_json_column_with_two_types(tmp_path: Path, catalog: Path, run: Run) -> None:
    given = tmp_path / "in.jsonl"
    line = json.dumps({"database": "Sales", "to_service_name": "//A", "x": 1, "padding": "x" * 1000})
    given.write_text(f"{line}\n" * 300 + line.replace('"x": 1', '"x": {}') + "\n")
    message = refused(run, catalog, given, "--tie-break", "first", output="out.parquet")
    assert "x, row " in message
    assert "expected one type" in message


@pytest.mark.parametrize(
    ("other", "wanted"),
    [
        (conversations(5).drop_columns(["database"]), "2.parquet: the column database is missing, but "),
        (conversations(5).append_column("extra", pa.nulls(5)), "1.parquet: the column extra is missing, but "),
        (
            conversations(5).drop_columns(["priority"]).append_column("priority", pa.array(["high"] * 5)),
            "2.parquet: the type of priority is string, but int8 in ",
        ),
    ],
    ids=["missing column", "extra column", "another type"],
)
def test_files_with_different_columns(tmp_path: Path, catalog: Path, run: Run, other: pa.Table, wanted: str) -> None:
    write(conversations(5), tmp_path / "1.parquet")
    write(other, tmp_path / "2.parquet")
    assert wanted in refused(run, catalog, tmp_path / "?.parquet")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("nothing.csv", "no such file or folder"),
        ("*.csv", "no file matches the pattern"),
        ("empty", "the folder has no file of a known format"),
        ("text.md", "unknown format; expected one of the suffixes"),
        (
            "day.csv.gz",
            "day.csv.gz: compressed files are not supported, except Parquet and Arrow IPC; decompress the file, or",
        ),
    ],
)
def test_missing_files(tmp_path: Path, catalog: Path, run: Run, given: str, wanted: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.md").write_text("hello")
    (tmp_path / "day.csv.gz").write_bytes(gzip.compress(b"to_service_name\n//Orders\n"))
    assert wanted in refused(run, catalog, tmp_path / given)


def test_standard_input_and_output_are_not_supported(
    tmp_path: Path, catalog: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refused(run, catalog, Path("-")) == (
        "-: standard input is not supported, because files are read more than once; "
        f"write the rows to a file with one of the suffixes {INPUT_SUFFIXES}"
    )
    given = write(conversations(5), tmp_path / "in.csv")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    for more in ([], ["--format", "csv"]):
        result = run("route", catalog, "--conversations", given, "-o", "-", *more)
        assert (result.status, result.out) == (2, "")
        assert result.err == (
            "ssbroker: -: standard output is not supported, because an output appears only when it is complete; "
            f"specify a file with one of the suffixes {OUTPUT_SUFFIXES}\n"
        )
    assert sorted(tmp_path.iterdir()) == before


def test_file_given_twice(tmp_path: Path, catalog: Path, run: Run) -> None:
    given = write(conversations(5), tmp_path / "1.csv")
    assert "the file is specified twice" in refused(run, catalog, given, "--conversations", tmp_path / "*.csv")


def test_bad_catalog(tmp_path: Path, run: Run, catalog: Path) -> None:
    given = write(conversations(5), tmp_path / "in.csv")
    (tmp_path / "routes.csv").write_text("name,remote_service_name,address\nA,//A,TCP//a\n")
    result = run("route", tmp_path / "routes.csv", "--conversations", given, "-o", tmp_path / "out.csv")
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith(f"ssbroker: {tmp_path / 'routes.csv'}: ")
    assert "row 0" in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["route"], "Missing argument 'CATALOG'; see 'ssbroker route --help'"),
        (
            ["route", "--conversations", "y", "x", "-o", "z"],
            "Missing argument 'CATALOG'; specify it before --conversations, which takes all the values that follow; see",
        ),
        (
            ["serve", "--http", "shop/"],
            "Missing argument 'FOLDER'; specify it before --http, which takes the value that follows; see",
        ),
        (["route", "x", "--conversations", "y"], "Missing option '--output' / '-o'"),
        (["route", "--nothing"], "No such option: --nothing"),
        (["root"], "No such command 'root'"),
        (["explain", "x"], "Missing option '--to-service'"),
        (
            ["route", "x", "--conversations", "y", "-o", "z", "--threads", "0"],
            "Invalid value for '--threads': expected a value greater than or equal to 1, got '0'; see",
        ),
        (
            ["route", "x", "--conversations", "y", "-o", "z", "--tie-break", "dice"],
            "Invalid value for '--tie-break': 'dice' is not one of",
        ),
        (
            ["route", "x", "--conversations", "y", "-o", "z.csv", "--at", "noon"],
            "--at: 'noon' is not a valid time",
        ),
        (
            ["explain", "no-such-folder", "--to-service", "//A"],
            "no-such-folder: no such file or folder",
        ),
        (
            ["explain", "x", "--to-service", "//A", "--encoding", "klingon"],
            "--encoding: 'klingon' is not a text encoding",
        ),
        (["lint", "x", "--encoding", "klingon"], "--encoding: 'klingon' is not a text encoding"),
        (["certificates", "x", "--name", "a" * 65], "--name: expected 1 to 64 characters, got 'aaa"),
        (
            ["watch", "x", "--interval", "inf"],
            "Invalid value for '--interval': expected a value less than or equal to 86400, got 'inf'; see",
        ),
        (["lint", "x", "-v", "1=2"], "-v: expected NAME=VALUE, got '1=2'"),
    ],
)
def test_wrong_use_is_one_line(run: Run, arguments: list[str], wanted: str) -> None:
    result = run(*arguments)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith(f"ssbroker: {wanted}")
    assert result.err.count("\n") == 1


def test_output_with_unknown_format(tmp_path: Path, catalog: Path, run: Run) -> None:
    given = write(conversations(5), tmp_path / "in.csv")
    assert "unknown format; use one of the suffixes" in refused(run, catalog, given, output="out.xlsx")


@pytest.mark.parametrize("quote", ["", '"'])
def test_very_long_csv_header(tmp_path: Path, catalog: Path, run: Run, quote: str) -> None:
    given = tmp_path / "in.csv"
    given.write_text(quote + "x" * 200_000 + "\n1\n")
    assert refused(run, catalog, given).startswith(f"{given}: field larger than field limit")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_deeply_nested_value(tmp_path: Path, catalog: Path, run: Run, suffix: str) -> None:
    """Python versions differ in the depth that they parse, and that they write."""
    given = tmp_path / "in.jsonl"
    depth = 100_000 if suffix == ".jsonl" else 1500
    row = f'"conversation_id": "{ID}", "database": "Sales", "to_service_name": "a"'
    given.write_text(f'{{{row}, "x": {"[" * depth}{"]" * depth}}}\n')
    message = refused(run, catalog, given, output=f"out{suffix}")
    assert "nested too deeply" in message or "maximum recursion depth exceeded while decoding" in message


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_input_cannot_be_a_pipe(tmp_path: Path, catalog: Path, run: Run) -> None:
    given = tmp_path / "in.csv"
    os.mkfifo(given)
    assert refused(run, catalog, given).startswith(f"{given}: not a regular file")


TRANSMISSION_QUEUE = "conversation_handle,to_service_name,to_broker_instance,transmission_status\n"
ENDPOINTS = (
    "conversation_handle,conversation_id,is_initiator,service_id,lifetime,state_desc,far_service,far_broker_instance\n"
)
QUEUES = "name,object_id,is_receive_enabled,is_enqueue_enabled\n"


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        (TRANSMISSION_QUEUE, "the column to_service_name shows that the file contains messages, as in sys.trans"),
        (ENDPOINTS, "the column far_service shows that the file contains conversations, as in sys.conversation_end"),
        (QUEUES, "the column is_receive_enabled shows that the file contains queues, as in sys.service_queues"),
    ],
)
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_other_export_of_sql_server_as_a_catalog(
    tmp_path: Path, catalog: Path, run: Run, header: str, wanted: str, suffix: str
) -> None:
    path = tmp_path / f"export{suffix}"
    names = header.strip().split(",")
    if suffix == ".csv":
        path.write_text(header)
    else:
        write(pa.table({name: ["x"] for name in names}), path)
    for arguments in (["compare", path, catalog], ["route", path, "--conversations", path, "-o", tmp_path / "out.csv"]):
        found = run(*arguments)
        assert (found.status, found.err.startswith(f"ssbroker: {path}: {wanted}")) == (2, True)
        assert ("--conversations, or with --queue of stuck" in found.err) == (header != QUEUES)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_names_of_conversation_endpoints_are_renamed(tmp_path: Path, catalog: Path, run: Run, suffix: str) -> None:
    path = write(pa.table({name: ["x"] for name in ENDPOINTS.strip().split(",")}), tmp_path / f"in{suffix}")
    for arguments in (
        ("route", catalog, "--conversations", path, "-o", tmp_path / "out.csv"),
        ("compare", catalog, catalog, "--conversations", path),
        ("stuck", catalog, "--queue", path, "--from", "Sales"),
    ):
        found = run(*arguments)
        assert found.status == 2
        assert found.err.startswith(f"ssbroker: {path}: to_service_name: the column is missing; in rows of sys.conver")
        assert "far_service AS to_service_name" in found.err


@pytest.mark.parametrize(
    ("column", "value", "problem"),
    [
        ("address", "stock", "'stock' is not a valid address"),
        ("broker_instance", "7", "'7' is not a valid GUID"),
        ("lifetime", "soon", "'soon' is not a timestamp"),
        ("name", "", "null is not allowed here"),
    ],
)
def test_invalid_cell_of_an_exported_catalog_has_a_line(
    tmp_path: Path, run: Run, column: str, value: str, problem: str
) -> None:
    row = {"database": "Sales", "name": "A", "address": "LOCAL", "broker_instance": "", "lifetime": ""}
    rows = [",".join(row), ",".join(row.values()), "", ",".join((row | {column: value}).values())]
    path = tmp_path / "routes.csv"
    path.write_text("\n".join(rows) + "\n")
    for catalog in (path, tmp_path):
        found = run("explain", catalog, "--to-service", "//A")
        assert found.err.startswith(f"ssbroker: {path}: routes.{column}, row 1: {problem}")
        assert found.err.endswith(" (line 4 of the file)\n")
