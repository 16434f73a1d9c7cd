from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from ssbroker import Reassembler
from ssbroker.protocol import batch_reassembly, receiver
from ssbroker.protocol.ack_ranges import AckRange
from ssbroker.protocol.batch_reassembly import Assembler, AssemblyResult, DirectionLoader
from ssbroker.protocol.dialog import Dialog
from ssbroker.protocol.engine import DialogEngine
from ssbroker.protocol.envelope import EnvelopeRow
from ssbroker.protocol.inbound_direction import FragmentRanges, InboundDirection, OpenedFragment
from ssbroker.protocol.receiver import BatchReceiver, DueAcknowledgement, ReceivedBatch, ReceivePlanner
from ssbroker.protocol.row_opener import OpenedBatch
from ssbroker.protocol.storage import BatchChanges, EndpointKey


def acknowledgements_precede_storing(patch: pytest.MonkeyPatch) -> None:
    """P16: rows are acknowledged on arrival, not once they are durable."""
    receive = DialogEngine.receive

    def immediately(self: DialogEngine, table: pa.Table, *, now: int, **options: Any) -> BatchChanges:
        effects = receive(self, table, now=now, **options)
        plan = self._plan
        assert plan is not None
        self._cache.loaded.update(plan.opened.created)
        self._schedule_acknowledgements(plan.received, self._clock.monotonic(now))
        return effects

    patch.setattr(DialogEngine, "receive", immediately)


def rolled_back_rows_count_as_received(patch: pytest.MonkeyPatch) -> None:
    """After a rollback the engine continues as after a commit."""

    def undo(self: DialogEngine, effects: BatchChanges) -> None:
        self._take_plan(effects)

    patch.setattr(DialogEngine, "undo", undo)


def duplicates_are_received(patch: pytest.MonkeyPatch) -> None:
    """P12, P18: received messages are received again."""
    fresh = receiver._new_fragments

    def everything(
        opened: Sequence[tuple[Dialog, EnvelopeRow, bytes]], due_acknowledgements: dict[EndpointKey, DueAcknowledgement]
    ) -> Iterator[tuple[Dialog, EnvelopeRow, bytes]]:
        for dialog, row, _ in opened:
            if dialog.incoming is not None and row.sequence < dialog.incoming.next:
                dialog.incoming = InboundDirection(dialog.key, row.sequence)
        return fresh(opened, due_acknowledgements)

    patch.setattr(receiver, "_new_fragments", everything)


def _loaded(patch: pytest.MonkeyPatch, change: Callable[[InboundDirection], None]) -> None:
    """Changes each direction when it is loaded."""
    load = DirectionLoader.load

    def loads(self: DirectionLoader, dialogs: Mapping[EndpointKey, Dialog], **options: Any) -> None:
        missing = [dialog for dialog in dialogs.values() if dialog.incoming is None]
        load(self, dialogs, **options)
        for dialog in missing:
            assert dialog.incoming is not None
            change(dialog.incoming)

    patch.setattr(DirectionLoader, "load", loads)


def positions_are_lost_on_restart(patch: pytest.MonkeyPatch) -> None:
    """P12, P18: the position in a dialog is kept in memory only."""
    _loaded(patch, lambda incoming: incoming.skip_to(0))


def wrong_reassembly_slot(patch: pytest.MonkeyPatch) -> None:
    """P13: fragments are assembled by number, even if they belong to different messages."""
    push = Assembler.push

    def mix_messages(self: Assembler, parts: Sequence[OpenedFragment]) -> AssemblyResult:
        for part in parts:
            if part.count > 1:
                part.sequence = part.incoming.next
                part.message_digest = None
        places = {(part.incoming.key, part.sequence, part.fragment): part for part in parts}
        return push(self, list(places.values()))

    patch.setattr(Assembler, "push", mix_messages)


def out_of_order(patch: pytest.MonkeyPatch) -> None:
    """P11: a message is received as soon as it is complete."""
    patch.setattr(batch_reassembly, "Reassembler", lambda **options: Reassembler(in_order=False, **options))


def early_messages_are_not_stored(patch: pytest.MonkeyPatch) -> None:
    """P14, P16: acknowledged early messages are in memory only."""
    keep = Assembler._hold

    def forgets(*given: Any) -> list[OpenedFragment]:
        keep(*given)
        return []

    patch.setattr(Assembler, "_hold", forgets)


def stored_messages_are_not_read_back(patch: pytest.MonkeyPatch) -> None:
    """P14: after a restart stored early messages are forgotten, though they were acknowledged."""
    _loaded(patch, lambda incoming: incoming.skip_to(incoming.next))


def duplicates_are_not_acknowledged(patch: pytest.MonkeyPatch) -> None:
    """P18: a duplicate gets no answer."""
    fresh = receiver._new_fragments

    def no_answer(
        opened: Sequence[tuple[Dialog, EnvelopeRow, bytes]], due_acknowledgements: dict[EndpointKey, DueAcknowledgement]
    ) -> Iterator[tuple[Dialog, EnvelopeRow, bytes]]:
        kept = list(fresh(opened, due_acknowledgements))
        taken = {dialog.key for dialog, _, _ in kept}
        for key in [key for key in due_acknowledgements if key not in taken]:
            del due_acknowledgements[key]
        return iter(kept)

    patch.setattr(receiver, "_new_fragments", no_answer)


