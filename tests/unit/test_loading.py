from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ssbroker import loading, schemas
from ssbroker.exceptions import InputError, MalformedDataError, SsbrokerError

NOW = datetime(2026, 11, 20, 21, tzinfo=UTC)
ROWS: list[dict[str, Any]] = [
    {
        "database": "Sales",
        "name": "Orders",
        "route_id": 65537,
        "remote_service_name": "//Contoso/Orders",
        "broker_instance": "A326E034-E4CF-4E7D-9FB0-ED1EA2BE0C08",
        "lifetime": datetime(2026, 11, 21, tzinfo=UTC),
        "address": "TCP://orders:4022",
        "mirror_address": "TCP://mirror:4022",
        "principal_id": "1",
    },
    {
        "database": "Sales",
        "name": "AutoCreatedLocal",
        "route_id": 65536,
        "remote_service_name": None,
        "broker_instance": None,
        "lifetime": None,
        "address": "LOCAL",
        "mirror_address": None,
        "principal_id": "1",
    },
]
CSV = (
    "database,name,route_id,remote_service_name,broker_instance,lifetime,address,mirror_address,principal_id\n"
    "Sales,Orders,65537,//Contoso/Orders,A326E034-E4CF-4E7D-9FB0-ED1EA2BE0C08,2026-11-21,TCP://orders:4022,TCP://mirror:4022,1\n"
    "Sales,AutoCreatedLocal,65536,,NULL,,LOCAL,NULL,1\n"
)


def load(path: Path) -> loading.Source:
    return loading.load(path, now=NOW)


def as_json(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {key: value.isoformat() if isinstance(value, datetime) else value for key, value in row.items()} for row in rows
    ]


def write_parquet(path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), path)


def write_csv(path: Path) -> None:
    path.write_text(CSV, encoding="utf-8")


def write_json(path: Path) -> None:
    path.write_text(json.dumps(as_json(ROWS), indent=1), encoding="utf-8")


def write_json_lines(path: Path) -> None:
    path.write_text("\n".join(map(json.dumps, as_json(ROWS))) + "\n\n", encoding="utf-8")


def write_arrow(path: Path) -> None:
    table = pa.Table.from_pylist(ROWS)
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)


def write_arrow_stream(path: Path) -> None:
    table = pa.Table.from_pylist(ROWS)
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)


FORMATS: list[tuple[str, Callable[[Path], None]]] = [
    ("routes.parquet", write_parquet),
    ("routes.csv", write_csv),
    ("routes.CSV", write_csv),
    ("routes.json", write_json),
    ("routes.json", write_json_lines),
    ("routes.jsonl", write_json_lines),
    ("routes.ndjson", write_json_lines),
    ("routes.arrow", write_arrow),
    ("routes.feather", write_arrow),
    ("routes.arrow", write_arrow_stream),
]


@pytest.mark.parametrize(("name", "write"), FORMATS)
@pytest.mark.parametrize("whole_folder", [False, True])
def test_every_format_says_the_same(
    tmp_path: Path, name: str, write: Callable[[Path], None], *, whole_folder: bool
) -> None:
    write(tmp_path / name)
    source = load(tmp_path if whole_folder else tmp_path / name)
    moments = source.routes.schema.field("lifetime").type
    assert pa.types.is_timestamp(moments)
    assert source.routes.to_pylist() == ROWS
    assert (source.databases, source.services, source.files) == (None, None, {"routes": tmp_path / name})


def test_a_folder_holds_tables_and_the_settings_of_the_instance(tmp_path: Path) -> None:
    write_parquet(tmp_path / "routes.parquet")
    (tmp_path / "databases.csv").write_text("name,service_broker_guid,is_broker_enabled\nSales,,1\nOld,NULL,False\n")
    (tmp_path / "services.jsonl").write_text('{"database": "Sales", "name": "//Sales"}\n')
    settings = {"addresses": ["TCP://me"], "message_forwarding": True, "pending_requests": ["//Orders"]}
    (tmp_path / "instance.json").write_text(json.dumps(settings))
    (tmp_path / "README.txt").write_text("is left alone")
    source = load(tmp_path)
    assert source.databases is not None
    assert source.databases.to_pylist() == [
        {"name": "Sales", "service_broker_guid": None, "is_broker_enabled": True},
        {"name": "Old", "service_broker_guid": None, "is_broker_enabled": False},
    ]
    assert source.services is not None
    assert source.services.to_pylist() == [{"database": "Sales", "name": "//Sales"}]
    assert (source.addresses, source.message_forwarding, source.pending_requests) == (
        ("TCP://me",),
        True,
        ("//Orders",),
    )


