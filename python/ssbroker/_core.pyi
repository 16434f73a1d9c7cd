"""The native module: Arrow in and out, the GIL released for the whole of a batch. The façades of `ssbroker` wrap it."""

from collections.abc import Sequence
from typing import Any, Final, Literal, Protocol, final

import pyarrow as pa

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

def crc32c(data: bytes, before: int, /) -> int:
    """The CRC-32C of bytes that come after others.

    Args:
        data: The bytes.
        before: That of the others; 0 where there are none.
    """

def decode_fragments(body: bytes, /) -> pa.RecordBatch:
    """The rows of the body of a frame, in the schema of the wire (N6).

    Args:
        body: What came from another instance.

    Raises:
        MalformedDataError: It is no batch of fragments, contradicts itself, or holds a value that no instance sends.
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
