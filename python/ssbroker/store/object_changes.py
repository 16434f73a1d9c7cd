"""Changes to the objects and the mirroring role of a database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Literal

from ssbroker.store.codes import CLOSED
from ssbroker.store.objects import BrokerEndpoint, ContractMessage, MirroringState, Validation
from ssbroker.store.security import OWNER, PUBLIC, PermissionState
from ssbroker.store.sqlite import Connection

FIRST_ID: Final = 65_536
"""First id of user objects of each kind; system objects have lower ids."""

Value = str | bytes | int | None
SecurityTable = Literal["ssb_principals", "ssb_certificates", "ssb_remote_service_bindings"]


def create_database_row(
    connection: Connection, *, service_broker_guid: bytes, attached_to: bytes, is_broker_enabled: bool
) -> None:
    """Inserts the single row of `ssb_database` for a new database."""
    connection.execute(
        "INSERT INTO ssb_database (only_row, service_broker_guid, is_broker_enabled, attached_to) VALUES (1, ?, ?, ?)",
        (service_broker_guid, is_broker_enabled, attached_to),
    )
    bump_version(connection)


def set_broker(connection: Connection, *, is_broker_enabled: bool, service_broker_guid: bytes | None = None) -> None:
    """Enables or disables the broker, and sets the broker id unless it is None."""
    connection.execute(
        "UPDATE ssb_database SET is_broker_enabled = ?, service_broker_guid = coalesce(?, service_broker_guid)",
        (is_broker_enabled, service_broker_guid),
    )
    bump_version(connection)


def set_honor_broker_priority(connection: Connection, *, is_on: bool) -> None:
    """Sets whether messages are sent by priority."""
    connection.execute("UPDATE ssb_database SET is_honor_broker_priority_on = ?", (is_on,))
    bump_version(connection)


def create_message_type(
    connection: Connection, *, name: str, validation: Validation, message_type_id: int | None = None
) -> int:
    """Inserts a message type and returns its id."""
    return _insert(
        connection, "ssb_message_types", "message_type_id", message_type_id, {"name": name, "validation": validation}
    )


def create_contract(
    connection: Connection, *, name: str, messages: Iterable[ContractMessage], service_contract_id: int | None = None
) -> int:
    """Inserts a contract with its message types and returns its id."""
    new_id = _insert(connection, "ssb_contracts", "service_contract_id", service_contract_id, {"name": name})
    connection.executemany(
        "INSERT INTO ssb_contract_messages VALUES (?, ?, ?, ?)",
        [
            (new_id, message.message_type_id, message.is_sent_by_initiator, message.is_sent_by_target)
            for message in messages
        ],
    )
    return new_id


def create_queue(connection: Connection, *, schema_name: str, name: str, options: Mapping[str, Value]) -> int:
    """Inserts a queue with options by column name, and returns its id."""
    return _insert(connection, "ssb_queues", "queue_id", None, {"schema_name": schema_name, "name": name, **options})


def create_service(
    connection: Connection, *, name: str, queue_id: int, contracts: Iterable[int], principal_id: int = OWNER
) -> int:
    """Inserts a service with the contracts that it accepts, and grants SEND on it to public; returns its id."""
    values: dict[str, Value] = {"name": name, "queue_id": queue_id, "principal_id": principal_id}
    new_id = _insert(connection, "ssb_services", "service_id", None, values)
    set_send_permission(connection, service_id=new_id, principal_id=PUBLIC, state="G")
    add_contracts(connection, service_id=new_id, contracts=contracts)
    return new_id


def add_contracts(connection: Connection, *, service_id: int, contracts: Iterable[int]) -> None:
    """Adds contracts to those that a service accepts."""
    connection.executemany(
        "INSERT INTO ssb_service_contracts VALUES (?, ?)", [(service_id, contract) for contract in contracts]
    )
    bump_version(connection)


def drop_contracts_of_service(connection: Connection, *, service_id: int, contracts: Iterable[int]) -> None:
    """Removes contracts from those that a service accepts."""
    connection.executemany(
        "DELETE FROM ssb_service_contracts WHERE service_id = ? AND service_contract_id = ?",
        [(service_id, contract) for contract in contracts],
    )
    bump_version(connection)


def move_service(connection: Connection, *, service_id: int, queue_id: int) -> None:
    """Moves a service with its queued messages and leases to another queue; conversation groups moved after failures stay where they are."""
    moving = """
        FROM ssb_conversation_endpoints AS e WHERE service_id = ?2 AND NOT EXISTS (
            SELECT 1 FROM ssb_failures AS f WHERE f.conversation_group_id = e.conversation_group_id AND f.moved_to IS NOT NULL
        )"""
    connection.execute(  # before the service gets its new queue
        f"""
        UPDATE ssb_group_leases SET queue_id = ?1
        WHERE queue_id = (SELECT queue_id FROM ssb_services WHERE service_id = ?2)
            AND conversation_group_id IN (SELECT conversation_group_id {moving})""",  # noqa: S608
        (queue_id, service_id),
    )
    connection.execute("UPDATE ssb_services SET queue_id = ? WHERE service_id = ?", (queue_id, service_id))
    connection.execute(
        f"UPDATE ssb_queued_messages SET queue_id = ?1 WHERE endpoint_id IN (SELECT endpoint_id {moving})",  # noqa: S608
        (queue_id, service_id),
    )
    bump_version(connection)


def is_message_type_queued(connection: Connection, *, message_type_id: int) -> bool:
    """Returns whether any queue contains a message of a type."""
    rows = connection.execute("SELECT 1 FROM ssb_queued_messages WHERE message_type_id = ? LIMIT 1", (message_type_id,))
    return rows.get is not None


def set_send_permission(
    connection: Connection, *, service_id: int, principal_id: int, state: PermissionState | None
) -> None:
    """Grants or denies SEND on a service to a principal; None revokes both."""
    connection.execute(
        "DELETE FROM ssb_send_permissions WHERE service_id = ? AND principal_id = ?", (service_id, principal_id)
    )
    if state is not None:
        connection.execute("INSERT INTO ssb_send_permissions VALUES (?, ?, ?)", (service_id, principal_id, state))
    bump_version(connection)


def find_owned_objects(connection: Connection, *, principal_id: int) -> tuple[list[str], list[str], list[str]]:
    """Returns the names of the services and certificates that a principal owns, and of the remote service bindings whose user it is."""
    services, certificates, bindings = (
        [name for (name,) in connection.execute(f"SELECT name FROM {table} WHERE {column} = ?", (principal_id,))]  # noqa: S608  # constants below
        for table, column in (
            ("ssb_services", "principal_id"),
            ("ssb_certificates", "principal_id"),
            ("ssb_remote_service_bindings", "remote_principal_id"),
        )
    )
    return services, certificates, bindings


def drop_send_permissions(connection: Connection, *, principal_id: int) -> None:
    """Revokes all SEND permissions of a principal."""
    connection.execute("DELETE FROM ssb_send_permissions WHERE principal_id = ?", (principal_id,))
    bump_version(connection)


def set_master_key(connection: Connection, *, by_password: bytes, by_service: bytes | None) -> None:
    """Stores the master key, encrypted by its password and by the service master key."""
    connection.execute(
        "INSERT OR REPLACE INTO ssb_master_key (only_row, by_password, by_service) VALUES (1, ?, ?)",
        (by_password, by_service),
    )
    bump_version(connection)


def drop_master_key(connection: Connection) -> None:
    """Deletes the master key."""
    connection.execute("DELETE FROM ssb_master_key")
    bump_version(connection)


def create(connection: Connection, table: SecurityTable, *, values: Mapping[str, Value]) -> int:
    """Inserts a principal, certificate or binding with values by column name, and returns its id."""
    return _insert(connection, table, _ID_COLUMNS[table], None, values)


UsageColumn = Literal["service_id", "service_contract_id"]


def count_open_conversations(connection: Connection, *, column: UsageColumn, object_id: int) -> int:
    """Counts the conversations of a service or contract that are not closed."""
    sql = f"SELECT count(*) FROM ssb_conversation_endpoints WHERE {column} = ? AND state <> '{CLOSED}'"  # noqa: S608  # constants of the library
    count: int = connection.execute(sql, (object_id,)).get
    return count


def has_conversations(connection: Connection) -> bool:
    """Returns whether the database has any conversation endpoint."""
    return connection.execute("SELECT 1 FROM ssb_conversation_endpoints LIMIT 1").get is not None


def remove_closed_conversations(connection: Connection, *, column: UsageColumn, object_id: int) -> None:
    """Deletes the closed conversation endpoints of a service or contract."""
    sql = f"DELETE FROM ssb_conversation_endpoints WHERE {column} = ? AND state = '{CLOSED}'"  # noqa: S608  # constants of the library
    connection.execute(sql, (object_id,))


def create_route(connection: Connection, *, values: Mapping[str, Value], route_id: int | None = None) -> int:
    """Inserts a route with values by column name, and returns its id."""
    return _insert(connection, "ssb_routes", "route_id", route_id, values)


def has_route(connection: Connection, *, route_id: int) -> bool:
    """Returns whether any route has the id."""
    return connection.execute("SELECT 1 FROM ssb_routes WHERE route_id = ?", (route_id,)).get is not None


def create_priority(connection: Connection, *, values: Mapping[str, Value]) -> int:
    """Inserts a broker priority with values by column name, and returns its id."""
    return _insert(connection, "ssb_conversation_priorities", "priority_id", None, values)


def set_endpoint(connection: Connection, endpoint: BrokerEndpoint | None) -> None:
    """Stores the endpoint of the instance in msdb; None deletes it."""
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
    bump_version(connection)


_ID_COLUMNS: Final = {
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


def alter(connection: Connection, table: str, object_id: int, values: Mapping[str, Value]) -> None:
    """Updates columns of one object; table and column names must be constants of the library."""
    if values:
        assignments = ", ".join(f"{column} = ?" for column in values)
        connection.execute(
            f"UPDATE {table} SET {assignments} WHERE {_ID_COLUMNS[table]} = ?",  # noqa: S608  # constants of the library
            (*values.values(), object_id),
        )
    bump_version(connection)


def drop(connection: Connection, table: str, object_id: int) -> None:
    """Deletes one object."""
    connection.execute(f"DELETE FROM {table} WHERE {_ID_COLUMNS[table]} = ?", (object_id,))  # noqa: S608  # constants of the library
    bump_version(connection)


def bump_version(connection: Connection) -> None:
    """Sets a new version of the objects. The version is random, so that a rolled-back version is never reused."""
    connection.execute("UPDATE ssb_database SET catalog_version = random()")


def _insert(connection: Connection, table: str, key: str, object_id: int | None, values: Mapping[str, Value]) -> int:
    next_id = f"SELECT max({FIRST_ID}, 1 + coalesce(max({key}), 0)) FROM {table}"  # noqa: S608  # constants of the library
    new_id: int = connection.execute(next_id).get if object_id is None else object_id
    columns = ", ".join((key, *values))
    placeholders = ", ".join("?" * (len(values) + 1))
    connection.execute(
        f"INSERT INTO {table} ({columns}) VALUES ({placeholders})",  # noqa: S608  # constants of the library
        (new_id, *values.values()),
    )
    bump_version(connection)
    return new_id


def write_mirroring(connection: Connection, mirroring: MirroringState) -> None:
    """Updates the mirroring role and the number of failovers; the caller must invalidate cached snapshots of the objects."""
    connection.execute("UPDATE ssb_database SET mirroring_role = ?, mirroring_number = ?", mirroring)
