"""The native module. It reads and returns Arrow data, and processes batches without the GIL. Public classes of `ssbroker` wrap its classes."""

import os
from collections.abc import Sequence
from typing import Any, Final, Literal, Protocol, Self, final

import pyarrow as pa
from typing_extensions import disjoint_base

class ArrowArrayExportable(Protocol):
    """An object that exports one record batch by the Arrow PyCapsule protocol."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...

class ArrowStreamExportable(Protocol):
    """An object that exports a stream of record batches by the Arrow PyCapsule protocol."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...

__version__: Final[str]
build_profile: Final[Literal["release", "debug"]]
BODY_MAX: Final[int]

@final
class Catalog:
    """An immutable, validated catalog.

    Args:
        routes: The rows of `sys.routes`.
        databases: The rows of `sys.databases`.
        services: The rows of `sys.services`.
        addresses: The addresses of the instance.
        message_forwarding: Whether message forwarding is enabled.
        pending_requests: The services with a pending request to the configuration service.

    Raises:
        SchemaError: A column is missing or has the wrong type.
        InputError: A value is invalid; the subclass determines the kind of error.
    """

    def __new__(
        cls,
        routes: ArrowStreamExportable,
        databases: ArrowStreamExportable | None = None,
        services: ArrowStreamExportable | None = None,
        /,
        *,
        addresses: Sequence[str],
        message_forwarding: bool,
        pending_requests: Sequence[str],
    ) -> Catalog: ...
    def routes(self) -> pa.RecordBatch:
        """Returns the routes in `schemas.ROUTES`, in input order, with omitted databases and route ids filled in."""

    def databases(self) -> pa.RecordBatch:
        """Returns the databases in `schemas.DATABASES`: the databases of the input, databases that only routes name, and `msdb`."""

    def services(self) -> pa.RecordBatch:
        """Returns the services in `schemas.SERVICES`, in input order."""

    def destinations(self) -> tuple[list[str], list[str]] | None:
        """Returns the addresses and databases to which conversations can go, in the order of their numbers in `Router.route_packed`.

        None if a next hop can come from a service name, a route has a mirror address, or there are more than 65,536 of them.
        """

    @property
    def addresses(self) -> list[str]:
        """The addresses of the instance in normal form."""

    @property
    def message_forwarding(self) -> bool:
        """Whether message forwarding is enabled."""

    @property
    def pending_requests(self) -> list[str]:
        """The services with a pending request to the configuration service."""

    @property
    def user_database(self) -> str | None:
        """The user database; None if there is not exactly one."""

@final
class Router:
    """A compiled catalog; immutable and thread-safe.

    Args:
        catalog: The catalog.
        tie_break: How to choose among equal candidates.
        pending_request: What to do with a conversation while a route request for its service is pending.

    Raises:
        OptionError: An option is invalid.
    """

    def __new__(cls, catalog: Catalog, /, *, tie_break: str, pending_request: str) -> Router: ...
    def route(self, conversations: ArrowArrayExportable, now_us: int, first_row: int, /) -> pa.RecordBatch:
        """Decides all conversations of a batch.

        Args:
            conversations: One record batch.
            now_us: The time at which route lifetimes are evaluated, in microseconds since 1970.
            first_row: The index of the batch's first row in the whole input, for errors.

        Returns:
            The decisions in `schemas.DECISIONS`, one row per conversation, in the same order.
        """

    def invalid_rows(self, conversations: ArrowArrayExportable, first_row: int, /) -> pa.RecordBatch:
        """Returns the rows of a batch that cannot be routed, in `schemas.REJECTED_CONVERSATIONS`.

        Args:
            conversations: See `route`.
            first_row: See `route`.

        Raises:
            SchemaError: A column is missing or has the wrong type.
            MalformedDataError: A value cannot be read.
        """

    def route_packed(
        self, conversations: ArrowArrayExportable, now_us: int, include_named: bool, /
    ) -> pa.RecordBatch | None:
        """Decides all conversations of a batch, and packs each decision into one number.

        Args:
            conversations: See `route`.
            now_us: See `route`.
            include_named: Whether to return broker ids that the conversations themselves name.

        Returns:
            `decision_number` (int64): from the lowest bit the step (4 bits, 15 for none), the reason (4), the outcome (3), the destination (20; 0 for
            none, then the addresses from 1, then the databases), whether there is no route (1), and the route id (32).
            `broker_instance` (binary): the broker id that binds the conversation; null if the conversation names it, unless `include_named`.
            None if the catalog has no `destinations`.
        """

    def decision_table(self, now_us: int, /) -> pa.RecordBatch | None:
        """Returns the decisions for every kind of conversation in `schemas.DECISION_TABLE`; None with `round_robin`.

        Args:
            now_us: See `route`.
        """

    def explain(
        self,
        to_service_name: str,
        to_broker_instance: bytes | None,
        database: str | None,
        is_initiator: bool,
        conversation_id: bytes | None,
        now_us: int,
        /,
    ) -> dict[str, Any]:
        """Decides one conversation without advancing the rotation of `round_robin`; returns every step of the search."""

    @property
    def nbytes(self) -> int:
        """The size of the index in bytes, without the catalog."""

