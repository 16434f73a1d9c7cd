"""The columns of the views, with SQL Server's names (facts 38, 78, 101, 124, 151, 154, 157 to 159, 173)."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from ssbroker.schemas import GUID

_MOMENT: Final = pa.timestamp("us", tz="UTC")
_TINY: Final = pa.uint8()


def _columns(**columns: pa.DataType) -> pa.Schema:
    fields: list[pa.Field[Any]] = [pa.field(name, kind) for name, kind in columns.items()]
    return pa.schema(fields)


def _all(kind: pa.DataType, names: str) -> dict[str, pa.DataType]:
    return dict.fromkeys(names.split(), kind)


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
        lifetime=_MOMENT,
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
        **_all(
            _BOOL,
            "is_activation_enabled is_receive_enabled is_enqueue_enabled is_retention_enabled "
            "is_poison_message_handling_enabled",
        ),
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
        lifetime=_MOMENT,
        state=_TEXT,
        state_desc=_TEXT,
        far_service=_TEXT,
        far_broker_instance=GUID,
        principal_id=_INT,
        far_principal_id=_INT,
        outbound_session_key_identifier=GUID,
        inbound_session_key_identifier=GUID,
        security_timestamp=_MOMENT,
        dialog_timer=_MOMENT,
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
    # `is_initiator` is not SQL Server's: with it the rows can be routed as they are.
    "sys.transmission_queue": _columns(
        conversation_handle=GUID,
        to_service_name=_TEXT,
        to_broker_instance=GUID,
        from_service_name=_TEXT,
        service_contract_name=_TEXT,
        enqueue_time=_MOMENT,
        message_sequence_number=_LONG,
        message_type_name=_TEXT,
        is_conversation_error=_BOOL,
        is_end_of_dialog=_BOOL,
        message_body=pa.binary(),
        transmission_status=_TEXT,
        priority=_TINY,
        is_initiator=_BOOL,
    ),
    "sys.database_principals": _columns(name=_TEXT, principal_id=_INT, type=_TEXT, type_desc=_TEXT),
    "sys.database_permissions": _columns(
        **{"class": _TINY},
        class_desc=_TEXT,
        **_all(_INT, "major_id minor_id grantee_principal_id grantor_principal_id"),
        **_all(_TEXT, "type permission_name state state_desc"),
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
        **_all(_TEXT, "issuer_name cert_serial_number subject"),
        expiry_date=_MOMENT,
        start_date=_MOMENT,
        thumbprint=pa.binary(),
        key_length=_INT,
    ),
}
"""The views of one database each."""

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
"""The messages of a queue."""

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
        last_empty_rowset_time=_MOMENT,
        last_activated_time=_MOMENT,
        tasks_waiting=_INT,
    ),
    "sys.dm_broker_connections": _columns(
        connection_id=GUID,
        transport_stream_id=GUID,
        state=_INT,
        state_desc=_TEXT,
        connect_time=_MOMENT,
        login_time=_MOMENT,
        authentication_method=_TEXT,
        principal_name=_TEXT,
        remote_user_name=_TEXT,
        last_activity_time=_MOMENT,
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
        **_all(
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
"""The views of the instance as a whole."""
