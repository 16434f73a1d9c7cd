"""What goes wrong on a virtual network, drawn from a seed."""

from __future__ import annotations

from dataclasses import dataclass, fields
from random import Random
from typing import Final

from ssbroker import options

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
            options.number(
                getattr(self, field.name), name=field.name, least=0, most=_MOST if field.name in _NO_SHARES else 1
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
