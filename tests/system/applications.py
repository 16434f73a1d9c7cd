"""The applications of a storm: one sends messages and receives replies, the other receives and replies.

A message and the row about it are committed together, so the tables show afterwards what was really sent and received.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Final

from ssbroker import Instance
from ssbroker._well_known import DEFAULT, END_DIALOG
from ssbroker.broker.database import Database, database_context
from ssbroker.broker.transaction import Transaction
from tests.system import traffic
from tests.system.checker import Received, Sent
from tests.system.traffic import REPLY, Plan

INITIATOR: Final = "//Shop"
TARGET: Final = "//Stock"
DATABASES: Final = {INITIATOR: "Sales", TARGET: "Stock"}
QUEUE: Final = "Messages"
_WAIT_SECONDS: Final = 0.2
Report = Callable[..., None]


def prepare(instance: Instance, service: str, *, lanes: int = 0) -> None:
    """Creates the database of one of the two services; the initiator's also starts the dialogs."""
    database = instance.create_database(DATABASES[service])
    database.create_queue(QUEUE)
    database.create_service(service, queue=QUEUE)
    with database.transaction() as t:
        t.connection.execute("CREATE TABLE sent (place INTEGER PRIMARY KEY, lane, number)")
        t.connection.execute("CREATE TABLE received (place INTEGER PRIMARY KEY, lane, number, conversation, is_intact)")
        t.connection.execute("CREATE TABLE dialogs (lane INTEGER PRIMARY KEY, handle, is_ended DEFAULT 0)")
        for lane in range(lanes):
            handle = t.begin_dialog(INITIATOR, TARGET, encryption=False)
            t.connection.execute("INSERT INTO dialogs (lane, handle) VALUES (?, ?)", (lane, handle.bytes))


class Initiator:
    """Sends the whole plan, resumes after a kill, and ends its dialogs once all replies have arrived."""

    def __init__(self, instance: Instance, plan: Plan, report: Report) -> None:
        self._database: Final = instance.database(DATABASES[INITIATOR])
        self._plan: Final = plan
        self._report: Final = report

    def loops(self) -> Sequence[Callable[[threading.Event], None]]:
        """Returns the functions to run in threads; each ends when its event is set."""
        return (self._send_all, self._receive_all)

    def _send_all(self, stopped: threading.Event) -> None:
        with self._database.transaction() as t:
            handles = _handles(t)
            done = _count(t, "sent")
        self._report("sent", done)
        while done < self._plan.total and not stopped.is_set():
            with self._database.transaction() as t:
                done = self._send_some(t, handles, done)
            self._report("sent", done)

    def _send_some(self, t: Transaction, handles: list[uuid.UUID], done: int) -> int:
        space = self._plan.batch * self._plan.small_bytes
        while done < self._plan.total and space > 0:
            number, lane = divmod(done, self._plan.lanes)
            body = traffic.body(lane, number, self._plan.size(lane, number))
            t.send(handles[lane], body)
            t.connection.execute("INSERT INTO sent VALUES (?, ?, ?)", (done + 1, lane, number))
            done += 1
            space -= len(body)
        return done

    def _receive_all(self, stopped: threading.Event) -> None:
        with self._database.transaction() as t:
            received, ended = _count(t, "received"), _ended(t)
        while not stopped.is_set():
            self._report("received", received)
            self._report("ended", ended)
            with self._database.transaction() as t:
                received += len(_receive(t, self._plan, {DEFAULT}))
                if received == self._plan.replies and not ended and _count(t, "sent") == self._plan.total:
                    for handle in _handles(t):
                        t.end_conversation(handle)
                    t.connection.execute("UPDATE dialogs SET is_ended = 1")
                    ended = _ended(t)


