"""Storage of simulated instances in real databases, which applications use as usual."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from ssbroker import _well_known
from ssbroker.broker.database import Database, database_context
from ssbroker.broker.instance import Instance
from ssbroker.broker.job import Job
from ssbroker.broker.network.dialog_storage import SqliteDialogStorage
from ssbroker.broker.network.inbound_writer import StalePlanError
from ssbroker.exceptions import LeaseLostError
from ssbroker.protocol.conversation_states import ConversationState
from ssbroker.protocol.storage import (
    BatchChanges,
    DialogEndpoint,
    EndpointKey,
    MessageKind,
    MessageRange,
    Refusal,
    StoredFragmentInfo,
)
from ssbroker.store import conversation_endpoints, transmission_queue
from ssbroker.store.conversation_endpoints import ConversationEndpoint as Row
from ssbroker.testing import StoredMessage
from tests.broker.network.engine_pair import senders_with_messages

BYE = "Bye"
"""Replaces EndDialog: after a real EndDialog, messages of the remote endpoint are dropped."""
CONTRACT = "Trade"
TYPES = ("Order", "Offer", BYE)
_START = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER = 10**15


class SimulatedDatabase:
    """An instance with one database and one service, in its own folder; see `ssbroker.testing.SimulatedInstanceStorage`."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder / name
        self._random = random.Random(name)
        self._now = _START
        self._received: dict[EndpointKey, list[StoredMessage]] = {}
        with self._open_instance(is_new=True) as instance:
            database = instance.create_database("Sales")
            for kind in TYPES:
                database.create_message_type(kind)
            database.create_contract(CONTRACT, dict.fromkeys(TYPES, "ANY"))
            database.create_queue("Inbox")
            database.create_service(f"Service of {name}", queue="Inbox", contracts=[CONTRACT])
        self._open()

    def _open_instance(self, *, is_new: bool = False) -> Instance:
        if is_new:
            return Instance.create(
                self._folder, name="shop", clock=lambda: self._now, random=self._random, background=False
            )
        return Instance.open(self._folder, clock=lambda: self._now, random=self._random, background=False)

    def _open(self) -> None:
        self.instance = self._open_instance()
        self.database: Database = self.instance.database("Sales")
        self.storage = SqliteDialogStorage(database_context(self.database))

    def close(self) -> None:
        self.instance.close()

    @property
    def broker_instance(self) -> bytes:
        return self.storage.broker_instance

    def begin(self, endpoint: DialogEndpoint) -> EndpointKey:
        with database_context(self.database).file.write() as connection:
            objects = database_context(self.database).objects(connection)
            row = conversation_endpoints.insert(
                connection,
                conversation_handle=self._random.randbytes(16),
                conversation_id=endpoint.conversation_id,
                is_initiator=True,
                conversation_group_id=self._random.randbytes(16),
                service_id=objects.services[endpoint.service_name].service_id,
                service_contract_id=objects.contracts[CONTRACT].service_contract_id,
                far_service=endpoint.far_service_name,
                far_broker_instance=endpoint.far_broker_instance,
                is_bound=False,
                is_encrypted=endpoint.session_key is not None,
                state="SO",
                lifetime=_NEVER if endpoint.lifetime is None else endpoint.lifetime,
                priority=endpoint.priority,
                now=0,
            )
            connection.execute(
                "UPDATE ssb_conversation_endpoints SET session_key = ? WHERE endpoint_id = ?",
                (endpoint.session_key, row.endpoint_id),
            )
        return endpoint.key

    def send(self, key: EndpointKey, body: bytes, *, message_type: str = _well_known.DEFAULT) -> int:
        kind = BYE if message_type == _well_known.END_DIALOG else message_type
        row = self._row(key)
        assert row is not None
        with self.database.transaction() as t:
            t.send(uuid.UUID(bytes=row.conversation_handle), body, message_type=kind)
        return row.send_sequence

    def waiting(self) -> list[EndpointKey]:
        return senders_with_messages(self.database)

    def is_waiting(self, key: EndpointKey) -> bool:
        with database_context(self.database).file.read() as connection:
            row = conversation_endpoints.by_sides(connection, [key]).get(key)
            return row is not None and transmission_queue.has_outgoing(connection, row.endpoint_id)

    def can_send(self, key: EndpointKey) -> bool:
        row = self._row(key)
        return row is not None and row.state in ("SO", "CO")

    def received(self, key: EndpointKey) -> Sequence[StoredMessage]:
        """Returns all messages that RECEIVE has returned so far."""
        with self.database.transaction() as t:
            while (table := t.receive("Inbox", top=100)).num_rows:
                for row in table.to_pylist():
                    found = conversation_endpoints.by_handle(t.connection, row["conversation_handle"])
                    assert found is not None
                    endpoint_key = (found.conversation_id, bool(found.is_initiator))
                    kind = _well_known.END_DIALOG if row["message_type_name"] == BYE else row["message_type_name"]
                    message = StoredMessage(row["message_sequence_number"], row["message_body"] or b"", kind)
                    self._received.setdefault(endpoint_key, []).append(message)
        return self._received.get(key, [])

    def failed(self, key: EndpointKey) -> str | None:
        row = self._row(key)
        return "the endpoint is in state ER" if row is not None and row.state == ConversationState.ER else None

    def commit(self, effects: BatchChanges) -> StalePlanError | None:
        try:
            self.storage.commit(effects)
        except StalePlanError as error:
            return error
        return None

    def restart(self) -> None:
        self.close()
        self._open()
        self.received((b"", True))

    def sync(self) -> None:
        self.storage.sync()

    def endpoints(self, keys: Sequence[EndpointKey]) -> Sequence[DialogEndpoint | None]:
        return self.storage.endpoints(keys)

    def set_fragment_bytes(self, max_fragment_bytes: int) -> Mapping[EndpointKey, int]:
        return self.storage.set_fragment_bytes(max_fragment_bytes)

    def outgoing(self, wanted: Sequence[MessageRange]) -> pa.Table:
        return self.storage.outgoing(wanted)

    def ending_errors(self, keys: Sequence[EndpointKey]) -> Mapping[EndpointKey, int]:
        return self.storage.ending_errors(keys)

    def read_body_slices(
        self, key: EndpointKey, sequence: int, spans: Sequence[tuple[int, int]]
    ) -> Sequence[bytes] | None:
        return self.storage.read_body_slices(key, sequence, spans)

    def list_stored(self, keys: Sequence[EndpointKey]) -> Iterable[StoredFragmentInfo]:
        return self.storage.list_stored(keys)

    def read_stored(self, key: EndpointKey, first: tuple[int, int], end: int, *, most_bytes: int) -> pa.Table:
        return self.storage.read_stored(key, first, end, most_bytes=most_bytes)

    def admit(self, endpoints: Sequence[DialogEndpoint]) -> Sequence[DialogEndpoint | Refusal]:
        return self.storage.admit(endpoints)

    def accept_any_body(self, kinds: Collection[MessageKind]) -> bool:
        return self.storage.accept_any_body(kinds)

    def validate(self, messages: pa.Table, contracts: Sequence[str]) -> Mapping[int, Refusal]:
        return self.storage.validate(messages, contracts)

    def save_transmissions(self, objects: Mapping[EndpointKey, bytes]) -> None:
        self.storage.save_transmissions(objects)

    def load_transmissions(self, keys: Sequence[EndpointKey]) -> Mapping[EndpointKey, bytes]:
        return self.storage.load_transmissions(keys)

    def _row(self, key: EndpointKey) -> Row | None:
        with database_context(self.database).file.read() as connection:
            return conversation_endpoints.by_sides(connection, [key]).get(key)


