"""The command line. Nothing imports it but the command itself."""

from __future__ import annotations

from ssbroker.cli.app import app, main

__all__ = ["app", "main"]
