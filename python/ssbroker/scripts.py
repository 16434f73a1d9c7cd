"""Scripts of DDL from files: one, or several that run one after the other."""

from __future__ import annotations

import re
import warnings
from bisect import bisect_right
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from ssbroker import ddl
from ssbroker.exceptions import DdlError, DdlWarning
from ssbroker.table_files import read_bytes

_END_OF_BATCH: Final = "\nGO\n"
_NEWLINE: Final = re.compile(r"\r\n?|\n")
_PLACE: Final = re.compile(r"line (\d+)(?=: )")


def load_scripts(files: Sequence[Path], *, now: datetime) -> ddl.Script:
    """Reads scripts as if they were one, in the order given; after each of them a batch ends.

    Args:
        files: The scripts.
        now: The moment from which LIFETIME counts.

    Returns:
        What they say together.

    Raises:
        InputError: A file cannot be read.
        DdlError: A statement is refused; its file and line are named.

    Warns:
        DdlWarning: A statement was skipped; its file and line are named.

    Examples:
        >>> import tempfile
        >>> from datetime import UTC, datetime
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     files = [Path(folder, "1.sql"), Path(folder, "2.sql")]
        ...     _ = files[0].write_text("CREATE DATABASE Sales; USE Sales")
        ...     _ = files[1].write_text("DROP ROUTE AutoCreatedLocal")
        ...     script = load_scripts(files, now=datetime(2026, 11, 20, tzinfo=UTC))
        >>> script.routes["database"].to_pylist()
        ['msdb']
    """
    texts = [ddl.decode(read_bytes(file), file=str(file)) for file in files]
    if len(files) == 1:
        return ddl.read(texts[0], now=now, file=str(files[0]))
    together = _Together(files, [text + _END_OF_BATCH for text in texts])
    with warnings.catch_warnings(record=True, action="always", category=DdlWarning) as caught:
        try:
            script = ddl.read(together.text, now=now)
        except DdlError as error:
            raise together.located(error) from error.__cause__
    for warning in caught:
        category = warning.category
        warnings.warn(together.renamed(str(warning.message)), category, stacklevel=2)
    return script


class _Together:
    """Several scripts as one text, and where each line of it comes from."""

    def __init__(self, files: Sequence[Path], texts: Sequence[str]) -> None:
        self.text = "".join(texts)
        self._files = files
        self._first_lines = [1]
        for text in texts:
            self._first_lines.append(self._first_lines[-1] + len(_NEWLINE.findall(text)))

    def place(self, line: int) -> tuple[str, int]:
        """The file of a line, and which line of it that is."""
        number = bisect_right(self._first_lines, line) - 1
        return str(self._files[number]), line - self._first_lines[number] + 1

    def renamed(self, message: str) -> str:
        """The message with file and line, where it began with a line of all."""
        found = _PLACE.match(message)
        if found is None:
            return message
        file, line = self.place(int(found[1]))
        return f"{file}:{line}{message[found.end() :]}"

    def located(self, error: DdlError) -> DdlError:
        """The error with its own file and line."""
        file, line = (None, None) if error.line is None else self.place(error.line)
        return DdlError(self.renamed(str(error)), number=error.number, file=file, line=line)
