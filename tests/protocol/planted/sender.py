from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from ssbroker.protocol import dialog as dialog_module
from ssbroker.protocol import encoder, engine, sender, transmission
from ssbroker.protocol.dialog import Dialog
from ssbroker.protocol.engine import DialogCache, DialogEngine
from ssbroker.protocol.envelope import EnvelopeRow
from ssbroker.protocol.retry_waits import Backoff, MonotonicClock
from ssbroker.protocol.row_opener import RowOpener
from ssbroker.protocol.send_turn import FastOutbound, FragmentBatch, SendTurn
from ssbroker.protocol.sender import Sender
from ssbroker.protocol.settings import SECOND
from ssbroker.protocol.transmission import Flight, Transmission


def no_jitter(patch: pytest.MonkeyPatch) -> None:
    """P17: waits have no jitter."""
    patch.setattr(Backoff, "wait", Backoff._base_wait)


def waits_do_not_grow(patch: pytest.MonkeyPatch) -> None:
    """P17: every wait is as long as the first."""
    wait = Backoff.wait
    patch.setattr(Backoff, "wait", lambda self, _: wait(self, 0))


def waits_grow_without_limit(patch: pytest.MonkeyPatch) -> None:
    """P17: waits double beyond a minute."""
    patch.setattr(Backoff, "_base_wait", lambda _, attempt: 4 * SECOND << attempt)


def gives_up_after_three_retries(patch: pytest.MonkeyPatch) -> None:
    """P16, P17: after three retries nothing is sent any more."""
    never_due = Transmission.take_due
    patch.setattr(Transmission, "take_due", lambda *given: [each for each in never_due(*given) if each.attempt < 3])


def never_sends_again(patch: pytest.MonkeyPatch) -> None:
    """P16, P17: lost rows are never sent again."""

    def never_due(self: Transmission, now: int, _most: int) -> list[Flight]:
        self.flights = [flight for flight in self.flights if flight.due > now]
        return []

    patch.setattr(Transmission, "take_due", never_due)


def sends_everything_again(patch: pytest.MonkeyPatch) -> None:
    """P13: all rows sent with a lost one are sent again."""

    def all_sent(self: Transmission, fragments: dict[int, int]) -> dict[int, int]:
        return {number: mask for number, mask in fragments.items() if number > self.acked}

    patch.setattr(Transmission, "unacknowledged", all_sent)


def acknowledged_fragments_are_ignored(patch: pytest.MonkeyPatch) -> None:
    """P13, P15: acknowledgements count for complete messages only."""
    acknowledge = Transmission.acknowledge
    patch.setattr(Transmission, "acknowledge", lambda self, acked, _: acknowledge(self, acked, []))


def acknowledgements_of_unsent_messages_are_trusted(patch: pytest.MonkeyPatch) -> None:
    """P16: any acknowledgement is trusted."""
    patch.setattr(Transmission, "clamp_acknowledgement", lambda _, acked, runs: (acked, runs))


def acknowledgements_beyond_this_run_are_ignored(patch: pytest.MonkeyPatch) -> None:
    """P16: after a restart, an acknowledgement of more than was sent since is ignored."""
    trusted = Transmission.clamp_acknowledgement

    def all_or_nothing(self: Transmission, acked: int, runs: list[Any]) -> tuple[int, list[Any]]:
        good = trusted(self, acked, runs)
        return good if good == (acked, runs) else (-1, [])

    patch.setattr(Transmission, "clamp_acknowledgement", all_or_nothing)


def old_acknowledgements_count_as_losses(patch: pytest.MonkeyPatch) -> None:
    """An acknowledgement of less than was acknowledged before ends the conversation."""
    patch.setattr(Transmission, "shows_data_loss", lambda self, acked, runs: bool(runs) and acked < self.acked)


def acknowledgements_of_earlier_runs_count_as_new(patch: pytest.MonkeyPatch) -> None:
    """After a restart an old acknowledgement of resent rows ends the conversation."""

    def without_first_unsent(*given: Any, **options: Any) -> Transmission:
        return Transmission(*given, **{**options, "first_unsent": 0} if "first_unsent" in options else options)

    for module in (dialog_module, transmission):
        patch.setattr(module, "Transmission", without_first_unsent)


def large_messages_restart_from_the_first_fragment(patch: pytest.MonkeyPatch) -> None:
    """P16: after a restart a large message is sent again from its first fragment."""
    patch.setattr(Transmission, "_advance_cursor", lambda _: None)


def messages_dropped_by_the_peer_are_not_resent(patch: pytest.MonkeyPatch) -> None:
    """P23: a message that the peer dropped is not sent again."""
    patch.setattr(Transmission, "_requeue_lost", lambda _: None)


def no_window(patch: pytest.MonkeyPatch) -> None:
    """Everything is sent immediately."""
    turn = Sender.plan_turn

    def unlimited(self: Sender, dialog: Dialog, now: int) -> SendTurn:
        made = turn(self, dialog, now)
        made.fragment_budget, made.byte_budget = 10_000, 1 << 40
        return made

    patch.setattr(Sender, "plan_turn", unlimited)


def no_window_of_bytes(patch: pytest.MonkeyPatch) -> None:
    """The window counts fragments, but not bytes."""
    turn = Sender.plan_turn

    def unlimited(self: Sender, dialog: Dialog, now: int) -> SendTurn:
        made = turn(self, dialog, now)
        made.byte_budget = 1 << 40
        return made

    patch.setattr(Sender, "plan_turn", unlimited)


