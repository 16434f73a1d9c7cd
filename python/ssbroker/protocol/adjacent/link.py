"""One end of a connection: bytes in, what they come to out, and the other way round (N4 to N12)."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from ssbroker.exceptions import PeerError, ProtocolError
from ssbroker.protocol.adjacent import batch, goodbye, hello
from ssbroker.protocol.adjacent.frames import Data, Frames, Kind, framed, headed
from ssbroker.protocol.adjacent.goodbye import Reason
from ssbroker.protocol.adjacent.hello import Far, Own
from ssbroker.protocol.adjacent.limits import Limits
from ssbroker.protocol.adjacent.occurrences import Batch, Greeted, Left, Occurrence
from ssbroker.protocol.adjacent.outbox import FIRST_BYTES, Outbox
from ssbroker.protocol.adjacent.patience import Due, Patience
from ssbroker.protocol.adjacent.phases import TABLE, Input, Phase
from ssbroker.protocol.adjacent.questions import Questions
from ssbroker.protocol.mirroring import MirroringRole

_INPUTS: Final = {Kind.HELLO: Input.HELLO, Kind.GOODBYE: Input.GOODBYE}


class Link:
    """One end of a connection.

    Args:
        own: What this side says in HELLO.
        is_accept: Whether the far side dialled.
        limits: How long it waits, and for how much.
        now: The moment, in microseconds.

    Attributes:
        is_accept: Whether the far side dialled.
        far: What the far side has said of itself; None until its HELLO has come.

    Examples:
        >>> shop = Link(Own(instance_id=b"s" * 16, name="shop", number=1), is_accept=False, limits=Limits(), now=0)
        >>> bank = Link(Own(instance_id=b"b" * 16, name="bank", number=2), is_accept=True, limits=Limits(), now=0)
        >>> [greeted] = bank.received(b"".join(shop.data_to_send(now=0)), now=0)
        >>> greeted.far.name
        'shop'
    """

    __slots__ = (
        "_frames",
        "_goodbye",
        "_hello",
        "_outbox",
        "_own",
        "_patience",
        "_phase",
        "_ping",
        "_pong",
        "_questions",
        "far",
        "is_accept",
    )

    def __init__(self, own: Own, *, is_accept: bool, limits: Limits, now: int) -> None:
        self.is_accept = is_accept
        self.far: Far | None = None
        self._own = own
        self._phase = Phase.GREETING
        self._patience = Patience(limits, now)
        self._frames = Frames(body_max=limits.hello_bytes)
        self._outbox = Outbox(first_bytes=FIRST_BYTES)
        self._questions = Questions()
        self._ping = self._pong = False
        self._hello: bytes | None = framed(Kind.HELLO, hello.packed(own))
        self._goodbye: bytes | None = None

    def received(self, data: Data, *, now: int) -> list[Occurrence]:
        """Takes bytes from the far side; once the link is over, what still comes is ignored.

        Args:
            data: The bytes, in pieces of any size.
            now: The moment.

        Returns:
            What they come to.

        Raises:
            PeerError: They break the protocol. The link is over, but for a GOODBYE that says why, where the far side had said HELLO.
        """
        if self._phase is Phase.OVER:
            return []
        self._patience.heard(now)
        self._frames.feed(data)
        occurrences: list[Occurrence] = []
        try:
            while (frame := self._frames.next()) is not None:
                if (occurrence := self._took(*frame, now)) is not None:
                    occurrences.append(occurrence)
        except PeerError as error:
            self._end()
            if self.far is not None:
                self._goodbye = framed(Kind.GOODBYE, goodbye.packed(Reason.BROKEN, str(error)))
            raise
        return occurrences

    def send(self, rows: pa.Table) -> None:
        """Keeps rows until they can go.

        Args:
            rows: Rows of `batch.WIRE`, in their order.

        Raises:
            ProtocolError: They are no such rows, or the link leaves; nothing is kept.
        """
        self._may_send()
        self._outbox.put(rows)

    def ask_role(self, broker_instance: bytes) -> None:
        """Asks what a database of a mirrored pair is.

        Args:
            broker_instance: Its broker id.

        Raises:
            ProtocolError: It is no broker id, or the link leaves.
        """
        self._may_send()
        self._questions.ask(broker_instance)

    def tell_role(self, broker_instance: bytes, role: MirroringRole, number: int) -> None:
        """Answers that; who leaves answers nothing.

        Args:
            broker_instance: The database's broker id.
            role: What it is.
            number: The role's number.

        Raises:
            ProtocolError: They are no such things, or nobody has asked.
        """
        if not self.is_leaving:
            self._questions.tell(broker_instance, role, number)

    def leave(self, reason: Reason, text: str = "", *, now: int) -> None:
        """Says GOODBYE behind what is still to go; more than once is as once.

        Args:
            reason: Why.
            text: The same for people.
            now: The moment.

        Raises:
            ProtocolError: Nobody can be told that it is silent.
        """
        if reason is Reason.SILENT:
            raise ProtocolError("GOODBYE: expected a reason that the far side can be told; got SILENT")
        if self._phase in (Phase.GREETING, Phase.OPEN):
            self._goodbye = framed(Kind.GOODBYE, goodbye.packed(reason, text))
            self._patience.leaves(now)
        if self._phase is Phase.GREETING:
            self._outbox.clear()
            self._questions.clear()
        self._phase = TABLE[self._phase][Input.LEAVE]

    def data_to_send(self, *, now: int) -> list[Data]:
        """What is to be written next: small frames, and one of rows.

        Args:
            now: The moment.

        Returns:
            Whole frames, a little over 1 MiB at most, in pieces that go one behind the other; none: nothing for now.
        """
        parts: list[Data] = [] if self._hello is None else [self._hello]
        self._hello = None
        if self._phase not in (Phase.GREETING, Phase.OVER):
            parts += self._small(now)
            rows = self._outbox.take()
            if rows is not None:
                parts += headed(Kind.FRAGMENTS, rows)
                self._patience.carried(now)
                self._patience.asked(now)
        if self._goodbye is not None and not self._outbox.bytes:
            parts.append(self._goodbye)
            self._goodbye = None
            self._patience.moved(now)
            self._phase = TABLE[self._phase][Input.WRITTEN]
        return parts

    def next_timeout(self) -> int | None:
        """The moment at which `handle_timeout` has something to do; None: never, if nothing else happens."""
        return None if (due := self._due()) is None else due[0]

    def handle_timeout(self, *, now: int) -> list[Occurrence]:
        """Does what is due, and nothing where it is too early.

        Args:
            now: The moment.

        Returns:
            `Left` with SILENT where what was waited for has not come. That an idle link leaves, `is_leaving` tells.
        """
        due = self._due()
        if due is None or due[0] > now:
            return []
        if due[1] is Due.END:
            left, has_left = Left(Reason.SILENT, self._patience.missed(self._phase)), self._phase is Phase.LEFT
            self._end()
            return [] if has_left else [left]
        if due[1] is Due.IDLE:
            self.leave(Reason.IDLE, "nothing to carry", now=now)
        elif due[1] is Due.PING:
            self._ping = True
            self._patience.pinged(now)
        else:
            self._pong = True
            self._patience.signed(now)
        return []

    def probe(self, *, now: int) -> None:
        """Asks at once whether anybody is there, as where the far side dials anew although this link seems whole (N9)."""
        if self._phase is Phase.OPEN:
            self._ping = True
            self._patience.probed(now)

    def pause(self, *, now: int) -> None:
        """From now on nothing is read (N12): signs of life go from time to time, none is expected."""
        self._patience.paused(now)

    def resume(self, *, now: int) -> None:
        """It is read again."""
        self._patience.resumed(now)

    @property
    def waiting(self) -> tuple[int, int]:
        """How many rows `data_to_send` has not given yet, and about how many bytes they take."""
        return self._outbox.rows, self._outbox.bytes

    @property
    def is_leaving(self) -> bool:
        """Whether one of the sides has left or will, so that no rows are taken any more."""
        return self._phase not in (Phase.GREETING, Phase.OPEN)

    @property
    def is_over(self) -> bool:
        """Whether nothing comes and nothing goes any more: the socket can be closed."""
        return self._phase is Phase.OVER and self._hello is None and self._goodbye is None

    def _due(self) -> tuple[int, Due] | None:
        return self._patience.next(self._phase, is_waiting=bool(self._outbox.bytes))

    def _may_send(self) -> None:
        if self.is_leaving:
            raise ProtocolError(f"expected a link that is GREETING or OPEN; it is {self._phase}")

    def _took(self, kind: Kind, body: bytes, now: int) -> Occurrence | None:
        phase = TABLE[self._phase].get(_INPUTS.get(kind, Input.FRAME))
        if phase is None:
            raise PeerError(f"{kind.name}: it may not come while the connection is {self._phase}")
        self._phase = phase
        if kind is Kind.HELLO:
            return self._greeted(hello.unpacked(body), now)
        if kind in (Kind.PING, Kind.PONG):
            self._pong |= kind is Kind.PING
            return None
        self._patience.carried(now)
        if kind is Kind.FRAGMENTS:
            return Batch(batch.unpacked(body), len(body))
        if kind is Kind.ROLE_ASKED:
            return self._questions.was_asked(body)
        if kind is Kind.ROLE_TOLD:
            return self._questions.was_told(body)
        reason, text = goodbye.unpacked(body)
        self._patience.leaves(now)
        if self._goodbye is None and self._phase is Phase.LEFT:
            self._goodbye = framed(Kind.GOODBYE, goodbye.packed(reason, ""))
        return Left(reason, text)

    def _greeted(self, far: Far, now: int) -> Greeted:
        self.far = far
        self._frames.body_max = self._own.max_frame_bytes
        self._patience.carried(now)
        is_self = far.instance_id == self._own.instance_id
        if is_self:
            self.leave(Reason.ITSELF, "the instance has dialled itself", now=now)
        return Greeted(far, is_self)

    def _small(self, now: int) -> list[bytes]:
        """All that is to go but rows; it goes before them."""
        parts = [framed(kind) for kind, is_due in ((Kind.PONG, self._pong), (Kind.PING, self._ping)) if is_due]
        self._ping = self._pong = False
        for kind, body in self._questions.take():
            parts.append(framed(kind, body))
            self._patience.carried(now)
            if kind is Kind.ROLE_ASKED:
                self._patience.asked(now)
        return parts

    def _end(self) -> None:
        self._outbox.clear()
        self._questions.clear()
        self._hello = self._goodbye = None
        self._phase = TABLE[self._phase][Input.END]
