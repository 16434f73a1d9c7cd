"""The instance's Service Broker endpoint, which stands in msdb (facts 171, 173)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ssbroker.broker.databases.alteration import Alteration
from ssbroker.broker.objects.refusals import refusal
from ssbroker.ddl import statements
from ssbroker.ddl.statements import EndpointSettings
from ssbroker.store import object_changes as changes
from ssbroker.store.objects import Endpoint
from ssbroker.store.registry import MSDB_NAME

FORWARDING_SIZE: Final = 10
"""The megabytes that forwarding may hold unless told otherwise (fact 68)."""
_NOT_OURS: Final = "skipped, it is no endpoint for Service Broker"


def run(
    alteration: Alteration,
    statement: statements.CreateEndpoint | statements.AlterEndpoint | statements.DropEndpoint,
    annotations: Mapping[str, str],
) -> str | None:
    """Runs a statement about an endpoint.

    Returns:
        What was left out of account, for a warning.

    Raises:
        BrokerError: The instance has an endpoint already (7862), or the endpoint is another (15151).
    """
    msdb = alteration.database(MSDB_NAME)
    connection, known = alteration.connection(msdb), alteration.objects(msdb).endpoint
    name = statement.name
    is_known = known is not None and known.name == name
    if isinstance(statement, statements.CreateEndpoint):
        if known is not None:
            raise refusal(f"the instance has the Service Broker endpoint {known.name!r}; one is allowed", 7862)
        changes.set_endpoint(
            connection, _changed(Endpoint(name, "STOPPED", 0, "ALL", False, FORWARDING_SIZE), statement.settings)
        )
    elif isinstance(statement, statements.DropEndpoint):
        if not is_known:
            return _NOT_OURS
        changes.set_endpoint(connection, None)
    elif known is None or not is_known:
        if not statement.for_broker:
            return _NOT_OURS
        raise refusal(f"the instance has no Service Broker endpoint {name!r}", 15151)
    else:
        changes.set_endpoint(connection, _changed(known, statement.settings))
    return "skipped addresses_only: `serve` says where the instance is reached" if annotations else None


def _changed(before: Endpoint, said: EndpointSettings) -> Endpoint:
    """The endpoint with what is said; the rest as it was."""
    return Endpoint(
        before.name,
        before.state if said.state is None else said.state,
        before.port if said.port is None else said.port,
        before.ip if said.ip is None else said.ip,
        before.is_message_forwarding_enabled if said.forwarding is None else said.forwarding,
        before.message_forwarding_size if said.forward_size is None else said.forward_size,
    )
