"""Reads and writes the durable state of networked dialogs in a database file; decides which dialogs and messages the database accepts."""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import pyarrow as pa

from ssbroker.broker.context import DatabaseContext
from ssbroker.broker.dialogs.acceptance import accept_any_body, complete_target, need_no_validation, refused_messages
from ssbroker.broker.dialogs.endpoint_end import EXTEND_RETENTION_BELOW
from ssbroker.broker.network.dialog_keys import EXCHANGE_LOCK_TIMEOUT
from ssbroker.broker.network.inbound_writer import InboundWriter, StalePlanError
from ssbroker.broker.unit_of_work import database_transaction
from ssbroker.protocol.conversation_states import INITIAL_STATE, ConversationState
from ssbroker.protocol.envelope import receiver_keys
from ssbroker.protocol.storage import (
    MESSAGES,
    BatchChanges,
    DialogEndpoint,
    EndpointKey,
    MessageKind,
    MessageRange,
    Refusal,
    StoredFragmentInfo,
    fragments_table,
)
from ssbroker.store import conversation_endpoints, fragments, transmission_queue
from ssbroker.store.objects import Contract, Objects
from ssbroker.store.sqlite import Connection

READ_AHEAD_MAX: Final = 16 << 20
"""The maximum number of bytes to read ahead, for all bodies together. Including requested bytes, at most twice as much is buffered."""


@dataclass(frozen=True, slots=True)
class _BufferedBody:
    """The part of a body that was read last."""

    sequence: int
    transmission_id: int
    begin: int
    data: bytes
    reaches_end: bool

    @property
    def end(self) -> int:
        return self.begin + len(self.data)

    def has(self, begin: int, end: int) -> bool:
        return begin >= self.begin and (end <= self.end or self.reaches_end)


class BodyReader:
    """Reads parts of bodies, and buffers the bytes that follow; drops the least recently read messages first. For one thread."""

    def __init__(self) -> None:
        self._buffered: Final[OrderedDict[EndpointKey, _BufferedBody]] = OrderedDict()

    def read(
        self, connection: Connection, key: EndpointKey, sequence: int, spans: Sequence[tuple[int, int]]
    ) -> list[bytes] | None:
        """Returns byte ranges of the body of a message; None if the message is gone.

        `spans` are sorted (start, end) pairs; bytes beyond the end are omitted.
        """
        transmission_id = transmission_queue.transmission_id_of(connection, key, sequence)
        buffered = self._buffered.pop(key, None)
        if transmission_id is None:
            return None
        if buffered is not None and (buffered.sequence, buffered.transmission_id) == (sequence, transmission_id):
            self._buffered[key] = buffered
            if all(buffered.has(*span) for span in spans):
                return [buffered.data[begin - buffered.begin : end - buffered.begin] for begin, end in spans]
            if spans[-1][1] <= buffered.end:  # a retransmission; the buffered part has yet to be sent
                return transmission_queue.read_body_ranges(connection, transmission_id, spans)
            del self._buffered[key]
        if not spans:
            return []
        *earlier, (begin, end) = spans
        read_end = end + READ_AHEAD_MAX // (len(self._buffered) + 1)
        *parts, read = transmission_queue.read_body_ranges(connection, transmission_id, [*earlier, (begin, read_end)])
        self._buffer(
            key, _BufferedBody(sequence, transmission_id, begin, read, reaches_end=len(read) < read_end - begin)
        )
        return [*parts, read[: end - begin]]

    def clear(self) -> None:
        """Drops all buffered parts."""
        self._buffered.clear()

    def _buffer(self, key: EndpointKey, buffered: _BufferedBody) -> None:
        self._buffered[key] = buffered
        while sum(len(each.data) for each in self._buffered.values()) > 2 * READ_AHEAD_MAX:
            self._buffered.popitem(last=False)


