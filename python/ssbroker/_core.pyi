"""The native module. Batches are processed without the interpreter lock; the modules of `ssbroker` wrap it."""

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

@final
class Catalog:
    """Validated rows of a catalog; immutable.

    Args:
        routes: Rows of `schemas.ROUTES`.
        databases: Rows of `schemas.DATABASES`.
        services: Rows of `schemas.SERVICES`.
        addresses: Addresses of the instance.
        message_forwarding: Whether the instance forwards messages.
        pending_requests: Services with a pending request for routing information.

    Raises:
        SchemaError: A column is missing or has the wrong type.
        InputError: A value is invalid.
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
        """Routes (`schemas.ROUTES`) in the order of the input, with database and route id filled in."""

    def databases(self) -> pa.RecordBatch:
        """Databases (`schemas.DATABASES`): those of the input, those that only routes name, and `msdb`."""

    def services(self) -> pa.RecordBatch:
        """Services (`schemas.SERVICES`) in the order of the input."""

    def places(self) -> tuple[list[str], list[str]] | None:
        """Returns the addresses and the databases that `Router.verdicts` numbers.

        None if there are more than 65,536 of them, a route has a mirror, or a route takes the next hop from the service name.
        """

    @property
    def addresses(self) -> list[str]:
        """Addresses of the instance in normal form."""

    @property
    def message_forwarding(self) -> bool:
        """Whether the instance forwards messages."""

    @property
    def pending_requests(self) -> list[str]:
        """Services with a pending request for routing information."""

    @property
    def user_database(self) -> str | None:
        """The only user database; None if there are none or several."""

@final
class Router:
    """Index of a catalog for routing; immutable and thread-safe.

    Args:
        catalog: The catalog.
        tie_break: How to pick one of several equal candidates.
        pending_request: How to route while routing information is requested.

    Raises:
        OptionError: An option has an invalid value.
    """

    def __new__(cls, catalog: Catalog, /, *, tie_break: str, pending_request: str) -> Router: ...
    def route(self, conversations: ArrowArrayExportable, now_us: int, first_row: int, /) -> pa.RecordBatch:
        """Returns the decisions (`schemas.DECISIONS`) for the conversations of a batch, in the same order.

        Args:
            conversations: One record batch of `schemas.CONVERSATIONS`.
            now_us: Time of the decision, in microseconds since 1970.
            first_row: Row number of the batch's first row in the whole input, for errors.
        """

    def verdicts(self, conversations: ArrowArrayExportable, now_us: int, tells_named: bool, /) -> pa.RecordBatch | None:
        """Like `route`, but returns each decision packed into one number.

        Args:
            conversations: As for `route`.
            now_us: As for `route`.
            tells_named: Whether to return also the broker ids that conversations name.

        Returns:
            `verdict` (int64): from the lowest bit, the step (4 bits, 15 for none), the reason (4), the outcome (3), the place (20; 0 for none, 1 for the
            first address, databases after the addresses), whether there is no route (1), the route id (32).
            `broker_instance` (binary): the broker id that the conversation is bound to; null if it is the one that it names, unless `tells_named`.
            None if `Catalog.places` is None.
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
        """Explains the decision for one conversation as plain values, without advancing the turns of `round_robin`."""

    @property
    def nbytes(self) -> int:
        """Memory of the index in bytes, without the catalog."""

