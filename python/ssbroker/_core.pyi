"""The native module: Arrow in and out, the GIL released for the whole of a batch. The façades of `ssbroker` wrap it."""

from collections.abc import Sequence
from typing import Any, Final, Literal, Protocol, Self, final

import pyarrow as pa
from typing_extensions import disjoint_base

class ArrowArrayExportable(Protocol):
    """Anything that gives one record batch by the Arrow PyCapsule protocol."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...

class ArrowStreamExportable(Protocol):
    """Anything that gives a stream of record batches by the Arrow PyCapsule protocol."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...

__version__: Final[str]
build_profile: Final[Literal["release", "debug"]]

@final
class Catalog:
    """The rows of a catalog, checked and numbered; immutable.

    Args:
        routes: The rows of `sys.routes`, a stream of record batches in the contract's columns.
        databases: The rows of `sys.databases`.
        services: The rows of `sys.services`.
        addresses: The instance's own addresses (R41).
        message_forwarding: Whether forwarding is on (R25).
        pending_requests: The services for which a request to the dynamic routing service is pending (R14).

    Raises:
        SchemaError: A column is missing or mistyped.
        InputError: A value is not what was expected; the subclass says what it is.
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
        """The routes in `schemas.ROUTES`, in the order of the input, with every database and route id filled in (K23)."""

    def databases(self) -> pa.RecordBatch:
        """The databases in `schemas.DATABASES`: those given, those that only routes name, and `msdb`."""

    def services(self) -> pa.RecordBatch:
        """The services in `schemas.SERVICES`, in the order of the input."""

    def places(self) -> tuple[list[str], list[str]] | None:
        """The addresses and the databases where conversations can go, in the order of the numbers that `Router.verdicts` gives them.

        None where a next hop can stand in a service's name (R23), a route has a mirror, or there are more than 65,536 of them.
        """

    @property
    def addresses(self) -> list[str]:
        """The instance's own addresses in their normal form (K1)."""

    @property
    def message_forwarding(self) -> bool:
        """Whether forwarding is on."""

    @property
    def pending_requests(self) -> list[str]:
        """The services for which a request is pending."""

    @property
    def user_database(self) -> str | None:
        """The one user database, None where there are several or none."""

@final
class Router:
    """A catalog, compiled: immutable, and used by many threads at once.

    Args:
        catalog: What is compiled.
        tie_break: How one of several equal candidates is picked (R24).
        pending_request: What step 4 does while a request for the service is pending (R14).

    Raises:
        OptionError: An option is not one of those allowed.
    """

    def __new__(cls, catalog: Catalog, /, *, tie_break: str, pending_request: str) -> Router: ...
    def route(self, conversations: ArrowArrayExportable, now_us: int, first_row: int, /) -> pa.RecordBatch:
        """Decides every conversation of a batch.

        Args:
            conversations: One record batch in the contract's columns.
            now_us: The moment of the decision, in microseconds since 1970.
            first_row: The place of the batch's first row in the whole input, for errors.

        Returns:
            The decisions in `schemas.DECISIONS`, one row for each conversation, in the same order.
        """

    def verdicts(self, conversations: ArrowArrayExportable, now_us: int, tells_named: bool, /) -> pa.RecordBatch | None:
        """Decides every conversation of a batch, and says of each what it can in one number.

        Args:
            conversations: As for `route`.
            now_us: As for `route`.
            tells_named: Whether the broker ids that conversations name come back too.

        Returns:
            `verdict` (int64): from the lowest bit the step (4 bits, 15 for none), the reason (4), the outcome (3), the number of the place
            (20; 0 for none, 1 for the first address, databases after the addresses), whether there is no route (1), the route's id (32).
            `broker_instance` (binary): the id that binds the conversation; null where it is the one that it names, unless `tells_named`.
            None where `Catalog.places` has no numbers.
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
        """Decides one conversation, takes nobody's turn, and tells the whole way as plain values."""

    @property
    def nbytes(self) -> int:
        """The bytes that the index holds beside the catalog."""

