"""Catalogs: the databases, services, routing tables and addresses of one instance."""

from __future__ import annotations

from ssbroker.catalog.catalog import Catalog
from ssbroker.catalog.catalog import _restore as _restore  # for pickles of version 0.1

__all__ = ["Catalog"]
