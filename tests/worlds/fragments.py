"""Creation of traffic from any source of choices: messages of honest senders, losses, damage, and attacks.

Few conversations, tiny bodies of two letters and few sequence numbers, so that all cases interact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from tests.oracle.fragmentation import fragment_message
from tests.oracle.traffic import Fragment, Limits
from tests.worlds.alterations import ALTERATIONS, Alter, resigned
from tests.worlds.world_maker import Chooser, Item

THEMES = ("honest", "damaged", "hostile", "limited")
"""Emphasis of the traffic: none; losses, damage and retransmissions; contradictions; reached limits."""

CONVERSATIONS = (
    UUID("11111111-2222-4333-8444-555555555555"),
    UUID("11111111-2222-4333-8444-555555555556"),
    UUID("01111111-2222-4333-8444-555555555555"),
    UUID(int=0),
    UUID(int=2**128 - 1),
)

KEYS = (b"0123456789abcdef", bytes(range(24)), bytes(reversed(range(32))))

KEY_COLUMN = "key_of_session"

EXTRA: tuple[dict[str, Any], ...] = (
    {"note": None, "priority": 5},
    {"note": "", "priority": None},
    {"note": "a note that is longer than the body of its message", "priority": 0},
)
"""The values of the extra columns."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """Pushes the next rows; afterwards the reassembler may be restored from a checkpoint, or forgets a message."""

    rows: int
    checkpoint: bool = False
    forget: tuple[UUID, bool, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Fragments in order of arrival, with the limits of the reassembler and the steps.

    Attributes:
        fragments: In order of arrival.
        steps: They cover all fragments.
        limits: Limits of the reassembler.
        in_order: Whether messages are released in order.
        keys: Location of the session keys: nowhere, in a mapping, or in a column.
        has_extra: Whether there are extra columns.
    """

    fragments: tuple[Fragment, ...]
    steps: tuple[Step, ...]
    limits: Limits
    in_order: bool
    keys: str
    has_extra: bool

    def charged(self, charge_of: Callable[[Mapping[str, Any]], int]) -> Traffic:
        """Returns the traffic with the memory charge of the extra columns of each row."""
        if not self.has_extra:
            return self
        fragments = [replace(each, extra_bytes=charge_of(each.extra)) for each in self.fragments]
        return replace(self, fragments=tuple(fragments))

    def pushes(self) -> Iterator[tuple[int, Step, Sequence[Fragment]]]:
        """Yields each step with the number of its first row, and its rows."""
        start = 0
        for step in self.steps:
            yield start, step, self.fragments[start : start + step.rows]
            start += step.rows