@final
class Reassembler:
    """Reassembles fragments. Calls from several threads are serialized.

    Args:
        max_pending_bytes: The maximum memory for pending messages; None for no limit.
        max_pending_messages: The maximum number of incomplete or waiting messages; None for no limit.
        max_message_bytes: The maximum size of a message in bytes.
        max_fragments_per_message: The maximum number of fragments of a message; None for no limit.
        max_sequence_distance: The maximum distance of a fragment's sequence number from that of the first incomplete message; None for no limit.
        in_order: Whether messages wait for earlier messages.
    """

    def __new__(
        cls,
        *,
        max_pending_bytes: int | None,
        max_pending_messages: int | None,
        max_message_bytes: int,
        max_fragments_per_message: int | None,
        max_sequence_distance: int | None,
        in_order: bool,
    ) -> Reassembler: ...
    @staticmethod
    def restore(state: bytes, /) -> Reassembler:
        """Restores a reassembler from a checkpoint.

        Raises:
            MalformedDataError: The checkpoint is truncated, altered, inconsistent or of another version.
        """

    def push(
        self,
        fragments: Sequence[ArrowArrayExportable],
        session_keys: str | SessionKeys | None,
        skip_invalid: bool = False,
        /,
    ) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch], list[pa.RecordBatch], list[pa.RecordBatch]]:
        """Adds the fragments of several batches in one push.

        Args:
            fragments: At least one record batch.
            session_keys: Keys by conversation, or the name of the column with the keys.
            skip_invalid: Whether to return rows with an invalid value, instead of failing.

        Returns:
            The messages, the rejected fragments and the acknowledgements, each in at least one batch, and the invalid rows
            (`schemas.INVALID_FRAGMENTS`), possibly in no batch.

        Raises:
            SchemaError: A column is missing or has the wrong type, or the extra columns differ from those of the first push.
            InputError: A value is invalid; the subclass determines the kind of error. Not with `skip_invalid`.
        """

    def pending(self) -> list[pa.RecordBatch]:
        """Returns the incomplete or waiting messages, in `schemas.PENDING`."""

    @property
    def pending_bytes(self) -> int:
        """The memory used by pending messages, in bytes."""

    @property
    def pending_messages(self) -> int:
        """The number of incomplete or waiting messages."""

    def forget(self, conversation_id: bytes, is_initiator: bool, message_sequence_number: int, /) -> bool:
        """Discards an incomplete or waiting message; returns whether it existed."""

    def checkpoint(self) -> bytes:
        """Returns the state as bytes, for `restore`."""

