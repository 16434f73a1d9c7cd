"""Errors for invalid catalog files."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from ssbroker import Catalog
from ssbroker.diagnose import Fleet
from ssbroker.exceptions import InputError, MalformedDataError, NullError, SchemaError, SsbrokerError
from tests.catalog.route_files import FORMATS, ROWS, Write, load, write_csv, write_parquet
from tests.unprivileged import nobody

BAD_CELLS = [
    (
        "databases.csv",
        "name,is_broker_enabled\na,1\nb,yes\n",
        "databases.is_broker_enabled",
        "'yes'",
        "true, false, 1 or 0",
    ),
    ("routes.csv", "name,route_id\na,1\nb,1.5\n", "routes.route_id", "'1.5'", "a 32-bit integer"),
    (
        "routes.csv",
        "name,route_id\na,1\nb,2147483648\n",
        "routes.route_id",
        "'2147483648'",
        "a 32-bit integer",
    ),
    ("routes.csv", "name,route_id\na,1\nb,\u0663\n", "routes.route_id", "'\\u0663'", "a 32-bit integer"),
    ("routes.csv", "name,lifetime\na,\nb,soon\n", "routes.lifetime", "'soon'", "a timestamp"),
    ("routes.json", '[{"name": "a"}, {"name": 5}]', "routes.name", "5", "text"),
    ("routes.json", '[{"name": "a"}, {"name": "\\ud800"}]', "routes.name", "'\\ud800'", "text"),
    ("routes.json", '[{"route_id": 1}, {"route_id": true}]', "routes.route_id", "True", "a 32-bit integer"),
    ("routes.json", '[{"lifetime": null}, {"lifetime": 1}]', "routes.lifetime", "1", "a timestamp"),
    ("databases.json", '[{}, {"is_broker_enabled": 2}]', "databases.is_broker_enabled", "2", "true, false, 1 or 0"),
    ("databases.json", '[{}, {"is_broker_enabled": []}]', "databases.is_broker_enabled", "[]", "true, false, 1 or 0"),
]


@pytest.mark.parametrize(("name", "content", "column", "value", "expected"), BAD_CELLS)
def test_the_error_names_the_invalid_cell(
    tmp_path: Path, name: str, content: str, column: str, value: str, expected: str
) -> None:
    write_csv(tmp_path / "routes.csv")
    (tmp_path / name).write_text(content, encoding="utf-8")
    if name == "routes.json":
        (tmp_path / "routes.csv").unlink()
    with pytest.raises(InputError) as caught:
        load(tmp_path)
    error = caught.value
    assert (error.column, error.row, error.value) == (column, 1, value)
    assert str(error).startswith(f"{tmp_path / name}: {column}, row 1: {value} is not {expected}")


@pytest.mark.parametrize("column", ["routes.database", "routes.name", "routes.address"])
@pytest.mark.parametrize("cell", ["", '""'])
def test_an_empty_csv_cell_is_null_even_if_null_is_invalid(tmp_path: Path, column: str, cell: str) -> None:
    """It once put a route without a database into a database with an empty name."""
    row = {"routes.database": "Sales", "routes.name": "Orders", "routes.address": "LOCAL", column: cell}
    rows = ["database,name,address", "Sales,All,LOCAL", "Stores,All,LOCAL", ",".join(row.values())]
    (tmp_path / "routes.csv").write_text("\n".join(rows))
    with pytest.raises(NullError, match=f"routes.csv: {column}, row 2: null is not allowed here") as caught:
        Catalog.load(tmp_path)
    assert (caught.value.column, caught.value.row) == (column, 2)


BAD_FILES = [
    ("routes.parquet", b"PAR1 is no file", "invalid or truncated Parquet file"),
    ("routes.arrow", b"ARROW1\0\0 is no file", "invalid or truncated Arrow IPC file"),
    ("routes.feather", b"", "invalid or truncated Arrow IPC file"),
    ("routes.csv", b"", "is empty; expected a header line"),
    (
        "routes.csv",
        b"Sales,Orders,,,,LOCAL,\n",
        "no known column in the first line, 'Sales,Orders,,,,LOCAL,'; expected a header line with columns such as database,",
    ),
    ("routes.csv", b"Sales;Orders;;;;LOCAL;\n", "Include column headers when copying or saving the results"),
    ("routes.csv", b"name|address\nA|LOCAL\n", "no known column in the first line, 'name|address'"),
    ("routes.csv", b"name  address\n----- -------\nA     LOCAL\n", 'run sqlcmd with -s "," -W, or save the results'),
    (
        "routes.csv",
        b"name ,address \n-----,--------\nA    ,LOCAL   \n",
        'run sqlcmd with -s "," -W, or save the results',
    ),
    ("routes.csv", b"Name,Address\nA,LOCAL\n", 'name: expected a column with exactly this name, got "Name"'),
    ("routes.csv", b"name,address,name\n", "duplicate column name; expected each column once"),
    (
        "routes.csv",
        b"name,address\na,b\nc\n",
        "row 1: expected 2 cells, as in the header, got 1: 'c' (line 3 of the file)",
    ),
    ("routes.csv", b"name,address\na,b\n(1 row affected), , \n", "row 1: expected 2 cells, as in the header, got 3"),
    ("routes.csv", b'name,address\na,"b\nc,d\n', "row 0: a quoted cell that starts here is not closed"),
    ("routes.csv", b"name,address\n\xff,b\n", "name, row 0: not valid UTF-8 (byte 0xff); save the file as UTF-8"),
    ("routes.csv", "name,address\na,b".encode("utf-16")[:-1], "invalid CSV: 'utf-16-le' codec can't decode byte"),
    ("routes.json", b'[{"name": "a"}', "invalid JSON"),
    ("routes.json", b"[" * 100_000, "invalid JSON"),
    ("routes.json", b'{"name": "a"}\n{"name": \n', "line 2: invalid JSON"),
    ("routes.json", b'[{"name": "a"}, 5]', "routes, row 1: 5 is not an object"),
    ("routes.json", b"\xff", "is not valid UTF-8"),
    ("routes.json", b'[{"extra": 1}, {"extra": "x"}]', "routes.extra: the values do not have a common type"),
    ("routes.json", b'[{"\\ud800": 1}]', "routes: the column '\\ud800' has a name that is not valid UTF-8"),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD_FILES)
def test_the_error_names_the_invalid_file(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises((InputError, SchemaError)) as caught:
        load(tmp_path / name)
    assert str(caught.value).startswith(str(tmp_path / name))
    assert message in str(caught.value)


@pytest.mark.parametrize(("name", "write"), [(name, write) for name, write in FORMATS if "csv" not in name.lower()])
def test_a_truncated_file_is_never_read_partially(tmp_path: Path, name: str, write: Write) -> None:
    write(tmp_path / name)
    whole = (tmp_path / name).read_bytes().rstrip()
    for size in range(1, len(whole), max(1, len(whole) // 50)):
        (tmp_path / name).write_bytes(whole[:size])
        try:
            routes = load(tmp_path / name).routes
        except SsbrokerError:
            continue
        # Lines, and batches of a stream, may end where the file was cut; what is left of them is whole.
        assert routes.to_pylist() in ([], ROWS[:1], ROWS)
        assert name.endswith((".json", ".jsonl", ".ndjson", ".arrow"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "expected a JSON object"),
        ('{"addresses": "TCP://me"}', "addresses: 'TCP://me'; expected a list of strings"),
        ('{"addresses": [1]}', "addresses: [1]; expected a list of strings"),
        ('{"pending_requests": ["\\ud800"]}', r"pending_requests: ['\ud800']; expected a list of strings"),
        ('{"message_forwarding": 1}', "message_forwarding: 1; expected true or false"),
        ('{"forwarding": true}', "forwarding: True; expected addresses, message_forwarding or pending_requests"),
        ("{", "invalid JSON"),
        ("\xff", "invalid JSON"),
    ],
)
def test_the_error_names_the_invalid_setting(tmp_path: Path, content: str, message: str) -> None:
    write_csv(tmp_path / "routes.csv")
    (tmp_path / "instance.json").write_text(content, encoding="latin-1")
    with pytest.raises(InputError) as caught:
        load(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'instance.json'}: ")
    assert message in str(caught.value)


def test_two_files_of_one_table_are_an_error(tmp_path: Path) -> None:
    write_csv(tmp_path / "routes.csv")
    write_parquet(tmp_path / "routes.parquet")
    with pytest.raises(InputError, match=r"both routes\.csv and routes\.parquet contain routes"):
        load(tmp_path)


def test_scripts_and_tables_in_one_folder_are_an_error(tmp_path: Path) -> None:
    write_csv(tmp_path / "routes.csv")
    (tmp_path / "catalog.sql").write_text("USE Sales;")
    with pytest.raises(InputError, match=r"contains both scripts \(catalog\.sql\) and tables \(routes\.csv\)"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent", "no such file or folder"),
        ("notes.md", "unknown file format"),
        ("", "contains no routing table"),
    ],
)
def test_paths_that_cannot_be_loaded_are_reported(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "notes.md").write_text("")
    with pytest.raises(InputError, match=message):
        load(tmp_path / name)


def test_a_table_that_spark_wrote_as_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "routes.parquet").mkdir()
    (tmp_path / "routes.parquet" / "part-0.parquet").touch()
    with pytest.raises(
        InputError, match=r"no routing table; .*; routes\.parquet is a folder: write the table as one file"
    ):
        load(tmp_path)


def test_the_error_names_the_unreadable_file(tmp_path: Path) -> None:
    (tmp_path / "routes.csv").symlink_to("routes.csv")
    with pytest.raises(InputError, match=r"no such file|cannot be read"):
        load(tmp_path / "routes.csv")


def test_the_library_error_is_the_cause(tmp_path: Path) -> None:
    (tmp_path / "routes.parquet").write_bytes(b"PAR1")
    with pytest.raises(MalformedDataError) as caught:
        load(tmp_path / "routes.parquet")
    assert isinstance(caught.value.__cause__, pa.ArrowException)


def test_an_unreachable_path_is_an_input_error(tmp_path: Path) -> None:
    for path in (tmp_path / f"{'x' * 300}.csv", tmp_path / ("x" * 300) / "net"):
        with pytest.raises(InputError, match="cannot be read: File name too long"):
            Catalog.load(path)
    with pytest.raises(InputError, match="cannot be read: File name too long"):
        Fleet.load(tmp_path / ("x" * 300))


def test_a_folder_without_permission_is_an_input_error(open_to_all: Path) -> None:
    write_csv(open_to_all / "routes.csv")
    open_to_all.chmod(0o600 if os.geteuid() else 0o644)
    with nobody():
        for path in (open_to_all, open_to_all / "routes.csv"):
            with pytest.raises(InputError, match="cannot be read: Permission denied"):
                Catalog.load(path)
        with pytest.raises(InputError, match="cannot be read: Permission denied"):
            Fleet.load(open_to_all)
