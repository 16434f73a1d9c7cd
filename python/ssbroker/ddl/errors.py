"""The errors of statements and scripts, before their line numbers are known, and their texts."""

from __future__ import annotations

from ssbroker.exceptions import DdlError


class RefusalError(Exception):
    """A statement is refused; a caller that knows the line converts this to a `DdlError`."""

    def __init__(self, reason: str, number: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.number = number


class EncodingError(DdlError):
    """A script does not have the expected encoding."""


def refusal_text(reason: str, *, subject: str | None, number: int | None) -> str:
    """Returns `CREATE ROUTE [X]: error 9743: reason`, without the parts that are None."""
    parts = [] if subject is None else [subject]
    if number is not None:
        parts.append(f"error {number}")
    return ": ".join([*parts, reason])
