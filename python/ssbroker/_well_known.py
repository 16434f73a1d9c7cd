"""The port and the limits of Service Broker, and the names of its system message types, contracts and services."""

from __future__ import annotations

from typing import Final

PORT: Final = 4022
"""The conventional port of Service Broker endpoints (P3)."""
PORT_MAX: Final = 65_535
CONFIGURATION_SERVICE: Final = "SQL/ServiceBroker/BrokerConfiguration"
"""The name of the configuration service, which answers requests for routes (dynamic routing)."""

LIFETIME_SECONDS_MAX: Final = 2**31 - 1
"""The longest LIFETIME of a route."""
SERVICE_NAME_MAX: Final = 256
"""The maximum number of characters of a service name."""
DEFAULT: Final = "DEFAULT"
"""The message type and the contract that every database has."""
WORK_QUEUE_CONTRACT: Final = "//ssbroker/queue"
"""The contract of the services of work queues."""

BROKER_SCHEMA: Final = "http://schemas.microsoft.com/SQL/ServiceBroker"
ERROR: Final = f"{BROKER_SCHEMA}/Error"
END_DIALOG: Final = f"{BROKER_SCHEMA}/EndDialog"
DIALOG_TIMER: Final = f"{BROKER_SCHEMA}/DialogTimer"
SYSTEM_MESSAGE_TYPES: Final = (ERROR, END_DIALOG, DIALOG_TIMER)
"""The types of messages that the broker sends."""
SYSTEM_SERVICE: Final = f"{BROKER_SCHEMA}/ServiceBroker"
"""The service with which a database requests routes from the configuration service."""
CONFIGURATION_NOTICE: Final = f"{BROKER_SCHEMA}/BrokerConfigurationNotice"
"""The contract of requests for routes."""
MISSING_ROUTE: Final = f"{CONFIGURATION_NOTICE}/MissingRoute"
MISSING_REMOTE_SERVICE_BINDING: Final = f"{CONFIGURATION_NOTICE}/MissingRemoteServiceBinding"
