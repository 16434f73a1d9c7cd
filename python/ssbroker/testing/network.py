"""A virtual network with faults drawn from a seed."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import count
from random import Random
from typing import Any, Final

import pyarrow as pa

from ssbroker._arguments import real_number
from ssbroker.protocol.config import SECOND

_NO_SHARES: Final = ("delay", "partitions", "partition_seconds", "outage_period", "clock_jumps")
_MOST: Final = 86_400
"""Of the seconds of something, and of its times a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """What goes wrong, and how often. Without arguments nothing does.

    Attributes:
        loss: The share of fragments that are lost.
        duplication: The share that arrives twice.
        reordering: The share that is held up, and so overtaken.
        delay: How long what is held up may take, in seconds.
        corruption: The share of which a bit is flipped, in any field.
        partitions: How many times a minute an instance is cut off from the others.
        one_way: The share of partitions that stop one direction only.
        partition_seconds: How long one lasts at most.
        outage_period: Every so many seconds the network fails; 0 for never.
        outage_share: For which share of this period.
        crashes: The share of batches at which the instance that receives them crashes and starts anew.
        rollbacks: The share of batches whose transaction is rolled back.
        clock_jumps: How many times a minute the clock of an instance is set, by up to an hour.

    Raises:
        OptionError: A share is no number from 0 to 1, or another one none from 0 to 86,400.

    Examples:
        >>> Faults(loss=0.3).loss
        0.3
    """

    loss: float = 0.0
    duplication: float = 0.0
    reordering: float = 0.0
    delay: float = 3.0
    corruption: float = 0.0
    partitions: float = 0.0
    one_way: float = 0.5
    partition_seconds: float = 20.0
    outage_period: float = 0.0
    outage_share: float = 0.5
    crashes: float = 0.0
    rollbacks: float = 0.0
    clock_jumps: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            real_number(
                getattr(self, field.name), name=field.name, minimum=0, maximum=_MOST if field.name in _NO_SHARES else 1
            )

    @classmethod
    def drawn(cls, seed: int) -> Faults:
        """A menu of faults: most seeds have most of them, each to a degree of its own.

        Args:
            seed: The seed.

        Returns:
            The faults; loss to 30 %, duplication and reordering to 50 %, corruption to 10 %.

        Examples:
            >>> Faults.drawn(7) == Faults.drawn(7) != Faults.drawn(8)
            True
        """
        random = Random(f"faults {seed}")  # noqa: S311 - chance that can be repeated

        def share(most: float, *, rare: bool = False) -> float:
            return round(random.uniform(0, most), 4) if random.random() < (0.4 if rare else 0.8) else 0.0

        return cls(
            loss=share(0.3),
            duplication=share(0.5),
            reordering=share(0.5),
            corruption=share(0.1),
            partitions=share(4, rare=True),
            one_way=round(random.random(), 2),
            outage_period=round(random.uniform(1, 30), 1) if random.random() < 0.15 else 0.0,  # noqa: PLR2004 - a menu
            crashes=share(0.1, rare=True),
            rollbacks=share(0.1, rare=True),
            clock_jumps=share(4, rare=True),
        )

    def __str__(self) -> str:
        said = [f"{field.name}={getattr(self, field.name):g}" for field in fields(self) if getattr(self, field.name)]
        return ", ".join(said)


TICK: Final = SECOND // 4
"""What is under way arrives at multiples of this, so that it arrives in batches."""
_HELD_UP: Final = 4
"""In how many steps what is held up arrives."""


@dataclass(slots=True)
class NetworkCounts:
    """What the network did.

    Attributes:
        sent: Fragments, acknowledgements and errors that were given to it.
        lost: How many of them it lost.
        duplicated: How many it delivered twice.
        delayed: How many it held up.
        corrupted: Of how many it flipped a bit.
    """

    sent: int = 0
    lost: int = 0
    duplicated: int = 0
    delayed: int = 0
    corrupted: int = 0


