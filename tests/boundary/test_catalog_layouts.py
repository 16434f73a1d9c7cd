"""Catalogs from tables in every Arrow layout equal the reference catalog."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import ssbroker
from ssbroker import Catalog, Router, schemas
from tests.boundary.layouts import (
    BASIC_GUID,
    BASIC_TEXT,
    KEYS,
    SHAPES,
    DataType,
    Layout,
    as_dictionary,
    as_type,
    in_every_shape,
    nulls,
    nulls_of,
    replace_with,
    run_end_encoded,
    then,
)
from tests.boundary.routed import WORLDS, Routed, each_and_all, relaid_table, rows_of
from tests.worlds.universe import NOW

TEXT = {
    "routes": ("database", "name", "remote_service_name", "address", "mirror_address"),
    "databases": ("name",),
    "services": ("database", "name"),
}
TABLES = {"routes": schemas.ROUTES, "databases": schemas.DATABASES, "services": schemas.SERVICES}
GUIDS = {"routes": ("broker_instance",), "databases": ("service_broker_guid",)}
UNITS = ("s", "ms", "us", "ns")
ZONES = (None, "UTC", "Europe/Berlin", "-07:30")
COLUMNS = [(table, column) for table, schema in TABLES.items() for column in schema.names]
NULLABLE = [("routes", "remote_service_name"), ("routes", "broker_instance"), ("routes", "lifetime")]
NULLABLE += [("routes", "route_id"), ("routes", "mirror_address"), ("databases", "service_broker_guid")]


def catalog_of(world: Routed, **tables: pa.Table) -> Catalog:
    """Returns the world's catalog with some tables replaced."""
    plain = {"routes": world.catalog.routes, "databases": world.catalog.databases, "services": world.catalog.services}
    return Catalog(
        **(plain | tables),
        addresses=world.catalog.addresses,
        message_forwarding=world.catalog.message_forwarding,
        pending_requests=world.catalog.pending_requests,
    )


def relaid_catalog(world: Routed, table: str, layouts: dict[str, Layout]) -> Catalog:
    return catalog_of(world, **{table: relaid_table(getattr(world.catalog, table), layouts)})


def assert_same(world: Routed, catalog: Catalog, shape: str = "as it is") -> None:
    for table in TABLES:
        assert getattr(catalog, table).equals(getattr(world.catalog, table)), (table, shape)


@pytest.mark.parametrize("layout", BASIC_TEXT.values(), ids=BASIC_TEXT)
def test_text_in_any_layout_and_shape(layout: Layout) -> None:
    world = WORLDS[0]
    for shape, shaped in in_every_shape(layout).items():
        for table, names in TEXT.items():
            for layouts in each_and_all(names, shaped):
                assert_same(world, relaid_catalog(world, table, layouts), shape)


@pytest.mark.parametrize("layout", BASIC_GUID.values(), ids=BASIC_GUID)
def test_guids_in_any_layout_and_shape(layout: Layout) -> None:
    for shape, shaped in in_every_shape(layout).items():
        for world in WORLDS:
            for table, (name,) in GUIDS.items():
                assert_same(world, relaid_catalog(world, table, {name: shaped}), shape)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_booleans_in_any_shape(shape: Layout) -> None:
    for world in WORLDS:
        assert_same(world, relaid_catalog(world, "databases", {"is_broker_enabled": shape}))


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_booleans_in_a_dictionary(key: DataType) -> None:
    for world in WORLDS:
        assert_same(world, relaid_catalog(world, "databases", {"is_broker_enabled": as_dictionary(key)}))


def with_small_route_ids(world: Routed) -> Routed:
    """Returns the world with route ids of 8 bits."""
    ids = replace_with(pa.array(range(world.catalog.routes.num_rows), pa.int32()))
    catalog = relaid_catalog(world, "routes", {"route_id": ids})
    return Routed(catalog, Router(catalog), world.conversations, world.decisions)


@pytest.mark.parametrize("kind", KEYS, ids=str)
def test_route_ids_of_any_integer_type(kind: DataType) -> None:
    for world in map(with_small_route_ids, WORLDS):
        for shape in (as_type(kind), *(then(as_type(kind), shape) for shape in SHAPES.values())):
            assert_same(world, relaid_catalog(world, "routes", {"route_id": shape}))


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_route_ids_in_a_dictionary(key: DataType) -> None:
    for world in WORLDS:
        assert_same(world, relaid_catalog(world, "routes", {"route_id": as_dictionary(key)}))


