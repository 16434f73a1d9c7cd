"""Data that contradict their own layout, and objects that break the protocol: an error or a result, never a crash.

A crash ends the process, so the cases run in other processes.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import ssbroker
from ssbroker import Catalog, Router
from tests.boundary import capsules, malformed
from tests.boundary.attempts import ROOT, failures
from tests.boundary.layouts import BINARIES, TEXTS, DataType, relaid, replace_with
from tests.boundary.malformed import ROUTER, VALID
from tests.boundary.writable import writable
from tests.compat.pyarrow_versions import needs_pyarrow
from tests.routing.conversations import NOW, ForeignStream

VIEWS = needs_pyarrow("16", "has no string views")
BATCHES = 4_000
# Expected results of thousands of batches, to verify that data are checked thoroughly enough.
REFUSALS = {
    *(f"conversations {name}Error" for name in ("MalformedData", "InvalidGuid", "UnknownDatabase", "Null")),
    *(f"catalog {name}Error" for name in ("MalformedData", "InvalidGuid", "InvalidAddress", "Null")),
}


@pytest.mark.threat("T19")
@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=VIEWS) if name == "views" else name for name in malformed.FAMILIES],
)
def test_corrupt_data_are_rejected(family: str) -> None:
    """Nothing corrupt reaches native code."""
    assert failures("tests.boundary.malformed", family) == []


@pytest.mark.parametrize("family", capsules.FAMILIES)
def test_objects_that_violate_the_protocol_are_rejected(family: str) -> None:
    assert failures("tests.boundary.capsules", family) == []


def test_crashes_are_detected() -> None:
    """A case that ends its process fails and is named."""
    found = failures("tests.boundary.crashing", "crashes")
    assert len(found) == 2
    assert found[0] == "a panic: expected any, got * SystemExit: 5"
    assert found[1].startswith("a crash: exit status -11")
    assert failures("tests.boundary.crashing", "runs_after_crash") == []


def test_thousands_of_corrupted_batches() -> None:
    process = subprocess.run(
        [sys.executable, "-m", "tests.boundary.corrupter", "20261120", str(BATCHES)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    counts = Counter(json.loads(process.stdout))
    tried = sum(count for name, count in counts.items() if name.startswith(("conversations ", "catalog ")))
    assert tried == BATCHES
    assert counts.keys() >= REFUSALS
    assert counts["legal"] > BATCHES / 10
    assert counts["its router ok"] > BATCHES / 20


@pytest.mark.parametrize("column", ["database", "name", "remote_service_name"])
@pytest.mark.parametrize(
    ("binary", "kind"), list(zip(BINARIES.values(), TEXTS.values(), strict=True)), ids=list(BINARIES)
)
def test_a_catalog_rejects_text_that_is_not_utf8(column: str, binary: Any, kind: DataType) -> None:
    """The error is raised immediately, not when the catalog is read, saved or pickled."""
    invalid = pa.Array.from_buffers(kind, 2, pa.array([b"good", b"\xff\xfe"], binary).buffers())
    plain = {"database": ["Sales"] * 2, "name": ["A", "B"], "remote_service_name": ["S"] * 2, "address": ["LOCAL"] * 2}
    with pytest.raises(ssbroker.MalformedDataError, match="UTF-8") as caught:
        Catalog(pa.table(plain | {column: invalid}))
    assert (caught.value.column, caught.value.row) == (f"routes.{column}", 1)


def test_the_error_names_the_corrupt_row() -> None:
    copy = writable(pa.array(["//Orders"] * 100).dictionary_encode())
    batch: Any = pa.record_batch({"to_service_name": copy.array, "conversation_id": pa.array([bytes(16)] * 100)})
    copy.write_numbers(1, *[None] * 77, 5, width=4)
    table = pa.Table.from_batches([batch.slice(0, 30), batch.slice(30, 40), batch.slice(70)])
    for given in (batch, table):
        with pytest.raises(ssbroker.MalformedDataError) as caught:
            ROUTER.route(given, now=NOW)
        assert (caught.value.column, caught.value.row) == ("to_service_name", 77)
        assert "row 77" in str(caught.value)


@pytest.mark.parametrize("form", malformed.ALL_FORMS.values(), ids=malformed.ALL_FORMS)
def test_the_error_names_the_corrupt_column(form: Any) -> None:
    """Conversations are a single table, so the name of the column is sufficient."""
    copy = writable(malformed.COLUMNS["database"])
    given = form(relaid(VALID, {"database": replace_with(copy.array)}))
    copy.write_numbers(1, None, None, None, -24, width=4)
    with pytest.raises(ssbroker.MalformedDataError) as caught:
        ROUTER.route(given, now=NOW)
    assert caught.value.column in ("database", None)
    assert caught.value.column or isinstance(given, ForeignStream)


def test_the_error_names_the_corrupt_column_of_a_catalog_with_its_table() -> None:
    copy = writable(pa.array(["LOCAL"] * 3))
    routes = pa.table({"name": ["A", "B", "C"], "address": copy.array})
    copy.write_numbers(1, None, None, None, -24, width=4)
    with pytest.raises(ssbroker.MalformedDataError, match=r"^routes\.address: ") as caught:
        Catalog(routes)
    assert caught.value.column == "routes.address"


def test_an_error_in_a_stream_leaves_the_router_usable() -> None:
    """Earlier batches have taken their turns; the router continues."""

    def stream() -> Iterator[pa.RecordBatch]:
        yield VALID
        raise RuntimeError("the disk is gone")

    reader = pa.RecordBatchReader.from_batches(VALID.schema, stream())
    with pytest.raises(RuntimeError, match="the disk is gone"):
        ROUTER.route(reader, now=NOW)
    reader = pa.RecordBatchReader.from_batches(VALID.schema, stream())
    with pytest.raises(Exception, match="the disk is gone"):
        ROUTER.route(ForeignStream(reader), now=NOW)
    assert ROUTER.route(VALID, now=NOW).num_rows == VALID.num_rows


def test_a_corrupt_pickle_is_rejected() -> None:
    restore, (version, routes, *others) = Router(ROUTER.catalog).catalog.__reduce__()
    for broken in (b"", routes[:40], routes[:-40], bytes(len(routes)), b"\xff" * 64):
        with pytest.raises((ssbroker.SsbrokerError, ValueError, OSError)):
            restore(version, broken, *others)
    assert restore(version, routes, *others) == pickle.loads(pickle.dumps(ROUTER.catalog))