@final
class SessionKeys:
    """Immutable session keys by conversation.

    Args:
        keys: Pairs of a conversation id (16 bytes) and its key.

    Raises:
        OptionError: A key is not 16, 24 or 32 bytes long.
    """

    def __new__(cls, keys: Sequence[tuple[bytes, bytes]], /) -> SessionKeys: ...

def is_misspelling(found: str, name: str, /) -> bool:
    """Returns whether a column name is likely to mean the column `name`.

    This is the case if the two names differ only in case or separators, or in one letter if `name` has at least eight
    letters, or if `found` is a different common name for the column.
    """

def tie_break_hashes(conversations: ArrowArrayExportable, first_row: int, /) -> pa.RecordBatch:
    """Returns the hashes of the column `conversation_id` of a record batch as a column `hash`; null values stay null.

    Args:
        conversations: One record batch.
        first_row: The index of the first row in the whole input, for errors.

    Raises:
        SchemaError: The column is missing or has the wrong type.
        InvalidGuidError: A value is not a GUID.
    """

def md5(values: ArrowArrayExportable, first_row: int, /) -> pa.FixedSizeBinaryArray:
    """Returns the MD5 digest of each value of a binary or text array; null values stay null.

    Args:
        values: One array.
        first_row: The index of the first value in the whole input, for errors.

    Raises:
        SchemaError: The array has the wrong type.
        MalformedDataError: A value cannot be read.
    """

def limit_vectors(bits_max: int | None, /) -> Literal["avx512", "avx2", "sse2", "neon", "portable"]:
    """Limits the vector length that this process uses, so that one machine can measure and test the code for other machines.

    Args:
        bits_max: The length in bits, or 0 for code without vectors. None means the vectors of the processor.

    Returns:
        The vector instructions that MD5 uses from now on.
    """

def fragment(
    messages: ArrowArrayExportable,
    first_row: int,
    max_fragment_bytes: int,
    session_keys: str | SessionKeys | None,
    /,
) -> list[pa.RecordBatch]:
    """Splits the messages of a batch into signed fragments.

    Args:
        messages: One record batch.
        first_row: The index of the batch's first row in the whole input, for errors.
        max_fragment_bytes: The maximum size of a fragment in bytes.
        session_keys: Keys by conversation, or the name of the column with the keys.

    Returns:
        The fragments in `schemas.FRAGMENTS`, with the extra columns, in at least one batch.

    Raises:
        SchemaError: A column is missing or has the wrong type.
        InputError: A value is invalid; the subclass determines the kind of error.
    """

@final
class MetadataSnapshot:
    """An immutable snapshot of the objects of a database on which messages depend.

    Args:
        broker_instance: The broker id of the database.
        queues: For each queue, its id, whether RECEIVE, enqueuing and retention are enabled, and its name if it is in the default schema.
        services: For each service, its id, its name and the id of its queue.
        contracts: For each contract, its id and name, and for each of its message types the id and whether the
            initiator and the target may send it.
        message_types: For each message type, its id, name and validation (`N`, `E` or `X`).
        services_routed_locally: The services without routes to other instances; empty if message delivery is disabled.
    """

    def __new__(
        cls,
        *,
        broker_instance: bytes,
        queues: Sequence[tuple[int, bool, bool, bool, str | None]],
        services: Sequence[tuple[int, str, int]],
        contracts: Sequence[tuple[int, str, Sequence[tuple[int, bool, bool]]]],
        message_types: Sequence[tuple[int, str, str]],
        services_routed_locally: Sequence[str],
    ) -> MetadataSnapshot: ...

