"""What the machines send, handed to the connections; who rests while an address takes nothing (N12, N13)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ssbroker import moment
from ssbroker.broker.failing import told_failure
from ssbroker.broker.network.exchange.machine import LOCAL, MIRRORED, Departure, Machine
from ssbroker.broker.network.exchange.machines import Machines
from ssbroker.broker.network.exchange.rest import Rest
from ssbroker.exceptions import SsbrokerError
from ssbroker.protocol.retry import SECOND

if TYPE_CHECKING:
    from ssbroker.broker.instance import Instance
    from ssbroker.broker.network.seam import Endpoint

TURNS_MAX: Final = 8
"""How many batches of one machine go before others have their turn."""
WORTH_GATHERING: Final = 64
"""After so many rows it is worth to let those that follow gather."""
FAILED_WAIT: Final = SECOND
"""When a machine whose file could not be read is asked again."""


class Departing:
    """Sends what is due. For one thread.

    Args:
        instance: The instance.
        endpoint: The connections.
        machines: The machines.
        closed: The gates that are closed.
        closes: Is told of an address that takes no more.
        loop_back: Takes what is for a database of this instance.
    """

    def __init__(
        self,
        instance: Instance,
        endpoint: Endpoint,
        machines: Machines,
        *,
        closed: set[str],
        closes: Callable[[str], None],
        loop_back: Callable[[pa.Table], None],
    ) -> None:
        self._instance: Final = instance
        self._rest: Final = Rest()
        self._sent = 0
        self._endpoint: Final = endpoint
        self._machines: Final = machines
        self._closed: Final = closed
        self._closes: Final = closes
        self._loop_back: Final = loop_back

    @property
    def rests(self) -> bool:
        """Whether what is to be sent gathers, and goes by itself when that is over. Any thread may ask."""
        return self._rest.left > 0

    def hurry(self) -> None:
        """Has what gathers go in the next turn."""
        self._rest.end()

    def send_all(self, *, now: int) -> list[int | None]:
        """Sends what is due of all machines, unless what is to be sent gathers (B49).

        Args:
            now: The moment.

        Returns:
            When each has something to send again, as `send`; of what gathers, when it goes.
        """
        if not self.rests:
            self._sent = 0
            with self._rest.after():
                moments = [self.send(machine, now=now) for machine in self._machines.all()]
            # Who has more to send does, and without a thread of its own nobody would send later.
            if self._sent < WORTH_GATHERING or 0 in moments or not self._instance.background:
                self._rest.end()
            if not self.rests:
                return moments
        return [moment.microseconds(self._instance.clock()) + int(self._rest.left * SECOND) + 1]

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
                    self._sent += departure.rows.num_rows
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