class SqliteDialogStorage:
    """Implements `protocol.storage.DialogStorage` for one database. For one thread at a time: the thread of its engine.

    The constructor removes the transmission objects that an earlier process stored (P32). `route_brokers` returns, for
    unbound initiators, the broker ids that their routes name. The constructor and `set_fragment_bytes` wait up to
    `lock_timeout` seconds for other writers; None means the `lock_timeout` of the instance.
    """

    def __init__(
        self,
        database: DatabaseContext,
        *,
        route_brokers: Callable[[Sequence[conversation_endpoints.ConversationEndpoint]], Sequence[bytes | None]]
        | None = None,
        lock_timeout: float | None = None,
    ) -> None:
        self._database: Final = database
        self._lock_timeout: Final = lock_timeout
        self._route_brokers: Final = route_brokers
        self._broker_instance: Final = database.objects().broker.service_broker_guid
        self._admitted: dict[EndpointKey, DialogEndpoint] = {}
        self._body_reader: Final = BodyReader()
        self._is_unsynced = True  # an earlier object for this database may have committed without a sync
        if database.file.query(transmission_queue.has_work_table_rows):
            with database.file.write(lock_timeout=lock_timeout) as connection:
                transmission_queue.clear_work_table(connection)

    @property
    def broker_instance(self) -> bytes:
        """The broker id under which the endpoints send; commits are stale once the broker id of the database has changed."""
        return self._broker_instance

    def commit(self, changes: BatchChanges, *, lock_timeout: float | None = None) -> None:
        """Writes the changes of a batch in one transaction, then notifies receivers and waiting threads.

        The changes are durable after `sync`, which must be called before anything is sent that depends on them. Raises
        `StalePlanError` if the state on which the plan was based has changed. After an error, nothing has changed.
        """
        if changes.is_empty and not self._extends_closed(changes):
            return
        with database_transaction(self._database, lock_timeout=lock_timeout, is_durable=False) as work:
            if not work.objects.broker.is_delivering or work.broker_instance != self._broker_instance:
                raise StalePlanError(is_database_changed=True)
            InboundWriter(work, changes).write()
            self._is_unsynced = True

    def _extends_closed(self, changes: BatchChanges) -> bool:
        """Returns whether duplicates have arrived for a closed endpoint that must be kept longer."""
        if not changes.with_duplicates:
            return False
        below = self._database.instance.microseconds() + EXTEND_RETENTION_BELOW
        with self._database.file.read() as connection:
            return conversation_endpoints.has_closed_to_extend(connection, changes.with_duplicates, below=below)

    def sync(self) -> None:
        """See `DialogStorage`. This is fast if a receiver in this process has committed since, because that commit has synced the log."""
        if self._is_unsynced:
            self._database.file.sync()
            self._is_unsynced = False

    def endpoints(self, keys: Sequence[EndpointKey]) -> Sequence[DialogEndpoint | None]:
        """See `DialogStorage`."""
        with self._database.file.read() as connection:
            objects = self._database.objects(connection)
            rows = conversation_endpoints.by_sides(connection, keys)
        found = {key: _dialog_endpoint(objects, row) for key, row in rows.items()}
        # Before the first answer (R8), the broker id of the route selects the copy of the service.
        unbound = [key for key, row in rows.items() if row.is_initiator and row.far_broker_instance is None]
        if unbound and self._route_brokers is not None:
            brokers = self._route_brokers([rows[key] for key in unbound])
            for key, broker in zip(unbound, brokers, strict=True):
                found[key] = replace(found[key], route_broker_instance=broker)
        return [found.get(key) for key in keys]

    def set_fragment_bytes(self, max_fragment_bytes: int) -> Mapping[EndpointKey, int]:
        """See `DialogStorage`."""
        with self._database.file.read() as connection:
            if transmission_queue.is_fragment_size_uniform(connection, max_fragment_bytes):
                return {}
        with self._database.file.write(lock_timeout=self._lock_timeout) as connection:
            return transmission_queue.set_fragment_size(connection, max_fragment_bytes)

    def outgoing(self, wanted: Sequence[MessageRange]) -> pa.Table:
        """See `DialogStorage`."""
        if len(wanted) == 1:  # the usual case needs no snapshot of several statements
            query = [_range_query(wanted[0])]
            found, counts = self._database.file.query(lambda each: each.statements.read_transmission_queue(query))
            if counts[0]:
                return _messages(found)
        with self._database.file.read() as connection:
            found, counts = connection.statements.read_transmission_queue([_range_query(each) for each in wanted])
            found_keys = {each.key for each, count in zip(wanted, counts, strict=True) if count}
            if missing := dict.fromkeys(each.key for each in wanted if each.key not in found_keys):
                errors = [
                    MessageRange(key, at, at, 1, 1)
                    for key, at in transmission_queue.error_sequence_numbers(connection, missing).items()
                ]
                found += connection.statements.read_transmission_queue([_range_query(each) for each in errors])[0]
        return _messages(found)

    def ending_errors(self, keys: Sequence[EndpointKey]) -> Mapping[EndpointKey, int]:
        """See `DialogStorage`."""
        with self._database.file.read() as connection:
            return transmission_queue.error_sequence_numbers(connection, keys)

    def read_body_slices(
        self, key: EndpointKey, sequence: int, spans: Sequence[tuple[int, int]]
    ) -> Sequence[bytes] | None:
        """See `DialogStorage`."""
        with self._database.file.read() as connection:
            return self._body_reader.read(connection, key, sequence, spans)

    def drop_read_ahead(self) -> None:
        """Drops the buffered parts of bodies."""
        self._body_reader.clear()

    def list_stored(self, keys: Sequence[EndpointKey]) -> Iterable[StoredFragmentInfo]:
        """See `DialogStorage`."""
        with self._database.file.read() as connection:
            return [
                StoredFragmentInfo((conversation, bool(side)), (number, fragment), count, digest, size)
                for conversation, side, number, fragment, count, digest, size in fragments.read_headers(
                    connection, keys
                )
            ]

    def read_stored(self, key: EndpointKey, first: tuple[int, int], end: int, *, most_bytes: int) -> pa.Table:
        """See `DialogStorage`."""
        sender = (key[0], not key[1])
        with self._database.file.read() as connection:
            found = fragments.read(connection, key, first, end, bytes_max=most_bytes)
        rows = [(*sender, *fragment, bool(is_end), bool(is_error)) for *fragment, is_end, is_error in found]
        return fragments_table(rows)

    def admit(self, endpoints: Sequence[DialogEndpoint]) -> Sequence[DialogEndpoint | Refusal]:
        """See `DialogStorage`."""
        objects = self._database.objects()
        now = self._database.instance.microseconds()
        answers = [complete_target(objects, endpoint, now=now) for endpoint in endpoints]
        self._admitted = {answer.key: answer for answer in answers if isinstance(answer, DialogEndpoint)}
        return answers

    def accept_any_body(self, kinds: Collection[MessageKind]) -> bool:
        """See `DialogStorage`. The commit checks again, with the objects of its transaction."""
        return accept_any_body(self._database.last_objects(), kinds)

    def validate(self, messages: pa.Table, contracts: Sequence[str]) -> Mapping[int, Refusal]:
        """See `DialogStorage`."""
        if need_no_validation(self._database.objects(), messages, contracts):
            return {}
        return self._validate_each(messages)

    def _validate_each(self, messages: pa.Table) -> Mapping[int, Refusal]:
        keys = set(receiver_keys(messages))
        contracts: dict[EndpointKey, tuple[Contract, ConversationState]] = {}
        with self._database.file.read() as connection:
            objects = self._database.objects(connection)
            for key, (contract_id, state) in conversation_endpoints.contracts_of(connection, keys).items():
                contracts[key] = (objects.contracts_by_id[contract_id], ConversationState(state))
        for key in keys - contracts.keys():
            created = self._admitted.get(key)
            contract = None if created is None else objects.contracts.get(created.service_contract_name)
            if contract is not None:  # if the endpoint or contract is gone, the commit reports a stale plan
                contracts[key] = (contract, INITIAL_STATE)
        return refused_messages(objects, messages, contracts)

    def save_transmissions(self, objects: Mapping[EndpointKey, bytes]) -> None:
        """See `DialogStorage`."""
        start = time.perf_counter()
        with self._database.file.write(lock_timeout=EXCHANGE_LOCK_TIMEOUT) as connection:
            rows = conversation_endpoints.by_sides(connection, objects)
            transmission_queue.save_transmissions(
                connection, [(row.endpoint_id, objects[key]) for key, row in rows.items()]
            )
        self._database.instance.counters.objects_written(len(objects), seconds=time.perf_counter() - start)

    def load_transmissions(self, keys: Sequence[EndpointKey]) -> Mapping[EndpointKey, bytes]:
        """See `DialogStorage`."""
        found: dict[EndpointKey, bytes] = {}
        with self._database.file.read() as connection:
            if not transmission_queue.has_work_table_rows(connection):
                return found
            for key, row in conversation_endpoints.by_sides(connection, keys).items():
                packed = transmission_queue.load_transmission(connection, row.endpoint_id)
                if packed is not None:
                    found[key] = packed
        self._database.instance.counters.objects_read(len(found))
        return found


