"""Tables of other libraries, as catalogs and conversations, give the results of pyarrow tables."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import ssbroker
from ssbroker import Catalog, Router, schemas
from tests.compat.pyarrow_versions import needs_pyarrow
from tests.routing.conversations import ForeignArray, ForeignStream

NOW = datetime(2026, 11, 20, 21, tzinfo=UTC)
ORDERS_ID = uuid.UUID("a326e034-e4cf-4e7d-9fb0-ed1ea2be0c08")
ROUTES = pa.table(
    {
        "database": ["Sales", "Sales", "Sales", "msdb"],
        "name": ["Orders", "Größe", "Late", "Hub"],
        "route_id": pa.array([65537, 65538, 65539, 65536], pa.int32()),
        "remote_service_name": [
            "//Contoso/Orders",
            "//Contoso/Größe, the long name of a service",
            "//Contoso/Late",
            None,
        ],
        "broker_instance": [str(ORDERS_ID).upper(), None, None, None],
        "lifetime": pa.array([None, datetime(2026, 11, 21, tzinfo=UTC), NOW, None], pa.timestamp("us", "UTC")),
        "address": ["TCP://orders:4022", "LOCAL", "TCP://late:4022", "tcp://Hub"],
        "mirror_address": ["TCP://mirror:4022", None, None, None],
    }
)
DATABASES = pa.table(
    {
        "name": ["Sales", "Stores"],
        "service_broker_guid": [str(uuid.UUID(int=1)), str(uuid.UUID(int=2))],
        "is_broker_enabled": [True, True],
    }
)
SERVICES = pa.table({"database": ["Stores"], "name": ["//Contoso/Größe, the long name of a service"]})
CONVERSATIONS = pa.table(
    {
        "conversation_id": [str(uuid.UUID(int=number)) for number in range(6)],
        "database": ["Sales", "Sales", "Sales", None, None, "Sales"],
        "to_service_name": [
            "//Contoso/Orders",
            "//Contoso/Größe, the long name of a service",
            "//Contoso/Late",
            "//Contoso/Anything",
            "//Contoso/Orders",
            "//Contoso/Orders",
        ],
        "to_broker_instance": [str(ORDERS_ID), None, None, None, str(uuid.UUID(int=1)), "{" + str(ORDERS_ID) + "}"],
        "is_initiator": [True, True, True, True, False, True],
    }
)
EXPECTED = Catalog(ROUTES, DATABASES, SERVICES)
DECISIONS = Router(EXPECTED).route(CONVERSATIONS, now=NOW).to_pylist()


def duckdb_relation(table: pa.Table) -> Any:
    return duckdb.connect().from_arrow(table)


def duckdb_with_uuids(table: pa.Table) -> Any:
    guids = [
        name
        for name in ("broker_instance", "service_broker_guid", "to_broker_instance", "conversation_id")
        if name in table.column_names
    ]
    casts = ", ".join(f"{name}::UUID AS {name}" for name in guids)
    replaced = f"* REPLACE ({casts})" if casts else "*"
    return duckdb.connect().from_arrow(table).project(replaced)


def pandas_frame(table: pa.Table) -> pd.DataFrame:
    return table.to_pandas()


def pandas_of_arrow(table: pa.Table) -> pd.DataFrame:
    return table.to_pandas(types_mapper=pd.ArrowDtype)


def pandas_with_an_index(table: pa.Table) -> pd.DataFrame:
    return table.to_pandas().set_index(pd.Index(range(5, 5 + table.num_rows), name="from_excel"))


def pandas_with_guids(table: pa.Table) -> pd.DataFrame:
    frame = table.to_pandas()
    for name in ("broker_instance", "service_broker_guid", "to_broker_instance", "conversation_id"):
        if name in frame:
            frame[name] = [None if text is None else uuid.UUID(text).bytes for text in frame[name]]
    return frame


def foreign_stream(batch: pa.RecordBatch) -> Any:
    return ForeignStream(pa.RecordBatchReader.from_batches(batch.schema, iter([batch])))


def batched_reader(table: pa.Table) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(table.schema, iter(table.to_batches(max_chunksize=1)))


FORMS: list[Callable[[pa.Table], Any]] = [
    pl.DataFrame,
    pl.from_arrow,
    duckdb_relation,
    duckdb_with_uuids,
    pandas_frame,
    pandas_of_arrow,
    pandas_with_an_index,
    pandas_with_guids,
    pa.Table.to_reader,
    batched_reader,
    ds.dataset,
    lambda table: ds.dataset(table).scanner(),
    lambda table: ds.dataset(table).scanner().to_reader(),
    lambda table: ds.dataset(table).to_table(),
    lambda table: table.to_batches()[0],
    lambda table: table.to_struct_array(),
    lambda table: table.to_batches()[0].to_struct_array(),
    pa.Table.to_pylist,
]
NAMES = [
    "polars",
    "polars from arrow",
    "duckdb",
    "duckdb uuid",
    "pandas",
    "pandas of arrow",
    "pandas with an index",
    "pandas with bytes",
    "reader",
    "reader of many batches",
    "dataset",
    "scanner",
    "scanner's reader",
    "dataset's table",
    "record batch",
    "chunked struct array",
    "struct array",
    "list of dicts",
]


@pytest.mark.parametrize("form", FORMS, ids=NAMES)
def test_a_catalog_is_the_same_from_every_library(form: Callable[[pa.Table], Any]) -> None:
    catalog = Catalog(form(ROUTES), form(DATABASES), form(SERVICES))
    assert catalog == EXPECTED
    assert catalog.routes.select(schemas.ROUTES.names).to_pylist() == EXPECTED.routes.to_pylist()


@pytest.mark.parametrize("form", FORMS, ids=NAMES)
def test_decisions_are_the_same_from_every_library(form: Callable[[pa.Table], Any]) -> None:
    conversations = form(CONVERSATIONS)
    decisions = Router(EXPECTED).route(conversations, now=NOW)
    assert decisions.to_pylist() == DECISIONS
    assert type(decisions) is (pa.RecordBatch if hasattr(conversations, "__arrow_c_array__") else pa.Table)


def test_the_expected_decisions_are_of_every_kind() -> None:
    assert [row["outcome"] for row in DECISIONS] == ["REMOTE", "LOCAL", "DELAYED", "DROPPED", "DROPPED", "REMOTE"]


def test_extra_columns_of_other_libraries_are_kept() -> None:
    routes = pl.DataFrame(ROUTES).with_columns(
        principal_id=pl.Series([1, 2, 3, 4], dtype=pl.Int16), tags=pl.Series([["a"], [], None, ["b"]])
    )
    kept = Catalog(routes).routes
    assert kept["principal_id"].to_pylist() == [1, 2, 3, 4]
    assert kept["tags"].to_pylist() == [["a"], [], None, ["b"]]
    assert kept.schema.field("principal_id").type == pa.int16()


@pytest.mark.parametrize(
    "value",
    [
        pl.LazyFrame({"name": ["a"]}),
        pd.Series(["a"]),
        ROUTES.to_pydict(),
        iter(ROUTES.to_batches()),
    ],
    ids=["lazy frame", "series", "dict", "iterator"],
)
def test_lazy_frames_and_other_objects_are_rejected(value: Any) -> None:
    with pytest.raises(ssbroker.SchemaError, match="expected an Arrow object") as caught:
        Catalog(value)
    assert type(value).__name__ in str(caught.value)


def test_errors_about_batches_name_what_makes_a_stream_or_table_of_them() -> None:
    batches = ROUTES.to_batches()
    with pytest.raises(ssbroker.SchemaError, match=r"got generator; pyarrow\.RecordBatchReader\.from_batches"):
        Catalog(batch for batch in batches)  # type: ignore[arg-type]
    with pytest.raises(ssbroker.SchemaError, match=r"got pyarrow\.lib\.RecordBatch; pyarrow\.Table\.from_batches"):
        Catalog(batches)  # type: ignore[arg-type]


def test_a_frame_that_arrow_cannot_represent_is_rejected() -> None:
    frame = pandas_frame(ROUTES)
    frame["address"] = pd.Series([1, "LOCAL", "LOCAL", object()])
    with pytest.raises(ssbroker.SsbrokerError, match=r"^address: the values in routes have no common Arrow type"):
        Catalog(frame)


def test_an_error_in_a_duckdb_stream_is_raised() -> None:
    failing = (
        duckdb.connect().from_arrow(CONVERSATIONS).project("* REPLACE (error('the disk is gone') AS to_service_name)")
    )
    with pytest.raises(duckdb.Error, match="the disk is gone"):
        Router(EXPECTED).route(failing, now=NOW)


def test_rows_are_counted_over_the_batches_of_another_library() -> None:
    invalid = pl.DataFrame(CONVERSATIONS).with_columns(
        to_broker_instance=pl.Series([None, None, None, None, "no guid", None])
    )
    with pytest.raises(ssbroker.InvalidGuidError) as caught:
        Router(EXPECTED).route(invalid, now=NOW)
    assert (caught.value.column, caught.value.row, caught.value.value) == ("to_broker_instance", 4, "no guid")


def test_pandas_nat_is_rejected_as_now() -> None:
    with pytest.raises(ssbroker.OptionError, match="now: expected a datetime or None, got NaT"):
        Router(EXPECTED).route(CONVERSATIONS, now=pd.NaT)
    assert Router(EXPECTED).route(CONVERSATIONS, now=pd.Timestamp(NOW)).to_pylist() == DECISIONS


@needs_pyarrow("18", "has no type for DuckDB's lossless booleans")
def test_lossless_duckdb_types_are_read() -> None:
    """UUIDs as Arrow extension arrays and booleans as bool8: `is_initiator` was once reported as a number."""
    with duckdb.connect() as connection:
        connection.execute("SET arrow_lossless_conversion = true")
        for name, table in (("d", DATABASES), ("c", CONVERSATIONS)):
            connection.register(name, table)
        databases = "SELECT * REPLACE (service_broker_guid::uuid AS service_broker_guid) FROM d"
        conversations = "SELECT * REPLACE (conversation_id::uuid AS conversation_id) FROM c"
        lossless = connection.sql(databases).to_arrow_table()
        assert isinstance(lossless.schema.field("is_broker_enabled").type, pa.Bool8Type)
        router = Router(Catalog(ROUTES, connection.sql(databases), SERVICES))
        needed = Router(Catalog(ROUTES, DATABASES, SERVICES)).route(CONVERSATIONS, now=NOW)
        assert router.route(connection.sql(conversations), now=NOW).to_pylist() == needed.to_pylist()
        (batch,) = connection.sql(conversations).to_arrow_table().to_batches()
        assert router.route(batch, now=NOW).to_pylist() == needed.to_pylist()
        message = "SELECT uuid() AS conversation_id, true AS is_initiator, 0 AS message_sequence_number, 'abc'::blob AS message_body"
        fragments = ssbroker.fragment(connection.sql(message), max_fragment_bytes=2)
        assert ssbroker.reassemble(fragments).messages["message_body"].to_pylist() == [b"abc"]


@needs_pyarrow("16", "cannot import views")
@pytest.mark.parametrize("form", [ForeignArray, foreign_stream])
def test_an_empty_slice_of_views_from_another_library_has_no_rows(form: Callable[[Any], Any]) -> None:
    """pyarrow itself finds its view buffer too short."""

    def empty(*names: str) -> Any:
        views: Any = pa.record_batch({name: pa.array(["//Orders"] * 9, pa.string_view()) for name in names})
        return form(views.slice(5, 0))

    assert Catalog(empty("name", "address")).routes.num_rows == 0
    assert Router(EXPECTED, tie_break="first").route(empty("database", "to_service_name")).num_rows == 0


@needs_pyarrow("16", "cannot import views")
def test_an_empty_slice_of_a_column_of_views_has_no_digests() -> None:
    views: Any = pa.array(["//Orders"] * 9, pa.string_view())
    assert len(ssbroker.md5(ForeignArray(views.slice(5, 0)))) == 0
