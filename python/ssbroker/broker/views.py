"""The system views as Arrow tables: SQL Server's views, with most of their columns, and two views that only ssbroker has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from ssbroker._arguments import epoch_microseconds, is_utf8_text
from ssbroker._text import did_you_mean
from ssbroker.broker.context import DatabaseContext, InstanceContext
from ssbroker.broker.object_names import existing, queue_key
from ssbroker.exceptions import InputError, StorageError
from ssbroker.protocol.conversation_states import DESCRIPTIONS, ConversationState
from ssbroker.schemas import GUID
from ssbroker.security.key_exchange import DialogCertificate
from ssbroker.store import database_registry, queues, views
from ssbroker.store.objects import BrokerEndpoint
from ssbroker.store.views import QueueSlice

_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_TINY: Final = pa.uint8()


def _columns(**columns: pa.DataType) -> pa.Schema:
    fields: list[pa.Field[Any]] = [pa.field(name, data_type) for name, data_type in columns.items()]
    return pa.schema(fields)


def _columns_of_type(data_type: pa.DataType, names: str) -> dict[str, pa.DataType]:
    return dict.fromkeys(names.split(), data_type)


_TEXT: Final = pa.string()
_INT: Final = pa.int32()
_LONG: Final = pa.int64()
_BOOL: Final = pa.bool_()

DATABASE_VIEWS: Final[dict[str, pa.Schema]] = {
    "sys.routes": _columns(
        name=_TEXT,
        route_id=_INT,
        principal_id=_INT,
        remote_service_name=_TEXT,
        broker_instance=GUID,
        lifetime=_TIMESTAMP,
        address=_TEXT,
        mirror_address=_TEXT,
    ),
    "sys.services": _columns(name=_TEXT, service_id=_INT, principal_id=_INT, service_queue_id=_INT),
    "sys.service_queues": _columns(
        name=_TEXT,
        object_id=_INT,
        schema_name=_TEXT,
        max_readers=_INT,
        activation_procedure=_TEXT,
        execute_as_principal_id=_INT,
        **_columns_of_type(
            _BOOL,
            "is_activation_enabled is_receive_enabled is_enqueue_enabled is_retention_enabled "
            "is_poison_message_handling_enabled",
        ),
        poison_queue_id=_INT,  # not in SQL Server
    ),
    "sys.service_message_types": _columns(
        name=_TEXT,
        message_type_id=_INT,
        principal_id=_INT,
        validation=_TEXT,
        validation_desc=_TEXT,
        xml_collection_id=_INT,
    ),
    "sys.service_contracts": _columns(name=_TEXT, service_contract_id=_INT, principal_id=_INT),
    "sys.service_contract_message_usages": _columns(
        service_contract_id=_INT, message_type_id=_INT, is_sent_by_initiator=_BOOL, is_sent_by_target=_BOOL
    ),
    "sys.service_contract_usages": _columns(service_id=_INT, service_contract_id=_INT),
    "sys.conversation_endpoints": _columns(
        conversation_handle=GUID,
        conversation_id=GUID,
        is_initiator=_BOOL,
        service_contract_id=_INT,
        conversation_group_id=GUID,
        service_id=_INT,
        lifetime=_TIMESTAMP,
        state=_TEXT,
        state_desc=_TEXT,
        far_service=_TEXT,
        far_broker_instance=GUID,
        principal_id=_INT,
        far_principal_id=_INT,
        outbound_session_key_identifier=GUID,
        inbound_session_key_identifier=GUID,
        security_timestamp=_TIMESTAMP,
        dialog_timer=_TIMESTAMP,
        send_sequence=_LONG,
        last_send_tran_id=pa.binary(6),
        end_dialog_sequence=_LONG,
        receive_sequence=_LONG,
        receive_sequence_frag=_INT,
        system_sequence=_LONG,
        first_out_of_order_sequence=_LONG,
        last_out_of_order_sequence=_LONG,
        last_out_of_order_frag=_INT,
        is_system=_BOOL,
        priority=_TINY,
    ),
    "sys.conversation_groups": _columns(conversation_group_id=GUID, service_id=_INT, is_system=_BOOL),
    "sys.conversation_priorities": _columns(
        priority_id=_INT,
        name=_TEXT,
        service_contract_id=_INT,
        local_service_id=_INT,
        remote_service_name=_TEXT,
        priority=_TINY,
    ),
    # SQL Server's view has no `is_initiator`; with this column, the rows can be routed directly.
    "sys.transmission_queue": _columns(
        conversation_handle=GUID,
        to_service_name=_TEXT,
        to_broker_instance=GUID,
        from_service_name=_TEXT,
        service_contract_name=_TEXT,
        enqueue_time=_TIMESTAMP,
        message_sequence_number=_LONG,
        message_type_name=_TEXT,
        is_conversation_error=_BOOL,
        is_end_of_dialog=_BOOL,
        message_body=pa.binary(),
        transmission_status=_TEXT,
        priority=_TINY,
        is_initiator=_BOOL,
    ),
    "sys.dm_broker_leases": _columns(
        conversation_group_id=GUID,
        queue_id=_INT,
        state=_TEXT,
        process_id=_INT,
        start_time=_TIMESTAMP,
        end_time=_TIMESTAMP,
        attempts=_INT,
        failures=_INT,
    ),
    "sys.dm_broker_failures": _columns(
        queue_id=_INT,
        conversation_handle=GUID,
        failed_at=_TIMESTAMP,
        error=_TEXT,
        conversation_group_id=GUID,
        moved_to_queue_id=_INT,
    ),
    "sys.database_principals": _columns(name=_TEXT, principal_id=_INT, type=_TEXT, type_desc=_TEXT),
    "sys.database_permissions": _columns(
        **{"class": _TINY},
        class_desc=_TEXT,
        **_columns_of_type(_INT, "major_id minor_id grantee_principal_id grantor_principal_id"),
        **_columns_of_type(_TEXT, "type permission_name state state_desc"),
    ),
    "sys.remote_service_bindings": _columns(
        name=_TEXT,
        remote_service_binding_id=_INT,
        principal_id=_INT,
        remote_service_name=_TEXT,
        service_contract_id=_INT,
        remote_principal_id=_INT,
        is_anonymous_on=_BOOL,
    ),
    "sys.certificates": _columns(
        name=_TEXT,
        certificate_id=_INT,
        principal_id=_INT,
        pvt_key_encryption_type=_TEXT,
        pvt_key_encryption_type_desc=_TEXT,
        is_active_for_begin_dialog=_BOOL,
        **_columns_of_type(_TEXT, "issuer_name cert_serial_number subject"),
        expiry_date=_TIMESTAMP,
        start_date=_TIMESTAMP,
        thumbprint=pa.binary(),
        key_length=_INT,
    ),
}
"""The views of a database."""

QUEUE: Final = _columns(
    status=_TINY,
    priority=_TINY,
    queuing_order=_LONG,
    conversation_group_id=GUID,
    conversation_handle=GUID,
    message_sequence_number=_LONG,
    service_name=_TEXT,
    service_id=_INT,
    service_contract_name=_TEXT,
    service_contract_id=_INT,
    message_type_name=_TEXT,
    message_type_id=_INT,
    validation=_TEXT,
    message_body=pa.binary(),
    message_id=GUID,
)
"""The columns of a queue."""

INSTANCE_VIEWS: Final[dict[str, pa.Schema]] = {
    "sys.databases": _columns(
        name=_TEXT,
        database_id=_INT,
        state=_TINY,
        state_desc=_TEXT,
        service_broker_guid=GUID,
        is_broker_enabled=_BOOL,
        is_honor_broker_priority_on=_BOOL,
    ),
    "sys.database_mirroring": _columns(
        database_id=_INT, mirroring_role=_TINY, mirroring_role_desc=_TEXT, mirroring_role_sequence=_LONG
    ),
    "sys.service_broker_endpoints": _columns(
        name=_TEXT,
        endpoint_id=_INT,
        principal_id=_INT,
        protocol=_TINY,
        protocol_desc=_TEXT,
        type=_TINY,
        type_desc=_TEXT,
        state=_TINY,
        state_desc=_TEXT,
        is_admin_endpoint=_BOOL,
        is_message_forwarding_enabled=_BOOL,
        message_forwarding_size=_INT,
        connection_auth=_TINY,
        connection_auth_desc=_TEXT,
        certificate_id=_INT,
        encryption_algorithm=_TINY,
        encryption_algorithm_desc=_TEXT,
        port=_INT,
        ip_address=_TEXT,
    ),
    "sys.dm_broker_activated_tasks": _columns(
        spid=_INT, database_id=_INT, queue_id=_INT, procedure_name=_TEXT, execute_as=_INT
    ),
    "sys.dm_broker_queue_monitors": _columns(
        database_id=_INT,
        queue_id=_INT,
        state=_TEXT,
        last_empty_rowset_time=_TIMESTAMP,
        last_activated_time=_TIMESTAMP,
        tasks_waiting=_INT,
    ),
    "sys.dm_broker_connections": _columns(
        connection_id=GUID,
        transport_stream_id=GUID,
        state=_INT,
        state_desc=_TEXT,
        connect_time=_TIMESTAMP,
        login_time=_TIMESTAMP,
        authentication_method=_TEXT,
        principal_name=_TEXT,
        remote_user_name=_TEXT,
        last_activity_time=_TIMESTAMP,
        is_accept=_BOOL,
        login_state=_INT,
        login_state_desc=_TEXT,
        peer_certificate_id=_INT,
        encryption_algorithm=_INT,
        encryption_algorithm_desc=_TEXT,
        receives_posted=_INT,
        is_receive_flow_controlled=_BOOL,
        sends_posted=_INT,
        is_send_flow_controlled=_BOOL,
        **_columns_of_type(
            _LONG,
            "total_bytes_sent total_bytes_received total_fragments_sent total_fragments_received total_sends total_receives",
        ),
        peer_arbitration_id=GUID,
    ),
    "sys.dm_broker_forwarded_messages": _columns(
        conversation_id=GUID,
        is_initiator=_BOOL,
        to_service_name=_TEXT,
        to_broker_instance=GUID,
        from_service_name=_TEXT,
        from_broker_instance=GUID,
        adjacent_broker_address=_TEXT,
        message_sequence_number=_LONG,
        message_fragment_number=_INT,
        hops_remaining=_TINY,
        time_to_live=_INT,
        time_consumed=_INT,
        message_id=GUID,
    ),
}
"""The views of the instance."""


Row = Sequence[Any]

DATABASE: Final[pa.Field[Any]] = pa.field("database", pa.string())
_STATE: Final = DATABASE_VIEWS["sys.conversation_endpoints"].get_field_index("state")
_ROLES: Final = ("principal", "mirror")
_ENDPOINT_STATES: Final = ("STARTED", "STOPPED", "DISABLED")
_FIRST_ENDPOINT_ID: Final = 65_536


def view(instance: InstanceContext, name: str, database: str | None) -> pa.Table:
    """Returns the rows of a view or a queue."""
    if not is_utf8_text(name):
        raise InputError(f"name: expected the name of a view or a queue, got {name!r:.80}", value=name)
    if name in INSTANCE_VIEWS:
        if database is not None:
            raise InputError(f"{name} is a view of the instance; omit the argument database", value=database)
        rows_of = _INSTANCE_ROWS.get(name)
        rows = instance.row_sources.get(name, tuple)() if rows_of is None else rows_of(instance)
        return table_of(rows, INSTANCE_VIEWS[name])
    databases = instance.databases if database is None else (instance.database(database),)
    if name in DATABASE_VIEWS:
        return _table_with_database(
            _rows_by_database(instance, databases, lambda one: _database_rows(one, name)), DATABASE_VIEWS[name]
        )
    if name.lower().startswith("sys."):
        known = sorted({*DATABASE_VIEWS, *INSTANCE_VIEWS})
        hint = did_you_mean(name.lower(), known) or f"; available views: {', '.join(known)}"
        raise InputError(f"the view {name!r} does not exist{hint}", value=name)
    key = queue_key(name)
    found = _rows_by_database(instance, databases, lambda one: _queue_rows(one, key))
    if not found:
        queues = {f"{schema}.{queue}" for one in databases for schema, queue in one.objects().queues}
        lost = instance.databases_list.unavailable() if database is None else ()
        hint = f"; it may be in a database that is not available: {', '.join(lost)}" if lost else ""
        raise InputError(f"the queue {name!r} does not exist{hint}{did_you_mean('.'.join(key), queues)}", value=name)
    return _table_with_database(found, QUEUE)


def _rows_by_database(
    instance: InstanceContext,
    databases: Iterable[DatabaseContext],
    rows_of: Callable[[DatabaseContext], list[Row] | None],
) -> list[tuple[DatabaseContext, list[Row]]]:
    """Returns the rows of each database that contains the view or queue; omits databases that are detached in the meantime."""
    found = []
    for database in databases:
        try:
            rows = rows_of(database)
        except StorageError:
            with suppress(StorageError):
                instance.databases_list.reconcile(database)
            if all(one is not database for one in instance.databases):
                continue
            rows = rows_of(database)
        if rows is not None:
            found.append((database, rows))
    return found


def _queue_rows(database: DatabaseContext, key: tuple[str, str]) -> list[Row] | None:
    with database.file.read() as connection:
        queue = database.objects(connection).queues.get(key)
        return None if queue is None else [*views.queue_rows(connection, queue.queue_id)]


def _database_rows(database: DatabaseContext, name: str) -> list[Row]:
    with database.file.read() as connection:
        database.objects(connection)  # raises if the database is no longer attached
        found: list[Row] = [*views.rows(connection, name)]
    if name == "sys.certificates":
        return [(*row[:-1], *_certificate_columns(row[-1])) for row in found]
    if name != "sys.conversation_endpoints":
        return found
    return [(*row[: _STATE + 1], DESCRIPTIONS[ConversationState(row[_STATE])], *row[_STATE + 2 :]) for row in found]


def _certificate_columns(certificate: bytes) -> Row:
    known = DialogCertificate(certificate)
    description = known.description
    ends, begins = epoch_microseconds(description.not_after), epoch_microseconds(description.not_before)
    return (
        description.issuer,
        description.serial_number,
        description.subject,
        ends,
        begins,
        known.thumbprint,
        description.bits,
    )


def _table_with_database(parts: list[tuple[DatabaseContext, list[Row]]], schema: pa.Schema) -> pa.Table:
    rows = ((database.name, *row) for database, found in parts for row in found)
    return table_of(rows, pa.schema([DATABASE, *schema]))


def table_of(rows: Iterable[Row], schema: pa.Schema) -> pa.Table:
    """Converts rows to a table."""
    columns = [*zip(*rows, strict=True)] or [()] * len(schema)
    return pa.Table.from_arrays(
        [_array(values, field.type) for values, field in zip(columns, schema, strict=True)], schema=schema
    )


def _array(values: Sequence[Any], data_type: pa.DataType) -> pa.Array[Any]:
    if pa.types.is_boolean(data_type):  # an integer in SQLite
        return pa.array([None if value is None else bool(value) for value in values], data_type)
    return (
        pa.array(values, pa.int64()).cast(data_type)
        if pa.types.is_timestamp(data_type)
        else pa.array(values, data_type)
    )


def _databases(instance: InstanceContext) -> Iterator[Row]:
    brokers = {database.database_id: objects.broker for database, objects in instance.databases_list.readable()}
    with instance.msdb.file.read() as connection:
        listed = database_registry.load(connection)
    for row in listed:
        broker = brokers.get(row.database_id)
        if broker is not None:
            enabled, honor = broker.is_broker_enabled, broker.is_honor_broker_priority_on
            yield (row.name, row.database_id, 0, "ONLINE", broker.service_broker_guid, enabled, honor)
        else:
            yield (row.name, row.database_id, 3, "RECOVERY_PENDING", row.service_broker_guid, False, False)


def _mirroring(instance: InstanceContext) -> Iterator[Row]:
    for database, objects in instance.databases_list.readable():
        role = objects.broker.mirroring_role
        yield (database.database_id, _ROLES.index(role) + 1, role.upper(), objects.broker.mirroring_number)


def _endpoints(instance: InstanceContext) -> Iterator[Row]:
    endpoint: BrokerEndpoint | None = instance.msdb.objects().endpoint
    if endpoint is not None:
        yield (
            endpoint.name,
            _FIRST_ENDPOINT_ID,
            1,
            2,
            "TCP",
            3,
            "SERVICE_BROKER",
            _ENDPOINT_STATES.index(endpoint.state),
            endpoint.state,
            False,
            endpoint.is_message_forwarding_enabled,
            endpoint.message_forwarding_size,
            *(None,) * 5,  # authentication is configured when the instance is served
            endpoint.port,
            None if endpoint.ip == "ALL" else endpoint.ip,
        )


_INSTANCE_ROWS: Final = {
    "sys.databases": _databases,
    "sys.database_mirroring": _mirroring,
    "sys.service_broker_endpoints": _endpoints,
}


TRANSMISSION_QUEUE: Final = "sys.transmission_queue"


def queue_slices(
    database: DatabaseContext,
    name: str,
    *,
    after: int = 0,
    until: int | None = None,
    rows_max: int,
    bytes_max: int,
    slices_max: int | None = None,
    include_sent: bool = True,
) -> list[QueueSlice]:
    """Splits the current contents of a queue or the transmission queue into slices."""
    with database.file.read() as connection:
        queue_id = _queue_id(database, connection, name)
        found = views.queue_slices(
            connection,
            queue_id,
            after=after,
            until=until,
            rows_max=rows_max,
            bytes_max=bytes_max,
            include_sent=include_sent,
        )
        with closing(found):
            return list(islice(found, slices_max))


def last_queuing_order(database: DatabaseContext) -> int:
    """Returns the last assigned `queuing_order` of a database, which never decreases."""
    return database.file.query(queues.last_queuing_order)


def read_slice(
    database: DatabaseContext,
    name: str,
    span: tuple[int, int] | None,
    columns: Sequence[str],
    *,
    include_sent: bool = True,
) -> pa.Table:
    """Returns the rows of a slice of a queue or the transmission queue."""
    schema = DATABASE_VIEWS[TRANSMISSION_QUEUE] if name == TRANSMISSION_QUEUE else QUEUE
    stored = [column for column in columns if column != DATABASE.name]
    with database.file.read() as connection:
        queue_id = _queue_id(database, connection, name)
        rows = views.slice_rows(
            connection, queue_id, span, view_columns=schema.names, columns=stored, include_sent=include_sent
        )
    fields: list[pa.Field[Any]] = [schema.field(column) for column in stored]
    if not stored:
        return pa.table({DATABASE.name: [database.name] * len(rows)}, schema=pa.schema([DATABASE]))
    table = table_of(rows, pa.schema(fields))
    if DATABASE.name in columns:
        table = table.append_column(DATABASE, pa.array([database.name] * len(rows), pa.string()))
    return table.select(list(columns))


def _queue_id(database: DatabaseContext, connection: Any, name: str) -> int | None:
    if name == TRANSMISSION_QUEUE:
        return None
    return existing(database.objects(connection).queues, queue_key(name), kind="queue", database=database.name).queue_id
