"""What a batch of arrivals comes to: the effects that are to be written, and what follows in memory once they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ssbroker.protocol.acknowledgement import Run
from ssbroker.protocol.dialog import Dialog
from ssbroker.protocol.event_log import EventLog
from ssbroker.protocol.ledger import Effects, Key, Ledger, Refusal
from ssbroker.protocol.opening import Notice, Opened
from ssbroker.protocol.plain_arrivals import PlainArrivals
from ssbroker.protocol.receiving import Received, Receiving
from ssbroker.protocol.telling import false_acknowledgement, undeliverable

Acknowledged: TypeAlias = dict[Key, list[tuple[int, list[Run]]]]
"""What far sides have: for each endpoint, up to which number, and what beyond."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a batch changes.

    Attributes:
        effects: What has to be written.
        opened: What the batch held, but for what is plain.
        plain: What is plain.
        received: What came of its messages.
        acknowledged: What its acknowledgements are believed to say.
    """

    effects: Effects
    opened: Opened
    plain: PlainArrivals
    received: Received
    acknowledged: Acknowledged

    @property
    def dialogs(self) -> list[Dialog]:
        """The dialogs whose directions have gone on."""
        return [*self.plain.dialogs, *self.opened.dialogs]


class Planning:
    """Makes plans.

    Args:
        ledger: Who admits conversations.
        receiving: What puts fragments together.
        log: Where false acknowledgements are told of.
    """

    __slots__ = ("_ledger", "_log", "_receiving")

    def __init__(self, ledger: Ledger, receiving: Receiving, log: EventLog) -> None:
        self._ledger = ledger
        self._receiving = receiving
        self._log = log

    def plan(self, opened: Opened, plain: PlainArrivals, known: Mapping[Key, Dialog], now: int) -> Plan:
        """Plans a batch.

        Args:
            opened: What it holds, but for what is plain.
            plain: What is plain.
            known: The endpoints.
            now: The moment.

        Returns:
            The plan. The directions that are received have gone on already.
        """
        self._admit(opened, now)
        received = self._receiving.take(opened.messages, begun=opened.created, now=now)
        received.join(plain)
        acknowledged = self._acknowledged(opened, known, now)
        effects = self._effects(opened, plain, received, acknowledged, known, now)
        return Plan(effects, opened, plain, received, acknowledged)

    def _admit(self, opened: Opened, now: int) -> None:
        """Has the services of new conversations looked at; where one does not take its conversation, nothing of that is taken (B11)."""
        if not opened.created:
            return
        asked = list(opened.created.values())
        refused: set[Key] = set()
        for dialog, answer in zip(asked, self._ledger.admit([each.endpoint for each in asked]), strict=True):
            if isinstance(answer, Refusal):
                del opened.created[dialog.key]
                refused.add(dialog.key)
                if answer.is_told:
                    dialog.answers_unmade()
                    opened.notices.append(Notice(dialog, None, answer.code, answer.description))
                else:
                    self._log.emit(undeliverable(dialog.key, answer, now, peer=opened.peer))
            else:
                dialog.endpoint = answer
        if refused:
            opened.messages = [message for message in opened.messages if message[0].key not in refused]

    def _acknowledged(self, opened: Opened, known: Mapping[Key, Dialog], now: int) -> Acknowledged:
        """The acknowledgements, as far as they name what was sent; the others are told of (fact 84)."""
        good: Acknowledged = {}
        for key, acknowledgements in opened.acknowledgements.items():
            dialog = known.get(key)
            for acknowledgement in acknowledgements:
                believed = (-1, []) if dialog is None else dialog.transmission.believed(*acknowledgement)
                if believed != acknowledgement:
                    self._log.emit(false_acknowledgement(key, acknowledgement[0], now, peer=opened.peer))
                if dialog is not None:
                    good.setdefault(key, []).append(believed)
        return good

    @staticmethod
    def _effects(
        opened: Opened,
        plain: PlainArrivals,
        received: Received,
        acknowledged: Acknowledged,
        known: Mapping[Key, Dialog],
        now: int,
    ) -> Effects:
        refused = {dialog.key for dialog in received.unloaded}
        begun = [key for key in opened.created if not (key in refused and received.received.get(key) == 0)]
        gone = opened.created.keys() - begun
        for key in gone:
            opened.created[key].answers_unmade()
        reached = {key: max(acked for acked, _ in each) for key, each in acknowledged.items()}
        return Effects(
            at=now,
            created=tuple(opened.created[key].endpoint for key in begun),
            bound=tuple(opened.bound.values()),
            messages=received.messages,
            stored=received.stored,
            received={key: number for key, number in received.received.items() if key not in gone},
            dropped=tuple(received.dropped),
            acknowledged={key: acked for key, acked in reached.items() if acked > known[key].transmission.acked},
            errors={key: body for key, body in opened.errors.items() if key in known},
            refused={key: why for key, why in received.refused.items() if key not in gone},
            forgotten=tuple(key for key, each in acknowledged.items() if _is_forgotten(known[key], each)),
            runs=tuple(each.run for each in plain.runs),
        )


def _is_forgotten(dialog: Dialog, acknowledgements: list[tuple[int, list[Run]]]) -> bool:
    """Whether the far side has lost what it had acknowledged; who has ended with an error has dropped it as well."""
    forgets = dialog.transmission.is_forgotten
    return not dialog.has_ended and any(forgets(*acknowledgement) for acknowledgement in acknowledgements)
