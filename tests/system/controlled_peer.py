"""A peer controlled by a test: a real endpoint with a certificate, whose rows are inspected, held, changed, forged and repeated."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import pyarrow as pa

from ssbroker.broker.network.endpoint_context import EndpointContext
from ssbroker.broker.network.interfaces import Peer
from ssbroker.broker.network.limits import EndpointLimits
from ssbroker.broker.network.socket_endpoint import SocketEndpoint
from ssbroker.broker.network.tls import TlsCredentials, Trust
from ssbroker.protocol.events import EventLog
from ssbroker.protocol.storage import EndpointKey
from ssbroker.protocol.wire.frames import WIRE, DropReason, MirroringRole, OwnIdentity
from tests.system.proxy import HOST

DEADLINE_SECONDS: Final = 60.0
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ReceivedRow:
    """A received row.

    Attributes:
        peer: The sender.
        row: The row.
    """

    peer: Peer
    row: Row


class ControlledPeer:
    """An endpoint without an instance, which keeps all received rows and passes each to `forward`.

    Args:
        name: Instance name that it announces.
        trust: Its certificate; None for connections without TLS.
        forward: Returns the address to forward a row to and the row to send there, or None.
    """

    def __init__(
        self,
        name: str,
        trust: Trust | None = None,
        *,
        forward: Callable[[Row], tuple[str, Row] | None] = lambda _: None,
    ) -> None:
        self.received: Final[list[ReceivedRow]] = []
        self.forward = forward
        self.address = ""
        self._changed: Final = threading.Condition()
        rng = random.Random(name)
        context = EndpointContext(
            own=OwnIdentity(instance_id=rng.randbytes(16), name=name, run_number=rng.getrandbits(64)),
            listener=self,
            credentials=None if trust is None else TlsCredentials(trust),
            limits=EndpointLimits(),
            events=EventLog(),
            clock=lambda: time.time_ns() // 1000,
            random=rng,
        )
        self._endpoint: Final = SocketEndpoint(context, host=HOST, port=0)

    def __enter__(self) -> Self:
        host, port = self._endpoint.start()
        self.address = f"TCP://{host}:{port}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._endpoint.close(5.0)

    def send(self, address: str, rows: Iterable[Row]) -> None:
        """Sends rows to an address."""
        self._endpoint.send(address, table_of(rows))

    def wait(self, condition: Callable[[list[Row]], bool]) -> list[Row]:
        """Returns all received rows, once they fulfill a condition.

        Raises:
            TimeoutError: They never did.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self.rows), DEADLINE_SECONDS):
                raise TimeoutError(f"{len(self.received)} rows arrived, but the condition is not fulfilled")
            return self.rows

    @property
    def rows(self) -> list[Row]:
        """All rows that have arrived."""
        return [each.row for each in self.received]

    # Callbacks of the endpoint, which run in its thread.

    def rows_received(self, peer: Peer, rows: pa.Table) -> None:
        """See `Receiver`."""
        found = [ReceivedRow(peer, row) for row in rows.to_pylist()]
        rows_by_address: dict[str, list[Row]] = {}
        for each in found:
            forwarded = self.forward(each.row)
            if forwarded is not None:
                rows_by_address.setdefault(forwarded[0], []).append(forwarded[1])
        for address, rows_to_send in rows_by_address.items():
            self._endpoint.send(address, table_of(rows_to_send))
        with self._changed:
            self.received.extend(found)
            self._changed.notify_all()

    def outbox_drained(self, address: str) -> None:
        """See `Receiver`."""

    def connection_failed(self, address: str, why: str) -> None:
        """See `Receiver`."""

    def connected(self, address: str, peer: Peer) -> None:
        """See `Receiver`."""

    def own_address_reached(self, address: str) -> None:
        """See `Receiver`."""

    def mirroring_roles(self, broker_instances: Sequence[bytes]) -> list[tuple[MirroringRole, int]]:  # no databases
        """See `Receiver`."""
        return [("unknown", 0) for _ in broker_instances]

    def role_received(self, address: str, broker_instance: bytes, role: MirroringRole, number: int) -> None:
        """See `Receiver`."""

    def rows_dropped(self, address: str, reasons: Mapping[EndpointKey, DropReason]) -> None:
        """See `Receiver`."""


def table_of(rows: Iterable[Row]) -> pa.Table:
    """Converts rows to the wire schema."""
    return pa.Table.from_pylist(list(rows), schema=WIRE)


_DEFAULTS: Final[dict[pa.DataType, Any]] = {
    pa.string(): "a",
    pa.bool_(): True,
    pa.binary(): b"",
    pa.binary(16): bytes(16),
}


def row(number: int, **columns: Any) -> Row:
    """Returns a row with valid but meaningless values, except in the given columns."""
    values = {field.name: None if field.nullable else _DEFAULTS.get(field.type, 1) for field in WIRE}
    return {**values, "message_sequence_number": number, **columns}
