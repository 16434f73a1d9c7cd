"""The errors that ssbroker raises.

Bad input raises; what the rules call an outcome (no route, a drop, a delay) is a value in the result and never an exception.
Every error is a `SsbrokerError`; those about input are also a `ValueError` or a `TypeError`, and say which column and row (the
first one), which value, and what was expected.
"""

from __future__ import annotations

import re
from collections.abc import Callable


class SsbrokerError(Exception):
    """The base of every error that ssbroker raises."""


class InputError(SsbrokerError, ValueError):
    """A value in the input is not what was expected.

    Attributes:
        column: The column, qualified by its table where there are several (`routes.address`); None where there is none.
        row: The first row that is wrong, counted from 0 over the whole input; None where the error is not about a row.
        value: The value as text, shortened; None where there is none.
        expected: What was expected instead.
    """

    def __init__(
        self,
        message: str,
        *,
        column: str | None = None,
        row: int | None = None,
        value: str | None = None,
        expected: str | None = None,
    ) -> None:
        super().__init__(message)
        self.column = column
        self.row = row
        self.value = value
        self.expected = expected

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.args[0], self.__dict__))


def at_row_of(error: InputError, row_of: Callable[[int], int]) -> InputError:
    """The same error, told by the row of the whole where it was found in a part.

    Examples:
        >>> str(at_row_of(InputError("age, row 2: 'x' is no number", row=2), lambda row: row + 40))
        "age, row 42: 'x' is no number"
    """
    if error.row is None:
        return error
    row = row_of(error.row)
    moved = type(error)(re.sub(rf"\brow {error.row}\b", f"row {row}", str(error), count=1))
    moved.__dict__.update(error.__dict__)
    moved.row = row
    return moved


class InvalidGuidError(InputError):
    """A broker id or conversation id is no GUID: neither 36 characters of text (braces allowed) nor 16 bytes."""


class InvalidAddressError(InputError):
    """An address is neither `TCP://host[:port]`, nor LOCAL, nor TRANSPORT."""


class UnknownDatabaseError(InputError):
    """A row names a database that the catalog does not have."""


class DuplicateError(InputError):
    """A route id, a database name or the broker id of an enabled database (I7) occurs twice."""


class NullError(InputError):
    """A value is null that must not be."""


class MalformedDataError(InputError):
    """Arrow data or a file contradicts its own layout: offsets, dictionary keys, a truncated end."""


class DdlError(InputError):
    """A statement of a DDL script is refused.

    Attributes:
        number: Service Broker's error number, None where it has none.
        file: The script, None where it came as text.
        line: The line on which the statement begins, counted from 1.
    """

    def __init__(
        self, message: str, *, number: int | None = None, file: str | None = None, line: int | None = None
    ) -> None:
        super().__init__(message)
        self.number = number
        self.file = file
        self.line = line


class SchemaError(SsbrokerError, TypeError):
    """A column is missing, occurs twice, or has a type that cannot be read as the one expected.

    Attributes:
        column: The column.
        expected: The type that was expected.
        actual: The type that was found, None where the column is missing.
    """

    def __init__(
        self, message: str, *, column: str | None = None, expected: str | None = None, actual: str | None = None
    ) -> None:
        super().__init__(message)
        self.column = column
        self.expected = expected
        self.actual = actual

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.args[0], self.__dict__))


class OptionError(SsbrokerError, ValueError):
    """An option has a value that is not one of those allowed."""


class OutputError(SsbrokerError, OSError):
    """The result could not be written; what stood at its place before still does."""


class MissingDependencyError(SsbrokerError, ImportError):
    """A library is not installed that this part needs, or is too old for it; the message names what brings it."""


class StorageError(SsbrokerError, OSError):
    """A database file cannot be opened, read or written: a full disk, no permission, damage. Nothing is half done.

    Attributes:
        file: The file.
    """

    def __init__(self, message: str, *, file: str | None = None) -> None:
        super().__init__(message)
        self.file = file

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.args[0], self.__dict__))


class LockTimeoutError(StorageError, TimeoutError):
    """Others were writing to the file for longer than `lock_timeout`; nothing was changed."""


class BrokerError(SsbrokerError):
    """Service Broker refuses a call; what the transaction did before stands.

    Attributes:
        number: Service Broker's error number, None where it has none.
    """

    def __init__(self, message: str, *, number: int | None = None) -> None:
        super().__init__(message)
        self.number = number

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.args[0], self.__dict__))


class ProtocolError(SsbrokerError, RuntimeError):
    """A machine of the protocol was called out of turn; nothing was changed."""


class PeerError(SsbrokerError):
    """What came over a connection breaks the protocol: the far side's fault, and the end of the connection."""


class EndpointError(SsbrokerError, OSError):
    """The instance cannot listen where it should: the port is taken, or the host is not this machine's."""


class DdlWarning(UserWarning):
    """A statement of a DDL script was skipped because it says nothing about routing."""


class BrokerWarning(UserWarning):
    """A call did less than it was asked for; the message says why, and what to do."""


def _rebuild(kind: type[SsbrokerError], message: str, state: dict[str, object]) -> SsbrokerError:
    error = kind(message)
    error.__dict__.update(state)
    return error
