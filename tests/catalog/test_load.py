"""Loading of catalogs in all formats."""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from ssbroker import Catalog, schemas
from tests.catalog.route_files import CSV, FORMATS, ROWS, Write, load, write_csv, write_parquet


@pytest.mark.parametrize(("name", "write"), FORMATS)
@pytest.mark.parametrize("whole_folder", [False, True])
def test_all_formats_load_equal_tables(tmp_path: Path, name: str, write: Write, *, whole_folder: bool) -> None:
    write(tmp_path / name)
    source = load(tmp_path if whole_folder else tmp_path / name)
    moments = source.routes.schema.field("lifetime").type
    assert pa.types.is_timestamp(moments)
    assert source.routes.to_pylist() == ROWS
    assert (source.databases, source.services, source.files) == (None, None, {"routes": tmp_path / name})


def test_a_folder_contains_tables_and_instance_settings(tmp_path: Path) -> None:
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


def test_a_single_file_is_loaded_without_other_files_of_its_folder(tmp_path: Path) -> None:
    write_csv(tmp_path / "routes.csv")
    (tmp_path / "services.csv").write_text("database,name\nSales,//Sales\n")
    assert load(tmp_path / "routes.csv").services is None


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_csv_file_may_start_with_a_byte_order_mark(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "services.csv").write_bytes("database,name\r\nSales,//Größe\r\n".encode(encoding))
    write_csv(tmp_path / "routes.csv")
    services = load(tmp_path).services
    assert services is not None
    assert services.to_pylist() == [{"database": "Sales", "name": "//Größe"}]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".txt", ".TXT"])
@pytest.mark.parametrize("prefix", ["", "sys."])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("tool", ["ssms", "sqlcmd"])
def test_exports_of_ssms_and_sqlcmd(
    tmp_path: Path, tool: str, separator: str, encoding: str, prefix: str, suffix: str
) -> None:
    """SSMS uses the list separator of Windows, or tabs in a `.txt` file; sqlcmd adds lines that are not rows."""

    def export(table: str, *lines: str) -> None:
        header, *data = (line.replace(",", separator) for line in lines)
        dashes = separator.join("-" * len(name) for name in header.split(separator))
        text = [header, *data] if tool == "ssms" else [header, dashes, *data, "", f"({len(data)} rows affected)"]
        (tmp_path / f"{prefix}{table}{suffix}").write_bytes("\r\n".join([*text, ""]).encode(encoding))

    export(
        "routes",
        "database,name,route_id,remote_service_name,broker_instance,lifetime,address,mirror_address",
        "Sales,AutoCreatedLocal,65536,NULL,NULL,NULL,LOCAL,NULL",
        "Sales,Stock,65537,//Größe,NULL,2026-12-01 10:00:00.000,TCP://sql02:4022,null",
    )
    export("services", "database,name", "Sales,//Sales")
    export("databases", "name,service_broker_guid,is_broker_enabled", "Sales,5A1E5000-0000-4000-8000-000000000001,1")

    catalog = Catalog.load(tmp_path)

    assert [tuple(row.values()) for row in catalog.routes.to_pylist()] == [
        ("Sales", "AutoCreatedLocal", 65536, None, None, None, "LOCAL", None),
        ("Sales", "Stock", 65537, "//Größe", None, datetime(2026, 12, 1, 10, tzinfo=UTC), "TCP://sql02:4022", None),
    ]
    assert catalog.services is not None
    assert catalog.services.to_pylist() == [{"database": "Sales", "name": "//Sales"}]
    assert catalog.databases.to_pylist()[0] == {
        "name": "Sales",
        "service_broker_guid": uuid.UUID("5a1e5000-0000-4000-8000-000000000001").bytes,
        "is_broker_enabled": True,
    }


def test_csv_cells_keep_their_quotes_commas_and_line_breaks(tmp_path: Path) -> None:
    (tmp_path / "routes.csv").write_text('name,address\n"a ""b"", c\nd",LOCAL\n')
    assert load(tmp_path / "routes.csv").routes.to_pylist() == [{"name": 'a "b", c\nd', "address": "LOCAL"}]


@pytest.mark.rule("R5")
def test_names_are_not_trimmed_and_never_null(tmp_path: Path) -> None:
    """Names compare byte by byte, and required columns have no text for null."""
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
def test_booleans_in_csv(tmp_path: Path, text: str, *, value: bool | None) -> None:
    write_csv(tmp_path / "routes.csv")
    (tmp_path / "databases.csv").write_text(f"name,is_broker_enabled\nSales,{text}\n")
    databases = load(tmp_path).databases
    assert databases is not None
    assert databases["is_broker_enabled"].to_pylist() == [value]


def test_a_quotation_mark_inside_a_cell_is_a_character(tmp_path: Path) -> None:
    (tmp_path / "routes.csv").write_text('name,address\n5" pipe,LOCAL\n')
    assert load(tmp_path / "routes.csv").routes.to_pylist() == [{"name": '5" pipe', "address": "LOCAL"}]
