"""Scripts of DDL from files: one, or several that run one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from ssbroker import ddl
from ssbroker.table_files import read_bytes


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
    return ddl.read_all([(ddl.decode(read_bytes(file), file=str(file)), str(file)) for file in files], now=now)
