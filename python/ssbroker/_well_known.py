"""The well-known port and service of Service Broker."""

from __future__ import annotations

from typing import Final

PORT: Final = 4022
"""The conventional port of Service Broker endpoints (P3)."""
PORT_MAX: Final = 65_535
CONFIGURATION_SERVICE: Final = "SQL/ServiceBroker/BrokerConfiguration"
"""The service from which routes are requested (dynamic routing)."""
