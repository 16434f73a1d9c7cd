"""Deterministic tests of the dialog protocol: a virtual network with its own clock, seeded faults, and instances that crash.

Run from the command line: `python -m ssbroker.testing --seeds 200`.
"""

from __future__ import annotations

from ssbroker.testing.memory_storage import MemoryDialogStorage, SimulatedInstanceStorage, StoredMessage
from ssbroker.testing.network import Faults, Network
from ssbroker.testing.runner import FinishedRun, run_messages, run_seeds
from ssbroker.testing.simulation import SimulatedInstance, Simulation, SimulationResult

__all__ = [
    "Faults",
    "FinishedRun",
    "MemoryDialogStorage",
    "Network",
    "SimulatedInstance",
    "SimulatedInstanceStorage",
    "Simulation",
    "SimulationResult",
    "StoredMessage",
    "run_messages",
    "run_seeds",
]


def __dir__() -> list[str]:
    return sorted(__all__)
