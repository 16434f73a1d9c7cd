"""Exceptions and warnings.

Invalid input raises an exception. Outcomes of valid input, such as no matching route, a drop or a delay, are values in the result.
Every exception derives from `SsbrokerError`. Exceptions about input also derive from `ValueError` or `TypeError`, and name the
column, the first invalid row, the value, and what was expected.
"""

from __future__ import annotations

import re
from collections.abc import Callable


class SsbrokerError(Exception):
    """Base class of all exceptions that ssbroker raises."""


class InputError(SsbrokerError, ValueError):
    """A value in the input is invalid.

    Attributes:
        column: Name of the column, qualified by its table if the input has several tables (`routes.address`); None if the error concerns no column.
        row: First invalid row, counted from 0 over the whole input; None if the error concerns no row.
        value: The invalid value as text, shortened; None if there is none.
        expected: What was expected instead; None if unknown.
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


def renumber_row(error: InputError, row_of: Callable[[int], int]) -> InputError:
    """Returns a copy of an error about a part of the input, with the row counted over the whole input; `row_of` converts row numbers.

    Examples:
        >>> str(renumber_row(InputError("age, row 2: 'x' is not a number", row=2), lambda row: row + 40))
        "age, row 42: 'x' is not a number"
    """
    if error.row is None:
        return error
    row = row_of(error.row)
    renumbered = type(error)(re.sub(rf"\brow {error.row}\b", f"row {row}", str(error), count=1))
    renumbered.__dict__.update(error.__dict__)
    renumbered.row = row
    return renumbered


class InvalidGuidError(InputError):
    """A broker id or conversation id is not a GUID of 36 characters (braces allowed) or 16 bytes."""


class InvalidAddressError(InputError):
    """An address is not `TCP://host[:port]`, `LOCAL` or `TRANSPORT`."""


class UnknownDatabaseError(InputError):
    """A row or a call names a database that does not exist in the catalog or the instance."""


class DuplicateError(InputError):
    """A route id, a database name, or the broker id of an enabled database occurs more than once."""


class NullError(InputError):
    """A value that must not be null is null."""


class MalformedDataError(InputError):
    """Arrow data, a file, a checkpoint or a pickle is corrupt, truncated, or of an unsupported format version."""


class DdlError(InputError):
    """A statement of a T-SQL script is invalid.

    Attributes:
        number: Service Broker's error number; None if there is none.
        file: Path of the script; None if the script was passed as text.
        line: Line on which the statement starts, counted from 1.
    """

    def __init__(
        self, message: str, *, number: int | None = None, file: str | None = None, line: int | None = None
    ) -> None:
        super().__init__(message)
        self.number = number
        self.file = file
        self.line = line


class SchemaError(SsbrokerError, TypeError):
    """An argument or a column has the wrong type, or a column is missing or duplicated.

    Attributes:
        column: Name of the column or argument; None if the error concerns neither.
        expected: The expected type; None if unknown.
        actual: The actual type; None if the column is missing.
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
    """An option has an invalid value."""


class OutputError(SsbrokerError, OSError):
    """The output could not be written; existing files are unchanged."""


class MissingDependencyError(SsbrokerError, ImportError):
    """A required library is not installed or too old; the message contains the command that installs it."""


class StorageError(SsbrokerError, OSError):
    """A database file cannot be opened, read or written (full disk, missing permission, corruption); nothing was changed.

    Attributes:
        file: Path of the file; None if unknown.
        errno: The error number of the operating system, such as `errno.ENOSPC`; None if unknown.
    """

    def __init__(self, message: str, *, file: str | None = None, errno: int | None = None) -> None:
        super().__init__(message)
        self.file = file
        self.errno = errno

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.args[0], {**self.__dict__, "errno": self.errno}))


class LockTimeoutError(StorageError, TimeoutError):
    """The write lock of a database file was not available: other writers held it for longer than `lock_timeout`, or it belongs to an open transaction of this thread.

    The refused transaction has changed nothing.
    """


class FileReplacedError(StorageError):
    """A database file was moved, deleted or replaced while it was open; further changes would be lost."""


class BrokerError(SsbrokerError):
    """Service Broker rejected a call. Earlier changes of the transaction are kept, and the transaction can continue.

    Attributes:
        number: Service Broker's error number; None if there is none.
    """

    def __init__(self, message: str, *, number: int | None = None) -> None:
        super().__init__(message)
        self.number = number

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.args[0], self.__dict__))


class LeaseLostError(BrokerError):
    """A job has lost its messages: its lease ended and another receiver took them, or their conversation was ended. Nothing was committed."""


class ProtocolError(SsbrokerError, RuntimeError):
    """A server or a protocol object was used in a state that does not allow the call; nothing was changed."""


class PeerError(SsbrokerError):
    """The peer violated the protocol; the connection is closed."""


class EndpointError(SsbrokerError, OSError):
    """The instance cannot listen on its endpoint: the port is in use, or the host is not an address of this machine."""


class DdlWarning(UserWarning):
    """A statement of a T-SQL script was skipped or could not be executed, so the result may differ from the script."""


class BrokerWarning(UserWarning):
    """A call did less than requested; the message explains why and what to do."""


def _rebuild(kind: type[SsbrokerError], message: str, state: dict[str, object]) -> SsbrokerError:
    error = kind(message)
    for name, value in state.items():
        setattr(error, name, value)
    return error
