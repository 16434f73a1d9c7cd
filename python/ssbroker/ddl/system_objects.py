"""The objects that every database of SQL Server has: services, queues, contracts, message types and databases."""

from __future__ import annotations

from typing import Final, Literal

_NOTIFICATIONS: Final = "http://schemas.microsoft.com/SQL/Notifications/"
_BROKER: Final = "http://schemas.microsoft.com/SQL/ServiceBroker/"
_CONFIGURATION: Final = f"{_BROKER}BrokerConfigurationNotice"
_DIAGNOSTIC: Final = f"{_BROKER}ServiceDiagnostic"

SYSTEM_DATABASES: Final = frozenset({"master", "model", "msdb", "tempdb"})
"""The databases that every instance has."""

SystemValidation = Literal["NONE", "EMPTY", "WELL_FORMED_XML"]

SYSTEM_MESSAGE_TYPES: Final[dict[str, SystemValidation]] = {
    f"{_BROKER}Error": "WELL_FORMED_XML",
    f"{_BROKER}EndDialog": "EMPTY",
    f"{_BROKER}DialogTimer": "EMPTY",
    "DEFAULT": "NONE",
    f"{_CONFIGURATION}/MissingRoute": "WELL_FORMED_XML",
    f"{_CONFIGURATION}/MissingRemoteServiceBinding": "WELL_FORMED_XML",
    f"{_NOTIFICATIONS}QueryNotification": "WELL_FORMED_XML",
    f"{_NOTIFICATIONS}EventNotification": "WELL_FORMED_XML",
    f"{_CONFIGURATION}/FailedRoute": "WELL_FORMED_XML",
    f"{_CONFIGURATION}/FailedRemoteServiceBinding": "WELL_FORMED_XML",
    f"{_DIAGNOSTIC}/Query": "WELL_FORMED_XML",
    f"{_DIAGNOSTIC}/Status": "WELL_FORMED_XML",
    f"{_DIAGNOSTIC}/Description": "WELL_FORMED_XML",
    f"{_BROKER}ServiceEcho/Echo": "NONE",
}
"""The validation of each system message type, in the order of their ids."""

SYSTEM_CONTRACTS: Final[dict[str, tuple[tuple[str, Literal["INITIATOR", "TARGET", "ANY"]], ...]]] = {
    "DEFAULT": (("DEFAULT", "ANY"),),
    _CONFIGURATION: (
        (f"{_CONFIGURATION}/MissingRoute", "INITIATOR"),
        (f"{_CONFIGURATION}/FailedRoute", "INITIATOR"),
        (f"{_CONFIGURATION}/MissingRemoteServiceBinding", "INITIATOR"),
        (f"{_CONFIGURATION}/FailedRemoteServiceBinding", "INITIATOR"),
    ),
    f"{_NOTIFICATIONS}PostQueryNotification": ((f"{_NOTIFICATIONS}QueryNotification", "INITIATOR"),),
    f"{_NOTIFICATIONS}PostEventNotification": ((f"{_NOTIFICATIONS}EventNotification", "INITIATOR"),),
    _DIAGNOSTIC: (
        (f"{_DIAGNOSTIC}/Query", "INITIATOR"),
        (f"{_DIAGNOSTIC}/Status", "TARGET"),
        (f"{_DIAGNOSTIC}/Description", "TARGET"),
    ),
    f"{_BROKER}ServiceEcho": ((f"{_BROKER}ServiceEcho/Echo", "ANY"),),
}
"""The message types of each system contract, with the side that sends them, in the order of their ids."""

SYSTEM_SERVICES: Final = {
    f"{_NOTIFICATIONS}EventNotificationService": "EventNotificationErrorsQueue",
    f"{_NOTIFICATIONS}QueryNotificationService": "QueryNotificationErrorsQueue",
    f"{_BROKER}ServiceBroker": "ServiceBrokerQueue",
}
"""The queue of each system service."""


def canonical_name(name: str) -> str:
    """Returns the name of a system database in lower case, any other name unchanged."""
    return name.lower() if name.isascii() and name.lower() in SYSTEM_DATABASES else name
