"""The names of system message types, contracts and services."""

from __future__ import annotations

from typing import Final

DEFAULT: Final = "DEFAULT"
"""The message type and the contract that every database has."""

_SCHEMA: Final = "http://schemas.microsoft.com/SQL/ServiceBroker"
ERROR: Final = f"{_SCHEMA}/Error"
END_DIALOG: Final = f"{_SCHEMA}/EndDialog"
DIALOG_TIMER: Final = f"{_SCHEMA}/DialogTimer"
SYSTEM_SERVICE: Final = f"{_SCHEMA}/ServiceBroker"
"""The service of a database that requests routes from the configuration service."""
CONFIGURATION_NOTICE: Final = f"{_SCHEMA}/BrokerConfigurationNotice"
"""The contract of these requests."""
MISSING_ROUTE: Final = f"{CONFIGURATION_NOTICE}/MissingRoute"
MISSING_REMOTE_SERVICE_BINDING: Final = f"{CONFIGURATION_NOTICE}/MissingRemoteServiceBinding"
