"""The states of a conversation endpoint, and the transition for each input."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class ConversationState(StrEnum):
    """The state of a conversation endpoint, as in the column `state` of `sys.conversation_endpoints`."""

    SO = "SO"
    """STARTED_OUTBOUND: started here, nothing sent."""
    SI = "SI"
    """STARTED_INBOUND: the first message has not arrived completely."""
    CO = "CO"
    """CONVERSING: both sides may send."""
    DI = "DI"
    """DISCONNECTED_INBOUND: the remote endpoint has ended; this endpoint must still end."""
    DO = "DO"
    """DISCONNECTED_OUTBOUND: ended here; the remote endpoint does not know this yet."""
    ER = "ER"
    """ERROR: broken; this side must still end the conversation."""
    CD = "CD"
    """CLOSED: ended. A target's endpoint stays for a while to detect replays; so does an initiator's if the conversation used the network."""


class ConversationInput(StrEnum):
    """An input to the state machine of an endpoint."""

    SEND = "SEND"
    """The application sends a message."""
    END = "END"
    """The application ends the conversation, with or without an error."""
    CLEANUP = "CLEANUP"
    """The application ends the conversation with cleanup: the endpoint is deleted in any state."""
    TIMER = "TIMER"
    """The application sets the conversation's timer."""
    MOVE = "MOVE"
    """The application moves the conversation to another group."""
    MESSAGE = "MESSAGE"
    """The next message in order has arrived completely."""
    PART = "PART"
    """A fragment of a message, or a message out of order, has arrived."""
    END_DIALOG = "END_DIALOG"
    """An EndDialog message has arrived in order."""
    ERROR = "ERROR"
    """An Error message has arrived: in order from the remote application, or from the remote broker."""
    FAILURE = "FAILURE"
    """The local broker ends the conversation with an error: its lifetime expired, or its service or broker id no longer exists."""
    ACKNOWLEDGED = "ACKNOWLEDGED"
    """The remote endpoint has received the message that END sent."""


DESCRIPTIONS: Final = {
    ConversationState.SO: "STARTED_OUTBOUND",
    ConversationState.SI: "STARTED_INBOUND",
    ConversationState.CO: "CONVERSING",
    ConversationState.DI: "DISCONNECTED_INBOUND",
    ConversationState.DO: "DISCONNECTED_OUTBOUND",
    ConversationState.ER: "ERROR",
    ConversationState.CD: "CLOSED",
}
"""The value of the column `state_desc` of `sys.conversation_endpoints` for each state."""

_SO, _SI, _CO, _DI, _DO, _ER, _CD = ConversationState

# fmt: off
TRANSITIONS: Final[dict[ConversationInput, dict[ConversationState, ConversationState | int]]] = {
    #                                started out started in  conversing  ended there ended here  broken      closed
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
"""The next state for each input and state, or the error number with which an application's call is refused or another input is dropped."""

INITIAL_STATE: Final = ConversationState.SO
"""The state after BEGIN DIALOG."""
STATE_AFTER_FIRST_MESSAGE: Final = ConversationState.CO
"""The state of a target endpoint that was created by a complete first message."""
STATE_AFTER_FIRST_FRAGMENT: Final = ConversationState.SI
"""The state of a target endpoint that was created by a fragment or by a message out of order."""


def next_state(state: ConversationState, event: ConversationInput) -> ConversationState | int:
    """Returns the next state; or, if there is no transition, the error number with which the input is refused or dropped.

    Examples:
        >>> next_state(ConversationState.SO, ConversationInput.SEND), next_state(ConversationState.DO, ConversationInput.SEND)
        (<ConversationState.CO: 'CO'>, 8429)
    """
    return TRANSITIONS[event][state]