def test_a_file_alone_is_loaded_without_its_neighbours(tmp_path: Path) -> None:
    write_csv(tmp_path / "routes.csv")
    (tmp_path / "services.csv").write_text("database,name\nSales,//Sales\n")
    assert load(tmp_path / "routes.csv").services is None


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_csv_file_may_begin_with_a_byte_order_mark(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "services.csv").write_bytes("database,name\r\nSales,//Größe\r\n".encode(encoding))
    write_csv(tmp_path / "routes.csv")
    services = load(tmp_path).services
    assert services is not None
    assert services.to_pylist() == [{"database": "Sales", "name": "//Größe"}]


def test_csv_cells_keep_their_quotes_commas_and_line_breaks(tmp_path: Path) -> None:
    (tmp_path / "routes.csv").write_text('name,address\n"a ""b"", c\nd",LOCAL\n')
    assert load(tmp_path / "routes.csv").routes.to_pylist() == [{"name": 'a "b", c\nd', "address": "LOCAL"}]


def test_names_are_not_trimmed_and_not_taken_for_null(tmp_path: Path) -> None:
    """R5: names compare byte by byte; a column that cannot be null has no word for it."""
    (tmp_path / "routes.csv").write_text("name,remote_service_name,address\nNULL, //Orders ,LOCAL\n")
    assert load(tmp_path / "routes.csv").routes.to_pylist() == [
        {"name": "NULL", "remote_service_name": " //Orders ", "address": "LOCAL"}
    ]


@pytest.mark.parametrize(
    ("name", "content"), [("routes.csv", CSV.partition("\n")[0]), ("routes.json", "[]"), ("routes.jsonl", "")]
)
def test_a_table_may_have_no_rows(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    routes = load(tmp_path / name).routes
    assert routes.num_rows == 0
    assert set(schemas.ROUTES.names) <= set(routes.column_names)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("TRUE", True),
        ("1", True),
        (" 1 ", True),
        ("False", False),
        ("0", False),
        ("", None),
        ("NULL", None),
    ],
)
def test_how_csv_says_yes_and_no(tmp_path: Path, text: str, *, value: bool | None) -> None:
    write_csv(tmp_path / "routes.csv")
    (tmp_path / "databases.csv").write_text(f"name,is_broker_enabled\nSales,{text}\n")
    databases = load(tmp_path).databases
    assert databases is not None
    assert databases["is_broker_enabled"].to_pylist() == [value]


BAD_CELLS = [
    (
        "databases.csv",
        "name,is_broker_enabled\na,1\nb,yes\n",
        "databases.is_broker_enabled",
        "'yes'",
        "true, false, 1 or 0",
    ),
    ("routes.csv", "name,route_id\na,1\nb,1.5\n", "routes.route_id", "'1.5'", "a whole number of 32 bits"),
    (
        "routes.csv",
        "name,route_id\na,1\nb,2147483648\n",
        "routes.route_id",
        "'2147483648'",
        "a whole number of 32 bits",
    ),
    ("routes.csv", "name,route_id\na,1\nb,\u0663\n", "routes.route_id", "'\\u0663'", "a whole number of 32 bits"),
    ("routes.csv", "name,lifetime\na,\nb,soon\n", "routes.lifetime", "'soon'", "a moment"),
    ("routes.json", '[{"name": "a"}, {"name": 5}]', "routes.name", "5", "text"),
    ("routes.json", '[{"name": "a"}, {"name": "\\ud800"}]', "routes.name", "'\\ud800'", "text"),
    ("routes.json", '[{"route_id": 1}, {"route_id": true}]', "routes.route_id", "True", "a whole number of 32 bits"),
    ("routes.json", '[{"lifetime": null}, {"lifetime": 1}]', "routes.lifetime", "1", "a moment"),
    ("databases.json", '[{}, {"is_broker_enabled": 2}]', "databases.is_broker_enabled", "2", "true, false, 1 or 0"),
    ("databases.json", '[{}, {"is_broker_enabled": []}]', "databases.is_broker_enabled", "[]", "true, false, 1 or 0"),
]


@pytest.mark.parametrize(("name", "content", "column", "value", "expected"), BAD_CELLS)
def test_a_bad_cell_is_named(tmp_path: Path, name: str, content: str, column: str, value: str, expected: str) -> None:
    write_csv(tmp_path / "routes.csv")
    (tmp_path / name).write_text(content, encoding="utf-8")
    if name == "routes.json":
        (tmp_path / "routes.csv").unlink()
    with pytest.raises(InputError) as caught:
        load(tmp_path)
    error = caught.value
    assert (error.column, error.row, error.value) == (column, 1, value)
    assert str(error).startswith(f"{tmp_path / name}: {column}, row 1: {value} is not {expected}")


