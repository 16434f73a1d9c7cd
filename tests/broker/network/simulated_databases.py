"""Storage of simulated instances in real databases, which applications use as usual."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

from ssbroker.broker.database import Database
from ssbroker.broker.database import context_of as database_context
from ssbroker.broker.instance import Instance
from ssbroker.broker.network.dialog_storage import SqliteDialogStorage, StalePlan
from ssbroker.protocol import config
from ssbroker.protocol.states import ConversationState
from ssbroker.protocol.storage import BatchChanges, DialogEndpoint, Key, MessageRange, Refusal, StoredFragmentInfo
from ssbroker.store import endpoints, transmission_queue
from ssbroker.store.endpoints import ConversationEndpoint as Row
from ssbroker.testing import StoredMessage

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
        self._received: dict[Key, list[StoredMessage]] = {}
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
                self._folder, name="shop", clock=lambda: _START, random=self._random, background=False
            )
        return Instance.open(self._folder, clock=lambda: _START, random=self._random, background=False)

    def _open(self) -> None:
        self.instance = self._open_instance()
        self.database: Database = self.instance.database("Sales")
        self.storage = SqliteDialogStorage(database_context(self.database))

    def close(self) -> None:
        self.instance.close()

    @property
    def broker_instance(self) -> bytes:
        return self.storage.broker_instance

    def begin(self, endpoint: DialogEndpoint) -> Key:
        with database_context(self.database).file.write() as connection:
            objects = database_context(self.database).objects(connection)
            row = endpoints.insert(
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

    def send(self, key: Key, body: bytes, *, message_type: str = config.DEFAULT) -> int:
        kind = BYE if message_type == config.END_DIALOG else message_type
        row = self._row(key)
        assert row is not None
        with self.database.transaction() as t:
            t.send(uuid.UUID(bytes=row.conversation_handle), body, message_type=kind)
        return row.send_sequence

    def waiting(self) -> list[Key]:
        return self.storage.waiting()

    def is_waiting(self, key: Key) -> bool:
        with database_context(self.database).file.read() as connection:
            row = endpoints.by_sides(connection, [key]).get(key)
            return row is not None and transmission_queue.has_waiting(connection, row.endpoint_id)

    def can_send(self, key: Key) -> bool:
        row = self._row(key)
        return row is not None and row.state in ("SO", "CO")

    def received(self, key: Key) -> Sequence[StoredMessage]:
        """All messages that RECEIVE has returned so far."""
        with self.database.transaction() as t:
            while (table := t.receive("Inbox", top=100)).num_rows:
                for row in table.to_pylist():
                    found = endpoints.by_handle(t.connection, row["conversation_handle"])
                    assert found is not None
                    endpoint_key = (found.conversation_id, bool(found.is_initiator))
                    kind = config.END_DIALOG if row["message_type_name"] == BYE else row["message_type_name"]
                    message = StoredMessage(row["message_sequence_number"], row["message_body"] or b"", kind)
                    self._received.setdefault(endpoint_key, []).append(message)
        return self._received.get(key, [])

    def failed(self, key: Key) -> str | None:
        row = self._row(key)
        return "the endpoint is in state ER" if row is not None and row.state == ConversationState.ER else None

    def commit(self, effects: BatchChanges) -> StalePlan | None:
        return self.storage.commit(effects)

    def restart(self) -> None:
        self.close()
        self._open()
        self.received((b"", True))

    def endpoints(self, keys: Sequence[Key]) -> Sequence[DialogEndpoint | None]:
        return self.storage.endpoints(keys)

    def set_fragment_bytes(self, max_fragment_bytes: int) -> Mapping[Key, int]:
        return self.storage.set_fragment_bytes(max_fragment_bytes)

    def outgoing(self, wanted: Sequence[MessageRange]) -> pa.Table:
        return self.storage.outgoing(wanted)

    def ending_errors(self, keys: Sequence[Key]) -> Mapping[Key, int]:
        return self.storage.ending_errors(keys)

    def read_body_slices(self, key: Key, sequence: int, spans: Sequence[tuple[int, int]]) -> Sequence[bytes] | None:
        return self.storage.read_body_slices(key, sequence, spans)

    def list_stored(self, keys: Sequence[Key]) -> Iterable[StoredFragmentInfo]:
        return self.storage.list_stored(keys)

    def read_stored(self, key: Key, first: tuple[int, int], end: int, *, most_bytes: int) -> pa.Table:
        return self.storage.read_stored(key, first, end, most_bytes=most_bytes)

    def admit(self, endpoints: Sequence[DialogEndpoint]) -> Sequence[DialogEndpoint | Refusal]:
        return self.storage.admit(endpoints)

    def validate(self, messages: pa.Table, contracts: Sequence[str]) -> Mapping[int, Refusal]:
        return self.storage.validate(messages, contracts)

    def save_transmissions(self, objects: Mapping[Key, bytes]) -> None:
        self.storage.save_transmissions(objects)

    def load_transmissions(self, keys: Sequence[Key]) -> Mapping[Key, bytes]:
        return self.storage.load_transmissions(keys)

    def _row(self, key: Key) -> Row | None:
        with database_context(self.database).file.read() as connection:
            return endpoints.by_sides(connection, [key]).get(key)
