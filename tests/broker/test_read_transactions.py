"""Reading the application's own tables without the write lock."""

from __future__ import annotations

import asyncio
import os
import threading

import apsw
import pytest

from ssbroker import BrokerError, Database, Instance, StorageError


@pytest.fixture
def shop(instance: Instance) -> Database:
    database = instance.create_database("Shop")
    with database.transaction() as t:
        t.connection.execute("CREATE TABLE orders (item TEXT)")
        t.connection.execute("INSERT INTO orders VALUES ('chair')")
    return database


def items(connection: apsw.Connection) -> list[str]:
    return [item for (item,) in connection.execute("SELECT item FROM orders ORDER BY rowid")]


def insert(database: Database, item: str) -> None:
    with database.transaction() as t:
        t.connection.execute("INSERT INTO orders VALUES (?)", (item,))


def test_readers_neither_wait_for_a_writer_nor_block_it(shop: Database) -> None:
    """Each reads the state after the last commit before its block."""
    with shop.transaction() as t:
        t.connection.execute("INSERT INTO orders VALUES ('table')")
        with shop.read() as first, shop.read() as second:
            assert items(first) == items(second) == ["chair"]
    with shop.read() as before:
        insert(shop, "lamp")
        with shop.read() as after:
            assert (items(before), items(after)) == (["chair", "table"], ["chair", "table", "lamp"])


def test_the_snapshot_begins_with_the_block(shop: Database) -> None:
    with shop.read() as connection:
        insert(shop, "table")
        assert items(connection) == ["chair"]


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO orders VALUES ('x')",
        "  DELETE FROM orders",
        "INSERT INTO orders VALUES ('x') RETURNING item",
        "CREATE TABLE more (id)",
        "PRAGMA user_version = 3",
        "PRAGMA query_only = 0",
        "VACUUM",
        "WITH a AS (SELECT 1) UPDATE orders SET item = 'x'",
    ],
)
def test_writing_is_refused(shop: Database, sql: str) -> None:
    with shop.read() as connection:
        with pytest.raises(
            BrokerError, match=r"a read transaction cannot execute .*; write in database\.transaction\(\)"
        ):
            connection.execute(sql)
        assert items(connection) == ["chair"]
    insert(shop, "table")
    with shop.read() as connection:
        assert items(connection) == ["chair", "table"]


@pytest.mark.parametrize("sql", ["BEGIN", "commit", "-- x\nROLLBACK", "END"])
def test_the_block_is_the_transaction(shop: Database, sql: str) -> None:
    with shop.read() as connection, pytest.raises(BrokerError, match="not allowed in a read transaction"):
        connection.execute(sql)


def test_a_blob_cannot_be_written(shop: Database) -> None:
    with pytest.raises(BrokerError, match="a read transaction cannot write"), shop.read() as connection:
        connection.blob_open("main", "orders", "item", 1, True)
    insert(shop, "table")


def test_errors_of_statements_pass_through(shop: Database) -> None:
    with pytest.raises(apsw.SQLError, match="no such table: missing"), shop.read() as connection:
        connection.execute("SELECT * FROM missing")
    with pytest.raises(ZeroDivisionError), shop.read():
        raise ZeroDivisionError


def test_a_connection_is_reused_as_it_was(shop: Database) -> None:
    """Also after an open cursor, a setting of the connection, and a connection that was closed."""
    with shop.read() as connection:
        connection.execute("SELECT item FROM orders UNION ALL SELECT 1").fetchone()
    with shop.read() as connection:
        connection.execute("PRAGMA cache_size = 7")
        connection.execute("ATTACH ':memory:' AS other")
    with shop.read() as connection:
        assert connection.pragma("cache_size") != 7
        connection.close(force=True)
    with shop.read() as connection, connection:  # a savepoint
        assert items(connection) == ["chair"]
    insert(shop, "table")
    with shop.read() as connection:
        assert items(connection) == ["chair", "table"]


def test_it_is_entered_once(shop: Database) -> None:
    reading = shop.read()
    with reading, pytest.raises(BrokerError, match="only once"):
        reading.__enter__()
    with pytest.raises(BrokerError, match="only once"), reading:
        pass


def test_in_coroutines(shop: Database) -> None:
    async def read() -> list[str]:
        async with shop.transaction() as t:
            t.connection.execute("INSERT INTO orders VALUES ('table')")
            async with shop.read() as connection:
                return items(connection)

    assert asyncio.run(read()) == ["chair"]


def test_in_threads(shop: Database) -> None:
    """All read at the same time."""
    barrier = threading.Barrier(8)
    found: list[list[str]] = []

    def read() -> None:
        with shop.read() as connection:
            barrier.wait(60)
            found.append(items(connection))

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [["chair"]] * 8


def test_a_closed_or_dropped_database_cannot_be_read(instance: Instance, shop: Database) -> None:
    instance.drop_database("Shop")
    with pytest.raises(StorageError), shop.read():
        pass
    other = instance.create_database("Other")
    instance.close()
    with pytest.raises(StorageError, match="is closed"), other.read():
        pass


def test_a_read_before_a_fork_cannot_be_used_after_it(shop: Database) -> None:
    with shop.read() as connection:
        child = os.fork()
        if child == 0:
            try:
                connection.execute("SELECT item FROM orders")
            except StorageError as error:
                os._exit(0 if "was opened before this process was forked" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert items(connection) == ["chair"]