@final
class Reassembler:
    """Fragments that are put together; threads take turns.

    Args:
        max_pending_bytes: What may be charged for all that is remembered, None for no limit.
        max_pending_messages: How many messages may be incomplete or held.
        max_message_bytes: The bytes of a message.
        max_fragments_per_message: The fragments of a message.
        max_sequence_distance: How far ahead of the first message that is not whole a fragment may be.
        in_order: Whether a message waits for those before it.
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
        """Goes on from a checkpoint.

        Raises:
            MalformedDataError: The state is cut off, altered, of another version, or contradicts itself.
        """

    def push(
        self, fragments: Sequence[ArrowArrayExportable], session_keys: str | SessionKeys | None, /
    ) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch], list[pa.RecordBatch]]:
        """Takes the fragments of some batches in as one push.

        Args:
            fragments: Record batches in the contract's columns, at least one.
            session_keys: Keys by conversation, or the name of the column that has them.

        Returns:
            Messages, rejected fragments and acknowledgements, each in at least one batch.

        Raises:
            SchemaError: A column is missing or mistyped, or the further columns are not those of the first push.
            InputError: A value is not what was expected; the subclass says what it is.
        """

    def pending(self) -> list[pa.RecordBatch]:
        """The messages that are incomplete or held, in `schemas.PENDING` (M22)."""

    @property
    def pending_bytes(self) -> int:
        """What is charged for all that is remembered (M18)."""

    @property
    def pending_messages(self) -> int:
        """How many messages are incomplete or held."""

    def forget(self, conversation_id: bytes, is_initiator: bool, message_sequence_number: int, /) -> bool:
        """Drops an incomplete or held message (M24); whether there was one."""

    def checkpoint(self) -> bytes:
        """All that is remembered (M23)."""

@final
class SessionKeys:
    """Session keys by conversation, made ready once; immutable.

    Args:
        keys: Pairs of the 16 bytes of a conversation id and its key.

    Raises:
        OptionError: A key is not 16, 24 or 32 bytes long.
    """

    def __new__(cls, keys: Sequence[tuple[bytes, bytes]], /) -> SessionKeys: ...

def md5(values: ArrowArrayExportable, first_row: int, /) -> pa.FixedSizeBinaryArray:
    """The digest of every value of an array of bytes or text; null stays null.

    Args:
        values: One array.
        first_row: The place of its first value in the whole input, for errors.

    Raises:
        SchemaError: The array holds something else.
        MalformedDataError: A value cannot be read.
    """

def fragment(
    messages: ArrowArrayExportable,
    first_row: int,
    max_fragment_bytes: int,
    session_keys: str | SessionKeys | None,
    /,
) -> list[pa.RecordBatch]:
    """Cuts the messages of a batch into signed fragments.

    Args:
        messages: One record batch in the contract's columns.
        first_row: The place of the batch's first row in the whole input, for errors.
        max_fragment_bytes: The most bytes of a part.
        session_keys: Keys by conversation, or the name of the column that has them.

    Returns:
        The fragments in `schemas.FRAGMENTS` and the further columns, in one batch or several.

    Raises:
        SchemaError: A column is missing or mistyped.
        InputError: A value is not what was expected; the subclass says what it is.
    """

@final
class Picture:
    """What stands in a database, as far as it decides about messages; immutable.

    Args:
        broker_instance: The database's own broker id.
        is_delivering: Whether the database sends and takes messages.
        queues: Of each queue its id, whether it may be received from, whether messages enter it, whether they stay in it, and its name, where
            that needs no schema.
        services: Of each service its id, its name and the id of its queue.
        contracts: Of each contract its id, its name, and of each message type its id and whether the initiator and the target may send it.
        message_types: Of each message type its id, its name and its validation (`N`, `E` or `X`).
        staying: The services that no route leads away from (B10).
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
    """What happens for every message, on a connection of apsw's (an error of SQLite is one of apsw's). Used by one thread after the other.

    Args:
        connection: The connection, which keeps these: SQLite closes none while one is left.
    """

    def __new__(cls, connection: object, /) -> Statements: ...
    @property
    def is_begun(self) -> bool:
        """Whether a transaction is begun; there is none once these are closed."""

    def commit(self) -> bool:
        """Makes the transaction durable and visible.

        Returns:
            Whether the file still stands where it was opened: elsewhere, nobody finds what was committed.
        """

    def catalog_version(self) -> int:
        """The version of what stands in the database."""

    def forget_rollbacks(self, queue_id: int, /) -> None:
        """Has a queue count anew how often in a row those who received from it were rolled back (B24)."""

    def send(
        self, picture: Picture, handle: bytes, body: bytes, message_type_name: str, now: int, /
    ) -> tuple[int | None, int, bool] | None:
        """Sends a message where that is plain, within a transaction.

        Returns:
            The queue that it is in, the priority of who receives it, and whether that one was ever reached over the network; or None, the
            sender's endpoint, and False, where it waits. None where it is not plain, and nothing was done.
        """

    def send_batch(
        self, picture: Picture, batches: list[pa.RecordBatch], message_type_name: str, now: int, /
    ) -> list[tuple[tuple[int | None, int, bool], int]] | None:
        """Sends the messages of record batches where that is plain for all of them.

        Args:
            picture: What stands in the database.
            batches: With the columns that `Transaction.send_batch` takes.
            message_type_name: The type of those that name none.
            now: The moment, in microseconds since 1970.

        Returns:
            For each conversation what `send` returns, and how many messages; None where anything is not plain, and nothing was done.
        """

    def keep_number(self, number: int, /) -> None:
        """Has a number of a queue not be given again whose message was removed (U22): where it was the last, a row with it stays, of no queue."""

    def waiting(
        self, wanted: list[tuple[bytes, bool, int, int, int, int, int, bytes]], /
    ) -> tuple[list[pa.RecordBatch], list[int]]:
        """Messages of transmission queues that are to be sent to other instances.

        Args:
            wanted: For each endpoint its conversation, whether it is the initiator's, the first and the last number, how many messages at most,
                after how many bytes of bodies no further one is read, the longest body that is read, and the id of the first message. A message
                that is longer is read without its body, and none after it.

        Returns:
            The messages, with the columns of `protocol.ledger.MESSAGES`, in the order of the endpoints and of their numbers; and how many there are
            of each endpoint.
        """

    def enqueue(
        self, rows: ArrowStreamExportable, runs: list[tuple[int, int, tuple[int, int, int, int, int]]], /
    ) -> None:
        """Puts messages into queues that are on, those whose turn it is in their conversations.

        Args:
            rows: Their bodies, in the column `message_body`.
            runs: From which row on, how many, and where they go: queue, priority, the endpoint that receives them, their type, and the number of
                the first; each has the number behind that of the one before.

        Raises:
            SchemaError: There is no such column, or it holds something else.
            NullError: A body is null.
            IndexError: A run is beyond the rows; nothing was done.
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
        """Takes messages out of a queue, within a transaction.

        Args:
            picture: What stands in the database.
            schema: `schemas.RECEIVED`.
            queue_id: The queue.
            top: The most messages; None is all.
            groups: The most conversation groups; None is all.
            bytes_max: After so many bytes of bodies no further message is taken.
            endpoint_id: The only conversation to take from, which is of this queue.
            group: The only conversation group to take from.
            is_retained: Whether the messages stay in the queue.

        Returns:
            The messages; None where there are none.

        Raises:
            LookupError: The group has no conversation of this queue.
        """

    def close(self) -> None:
        """Gives them up, so that the connection can be closed."""

@disjoint_base
class Gate:
    """A lock for one thread after the other, in the order of asking, and the connection that goes with it; nothing in here waits."""

    def __new__(cls) -> Self: ...
    @property
    def holder(self) -> int | None:
        """The thread that has the lock."""

    @property
    def waiting(self) -> int:
        """How many stand in line."""

    def acquire_free(self, holder: int, /) -> bool:
        """Takes the lock where nobody has it; whether it was free."""

    def stand_in_line(self, turn: object, holder: int, /) -> bool:
        """Takes the lock, or a place in the line for it.

        Args:
            turn: A `threading.Lock` that is held; it is released when the turn has come.
            holder: The thread.

        Returns:
            Whether the lock was taken.
        """

    def stands_in_line(self, holder: int, /) -> bool:
        """Whether a thread waits for the lock."""

    def had_turn(self, turn: object, /) -> bool:
        """Whether the lock was handed over; otherwise the place in the line is given up."""

    def release(self) -> None:
        """Hands the lock to whoever has waited longest."""

    def keep(self, connection: object, /) -> bool:
        """Has a connection go with the lock from now on; whether there was none, and none is to be closed."""

    def take_kept(self) -> Any:
        """The connection that goes with the lock, which has none any more; None where it has none, or who holds the lock uses it."""

    def lent(self) -> tuple[Any, int | None] | None:
        """The connection that went with the lock to who holds it, and the holder; None where there is none."""

    def pause(self, is_paused: bool, /) -> None:
        """Has nobody begin anything at once, while the process forks."""

    def close(self) -> None:
        """Has nobody begin anything at once any more; a connection that is given back is closed."""

    def inherit(self) -> None:
        """In a forked process: leaves alone what its parent has begun."""

    def fail(self, is_failing: bool, /) -> None:
        """Notes whether the disk did not take the last commit that was tried."""

    def know(self, version: int, picture: Picture, /) -> None:
        """Has transactions go by a picture of what stands in the database, where it has that version."""

@disjoint_base
class Counts:
    """What the plain transactions of an instance have done."""

    def __new__(cls) -> Self: ...
    def watch(self, is_watched: bool, /) -> None:
        """Has each transaction told in Python, for as long as somebody is to hear of it."""

    def take(self) -> tuple[int, int, dict[tuple[bool, int], int]]:
        """What was done since the last call.

        Returns:
            Messages that were sent, RECEIVE statements, and messages that were put into queues, by whether their receiver was ever reached
            over the network, and by its priority.
        """

@disjoint_base
class Arrivals:
    """How often something was told of each queue of a database. Its `wake` is called where somebody waits."""

    def __new__(cls) -> Self: ...
    @property
    def told(self) -> int:
        """How often anything was told so far."""

    def count(self, queue_id: int, /) -> int:
        """How often something was told of the queue so far; a number that only grows.

        Args:
            queue_id: The queue.
        """

    def note(self, queue_ids: list[int], /) -> bool:
        """Counts that something is told of queues; whether somebody waits."""

    def are_waiting(self, number: int, /) -> None:
        """Counts so many more, or fewer, who wait."""

@final
class Plain:
    """What the plain transactions of a database have in common.

    Args:
        gate: Whose turn it is.
        counts: What is counted for the instance.
        arrivals: Who waits for messages.
        own_queue_id: The queue whose messages the instance itself reads.
    """

    def __new__(cls, gate: Gate, counts: Counts, arrivals: Arrivals, own_queue_id: int, /) -> Plain: ...
    def session(self, thread: int, /) -> PlainSession:
        """A transaction that is not begun yet, of a thread."""

@final
class PlainSession:
    """One transaction, as far as it is plain. Not for several threads at once."""

    def open(self) -> bool:
        """Enters the transaction's block; whether that was not done before. Nothing is locked yet."""

    @property
    def is_open(self) -> bool:
        """Whether the block was entered and not left."""

    @property
    def is_begun(self) -> bool:
        """Whether it is begun here."""

    def send(self, handle: bytes, body: bytes, message_type_name: str, now: int | None, /) -> bool:
        """Sends a message; whether it was, since that is plain.

        Args:
            handle: The handle of the conversation.
            body: The message.
            message_type_name: Its type.
            now: The moment, in microseconds since 1970; None is that of the system's clock.
        """

    def receive(
        self, schema: pa.Schema, queue: str, top: int | None, groups: int | None, bytes_max: int, /
    ) -> pa.RecordBatch | None:
        """Takes messages out of a queue, as `Statements.receive`; None where there are none, or that is not plain."""

    def receive_one(
        self, queue: str, /
    ) -> tuple[bytes | None, bytes, bytes, bytes, bool, int, str, str, str, int, int, str] | None:
        """Takes one message out of a queue; None where there is none, or that is not plain.

        Returns:
            Body, handle, group, conversation, whether the initiator sent it, number, type, service, contract, priority, queuing order and
            validation.
        """

    def commit(self) -> tuple[bool, tuple[bool, tuple[int, list[Any], list[tuple[int, bool]]]] | None]:
        """Commits, and leaves the block.

        Returns:
            Whether that is done; and where others are to be told of it in Python, whether anything was changed, and what was done.

        Raises:
            FileNotFoundError: It has committed to a file that does not stand at its place any more.
        """

    @property
    def is_left(self) -> bool:
        """Whether what was begun here is another session's."""

    def leave(self, session: object, used: dict[object, int], /) -> tuple[int, list[Any], list[tuple[int, bool]]]:
        """Leaves what is begun to another session.

        Args:
            session: It gets `_connection`, and `_changes`: how many rows that had changed before.
            used: Connections in use, by the thread that uses each.

        Returns:
            What was done so far.
        """

    def end(self) -> None:
        """Leaves the block."""