@final
class Reassembler:
    """State of reassembly; calls from several threads are serialized.

    Args:
        max_pending_bytes: Maximum memory for pending data, in bytes.
        max_pending_messages: Maximum number of incomplete and waiting messages.
        max_message_bytes: Maximum message size in bytes.
        max_fragments_per_message: Maximum number of fragments of a message.
        max_sequence_distance: Maximum distance of a fragment from the first incomplete message.
        in_order: Whether a message waits for earlier ones.
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
        """Creates a reassembler from a checkpoint; raises MalformedDataError if it is invalid."""

    def push(
        self, fragments: Sequence[ArrowArrayExportable], session_keys: str | SessionKeys | None, /
    ) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch], list[pa.RecordBatch]]:
        """Adds the fragments of one or more batches as one push.

        Args:
            fragments: Record batches of `schemas.FRAGMENTS`, at least one.
            session_keys: Keys by conversation, or the name of the column with the keys.

        Returns:
            Messages, rejected fragments and acknowledgements, each in at least one batch.

        Raises:
            SchemaError: A column is missing or has the wrong type, or the extra columns differ from those of the first push.
            InputError: A value is invalid.
        """

    def pending(self) -> list[pa.RecordBatch]:
        """Returns the incomplete and waiting messages (`schemas.PENDING`)."""

    @property
    def pending_bytes(self) -> int:
        """Memory that counts towards `max_pending_bytes`."""

    @property
    def pending_messages(self) -> int:
        """Number of incomplete and waiting messages."""

    def forget(self, conversation_id: bytes, is_initiator: bool, message_sequence_number: int, /) -> bool:
        """Discards an incomplete or waiting message; returns whether there was one."""

    def checkpoint(self) -> bytes:
        """Serializes the state."""

@final
class SessionKeys:
    """Prepared session keys by conversation; immutable.

    Args:
        keys: Pairs of conversation id (16 bytes) and key.

    Raises:
        OptionError: A key is not 16, 24 or 32 bytes long.
    """

    def __new__(cls, keys: Sequence[tuple[bytes, bytes]], /) -> SessionKeys: ...

def md5(values: ArrowArrayExportable, first_row: int, /) -> pa.FixedSizeBinaryArray:
    """Returns the MD5 digests of a binary or string array; `first_row` is the row number of its first value, for errors."""

def fragment(
    messages: ArrowArrayExportable,
    first_row: int,
    max_fragment_bytes: int,
    session_keys: str | SessionKeys | None,
    /,
) -> list[pa.RecordBatch]:
    """Splits the messages of a batch into signed fragments.

    Args:
        messages: One record batch of `schemas.MESSAGES`.
        first_row: Row number of the batch's first row in the whole input, for errors.
        max_fragment_bytes: Maximum body size of a fragment in bytes.
        session_keys: Keys by conversation, or the name of the column with the keys.

    Returns:
        The fragments (`schemas.FRAGMENTS`) with the extra columns, in one or more batches.

    Raises:
        SchemaError: A column is missing or has the wrong type.
        InputError: A value is invalid.
    """

@final
class Picture:
    """Snapshot of the objects of a database for native statements; immutable.

    Args:
        broker_instance: Broker id of the database.
        is_delivering: Whether the database sends and receives messages.
        queues: For each queue: id, whether it can be received from, whether it accepts messages, whether it retains them, and its name if it needs no
            schema.
        services: For each service: id, name, id of its queue.
        contracts: For each contract: id, name, and for each message type its id and whether the initiator and the target may send it.
        message_types: For each message type: id, name, validation (`N`, `E` or `X`).
        staying: Names of services that no route directs to another instance.
    """

    def __new__(
        cls,
        *,
        broker_instance: bytes,
        is_delivering: bool,
        queues: Sequence[tuple[int, bool, bool, bool, str | None]],
        services: Sequence[tuple[int, str, int]],
        contracts: Sequence[tuple[int, str, Sequence[tuple[int, bool, bool]]]],
        message_types: Sequence[tuple[int, str, str]],
        staying: Sequence[str],
    ) -> Picture: ...

@final
class Statements:
    """SEND, RECEIVE and commit on an apsw connection; errors of SQLite are errors of apsw. Not for concurrent use.

    Args:
        connection: The connection. Close the statements before it: SQLite does not close a connection with open statements.
    """

    def __new__(cls, connection: object, /) -> Statements: ...
    @property
    def is_begun(self) -> bool:
        """Whether a transaction is open; False after `close`."""

    def commit(self) -> bool:
        """Commits; returns whether the path still leads to the file that was opened."""

    def catalog_version(self) -> int:
        """Returns the version of the objects in the database."""

    def forget_rollbacks(self, queue_id: int, /) -> None:
        """Resets the count of consecutive rollbacks of a queue."""

    def keep_number(self, number: int, /) -> None:
        """Keeps the number of a deleted message from being reused, by a row of no queue if it was the last."""

    def waiting(
        self, wanted: list[tuple[bytes, bool, int, int, int, int, int, bytes]], /
    ) -> tuple[list[pa.RecordBatch], list[int]]:
        """Reads messages of transmission queues that are to be sent to other instances.

        Args:
            wanted: For each endpoint: conversation, whether it is the initiator's, first and last sequence number, maximum number of messages, number of
                body bytes after which reading stops, maximum size of a body that is read, and id of the first message. A longer message is returned
                without its body, as the last one.

        Returns:
            The messages, with the columns of `protocol.storage.MESSAGES`, in the order of the endpoints and sequence numbers; and the number of messages
            of each endpoint.
        """

    def enqueue(
        self, rows: ArrowStreamExportable, runs: list[tuple[int, int, tuple[int, int, int, int, int]]], /
    ) -> None:
        """Inserts messages that are next in their conversations into queues that are on.

        Args:
            rows: Bodies, in the column `message_body`.
            runs: For each run: first row, number of rows, and queue, priority, receiving endpoint, message type and first sequence number; the following
                rows have the following sequence numbers.

        Raises:
            SchemaError: The column is missing or has the wrong type.
            NullError: A body is null.
            IndexError: A run exceeds the rows; nothing was inserted.
        """

    def insert_queued(self, rows: Sequence[tuple[int, int, int, int, int, int, int, bytes | None]], /) -> None:
        """Adds messages to queues.

        Args:
            rows: Queue, status, priority, endpoint, precedence, sequence number, message type, body.
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
        picture: Picture,
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
    ) -> pa.RecordBatch | None:
        """Receives messages from a queue within a transaction; returns None if there are none.

        Args:
            picture: Snapshot of the database.
            schema: `schemas.RECEIVED`.
            queue_id: The queue.
            top: Maximum number of messages; None means all.
            groups: Maximum number of conversation groups; None means all.
            bytes_max: Number of body bytes after which no more messages are received.
            endpoint_id: The only conversation endpoint to receive for; it must belong to the queue.
            group: The only conversation group to receive for.
            is_retained: Whether the messages remain in the queue.

        Raises:
            LookupError: The group has no conversation of this queue.
        """

    def close(self) -> None:
        """Finalizes the statements, so that the connection can be closed."""

