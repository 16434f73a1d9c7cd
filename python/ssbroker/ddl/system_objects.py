"""The objects that exist in every SQL Server database (services, queues, contracts, message types), and the system databases."""

from __future__ import annotations

from typing import Final, Literal

from ssbroker._text import bracketed, shown, string_literal
from ssbroker._well_known import (
    BROKER_SCHEMA,
    CONFIGURATION_NOTICE,
    DEFAULT,
    DIALOG_TIMER,
    END_DIALOG,
    ERROR,
    MISSING_REMOTE_SERVICE_BINDING,
    MISSING_ROUTE,
    SYSTEM_SERVICE,
)
from ssbroker.ddl import refusal_texts

_NOTIFICATIONS: Final = "http://schemas.microsoft.com/SQL/Notifications"
_DIAGNOSTIC: Final = f"{BROKER_SCHEMA}/ServiceDiagnostic"

SYSTEM_DATABASES: Final = frozenset({"master", "model", "msdb", "tempdb"})
"""The databases that exist in every instance."""

SystemValidation = Literal["NONE", "EMPTY", "WELL_FORMED_XML"]

SYSTEM_MESSAGE_TYPES: Final[dict[str, SystemValidation]] = {
    ERROR: "WELL_FORMED_XML",
    END_DIALOG: "EMPTY",
    DIALOG_TIMER: "EMPTY",
    DEFAULT: "NONE",
    MISSING_ROUTE: "WELL_FORMED_XML",
    MISSING_REMOTE_SERVICE_BINDING: "WELL_FORMED_XML",
    f"{_NOTIFICATIONS}/QueryNotification": "WELL_FORMED_XML",
    f"{_NOTIFICATIONS}/EventNotification": "WELL_FORMED_XML",
    f"{CONFIGURATION_NOTICE}/FailedRoute": "WELL_FORMED_XML",
    f"{CONFIGURATION_NOTICE}/FailedRemoteServiceBinding": "WELL_FORMED_XML",
    f"{_DIAGNOSTIC}/Query": "WELL_FORMED_XML",
    f"{_DIAGNOSTIC}/Status": "WELL_FORMED_XML",
    f"{_DIAGNOSTIC}/Description": "WELL_FORMED_XML",
    f"{BROKER_SCHEMA}/ServiceEcho/Echo": "NONE",
}
"""The validation of each system message type, in the order of their ids."""

SYSTEM_CONTRACTS: Final[dict[str, tuple[tuple[str, Literal["INITIATOR", "TARGET", "ANY"]], ...]]] = {
    DEFAULT: ((DEFAULT, "ANY"),),
    CONFIGURATION_NOTICE: (
        (MISSING_ROUTE, "INITIATOR"),
        (f"{CONFIGURATION_NOTICE}/FailedRoute", "INITIATOR"),
        (MISSING_REMOTE_SERVICE_BINDING, "INITIATOR"),
        (f"{CONFIGURATION_NOTICE}/FailedRemoteServiceBinding", "INITIATOR"),
    ),
    f"{_NOTIFICATIONS}/PostQueryNotification": ((f"{_NOTIFICATIONS}/QueryNotification", "INITIATOR"),),
    f"{_NOTIFICATIONS}/PostEventNotification": ((f"{_NOTIFICATIONS}/EventNotification", "INITIATOR"),),
    _DIAGNOSTIC: (
        (f"{_DIAGNOSTIC}/Query", "INITIATOR"),
        (f"{_DIAGNOSTIC}/Status", "TARGET"),
        (f"{_DIAGNOSTIC}/Description", "TARGET"),
    ),
    f"{BROKER_SCHEMA}/ServiceEcho": ((f"{BROKER_SCHEMA}/ServiceEcho/Echo", "ANY"),),
}
"""The message types of each system contract, with the side that sends them, in the order of their ids."""

SYSTEM_SERVICES: Final = {
    f"{_NOTIFICATIONS}/EventNotificationService": "EventNotificationErrorsQueue",
    f"{_NOTIFICATIONS}/QueryNotificationService": "QueryNotificationErrorsQueue",
    SYSTEM_SERVICE: "ServiceBrokerQueue",
}
"""The queue of each system service."""


def canonical_name(name: str) -> str:
    """Returns the name of a system database in lower case, any other name unchanged."""
    return name.lower() if name.isascii() and name.lower() in SYSTEM_DATABASES else name


def taken_name_text(name: str) -> str:
    """Returns why a database cannot get a name (error 1801): a system database or another database already has it."""
    if canonical_name(name) in SYSTEM_DATABASES:
        return f"the name {shown(name)} is reserved for a system database; choose another one"
    return refusal_texts.already_exists("database", name)


def refused_creation_text(name: str) -> str:
    """Returns why CREATE DATABASE is refused (error 1801), with what to do."""
    reason = taken_name_text(name)
    if name in SYSTEM_DATABASES:
        return reason
    return (
        f"{reason}; to run a script again, remove the statement, or guard it: "
        f"IF DB_ID({string_literal(name)}) IS NULL CREATE DATABASE {bracketed(name)}"
    )
