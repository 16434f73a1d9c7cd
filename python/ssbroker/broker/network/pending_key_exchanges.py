"""The key exchange blobs that the dialogs of one database have to send."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ssbroker.broker.context import DatabaseContext
from ssbroker.broker.dialogs.transmission_status import TransmissionStatus
from ssbroker.broker.network.dialog_keys import DialogKeys, KeyOffer
from ssbroker.protocol.envelope import Protection, sender_keys
from ssbroker.protocol.storage import EndpointKey
from ssbroker.store import conversation_endpoints

if TYPE_CHECKING:
    from ssbroker.store.conversation_endpoints import ConversationEndpoint


class PendingKeyExchanges:
    """The key exchange blobs of one database's dialogs. For one thread at a time.

    Every row of an endpoint carries its blob, acknowledgements and errors included, until the remote endpoint has shown that it has the key:
    any row may be the first to arrive.
    """

    def __init__(self, database: DatabaseContext, keys: DialogKeys) -> None:
        self._database: Final = database
        self._keys: Final = keys
        self._offers: dict[EndpointKey, KeyOffer] = {}
        self._confirmed: set[EndpointKey] = set()

    def prepare(self, sender: ConversationEndpoint) -> TransmissionStatus | None:
        """Prepares the keys of an endpoint; returns the status that blocks its messages, if any."""
        key = (sender.conversation_id, bool(sender.is_initiator))
        if key in self._confirmed or key in self._offers:
            return None
        answer = self._keys.prepare_sending(self._database, sender)
        if isinstance(answer, TransmissionStatus):
            return answer
        self._store(key, answer)
        return None

    def has_blob(self, key: EndpointKey) -> bool:
        """Whether the rows of an endpoint carry a blob."""
        offer = self._offers.get(key)
        return offer is not None and offer.key_exchange is not None

    def key_exchange_column(self, rows: pa.Table, *, now: int) -> pa.Array[Any]:
        """Returns the column `key_exchange` for rows of which some are secured."""
        levels: list[Any] = rows["security"].to_pylist()
        senders = list(sender_keys(rows))
        secured = {sender for sender, level in zip(senders, levels, strict=True) if level != Protection.PLAIN}
        self._renew([sender for sender in secured if not self._is_current(sender, now)])
        blobs = {sender: offer.key_exchange for sender in secured if (offer := self._offers.get(sender)) is not None}
        return pa.array([blobs.get(sender) for sender in senders], pa.binary())

    def confirm(self, keys: Iterable[EndpointKey]) -> None:
        """Notes that remote endpoints have shown that they have the keys."""
        for key in keys:
            self._offers.pop(key, None)
            self._confirmed.add(key)

    def discard(self, keys: Iterable[EndpointKey]) -> None:
        """Discards blobs, because the certificates of the remote endpoints have changed."""
        for key in keys:
            self._offers.pop(key, None)

    def forget(self) -> None:
        """Discards all unconfirmed blobs, because the catalog has changed."""
        self._offers.clear()

    def retain(self, is_kept: Callable[[EndpointKey], bool]) -> None:
        """Removes the endpoints that are no longer in memory."""
        self._offers = {key: offer for key, offer in self._offers.items() if is_kept(key)}
        self._confirmed = {key for key in self._confirmed if is_kept(key)}

    def _is_current(self, key: EndpointKey, now: int) -> bool:
        if key in self._confirmed:
            return True
        offer = self._offers.get(key)
        return offer is not None and (offer.valid_until is None or now < offer.valid_until)

    def _renew(self, keys: list[EndpointKey]) -> None:
        if not keys:
            return
        with self._database.file.read() as connection:
            found = conversation_endpoints.by_sides(connection, keys)
        for key in keys:
            self._offers.pop(key, None)
            answer = KeyOffer() if key not in found else self._keys.prepare_sending(self._database, found[key])
            if isinstance(answer, KeyOffer):  # without a blob the remote endpoint rejects the row
                self._store(key, answer)

    def _store(self, key: EndpointKey, offer: KeyOffer) -> None:
        if offer == KeyOffer():
            self._confirmed.add(key)
        else:
            self._offers[key] = offer