@final
class Statements:
    """Native statements on an apsw connection, for the fast path. Raises apsw's errors. Only one thread can use the object at a time.

    Args:
        connection: The connection. Call `close` before you close the connection, because the statements use it without a check.

    Raises:
        TypeError: The connection is not an `apsw.Connection`.
    """

    def __new__(cls, connection: object, /) -> Statements: ...
    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is in progress; False after `close`."""

    def commit(self, *, is_durable: bool = True) -> bool:
        """Commits the transaction.

        Args:
            is_durable: Whether to sync the commit to the disk. Otherwise, the next durable commit of any process, or
                `sync`, does so. Until then, the commit survives the end of the process, but not a power cut, which
                leaves the file as it was before.

        Returns:
            Whether the path still refers to the opened file; if not, the changes are lost with the old file.
        """

    def sync(self) -> None:
        """Makes all commits of this process durable, on any connection; fast if they are already durable."""

    def catalog_version(self) -> int:
        """Returns the version of the database's metadata."""

    def reset_rollback_count(self, queue_id: int, /) -> None:
        """Resets the number of consecutive rollbacks of a queue."""

    def reserve_queuing_order(self, number: int, /) -> None:
        """Prevents reuse of the queuing order of a removed message: if it is the highest order, a row without a queue reserves it."""

    def read_transmission_queue(
        self, requests: list[tuple[bytes, bool, int, int, int, int, int, bytes]], /
    ) -> tuple[list[pa.RecordBatch], list[int]]:
        """Reads messages to send to other instances.

        Args:
            requests: For each endpoint: the conversation id, whether it is the initiator, the first and last sequence
                numbers, the maximum number of messages, the size of bodies after which no further message is read, the
                size of the largest body to read, and the message id of sequence number 0. A message with a larger body
                is read without its body, and no message is read after it.

        Returns:
            The messages with the columns of `protocol.storage.MESSAGES`, sorted by endpoint and sequence number, and the number of messages of
            each endpoint.
        """

    def enqueue(
        self, rows: ArrowStreamExportable, runs: list[tuple[int, int, tuple[int, int, int, int, int]]], now: int, /
    ) -> None:
        """Enqueues the next messages of conversations.

        Args:
            rows: The bodies, in the column `message_body`.
            runs: For each run: the first row, the number of rows, and the destination, which consists of the queue id,
                the priority, the id of the receiver's endpoint, the id of the message type, and the sequence number of
                the first message; the sequence numbers have no gaps.
            now: The time of arrival, in microseconds since 1970.

        Raises:
            SchemaError: The column is missing or has the wrong type.
            NullError: A body is null.
            IndexError: A run exceeds the rows. Nothing has changed.
        """

    def insert_queued(
        self, rows: Sequence[tuple[int, int, int, int, int, int, int, bytes | None]], now: int, /
    ) -> None:
        """Adds messages to queues.

        Args:
            rows: Queue, status, priority, endpoint, precedence, sequence number, message type, body.
            now: The time of arrival, in microseconds since 1970.
        """

    def insert_transmissions(
        self, rows: Sequence[tuple[int, bool, int, str, bool, bool, int, bytes | None]], /
    ) -> None:
        """Adds messages at the end of the transmission queue.

        Args:
            rows: Endpoint, whether inbound, sequence number, message type, whether an error, whether it ends the dialog, time, body.
        """

    def receive(
        self,
        metadata: MetadataSnapshot,
        schema: pa.Schema,
        queue_id: int,
        /,
        *,
        top: int | None,
        groups: int | None,
        bytes_max: int,
        endpoint_id: int | None,
        group: bytes | None,
        is_retained: bool,
        now: int,
    ) -> pa.RecordBatch | None:
        """Receives messages from a queue. Requires a transaction.

        Args:
            metadata: The objects of the database.
            schema: `schemas.RECEIVED`.
            queue_id: The id of the queue.
            top: The maximum number of messages; None for all messages.
            groups: The maximum number of conversation groups; None for all groups.
            bytes_max: The total size of bodies, in bytes, after which no further message is received.
            endpoint_id: The only conversation from which to receive messages; it must belong to this queue.
            group: The only conversation group from which to receive messages.
            is_retained: Whether the messages are retained in the queue.
            now: The current time in microseconds since 1970, by which leases are evaluated: messages of leased conversation groups are not received.

        Returns:
            The messages; None if there are none.

        Raises:
            LookupError: The group has no conversation in this queue.
        """

    def read_next_group(
        self, metadata: MetadataSnapshot, queue_id: int, /, *, top: int | None, bytes_max: int, now: int
    ) -> list[tuple[bytes | None, bytes, bytes, bytes, bool, int, str, str, str, int, int, str]]:
        """Reads the messages of the conversation group from which `receive` would receive next. The messages stay in the queue, so that the caller can lease them.

        Args:
            metadata: The objects of the database.
            queue_id: The id of the queue.
            top: The maximum number of messages; None for all messages.
            bytes_max: The total size of bodies, in bytes, after which no further message is read.
            now: The current time in microseconds since 1970, by which leases are evaluated: messages of leased conversation groups are not read.

        Returns:
            The messages as in `Session.receive_one`, in order; empty if there are none.
        """

    def acknowledge(self, queuing_orders: list[int], /, *, is_retained: bool) -> int:
        """Removes messages that `read_next_group` has read; returns how many were still in the queue. Requires a transaction."""

    def close(self) -> None:
        """Releases the statements, so that the connection can be closed."""

