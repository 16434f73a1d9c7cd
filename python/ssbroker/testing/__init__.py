"""A virtual network with a clock of its own, faults drawn from a seed, and instances that crash: how the dialog protocol is proven.

python -m ssbroker.testing --seeds 200
"""

from __future__ import annotations

from ssbroker.testing.memory_storage import Book, MemoryLedger, Message
from ssbroker.testing.network import Faults, Network
from ssbroker.testing.runner import Run, run_messages, run_seeds
from ssbroker.testing.simulation import Figures, Node, Simulation

__all__ = [
    "Book",
    "Faults",
    "Figures",
    "MemoryLedger",
    "Message",
    "Network",
    "Node",
    "Run",
    "Simulation",
    "run_messages",
    "run_seeds",
]
