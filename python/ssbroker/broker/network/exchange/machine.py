"""The dialogs of one database with other instances (N2): what arrives for them, what they send, and where that goes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ssbroker.broker.delivery.ways import Decision
from ssbroker.broker.network.exchange.counted_ledger import CountedLedger
from ssbroker.broker.network.exchange.gates import Gates
from ssbroker.broker.network.exchange.ledger import Stale
from ssbroker.broker.network.exchange.riders import Riders
from ssbroker.broker.network.exchange.seeking import Asked, Seeking
from ssbroker.protocol.adjacent.stamping import stamped
from ssbroker.protocol.dialogs import Dialogs
from ssbroker.protocol.envelope import ENVELOPE
from ssbroker.protocol.ledger import Effects, Key, SessionKeys
from ssbroker.protocol.senders import Sender, senders_of
from ssbroker.protocol.settings import Settings

if TYPE_CHECKING:
    from ssbroker.broker.database import Database
    from ssbroker.broker.dialogs.status import Status
    from ssbroker.broker.network.hooks import KeyExchanges, Mirrors
    from ssbroker.store.endpoints import Endpoint

ROWS_MAX: Final = 1024
"""About how many rows a machine gives at once."""
BYTES_MAX: Final = 1 << 20
"""And how many bytes of bodies."""
PATIENCE: Final = 0.25
"""The seconds to wait for whoever writes to a file: while the exchange waits, nobody's messages go."""
LOCAL: Final = "LOCAL"
"""The gate of what is for a database of this instance."""
NOWHERE: Final = "NOWHERE"
"""The gate of what has no way; it opens when the catalog changes."""
MIRRORED: Final = " or "
"""Stands between the two addresses of a gate behind which nobody knows the principal."""


@dataclass(frozen=True, slots=True)
class Departure:
    """Rows that go one way.

    Attributes:
        gate: Where they go: an address, or `LOCAL`.
        rows: The rows (`adjacent.batch.WIRE`).
        keys: Who sends them.
    """

    gate: str
    rows: pa.Table
    keys: set[Key]