@disjoint_base
class Gate:
    """A lock that threads get in the order of their requests, with the connection that is passed on with it; no method blocks."""

    def __new__(cls) -> Self: ...
    @property
    def holder(self) -> int | None:
        """Thread that holds the lock."""

    @property
    def waiting(self) -> int:
        """Number of waiting threads."""

    def acquire_free(self, holder: int, /) -> bool:
        """Acquires the lock if it is free; returns whether it was."""

    def stand_in_line(self, turn: object, holder: int, /) -> bool:
        """Acquires the lock, or joins the queue for it; returns whether it was acquired.

        Args:
            turn: A locked `threading.Lock`, which is released when the lock is handed over.
            holder: The thread.
        """

    def stands_in_line(self, holder: int, /) -> bool:
        """Whether a thread waits for the lock."""

    def had_turn(self, turn: object, /) -> bool:
        """Whether the lock was handed over; otherwise leaves the queue."""

    def release(self) -> None:
        """Hands the lock to the thread that has waited longest."""

    def keep(self, connection: object, /) -> bool:
        """Has a connection go with the lock from now on; returns whether the lock had none."""

    def take_kept(self) -> Any:
        """Removes and returns the kept connection; None if there is none or the holder uses it."""

    def lent(self) -> tuple[Any, int | None] | None:
        """Returns the connection that the holder of the lock uses, and the holder; None if there is none."""

    def pause(self, is_paused: bool, /) -> None:
        """Suspends the fast path, while the process forks."""

    def close(self) -> None:
        """Disables the fast path; a returned connection is closed."""

    def inherit(self) -> None:
        """Abandons, in a forked child, the transactions of the parent."""

    def fail(self, is_failing: bool, /) -> None:
        """Records whether the last commit failed on the disk."""

    def know(self, version: int, picture: Picture, /) -> None:
        """Sets the snapshot of the objects for transactions at that version."""

@disjoint_base
class Counts:
    """Counts what the fast-path transactions of an instance have done."""

    def __new__(cls) -> Self: ...
    def watch(self, is_watched: bool, /) -> None:
        """Sets whether each transaction is reported to Python."""

    def take(self) -> tuple[int, int, dict[tuple[bool, int], int]]:
        """Returns and resets the counts.

        Returns:
            Messages sent, RECEIVE statements, and messages put into queues, by whether the receiver was ever reached over the network and by its priority.
        """