def gathering(below: str | None, /) -> str | None:
    """A virtual file system of SQLite in which each commit goes to the log in one piece.

    Args:
        below: The one that it stands on, by name; None is SQLite's own.

    Returns:
        Its name; None where the one below is not known.
    """

def crc32c(data: bytes | memoryview, before: int, /) -> int:
    """The CRC-32C of bytes that come after others.

    Args:
        data: The bytes; a view cannot be one that may be written to, and nobody may write to what it shows before this returns.
        before: That of the others; 0 where there are none.
    """

def decode_fragments(body: bytes | memoryview, /) -> pa.RecordBatch:
    """The rows of the body of a frame, in the schema of the wire (N6).

    Args:
        body: What came from another instance; a view cannot be one that may be written to, and nobody may write to what it shows before this returns.

    Raises:
        MalformedDataError: It is no batch of fragments, contradicts itself, or holds a value that no instance sends.
    """

def header_digests(rows: ArrowStreamExportable, /) -> pa.FixedSizeBinaryArray:
    """What the headers of plain rows are signed with: the MD5 of all that each row says, but of the body (P21).

    Args:
        rows: Rows of `protocol.envelope.ENVELOPE`.

    Returns:
        A digest for each, of `pa.binary(16)`. An error of the broker, which has no number, has its body in it.

    Raises:
        SchemaError: A column is not there, or of another type.
    """

