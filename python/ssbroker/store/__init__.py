"""The SQLite files of an instance. The only place with SQL of our own."""

from __future__ import annotations