BAD_FILES = [
    ("routes.parquet", b"PAR1 is no file", "is no whole Parquet file"),
    ("routes.arrow", b"ARROW1\0\0 is no file", "is no whole Arrow IPC file"),
    ("routes.feather", b"", "is no whole Arrow IPC file"),
    ("routes.csv", b"", "is empty; expected a header line"),
    ("routes.csv", b"name,address,name\n", "its header names the column 'name' twice"),
    ("routes.csv", b"name,address\na,b\nc\n", "routes, row 1: has 1 cells, expected 2 cells: 'c'"),
    ("routes.csv", b"name,address\na,b\n(1 row affected), , \n", "routes, row 1: has 3 cells, expected 2 cells"),
    ("routes.csv", b'name,address\na,"b\nc,d\n', "is no CSV"),
    ("routes.csv", b"name,address\n\xff,b\n", "is no CSV"),
    ("routes.csv", b"\xff\xfe\0", "is no text in UTF-16"),
    ("routes.json", b'[{"name": "a"}', "is no JSON"),
    ("routes.json", b"[" * 100_000, "is no JSON"),
    ("routes.json", b'{"name": "a"}\n{"name": \n', "line 2: is no JSON"),
    ("routes.json", b'[{"name": "a"}, 5]', "routes, row 1: 5 is not an object"),
    ("routes.json", b"\xff", "is no text in UTF-8"),
    ("routes.json", b'[{"further": 1}, {"further": "x"}]', "routes.further: its values are of no one type"),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD_FILES)
def test_a_bad_file_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        load(tmp_path / name)
    assert str(caught.value).startswith(str(tmp_path / name))
    assert message in str(caught.value)


@pytest.mark.parametrize(("name", "write"), [(name, write) for name, write in FORMATS if "csv" not in name.lower()])
def test_a_truncated_file_is_never_read_in_part(tmp_path: Path, name: str, write: Callable[[Path], None]) -> None:
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
        ("[]", "expected an object"),
        ('{"addresses": "TCP://me"}', "addresses: 'TCP://me'; expected a list of texts"),
        ('{"addresses": [1]}', "addresses: [1]; expected a list of texts"),
        ('{"message_forwarding": 1}', "message_forwarding: 1; expected true or false"),
        ('{"forwarding": true}', "forwarding: True; expected addresses, message_forwarding or pending_requests"),
        ("{", "is no JSON"),
        ("\xff", "is no JSON"),
    ],
)
def test_bad_settings_of_the_instance_are_named(tmp_path: Path, content: str, message: str) -> None:
    write_csv(tmp_path / "routes.csv")
    (tmp_path / "instance.json").write_text(content, encoding="latin-1")
    with pytest.raises(InputError) as caught:
        load(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'instance.json'}: ")
    assert message in str(caught.value)


def test_one_table_in_two_files_is_an_error(tmp_path: Path) -> None:
    write_csv(tmp_path / "routes.csv")
    write_parquet(tmp_path / "routes.parquet")
    with pytest.raises(InputError, match=r"both routes\.csv and routes\.parquet hold the routes"):
        load(tmp_path)


def test_scripts_and_tables_in_one_folder_are_an_error(tmp_path: Path) -> None:
    write_csv(tmp_path / "routes.csv")
    (tmp_path / "catalog.sql").write_text("USE Sales;")
    with pytest.raises(InputError, match=r"holds scripts \(catalog\.sql\) and tables \(routes\.csv\)"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent", "there is no such file or folder"),
        ("notes.txt", "its suffix tells no format"),
        ("", "holds no routing table"),
    ],
)
def test_what_cannot_be_loaded_is_said(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(InputError, match=message):
        load(tmp_path / name)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "routes.csv").symlink_to("routes.csv")
    with pytest.raises(InputError, match=r"there is no such file|cannot be read"):
        load(tmp_path / "routes.csv")


def test_the_error_of_the_library_below_is_the_cause(tmp_path: Path) -> None:
    (tmp_path / "routes.parquet").write_bytes(b"PAR1")
    with pytest.raises(MalformedDataError) as caught:
        load(tmp_path / "routes.parquet")
    assert isinstance(caught.value.__cause__, pa.ArrowException)
