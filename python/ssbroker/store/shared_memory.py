"""The memory that the processes share that have a database file open."""

from __future__ import annotations

from typing import Final

from ssbroker import _core

Arrivals = _core.Arrivals
SharedMemory = _core.SharedMemory

SHARED_MEMORY_SUFFIX: Final = "-notify"
"""Suffix of the file beside a database file that contains it."""
