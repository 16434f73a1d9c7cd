"""Sends the due fragments of dialogs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ssbroker.broker.context import InstanceContext, log_failure
from ssbroker.broker.network.database_dialogs import (
    FAILED_DATABASE_RETRY_INTERVAL,
    LOCAL,
    DatabaseDialogs,
    DialogRegistry,
    NextHop,
    OutboundRows,
    UnresolvedMirror,
)
from ssbroker.exceptions import SsbrokerError
from ssbroker.protocol.settings import SECOND
from ssbroker.protocol.wire.frames import size_of

if TYPE_CHECKING:
    from ssbroker.broker.network.interfaces import NetworkEndpoint


DELAY_FACTOR_MAX: Final = 3
"""The delay is at most this many times as long as sending took, so that at least a quarter of the time is spent on sending."""
DELAY_MAX: Final = 0.015
"""The longest delay, in seconds."""
DELAY_MIN: Final = 0.001
"""The shortest delay, in seconds; a shorter delay would gather no messages."""
BATCH_ROWS: Final = 256
BATCH_BYTES: Final = 1 << 20
"""After a batch of `BATCH_ROWS` rows or this many bytes, the delay is twice as long as sending took; larger batches have longer delays."""
ARRIVING_SHARE_MIN: Final = 1 / 3
"""There is a delay only if at least this share of `BATCH_ROWS` or `BATCH_BYTES` arrives while a batch is sent; else delays gather little."""


class SendDelay:
    """Delays sending after a batch so that messages gather: the more messages there are, the fewer batches pay the fixed cost.

    The first batch after a pause is sent immediately. If fewer messages arrive than can be sent, nothing is delayed.

    Examples:
        >>> seconds = iter([2.0, 4.0, 4.0, 9.0])
        >>> delay = SendDelay(clock=lambda: next(seconds))
        >>> delay.start(2.0, rows=256, size=0)  # the batch may have gathered for long
        >>> delay.start(2.0, rows=256, size=0)  # it has arrived in these two seconds
        >>> round(delay.remaining, 3), delay.remaining
        (0.015, 0.0)
    """

    __slots__ = ("_sent_at", "_until", "clock")

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock: Final = clock
        self._until = 0.0
        self._sent_at = -math.inf

    @property
    def remaining(self) -> float:
        """The remaining delay in seconds. Safe to read from any thread."""
        return max(0.0, self._until - self.clock())

    def start(self, seconds: float, *, rows: int, size: int) -> None:
        """Starts the delay after a batch of `rows` rows (at least one) and `size` bytes that took `seconds` to send.

        The rows of the batch have arrived since the previous batch.
        """
        now = self.clock()
        arriving_for, self._sent_at = max(now - self._sent_at, seconds), now
        share = max(rows / BATCH_ROWS, size / BATCH_BYTES)
        wait = min(min(1 + share, DELAY_FACTOR_MAX) * seconds, DELAY_MAX)
        is_due = wait >= DELAY_MIN and share * seconds >= ARRIVING_SHARE_MIN * arriving_for
        self._until = now + wait if is_due else 0.0

    def cancel(self) -> None:
        """Ends the delay."""
        self._until = 0.0


BATCHES_MAX: Final = 8
"""The number of batches of one database to send before other databases get their turn."""


class OutboundSender:
    """Sends the rows that are due. For one thread at a time.

    `on_full` is called with an address whose buffer is full, and `loop_back` with rows for databases of this instance.

    Attributes:
        sent_rows: The number of rows that the last call of `send_all` sent.
        row_bytes: The mean size of the rows that were sent last.
    """

    def __init__(
        self,
        instance: InstanceContext,
        endpoint: NetworkEndpoint,
        dialogs: DialogRegistry,
        *,
        closed: set[NextHop],
        on_full: Callable[[str], None],
        loop_back: Callable[[pa.Table], object],
    ) -> None:
        self._instance: Final = instance
        self._delay: Final = SendDelay()
        self.sent_rows = self._sent_bytes = self.row_bytes = 0
        self._endpoint: Final = endpoint
        self._dialogs: Final = dialogs
        self._closed: Final = closed
        self._on_full: Final = on_full
        self._loop_back: Final = loop_back

    @property
    def is_delaying(self) -> bool:
        """Whether sending is delayed. Safe to read from any thread."""
        return self._delay.remaining > 0

    def cancel_delay(self) -> None:
        """Ends the delay, so that the next turn sends."""
        self._delay.cancel()

    def send_all(self, *, now: int) -> list[int | None]:
        """Sends the due rows of all databases, unless sending is delayed; returns when to call it again, as `send` does."""
        self.sent_rows = self._sent_bytes = 0
        if not self.is_delaying:
            started = self._delay.clock()
            due_times = [self.send(dialogs, now=now) for dialogs in self._dialogs.all()]
            if self.sent_rows:
                self.row_bytes = self._sent_bytes // self.sent_rows
            # No delay if more is waiting, or if no background thread would send it later.
            if self.sent_rows and 0 not in due_times and self._instance.background:
                took = self._delay.clock() - started
                self._delay.start(took, rows=self.sent_rows, size=self._sent_bytes)
            if not self.is_delaying:
                return due_times
        return [self._instance.microseconds() + int(self._delay.remaining * SECOND) + 1]

    def send(self, dialogs: DatabaseDialogs, *, now: int) -> int | None:
        """Sends the due rows of one database; returns when the next rows are due: 0 for immediately, None for never."""
        try:
            for _ in range(BATCHES_MAX):
                batches = dialogs.data_to_send(now=now)
                if batches is None:
                    break
                for outbound in batches:
                    self.sent_rows += outbound.rows.num_rows
                    self._sent_bytes += size_of(outbound.rows)
                    self._send(dialogs, outbound)
            return dialogs.engine.next_timeout()
        except SsbrokerError as error:
            log_failure(dialogs.database, "messages could not be sent; trying again later", error)
            return now + FAILED_DATABASE_RETRY_INTERVAL

    def open(self, next_hop: NextHop) -> None:
        """Resumes sending to a next hop."""
        self._closed.discard(next_hop)

    def retransmit(self, address: str) -> None:
        """Retransmits the rows that were in transit to an address as soon as possible, without the waits of P17."""
        for dialogs in self._dialogs.all():
            dialogs.next_hops.retransmit(address)
        self.open(address)

    def open_mirrored(self) -> None:
        """Resumes sending to mirrored addresses, since their principal may be known now."""
        for next_hop in [each for each in self._closed if isinstance(each, UnresolvedMirror)]:
            self.open(next_hop)

    def _send(self, dialogs: DatabaseDialogs, outbound: OutboundRows) -> None:
        next_hop = outbound.next_hop
        if next_hop == LOCAL:
            self._loop_back(outbound.rows)
            return
        if self._is_reply_to_refused_address(dialogs, outbound):
            return
        result = self._endpoint.send(next_hop, outbound.rows)
        if not result.is_full:
            return
        self._closed.add(next_hop)
        self._on_full(next_hop)
        if not result.is_accepted:  # retransmit as soon as there is space, without the waits of P17
            dialogs.engine.retransmit(outbound.keys)

    def _is_reply_to_refused_address(self, dialogs: DatabaseDialogs, outbound: OutboundRows) -> bool:
        """Returns whether rows only answer unknown conversations, at an address that a peer has chosen and to which no new rows may be sent."""
        if any(dialogs.engine.is_loaded(key) for key in outbound.keys):
            return False
        return self._endpoint.refusal_reason(outbound.next_hop) is not None