LEASE: Final = 60.0
_DAY: Final = timedelta(days=1)


class LeasedDatabase(SimulatedDatabase):
    """A database whose messages workers take with leases, while the simulation runs. Their effect is a row for each message.

    Workers fail, are killed, retry, extend, and overrun their leases; the clock of the instance jumps. Messages that failed five times are
    moved to another queue, and put back now and then.

    Attributes:
        ends: How often jobs ended in each way.
    """

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder, name)
        self.ends: Final[Counter[str]] = Counter()
        self._jobs: list[Job] = []
        self._now += 100 * _DAY
        self.database.create_queue("Failed")
        self.database.alter_queue("Inbox", on_poison="move", poison_queue="Failed")
        with self.database.transaction() as t:
            t.connection.execute("CREATE TABLE processed (conversation, is_initiator, number, kind, body)")

    def commit(self, effects: BatchChanges) -> StalePlanError | None:
        """Lets the workers do some steps after each batch that arrives."""
        refused = super().commit(effects)
        for _ in range(4):
            self._step()
        return refused

    def restart(self) -> None:
        """Kills the workers too."""
        self.ends["killed"] += len(self._jobs)
        self._jobs.clear()
        self.close()
        self._open()

    def received(self, key: EndpointKey) -> Sequence[StoredMessage]:
        """Lets the workers do the rest, and returns what they have processed of a conversation."""
        self._now += _DAY
        self.instance.run_due()
        self.database.requeue("Inbox")
        while job := self._take():
            self._finish(job)
        for job in self._jobs:  # the others have lost their messages
            self._finish(job)
        self._jobs.clear()
        with self.database.transaction() as t:
            rows: list[Any] = t.connection.execute(
                "SELECT number, body, kind FROM processed WHERE conversation = ? AND is_initiator = ? ORDER BY rowid",
                key,
            ).fetchall()
        return [StoredMessage(number, body, kind) for number, body, kind in rows]

    def _step(self) -> None:
        match self._random.choice(["take", "take", "take", "end", "end", "end", "time", "requeue", "extend"]):
            case "take":
                job = self._take(top=self._random.choice([None, None, 1, 2]))
                if job:
                    self._jobs.append(job)
            case "time":
                self._now += timedelta(seconds=self._random.choice([1, 30, 61, 3600, -30, -3600]))
                self.instance.run_due()
            case "requeue":
                self.ends["requeued"] += self.database.requeue("Inbox")
            case "extend" if self._jobs:
                with suppress(LeaseLostError):
                    self._random.choice(self._jobs).extend(LEASE)
            case "end" if self._jobs:
                self._end(self._jobs.pop(self._random.randrange(len(self._jobs))))

    def _take(self, top: int | None = None) -> Job:
        job = self.database.take("Inbox", lease=LEASE, timeout=0, top=top)
        return job.__enter__()

    def _end(self, job: Job) -> None:
        match self._random.choice(["finish", "finish", "fail", "kill", "retry"]):
            case "finish":
                self._finish(job)
            case "fail":
                self.ends["failed"] += 1
                job.__exit__(ValueError, ValueError("no reason"), None)
            case "kill":
                self.ends["killed"] += 1
            case "retry":
                with suppress(LeaseLostError):
                    job.retry(after=self._random.choice([0, 5, 90]))

    def _finish(self, job: Job) -> None:
        """Commits the rows together with the acknowledgement; a worker that has lost its lease commits nothing."""
        try:
            with job.transaction() as t:
                for message in job.messages:
                    is_initiator = not message.is_initiator  # of this side
                    kind = _well_known.END_DIALOG if message.message_type_name == BYE else message.message_type_name
                    body = message.message_body or b""
                    row = (message.conversation_id.bytes, is_initiator, message.message_sequence_number, kind, body)
                    t.connection.execute("INSERT INTO processed VALUES (?, ?, ?, ?, ?)", row)
            self.ends["committed"] += 1
        except LeaseLostError:
            self.ends["lost"] += 1
