"""A commit that returned is on the disk, whatever remains of unsynced writes after a power cut."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.system.power.dialogs import Dialogs
from tests.system.power.jobs import Jobs
from tests.system.power.network import Network
from tests.system.power.run import Entry, Weakness, check_power_cuts
from tests.system.power.tables import Tables

WEAK: Final = {
    "normal": Weakness(synchronous="normal"),
    "off": Weakness(synchronous="off"),
    "deaf": Weakness(ignored_syncs=("",)),
    "deaf to logs": Weakness(ignored_syncs=("-wal",)),
    "deaf to files": Weakness(ignored_syncs=(".sqlite",)),
}


def test_a_power_cut_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """After every write, truncation, sync, creation and deletion of a trace with checkpoints, in all possible states of the disk."""
    found = check_power_cuts(Tables, tmp_path, seed=1, transactions=140)
    assert found.faults == []
    assert found.states > 10_000


@pytest.mark.rule("P11", "P16")
def test_a_power_cut_loses_and_repeats_no_message(tmp_path: Path) -> None:
    """Within one database and between two: every committed message is received once, in order; at a sample of all points."""
    found = check_power_cuts(Dialogs, tmp_path, seed=1, transactions=60, share=0.08)
    assert found.faults == []
    assert found.states > 700


def test_a_power_cut_loses_and_repeats_no_job(tmp_path: Path) -> None:
    """Each message that was put is processed once, although taking a message is not synced; at a sample of all points."""
    found = check_power_cuts(Jobs, tmp_path, seed=1, transactions=80, share=0.15)
    assert found.faults == []
    assert found.states > 500


@pytest.mark.rule("P14", "P16")
def test_a_power_cut_loses_and_repeats_no_message_between_instances(tmp_path: Path) -> None:
    """Everything that one instance has acknowledged to another is stored, including incomplete and early messages; at a sample of all points."""
    found = check_power_cuts(Network, tmp_path, seed=1, transactions=60, share=0.08)
    assert found.faults == []
    assert found.states > 130


def test_acknowledging_before_a_sync_loses_messages(tmp_path: Path) -> None:
    """Tests the test: arrivals are not synced by their own commits. The trace of this seed has an early fault."""
    weakness = Weakness(sends_unsynced=True)
    found = check_power_cuts(Network, tmp_path, seed=2, transactions=60, weakness=weakness, faults_max=1)
    assert found.faults != []


@pytest.mark.parametrize("weakness", WEAK.values(), ids=WEAK)
@pytest.mark.parametrize("entry", [Tables, Dialogs, Jobs, Network])
def test_weaker_syncs_lose_data(tmp_path: Path, entry: Entry, weakness: Weakness) -> None:
    """Tests the test: it fails if fewer syncs are requested, or the disk ignores them. Killing the process would not show it."""
    share = 0.3 if entry is Network else 1  # each of its states takes longer to check
    found = check_power_cuts(entry, tmp_path, seed=1, transactions=30, weakness=weakness, share=share, faults_max=1)
    assert found.faults != []
