"""Catalogs: the databases, services, routing tables and addresses of one instance."""

from __future__ import annotations

from ssbroker.catalog.catalog import Catalog

__all__ = ["Catalog"]