class Machine:
    """The dialogs of a database. For one thread.

    Args:
        database: The database.
        settings: How the protocol is set up.
        keys: Who settles keys.
        closed: The gates that are closed.
        mirrors: Who knows the principals of mirrored routes; None where nobody does.

    Attributes:
        database: The database.
        dialogs: The machine of the protocol.
        ledger: What is durable.
        gates: Where the dialogs send.
        riders: What rides with rows until far sides have the keys (N19).

    Raises:
        StorageError: The file cannot be used.
    """

    def __init__(
        self,
        database: Database,
        *,
        settings: Settings,
        keys: KeyExchanges,
        closed: set[str],
        mirrors: Mirrors | None,
    ) -> None:
        instance = database.instance
        self.database: Final = database
        self.ledger: Final = CountedLedger(database)
        # Chance for jitter alone, drawn for each batch that goes: the operating system's would take longer than all the rest.
        chance = Random(instance.random.getrandbits(64))  # noqa: S311
        self.dialogs: Final = Dialogs(self.ledger, roll=chance.random, settings=settings, log=instance.events)
        self.gates: Final = Gates(self.dialogs, closed)
        self.riders: Final = Riders(database, keys)
        self._mirrors: Final = mirrors
        self._closed: Final = closed
        self._decisions: dict[Sender, tuple[Asked, Decision]] = {}
        self._seeking: Final = Seeking(database, mirrors, patience=PATIENCE)

    def settle_keys(self, sender: Endpoint) -> Status | None:
        """Settles how the messages of an endpoint leave, unless that is settled.

        Args:
            sender: The endpoint, as committed.

        Returns:
            Why they have to wait; None where they may go.

        Raises:
            SsbrokerError: The keys cannot be read or written.
        """
        waits = self.riders.settle(sender)
        key = (sender.conversation_id, bool(sender.is_initiator))
        if waits is None and sender.session_key is None and self.riders.has_blob(key):
            self.dialogs.forget([key])  # it may have been read before it had its key
        return waits

    def take(self, rows: pa.Table, *, peer: bytes | None, session_keys: SessionKeys, now: int) -> Effects | Stale:
        """Takes rows that have arrived, durably.

        Args:
            rows: The rows (`adjacent.batch.WIRE`).
            peer: Who brought them, as the certificate says.
            session_keys: Keys that came with them.
            now: The moment.

        Returns:
            What they came to; or why nothing was written, and they are to be taken again (N3).

        Raises:
            LockTimeoutError: Others were writing to the file.
            StorageError: The file cannot be written. Nothing has changed.
        """
        effects = self.dialogs.arrived(rows.select(ENVELOPE.names), now=now, peer=peer, session_keys=session_keys)
        stale: Stale | None = None
        if not effects.is_empty:
            try:
                stale = self.ledger.commit(effects, lock_timeout=PATIENCE)
            except BaseException:
                self.dialogs.undo(effects)
                raise
        if stale is not None:
            self.dialogs.undo(effects)
            self.read_anew(stale.keys)
            return stale
        self.dialogs.confirm(effects, now=now)
        for endpoint in effects.bound:
            self.gates.forget([endpoint.key])
        self.riders.answered((*effects.acknowledged, *(endpoint.key for endpoint in effects.bound)))
        return effects

    def read_anew(self, keys: Iterable[Key]) -> None:
        """Forgets endpoints in memory: they are not what they were.

        Args:
            keys: The endpoints.
        """
        keys = list(keys)
        self.dialogs.forget(keys)
        self.dialogs.queued(keys)

    def renewed(self, keys: Iterable[Key]) -> None:
        """Notes that the far sides of endpoints have other certificates than before.

        Args:
            keys: The endpoints.
        """
        keys = list(keys)
        self.riders.anew(keys)
        self.read_anew(keys)

    def departures(self, *, now: int) -> list[Departure] | None:
        """What the dialogs send now.

        Args:
            now: The moment.

        Returns:
            The rows by where they go, without those that have no way; None where nothing is due.

        Raises:
            StorageError: The file cannot be read.
        """
        rows = self.dialogs.data_to_send(now=now, most=ROWS_MAX, most_bytes=BYTES_MAX)
        if rows is None:
            return None
        senders, are_plain = senders_of(rows)
        gates = self._gates(rows, senders)
        blobs = pa.nulls(rows.num_rows, pa.binary()) if are_plain else self.riders.column(rows, now=now)
        whole = stamped(rows, now=now, key_exchanges=blobs)
        if len({*gates.values()}) == 1:
            places: Mapping[str | None, list[int] | None] = dict.fromkeys(gates.values())
        else:
            places = _places(senders, gates)
        return [
            Departure(
                gate,
                whole if numbers is None else whole.take(pa.array(numbers, pa.int64())),
                {(conversation, side) for (conversation, side, _), its in gates.items() if its == gate},
            )
            for gate, numbers in places.items()
            if gate is not None
        ]

    def reroute(self) -> None:
        """Has every dialog find its way again: the catalog has changed."""
        self._decisions = {}
        self.riders.forget()
        self.gates.clear()

    def flush(self, *, now: int) -> None:
        """Puts aside what has been idle (P32).

        Args:
            now: The moment.
        """
        self.dialogs.flush(now=now)
        self.ledger.let_go()
        self.database.instance.worker.counters.objects_marked(self.dialogs.take_marked_dirty())
        # Of conversations that nobody here has, too: what answers them has a way, and no end here.
        self.gates.keep(self.dialogs.knows)
        self.riders.keep(self.dialogs.knows)
        self._decisions = {each: way for each, way in self._decisions.items() if self.dialogs.knows(each[:2])}
        resting = [
            way for each, (_, way) in self._decisions.items() if MIRRORED in (self.gates.gate_of(each[:2]) or "")
        ]
        self._seeking.principals(resting)
        self._seeking.routes(self._decisions.values())

    def _gates(self, rows: pa.Table, senders: list[tuple[Sender, int]]) -> dict[Sender, str | None]:
        """Through which gate each sender goes; None for nowhere."""
        distinct = dict.fromkeys(sender for sender, _ in senders)
        new = [sender for sender in distinct if sender not in self._decisions]
        if new:
            starts = accumulate((number for _, number in senders), initial=0)
            place_of = {sender: place for place, (sender, _) in zip(starts, senders, strict=False)}
            services = rows["to_service_name"]
            asked = [Asked(each[0], each[1], services[place_of[each]].as_py(), each[2]) for each in new]
            decided = list(
                zip(asked, self.database.instance.worker.ways.decisions(self.database.name, asked), strict=True)
            )
            self._decisions.update(zip(new, decided, strict=True))
            self._seeking.routes(each for each in decided if self.dialogs.knows(each[0][:2]))
        return {sender: self._gate(sender) for sender in distinct}

    def _gate(self, sender: Sender) -> str | None:
        (_, decision), key = self._decisions[sender], sender[:2]
        if decision.is_local:
            return LOCAL
        address, mirror = decision.next_hop_address, decision.mirror_address
        if address is None:
            self._rest(key, NOWHERE)
            return None
        if mirror is not None and self._mirrors is not None:
            found = self._mirrors.way(address, mirror, decision.broker_instance)
            if found is None:
                self._rest(key, address + MIRRORED + mirror)
                return None
            address = found
        self.gates.lead(key, address)
        return address

    def _rest(self, key: Key, gate: str) -> None:
        """Has a dialog rest behind a closed gate; what it has just given goes when that opens."""
        self._closed.add(gate)
        self.gates.lead(key, gate)
        self.dialogs.hold([key])  # it was let go to find that the gate is closed still
        self.dialogs.lost([key])


def _places(
    senders: list[tuple[Sender, int]], gates: Mapping[Sender, str | None]
) -> Mapping[str | None, list[int] | None]:
    places: dict[str | None, list[int]] = {}
    at = 0
    for sender, number in senders:
        places.setdefault(gates[sender], []).extend(range(at, at + number))
        at += number
    return places