class Target:
    """Receives everything, answers some messages in the same transaction, and ends the dialogs that the initiator has ended."""

    def __init__(self, instance: Instance, plan: Plan, report: Report) -> None:
        self._database: Final = instance.database(DATABASES[TARGET])
        self._plan: Final = plan
        self._report: Final = report

    def loops(self) -> Sequence[Callable[[threading.Event], None]]:
        """Returns the functions to run in threads; each ends when its event is set."""
        return (self._receive_all,)

    def _receive_all(self, stopped: threading.Event) -> None:
        with self._database.transaction() as t:
            received, replied, ended = _count(t, "received"), _count(t, "sent"), _ended(t)
        while not stopped.is_set():
            for name, count in (("received", received), ("sent", replied), ("ended", ended)):
                self._report(name, count)
            with self._database.transaction() as t:
                rows = _receive(t, self._plan, {DEFAULT, END_DIALOG})
                received += sum(row is not None for row in rows)
                replied += sum(self._reply(t, row) for row in rows if row is not None)
                ended = _ended(t)

    def _reply(self, t: Transaction, row: Received) -> bool:
        if not row.is_intact or row.number % self._plan.reply_every:
            return False
        lane, number = row.lane + REPLY, row.number // self._plan.reply_every
        t.send(row.conversation, traffic.body(lane, number, self._plan.small_bytes))
        t.connection.execute("INSERT INTO sent (lane, number) VALUES (?, ?)", (lane, number))
        return True


def _receive(t: Transaction, plan: Plan, types: set[str]) -> list[Received | None]:
    """Receives and records messages; None is the end of a dialog, which this side then ends too."""
    rows: list[Received | None] = []
    table = t.receive(QUEUE, top=plan.batch, groups=plan.batch, timeout=_WAIT_SECONDS)
    for row in table.to_pylist():
        kind: Any = row["message_type_name"]
        if kind not in types:
            raise AssertionError(f"{kind} came: {row}")
        if kind == END_DIALOG:
            t.end_conversation(row["conversation_handle"])
            t.connection.execute(
                "INSERT INTO dialogs (handle, is_ended) VALUES (?, 1)", (_bytes(row["conversation_handle"]),)
            )
            rows.append(None)
        else:
            lane, number, is_intact = traffic.read(row["message_body"] or b"")
            rows.append(Received(lane, number, _bytes(row["conversation_handle"]), is_intact))
    t.connection.executemany(
        "INSERT INTO received (lane, number, conversation, is_intact) VALUES (?, ?, ?, ?)",
        [row for row in rows if row is not None],
    )
    return rows


def sent(database: Database) -> list[Sent]:
    """Returns the messages whose SEND was committed."""
    with database_context(database).file.read() as connection:
        return [Sent(*row) for row in connection.execute("SELECT lane, number FROM sent ORDER BY place")]


def received(database: Database) -> list[Received]:
    """Returns the messages whose RECEIVE was committed, in order of receipt."""
    query = "SELECT lane, number, conversation, is_intact FROM received ORDER BY place"
    with database_context(database).file.read() as connection:
        return [Received(row[0], row[1], row[2], bool(row[3])) for row in connection.execute(query)]


def waiting(database: Database) -> int:
    """Returns the number of messages in the transmission queue."""
    with database_context(database).file.read() as connection:
        count: int = connection.execute("SELECT count(*) FROM ssb_transmission_queue").get
        return count


def _handles(t: Transaction) -> list[uuid.UUID]:
    rows: list[Any] = t.connection.execute("SELECT handle FROM dialogs ORDER BY lane").fetchall()
    return [uuid.UUID(bytes=row[0]) for row in rows]


def _count(t: Transaction, table: str) -> int:
    count: Any = t.connection.execute(f"SELECT count(*) FROM {table}").get
    return int(count)


def _ended(t: Transaction) -> int:
    count: Any = t.connection.execute("SELECT count(*) FROM dialogs WHERE is_ended").get
    return int(count)


def _bytes(handle: Any) -> bytes:
    return handle.bytes if isinstance(handle, uuid.UUID) else bytes(handle)
