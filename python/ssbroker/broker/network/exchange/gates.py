"""Which dialogs of a machine send to which address, so that they rest while it takes nothing (N12)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from ssbroker.protocol.ledger import Key
from ssbroker.protocol.steering import Steering


class Gates:
    """The gates through which the dialogs of one machine go; a gate is an address, or two of which one will be known.

    Args:
        dialogs: The machine.
        closed: The gates that are closed, for all machines; whoever owns it keeps it.
    """

    def __init__(self, dialogs: Steering, closed: set[str]) -> None:
        self._dialogs: Final = dialogs
        self._closed: Final = closed
        self._gate_of: dict[Key, str] = {}
        self._keys: dict[str, set[Key]] = {}

    def lead(self, key: Key, gate: str) -> None:
        """Notes through which gate a dialog goes from now on.

        Args:
            key: The dialog's endpoint.
            gate: The gate.
        """
        before = self._gate_of.get(key)
        if before == gate:
            return
        if before is not None:
            self._keys[before].discard(key)
        self._gate_of[key] = gate
        self._keys.setdefault(gate, set()).add(key)
        if gate in self._closed:
            self._dialogs.hold([key])
        elif before is not None and before in self._closed:
            self._dialogs.release([key])

    def gate_of(self, key: Key) -> str | None:
        """Through which gate a dialog goes, as far as that is known."""
        return self._gate_of.get(key)

    def keys(self, gate: str) -> set[Key]:
        """The dialogs that go through a gate."""
        return self._keys.get(gate, set())

    def closes(self, gate: str) -> None:
        """Has the dialogs of a gate rest."""
        self._dialogs.hold(self.keys(gate))

    def opens(self, gate: str) -> None:
        """Has the dialogs of a gate send again."""
        self._dialogs.release(self.keys(gate))

    def lost(self, gate: str) -> None:
        """What has gone through a gate did not arrive."""
        self._dialogs.lost(self.keys(gate))

    def forget(self, keys: Iterable[Key]) -> None:
        """Forgets where dialogs go: it is to be found out again."""
        for key in keys:
            gate = self._gate_of.pop(key, None)
            if gate is not None:
                self._keys[gate].discard(key)
                if gate in self._closed:
                    self._dialogs.release([key])

    def keep(self, is_kept: Callable[[Key], bool]) -> None:
        """Forgets the dialogs that are not in memory any more."""
        self.forget([key for key in self._gate_of if not is_kept(key)])
        self._keys = {gate: keys for gate, keys in self._keys.items() if keys}

    def clear(self) -> None:
        """Forgets all."""
        self.forget(list(self._gate_of))
        self._keys = {}
