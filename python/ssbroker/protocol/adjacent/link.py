"""One end of a connection: bytes in, what they come to out, and the other way round (N4 to N11)."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from ssbroker.protocol.adjacent.occurrences import Far, Occurrence, Own, Reason, Role
from ssbroker.protocol.retry import SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long a link waits, and for how much.

    Attributes:
        hello_bytes: The longest body of a frame until the far side has said HELLO.
        hello_wait: How long HELLO may take, from when the link is made.
        ping_after: How long nothing may come, while something is unanswered, before PING.
        silence: How long nothing may come, while something is unanswered, before the far side counts as gone.
        idle: How long a connection may carry nothing before it is closed.
        goodbye_wait: How long GOODBYE may take to go, and to be answered.
    """

    hello_bytes: int = 4 << 10
    hello_wait: int = 10 * SECOND
    ping_after: int = 10 * SECOND
    silence: int = 20 * SECOND
    idle: int = 30 * SECOND
    goodbye_wait: int = 5 * SECOND


class Link:
    """One end of a connection.

    Args:
        own: What this side says in HELLO.
        is_accept: Whether the far side dialled.
        limits: How long it waits.
        now: The moment.
    """

    def __init__(self, own: Own, *, is_accept: bool, limits: Limits, now: int) -> None:
        raise NotImplementedError

    def received(self, data: bytes, *, now: int) -> list[Occurrence]:
        """Takes bytes from the far side.

        Raises:
            PeerError: They are no frames, or such that may not come now. What was whole before them is in `taken_before` of the error;
                the link is over once what `data_to_send` still gives (GOODBYE) is written.
            ProtocolError: The link is over.
        """
        raise NotImplementedError

    def send(self, rows: pa.Table) -> None:
        """Keeps rows of `batch.WIRE` until they can go; after `leave`, or once the far side has left, a ProtocolError."""
        raise NotImplementedError

    def ask_role(self, broker_instance: bytes) -> None:
        """Asks what the database with a broker id is."""
        raise NotImplementedError

    def tell_role(self, broker_instance: bytes, role: Role, number: int) -> None:
        """Answers that."""
        raise NotImplementedError

    def leave(self, reason: Reason, text: str = "") -> None:
        """Says GOODBYE behind what is still to go; more than once is as once."""
        raise NotImplementedError

    def data_to_send(self, *, now: int) -> bytes | None:
        """The next piece that is to be written, a little over 1 MiB at most; None: nothing for now."""
        raise NotImplementedError

    def next_timeout(self) -> int | None:
        """The moment at which `handle_timeout` has something to do."""
        raise NotImplementedError

    def handle_timeout(self, *, now: int) -> list[Occurrence]:
        """Does what is due: a PING, GOODBYE to an idle connection, `Left` with SILENT; nothing where it is too early."""
        raise NotImplementedError

    @property
    def far(self) -> Far | None:
        """What the far side has said of itself."""
        raise NotImplementedError

    @property
    def waiting_bytes(self) -> int:
        """About what rows that `data_to_send` has not given yet take."""
        raise NotImplementedError

    @property
    def is_leaving(self) -> bool:
        """Whether either side has said GOODBYE: nothing can be sent any more."""
        raise NotImplementedError

    @property
    def is_over(self) -> bool:
        """Whether nothing comes and nothing goes any more: close the socket."""
        raise NotImplementedError