def with_lifetimes_in_seconds(world: Routed) -> Routed:
    """Returns the world with lifetimes that every unit can represent."""
    whole: Any = pc
    catalog = relaid_catalog(world, "routes", {"lifetime": lambda array: whole.floor_temporal(array, unit="second")})
    router = Router(catalog)
    return Routed(catalog, router, world.conversations, router.route(world.conversations, now=NOW))


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("unit", UNITS)
def test_lifetimes_in_any_unit_and_zone(unit: Any, zone: str | None) -> None:
    """Without a zone they are UTC."""
    for world in map(with_lifetimes_in_seconds, WORLDS):
        layout = as_type(pa.timestamp(unit, zone))
        for shape in (layout, *(then(layout, shape) for shape in SHAPES.values())):
            catalog = relaid_catalog(world, "routes", {"lifetime": shape})
            assert_same(world, catalog)
            assert Router(catalog).route(world.conversations, now=NOW).equals(world.decisions)


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_lifetimes_in_a_dictionary(key: DataType) -> None:
    for world in WORLDS:
        assert_same(world, relaid_catalog(world, "routes", {"lifetime": as_dictionary(key)}))


@pytest.mark.parametrize(("table", "column"), NULLABLE)
def test_a_column_of_nulls_may_have_any_type(table: str, column: str) -> None:
    kind = TABLES[table].field(column).type
    for world in WORLDS:
        expected = relaid_catalog(world, table, {column: nulls_of(kind)})
        for layout in (nulls, as_dictionary(pa.int8(), kind), then(nulls, as_dictionary(pa.int8()))):
            assert relaid_catalog(world, table, {column: then(nulls_of(kind), layout)}) == expected
        left_out: Any = getattr(world.catalog, table)
        assert catalog_of(world, **{table: left_out.drop_columns([column])}) == expected


@pytest.mark.parametrize(("table", "column"), COLUMNS)
def test_run_end_encoded_columns_are_rejected(table: str, column: str) -> None:
    name = f"{table}.{column}"
    with pytest.raises(ssbroker.SchemaError, match=f"^{name}: expected .*, got .*(?i:run).*") as caught:
        relaid_catalog(WORLDS[0], table, {column: run_end_encoded})
    assert (caught.value.column, bool(caught.value.expected)) == (name, True)


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_tables_in_any_chunks(rows: int) -> None:
    for world in WORLDS:
        cut: dict[str, pa.Table] = {}
        for table, schema in TABLES.items():
            batches = getattr(world.catalog, table).to_batches(max_chunksize=rows)
            empty = pa.RecordBatch.from_pylist([], schema=schema)
            cut[table] = pa.Table.from_batches([empty, *batches, empty], schema=schema)
        assert_same(world, catalog_of(world, **cut))


def test_missing_route_ids_are_assigned_across_chunks() -> None:
    """They follow the highest id of their database, in row order, whatever the chunks."""
    routes = pa.table({"name": [f"route {row}" for row in range(20)], "address": ["LOCAL"] * 20})
    for rows in (1, 7, 20):
        catalog = Catalog(pa.Table.from_batches(routes.to_batches(max_chunksize=rows)))
        ids: list[Any] = catalog.routes["route_id"].to_pylist()
        assert ids == list(range(ids[0], ids[0] + len(ids)))


def test_slices_of_tables() -> None:
    for world in WORLDS:
        sliced: dict[str, pa.Table] = {}
        for table in TABLES:
            plain = getattr(world.catalog, table)
            around = pa.concat_tables([plain, plain, plain]).combine_chunks()
            sliced[table] = around.slice(plain.num_rows, plain.num_rows)
        assert_same(world, catalog_of(world, **sliced))


@pytest.mark.parametrize("table", TABLES)
def test_empty_tables(table: str) -> None:
    schema = TABLES[table]
    given: dict[str, Any] = {"routes": schemas.ROUTES.empty_table()}
    plain = Catalog(**(given | {table: schema.empty_table()}))
    for empty in (
        pa.table({field.name: pa.chunked_array([], field.type) for field in schema}),
        pa.table({name: [] for name in schema.names}),
        pa.RecordBatchReader.from_batches(schema, iter([])),
        pa.RecordBatch.from_pylist([], schema=schema),
    ):
        assert Catalog(**(given | {table: empty})) == plain
    assert rows_of(plain.databases) == [{"name": "msdb", "service_broker_guid": None, "is_broker_enabled": True}]