@disjoint_base
class WriteLock:
    """The write lock of a file within a process (first come, first served), and the connection that is kept with it. No method waits."""

    def __new__(cls) -> Self: ...
    @property
    def holder(self) -> int | None:
        """The id of the thread that holds the lock."""

    @property
    def is_recorded(self) -> bool:
        """Whether the shared memory names the holder of this lock; it may name the holder of another lock of this process."""

    @property
    def waiting(self) -> int:
        """The number of waiting threads."""

    def try_acquire(self, holder: int, /) -> bool:
        """Takes the lock if it is free; returns whether it was free."""

    def acquire_or_enqueue(self, signal: object, holder: int, /) -> bool:
        """Takes the lock if it is free; otherwise adds the thread to the waiting threads.

        Args:
            signal: A locked `threading.Lock`, which is released when the thread gets the lock.
            holder: The id of the thread.

        Returns:
            Whether the lock was free.
        """

    def is_waiting(self, holder: int, /) -> bool:
        """Returns whether a thread waits for the lock."""

    def stop_waiting(self, signal: object, /) -> bool:
        """Removes a thread from the waiting threads, if it is one of them; returns whether it has acquired the lock with this signal."""

    def share(self, shared: SharedMemory, /) -> None:
        """Records the holder of the file's lock in shared memory, for other processes."""

    def record_call(self, call: int, /) -> None:
        """Records for other processes that the holder of the lock has made a kind of call, given as a bit."""

    def release(self) -> None:
        """Releases the lock, and passes it to the thread that has waited longest, if any thread is waiting."""

    def take_idle_connection(self) -> Any:
        """Removes and returns the connection that is kept with the lock; None if there is no connection or it is in use."""

    def connection_in_use(self) -> tuple[Any, int | None] | None:
        """Returns the connection that the holder of the lock uses, and the holder; None if there is no such connection."""

    def set_paused(self, is_paused: bool, /) -> None:
        """Sets whether the fast path must not start transactions, because the process is forking."""

    def close(self) -> None:
        """Ends the fast path permanently; a connection that is returned is closed."""

    def mark_inherited(self) -> None:
        """In a forked process: prevents any use of the parent's transactions."""

    def set_failing(self, is_failing: bool, /) -> None:
        """Sets whether the last commit failed because of the disk."""

    def set_metadata(self, version: int, snapshot: MetadataSnapshot, /) -> None:
        """Sets the metadata snapshot that transactions use while the database has this version."""

