"""Rate limits for each peer."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Final

from ssbroker.broker.network.addresses import ip_of
from ssbroker.protocol.settings import SECOND

KNOWN_PEERS_MAX: Final = 10_000
"""The maximum number of buckets; the least recently used bucket is replaced."""
_NETWORK_BITS: Final = 64


@dataclass(slots=True)
class _Bucket:
    tokens: float
    updated_at: int


class RateLimiter:
    """A token bucket for each peer; a peer is identified by its principal or address.

    An IPv6 /64 network counts as one address, because its owner can use all of its addresses. Full buckets are dropped,
    so memory is bounded by the peers that took a token recently, and by `KNOWN_PEERS_MAX`.

    Examples:
        >>> limiter = RateLimiter(burst=2, per_second=1)
        >>> [limiter.take("192.0.2.1", now=0) for _ in range(3)], limiter.take("192.0.2.2", now=0)
        ([True, True, False], True)
        >>> limiter.take("192.0.2.1", now=1_000_000)
        True
    """

    def __init__(self, *, burst: int, per_second: int) -> None:
        self._burst: Final = burst
        self._per_second: Final = per_second
        self._buckets: Final[OrderedDict[str, _Bucket]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, peer: str, *, now: int) -> bool:
        """Takes a token of a peer, identified by principal or by address without port; returns False if no token is left."""
        key = _network(peer)
        bucket = self._buckets.get(key)
        if bucket is None:
            self._evict(now=now)
            bucket = self._buckets[key] = _Bucket(self._burst, now)
        bucket.tokens = self._tokens_now(bucket, now=now)
        bucket.updated_at = now
        self._buckets.move_to_end(key)
        if bucket.tokens < 1:
            return False
        bucket.tokens -= 1
        return True

    def _evict(self, *, now: int) -> None:
        while self._buckets:
            oldest = next(iter(self._buckets.values()))
            if len(self._buckets) < KNOWN_PEERS_MAX and self._tokens_now(oldest, now=now) < self._burst:
                break
            self._buckets.popitem(last=False)

    def _tokens_now(self, bucket: _Bucket, *, now: int) -> float:
        refilled = max(now - bucket.updated_at, 0) * self._per_second / SECOND
        return min(bucket.tokens + refilled, self._burst)


def _network(peer: str) -> str:
    ip = ip_of(peer)
    if isinstance(ip, IPv6Address):
        return ip.packed[: _NETWORK_BITS // 8].hex()
    return peer if ip is None else str(ip)
