"""A virtual network with a clock of its own, faults drawn from a seed, and instances that crash: how the dialog protocol is proven.

python -m ssbroker.testing --seeds 200
"""

from __future__ import annotations

from ssbroker.testing.book import Book, Message
from ssbroker.testing.faults import Faults
from ssbroker.testing.figures import Figures
from ssbroker.testing.memory import MemoryLedger
from ssbroker.testing.network import Network
from ssbroker.testing.node import Node
from ssbroker.testing.runs import Run, run_messages, run_seeds
from ssbroker.testing.simulation import Simulation

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
