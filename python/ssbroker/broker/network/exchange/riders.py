"""What rides with the rows that a machine sends: the session keys of those whose far side does not have them yet (N19)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ssbroker.broker.dialogs.status import Status
from ssbroker.broker.network.hooks import KeyExchanges, Offer, Wait
from ssbroker.protocol.columns import listed
from ssbroker.protocol.envelope import Security
from ssbroker.protocol.ledger import Key
from ssbroker.store import remote

if TYPE_CHECKING:
    from ssbroker.broker.database import Database
    from ssbroker.store.endpoints import Endpoint


class Riders:
    """The blobs of the dialogs of one database. For one thread.

    A blob rides with every row of its endpoint, acknowledgements and errors as well, so that it is there with whichever arrives first,
    until the far side has shown that it has the key.

    Args:
        database: The database.
        keys: Who settles keys.
    """

    def __init__(self, database: Database, keys: KeyExchanges) -> None:
        self._database: Final = database
        self._keys: Final = keys
        self._offers: dict[Key, Offer] = {}
        self._done: set[Key] = set()

    def settle(self, sender: Endpoint) -> Status | None:
        """Settles how the messages of an endpoint leave, unless that is settled.

        Args:
            sender: The endpoint, as committed.

        Returns:
            Why they have to wait; None where they may go.

        Raises:
            SsbrokerError: The keys cannot be read or written.
        """
        key = (sender.conversation_id, bool(sender.is_initiator))
        if key in self._done or key in self._offers:
            return None
        answer = self._keys.for_sending(self._database, sender)
        if isinstance(answer, Wait):
            return answer.status
        self._note(key, answer)
        return None

    def has_blob(self, key: Key) -> bool:
        """Whether something rides with what an endpoint sends."""
        offer = self._offers.get(key)
        return offer is not None and offer.key_exchange is not None

    def column(self, rows: pa.Table, *, now: int) -> pa.Array[Any]:
        """The blobs that ride with rows of which some are secured.

        Args:
            rows: The rows (`envelope.ENVELOPE`).
            now: The moment.

        Returns:
            The column `key_exchange`.

        Raises:
            SsbrokerError: The keys cannot be read.
        """
        levels: list[Any] = rows["security"].to_pylist()
        conversations: list[Any] = listed(rows["conversation_id"])
        sides: list[Any] = rows["is_initiator"].to_pylist()
        senders: list[Key] = list(zip(conversations, sides, strict=True))
        secured = {sender for sender, level in zip(senders, levels, strict=True) if level != Security.PLAIN}
        self._renew([sender for sender in secured if not self._is_current(sender, now)])
        blobs = {sender: offer.key_exchange for sender in secured if (offer := self._offers.get(sender)) is not None}
        return pa.array([blobs.get(sender) for sender in senders], pa.binary())

    def answered(self, keys: Iterable[Key]) -> None:
        """Notes that the far sides of endpoints have shown that they have the keys.

        Args:
            keys: The endpoints.
        """
        for key in keys:
            self._offers.pop(key, None)
            self._done.add(key)

    def anew(self, keys: Iterable[Key]) -> None:
        """Has what rides with endpoints made anew: their far sides have other certificates.

        Args:
            keys: The endpoints.
        """
        for key in keys:
            self._offers.pop(key, None)

    def forget(self) -> None:
        """Has all that is not answered settled again: the catalog has changed."""
        self._offers.clear()

    def keep(self, is_kept: Callable[[Key], bool]) -> None:
        """Forgets the endpoints that are not in memory any more.

        Args:
            is_kept: Whether an endpoint is.
        """
        self._offers = {key: offer for key, offer in self._offers.items() if is_kept(key)}
        self._done = {key for key in self._done if is_kept(key)}

    def _is_current(self, key: Key, now: int) -> bool:
        if key in self._done:
            return True
        offer = self._offers.get(key)
        return offer is not None and (offer.until is None or now < offer.until)

    def _renew(self, keys: list[Key]) -> None:
        if not keys:
            return
        with self._database.file.read() as connection:
            found = remote.find(connection, keys)
        for key in keys:
            self._offers.pop(key, None)
            answer = Offer() if key not in found else self._keys.for_sending(self._database, found[key])
            if isinstance(answer, Offer):  # else it goes without, and the far side does not take it
                self._note(key, answer)

    def _note(self, key: Key, offer: Offer) -> None:
        if offer == Offer():
            self._done.add(key)
        else:
            self._offers[key] = offer
