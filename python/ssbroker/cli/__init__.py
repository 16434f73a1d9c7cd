"""The command line `ssbroker`."""

from __future__ import annotations

from ssbroker.cli.app import app, main

__all__ = ["app", "main"]
