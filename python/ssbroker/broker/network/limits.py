"""Rate limits for each peer, and the bounded inbox of received data."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa

from ssbroker.broker.network.connection import ip_of
from ssbroker.protocol.config import SECOND

if TYPE_CHECKING:
    from ssbroker.broker.network.interfaces import Peer


KNOWN_MOST: Final = 10_000
"""The neighbours whose buckets are kept; the one that has rested longest goes for a new one."""
_NETWORK_BITS: Final = 64


@dataclass(slots=True)
class _Bucket:
    """What one neighbour has left."""

    tokens: float
    at: int


class RateLimiter:
    """A bucket of tokens for each neighbour, be it known by its principal or by its address.

    An IPv6 network of 64 bits counts as one address, since who has one address has them all. A bucket that is full again is as good as none, so what is known is bounded by who has taken one lately, and by `KNOWN_MOST`.

    Args:
        at_once: How many tokens a bucket holds.
        per_second: How many come back in a second.

    Examples:
        >>> buckets = RateLimiter(at_once=2, per_second=1)
        >>> [buckets.take("192.0.2.1", now=0) for _ in range(3)], buckets.take("192.0.2.2", now=0)
        ([True, True, False], True)
        >>> buckets.take("192.0.2.1", now=1_000_000)
        True
    """

    def __init__(self, *, at_once: int, per_second: int) -> None:
        self._at_once: Final = at_once
        self._per_second: Final = per_second
        self._buckets: Final[OrderedDict[str, _Bucket]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, who: str, *, now: int) -> bool:
        """Takes a token out of a neighbour's bucket.

        Args:
            who: Its principal, or its address without the port.
            now: The moment, in microseconds; one that lies before the last one counts as the same.

        Returns:
            Whether there was one.
        """
        key = _network(who)
        bucket = self._buckets.get(key)
        if bucket is None:
            self._make_room(now=now)
            bucket = self._buckets[key] = _Bucket(self._at_once, now)
        bucket.tokens = self._filled(bucket, now=now)
        bucket.at = now
        self._buckets.move_to_end(key)
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True

    def _make_room(self, *, now: int) -> None:
        while self._buckets:
            oldest = next(iter(self._buckets.values()))
            if len(self._buckets) < KNOWN_MOST and self._filled(oldest, now=now) < self._at_once:
                break
            self._buckets.popitem(last=False)

    def _filled(self, bucket: _Bucket, *, now: int) -> float:
        back = max(now - bucket.at, 0) * self._per_second / SECOND
        return min(bucket.tokens + back, self._at_once)


def _network(who: str) -> str:
    ip = ip_of(who)
    if isinstance(ip, IPv6Address):
        return ip.packed[: _NETWORK_BITS // 8].hex()
    return who if ip is None else str(ip)


Batch: TypeAlias = "tuple[Peer, pa.Table]"
"""Rows of `adjacent.batch.WIRE`, and who brought them."""

ROWS_MAX: Final = 4096
"""How many rows one turn of the exchange takes (N15), a batch as a whole; when so many wait, no connection is read."""
BYTES_MAX: Final = 8 << 20
"""The same in bytes."""
_RESUMED_AT: Final = 0.5
"""Connections are read again when so much of that is left."""


class Inbox:
    """Batches in the order of their arrival; the endpoint's thread puts them in, the exchange's takes them out.

    It holds what one turn takes. What is read beyond that only waits, and the longer it does, the more of it is sent again in vain (P17).

    Args:
        pause: Has no connection read.
        resume: Has them read again.
        rows_max: From how many rows on nothing is read.
        bytes_max: The same in bytes.

    Examples:
        >>> inbox = Inbox(pause=lambda: print("pause"), resume=lambda: print("resume"), rows_max=2)
        >>> inbox.put(None, pa.table({"number": [1, 2]}))
        pause
        >>> [rows.num_rows for _, rows in inbox.take()]
        resume
        [2]
    """

    def __init__(
        self,
        *,
        pause: Callable[[], None],
        resume: Callable[[], None],
        rows_max: int = ROWS_MAX,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        self._pause: Final = pause
        self._resume: Final = resume
        self._rows_max: Final = rows_max
        self._bytes_max: Final = bytes_max
        self._guard: Final = threading.RLock()
        self._batches: deque[tuple[Batch, int]] = deque()
        self._rows = self._bytes = 0
        self._is_paused = False

    @property
    def bytes(self) -> int:
        """How many bytes wait."""
        return self._bytes

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._batches

    def put(self, peer: Peer, rows: pa.Table) -> None:
        """Puts a batch in.

        Args:
            peer: Who brought it.
            rows: The rows.
        """
        size = rows.nbytes
        with self._guard:
            self._batches.append(((peer, rows), size))
            self._rows += rows.num_rows
            self._bytes += size
            self._settle()

    def take(self) -> list[Batch]:
        """Takes out what fits into one turn: at least one batch, where there is any.

        Returns:
            The batches, in the order of their arrival.
        """
        taken: list[Batch] = []
        rows = size = 0
        with self._guard:
            while self._batches and rows < ROWS_MAX and size < BYTES_MAX:
                batch, its_size = self._batches.popleft()
                taken.append(batch)
                rows += batch[1].num_rows
                size += its_size
            self._rows -= rows
            self._bytes -= size
            self._settle()
        return taken

    def put_back(self, batches: Sequence[Batch]) -> None:
        """Puts batches in again, before all others: they could not be taken now.

        Args:
            batches: In their order.
        """
        with self._guard:
            for batch in reversed(batches):
                size = batch[1].nbytes
                self._batches.appendleft((batch, size))
                self._rows += batch[1].num_rows
                self._bytes += size
            self._settle()

    def _settle(self) -> None:
        share = max(self._rows / self._rows_max, self._bytes / self._bytes_max)
        if not self._is_paused and share >= 1:
            self._is_paused = True
            self._pause()
        elif self._is_paused and share <= _RESUMED_AT:
            self._is_paused = False
            self._resume()