def duplicates_do_not_renew_closed_endpoints(patch: pytest.MonkeyPatch) -> None:
    """P11, P18: a closed endpoint is removed while its peer still sends duplicates, which are then received again."""
    plan = ReceivePlanner._changes
    patch.setattr(
        ReceivePlanner, "_changes", staticmethod(lambda *given: replace(plan(*given), with_duplicates=frozenset()))
    )


def gaps_are_acknowledged(patch: pytest.MonkeyPatch) -> None:
    """P15, P16: the last received message is acknowledged, even if an earlier one is missing."""
    owe = DialogEngine._schedule_acknowledgements

    def acknowledge_last(self: DialogEngine, received: ReceivedBatch, now: int) -> None:
        owe(self, received, now)
        for key in received.due_acknowledgements:
            dialog = self._cache.loaded.get(key)
            if dialog is not None and dialog.incoming is not None and dialog.incoming.pending:
                dialog.ack = (max(dialog.incoming.pending), b"")

    patch.setattr(DialogEngine, "_schedule_acknowledgements", acknowledge_last)


def one_fragment_too_many(patch: pytest.MonkeyPatch) -> None:
    """P15: a range names one fragment too many."""

    emitted = FragmentRanges.to_ack_ranges

    def one_too_many(self: FragmentRanges) -> list[AckRange]:
        return [(first, number, last, end + 1) for first, number, last, end in emitted(self)]

    patch.setattr(FragmentRanges, "to_ack_ranges", one_too_many)


def partial_messages_are_not_acknowledged(patch: pytest.MonkeyPatch) -> None:
    """P13, P15: only complete messages are acknowledged."""
    patch.setattr(FragmentRanges, "to_ack_ranges", lambda _: [])


def acknowledgements_are_sent_immediately(patch: pytest.MonkeyPatch) -> None:
    """P15: acknowledgements do not wait for a message that could carry them."""
    owe = DialogEngine._schedule_acknowledgements

    def hasty(self: DialogEngine, received: ReceivedBatch, now: int) -> None:
        for due_acknowledgements in received.due_acknowledgements.values():
            due_acknowledgements.is_immediate = True
        owe(self, received, now)

    patch.setattr(DialogEngine, "_schedule_acknowledgements", hasty)


def acknowledgements_always_wait(patch: pytest.MonkeyPatch) -> None:
    """P18: no acknowledgement is sent before a second has passed."""
    owe = DialogEngine._schedule_acknowledgements

    def delayed(self: DialogEngine, received: ReceivedBatch, now: int) -> None:
        for due_acknowledgements in received.due_acknowledgements.values():
            due_acknowledgements.is_immediate = False
            due_acknowledgements.fragments = due_acknowledgements.bytes = 0
        owe(self, received, now)

    patch.setattr(DialogEngine, "_schedule_acknowledgements", delayed)


def no_limits(patch: pytest.MonkeyPatch) -> None:
    """P26: memory is allocated for declared sizes."""
    patch.setattr(
        batch_reassembly, "Reassembler", lambda **_: Reassembler(max_pending_bytes=None, max_sequence_distance=None)
    )
    patch.setattr(InboundDirection, "has_room", lambda *_, **__: True)


def rejected_messages_are_acknowledged(patch: pytest.MonkeyPatch) -> None:
    """A refused message counts as received."""
    stopped = BatchReceiver._stop_at_refusals

    def accept_all(*given: Any) -> pa.Table:
        messages = stopped(*given)
        given[-1].clear()
        given[-2].dialogs_to_reload.clear()
        return messages

    patch.setattr(BatchReceiver, "_stop_at_refusals", staticmethod(accept_all))


def rejections_are_not_reported(patch: pytest.MonkeyPatch) -> None:
    """P11: the sender of a refused message gets no error."""
    stopped = BatchReceiver._stop_at_refusals

    def no_answer(*given: Any) -> pa.Table:
        messages = stopped(*given)
        given[-2].notices.clear()
        return messages

    patch.setattr(BatchReceiver, "_stop_at_refusals", staticmethod(no_answer))


def corrupt_messages_are_kept(patch: pytest.MonkeyPatch) -> None:
    """P23: stored fragments of a message with a wrong digest are kept."""
    push = Assembler.push

    def keep_parts(self: Assembler, parts: Sequence[OpenedFragment]) -> AssemblyResult:
        assembled = push(self, parts)
        assembled.dropped.clear()
        return assembled

    patch.setattr(Assembler, "push", keep_parts)


def errors_of_the_broker_are_ignored(patch: pytest.MonkeyPatch) -> None:
    """P11: errors of the remote broker are not delivered."""
    effects = ReceivePlanner._changes

    def ignore(opened: OpenedBatch, *rest: Any) -> BatchChanges:
        opened.errors.clear()
        return effects(opened, *rest)

    patch.setattr(ReceivePlanner, "_changes", staticmethod(ignore))


def errors_wait_for_missing_messages(patch: pytest.MonkeyPatch) -> None:
    """An application's error is received only after all messages before it."""
    patch.setattr(Assembler, "push", Assembler._push)
