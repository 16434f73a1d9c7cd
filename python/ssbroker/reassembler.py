"""Where pickles of version 0.1 look for reassemblers."""

from __future__ import annotations

from ssbroker.reassembly import _restore

__all__ = ["_restore"]
