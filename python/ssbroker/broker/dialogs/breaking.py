"""Ends every conversation of a database whose identity changes (I5, I6, B28)."""

from __future__ import annotations

from typing import Final

from ssbroker.broker.dialogs.arriving import Message
from ssbroker.broker.dialogs.closing import break_off
from ssbroker.broker.dialogs.error_body import failure
from ssbroker.broker.dialogs.outbound import put_off
from ssbroker.broker.work.work import Work
from ssbroker.protocol.names import ERROR
from ssbroker.protocol.states import State
from ssbroker.store import endpoints
from ssbroker.store.endpoints import Endpoint

_HERE: Final = 9719
_FAR: Final = 9720
_WITHOUT_FAR_SIDE: Final = (State.SO, State.DO, State.ER)
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
    for endpoint in found:
        break_off(work, endpoint, failure(_HERE).body())
    if is_told:
        for endpoint in found:
            _tell(work, endpoint)


def _tell(work: Work, endpoint: Endpoint) -> None:
    if endpoint.state in _WITHOUT_FAR_SIDE:
        return
    far = endpoints.by_conversation(work.connection, endpoint.conversation_id, is_initiator=not endpoint.is_initiator)
    if far is not None:
        return  # it stands in this database, and has an error of its own
    number = endpoint.send_sequence + _AHEAD
    endpoints.set_sent(work.connection, endpoint.endpoint_id, send_sequence=number + 1)
    broken = endpoint._replace(state=State.ER, send_sequence=number + 1)
    put_off(work, [(broken, [Message(number, ERROR, failure(_FAR).body(), is_conversation_error=True)])])
