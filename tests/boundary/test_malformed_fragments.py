"""Corrupt fragments and messages: an error or a result, never a crash, and no change."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

import ssbroker
from tests.boundary import fragment_capsules, malformed_fragments
from tests.boundary.attempts import ROOT, failures
from tests.boundary.fragmented import FRAGMENTS
from tests.boundary.layouts import relaid, replace_with
from tests.boundary.malformed import ALL_FORMS
from tests.boundary.malformed_fragments import BYTES, VALID, VALUE
from tests.boundary.writable import writable
from tests.compat.pyarrow_versions import needs_pyarrow
from tests.routing.conversations import ForeignStream

VIEWS = needs_pyarrow("16", "has no string views")
BATCHES = 2_000
# Expected results of thousands of batches, to verify that data are checked thoroughly enough.
REFUSALS = {f"{use}{name}Error" for use in ("", "cut ") for name in ("MalformedData", "InvalidGuid", "Null")}


@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=VIEWS) if name == "views" else name for name in malformed_fragments.FAMILIES],
)
def test_corrupt_data_are_rejected(family: str) -> None:
    assert failures("tests.boundary.malformed_fragments", family) == []


@pytest.mark.parametrize("family", fragment_capsules.FAMILIES)
def test_objects_that_violate_the_protocol_are_rejected(family: str) -> None:
    assert failures("tests.boundary.fragment_capsules", family) == []


def test_the_cases_are_valid_before_corruption() -> None:
    result = ssbroker.Reassembler(session_keys="key").push(VALID)
    assert (result.rejected.num_rows, result.pending.num_rows) == (0, 1)
    assert ssbroker.fragment(VALID, max_fragment_bytes=3, session_keys="key").num_rows == 3 * 18


def test_thousands_of_corrupted_batches() -> None:
    process = subprocess.run(
        [sys.executable, "-m", "tests.boundary.fragment_corrupter", "20261121", str(BATCHES)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    counts = Counter(json.loads(process.stdout))
    assert sum(count for name, count in counts.items() if name.startswith("cut ")) == BATCHES
    assert counts.keys() >= REFUSALS
    assert min(counts["legal"], counts["cut ok"]) > BATCHES / 10


@pytest.mark.parametrize("form", ALL_FORMS.values(), ids=ALL_FORMS)
@pytest.mark.parametrize("column", BYTES)
def test_the_error_names_the_corrupt_column(form: Any, column: str) -> None:
    copy = writable(pa.array([VALUE] * 3))
    given = form(relaid(VALID, {column: replace_with(copy.array)}))
    copy.write_numbers(1, None, 60, 50, width=4)
    with pytest.raises(ssbroker.MalformedDataError) as caught:
        ssbroker.Reassembler().push(given)
    assert caught.value.column in (column, None)
    assert caught.value.column or isinstance(given, ForeignStream)


def test_the_error_names_the_corrupt_row_and_nothing_changes() -> None:
    bodies: Any = FRAGMENTS["message_body"]
    copy = writable(bodies.dictionary_encode())
    batch: Any = relaid(FRAGMENTS, {"message_body": replace_with(copy.array)})
    copy.write_numbers(1, *[None] * 77, 1 << 20, width=4)
    reassembler = ssbroker.Reassembler()
    reassembler.push(FRAGMENTS.slice(0, 30))
    before = reassembler.checkpoint()
    for given in (batch, pa.Table.from_batches([batch.slice(0, 30), batch.slice(30, 40), batch.slice(70)])):
        with pytest.raises(ssbroker.MalformedDataError, match="row 77") as caught:
            reassembler.push(given)
        assert (caught.value.column, caught.value.row) == ("message_body", 77)
    assert reassembler.checkpoint() == before
