"""Rate limits for each peer."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Final

from ssbroker.broker.network.connection import ip_of
from ssbroker.protocol.config import SECOND

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