def a_large_message_blocks_other_dialogs(patch: pytest.MonkeyPatch) -> None:
    """P13: the large message of one dialog blocks all others."""
    turn = Sender.plan_turn

    def whole_message(self: Sender, dialog: Dialog, now: int) -> SendTurn:
        made = turn(self, dialog, now)
        made.fragment_budget = self._settings.window_fragments - dialog.transmission.fragments_in_flight
        return made

    patch.setattr(Sender, "plan_turn", whole_message)


def small_messages_wait(patch: pytest.MonkeyPatch) -> None:
    """P13: messages behind a large one wait for it."""

    def in_order(rows: Sequence[int], sequences: Sequence[int], counts: Sequence[int]) -> Iterator[int]:
        del sequences, counts
        return iter(rows)

    patch.setattr(sender, "interleave", in_order)


def does_not_wait_for_the_first_answer(patch: pytest.MonkeyPatch) -> None:
    """R8: later messages are sent before it is known which copy of the service received the first."""
    patch.setattr(Sender, "last_sendable", lambda *_: 1 << 40)


def the_binding_is_ignored(patch: pytest.MonkeyPatch) -> None:
    """R8: later messages carry no broker id."""

    def bind(self: RowOpener, row: EnvelopeRow, dialog: Dialog) -> None:
        if not dialog.endpoint.is_bound and (row.is_sequenced or row.acked_ahead is not None):
            self._opened.bound[dialog.key] = replace(dialog.endpoint, is_bound=True, far_peer=self._peer)

    patch.setattr(RowOpener, "_bind", bind)


def priorities_are_ignored(patch: pytest.MonkeyPatch) -> None:
    """All dialogs have equal priority."""
    ready = DialogCache.mark_ready

    def equal(self: DialogCache, dialog: Dialog) -> None:
        self._honor_priority = False
        ready(self, dialog)

    patch.setattr(DialogCache, "mark_ready", equal)


def the_lifetime_is_ignored(patch: pytest.MonkeyPatch) -> None:
    """Messages are sent after the lifetime."""
    turns = DialogEngine._collect_turns

    def collect(self: DialogEngine, found: list[SendTurn], owing: list[Dialog], now: int, _: int, most: int) -> bool:
        return turns(self, found, owing, now, -1, most)

    patch.setattr(DialogEngine, "_collect_turns", collect)


def a_clock_set_back_delays_retries(patch: pytest.MonkeyPatch) -> None:
    """P17: after the clock was set back an hour, nothing is sent again for an hour."""
    patch.setattr(MonotonicClock, "monotonic", lambda _, now: now)
    patch.setattr(MonotonicClock, "wall_time", lambda _, now: now)


def packing_forgets_messages_in_transit(patch: pytest.MonkeyPatch) -> None:
    """P32: an evicted dialog is restored as if everything had been acknowledged."""
    unpacked = transmission.unpack_transmission

    def empty(data: bytes) -> Transmission:
        made = unpacked(data)
        made.in_flight.clear()
        made.flights.clear()
        return made

    patch.setattr(engine, "unpack_transmission", empty)


def packing_forgets_acknowledged_fragments(patch: pytest.MonkeyPatch) -> None:
    """P13, P32: an evicted dialog is restored as if nothing after the last complete message had been acknowledged."""
    packed = transmission.pack_transmission

    def coarse(transmission: Transmission) -> bytes:
        first = transmission.acked + 1
        flights = [Flight(min(flight.due for flight in transmission.flights), 0, {})] if transmission.flights else []
        unsent = transmission.first_unsent
        return packed(
            Transmission(
                transmission.key,
                transmission.acked,
                first,
                last_interleaved=first,
                first_unsent=unsent,
                flights=flights,
            )
        )

    patch.setattr(engine, "pack_transmission", coarse)


def packed_objects_are_unbounded(patch: pytest.MonkeyPatch) -> None:
    """Objects of any size are packed."""
    patch.setattr(transmission, "PACKED_MAX", 1 << 20)


def one_timer_for_all(patch: pytest.MonkeyPatch) -> None:
    """P17: of rows sent at several times only the first are sent again."""
    launch = Sender._record_flights

    def first_only(self: Sender, turns: Sequence[SendTurn], now: int) -> None:
        launch(self, turns, now)
        for turn in turns:
            del turn.due_times[1:]

    patch.setattr(Sender, "_record_flights", first_only)


def acknowledgements_are_never_piggybacked(patch: pytest.MonkeyPatch) -> None:
    """P15: an acknowledgement is always sent alone."""
    fragments = encoder.Encoder.fragments

    def alone(self: encoder.Encoder, batch: FragmentBatch | FastOutbound) -> pa.Table:
        turns = batch.turns if isinstance(batch, FragmentBatch) else [run.turn for run in batch.runs]
        dues = [(turn.dialog, turn.dialog.ack_due) for turn in turns]
        for dialog, _ in dues:
            dialog.ack_due = None
        rows = fragments(self, batch)
        for dialog, due in reversed(dues):
            dialog.ack_due = due if due is not None else dialog.ack_due
        return rows

    patch.setattr(encoder.Encoder, "fragments", alone)


def acknowledgements_are_only_piggybacked(patch: pytest.MonkeyPatch) -> None:
    """P15: an acknowledgement waits for a message forever."""
    due = DialogEngine._must_acknowledge

    def never(self: DialogEngine, dialog: Dialog, now: int) -> bool:
        due(self, dialog, now)
        return False

    patch.setattr(DialogEngine, "_must_acknowledge", never)


def errors_wait_for_dropped_messages(patch: pytest.MonkeyPatch) -> None:
    """An application's error is sent only after the messages before it, which were dropped."""
    patch.setattr(Transmission, "skip_to", lambda self, _: setattr(self, "is_dirty", True))