class TrafficMaker:
    """Makes the traffic of one world.

    Args:
        chooser: Source of choices.
        size: Maximum number of conversations, of messages in each direction, and of bytes in each body.
        theme: One of `THEMES`; None lets the chooser decide.
    """

    def __init__(self, chooser: Chooser, *, size: int = 3, theme: str | None = None) -> None:
        self.chooser = chooser
        self.size = size
        self.theme = chooser.one_of(THEMES) if theme is None else theme
        self.keys = chooser.one_of(("none", "none", "none", "mapping", "column"))
        self.has_extra = chooser.chance(25)
        self.conversations = self._some_of(CONVERSATIONS[: max(size, 2)])
        self.key_of = {
            conversation: chooser.one_of((*KEYS, None)) if self.keys != "none" else None
            for conversation in CONVERSATIONS
        }

    def traffic(self) -> Traffic:
        """Creates the traffic."""
        fragments = self._arriving([fragment for message in self._messages() for fragment in self._sent(message)])
        return Traffic(
            fragments=tuple(fragments),
            steps=self._steps(len(fragments)),
            limits=self._limits(),
            in_order=not self.chooser.chance(35),
            keys=self.keys,
            has_extra=self.has_extra,
        )

    def _messages(self) -> list[list[Fragment]]:
        messages = []
        for conversation in self.conversations:
            for is_initiator in (True, False):
                sequence = 0
                for _ in range(self.chooser.count(0 if is_initiator else -1, self.size + 1)):
                    messages.append(self._message(conversation, sequence, is_initiator=is_initiator))
                    sequence += 2 if self.chooser.chance(8) else 1
        if self.chooser.chance(10):
            far = self.chooser.one_of((64, 2**32, 2**63 - 2))
            messages.append(self._message(self.conversations[0], far, is_initiator=True))
        return messages

    def _message(self, conversation: UUID, sequence: int, *, is_initiator: bool) -> list[Fragment]:
        fragments = fragment_message(
            self._body(),
            conversation_id=conversation,
            is_initiator=is_initiator,
            sequence=sequence,
            max_fragment_bytes=self.chooser.one_of((1, 2, 3, 17)),
            key=self.key_of[conversation],
        )
        fragments = [replace(fragment, extra=self._extra()) for fragment in fragments]
        bare = self.chooser.count(0, 9)
        if bare in (1, 3) and self.key_of[conversation] is None:
            fragments = [replace(fragment, message_signature=None) for fragment in fragments]
        if bare in (2, 3) and (self.key_of[conversation] is None or len(fragments) == 1):
            fragments = [replace(fragment, fragment_signature=None) for fragment in fragments]
        return fragments

    def _body(self) -> bytes:
        longest = 40 if self.chooser.chance(10) else 2 * self.size + 1
        return bytes(self.chooser.one_of(b"ab") for _ in range(self.chooser.count(0, longest)))

    def _extra(self) -> dict[str, Any]:
        return dict(self.chooser.one_of(EXTRA)) if self.has_extra else {}

    def _sent(self, message: list[Fragment]) -> list[Fragment]:
        """Returns the fragments sent for a message, including lost, duplicated and altered ones."""
        chooser, chance = self.chooser, self.chooser.chance
        sent = list(message)
        if self.theme != "honest" and chance(20):
            sent = self._damaged_as_a_whole(sent)
        if self.theme != "honest" and chance(30):  # retransmission of the whole message
            sent += message if chance(70) else self._damaged_as_a_whole(message)
        if self.keys == "column" and self.theme != "honest" and chance(25):
            place = chooser.count(0, len(sent) - 1)
            sent[place] = resigned(self._with_another_key(chooser, sent[place]))
        percent = {"honest": 0, "damaged": 20, "hostile": 60, "limited": 10}[self.theme]
        for fragment in message:
            if chance(10):
                sent.append(fragment)  # duplicate
            if chance(percent):
                sent.append(self._altered(fragment))
        if chance(15):
            sent.pop(chooser.count(0, len(sent) - 1))  # loss
        return sent

    def _damaged_as_a_whole(self, message: Sequence[Fragment]) -> list[Fragment]:
        """Damages a message so that each fragment's own signature is valid or missing."""
        signature = self.chooser.one_of((bytes(16), b"no MD5 of a body", None))
        return [resigned(replace(fragment, message_signature=signature)) for fragment in message]

    def _altered(self, fragment: Fragment) -> Fragment:
        alter: Alter = self.chooser.one_of((*ALTERATIONS, self._of_another_conversation, self._with_another_key))
        altered = alter(self.chooser, fragment)
        if self.chooser.chance(15):
            altered = self.chooser.one_of(ALTERATIONS)(self.chooser, altered)
        # Mostly with a recomputed signature, since fragment signatures would detect the others.
        return resigned(altered) if self.chooser.chance(65) else altered

    def _of_another_conversation(self, chooser: Chooser, fragment: Fragment) -> Fragment:
        conversation = chooser.one_of(self.conversations)
        key = self.key_of[conversation] if self.keys == "mapping" else fragment.key
        return replace(fragment, conversation_id=conversation, key=key)

    def _with_another_key(self, chooser: Chooser, fragment: Fragment) -> Fragment:
        return replace(fragment, key=chooser.one_of((*KEYS, None))) if self.keys == "column" else fragment

    def _arriving(self, fragments: list[Fragment]) -> list[Fragment]:
        """Orders fragments by arrival: in order, almost in order, or at random."""
        order = self.chooser.one_of(("shuffled", "nearly", "in order"))
        if order == "shuffled":
            return self._mixed(fragments)
        if order == "nearly":
            for place in range(1, len(fragments)):
                if self.chooser.chance(25):
                    fragments[place - 1 : place + 1] = fragments[place], fragments[place - 1]
        return fragments

    def _limits(self) -> Limits:
        if self.theme != "limited":
            return Limits()
        count = self.chooser.count
        return Limits(
            max_pending_bytes=self._limit(60, count(300, 1200 * self.size)),
            max_pending_messages=self._limit(30, count(1, 3 * self.size)),
            max_message_bytes=self._limit(30, count(1, 2 * self.size)) or 2**31 - 1,
            max_fragments_per_message=self._limit(20, count(1, self.size + 1)),
            max_sequence_distance=self._limit(25, count(1, self.size)),
        )

    def _limit(self, percent: int, value: int) -> int | None:
        return value if self.chooser.chance(percent) else None

    def _steps(self, rows: int) -> tuple[Step, ...]:
        steps: list[Step] = []
        alone = self.chooser.chance(15)
        while rows or not steps:
            some = min(rows, 1) if alone or self.chooser.chance(20) else self.chooser.count(0, rows)
            forget = None
            if self.chooser.chance(10):
                which = self.chooser.one_of(self.conversations)
                forget = (which, self.chooser.chance(50), self.chooser.count(0, self.size))
            steps.append(Step(rows=some, checkpoint=self.chooser.chance(25), forget=forget))
            rows -= some
        return tuple(steps)

    def _some_of(self, items: Sequence[Item]) -> list[Item]:
        return self._mixed(items)[: self.chooser.count(1, len(items))]

    def _mixed(self, items: Sequence[Item]) -> list[Item]:
        left = list(items)
        return [left.pop(self.chooser.count(0, len(left) - 1)) for _ in range(len(left))]
