"""Catalogs: the databases, services, routing tables and addresses of one instance."""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ssbroker.catalog.catalog import Catalog

__all__ = ["Catalog"]


def __getattr__(name: str) -> Any:
    # The names are imported on first use. Pickles of version 0.1 refer to `_restore` in this module.
    if name in ("Catalog", "_restore"):
        return getattr(_import_module(f"{__name__}.catalog"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