@disjoint_base
class Counts:
    """Counters of the fast path of an instance."""

    def __new__(cls) -> Self: ...
    def watch(self, is_watched: bool, /) -> None:
        """Sets whether Python must be notified of each transaction."""

    def take(self) -> tuple[int, int, dict[tuple[bool, int], int]]:
        """Returns and resets the counters.

        Returns:
            The number of sent messages, the number of RECEIVE statements, and the number of enqueued messages by
            whether the receiver's endpoint has received anything over the network, and by the priority of the endpoint.
        """

@final
class SharedMemory:
    """Memory that is shared by the processes that have a database file open. Available only on Linux.

    Args:
        path: The file that contains the memory; created if missing.
        database: The database file; a new memory file gets the same permissions.
        process_id: The id of this process.

    Raises:
        OSError: The file cannot be created or mapped, or the system does not support it.
    """

    def __new__(
        cls, path: str | os.PathLike[str], database: str | os.PathLike[str], process_id: int, /
    ) -> SharedMemory: ...
    def count(self, queue_id: int, /) -> int:
        """Returns a 32-bit number that changes with each arrival in a queue."""

    def notify(self, queue_ids: list[int], /) -> None:
        """Wakes the threads of all processes that wait for these queues."""

    def wait(self, queue_id: int, seen: int, timeout: float, /) -> None:
        """Waits until the count of a queue differs from `seen`; returns earlier after `timeout` seconds or a signal."""

    def wait_for_release(self, timeout: float, /) -> bool:
        """Waits until the holder of the write lock releases it; returns earlier after `timeout` seconds or a signal.

        Returns:
            False, at once, if the holder is unknown.
        """

    @property
    def holder(self) -> tuple[int, int, int] | None:
        """The process that holds the write lock: its id, the start time in microseconds since 1970, and its calls (as in `record_call`)."""

@disjoint_base
class Arrivals:
    """Counts arrivals in the queues of a database. A subclass defines `wake`, which is called when a thread is waiting."""

    def __new__(cls) -> Self: ...
    def share(self, shared: SharedMemory, /) -> None:
        """Records arrivals in shared memory from now on; this also wakes the waiting threads of all processes."""

    def count(self, queue_id: int, /) -> int:
        """Returns a number that changes with each arrival in a queue."""

    def record(self, queue_ids: list[int], /) -> bool:
        """Records arrivals in queues; returns whether a waiting thread must be woken."""

    def add_waiting(self, number: int, /) -> None:
        """Adds to the number of waiting threads; a negative number subtracts."""

@final
class SessionContext:
    """The state that all transactions of a database file share.

    Args:
        write_lock: The write lock.
        announcer: Counts commits and wakes receivers without Python: the counters of the instance, the arrivals of the
            database, and the id of the queue that the instance itself reads. If None, commits are not announced.
    """

    def __new__(
        cls, write_lock: WriteLock, announcer: tuple[Counts, Arrivals, int] | None = None, /
    ) -> SessionContext: ...

