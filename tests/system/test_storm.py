"""P2, P11, P16, P18: three real processes exchange messages over a network with faults, while each is killed and restarted.

The long form is a command: `python -m tests.system.storm --messages 200000 --large 20`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.system import storm
from tests.system.faults import NO_FAULTS, FaultRates
from tests.system.fleet import GATE, ROLES, SHOP, STOCK
from tests.system.namespaces import Namespaces
from tests.system.storm import FORWARDER_MIB_MAX, FORWARDER_ROWS_MIB_MAX, MIB, KillSchedule
from tests.system.traffic import Plan

TIMEOUT = 600.0
PLAN = Plan(lanes=10, messages=700, small_bytes=1024, large=1, large_bytes=3 * MIB)
RATES = FaultRates(flip_bytes=8 * MIB, cut_bytes=8 * MIB, delay_bytes=MIB, delay_seconds=0.1)


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
    outcome = storm.run(tmp_path, PLAN, rates=RATES, schedule=KillSchedule(kills=3), timeout=TIMEOUT)
    assert outcome.is_correct, outcome
    assert dict(outcome.kills) == {SHOP: 1, GATE: 1, STOCK: 1}
    assert outcome.network["cut"] > 0
    assert outcome.forwarder_mib <= FORWARDER_MIB_MAX
    assert 0 < outcome.forwarder_rows_mib <= FORWARDER_ROWS_MIB_MAX


@pytest.mark.rule("P11", "P21", "P23")
def test_flipped_bits_are_detected_without_tls(tmp_path: Path) -> None:
    """Checksums of frames and digests of dialogs detect them."""
    plan = Plan(lanes=10, messages=300, small_bytes=1024, large=1, large_bytes=MIB)
    rates = FaultRates(flip_bytes=MIB)
    outcome = storm.run(tmp_path, plan, rates=rates, schedule=KillSchedule(), is_encrypted=False, timeout=TIMEOUT)
    assert outcome.is_correct, outcome
    assert outcome.network["flips"] > 0


@pytest.mark.rule("P2")
def test_a_storm_between_network_namespaces(spaces: Namespaces, tmp_path: Path) -> None:
    """Each has its own network, with kernel links between them."""
    outcome = storm.run(
        tmp_path, PLAN, rates=NO_FAULTS, schedule=KillSchedule(kills=3), locations=spaces.locations, timeout=TIMEOUT
    )
    assert outcome.is_correct, outcome
    assert sum(outcome.kills.values()) == 3
