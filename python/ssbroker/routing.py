"""Where pickles of version 0.1 look for routers."""

from __future__ import annotations

from ssbroker.router import _restore

__all__ = ["_restore"]
