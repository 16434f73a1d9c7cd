"""CREATE, ALTER and DROP ENDPOINT: the endpoint stored in msdb."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ssbroker.broker.instance_transaction import InstanceTransaction
from ssbroker.ddl import statements
from ssbroker.ddl.expressions import folded
from ssbroker.ddl.script_notes import OTHER_ENDPOINT, Remark
from ssbroker.ddl.statements import EndpointSettings
from ssbroker.protocol.broker_errors import refusal
from ssbroker.store import object_changes as changes
from ssbroker.store.database_registry import MSDB_NAME
from ssbroker.store.objects import BrokerEndpoint

_NO_ENDPOINT_HERE: Final = Remark("ignored", "skipped (the instance has no Service Broker endpoint)")
FORWARDING_SIZE: Final = 10
"""Default limit of forwarded messages in megabytes."""


def change_endpoint(
    transaction: InstanceTransaction,
    statement: statements.CreateEndpoint | statements.AlterEndpoint | statements.DropEndpoint,
    annotations: Mapping[str, str],
) -> Remark | None:
    """Executes an endpoint statement; returns what was not done, if anything."""
    msdb = transaction.database(MSDB_NAME)
    connection, known = transaction.connection(msdb), transaction.objects(msdb).endpoint
    name = statement.name
    is_known = known is not None and folded(known.name) == folded(name)
    if isinstance(statement, statements.CreateEndpoint):
        if known is not None:
            raise refusal(
                f"the instance already has the Service Broker endpoint {known.name!r}; only one is allowed", 7862
            )
        transaction.created_endpoint = name
        changes.set_endpoint(
            connection,
            _with_settings(BrokerEndpoint(name, "STOPPED", 0, "ALL", False, FORWARDING_SIZE), statement.settings),
        )
    elif isinstance(statement, statements.DropEndpoint):
        if not is_known:
            return _NO_ENDPOINT_HERE if known is None else OTHER_ENDPOINT
        changes.set_endpoint(connection, None)
    elif known is None or not is_known:
        if not statement.has_for_clause:
            return _NO_ENDPOINT_HERE if known is None else OTHER_ENDPOINT
        raise refusal(f"the instance has no Service Broker endpoint {name!r}", 15151)
    else:
        changes.set_endpoint(connection, _with_settings(known, statement.settings))
    text = "skipped addresses_only (set the addresses when you serve the instance)"
    return Remark("ignored", text) if annotations else None


def drop_endpoint(transaction: InstanceTransaction, name: str) -> bool:
    """Drops the endpoint of this name; returns whether there was one."""
    msdb = transaction.database(MSDB_NAME)
    connection, known = transaction.connection(msdb), transaction.objects(msdb).endpoint
    if known is None or known.name != name:
        return False
    changes.set_endpoint(connection, None)
    return True


def _with_settings(before: BrokerEndpoint, settings: EndpointSettings) -> BrokerEndpoint:
    """Returns the endpoint with changed settings."""
    return BrokerEndpoint(
        before.name,
        before.state if settings.state is None else settings.state,
        before.port if settings.port is None else settings.port,
        before.ip if settings.ip is None else settings.ip,
        before.is_message_forwarding_enabled if settings.forwarding is None else settings.forwarding,
        before.message_forwarding_size if settings.forward_size is None else settings.forward_size,
    )
