"""Errors for invalid conversations and router options."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import ssbroker
from ssbroker import Catalog, Router
from tests.compat.pyarrow_versions import COLUMN_STREAMS
from tests.routing.conversations import CATALOG, ForeignArray, ForeignStream, conversations


@pytest.mark.parametrize("now", ["2026-11-20", 5, True])
def test_now_must_be_a_datetime(now: Any) -> None:
    router = Router(CATALOG)
    for call in (lambda: router.route(conversations([]), now=now), lambda: router.explain("//Orders", now=now)):
        with pytest.raises(ssbroker.OptionError, match="now: expected a datetime"):
            call()


@pytest.mark.parametrize("option", ["tie_break", "pending_request"])
@pytest.mark.parametrize("value", ["Hash", "", None, 5, ["hash"]])
def test_invalid_options_are_rejected(option: str, value: Any) -> None:
    with pytest.raises(ssbroker.OptionError, match=f"^{option}: expected one of "):
        Router(CATALOG, **{option: value})


@pytest.mark.parametrize("catalog", [None, CATALOG.routes, CATALOG.native, "routes.parquet"])
def test_a_router_requires_a_catalog(catalog: Any) -> None:
    with pytest.raises(ssbroker.SchemaError, match=r"catalog: expected an ssbroker\.Catalog"):
        Router(catalog)


@pytest.mark.parametrize("value", [None, 5, "//Orders", {"to_service_name": ["//Orders"]}])
def test_conversations_must_be_an_arrow_object(value: Any) -> None:
    with pytest.raises(ssbroker.SchemaError, match=r"^conversations: expected an Arrow object") as caught:
        Router(CATALOG).route(value)
    assert type(value).__name__ in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        pa.array([1]),
        ForeignArray(pa.array([1])),
        pytest.param(pa.chunked_array([[1]]), marks=COLUMN_STREAMS),
        pytest.param(ForeignStream(pa.chunked_array([[1]])), marks=COLUMN_STREAMS),
    ],
)
def test_a_single_column_is_rejected(value: Any) -> None:
    with pytest.raises(ssbroker.SsbrokerError, match=r"struct|single column"):
        Router(CATALOG).route(value)


def array_with_corrupt_offset(kind: pa.DataType) -> pa.Array[Any]:
    """Returns an array whose buffer was corrupted after pyarrow validated it."""
    width = 8 if kind == pa.large_string() else 4
    offsets = bytearray(b"".join(number.to_bytes(width, "little") for number in (0, 8)))
    array = pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(offsets), pa.py_buffer(b"//Orders")])
    offsets[width:] = (1_000_000).to_bytes(width, "little")
    return array


@pytest.mark.parametrize("column", ["to_service_name", "to_broker_instance", "message_body"])
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
@pytest.mark.parametrize("as_table", [False, True])
def test_an_offset_beyond_the_buffer_is_detected_before_native_code_reads_it(
    column: str, kind: pa.DataType, *, as_table: bool
) -> None:
    batch = conversations(["//Orders"]).append_column("message_body", pa.nulls(1))
    bad = batch.set_column(batch.schema.get_field_index(column), column, array_with_corrupt_offset(kind))
    with pytest.raises(ssbroker.MalformedDataError) as caught:
        Router(CATALOG).route(pa.Table.from_batches([bad]) if as_table else bad)
    assert caught.value.column == column
    assert isinstance(caught.value.__cause__, pa.ArrowInvalid)


def test_an_offset_beyond_the_buffer_is_detected_in_catalogs() -> None:
    table = CATALOG.routes.set_column(1, "name", pa.chunked_array([array_with_corrupt_offset(pa.string())] * 5))
    with pytest.raises(ssbroker.MalformedDataError, match=r"^routes\.name: "):
        Catalog(table)
