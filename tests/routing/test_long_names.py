"""Service names of any length are different names."""

from __future__ import annotations

import pytest

from ssbroker import Catalog, Router
from tests.routing.conversations import NOW, conversations, routes


@pytest.mark.parametrize("length", [0, 1, 15, 16, 48, 49, 64])
def test_a_short_name_is_not_a_name_that_is_65536_bytes_longer(length: int) -> None:
    long, short = "x" * (65_536 + length), "\0" * length
    router = Router(Catalog(routes({"name": "Long", "address": "TCP://long", "remote_service_name": long})))
    decisions = router.route(conversations([long, short]), now=NOW)
    assert decisions["match_step"].to_pylist() == [2, 7]
