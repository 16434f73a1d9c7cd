"""What arrives, put together: messages whose turn it is, fragments to be kept, and what is owed to the senders (P14 to P18)."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from ssbroker.protocol.assembly import Assembled, Assembly
from ssbroker.protocol.dialog import Dialog
from ssbroker.protocol.envelope import Security
from ssbroker.protocol.event_log import EventLog
from ssbroker.protocol.events import CorruptedMessage, MessageUndeliverable
from ssbroker.protocol.incoming import Part
from ssbroker.protocol.ledger import MESSAGES, NO_MESSAGES, NO_PARTS, Key, Ledger, Refusal
from ssbroker.protocol.loading import Loading
from ssbroker.protocol.opening import GONE, Notice
from ssbroker.protocol.plain_arrivals import PlainArrivals
from ssbroker.protocol.push import senders_of, stored_table
from ssbroker.protocol.rows import Row

_DIGEST_BYTES: Final = 16
_CORRUPT: Final = ("corrupt_fragment", "corrupt_message")


@dataclass(slots=True)
class Owed:
    """What a batch makes a dialog owe to its sender.

    Attributes:
        fragments: How many fragments were taken.
        bytes: And how many bytes.
        at_once: Whether the sender waits for the acknowledgement, or asks for it again (P18).
    """

    fragments: int = 0
    bytes: int = 0
    at_once: bool = False


@dataclass(slots=True)
class Received:
    """What came of a batch.

    Attributes:
        messages: The messages that enter their queues (`ledger.MESSAGES`).
        stored: The fragments that are kept (`ledger.STORED`).
        received: The new receive sequence of endpoints.
        dropped: Stored fragments of messages whose whole does not match.
        owed: What is owed to the senders.
        notices: What is answered to messages that cannot be taken.
        unloaded: Dialogs that have to be read back, since a message of theirs was refused.
        refused: Why, by endpoint.
    """

    messages: pa.Table = field(default_factory=lambda: NO_MESSAGES)
    stored: pa.Table = field(default_factory=lambda: NO_PARTS)
    received: dict[Key, int] = field(default_factory=dict)
    dropped: list[tuple[Key, int]] = field(default_factory=list)
    owed: dict[Key, Owed] = field(default_factory=dict)
    notices: list[Notice] = field(default_factory=list)
    unloaded: list[Dialog] = field(default_factory=list)
    refused: dict[Key, Refusal] = field(default_factory=dict)

    def join(self, plain: PlainArrivals) -> None:
        """Takes in what is plain, before what came of the others; the directions go on.

        Args:
            plain: What is plain, of other endpoints.
        """
        if not plain.runs:
            return
        self.messages = pa.concat_tables([plain.messages, self.messages.cast(MESSAGES)])
        for each in plain.runs:
            number = each.run.first + each.run.rows
            each.incoming.reach(number)
            self.received[each.run.key] = number
            self.owed[each.run.key] = Owed(each.run.rows, each.body_bytes, at_once=not each.is_bound)


class Receiving:
    """Puts opened fragments together.

    Args:
        ledger: What judges messages.
        loading: Has the directions in memory.
        assembly: Puts their parts together.
        log: Where what is refused is told of.
    """

    __slots__ = ("_assembly", "_ledger", "_loading", "_log")

    def __init__(self, ledger: Ledger, loading: Loading, assembly: Assembly, log: EventLog) -> None:
        self._ledger = ledger
        self._loading = loading
        self._assembly = assembly
        self._log = log

    def take(self, opened: Sequence[tuple[Dialog, Row, bytes]], *, begun: Mapping[Key, Dialog], now: int) -> Received:
        """Takes fragments in.

        Args:
            opened: The fragments, with their dialogs.
            begun: Dialogs that begin with this batch.
            now: The moment.

        Returns:
            What came of them. The directions are changed; `Loading.unload` takes that back.
        """
        result = Received()
        dialogs = {dialog.key: dialog for dialog, _, _ in opened}
        self._loading.load(dialogs, begun=begun)
        before = {key: dialog.incoming.next for key, dialog in dialogs.items() if dialog.incoming is not None}
        parts = self._digested(list(_fresh(opened, result.owed)), now)
        if parts:
            assembled = self._assembly.push(parts)
            self._refused(assembled, dialogs, result, now)
            self._released(assembled, dialogs, result)
            self._answered(assembled, dialogs, result)
        for key, dialog in dialogs.items():
            incoming = dialog.incoming
            if incoming is not None and incoming.next != before[key]:
                result.received.setdefault(key, incoming.next)
        self._loading.weigh(dialogs)
        return result

    def _digested(self, fresh: Sequence[tuple[Dialog, Row, bytes]], now: int) -> list[Part]:
        """The fragments with digests instead of signatures; in a secured dialog, the signature of the message has to be there (P21)."""
        parts: list[Part] = []
        secured: dict[Key, list[tuple[Part, Row]]] = {}
        for dialog, row, body in fresh:
            incoming, message_type = dialog.incoming, row.message_type
            if incoming is None or message_type is None:  # both are there: loaded, and proven to be a message
                continue
            kind = (message_type, row.message_id, row.is_end, row.is_error)
            digests = (row.message_signature, row.fragment_signature)
            part = Part(incoming, row.sequence, row.fragment, row.count, body, *digests, kind)
            if dialog.inbound is not None:
                signatures = digests if row.security == Security.SIGNED and row.count > 1 else digests[:1]
                if any(signature is None or len(signature) != _DIGEST_BYTES for signature in signatures):
                    self._corrupted(dialog, part, "a signature is missing", now)
                    continue
                secured.setdefault(dialog.key, []).append((part, row))
            parts.append(part)
        by_key = {dialog.key: dialog for dialog, _, _ in fresh} if secured else {}
        for key, rows in secured.items():
            _decrypt(by_key[key], rows)
        return parts

    def _refused(self, assembled: Assembled, dialogs: Mapping[Key, Dialog], result: Received, now: int) -> None:
        for part, reason in assembled.rejected:
            dialog = dialogs[part.incoming.key]
            owed = result.owed.setdefault(dialog.key, Owed())
            if reason == "duplicate":
                owed.at_once = True
            elif reason in _CORRUPT:
                self._corrupted(dialog, part, "the content does not match its signature", now)
            else:
                self._undelivered(dialog, part, reason, now)
        result.dropped += assembled.forgotten

    def _released(self, assembled: Assembled, dialogs: Mapping[Key, Dialog], result: Received) -> None:
        """Messages and kept fragments; from a message on that cannot be taken, nothing of its dialog (B11)."""
        messages = assembled.messages
        stopped: dict[Key, int] = {}
        if messages.num_rows:
            of_each = [dialogs[conversation_id, not side] for conversation_id, side in senders_of(messages)]
            refusals = self._ledger.judge(messages, [dialog.endpoint.service_contract_name for dialog in of_each])
            if refusals:
                messages = self._stopped(messages, of_each, refusals, result, stopped)
        result.messages = messages
        result.stored = stored_table([part for part in assembled.kept if part.incoming.key not in stopped])
        for key, sequence in stopped.items():
            result.received[key] = sequence

    @staticmethod
    def _answered(assembled: Assembled, dialogs: Mapping[Key, Dialog], result: Received) -> None:
        """Whoever has sent a broken conversation a message is told, as often as it comes (N31)."""
        for dialog in [dialogs[key] for key in assembled.broken]:
            result.received[dialog.key] = 0 if dialog.incoming is None else dialog.incoming.next
            result.unloaded.append(dialog)
            result.notices.append(Notice(dialog, None, -GONE, "the far end of the conversation takes no more messages"))

    @staticmethod
    def _stopped(
        messages: pa.Table,
        dialogs: Sequence[Dialog],
        refusals: Mapping[int, Refusal],
        result: Received,
        stopped: dict[Key, int],
    ) -> pa.Table:
        sequences: list[Any] = messages["message_sequence_number"].to_pylist()
        stays: list[bool] = []
        for row, (dialog, sequence) in enumerate(zip(dialogs, sequences, strict=True)):
            key = dialog.key
            refusal = refusals.get(row)
            if refusal is not None and key not in stopped:
                stopped[key] = sequence
                result.unloaded.append(dialog)
                result.refused[key] = refusal
                result.notices.append(Notice(dialog, None, refusal.code, refusal.description))
            stays.append(key not in stopped)
        return messages.filter(pa.array(stays, pa.bool_()))

    def _undelivered(self, dialog: Dialog, part: Part, reason: str, now: int) -> None:
        self._log.emit(
            MessageUndeliverable(
                at=now,
                conversation_id=uuid.UUID(bytes=dialog.endpoint.conversation_id),
                message_sequence_number=part.sequence,
                fragment_number=part.fragment,
                text=reason,
            )
        )

    def _corrupted(self, dialog: Dialog, part: Part, text: str, now: int) -> None:
        endpoint = dialog.endpoint
        self._log.emit(
            CorruptedMessage(
                at=now,
                conversation_id=uuid.UUID(bytes=endpoint.conversation_id),
                is_initiator=not endpoint.is_initiator,
                message_sequence_number=part.sequence,
                fragment_number=part.fragment,
                from_service_name=endpoint.far_service_name,
                peer=endpoint.far_peer,
                text=text,
            )
        )


def _fresh(
    opened: Sequence[tuple[Dialog, Row, bytes]], owed_of: dict[Key, Owed]
) -> Iterator[tuple[Dialog, Row, bytes]]:
    """What is not there already; what is owed for all of it is noted."""
    there: set[tuple[Key, int, int]] = set()
    for item in opened:
        dialog, row, body = item
        incoming = dialog.incoming
        if incoming is None:  # it is loaded
            continue
        owed = owed_of.setdefault(dialog.key, Owed())
        place = (dialog.key, row.sequence, row.fragment)
        if row.sequence < incoming.next or (row.sequence, row.fragment) in incoming.runs or place in there:
            owed.at_once = True
            continue
        owed.at_once |= row.to_broker is None
        there.add(place)
        owed.fragments += 1
        owed.bytes += len(body)
        yield item


def _decrypt(dialog: Dialog, rows: Sequence[tuple[Part, Row]]) -> None:
    """Puts digests into the parts of a secured dialog. A sealed part needs no digest of its own: its seal has proven it."""
    secured = dialog.inbound
    if secured is None:
        return
    signatures = [row.message_signature or b"" for _, row in rows]
    digests = secured.message_digests([part.sequence for part, _ in rows], signatures)
    for (part, _), digest in zip(rows, digests, strict=True):
        part.message_digest = digest
        part.fragment_digest = None
    signed = [
        (part, row) for part, row in rows if row.security == Security.SIGNED and row.fragment_signature is not None
    ]
    if signed:
        digests = secured.fragment_digests(
            [(part.sequence, part.fragment, part.count) for part, _ in signed],
            [row.message_signature or b"" for _, row in signed],
            [row.fragment_signature or b"" for _, row in signed],
        )
        for (part, _), digest in zip(signed, digests, strict=True):
            part.fragment_digest = digest
