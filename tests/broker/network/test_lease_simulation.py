"""Workers with leases at both ends of the dialog protocol over a faulty network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ssbroker.broker.dialogs import lease as leasing
from ssbroker.broker.unit_of_work import Work
from ssbroker.store import leases
from ssbroker.store.leases import Lease
from ssbroker.testing import Simulation
from tests.broker.network.simulated_databases import LeasedDatabase

SEEDS = (0, 2, 3, 4, 6, 10, 65, 79)
LeasedFactory = Callable[[str], LeasedDatabase]


@pytest.fixture
def made() -> list[LeasedDatabase]:
    return []


@pytest.fixture
def storage(tmp_path: Path, made: list[LeasedDatabase]) -> Iterator[LeasedFactory]:
    """Creates a new database for each name of each seed."""

    def create(name: str) -> LeasedDatabase:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(LeasedDatabase(folder, name))
        return made[-1]

    yield create
    for each in made:
        each.close()


def test_every_message_is_processed_once_and_in_order(storage: LeasedFactory, made: list[LeasedDatabase]) -> None:
    """Although workers fail, are killed with their instance, believe that they still have what others have taken, and clocks jump."""
    ends: Counter[str] = Counter()
    crashes = 0
    for seed in SEEDS:
        simulation = Simulation(seed, dialogs=3, messages=8, storage=storage)
        result = simulation.run()
        assert result.is_correct, (str(simulation), result.problems)
        crashes += result.crashes
    for database in made:
        ends += database.ends
        for view in ("sys.dm_broker_leases", "sys.dm_broker_failures", "dbo.Inbox", "dbo.Failed"):
            assert database.instance.view(view, database="Sales").num_rows == 0
    assert crashes > 10
    assert min(ends[name] for name in ("committed", "lost", "failed", "killed", "requeued")) > 10, ends


def acknowledge_without_check(work: Work, lease: Lease, queuing_orders: list[int]) -> None:
    """Removes the messages of a job, even if a different job has leased them since."""
    work.connection.statements.acknowledge(queuing_orders, is_retained=False)
    leases.remove(work.connection, lease.conversation_group_id)


def test_a_commit_of_a_lost_lease_would_be_seen(storage: LeasedFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks the test above: if two workers that both believe they hold the lease can commit, the same seeds fail."""
    monkeypatch.setattr(leasing, "acknowledge", acknowledge_without_check)
    results = [Simulation(seed, dialogs=3, messages=8, storage=storage).run() for seed in SEEDS[:4]]
    assert any(result.duplicated for result in results)
