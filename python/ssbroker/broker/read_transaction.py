"""One read transaction of a database, for the application's own tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final

from ssbroker.broker.context import DatabaseContext
from ssbroker.broker.sql_guard import ReadOnlyGuard
from ssbroker.exceptions import BrokerError
from ssbroker.store.sqlite import Connection


class ReadTransaction:
    """A snapshot of a database, for use in a `with` block: `with database.read() as connection:`.

    The connection is an `apsw.Connection` that sees the last commit before the block, and nothing later. Reading takes no lock: it
    neither waits for writers nor blocks them. Keep the block short, because the write-ahead log grows while it is open. In a coroutine,
    use `with` or `async with`.

    Examples:
        >>> import tempfile
        >>> from ssbroker import Instance
        >>> with tempfile.TemporaryDirectory() as folder, Instance.create(folder, name="shop") as instance:
        ...     sales = instance.create_database("Sales")
        ...     with sales.transaction() as t:
        ...         _ = t.connection.execute("CREATE TABLE orders (item TEXT)")
        ...         _ = t.connection.execute("INSERT INTO orders VALUES ('two chairs')")
        ...     with sales.read() as connection:
        ...         connection.execute("SELECT item FROM orders").fetchall()
        [('two chairs',)]
    """

    __slots__ = ("_block", "_is_entered")

    def __init__(self, context: DatabaseContext) -> None:
        self._block: Final = _read(context)
        self._is_entered = False

    def __enter__(self) -> Connection:
        if self._is_entered:
            raise BrokerError("a read transaction can be entered only once; start another with database.read()")
        self._is_entered = True
        return self._block.__enter__()

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._block.__exit__(exc_type, error, trace)

    async def __aenter__(self) -> Connection:
        return self.__enter__()  # it waits for no writer

    async def __aexit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(exc_type, error, trace)


@contextmanager
def _read(context: DatabaseContext) -> Iterator[Connection]:
    with context.file.read(is_internal=False) as connection:
        context.objects(connection)  # begins the snapshot, and raises if the database is no longer attached
        guard = ReadOnlyGuard(connection, check=context.file.check_fork)
        guard.start()
        try:
            yield connection
        finally:
            guard.reclaim()
