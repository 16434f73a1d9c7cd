"""What one instance knows: its databases, services, routing tables and addresses."""

from __future__ import annotations

from ssbroker.catalog.catalog import Catalog

__all__ = ["Catalog"]
