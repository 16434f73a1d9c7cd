"""What every database has from the start."""

from __future__ import annotations

from typing import Final

from ssbroker.ddl.routes import AUTO_CREATED_LOCAL
from ssbroker.protocol.names import DEFAULT, DIALOG_TIMER, END_DIALOG, ERROR
from ssbroker.store import object_changes as changes
from ssbroker.store.objects import ContractMessage, Validation
from ssbroker.store.sqlite import Connection

_MESSAGE_TYPES: Final[dict[str, tuple[int, Validation]]] = {
    ERROR: (1, "X"),
    END_DIALOG: (2, "E"),
    DIALOG_TIMER: (3, "E"),
    DEFAULT: (4, "N"),
}
_CONTRACT_ID: Final = 1


def create(connection: Connection) -> None:
    """Writes the system's message types, contract DEFAULT and route AutoCreatedLocal (facts 49, 130, 140)."""
    for name, (number, validation) in _MESSAGE_TYPES.items():
        changes.create_message_type(connection, name=name, validation=validation, message_type_id=number)
    anyone = ContractMessage(_MESSAGE_TYPES[DEFAULT][0], is_sent_by_initiator=True, is_sent_by_target=True)
    changes.create_contract(connection, name=DEFAULT, messages=[anyone], service_contract_id=_CONTRACT_ID)
    changes.create_route(connection, values={"name": AUTO_CREATED_LOCAL, "address": "LOCAL"})
