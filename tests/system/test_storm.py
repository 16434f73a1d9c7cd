"""P2, P11, P16, P18: three real processes exchange messages over a network with faults, while each is killed and restarted.

The long form is a command: `python -m tests.system.storm --messages 200000 --large 20`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.system import storm
from tests.system.faults import HONEST, Menu
from tests.system.fleet import GATE, ROLES, SHOP, STOCK
from tests.system.namespaces import Namespaces
from tests.system.storm import FORWARDER_MIB_MAX, FORWARDER_ROWS_MIB_MAX, MIB, Violence
from tests.system.traffic import Plan

TIMEOUT = 600.0
PLAN = Plan(lanes=10, messages=700, small_bytes=1024, large=1, large_bytes=3 * MIB)
MENU = Menu(flip_bytes=8 * MIB, cut_bytes=8 * MIB, delay_bytes=MIB, delay_seconds=0.1)


@pytest.fixture
def spaces() -> Iterator[Namespaces]:
    with ExitStack() as stack:
        try:
            made = stack.enter_context(Namespaces([*ROLES]))
        except OSError as error:
            pytest.skip(f"network namespaces are not allowed here: {error}")
        yield made


@pytest.mark.rule("P11", "P24", "P16", "P18", "R43")
def test_a_storm_loses_duplicates_and_reorders_nothing(tmp_path: Path) -> None:
    """Each is killed; the forwarder, which keeps rows in memory only, loses them and stays within its limit."""
    found = storm.run(tmp_path, PLAN, menu=MENU, violence=Violence(strokes=3), timeout=TIMEOUT)
    assert found.is_correct, found
    assert dict(found.kills) == {SHOP: 1, GATE: 1, STOCK: 1}
    assert found.network["cut"] > 0
    assert found.forwarder_mib <= FORWARDER_MIB_MAX
    assert 0 < found.forwarder_rows_mib <= FORWARDER_ROWS_MIB_MAX


@pytest.mark.rule("P11", "P21", "P23")
def test_flipped_bits_are_detected_without_tls(tmp_path: Path) -> None:
    """Checksums of frames and digests of dialogs detect them."""
    plan = Plan(lanes=10, messages=300, small_bytes=1024, large=1, large_bytes=MIB)
    menu = Menu(flip_bytes=MIB)
    found = storm.run(tmp_path, plan, menu=menu, violence=Violence(), is_encrypted=False, timeout=TIMEOUT)
    assert found.is_correct, found
    assert found.network["flips"] > 0


@pytest.mark.rule("P2")
def test_a_storm_between_network_namespaces(spaces: Namespaces, tmp_path: Path) -> None:
    """Each has its own network, with kernel links between them."""
    found = storm.run(tmp_path, PLAN, menu=HONEST, violence=Violence(strokes=3), places=spaces.places, timeout=TIMEOUT)
    assert found.is_correct, found
    assert sum(found.kills.values()) == 3
