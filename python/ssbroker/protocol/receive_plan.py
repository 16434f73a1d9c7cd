"""Plans the changes that a received batch makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ssbroker.protocol.ack_ranges import AckRange
from ssbroker.protocol.dialog import Dialog
from ssbroker.protocol.error_notice import ErrorNotice
from ssbroker.protocol.events import EventLog
from ssbroker.protocol.inbound_fast_path import FastInbound
from ssbroker.protocol.receiver import BatchReceiver, ReceivedBatch
from ssbroker.protocol.row_events import false_acknowledgement_event, undeliverable_event
from ssbroker.protocol.row_opener import Acknowledgements, OpenedBatch
from ssbroker.protocol.storage import BatchChanges, DialogStorage, EndpointKey, Refusal


@dataclass(frozen=True, slots=True)
class ReceivePlan:
    """The changes of a batch.

    Attributes:
        changes: The changes to write.
        opened: The verified content, apart from the fast path.
        fast: The part that takes the fast path.
        received: The result of reassembly.
        acknowledged: The acknowledgements, limited to what was sent.
    """

    changes: BatchChanges
    opened: OpenedBatch
    fast: FastInbound
    received: ReceivedBatch
    acknowledged: Acknowledgements

    @property
    def dialogs(self) -> list[Dialog]:
        """The dialogs whose receive state has changed."""
        return [*self.fast.dialogs, *self.opened.dialogs]


class ReceivePlanner:
    """Plans the changes of received batches."""

    __slots__ = ("_log", "_receiver", "_storage")

    def __init__(self, storage: DialogStorage, receiver: BatchReceiver, log: EventLog) -> None:
        self._storage = storage
        self._receiver = receiver
        self._log = log

    def plan(
        self, opened: OpenedBatch, fast: FastInbound, known: Mapping[EndpointKey, Dialog], now: int
    ) -> ReceivePlan:
        """Plans a batch; the receive state of its dialogs is changed already."""
        self._admit(opened, now)
        received = self._receiver.receive(opened.messages, new_dialogs=opened.created, now=now, peer=opened.peer)
        received.add_fast(fast)
        for each in fast.runs:
            if each.acked:
                opened.acknowledgements[each.run.key] = [(acked, []) for acked in each.acked]
        acknowledged = self._valid_acknowledgements(opened, known, now)
        changes = self._changes(opened, fast, received, acknowledged, known, now)
        return ReceivePlan(changes, opened, fast, received, acknowledged)

    def _admit(self, opened: OpenedBatch, now: int) -> None:
        """Lets the services of new conversations admit them; the messages of refused conversations are removed."""
        if not opened.created:
            return
        candidates = list(opened.created.values())
        refused: set[EndpointKey] = set()
        for dialog, answer in zip(candidates, self._storage.admit([each.endpoint for each in candidates]), strict=True):
            if isinstance(answer, Refusal):
                del opened.created[dialog.key]
                refused.add(dialog.key)
                if answer.notifies_sender:
                    dialog.reply_with_peer_key()
                    opened.notices.append(ErrorNotice(dialog, None, answer.code, answer.description))
                else:
                    self._log.emit(undeliverable_event(dialog.key, answer, now, peer=opened.peer))
            else:
                dialog.endpoint = answer
        if refused:
            opened.messages = [message for message in opened.messages if message[0].key not in refused]

    def _valid_acknowledgements(
        self, opened: OpenedBatch, known: Mapping[EndpointKey, Dialog], now: int
    ) -> Acknowledgements:
        """Returns the acknowledgements, limited to what was sent; false ones are logged."""
        valid: Acknowledgements = {}
        for key, acknowledgements in opened.acknowledgements.items():
            dialog = known.get(key)
            for acknowledgement in acknowledgements:
                clamped = (-1, []) if dialog is None else dialog.transmission.clamp_acknowledgement(*acknowledgement)
                if clamped != acknowledgement:
                    self._log.emit(false_acknowledgement_event(key, acknowledgement[0], now, peer=opened.peer))
                if dialog is not None:
                    valid.setdefault(key, []).append(clamped)
        return valid

    @staticmethod
    def _changes(
        opened: OpenedBatch,
        fast: FastInbound,
        received: ReceivedBatch,
        acknowledged: Acknowledgements,
        known: Mapping[EndpointKey, Dialog],
        now: int,
    ) -> BatchChanges:
        refused = {dialog.key for dialog in received.dialogs_to_reload}
        created = [key for key in opened.created if not (key in refused and received.receive_sequences.get(key) == 0)]
        discarded = opened.created.keys() - created
        for key in discarded:
            opened.created[key].reply_with_peer_key()
        reached = {key: max(acked for acked, _ in each) for key, each in acknowledged.items()}
        return BatchChanges(
            at=now,
            created=tuple(opened.created[key].endpoint for key in created),
            bound=tuple(opened.bound.values()),
            messages=received.messages,
            stored=received.stored,
            received={key: number for key, number in received.receive_sequences.items() if key not in discarded},
            dropped=tuple(received.dropped),
            acknowledged={key: acked for key, acked in reached.items() if acked > known[key].transmission.acked},
            errors={key: body for key, body in opened.errors.items() if key in known},
            refusals={key: why for key, why in received.refusals.items() if key not in discarded},
            lost_by_peer=tuple(key for key, each in acknowledged.items() if _has_lost_messages(known[key], each)),
            runs=tuple(each.run for each in fast.runs),
            too_large=frozenset(received.too_large),
        )


def _has_lost_messages(dialog: Dialog, acknowledgements: list[tuple[int, list[AckRange]]]) -> bool:
    """Returns whether the peer has lost messages that it acknowledged before; False if an error has ended the dialog."""
    forgets = dialog.transmission.shows_data_loss
    return not dialog.ended_with_error and any(forgets(*acknowledgement) for acknowledgement in acknowledgements)
