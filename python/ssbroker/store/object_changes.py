"""Writes changes to the objects of a database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

from ssbroker.store.objects import BrokerEndpoint, ContractMessage, Validation
from ssbroker.store.security import OWNER, PUBLIC, PermissionState
from ssbroker.store.sqlite import Connection

FIRST_ID: Final = 65_536
"""The id of the first object of each kind that a user makes; lower ones are the system's."""

Value = str | bytes | int | None
SecurityTable = Literal["ssb_principals", "ssb_certificates", "ssb_remote_service_bindings"]


def create_database_row(
    connection: Connection, *, service_broker_guid: bytes, attached_to: bytes, is_broker_enabled: bool
) -> None:
    """Writes the one row of a new database."""
    connection.execute(
        "INSERT INTO ssb_database (only_row, service_broker_guid, is_broker_enabled, attached_to) VALUES (1, ?, ?, ?)",
        (service_broker_guid, is_broker_enabled, attached_to),
    )
    changed(connection)


def set_broker(connection: Connection, *, is_broker_enabled: bool, service_broker_guid: bytes | None = None) -> None:
    """Enables or disables the broker, with another id where one is given."""
    connection.execute(
        "UPDATE ssb_database SET is_broker_enabled = ?, service_broker_guid = coalesce(?, service_broker_guid)",
        (is_broker_enabled, service_broker_guid),
    )
    changed(connection)


def set_honor_broker_priority(connection: Connection, *, is_on: bool) -> None:
    """Whether what is sent honours priorities (fact 150)."""
    connection.execute("UPDATE ssb_database SET is_honor_broker_priority_on = ?", (is_on,))
    changed(connection)


def create_message_type(
    connection: Connection, *, name: str, validation: Validation, message_type_id: int | None = None
) -> int:
    """Writes a message type; its id."""
    return _insert(
        connection, "ssb_message_types", "message_type_id", message_type_id, {"name": name, "validation": validation}
    )


def create_contract(
    connection: Connection, *, name: str, messages: Iterable[ContractMessage], service_contract_id: int | None = None
) -> int:
    """Writes a contract with its message types; its id."""
    number = _insert(connection, "ssb_contracts", "service_contract_id", service_contract_id, {"name": name})
    connection.executemany(
        "INSERT INTO ssb_contract_messages VALUES (?, ?, ?, ?)",
        [
            (number, message.message_type_id, message.is_sent_by_initiator, message.is_sent_by_target)
            for message in messages
        ],
    )
    return number


def create_queue(connection: Connection, *, schema_name: str, name: str, options: Mapping[str, Value]) -> int:
    """Writes a queue; `options` by the names of the columns. Its id."""
    return _insert(connection, "ssb_queues", "queue_id", None, {"schema_name": schema_name, "name": name, **options})


def create_service(
    connection: Connection, *, name: str, queue_id: int, contracts: Iterable[int], principal_id: int = OWNER
) -> int:
    """Writes a service with the contracts that it accepts, to which everybody may send (N20); its id."""
    values: dict[str, Value] = {"name": name, "queue_id": queue_id, "principal_id": principal_id}
    number = _insert(connection, "ssb_services", "service_id", None, values)
    set_send_permission(connection, service_id=number, principal_id=PUBLIC, state="G")
    add_contracts(connection, service_id=number, contracts=contracts)
    return number


def add_contracts(connection: Connection, *, service_id: int, contracts: Iterable[int]) -> None:
    """Has a service accept further contracts."""
    connection.executemany(
        "INSERT INTO ssb_service_contracts VALUES (?, ?)", [(service_id, contract) for contract in contracts]
    )
    changed(connection)


def drop_contracts_of_service(connection: Connection, *, service_id: int, contracts: Iterable[int]) -> None:
    """Has a service accept some contracts no more."""
    connection.executemany(
        "DELETE FROM ssb_service_contracts WHERE service_id = ? AND service_contract_id = ?",
        [(service_id, contract) for contract in contracts],
    )
    changed(connection)


def move_service(connection: Connection, *, service_id: int, queue_id: int) -> None:
    """Puts a service on another queue, with the messages that wait for it (fact 141)."""
    connection.execute("UPDATE ssb_services SET queue_id = ? WHERE service_id = ?", (queue_id, service_id))
    connection.execute(
        """
        UPDATE ssb_queued_messages SET queue_id = ?
        WHERE endpoint_id IN (SELECT endpoint_id FROM ssb_conversation_endpoints WHERE service_id = ?)""",
        (queue_id, service_id),
    )
    changed(connection)


def is_queued(connection: Connection, *, message_type_id: int) -> bool:
    """Whether a queue holds a message of this type."""
    rows = connection.execute("SELECT 1 FROM ssb_queued_messages WHERE message_type_id = ? LIMIT 1", (message_type_id,))
    return rows.get is not None


def set_send_permission(
    connection: Connection, *, service_id: int, principal_id: int, state: PermissionState | None
) -> None:
    """Grants or denies SEND on a service to a principal; None takes back what was said."""
    connection.execute(
        "DELETE FROM ssb_send_permissions WHERE service_id = ? AND principal_id = ?", (service_id, principal_id)
    )
    if state is not None:
        connection.execute("INSERT INTO ssb_send_permissions VALUES (?, ?, ?)", (service_id, principal_id, state))
    changed(connection)