def _dialog_endpoint(objects: Objects, row: conversation_endpoints.ConversationEndpoint) -> DialogEndpoint:
    """Converts a row to an endpoint for the protocol."""
    return DialogEndpoint(
        conversation_id=row.conversation_id,
        is_initiator=bool(row.is_initiator),
        service_name=objects.services_by_id[row.service_id].name,
        broker_instance=objects.broker.service_broker_guid,
        far_service_name=row.far_service,
        far_broker_instance=row.far_broker_instance,
        service_contract_name=objects.contracts_by_id[row.service_contract_id].name,
        priority=row.priority,
        lifetime=row.lifetime,
        session_key=row.session_key,
        far_session_key=row.far_session_key,
        far_certificate=row.far_certificate,
        is_bound=bool(row.is_bound),
        far_peer=row.far_peer,
        receive_sequence=row.receive_sequence,
        state=ConversationState(row.state),
        send_sequence=row.send_sequence,
    )


def _messages(found: list[pa.RecordBatch]) -> pa.Table:
    """Returns messages of the transmission queue as `MESSAGES`; a body longer than `max_body_bytes` is null."""
    return pa.Table.from_arrays(pa.Table.from_batches(found).columns, schema=MESSAGES)


def _range_query(wanted: MessageRange) -> tuple[bytes, bool, int, int, int, int, int, bytes]:
    return (*wanted.key, *wanted[1:], _first_message_id(wanted.key))


@lru_cache(maxsize=4096)
def _first_message_id(key: EndpointKey) -> bytes:
    """Returns the id of an endpoint's first message: a GUID of version 8 derived from the conversation and the side, so that it never changes.

    The ids of later messages differ from it in the last bits.
    """
    conversation_id, is_initiator = key
    side = conversation_id + is_initiator.to_bytes()
    digest = bytearray(hashlib.blake2b(side, digest_size=16, person=b"ssb message id").digest())
    digest[6] = digest[6] & 0x0F | 0x80
    digest[8] = digest[8] & 0x3F | 0x80
    return bytes(digest)