@disjoint_base
class Session:
    """One transaction on a database file, with the fast path for SEND, RECEIVE and commit. Not thread-safe."""

    def __new__(cls, context: SessionContext, thread: int, /, *args: object) -> Self: ...
    def open(self) -> bool:
        """Enters the block, without locking anything yet; returns False if the block was entered before."""

    @property
    def is_open(self) -> bool:
        """Whether the block has been entered but not left."""

    @property
    def has_begun(self) -> bool:
        """Whether the transaction has begun, so that it holds the write lock."""

    @property
    def connection(self) -> Any:
        """The connection; None if the transaction has not begun."""

    @property
    def has_changed(self) -> bool:
        """Whether rows have changed since the transaction began."""

    def send(self, handle: bytes, body: bytes, message_type_name: str, now: int | None, /) -> bool:
        """Sends a message on the fast path; returns whether it was sent. If not, nothing has changed.

        Args:
            handle: The conversation handle.
            body: The message body.
            message_type_name: The message type.
            now: The time in microseconds since 1970; None for the system clock.
        """

    def send_batch(self, batches: list[Any], message_type_name: str, now: int | None, /) -> bool:
        """Sends messages on the fast path; returns whether they were sent. If not, nothing has changed.

        Args:
            batches: Record batches with the columns of `Transaction.send_batch`.
            message_type_name: The default message type.
            now: The time in microseconds since 1970; None for the system clock.
        """

    def receive(
        self,
        schema: pa.Schema,
        queue: str,
        top: int | None,
        groups: int | None,
        bytes_max: int,
        now: int | None,
        /,
    ) -> pa.RecordBatch | None:
        """Receives messages on the fast path, as `Statements.receive` does; None if there are no messages or the fast path is not possible."""

    def receive_one(
        self, queue: str, now: int | None, /
    ) -> tuple[bytes | None, bytes, bytes, bytes, bool, int, str, str, str, int, int, str] | None:
        """Receives one message on the fast path; returns None if there is no message or the fast path is not possible.

        Returns:
            Body, conversation handle, conversation group id, conversation id, whether the initiator sent it, sequence number, message type,
            service, contract, priority, queuing order, validation.
        """

    def begin_fast(self) -> Any:
        """Starts the transaction if possible without waiting; returns the connection for use by Python, or None if the transaction has not begun."""

    def adopt(self, connection: object, /) -> None:
        """Continues with a transaction that Python has started on a connection; the caller must hold the lock."""

    def take_summary(self) -> tuple[int, list[Any], list[tuple[int, bool]]]:
        """Returns the effects of the fast path since the last call.

        Returns:
            The number of sent messages; the places where they were stored, each with the number of messages; and for
            each RECEIVE, the queue id and whether it found no messages.
        """

    def commit_fast(self) -> tuple[bool, tuple[bool, tuple[int, list[Any], list[tuple[int, bool]]]] | None]:
        """Commits and leaves the block, unless Python also uses the connection.

        Returns:
            Whether the transaction has committed; and if Python must announce the commit, whether rows have changed,
            and the effects as `take_summary` returns them.

        Raises:
            FileNotFoundError: The transaction has committed, but the file is no longer at its path.
        """

    def release(self, is_reusable: bool, /) -> None:
        """Returns the connection, and releases the lock.

        The lock keeps the connection if `is_reusable` and the file is open; otherwise the connection is closed.

        Args:
            is_reusable: Whether nothing is open on the connection: no transaction, statement or cursor.
        """

    def end(self) -> None:
        """Leaves the block."""

def register_wal_vfs(below: str | None, /) -> str | None:
    """Registers a SQLite virtual file system that writes each commit to the WAL in one piece.

    Args:
        below: The name of the VFS to wrap; None for the default.

    Returns:
        The name of the VFS; None if the VFS to wrap does not exist.
    """

def crc32c(data: bytes | memoryview, before: int, /) -> int:
    """Returns the CRC-32C of bytes, continuing from the checksum of preceding bytes.

    Args:
        data: The bytes. A view must be read-only, and its memory must not change during the call.
        before: The checksum of the preceding bytes; 0 if there are none.
    """

def decode_fragments(body: bytes | memoryview, /) -> pa.RecordBatch:
    """Decodes the body of a frame into rows in the wire schema.

    Args:
        body: The bytes from another instance. A view must be read-only, and its memory must not change during the call.

    Raises:
        MalformedDataError: The body is not a valid batch of fragments, or contains a value that no instance sends.
    """

def header_digests(rows: ArrowStreamExportable, /) -> pa.FixedSizeBinaryArray:
    """Returns the MD5 digest of each row's header (all fields except the body), which signs the headers of unencrypted rows.

    Args:
        rows: Rows of `protocol.envelope.ENVELOPE`.

    Returns:
        A digest per row, of type `pa.binary(16)`. For a broker error, which has no sequence number, the digest includes the body.

    Raises:
        SchemaError: A column is missing or has the wrong type.
    """