def plain_runs(
    rows: ArrowStreamExportable, /
) -> tuple[
    list[tuple[bytes, bool, bytes | None, bytes | None, list[str], int, int, int, int]],
    pa.Int32Array,
]:
    """Whole messages of plain conversations, in runs (B47).

    A run is all that one side of a conversation has sent, where that is whole messages, one number behind the other, that end nothing and
    acknowledge nothing, whose signatures are the digests of what they say and hold (P21), all of one type, between the same services and brokers.

    Args:
        rows: Rows of `protocol.envelope.ENVELOPE`.

    Returns:
        The runs in the order of their first rows: conversation, whether its initiator sent them, the broker that sent them, the one that they are
        for, a list of the service that sent them, the one that they are for, contract and type, the first number, how many there are, the bytes of
        their bodies, and of the longest; and of which of these runs each row is, -1 for none.

    Raises:
        SchemaError: A column is not there, or of another type.
    """

def waiting_runs(messages: ArrowStreamExportable, /) -> list[tuple[bytes, bool, int, list[int]]] | None:
    """Messages that wait to be sent, in runs of one number behind the other (B48).

    Args:
        messages: Rows of `protocol.ledger.MESSAGES`.

    Returns:
        The runs in their order: conversation, whether its initiator sends them, the number of the first, and the bytes of each one's body. None
        where one of them was not read or is an error of its application, or where a sender has more than one run.

    Raises:
        SchemaError: A column is not there, or of another type.
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
    """The rows in which whole messages of plain conversations go to another instance (B48).

    Args:
        messages: Rows of `protocol.ledger.MESSAGES`.
        senders: Of each of their `waiting_runs` how many messages it has, how many of them go, the services that they are from and for and their
            contract, the broker that they are from, the one that they are for, the priority, the end of the conversation in microseconds since
            1970, and the acknowledgement that the first of them carries.

    Returns:
        Rows of `protocol.envelope.ENVELOPE`, with the digests of what they say and hold.

    Raises:
        SchemaError: A column is not there, or of another type.
        MalformedDataError: There are not as many messages.
    """

def sender_runs(rows: ArrowStreamExportable, /) -> tuple[list[tuple[bytes, bool, bytes | None, int]], bool]:
    """Who sends rows.

    Args:
        rows: Rows of `protocol.envelope.ENVELOPE`.

    Returns:
        The senders as they follow each other: conversation, whether its initiator sends, the broker that it is for, and how many rows; and whether
        no row is secured.

    Raises:
        SchemaError: A column is not there, or of another type.
    """

def first_hop(rows: ArrowStreamExportable, now: int, /) -> pa.RecordBatch:
    """What rows are given for their first hop (N1, N21): how many hops are left, how many seconds, and how many have passed.

    Args:
        rows: Rows of `protocol.envelope.ENVELOPE`.
        now: The moment, from which the time to live counts, in microseconds since 1970.

    Raises:
        SchemaError: A column is not there, or of another type.
    """

def normalize_address(text: str, /) -> str:
    """The normal form of an address (K1).

    Raises:
        InvalidAddressError: The text is no address.
    """

def parse_guid(text: str, /) -> bytes:
    """The 16 bytes of a GUID, in the order of `uuid.UUID.bytes`.

    Raises:
        InvalidGuidError: The text is no GUID.
    """
