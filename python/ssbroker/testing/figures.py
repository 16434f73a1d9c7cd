"""What a simulation counted, and whether every message arrived exactly once, in order, unaltered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Self, TypeAlias

from ssbroker.testing.book import Message

Sent: TypeAlias = tuple[str, bytes]
"""The type and the body of a message."""


@dataclass(slots=True)
class Figures:
    """What was counted.

    Attributes:
        messages: Messages that applications sent.
        lost: Of those, how many never came out.
        twice: How many came out more than once.
        out_of_order: How many came out before or after their turn.
        altered: How many came out that nobody sent so.
        fragments: Fragments, acknowledgements and errors that were sent.
        fragments_lost: How many the network lost.
        fragments_duplicated: How many it delivered twice.
        fragments_delayed: How many it held up.
        fragments_corrupted: Of how many it flipped a bit.
        rejected: How many the instances refused as damaged or misled.
        crashes: How often an instance crashed.
        rollbacks: How often a transaction was rolled back.
        seconds: How many virtual seconds it took.
        drained: After how many virtual seconds without faults all had arrived; None where it never had.
        undrained: How many simulations did not drain in time.
    """

    messages: int = 0
    lost: int = 0
    twice: int = 0
    out_of_order: int = 0
    altered: int = 0
    fragments: int = 0
    fragments_lost: int = 0
    fragments_duplicated: int = 0
    fragments_delayed: int = 0
    fragments_corrupted: int = 0
    rejected: int = 0
    crashes: int = 0
    rollbacks: int = 0
    seconds: float = 0.0
    drained: float = 0.0
    undrained: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        """Whether nothing was lost, twice, out of order or altered, and all arrived in time."""
        return not (self.lost or self.twice or self.out_of_order or self.altered or self.undrained or self.problems)

    def compare(self, sent: Sequence[Sent], received: Sequence[Message], *, what: str) -> None:
        """Compares what one side sent with what the other received.

        Args:
            sent: The messages as they were sent, each different from the others.
            received: The messages as they came out.
            what: What it is about, for the report.

        Examples:
            >>> figures = Figures()
            >>> figures.compare([("DEFAULT", b"a"), ("DEFAULT", b"b")], [Message(1, b"b")], what="A to B")
            >>> figures.lost, figures.out_of_order
            (1, 1)
        """
        places = {message: place for place, message in enumerate(sent)}
        seen: set[int] = set()
        counts = (self.lost, self.twice, self.out_of_order, self.altered)
        for message in received:
            place = places.get((message.message_type, message.body))
            if place is None:
                self.altered += 1
            elif place in seen:
                self.twice += 1
            else:
                self.out_of_order += place != len(seen)
                seen.add(place)
        self.messages += len(sent)
        self.lost += len(sent) - len(seen)
        if counts != (self.lost, self.twice, self.out_of_order, self.altered):
            self.problems.append(f"{what}: {len(sent)} sent, {len(received)} came out")

    def add(self, other: Self) -> None:
        """Adds what another simulation counted.

        Args:
            other: Its figures.

        Examples:
            >>> total = Figures(messages=1, drained=3.0)
            >>> total.add(Figures(messages=2, drained=1.0))
            >>> total.messages, total.drained
            (3, 3.0)
        """
        for each in fields(self):
            if each.name == "problems":
                self.problems += other.problems
            elif each.name == "drained":
                self.drained = max(self.drained, other.drained)
            else:
                setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def __str__(self) -> str:
        return (
            f"{self.messages:,} messages: {self.lost} lost, {self.twice} twice, {self.out_of_order} out of order, {self.altered} altered; "
            f"{self.fragments:,} fragments sent: {self.fragments_lost:,} lost, {self.fragments_duplicated:,} duplicated, "
            f"{self.fragments_delayed:,} held up, {self.fragments_corrupted:,} damaged, {self.rejected:,} rejected; "
            f"{self.crashes:,} crashes, {self.rollbacks:,} rollbacks; "
            f"drained within {self.drained:.0f} virtual seconds after the faults ({self.undrained} not in time)"
        )
