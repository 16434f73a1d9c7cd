"""A virtual network with a clock of its own, faults drawn from a seed, and instances that crash: how the dialog protocol is proven.

python -m ssbroker.testing --seeds 200
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
