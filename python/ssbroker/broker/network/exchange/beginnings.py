"""The first rows of directions: whether they may begin, and with which keys (N19, N20)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ssbroker.broker.network.exchange.dispatch import Dispatch, Parcel
from ssbroker.broker.network.hooks import Beginning, KeyExchanges, Refused
from ssbroker.protocol.ledger import Endpoint, Exchanged, Key, SessionKeys

if TYPE_CHECKING:
    from ssbroker.broker.network.seam import Peer

_COLUMNS: Final = (
    "from_service_name",
    "from_broker_instance",
    "to_service_name",
    "to_broker_instance",
    "security",
    "key_exchange",
)


class Beginnings:
    """Asks for the keys of what begins, and leaves out what may not.

    Args:
        keys: Who settles keys.
        dispatch: Who tells of what nobody takes.
    """

    def __init__(self, keys: KeyExchanges, dispatch: Dispatch) -> None:
        self._keys: Final = keys
        self._dispatch: Final = dispatch

    def next_turn(self) -> None:
        """A turn of the exchange begins."""
        self._keys.next_turn()

    def open(self, peer: Peer, parcel: Parcel) -> tuple[pa.Table, SessionKeys]:
        """Opens what came with first rows.

        Args:
            peer: Who brought them.
            parcel: The rows.

        Returns:
            The rows that may be taken, and the keys of conversations that begin with them.
        """
        rows = parcel.rows
        asked, taken = self._asked(parcel)
        if not asked and not taken:
            return rows, {}
        self._renew(peer, parcel, taken)
        beginnings = _beginnings(peer, rows, asked)
        answers = self._keys.for_arriving(parcel.machine.database, beginnings)
        refused: set[Key] = set()
        keys: dict[bytes, Exchanged] = {}
        for (key, place), one, answer in zip(asked.items(), beginnings, answers, strict=True):
            if isinstance(answer, Refused):
                refused.add(key)
                self._dispatch.tell(rows, place, error=answer.error, text=answer.text, principal=one.principal)
            elif answer.keys is not None:
                of = (one.is_initiator, one.from_service_name, one.to_service_name)
                keys[key[0]] = replace(answer.keys, of=of)
        if refused:
            rows = rows.filter(pa.array([key not in refused for key in parcel.keys], pa.bool_()))
        return rows, keys

    def _renew(self, peer: Peer, parcel: Parcel, taken: Mapping[Endpoint, int]) -> None:
        """Looks whether the senders of conversations that were taken before have other certificates by now."""
        machine = parcel.machine
        came = _beginnings(peer, parcel.rows, {endpoint.key: place for endpoint, place in taken.items()})
        renewed = [
            endpoint.key
            for endpoint, one in zip(taken, came, strict=True)
            if self._keys.renewed(machine.database, endpoint, one)
        ]
        if renewed:
            machine.renewed(renewed)

    @staticmethod
    def _asked(parcel: Parcel) -> tuple[dict[Key, int], dict[Endpoint, int]]:
        """The directions to ask for, and the targets' endpoints that were taken before; with a row of each: one with a blob where there is any."""
        asked: dict[Key, int] = {}
        if parcel.fresh:
            for place, key in enumerate(parcel.keys):
                if key in parcel.fresh:
                    asked.setdefault(key, place)
        blobs = parcel.rows["key_exchange"]
        if blobs.null_count == len(blobs):
            return asked, {}
        with_blob: dict[Key, int] = {}
        for place, (key, blob) in enumerate(zip(parcel.keys, blobs.to_pylist(), strict=True)):
            if blob is not None:
                with_blob.setdefault(key, place)
        known = [key for key in with_blob if key not in parcel.fresh]
        senders = parcel.rows["from_broker_instance"]
        endpoints = [each for each in parcel.machine.ledger.endpoints(known) if each is not None]
        unanswered = {
            endpoint.key
            for endpoint in endpoints
            if endpoint.is_initiator
            and not (endpoint.is_bound and senders[with_blob[endpoint.key]].as_py() == endpoint.far_broker_instance)
        }
        for key, place in with_blob.items():
            if key in asked or key in unanswered:
                asked[key] = place
        return asked, {
            each: with_blob[each.key] for each in endpoints if each.far_certificate and not each.is_initiator
        }


def _beginnings(peer: Peer, rows: pa.Table, places: Mapping[Key, int]) -> list[Beginning]:
    columns: dict[str, Any] = {name: rows[name] for name in _COLUMNS}
    return [
        Beginning(
            conversation_id=key[0],
            is_initiator=not key[1],
            principal=peer.principal,
            **{name: column[place].as_py() for name, column in columns.items()},
        )
        for key, place in places.items()
    ]
