"""Ends conversations: all those of a database whose identity changes (I5, I6), and single ones that cannot go on (B28)."""

from __future__ import annotations

from typing import Final

from ssbroker.broker.dialogs.arriving import Message
from ssbroker.broker.dialogs.closing import break_off
from ssbroker.broker.dialogs.error_body import Failure, failure
from ssbroker.broker.dialogs.outbound import put_off
from ssbroker.broker.dialogs.taking_off import take_all_off
from ssbroker.broker.work.work import Work
from ssbroker.protocol.names import ERROR
from ssbroker.protocol.states import State
from ssbroker.store import endpoints
from ssbroker.store.endpoints import Endpoint

_HERE: Final = 9719
_FAR: Final = 9720
_GONE: Final = 8462
_WITHOUT_FAR_SIDE: Final = (State.SO, State.ER)
"""Nothing was sent, or the far side has been told already."""
_AHEAD: Final = 1 << 40
"""How far above all that was sent the error of a far side is numbered. A database that was restored from an old backup counts from where that
stood, and what its far sides have taken since would have them take the error for a duplicate."""


def break_off_all(work: Work, *, is_told: bool) -> None:
    """Puts an error into the queue of each conversation's own service.

    Args:
        work: A transaction of the database.
        is_told: Whether the far sides get an error too.
    """
    found = endpoints.open_endpoints(work.connection)
    owed = {endpoint.endpoint_id: endpoint for endpoint in found if is_told and _is_owed(work, endpoint)}
    for endpoint in found:
        if endpoint.state != State.DO or endpoint.endpoint_id not in owed:
            break_off(work, endpoint, failure(_HERE).body())
    for endpoint in owed.values():
        _tell(work, endpoint, failure(_FAR))


def break_off_forgotten(work: Work, endpoint: Endpoint) -> None:
    """Ends both ends of a conversation whose far side has lost messages that it had acknowledged.

    Args:
        work: A transaction of the database.
        endpoint: The side that had sent them, as it is now.
    """
    if endpoint.state in (*_WITHOUT_FAR_SIDE, State.CD):
        return
    if endpoint.state != State.DO:
        break_off(work, endpoint, failure(_GONE).body())
    _tell(work, endpoint, failure(_GONE))


def _is_owed(work: Work, endpoint: Endpoint) -> bool:
    """Whether there is a far side to be told; one that stands in this database has an error of its own."""
    if endpoint.state in _WITHOUT_FAR_SIDE:
        return False
    far = endpoints.by_conversation(work.connection, endpoint.conversation_id, is_initiator=not endpoint.is_initiator)
    return far is None


def _tell(work: Work, endpoint: Endpoint, why: Failure) -> None:
    """Sends the error. Of a side that was ended it takes the place of the end, which the far side has not acknowledged."""
    connection, endpoint_id = work.connection, endpoint.endpoint_id
    number = endpoint.send_sequence + _AHEAD
    state = State.DO if endpoint.state == State.DO else State.ER
    if state == State.DO:
        take_all_off(work, endpoint_id)
        endpoints.set_ended(connection, endpoint_id, state=state, end_dialog_sequence=number)
    endpoints.set_sent(connection, endpoint_id, send_sequence=number + 1)
    broken = endpoint._replace(state=state, send_sequence=number + 1)
    put_off(work, [(broken, [Message(number, ERROR, why.body(), is_conversation_error=True)])])
