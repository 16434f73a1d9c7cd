"""What the plain transactions of a database share, as the native module has it; other rooms name it without importing that."""

from __future__ import annotations

from typing import TypeAlias

from ssbroker import _core

Told: TypeAlias = tuple[int | None, int, bool]
"""Where messages stand now: queue, priority and whether their receiver was reached over the network; or None, the sender, and nothing."""
Done: TypeAlias = tuple[int, list[tuple[Told, int]], list[tuple[int, bool]]]
"""How many messages were sent; where they stand, and how many of them; and each RECEIVE: its queue, and whether it found nothing."""

Row: TypeAlias = tuple[bytes | None, bytes, bytes, bytes, bool, int, str, str, str, int, int, str]
"""A received message: body, handle, group, conversation, whether the initiator sent it, number, type, service, contract, priority, queuing
order and validation."""

Arrivals = _core.Arrivals
Counts = _core.Counts
Plain = _core.Plain
PlainSession: TypeAlias = "_core.PlainSession"
