"""Pickles that version 0.1 wrote, recorded in tests/data."""

from __future__ import annotations

import base64
import json
import pickle
from typing import Any

import pyarrow as pa
import pytest

from ssbroker import Catalog, InvalidGuidError, Reassembler, Reassembly, Router
from tests.guards.repository import ROOT

RECORDED: dict[str, str] = json.loads((ROOT / "tests" / "data" / "pickles_0.1.json").read_text(encoding="utf-8"))
CONVERSATION = {"conversation_id": ["5baf2c00-6e51-4b3f-a4ad-4f1a3ad7a001"], "to_service_name": ["//Bank"]}


@pytest.fixture
def restored(request: pytest.FixtureRequest) -> Any:
    return pickle.loads(base64.b64decode(RECORDED[request.param]))


@pytest.mark.parametrize("restored", ["catalog"], indirect=True)
def test_a_catalog(restored: Catalog) -> None:
    decisions = Router(restored, tie_break="first").route(pa.table(CONVERSATION))
    assert decisions["next_hop_address"].to_pylist() == ["TCP://bank:4022"]


@pytest.mark.parametrize("restored", ["router"], indirect=True)
def test_a_router(restored: Router) -> None:
    assert restored.route(pa.table(CONVERSATION))["outcome"].to_pylist() == ["REMOTE"]


@pytest.mark.parametrize("restored", ["reassembler"], indirect=True)
def test_a_reassembler_continues_with_its_fragments(restored: Reassembler) -> None:
    assert restored.pending()["received_fragments"].to_pylist() == [2]


@pytest.mark.parametrize("restored", ["result"], indirect=True)
def test_a_result(restored: Reassembly) -> None:
    assert restored.pending.num_rows == 1


@pytest.mark.parametrize("restored", ["error"], indirect=True)
def test_an_error(restored: InvalidGuidError) -> None:
    assert (restored.column, restored.row, restored.value) == ("conversation_id", 0, "x")
