"""Compares received messages with sent ones:

none lost, duplicated, reordered, altered, invented, or in the wrong conversation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import NamedTuple, Self


class Sent(NamedTuple):
    """A message whose SEND was committed."""

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
    """The number of messages, and of errors of each kind.

    Attributes:
        sent: Messages whose SEND was committed.
        lost: Sent messages that were never received.
        duplicated: Messages received again.
        out_of_order: Messages received after a later one of the same conversation.
        altered: Messages received with other content.
        invented: Messages received but never sent.
        misdirected: Messages received in another conversation.
        lost_commits: Commits that a process reported but that are missing in the file.
    """

    sent: int = 0
    lost: int = 0
    duplicated: int = 0
    out_of_order: int = 0
    altered: int = 0
    invented: int = 0
    misdirected: int = 0
    lost_commits: int = 0
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
            f"{self.sent:,} messages: {self.lost} lost, {self.duplicated} duplicated, {self.out_of_order} out of order, {self.altered} altered, "
            f"{self.invented} invented, {self.misdirected} in the wrong conversation, {self.lost_commits} lost commits"
        )


def compare(sent: Iterable[Sent], received: Iterable[Received]) -> Verdict:
    """Compares the messages that one endpoint sent with those that the other received, in order of receipt."""
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
            verdict.invented += 1
        elif message in seen:
            verdict.duplicated += 1
        else:
            seen.add(message)
            is_late = each.number < highest[each.lane]
            highest[each.lane] = max(highest[each.lane], each.number)
            is_misdirected = (
                conversations.setdefault(each.lane, each.conversation) != each.conversation
                or lanes.setdefault(each.conversation, each.lane) != each.lane
            )
            verdict.out_of_order += is_late
            verdict.misdirected += is_misdirected
            if not is_late and not is_misdirected:
                continue
        verdict.first = verdict.first or [f"first error: lane {each.lane}, number {each.number}"]
    verdict.lost = len(expected) - len(seen)
    if verdict.lost and not verdict.first:
        verdict.first = [f"first lost message: {min(expected - seen)}"]
    return verdict


def compare_commits(reported: Iterable[Sent], stored: Iterable[Sent]) -> Verdict:
    """Compares the commits that processes reported with the contents of their files."""
    return Verdict(lost_commits=len(set(reported) - set(stored)))
