"""The phases of a link, and what each input makes of each (N5, N9, N10)."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Phase(StrEnum):
    """How far a link is."""

    GREETING = "GREETING"
    """HELLO has not come."""
    OPEN = "OPEN"
    """Both sides may send."""
    LEAVING = "LEAVING"
    """GOODBYE is to go, behind what is still to be sent."""
    GONE = "GONE"
    """GOODBYE has gone; what still comes is taken until the far side's has come."""
    LEFT = "LEFT"
    """The far side's GOODBYE has come; the own one is to go, behind what is still to be sent."""
    OVER = "OVER"
    """Nothing is taken any more, and nothing but a last GOODBYE goes."""


class Input(StrEnum):
    """What may happen to a link."""

    HELLO = "HELLO"
    """HELLO has come."""
    FRAME = "FRAME"
    """A frame has come that is neither HELLO nor GOODBYE."""
    GOODBYE = "GOODBYE"
    """GOODBYE has come."""
    LEAVE = "LEAVE"
    """This side wants to leave."""
    WRITTEN = "WRITTEN"
    """GOODBYE has been given to be written."""
    END = "END"
    """The far side has broken the protocol, or has given no sign for too long."""


_G, _O, _L, _N, _F, _V = Phase.GREETING, Phase.OPEN, Phase.LEAVING, Phase.GONE, Phase.LEFT, Phase.OVER

TABLE: Final[dict[Phase, dict[Input, Phase]]] = {
    _G: {Input.HELLO: _O, Input.LEAVE: _V, Input.END: _V},
    _O: {Input.FRAME: _O, Input.GOODBYE: _F, Input.LEAVE: _L, Input.END: _V},
    _L: {Input.FRAME: _L, Input.GOODBYE: _F, Input.LEAVE: _L, Input.WRITTEN: _N, Input.END: _V},
    _N: {Input.FRAME: _N, Input.GOODBYE: _V, Input.LEAVE: _N, Input.END: _V},
    _F: {Input.LEAVE: _F, Input.WRITTEN: _V, Input.END: _V},
    _V: {Input.LEAVE: _V, Input.WRITTEN: _V, Input.END: _V},
}
"""What is missing may not happen: of the first three inputs, it is the far side that breaks the protocol."""