@disjoint_base
class Arrivals:
    """Counts notifications of the queues of a database; calls `wake` if a thread waits."""

    def __new__(cls) -> Self: ...
    @property
    def told(self) -> int:
        """Number of notifications so far."""

    def count(self, queue_id: int, /) -> int:
        """Returns the number of notifications of a queue so far."""

    def note(self, queue_ids: list[int], /) -> bool:
        """Counts a notification of queues; returns whether a thread waits."""

    def are_waiting(self, number: int, /) -> None:
        """Changes the number of waiting threads by `number`."""

@final
class SessionContext:
    """What the transactions of one database file share.

    Args:
        gate: The write lock.
        announcer: Counts commits and wakes receivers without Python: the counters of the instance, the waiters of the database, and the queue
            whose messages the instance itself reads. None announces nothing.
    """

    def __new__(cls, gate: Gate, announcer: tuple[Counts, Arrivals, int] | None = None, /) -> SessionContext: ...

@disjoint_base
class Session:
    """One transaction of a database file, with the fast path of SEND, RECEIVE and commit. Not for several threads at once."""

    def __new__(cls, context: SessionContext, thread: int, /, *args: object) -> Self: ...
    def open(self) -> bool:
        """Enters the block of the transaction, and returns whether that was not done before. Nothing is locked yet."""

    @property
    def is_open(self) -> bool:
        """Whether the block was entered and not left."""

    @property
    def is_begun(self) -> bool:
        """Whether the transaction has begun: it holds the write lock."""

    @property
    def connection(self) -> Any:
        """The connection of the begun transaction; None if it has not begun."""

    @property
    def has_changed(self) -> bool:
        """Whether rows have changed since the transaction began."""

    def send(self, handle: bytes, body: bytes, message_type_name: str, now: int | None, /) -> bool:
        """Sends a message on the fast path, and returns whether it was sent; otherwise nothing was done.

        Args:
            handle: Handle of the conversation.
            body: The message.
            message_type_name: Its type.
            now: The time in microseconds since 1970; None is that of the system's clock.
        """

    def send_batch(self, batches: list[Any], message_type_name: str, now: int | None, /) -> bool:
        """Sends messages on the fast path, and returns whether they were sent; otherwise nothing was done.

        Args:
            batches: Record batches with the columns of `Transaction.send_batch`.
            message_type_name: The type of messages that name none.
            now: The time in microseconds since 1970; None is that of the system's clock.
        """

    def receive(
        self, schema: pa.Schema, queue: str, top: int | None, groups: int | None, bytes_max: int, /
    ) -> pa.RecordBatch | None:
        """Receives messages on the fast path, as `Statements.receive` does; None if there are none, or the fast path cannot be taken."""

    def receive_one(
        self, queue: str, /
    ) -> tuple[bytes | None, bytes, bytes, bytes, bool, int, str, str, str, int, int, str] | None:
        """Receives one message on the fast path; None if there is none, or the fast path cannot be taken.

        Returns:
            Body, handle, group, conversation, whether the initiator sent it, sequence number, type, service, contract, priority, queuing order, validation.
        """

    def begin_fast(self) -> Any:
        """Begins, if nobody has to be waited for, and shares the connection with Python; None if it has not begun."""

    def adopt(self, connection: object, /) -> None:
        """Takes over a transaction that Python has begun on a connection, which goes with the lock from now on."""

    def take_done(self) -> tuple[int, list[Any], list[tuple[int, bool]]]:
        """Returns what was done on the fast path since the last call."""

    def commit_fast(self) -> tuple[bool, tuple[bool, tuple[int, list[Any], list[tuple[int, bool]]]] | None]:
        """Commits and leaves the block, unless the connection is shared with Python.

        Returns:
            Whether that is done; and if Python has to announce it, whether anything was changed, and what was done.

        Raises:
            FileNotFoundError: It has committed to a file that is no longer at its path.
        """

    def give_back(self) -> bool:
        """Releases the lock together with the connection, of which nothing is open; returns whether the lock had no connection yet."""

    def leave(self) -> Any:
        """Leaves the connection to Python; the lock is still held."""

    def end(self) -> None:
        """Leaves the block."""