class Network:
    """Carries batches between instances that are known by name.

    Args:
        faults: What goes wrong.
        random: Where chance comes from.

    Examples:
        >>> import pyarrow as pa
        >>> network = Network(Faults(), Random(7))
        >>> network.send(pa.table({"number": [1, 2]}), source="A", target="B", now=0)
        >>> [(target, table.num_rows) for source, target, table in network.arriving(now=network.next_arrival)]
        [('B', 2)]
    """

    def __init__(self, faults: Faults, random: Random) -> None:
        self.faults = faults
        self.carried = NetworkCounts()
        self._random = random
        self._under_way: list[tuple[int, int, str, str, pa.Table]] = []
        self._numbers = count()
        self._cut_off: dict[tuple[str, str], int] = {}

    @property
    def next_arrival(self) -> int | None:
        """When something arrives next; None where nothing is under way."""
        return self._under_way[0][0] if self._under_way else None

    def cut_off(self, source: str, target: str, *, until: int) -> None:
        """Stops what goes from one instance to another.

        Args:
            source: The one.
            target: The other.
            until: The moment at which it goes again.
        """
        self._cut_off[source, target] = until

    def is_up(self, source: str, target: str, now: int) -> bool:
        """Whether anything gets through from one instance to another.

        Args:
            source: The one.
            target: The other.
            now: The moment.

        Returns:
            Whether there is neither an outage nor a partition.
        """
        period = round(self.faults.outage_period * SECOND)
        if period and now % period < self.faults.outage_share * period:
            return False
        return self._cut_off.get((source, target), 0) <= now

    def send(self, table: pa.Table, *, source: str, target: str, now: int) -> None:
        """Takes a batch.

        Args:
            table: The rows.
            source: Who sends them.
            target: Whom they are for.
            now: The moment.
        """
        self.carried.sent += table.num_rows
        if not self.is_up(source, target, now):
            self.carried.lost += table.num_rows
            return
        by_moment: dict[int, list[int]] = {}
        for row in range(table.num_rows):
            for delay in self._fates():
                by_moment.setdefault(delay, []).append(row)
        for delay, rows in by_moment.items():
            part = self._damaged(
                table if rows == list(range(table.num_rows)) else table.take(pa.array(rows, pa.int64()))
            )
            arrival = (now // TICK + 1) * TICK + delay
            heapq.heappush(self._under_way, (arrival, next(self._numbers), source, target, part))

    def _fates(self) -> Iterator[int]:
        """When a fragment arrives: once, twice or never."""
        faults, random, carried = self.faults, self._random, self.carried
        times = 1
        if faults.duplication and random.random() < faults.duplication:
            times = 2
            carried.duplicated += 1
        for _ in range(times):
            if faults.loss and random.random() < faults.loss:
                carried.lost += 1
            elif faults.reordering and random.random() < faults.reordering:
                carried.delayed += 1
                step = round(faults.delay * SECOND / _HELD_UP) // TICK * TICK
                yield step * random.randrange(1, _HELD_UP + 1)
            else:
                yield 0

    def _damaged(self, table: pa.Table) -> pa.Table:
        share = self.faults.corruption
        if not share:
            return table
        hit = [row for row in range(table.num_rows) if self._random.random() < share]
        if not hit:
            return table
        self.carried.corrupted += len(hit)
        rows: list[dict[str, Any]] = table.to_pylist()
        for row in hit:
            name = self._random.choice(list(rows[row]))
            rows[row][name] = flipped(rows[row][name], self._random)
        return pa.Table.from_pylist(rows, schema=table.schema)

    def arriving(self, *, now: int) -> Iterator[tuple[str, str, pa.Table]]:
        """What has arrived.

        Args:
            now: The moment.

        Yields:
            Who sent it, whom it is for, and the rows; what several batches brought at once comes as one.
        """
        there: dict[tuple[str, str], list[pa.Table]] = {}
        while self._under_way and self._under_way[0][0] <= now:
            _, _, source, target, table = heapq.heappop(self._under_way)
            there.setdefault((source, target), []).append(table)
        for (source, target), tables in there.items():
            yield source, target, pa.concat_tables(tables)


def flipped(value: Any, random: Random) -> Any:
    """A value with one bit flipped; of what has none (null, empty) nothing changes.

    Args:
        value: A number, a truth, bytes, ASCII text or a moment.
        random: Where chance comes from.

    Returns:
        The value.

    Examples:
        >>> flipped(True, Random(1)), flipped(b"", Random(1)), flipped(0, Random(1)).bit_count()
        (False, b'', 1)
    """
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value ^ 1 << random.randrange(7)
    if isinstance(value, str) and value:
        at = random.randrange(len(value))
        return value[:at] + chr(ord(value[at]) ^ 1 << random.randrange(6)) + value[at + 1 :]
    if isinstance(value, bytes) and value:
        number = int.from_bytes(value) ^ 1 << random.randrange(8 * len(value))
        return number.to_bytes(len(value))
    return value
