"""The states of a conversation's endpoint, and what each input makes of each (fact 102, B12)."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class ConversationState(StrEnum):
    """`state` of `sys.conversation_endpoints`."""

    SO = "SO"
    """STARTED_OUTBOUND: begun here, nothing sent."""
    SI = "SI"
    """STARTED_INBOUND: the first message is on its way, not whole yet."""
    CO = "CO"
    """CONVERSING: both sides may send."""
    DI = "DI"
    """DISCONNECTED_INBOUND: the far side has ended; this one has to."""
    DO = "DO"
    """DISCONNECTED_OUTBOUND: ended here; the far side does not know yet."""
    ER = "ER"
    """ERROR: broken; this side has to end it."""
    CD = "CD"
    """CLOSED: over. Only a target's endpoint is kept so, against replays (B14); an initiator's goes at once."""


class ConversationInput(StrEnum):
    """What may happen to an endpoint."""

    SEND = "SEND"
    """The application sends a message."""
    END = "END"
    """The application ends the conversation, with an error or without."""
    CLEANUP = "CLEANUP"
    """The application ends it with cleanup: whatever the state, the endpoint goes."""
    TIMER = "TIMER"
    """The application sets the conversation's timer."""
    MOVE = "MOVE"
    """The application moves it to another group."""
    MESSAGE = "MESSAGE"
    """The next message in order has arrived, whole."""
    PART = "PART"
    """A part of a message has arrived, or one that is not the next."""
    END_DIALOG = "END_DIALOG"
    """EndDialog has arrived in its turn."""
    ERROR = "ERROR"
    """Error has arrived, from the far application in its turn, or from its broker."""
    FAILURE = "FAILURE"
    """The broker here ends it with an error: its lifetime has passed, its service or its broker id is gone."""
    ACKNOWLEDGED = "ACKNOWLEDGED"
    """The far side has what END sent."""


CALLS: Final = (
    ConversationInput.SEND,
    ConversationInput.END,
    ConversationInput.CLEANUP,
    ConversationInput.TIMER,
    ConversationInput.MOVE,
)
"""What the application does; a number refuses it. All else happens to it; there a number says why it is dropped."""

DESCRIPTIONS: Final = {
    ConversationState.SO: "STARTED_OUTBOUND",
    ConversationState.SI: "STARTED_INBOUND",
    ConversationState.CO: "CONVERSING",
    ConversationState.DI: "DISCONNECTED_INBOUND",
    ConversationState.DO: "DISCONNECTED_OUTBOUND",
    ConversationState.ER: "ERROR",
    ConversationState.CD: "CLOSED",
}
"""`state_desc` of `sys.conversation_endpoints`."""

_SO, _SI, _CO, _DI, _DO, _ER, _CD = ConversationState

# fmt: off
TABLE: Final[dict[ConversationInput, dict[ConversationState, ConversationState | int]]] = {
    #                    begun       beginning   conversing  far ended   ended here  broken      closed
    ConversationInput.SEND:         {_SO: _CO,   _SI: 8429,  _CO: _CO,   _DI: 8429,  _DO: 8429,  _ER: 8429,  _CD: 8429},
    ConversationInput.END:          {_SO: _CD,   _SI: 8427,  _CO: _DO,   _DI: _CD,   _DO: 8427,  _ER: _CD,   _CD: 8427},
    ConversationInput.CLEANUP:      {_SO: _CD,   _SI: _CD,   _CO: _CD,   _DI: _CD,   _DO: _CD,   _ER: _CD,   _CD: _CD},
    ConversationInput.TIMER:        {_SO: _SO,   _SI: 8458,  _CO: _CO,   _DI: _DI,   _DO: 8458,  _ER: 8458,  _CD: 8458},
    ConversationInput.MOVE:         {_SO: _SO,   _SI: 8438,  _CO: _CO,   _DI: _DI,   _DO: 8438,  _ER: _ER,   _CD: 8438},
    ConversationInput.MESSAGE:      {_SO: 11209, _SI: _CO,   _CO: _CO,   _DI: 11209, _DO: 11212, _ER: 11209, _CD: 11212},
    ConversationInput.PART:         {_SO: 11209, _SI: _SI,   _CO: _CO,   _DI: 11209, _DO: 11212, _ER: 11209, _CD: 11212},
    ConversationInput.END_DIALOG:   {_SO: 11209, _SI: 11217, _CO: _DI,   _DI: 11218, _DO: 11212, _ER: 11209, _CD: 11212},
    ConversationInput.ERROR:        {_SO: 11209, _SI: _ER,   _CO: _ER,   _DI: 11209, _DO: _CD,   _ER: 11209, _CD: 11212},
    ConversationInput.FAILURE:      {_SO: _ER,   _SI: _ER,   _CO: _ER,   _DI: _ER,   _DO: _CD,   _ER: _ER,   _CD: _CD},
    ConversationInput.ACKNOWLEDGED: {_SO: 28010, _SI: 28010, _CO: 28010, _DI: 28010, _DO: _CD,   _ER: 28010, _CD: _CD},
}
# fmt: on
"""For each input and state the next state, or Service Broker's number of what refuses or drops it; then the state stays."""

BEGUN: Final = ConversationState.SO
"""The state after BEGIN DIALOG."""
FIRST_WHOLE: Final = ConversationState.CO
"""The state of a target's endpoint that the whole first message makes."""
FIRST_PART: Final = ConversationState.SI
"""The state of one that a part of it makes, or a message that came before it."""


def after(state: ConversationState, happened: ConversationInput) -> ConversationState | int:
    """The next state, or the number of what refuses the call or drops what arrived; then the state stays.

    Args:
        state: The endpoint's state.
        happened: The call or the arrival.

    Returns:
        A state or a number.

    Examples:
        >>> after(ConversationState.SO, ConversationInput.SEND), after(ConversationState.DO, ConversationInput.SEND)
        (<ConversationState.CO: 'CO'>, 8429)
    """
    return TABLE[happened][state]