def gathering(below: str | None, /) -> str | None:
    """Registers an SQLite virtual file system, on top of `below` (None means the default), that writes each commit to the log in one piece; returns its name, or None."""

def crc32c(data: bytes | memoryview, before: int, /) -> int:
    """Returns the CRC-32C of bytes appended to others with the CRC `before`; a view must be read-only, and its memory must not change meanwhile."""

def decode_fragments(body: bytes | memoryview, /) -> pa.RecordBatch:
    """Decodes the body of a frame to rows in the wire schema; raises MalformedDataError if it is invalid.

    Args:
        body: The body; a view must be read-only, and its memory must not change meanwhile.
    """

def header_digests(rows: ArrowStreamExportable, /) -> pa.FixedSizeBinaryArray:
    """Returns the MD5 digest of each row's header: of all columns but the body, which only broker errors, having no number, include.

    Args:
        rows: Rows of `protocol.envelope.ENVELOPE`.

    Raises:
        SchemaError: A column is missing or has the wrong type.
    """

def plain_runs(
    rows: ArrowStreamExportable, /
) -> tuple[
    list[tuple[bytes, bool, bytes | None, bytes | None, list[str], int, int, int, int]],
    pa.Int32Array,
]:
    """Finds the runs of complete messages that the fast path can receive.

    A run is everything from one side of a conversation: complete messages of one type with consecutive numbers, between the same services and brokers,
    that end nothing, acknowledge nothing, and whose signatures match.

    Args:
        rows: Rows of `protocol.envelope.ENVELOPE`.

    Returns:
        The runs in the order of their first rows: conversation, whether the initiator sent it, broker id of the sender, broker id of the receiver,
        [sending service, receiving service, contract, message type], first number, number of messages, total body bytes, maximum body bytes; and the
        index of the run of each row, -1 for none.

    Raises:
        SchemaError: A column is missing or has the wrong type.
    """

def waiting_runs(messages: ArrowStreamExportable, /) -> list[tuple[bytes, bool, int, list[int]]] | None:
    """Groups messages that wait to be sent into runs of consecutive numbers.

    Args:
        messages: Rows of `protocol.storage.MESSAGES`.

    Returns:
        The runs in order: conversation, whether the initiator sends it, first number, and the size of each body. None if a message was not read or is
        an application error, or if a sender has more than one run.

    Raises:
        SchemaError: A column is missing or has the wrong type.
    """

def departures(
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
    """Creates the rows in which complete messages of fast-path conversations are sent to another instance.

    Args:
        messages: Rows of `protocol.storage.MESSAGES`.
        senders: For each of their `waiting_runs`: number of messages, number of messages to send, [sending service, receiving service, contract], broker
            id of the sender, broker id of the receiver, priority, end of the conversation in microseconds since 1970, and the acknowledgement that the
            first message carries.

    Returns:
        Rows of `protocol.envelope.ENVELOPE`, with digests.

    Raises:
        SchemaError: A column is missing or has the wrong type.
        MalformedDataError: There are fewer messages.
    """

def sender_runs(rows: ArrowStreamExportable, /) -> tuple[list[tuple[bytes, bool, bytes | None, int]], bool]:
    """Groups consecutive rows by sender.

    Args:
        rows: Rows of `protocol.envelope.ENVELOPE`.

    Returns:
        The senders in order: conversation, whether the initiator sends, broker id of the receiver, number of rows; and whether no row is encrypted.

    Raises:
        SchemaError: A column is missing or has the wrong type.
    """

def first_hop(rows: ArrowStreamExportable, now: int, /) -> pa.RecordBatch:
    """Returns hops left, seconds left and seconds passed of each row, for its first hop.

    Args:
        rows: Rows of `protocol.envelope.ENVELOPE`.
        now: Time from which the time to live counts, in microseconds since 1970.

    Raises:
        SchemaError: A column is missing or has the wrong type.
    """

def normalize_address(text: str, /) -> str:
    """Returns an address in normal form; raises InvalidAddressError if it is invalid."""

def parse_guid(text: str, /) -> bytes:
    """Returns the 16 bytes of a GUID, in the order of `uuid.UUID.bytes`; raises InvalidGuidError if the text is invalid."""
