"""Catalogs: the databases, services, routing tables and addresses of one instance."""

from __future__ import annotations

from ssbroker.catalog.catalog import Catalog, _restore  # pickles of version 0.1 look for it here

__all__ = ["Catalog", "_restore"]