def belonging(connection: Connection, *, principal_id: int) -> tuple[str, str] | None:
    """The kind and name of something that belongs to a principal, the services first; None where nothing does."""
    for kind, table, column in (
        ("service", "ssb_services", "principal_id"),
        ("certificate", "ssb_certificates", "principal_id"),
        ("remote service binding", "ssb_remote_service_bindings", "remote_principal_id"),
    ):
        # Names of this library.
        name = connection.execute(f"SELECT name FROM {table} WHERE {column} = ? LIMIT 1", (principal_id,)).get  # noqa: S608
        if name is not None:
            return kind, name
    return None


def drop_send_permissions(connection: Connection, *, principal_id: int) -> None:
    """Takes back whatever was said to a principal of SEND."""
    connection.execute("DELETE FROM ssb_send_permissions WHERE principal_id = ?", (principal_id,))
    changed(connection)


def set_master_key(connection: Connection, *, by_password: bytes, by_service: bytes | None) -> None:
    """Writes the master key, sealed twice."""
    connection.execute(
        "INSERT OR REPLACE INTO ssb_master_key (only_row, by_password, by_service) VALUES (1, ?, ?)",
        (by_password, by_service),
    )
    changed(connection)


def drop_master_key(connection: Connection) -> None:
    """Removes the master key."""
    connection.execute("DELETE FROM ssb_master_key")
    changed(connection)


def create(connection: Connection, table: SecurityTable, *, values: Mapping[str, Value]) -> int:
    """Writes a principal, certificate or binding; `values` by the names of the columns. Its id."""
    return _insert(connection, table, _KEYS[table], None, values)


Uses = Literal["service_id", "service_contract_id"]


def open_conversations(connection: Connection, *, by: Uses, number: int) -> int:
    """How many conversations that are not closed use a service or a contract."""
    sql = f"SELECT count(*) FROM ssb_conversation_endpoints WHERE {by} = ? AND state <> 'CD'"  # noqa: S608  # a name of this library
    found: int = connection.execute(sql, (number,)).get
    return found


def has_conversations(connection: Connection) -> bool:
    """Whether the database has any endpoint."""
    return connection.execute("SELECT 1 FROM ssb_conversation_endpoints LIMIT 1").get is not None


def forget_closed_conversations(connection: Connection, *, by: Uses, number: int) -> None:
    """Removes the closed endpoints that use a service or a contract (B14)."""
    sql = f"DELETE FROM ssb_conversation_endpoints WHERE {by} = ? AND state = 'CD'"  # noqa: S608  # a name of this library
    connection.execute(sql, (number,))


def create_route(connection: Connection, *, values: Mapping[str, Value], route_id: int | None = None) -> int:
    """Writes a route; `values` by the names of the columns. Its id."""
    return _insert(connection, "ssb_routes", "route_id", route_id, values)


def has_route(connection: Connection, *, route_id: int) -> bool:
    """Whether a route has this id."""
    return connection.execute("SELECT 1 FROM ssb_routes WHERE route_id = ?", (route_id,)).get is not None


def create_priority(connection: Connection, *, values: Mapping[str, Value]) -> int:
    """Writes a broker priority; `values` by the names of the columns. Its id."""
    return _insert(connection, "ssb_conversation_priorities", "priority_id", None, values)


def set_endpoint(connection: Connection, endpoint: BrokerEndpoint | None) -> None:
    """Writes the endpoint of the instance into its msdb; None takes it away."""
    connection.execute("DELETE FROM ssb_service_broker_endpoint")
    if endpoint is not None:
        connection.execute(
            """
            INSERT INTO ssb_service_broker_endpoint
                (only_row, name, state, port, ip, is_message_forwarding_enabled, message_forwarding_size)
            VALUES (1, ?, ?, ?, ?, ?, ?)""",
            (
                endpoint.name,
                endpoint.state,
                endpoint.port,
                endpoint.ip,
                endpoint.is_message_forwarding_enabled,
                endpoint.message_forwarding_size,
            ),
        )
    changed(connection)


_KEYS: Final = {
    "ssb_message_types": "message_type_id",
    "ssb_contracts": "service_contract_id",
    "ssb_queues": "queue_id",
    "ssb_services": "service_id",
    "ssb_routes": "route_id",
    "ssb_conversation_priorities": "priority_id",
    "ssb_principals": "principal_id",
    "ssb_certificates": "certificate_id",
    "ssb_remote_service_bindings": "remote_service_binding_id",
}


def alter(connection: Connection, table: str, number: int, values: Mapping[str, Value]) -> None:
    """Changes columns of one object; `table` and the names are this library's own."""
    if values:
        said = ", ".join(f"{column} = ?" for column in values)
        connection.execute(
            f"UPDATE {table} SET {said} WHERE {_KEYS[table]} = ?",  # noqa: S608  # names of this library
            (*values.values(), number),
        )
    changed(connection)


def drop(connection: Connection, table: str, number: int) -> None:
    """Removes one object."""
    connection.execute(f"DELETE FROM {table} WHERE {_KEYS[table]} = ?", (number,))  # noqa: S608  # names of this library
    changed(connection)


def changed(connection: Connection) -> None:
    """Gives the objects a new version: by chance, so that none comes twice where a change is rolled back."""
    connection.execute("UPDATE ssb_database SET catalog_version = random()")


def _insert(connection: Connection, table: str, key: str, number: int | None, values: Mapping[str, Value]) -> int:
    following = f"SELECT max({FIRST_ID}, 1 + coalesce(max({key}), 0)) FROM {table}"  # noqa: S608  # names of this library
    new: int = connection.execute(following).get if number is None else number
    columns = ", ".join((key, *values))
    marks = ", ".join("?" * (len(values) + 1))
    connection.execute(
        f"INSERT INTO {table} ({columns}) VALUES ({marks})",  # noqa: S608  # names of this library
        (new, *values.values()),
    )
    changed(connection)
    return new
