"""Compares received messages with sent ones: none lost, duplicated, reordered, altered, invented, or in another conversation."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import NamedTuple, Self


class Sent(NamedTuple):
    """A message whose sending was committed."""

    lane: int
    number: int


class Received(NamedTuple):
    """A message whose RECEIVE was committed: its name, its conversation, and whether every bit is correct."""

    lane: int
    number: int
    conversation: bytes
    is_intact: bool


@dataclass(slots=True)
class Verdict:
    """What was counted.

    Attributes:
        sent: Messages whose sending was committed.
        lost: Of those, how many never came out.
        twice: How often one came out that had come out before.
        out_of_order: How many came out after one that was sent later in the same conversation.
        altered: How many came out with other bits.
        unsent: How many came out that nobody sent.
        strayed: How many came out in another conversation.
        taken_back: How many a process had been told were committed, and are not.
    """

    sent: int = 0
    lost: int = 0
    twice: int = 0
    out_of_order: int = 0
    altered: int = 0
    unsent: int = 0
    strayed: int = 0
    taken_back: int = 0
    first: list[str] = field(default_factory=list)

    @property
    def is_correct(self) -> bool:
        """Whether every message was received once, in order and unaltered."""
        return not any(getattr(self, each.name) for each in fields(self) if each.name not in ("sent", "first"))

    def add(self, other: Self) -> None:
        """Adds the counts of another verdict."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def __str__(self) -> str:
        return (
            f"{self.sent:,} messages: {self.lost} lost, {self.twice} twice, {self.out_of_order} out of order, {self.altered} altered, "
            f"{self.unsent} that nobody sent, {self.strayed} in another conversation, {self.taken_back} taken back"
        )


def judge(sent: Iterable[Sent], received: Iterable[Received]) -> Verdict:
    """Compares what one side sent with what the other received, in the order in which it did."""
    expected = set(sent)
    verdict = Verdict(sent=len(expected))
    seen: set[Sent] = set()
    highest: dict[int, int] = defaultdict(lambda: -1)
    conversations: dict[int, bytes] = {}
    lanes: dict[bytes, int] = {}
    for each in received:
        message = Sent(each.lane, each.number)
        if not each.is_intact:
            verdict.altered += 1
        elif message not in expected:
            verdict.unsent += 1
        elif message in seen:
            verdict.twice += 1
        else:
            seen.add(message)
            is_late = each.number < highest[each.lane]
            highest[each.lane] = max(highest[each.lane], each.number)
            is_astray = (
                conversations.setdefault(each.lane, each.conversation) != each.conversation
                or lanes.setdefault(each.conversation, each.lane) != each.lane
            )
            verdict.out_of_order += is_late
            verdict.strayed += is_astray
            if not is_late and not is_astray:
                continue
        verdict.first = verdict.first or [f"the first that is wrong: lane {each.lane}, number {each.number}"]
    verdict.lost = len(expected) - len(seen)
    if verdict.lost and not verdict.first:
        verdict.first = [f"the first that is lost: {min(expected - seen)}"]
    return verdict


def judge_promises(promised: Iterable[Sent], kept: Iterable[Sent]) -> Verdict:
    """Compares the commits that processes reported with the contents of their files."""
    return Verdict(taken_back=len(set(promised) - set(kept)))
