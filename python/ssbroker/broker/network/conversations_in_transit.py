"""The conversations whose messages are being sent, their `transmission_status`, and the addresses that cannot be reached."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, NamedTuple

from ssbroker.broker.context import DatabaseContext, log_failure
from ssbroker.broker.delivery import OutgoingConversation, write_statuses
from ssbroker.broker.delivery_schedule import SenderId
from ssbroker.broker.dialogs.transmission_status import (
    NO_PROBLEM,
    TransmissionStatus,
    dropped_by_next_hop,
    no_principal,
    unacknowledged,
    unreachable,
)
from ssbroker.broker.network.database_dialogs import FAILED_DATABASE_RETRY_INTERVAL
from ssbroker.broker.network.dialog_keys import EXCHANGE_LOCK_TIMEOUT
from ssbroker.exceptions import SsbrokerError
from ssbroker.protocol.settings import SECOND
from ssbroker.protocol.storage import EndpointKey
from ssbroker.protocol.wire.frames import DropReason

if TYPE_CHECKING:
    from ssbroker.store.conversation_endpoints import ConversationEndpoint


UNACKNOWLEDGED_AFTER: Final = 4 * SECOND
"""After this time without an acknowledgement, `transmission_status` says that messages are unacknowledged."""
DROP_REASON_HOLDS: Final = 150 * SECOND
"""How long a reason for dropped rows is valid: each dropped retransmission renews it, and the longest wait of P17 is 72 s."""
FORGET_AFTER: Final = 300 * SECOND
"""After this time without activity, a conversation has nothing to send: the longest wait of P17 is much shorter."""

UNREACHABLE_MAX: Final = 10_000
"""The maximum number of unreachable addresses to remember."""


@dataclass(slots=True)
class ConversationInTransit:
    """A conversation whose messages are being sent.

    Attributes:
        outgoing: The conversation, as delivery last passed it to `ConversationsInTransit.add`.
        since: When the conversation was added, or last acknowledged.
        blocked_by: The status that blocks the messages of the conversation; None if they are not blocked.
        drop_reason: Why the next hop does not acknowledge the messages; None if the next hop has given no reason since `since`.
        dropped_at: When the next hop gave the reason.
        status_text: The `transmission_status` that was last written.
        last_seen: When delivery last passed the conversation to `ConversationsInTransit.add`.
    """

    outgoing: OutgoingConversation
    since: int
    blocked_by: TransmissionStatus | None = None
    drop_reason: DropReason | None = None
    dropped_at: int = 0
    status_text: str = ""
    last_seen: int = 0


class StatusUpdate(NamedTuple):
    """A `transmission_status` to write."""

    conversation: ConversationInTransit
    sender: ConversationEndpoint
    """The endpoint, with its current status."""
    status_text: str
    """The new status."""


class ConversationsInTransit:
    """The conversations whose messages are being sent, by database and endpoint. Thread-safe.

    Attributes:
        unreachable: The unreachable addresses, each with the error.
    """

    def __init__(self, *, principal_address: Callable[[str, str, bytes | None], str | None]) -> None:
        self._principal_address: Final = principal_address
        self._guard: Final = threading.RLock()
        self._conversations: defaultdict[int, dict[EndpointKey, ConversationInTransit]] = defaultdict(dict)
        self._new: dict[int, dict[EndpointKey, OutgoingConversation]] = {}
        self._keys: dict[tuple[int, int], EndpointKey] = {}
        self.unreachable: dict[str, str] = {}

    def add(self, conversations: Sequence[OutgoingConversation], *, now: int) -> dict[int, TransmissionStatus]:
        """Adds conversations that have messages to send; returns the status of blocked conversations, by endpoint id."""
        blocked: dict[int, TransmissionStatus] = {}
        with self._guard:
            for each in conversations:
                sender = each.sender
                key, database_id = (sender.conversation_id, bool(sender.is_initiator)), each.database.database_id
                self._new.setdefault(database_id, {})[key] = each
                known = self._conversations[database_id]
                conversation = known.get(key)
                if conversation is None or conversation.outgoing.sender.endpoint_id != sender.endpoint_id:
                    conversation = known[key] = ConversationInTransit(each, now)
                conversation.outgoing = each
                conversation.last_seen = now
                self._keys[database_id, sender.endpoint_id] = key
                status = self._status(conversation, now)
                conversation.status_text = NO_PROBLEM if status is None else str(status)
                if status is not None:
                    blocked[sender.endpoint_id] = status
        return blocked

    def add_more(self, database_id: int, endpoint_ids: Iterable[int]) -> list[int]:
        """Marks known conversations that have more to send; returns the endpoint ids of the others, which must be passed to `add`."""
        others: list[int] = []
        with self._guard:
            new, known = self._new.setdefault(database_id, {}), self._conversations[database_id]
            for endpoint_id in endpoint_ids:
                key = self._keys.get((database_id, endpoint_id))
                conversation = None if key is None else known.get(key)
                if key is None or conversation is None or conversation.status_text != NO_PROBLEM:
                    others.append(endpoint_id)
                else:
                    new.setdefault(key, conversation.outgoing)
        return others

    def forget(self, sender: SenderId) -> None:
        """Forgets which conversation a removed sender belonged to, because a new conversation has its id now."""
        self._keys.pop(sender, None)  # atomic; callers hold the write lock of the database, and must not wait here

    def take(self) -> dict[int, dict[EndpointKey, OutgoingConversation]]:
        """Removes and returns the conversations added since the last call, by database."""
        with self._guard:
            new, self._new = self._new, {}
            return new

    @property
    def has_new(self) -> bool:
        """Whether anything was added since the last `take`."""
        return bool(self._new)

    def sent_up_to(self, database_id: int) -> dict[int, tuple[bytes, int]]:
        """Returns, by endpoint id, the conversation handle and the next sequence number of the conversations of a database."""
        with self._guard:
            return {
                each.outgoing.endpoint_id: (
                    each.outgoing.sender.conversation_handle,
                    each.outgoing.sender.send_sequence,
                )
                for each in self._conversations[database_id].values()
            }

    def set_blocked(self, database_id: int, key: EndpointKey, status: TransmissionStatus | None) -> None:
        """Sets the status that blocks a conversation, or removes it."""
        conversation = self._conversations.get(database_id, {}).get(key)  # creates nothing without the guard
        if status is None and (conversation is None or conversation.blocked_by is None):
            return
        with self._guard:
            conversation = self._conversations[database_id].get(key)
            if conversation is not None:
                conversation.blocked_by = status

    def set_drop_reasons(
        self, database_id: int, address: str, reasons: Mapping[EndpointKey, DropReason], *, now: int
    ) -> None:
        """Records why an address does not acknowledge conversations; ignores conversations that are sent elsewhere."""
        with self._guard:
            known = self._conversations[database_id]
            for key, reason in reasons.items():
                conversation = known.get(key)
                if conversation is None:
                    continue
                decision = conversation.outgoing.decision
                if address in (decision.next_hop_address, decision.mirror_address):
                    conversation.drop_reason, conversation.dropped_at = reason, now

    def acknowledged(self, database_id: int, keys: Iterable[EndpointKey], *, now: int) -> None:
        """Records that conversations were acknowledged."""
        with self._guard:
            known = self._conversations[database_id]
            for key in keys:
                conversation = known.get(key)
                if conversation is not None:
                    conversation.since, conversation.drop_reason = now, None

    def remove_idle(self, *, now: int) -> None:
        """Removes idle conversations, and the errors of addresses that no conversation uses any more."""
        with self._guard:
            for database_id, known in list(self._conversations.items()):
                for key, conversation in list(known.items()):
                    if not 0 <= now - conversation.last_seen < FORGET_AFTER:
                        del known[key]
                        self._keys.pop((database_id, conversation.outgoing.endpoint_id), None)
            decisions = [conversation.outgoing.decision for conversation in self._all()]
            used = {address for each in decisions for address in (each.next_hop_address, each.mirror_address)}
            self.unreachable = {address: why for address, why in self.unreachable.items() if address in used}

    def mark_unreachable(self, address: str, why: str) -> None:
        """Records that an address cannot be reached; keeps only the latest such addresses, because peers can choose addresses."""
        with self._guard:
            self.unreachable.pop(address, None)
            self.unreachable[address] = why
            while len(self.unreachable) > UNREACHABLE_MAX:
                del self.unreachable[next(iter(self.unreachable))]

    def mark_reachable(self, address: str) -> None:
        """Records that an address has been reached."""
        with self._guard:
            self.unreachable.pop(address, None)

    def clear(self) -> None:
        """Removes all conversations, so that they are routed again; delivery adds the conversations with waiting messages again."""
        with self._guard:
            self._conversations.clear()
            self._keys.clear()

    def updates(self, addresses: Collection[str], *, max_updates: int, now: int) -> list[StatusUpdate]:
        """Returns the changed statuses of conversations that use `addresses` or were blocked; returns them again until `mark_written` is called."""
        with self._guard:
            return list(islice(self._updates(frozenset(addresses), now), max_updates))

    def _updates(self, addresses: frozenset[str | None], now: int) -> Iterator[StatusUpdate]:
        for conversation in self._all():
            decision = conversation.outgoing.decision
            if conversation.blocked_by is None and addresses.isdisjoint(
                (decision.next_hop_address, decision.mirror_address)
            ):
                continue
            status = self._status(conversation, conversation.since)
            new = NO_PROBLEM if status is None else str(status)
            # A status that delivery has written and that is still valid is not written again.
            if conversation.status_text != new and conversation.status_text != str(self._status(conversation, now)):
                yield StatusUpdate(
                    conversation,
                    conversation.outgoing.sender._replace(transmission_status=conversation.status_text),
                    new,
                )

    def _all(self) -> Iterator[ConversationInTransit]:
        return chain.from_iterable(known.values() for known in self._conversations.values())

    def mark_written(self, updates: Iterable[StatusUpdate]) -> None:
        """Records which statuses were written, except where delivery has written a different status in the meantime."""
        with self._guard:
            for conversation, sender, status_text in updates:
                if conversation.status_text == sender.transmission_status:
                    conversation.status_text = status_text

    def _status(self, conversation: ConversationInTransit, now: int) -> TransmissionStatus | None:
        if conversation.blocked_by is not None:
            return conversation.blocked_by
        decision = conversation.outgoing.decision
        address, mirror = decision.next_hop_address or "", decision.mirror_address
        if mirror is not None:
            principal_address = self._principal_address(address, mirror, decision.broker_instance)
            if principal_address is None:
                return no_principal(address, mirror)
            address = principal_address
        if address in self.unreachable:
            return unreachable(address, self.unreachable[address])
        if conversation.drop_reason is not None and now - conversation.dropped_at < DROP_REASON_HOLDS:
            return dropped_by_next_hop(address, conversation.drop_reason)
        return unacknowledged(address) if conversation.since + UNACKNOWLEDGED_AFTER <= now else None


UPDATES_MAX: Final = 1000
"""The maximum number of statuses to write at a time; nothing is sent while they are written."""
PAUSE_FACTOR: Final = 20
"""The pause after writing is this many times as long as the writing took, so that an unstable peer costs little."""
PAUSE_MAX: Final = 60 * SECOND
"""The longest pause: if the clock is set forward during the work before the pause, the work seems to have taken long."""


class StatusWriter:
    """Writes the changed `transmission_status` of conversations in transit. For one thread.

    Attributes:
        is_due: Whether a status may have changed, so that `write` must be called.
    """

    def __init__(self, in_transit: ConversationsInTransit, *, clock: Callable[[], int]) -> None:
        self._in_transit: Final = in_transit
        self._clock: Final = clock
        self._addresses: Final[set[str]] = set()
        self.is_due = False
        self._written_at = self._pause = 0

    def mark_changed(self, addresses: Iterable[str] = ()) -> None:
        """Records that the statuses of conversations that use `addresses`, or are blocked, may have changed."""
        self._addresses.update(addresses)
        self.is_due = True

    def write(self, *, now: int) -> int | None:
        """Writes changed statuses, unless the last write was too recent; returns when to call `write` again, or None if nothing is left."""
        if not self.is_due:
            return None
        if 0 <= now - self._written_at < self._pause:
            return self._written_at + self._pause
        updates = self._in_transit.updates(self._addresses, max_updates=UPDATES_MAX, now=now)
        is_written = self._write(updates)
        self._written_at = self._clock()
        pause = min(PAUSE_FACTOR * max(self._written_at - now, 0), PAUSE_MAX)
        self._pause = pause if is_written else FAILED_DATABASE_RETRY_INTERVAL
        self.is_due = not is_written or len(updates) == UPDATES_MAX
        if not self.is_due:
            self._addresses.clear()
            return None
        return self._written_at + self._pause

    def _write(self, updates: list[StatusUpdate]) -> bool:
        """Writes statuses, database by database; returns whether all were written."""
        by_database: dict[int, tuple[DatabaseContext, list[StatusUpdate]]] = {}
        for update in updates:
            database = update.conversation.outgoing.database
            by_database.setdefault(database.database_id, (database, []))[1].append(update)
        is_written = True
        for database, group in by_database.values():
            senders = {each.sender.endpoint_id: each.sender for each in group}
            status_text = {each.sender.endpoint_id: each.status_text for each in group}
            try:
                is_group_written = write_statuses(database, senders, status_text, lock_timeout=EXCHANGE_LOCK_TIMEOUT)
            except SsbrokerError as error:
                log_failure(database, "transmission_status could not be written; trying again later", error)
                is_group_written = False
            if is_group_written:
                self._in_transit.mark_written(group)
            is_written &= is_group_written
        return is_written
