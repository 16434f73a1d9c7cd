"""A virtual network with seeded faults."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import count
from random import Random
from typing import Any, Final

import pyarrow as pa

from ssbroker._arguments import real_number
from ssbroker.protocol.settings import SECOND

_NOT_SHARES: Final = ("delay", "partitions", "partition_seconds", "outage_period", "clock_jumps")
_VALUE_MAX: Final = 86_400
"""The maximum of a value that is not a share: a number of seconds, or a number of times a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """The faults of a simulation and their frequencies. By default, there are none.

    Attributes:
        loss: The share of fragments that are lost.
        duplication: The share of fragments that arrive twice.
        reordering: The share of fragments that are delayed, so that other fragments overtake them.
        delay: The maximum delay of reordered fragments, in seconds.
        corruption: The share of fragments in which one bit of any field is flipped.
        partitions: How many times a minute the connection between the instances is interrupted.
        one_way: The share of partitions that affect only one direction.
        partition_seconds: The maximum duration of a partition, in seconds.
        outage_period: The interval between network outages, in seconds; 0 for none.
        outage_share: The share of each `outage_period` during which the network is down.
        crashes: The share of batches at which the receiving instance crashes and restarts.
        rollbacks: The share of batches whose transaction is rolled back.
        clock_jumps: How many times a minute the clock of an instance is set, by up to an hour.

    Raises:
        OptionError: A share is not a number from 0 to 1, or any other value is not from 0 to 86,400.

    Examples:
        >>> from ssbroker.testing import Faults
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
                getattr(self, field.name),
                name=field.name,
                minimum=0,
                maximum=_VALUE_MAX if field.name in _NOT_SHARES else 1,
            )

    @classmethod
    def from_seed(cls, seed: int) -> Faults:
        """Draws random faults. Most seeds enable most kinds of fault, each with its own probability.

        Args:
            seed: The seed of the random number generator.

        Returns:
            The faults: loss up to 30%; duplication and reordering up to 50%; corruption, crashes and rollbacks up to
            10%; up to 4 partitions and 4 clock jumps a minute; and sometimes a periodic outage.

        Examples:
            >>> from ssbroker.testing import Faults
            >>> Faults.from_seed(7) == Faults.from_seed(7) != Faults.from_seed(8)
            True
        """
        random = Random(f"faults {seed}")  # noqa: S311 - the results must be reproducible

        def share(most: float, *, rare: bool = False) -> float:
            return round(random.uniform(0, most), 4) if random.random() < (0.4 if rare else 0.8) else 0.0

        return cls(
            loss=share(0.3),
            duplication=share(0.5),
            reordering=share(0.5),
            corruption=share(0.1),
            partitions=share(4, rare=True),
            one_way=round(random.random(), 2),
            outage_period=round(random.uniform(1, 30), 1) if random.random() < 0.15 else 0.0,  # noqa: PLR2004 - a probability
            crashes=share(0.1, rare=True),
            rollbacks=share(0.1, rare=True),
            clock_jumps=share(4, rare=True),
        )

    def __str__(self) -> str:
        values = [f"{field.name}={getattr(self, field.name):g}" for field in fields(self) if getattr(self, field.name)]
        return ", ".join(values)


TICK: Final = SECOND // 4
"""Arrival times are multiples of this number of microseconds, so that rows arrive in batches."""
_DELAY_STEPS: Final = 4
"""The number of different delays."""


@dataclass(slots=True)
class NetworkCounts:
    """The counts of a network.

    Attributes:
        sent: The number of rows sent: fragments, acknowledgements and errors.
        lost: The number of rows that were lost.
        duplicated: The number of rows that were delivered twice.
        delayed: The number of rows that were delayed.
        corrupted: The number of rows in which a bit was flipped.
    """

    sent: int = 0
    lost: int = 0
    duplicated: int = 0
    delayed: int = 0
    corrupted: int = 0


class Network:
    """Transfers batches between named instances.

    Args:
        faults: The faults of the network.
        random: The random number generator.

    Examples:
        >>> from random import Random
        >>> import pyarrow as pa
        >>> from ssbroker.testing import Faults, Network
        >>> network = Network(Faults(), Random(7))
        >>> network.send(pa.table({"number": [1, 2]}), source="A", target="B", now=0)
        >>> [(target, table.num_rows) for source, target, table in network.arriving(now=network.next_arrival)]
        [('B', 2)]
    """

    def __init__(self, faults: Faults, random: Random) -> None:
        self.faults = faults
        self.carried = NetworkCounts()
        self._random = random
        self._in_transit: list[tuple[int, int, str, str, pa.Table]] = []
        self._numbers = count()
        self._cut_off: dict[tuple[str, str], int] = {}

    @property
    def next_arrival(self) -> int | None:
        """The time of the next arrival, in microseconds; None if nothing is in transit."""
        return self._in_transit[0][0] if self._in_transit else None

    def cut_off(self, source: str, target: str, *, until: int) -> None:
        """Interrupts one direction between two instances.

        Args:
            source: The sending instance.
            target: The receiving instance.
            until: When the interruption ends, in microseconds.
        """
        self._cut_off[source, target] = until

    def is_up(self, source: str, target: str, now: int) -> bool:
        """Returns whether there is neither an outage nor a partition between two instances.

        Args:
            source: The sending instance.
            target: The receiving instance.
            now: The current time, in microseconds.

        Returns:
            Whether rows are transferred in this direction.
        """
        period = round(self.faults.outage_period * SECOND)
        if period and now % period < self.faults.outage_share * period:
            return False
        return self._cut_off.get((source, target), 0) <= now

    def send(self, table: pa.Table, *, source: str, target: str, now: int) -> None:
        """Sends a batch.

        Args:
            table: The rows.
            source: The sending instance.
            target: The receiving instance.
            now: The current time, in microseconds.
        """
        self.carried.sent += table.num_rows
        if not self.is_up(source, target, now):
            self.carried.lost += table.num_rows
            return
        by_delay: dict[int, list[int]] = {}
        for row in range(table.num_rows):
            for delay in self._arrival_delays():
                by_delay.setdefault(delay, []).append(row)
        for delay, rows in by_delay.items():
            part = self._corrupt_some(
                table if rows == list(range(table.num_rows)) else table.take(pa.array(rows, pa.int64()))
            )
            arrival = (now // TICK + 1) * TICK + delay
            heapq.heappush(self._in_transit, (arrival, next(self._numbers), source, target, part))

    def _arrival_delays(self) -> Iterator[int]:
        """Yields the delay of each arrival of a fragment: nothing if it is lost, up to two delays if it is duplicated."""
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
                step = round(faults.delay * SECOND / _DELAY_STEPS) // TICK * TICK
                yield step * random.randrange(1, _DELAY_STEPS + 1)
            else:
                yield 0

    def _corrupt_some(self, table: pa.Table) -> pa.Table:
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
            rows[row][name] = flip_bit(rows[row][name], self._random)
        return pa.Table.from_pylist(rows, schema=table.schema)

    def arriving(self, *, now: int) -> Iterator[tuple[str, str, pa.Table]]:
        """Removes and yields the batches that have arrived.

        Args:
            now: The current time, in microseconds.

        Yields:
            Sender, receiver and rows; batches that arrive together are merged.
        """
        there: dict[tuple[str, str], list[pa.Table]] = {}
        while self._in_transit and self._in_transit[0][0] <= now:
            _, _, source, target, table = heapq.heappop(self._in_transit)
            there.setdefault((source, target), []).append(table)
        for (source, target), tables in there.items():
            yield source, target, pa.concat_tables(tables)


def flip_bit(value: Any, random: Random) -> Any:
    """Flips a bit of an integer, boolean, bytes or ASCII text; empty values and all other values, such as null, do not change.

    Examples:
        >>> flip_bit(True, Random(1)), flip_bit(b"", Random(1)), flip_bit(0, Random(1)).bit_count()
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
