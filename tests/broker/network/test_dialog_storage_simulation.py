"""The dialog protocol over a faulty network, with real databases at both ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ssbroker.store import fragments
from ssbroker.testing import Simulation
from tests.broker.network.simulated_databases import SimulatedDatabase

SEEDS = (0, 2, 3, 4, 6, 10, 65, 79)
CRASH = (2, 4, 6, 10, 65, 79)
"""The seeds in which instances crash."""
StorageFactory = Callable[[str], SimulatedDatabase]


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[StorageFactory]:
    """Creates a new database for each name of each seed."""
    made: list[SimulatedDatabase] = []

    def create(name: str) -> SimulatedDatabase:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(SimulatedDatabase(folder, name))
        return made[-1]

    yield create
    for each in made:
        each.close()


@pytest.mark.rule("P11", "P14", "P16", "P18")
@pytest.mark.parametrize("seed", SEEDS)
def test_every_message_arrives_once_in_order_and_unaltered(storage: StorageFactory, seed: int) -> None:
    """Crashed instances reopen their files and continue from the stored state."""
    simulation = Simulation(seed, dialogs=3, messages=6, storage=storage)
    result = simulation.run()
    assert result.is_correct, (str(simulation), result.problems)
    assert result.messages == 36
    assert (result.crashes > 0) == (seed in CRASH)


@pytest.mark.rule("P14")
def test_unstored_early_messages_are_lost_in_a_crash(storage: StorageFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks the test above: without stored fragments, the same seeds fail."""
    monkeypatch.setattr(fragments, "add", lambda *_: None)
    assert any(not Simulation(seed, dialogs=3, messages=6, storage=storage).run().is_correct for seed in CRASH)