def incoming_runs(
    rows: ArrowStreamExportable, /
) -> tuple[
    list[tuple[bytes, bool, bytes | None, bytes | None, list[str], int, int, int, int, list[int]]],
    pa.Int32Array,
]:
    """Finds runs of whole unencrypted messages among received rows.

    The rows of a sender form a run if all of them are whole messages with consecutive sequence numbers, the same type,
    services and brokers, and matching signatures, if none of them ends the conversation, and if they acknowledge
    nothing out of order.

    Args:
        rows: Rows of `protocol.envelope.ENVELOPE`.

    Returns:
        The runs, ordered by first row: conversation id, whether the initiator sent the messages, broker ids of the
        sender and the receiver, a list of sending service, receiving service, contract and message type, first sequence
        number, number of messages, total size of the bodies, size of the largest body, and the sequence numbers that
        the messages acknowledge (-1 if nothing has arrived yet). Also, for each row, the index of its run (-1 for
        none).

    Raises:
        SchemaError: A column is missing or has the wrong type.
    """

def outgoing_runs(messages: ArrowStreamExportable, /) -> list[tuple[bytes, bool, int, list[int]]] | None:
    """Finds runs of consecutive sequence numbers among messages to send.

    Args:
        messages: Rows of `protocol.storage.MESSAGES`.

    Returns:
        The runs in order: conversation id, whether the initiator sends the messages, first sequence number, and the
        size of each body. None if a message has not been read or is an application error, or if a sender has several
        runs.

    Raises:
        SchemaError: A column is missing or has the wrong type.
    """

def outgoing_rows(
    messages: ArrowStreamExportable,
    senders: Sequence[
        tuple[
            int,
            int,
            Sequence[str],
            bytes,
            bytes | None,
            int,
            int | None,
            tuple[int | None, bytes] | None,
        ]
    ],
    /,
) -> list[pa.RecordBatch]:
    """Builds the envelope rows of whole unencrypted messages.

    Args:
        messages: Rows of `protocol.storage.MESSAGES`.
        senders: For each run of `outgoing_runs`: the number of messages, the number of messages to send, the sending
            service, the receiving service and the contract, the broker ids of the sender and the receiver, the
            priority, the end of the conversation in microseconds since 1970, and the acknowledgement to send with the
            first message.

    Returns:
        Rows of `protocol.envelope.ENVELOPE`, signed with digests.

    Raises:
        SchemaError: A column is missing or has the wrong type.
        MalformedDataError: The number of messages differs from the number in the runs.
    """

def sender_runs(rows: ArrowStreamExportable, /) -> tuple[list[tuple[bytes, bool, bytes | None, int]], bool]:
    """Finds runs of rows with the same sender.

    Args:
        rows: Rows of `protocol.envelope.ENVELOPE`.

    Returns:
        The runs in order: conversation id, whether the initiator sends, broker id of the receiver, and number of rows.
        Also, whether no row is encrypted.

    Raises:
        SchemaError: A column is missing or has the wrong type.
    """

def first_hop(rows: ArrowStreamExportable, now: int, /) -> pa.RecordBatch:
    """Returns the hop fields of new rows: hops remaining, time to live and time consumed, in seconds.

    Args:
        rows: Rows of `protocol.envelope.ENVELOPE`.
        now: The time from which the time to live counts, in microseconds since 1970.

    Raises:
        SchemaError: A column is missing or has the wrong type.
    """

def normalize_address(text: str, /) -> str:
    """Returns an address in normal form.

    Raises:
        InvalidAddressError: The text is not a valid address.
    """

def parse_guid(text: str, /) -> bytes:
    """Returns the 16 bytes of a GUID, in the order of `uuid.UUID.bytes`.

    Raises:
        InvalidGuidError: The text is not a valid GUID.
    """
