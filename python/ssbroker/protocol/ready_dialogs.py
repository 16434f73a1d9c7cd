"""The endpoints that may have something to send, by priority and next hop."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Iterator

from ssbroker.protocol.dialog import Dialog
from ssbroker.protocol.storage import EndpointKey


class ReadyDialogs:
    """The endpoints that may have something to send. An endpoint whose next hop is closed waits until the next hop opens.

    Within a priority, the next hops take turns, and so do the endpoints of each next hop.

    Args:
        closed_hops: The next hops that accept nothing for now; the owner of the set changes it.

    Examples:
        >>> one, other, third = [(bytes([number]) * 16, True) for number in (1, 2, 3)]
        >>> closed_hops = {"TCP://bank:4022"}
        >>> ready = ReadyDialogs(closed_hops)
        >>> ready.assign(one, "TCP://bank:4022")
        >>> for key in (one, other, third):
        ...     ready.add(key, priority=5)
        >>> ready.discard(third)
        >>> len(list(ready.take(lambda key: object()))), ready.has_open
        (1, False)
        >>> closed_hops.clear()
        >>> ready.has_open
        True
    """

    __slots__ = ("_by_priority", "_closed_hops", "_next_hop_of")

    def __init__(self, closed_hops: Collection[Hashable]) -> None:
        self._closed_hops = closed_hops
        self._next_hop_of: dict[EndpointKey, Hashable] = {}
        # Contains no next hop without endpoints, so that `has_open` need not look at the endpoints of a next hop.
        # The endpoints are not in a plain dict: the first key of a dict from which many first keys were removed would be
        # slow to find.
        self._by_priority: dict[int, dict[Hashable, OrderedDict[EndpointKey, None]]] = {}

    def add(self, key: EndpointKey, *, priority: int) -> None:
        """Adds an endpoint."""
        by_hop, next_hop = self._by_priority.setdefault(priority, {}), self._next_hop_of.get(key)
        if next_hop not in by_hop:
            by_hop[next_hop] = OrderedDict()
        by_hop[next_hop][key] = None

    def discard(self, key: EndpointKey) -> None:
        """Removes an endpoint, whatever its priority."""
        for priority in self._priorities_of(key):
            self._remove(priority, key)

    def assign(self, key: EndpointKey, next_hop: Hashable) -> None:
        """Assigns an endpoint to a next hop; None if the next hop is unknown."""
        priorities = self._priorities_of(key)
        for priority in priorities:
            self._remove(priority, key)
        if next_hop is None:
            self._next_hop_of.pop(key, None)
        else:
            self._next_hop_of[key] = next_hop
        for priority in priorities:
            self.add(key, priority=priority)

    def next_hop_of(self, key: EndpointKey) -> Hashable:
        """Returns the next hop of an endpoint; None if the next hop is unknown."""
        return self._next_hop_of.get(key)

    def is_held(self, key: EndpointKey) -> bool:
        """Returns whether an endpoint waits for its next hop to open."""
        return self._next_hop_of.get(key) in self._closed_hops

    @property
    def has_open(self) -> bool:
        """Whether there is an endpoint that need not wait."""
        next_hops = set[Hashable]().union(*self._by_priority.values())
        return bool(next_hops.difference(self._closed_hops))

    def keys(self) -> set[EndpointKey]:
        """Returns all endpoints, including those that wait."""
        return {key for by_hop in self._by_priority.values() for keys in by_hop.values() for key in keys}

    def take(self, load: Callable[[EndpointKey], Dialog | None]) -> Iterator[Dialog]:
        """Loads, removes and yields the dialogs that need not wait, the highest priority first; keeps a dialog whose loading fails."""
        for priority in sorted(self._by_priority, reverse=True):
            by_hop = self._by_priority[priority]
            turns = deque([next_hop for next_hop in by_hop if next_hop not in self._closed_hops])
            while turns:
                next_hop = turns.popleft()
                key = next(iter(by_hop[next_hop]))
                dialog = load(key)
                keys = by_hop.pop(next_hop)
                del keys[key]
                if keys:
                    by_hop[next_hop] = keys  # last, also for the next call
                    turns.append(next_hop)
                if dialog is not None:
                    yield dialog

    def _priorities_of(self, key: EndpointKey) -> list[int]:
        next_hop = self._next_hop_of.get(key)
        return [priority for priority, by_hop in self._by_priority.items() if key in by_hop.get(next_hop, ())]

    def _remove(self, priority: int, key: EndpointKey) -> None:
        by_hop, next_hop = self._by_priority[priority], self._next_hop_of.get(key)
        del by_hop[next_hop][key]
        if not by_hop[next_hop]:
            del by_hop[next_hop]
