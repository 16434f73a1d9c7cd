"""Routing of batches, tables and streams."""

from __future__ import annotations

import gc
import pickle
import threading
import weakref
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest

import ssbroker
from ssbroker import Catalog, Router, schemas
from tests.routing.conversations import CATALOG, NOW, ForeignArray, ForeignStream, conversations, routes


def test_a_batch_returns_a_batch() -> None:
    decisions = Router(CATALOG).route(conversations(["//Orders", "//Nobody"]), now=NOW)
    assert type(decisions) is pa.RecordBatch
    assert decisions.schema == schemas.DECISIONS
    assert decisions["outcome"].to_pylist() == ["REMOTE", "DELAYED"]
    decisions.validate(full=True)


def test_a_batch_of_another_library_returns_a_batch() -> None:
    decisions = Router(CATALOG).route(ForeignArray(conversations(["//Orders"])), now=NOW)
    assert type(decisions) is pa.RecordBatch
    assert decisions.num_rows == 1


@pytest.mark.parametrize("wrap", [lambda table: table, lambda table: table.to_reader(), ForeignStream])
def test_a_table_or_stream_returns_a_table_with_the_same_batches(wrap: Any) -> None:
    batches = [conversations(["//Orders"] * count) for count in (2, 1, 3)]
    decisions = Router(CATALOG).route(wrap(pa.Table.from_batches(batches)), now=NOW)
    assert type(decisions) is pa.Table
    assert decisions.schema == schemas.DECISIONS
    assert [batch.num_rows for batch in decisions.to_batches()] == [2, 1, 3]
    assert decisions.combine_chunks().to_pylist() == [
        row for batch in batches for row in Router(CATALOG).route(batch, now=NOW).to_pylist()
    ]


@pytest.mark.parametrize("wrap", [lambda table: table, lambda table: table.to_reader(), ForeignStream])
def test_empty_input_returns_empty_output(wrap: Any) -> None:
    empty = conversations([]).schema.empty_table()
    decisions = Router(CATALOG).route(wrap(empty), now=NOW)
    assert type(decisions) is pa.Table
    assert (decisions.num_rows, decisions.schema) == (0, schemas.DECISIONS)


def test_a_missing_column_is_an_error_even_without_rows() -> None:
    with pytest.raises(ssbroker.SchemaError, match="to_service_name"):
        Router(CATALOG).route(pa.schema([("database", pa.string())]).empty_table(), now=NOW)


def test_a_stream_is_read_lazily() -> None:
    alive: list[weakref.ref[pa.RecordBatch]] = []
    high = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal high
        for _ in range(20):
            gc.collect()
            high = max(high, sum(reference() is not None for reference in alive))
            batch = conversations(["//Orders"])
            alive.append(weakref.ref(batch))
            yield batch
            del batch

    reader = pa.RecordBatchReader.from_batches(conversations([]).schema, batches())
    assert Router(CATALOG).route(reader, now=NOW).num_rows == 20
    assert high <= 2


def test_error_rows_count_over_the_whole_input() -> None:
    batches = [
        conversations(["//Orders"] * 3),
        conversations(["//Orders"] * 2),
        conversations(["//Orders"] * 2, "Nowhere"),
    ]
    with pytest.raises(ssbroker.UnknownDatabaseError) as caught:
        Router(CATALOG).route(pa.Table.from_batches(batches), now=NOW)
    assert (caught.value.row, caught.value.column, caught.value.value) == (5, "database", "Nowhere")


def test_an_error_of_the_producer_passes_through() -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield conversations(["//Orders"])
        raise KeyError("the producer's own")

    reader = pa.RecordBatchReader.from_batches(conversations([]).schema, batches())
    with pytest.raises(KeyError, match="the producer's own"):
        Router(CATALOG).route(reader, now=NOW)


@pytest.mark.rule("R3")
@pytest.mark.parametrize("now", [NOW, NOW.astimezone(timezone(timedelta(hours=-7)))])
def test_now_determines_which_routes_have_expired(now: datetime) -> None:
    """A route is expired when now >= lifetime."""
    router = Router(CATALOG)
    batch = conversations(["//Late"])
    assert router.route(batch, now=now)["outcome"].to_pylist() == ["DELAYED"]
    assert router.route(batch, now=now - timedelta(microseconds=1))["outcome"].to_pylist() == ["REMOTE"]
    assert router.explain("//Late", database="Sales", now=now).decision["outcome"] == "DELAYED"


def test_the_current_time_is_the_default() -> None:
    soon = routes(
        {"name": "R", "address": "TCP://a", "remote_service_name": "//R", "lifetime": datetime.max.replace(tzinfo=UTC)}
    )
    gone = routes(
        {"name": "R", "address": "TCP://a", "remote_service_name": "//R", "lifetime": datetime.min.replace(tzinfo=UTC)}
    )
    assert Router(Catalog(soon)).route(conversations(["//R"]))["outcome"].to_pylist() == ["REMOTE"]
    assert Router(Catalog(gone)).route(conversations(["//R"]))["outcome"].to_pylist() == ["DELAYED"]


def test_properties() -> None:
    router = Router(CATALOG, tie_break="first", pending_request="delay")
    assert (router.catalog, router.tie_break, router.pending_request) == (CATALOG, "first", "delay")
    assert 0 < router.nbytes < 1_000_000
    assert repr(router).startswith("Router(Catalog(routes=5, ")
    with pytest.raises(AttributeError):
        router.tie_break = "hash"  # type: ignore[misc]


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
@pytest.mark.parametrize("tie_break", ["hash", "first", "round_robin"])
def test_pickling(dumps: Any, tie_break: Any) -> None:
    router = Router(CATALOG, tie_break=tie_break, pending_request="delay")
    copied = pickle.loads(dumps(router))
    batch = conversations(["//Orders"] * 50)
    assert (copied.catalog, copied.tie_break, copied.pending_request) == (CATALOG, tie_break, "delay")
    assert copied.route(batch, now=NOW).equals(router.route(batch, now=NOW))


def test_the_turns_of_round_robin_start_over_in_a_pickled_copy() -> None:
    router = Router(CATALOG, tie_break="round_robin")
    batch = conversations(["//Orders"])
    taken = [router.route(batch, now=NOW)["route_id"][0].as_py() for _ in range(4)]
    assert taken == [65536, 65537, 65538, 65536]
    assert pickle.loads(pickle.dumps(router)).route(batch, now=NOW)["route_id"][0].as_py() == 65536
    router.explain("//Orders", database="Sales")
    assert router.route(batch, now=NOW)["route_id"][0].as_py() == 65537


def test_a_pickle_of_another_version_is_rejected() -> None:
    restore, (version, *state) = Router(CATALOG).__reduce__()
    with pytest.raises(ssbroker.MalformedDataError, match="an incompatible version of ssbroker"):
        restore(version + 1, *state)


def test_twelve_threads_share_one_router() -> None:
    router = Router(CATALOG)
    batch = conversations(["//Orders", "//Late", "//Mirrored", "//Nobody"] * 25)
    expected = router.route(batch, now=NOW)
    answers: list[bool] = []

    def work() -> None:
        answers.extend(router.route(batch, now=NOW).equals(expected) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [True] * 240
