"""What the machines send, handed to the connections; who rests while an address takes nothing (N12, N13)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ssbroker.broker.failing import told_failure
from ssbroker.broker.network.exchange.machine import LOCAL, MIRRORED, Departure, Machine
from ssbroker.broker.network.exchange.machines import Machines
from ssbroker.exceptions import SsbrokerError
from ssbroker.protocol.retry import SECOND

if TYPE_CHECKING:
    from ssbroker.broker.network.seam import Endpoint

TURNS_MAX: Final = 8
"""How many batches of one machine go before others have their turn."""
FAILED_WAIT: Final = SECOND
"""When a machine whose file could not be read is asked again."""


class Departing:
    """Sends what is due. For one thread.

    Args:
        endpoint: The connections.
        machines: The machines.
        closed: The gates that are closed.
        closes: Is told of an address that takes no more.
        loop_back: Takes what is for a database of this instance.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        machines: Machines,
        *,
        closed: set[str],
        closes: Callable[[str], None],
        loop_back: Callable[[pa.Table], None],
    ) -> None:
        self._endpoint: Final = endpoint
        self._machines: Final = machines
        self._closed: Final = closed
        self._closes: Final = closes
        self._loop_back: Final = loop_back

    def send(self, machine: Machine, *, now: int) -> int | None:
        """Sends what is due of a machine.

        Args:
            machine: The machine.
            now: The moment.

        Returns:
            When it has something to send again, if nothing happens before; 0 is at once, None is never.
        """
        try:
            for _ in range(TURNS_MAX):
                departures = machine.departures(now=now)
                if departures is None:
                    break
                for departure in departures:
                    self._send(machine, departure)
            return machine.dialogs.next_timeout()
        except SsbrokerError as error:
            told_failure(machine.database, "nothing can be sent for now", error)
            return now + FAILED_WAIT

    def opens(self, gate: str) -> None:
        """A gate takes something again."""
        if gate in self._closed:
            self._closed.discard(gate)
            for machine in self._machines.all():
                machine.gates.opens(gate)

    def broke(self, address: str) -> None:
        """What was under way to an address is lost: it goes again as soon as it can, not after the waits of P17."""
        for machine in self._machines.all():
            machine.gates.lost(address)
        self.opens(address)

    def settled(self) -> None:
        """Which of two mirrored addresses is the principal may be known now."""
        for gate in [gate for gate in self._closed if MIRRORED in gate]:
            self.opens(gate)

    def _send(self, machine: Machine, departure: Departure) -> None:
        gate = departure.gate
        if gate == LOCAL:
            self._loop_back(departure.rows)
            return
        if self._is_idle_talk(machine, departure):
            return
        before, _ = self._endpoint.progress(gate)
        if self._endpoint.send(gate, departure.rows) > 0:
            return
        self._closed.add(gate)
        for each in self._machines.all():
            each.gates.closes(gate)
        self._closes(gate)
        taken, _ = self._endpoint.progress(gate)
        if taken == before:  # it goes as soon as there is room, not after the waits of P17
            machine.dialogs.lost(departure.keys)

    def _is_idle_talk(self, machine: Machine, departure: Departure) -> bool:
        """Whether nobody here has a conversation of it, and it would go where nothing is begun: an answer to an address that a neighbour named (N34)."""
        gate = departure.gate
        if MIRRORED in gate or any(machine.dialogs.knows(key) for key in departure.keys):
            return False
        return self._endpoint.refuses(gate) is not None
