-- msdb, version 9
CREATE INDEX ssb_conversation_endpoints_closed ON ssb_conversation_endpoints (security_timestamp) WHERE state = 'CD';
CREATE INDEX ssb_conversation_endpoints_group ON ssb_conversation_endpoints (conversation_group_id);
CREATE INDEX ssb_conversation_endpoints_lifetime ON ssb_conversation_endpoints (lifetime) WHERE state <> 'CD' AND state <> 'ER';
CREATE INDEX ssb_conversation_endpoints_timer ON ssb_conversation_endpoints (dialog_timer) WHERE dialog_timer IS NOT NULL;
CREATE UNIQUE INDEX ssb_databases_enabled ON ssb_databases (service_broker_guid) WHERE is_broker_enabled;
CREATE UNIQUE INDEX ssb_failures_moved ON ssb_failures (conversation_group_id) WHERE moved_to IS NOT NULL;
CREATE INDEX ssb_group_leases_begin ON ssb_group_leases (2 * since - until) WHERE lease_id IS NULL AND until > 0;
CREATE INDEX ssb_group_leases_free ON ssb_group_leases (conversation_group_id) WHERE until = 0;
CREATE INDEX ssb_group_leases_jobs ON ssb_group_leases (until) WHERE lease_id IS NOT NULL AND until > 0;
CREATE INDEX ssb_group_leases_waits ON ssb_group_leases (until, queue_id) WHERE lease_id IS NULL AND until > 0;
CREATE INDEX ssb_queued_messages_next ON ssb_queued_messages (queue_id, status, is_hidden, priority DESC);
CREATE INDEX ssb_queued_messages_order ON ssb_queued_messages (endpoint_id, status, precedence, message_sequence_number);
CREATE INDEX ssb_transmission_queue_inbound ON ssb_transmission_queue (endpoint_id) WHERE is_inbound = 1;
CREATE INDEX ssb_transmission_queue_order ON ssb_transmission_queue (endpoint_id, is_inbound, message_sequence_number);
CREATE INDEX ssb_writer_dialogs_endpoint ON ssb_writer_dialogs (endpoint_id);
CREATE TABLE sqlite_sequence(name,seq);
CREATE TABLE ssb_certificates (
        certificate_id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        principal_id INTEGER NOT NULL REFERENCES ssb_principals,
        is_active_for_begin_dialog INTEGER NOT NULL DEFAULT 1,
        fingerprint BLOB NOT NULL UNIQUE,
        certificate BLOB NOT NULL,
        private_key BLOB
    );
CREATE TABLE ssb_contract_messages (
        service_contract_id INTEGER NOT NULL REFERENCES ssb_contracts ON DELETE CASCADE,
        message_type_id INTEGER NOT NULL REFERENCES ssb_message_types,
        is_sent_by_initiator INTEGER NOT NULL,
        is_sent_by_target INTEGER NOT NULL,
        PRIMARY KEY (service_contract_id, message_type_id)
    ) WITHOUT ROWID;
CREATE TABLE ssb_contracts (service_contract_id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE ssb_conversation_endpoints (
        endpoint_id INTEGER PRIMARY KEY,
        conversation_handle BLOB NOT NULL UNIQUE,
        conversation_id BLOB NOT NULL,
        is_initiator INTEGER NOT NULL,
        conversation_group_id BLOB NOT NULL,
        service_id INTEGER NOT NULL REFERENCES ssb_services,
        service_contract_id INTEGER NOT NULL REFERENCES ssb_contracts,
        far_service TEXT NOT NULL,
        far_broker_instance BLOB,
        is_bound INTEGER NOT NULL DEFAULT 0,
        is_encrypted INTEGER NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('SO', 'SI', 'CO', 'DI', 'DO', 'ER', 'CD')),
        lifetime INTEGER NOT NULL,
        priority INTEGER NOT NULL,
        send_sequence INTEGER NOT NULL DEFAULT 0,
        receive_sequence INTEGER NOT NULL DEFAULT 0,
        end_dialog_sequence INTEGER,
        dialog_timer INTEGER,
        security_timestamp INTEGER,
        transmission_status TEXT NOT NULL DEFAULT '', is_remote INTEGER NOT NULL DEFAULT 0, far_peer BLOB, session_key BLOB, far_session_key BLOB, far_certificate BLOB, begin_time INTEGER,
        UNIQUE (conversation_id, is_initiator)
    );
CREATE TABLE ssb_conversation_priorities (
        priority_id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        service_contract_id INTEGER REFERENCES ssb_contracts,
        local_service_id INTEGER REFERENCES ssb_services,
        remote_service_name TEXT,
        priority INTEGER NOT NULL CHECK (priority BETWEEN 1 AND 10)
    );
CREATE TABLE ssb_database (
        only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
        service_broker_guid BLOB NOT NULL,
        is_broker_enabled INTEGER NOT NULL,
        is_honor_broker_priority_on INTEGER NOT NULL DEFAULT 0,
        catalog_version INTEGER NOT NULL DEFAULT 0,
        attached_to BLOB,
        device INTEGER,
        inode INTEGER
    , mirroring_role TEXT NOT NULL DEFAULT 'principal'
        CHECK (mirroring_role IN ('principal', 'mirror')), mirroring_number INTEGER NOT NULL DEFAULT 0, fragment_bytes INTEGER);
CREATE TABLE ssb_databases (
        database_id INTEGER PRIMARY KEY AUTOINCREMENT,  -- never reused: other processes identify databases by it
        name TEXT NOT NULL UNIQUE,
        file TEXT NOT NULL UNIQUE,
        service_broker_guid BLOB NOT NULL,
        is_broker_enabled INTEGER NOT NULL
    );
CREATE TABLE ssb_failures (
        queue_id INTEGER NOT NULL,
        conversation_handle BLOB,
        failed_at INTEGER NOT NULL,
        error TEXT NOT NULL
    , conversation_group_id BLOB, moved_to INTEGER);
CREATE TABLE ssb_fragments (
        endpoint_id INTEGER NOT NULL REFERENCES ssb_conversation_endpoints ON DELETE CASCADE,
        message_sequence_number INTEGER NOT NULL,
        fragment_number INTEGER NOT NULL,
        fragment_count INTEGER NOT NULL,
        message_digest BLOB,
        fragment_digest BLOB,
        message_type_name TEXT NOT NULL,
        message_id BLOB,
        is_end_of_dialog INTEGER NOT NULL,
        is_conversation_error INTEGER NOT NULL,
        enqueue_time INTEGER NOT NULL,
        message_body BLOB NOT NULL,
        UNIQUE (endpoint_id, message_sequence_number, fragment_number)
    );
CREATE TABLE ssb_group_leases (
        conversation_group_id BLOB PRIMARY KEY,
        queue_id INTEGER NOT NULL,
        lease_id BLOB,
        process_id INTEGER,
        since INTEGER NOT NULL,
        until INTEGER NOT NULL,
        attempts INTEGER NOT NULL,
        failures INTEGER NOT NULL
    ) WITHOUT ROWID;
CREATE TABLE ssb_instance (
        only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
        name TEXT NOT NULL,
        instance_id BLOB NOT NULL,
        list_version INTEGER NOT NULL DEFAULT 0
    );
CREATE TABLE ssb_master_key (
        only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
        by_password BLOB NOT NULL,
        by_service BLOB
    );
CREATE TABLE ssb_message_types (
        message_type_id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        validation TEXT NOT NULL CHECK (validation IN ('N', 'E', 'X'))
    );
CREATE TABLE ssb_other_lengths (
        endpoint_id INTEGER PRIMARY KEY REFERENCES ssb_conversation_endpoints ON DELETE CASCADE,
        fragment_bytes INTEGER NOT NULL
    );
CREATE TABLE ssb_principals (principal_id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE "ssb_queued_messages" (
        queuing_order INTEGER PRIMARY KEY,
        queue_id INTEGER NOT NULL,
        status INTEGER NOT NULL CHECK (status BETWEEN 0 AND 3),
        priority INTEGER NOT NULL,
        endpoint_id INTEGER NOT NULL,
        precedence INTEGER NOT NULL,
        message_sequence_number INTEGER NOT NULL,
        message_type_id INTEGER NOT NULL,
        enqueue_time INTEGER,
        message_body BLOB
    , is_hidden INTEGER NOT NULL DEFAULT 0);
CREATE TABLE ssb_queues (
        queue_id INTEGER PRIMARY KEY,
        schema_name TEXT NOT NULL,
        name TEXT NOT NULL,
        is_receive_enabled INTEGER NOT NULL DEFAULT 1,
        is_enqueue_enabled INTEGER NOT NULL DEFAULT 1,
        is_retention_enabled INTEGER NOT NULL DEFAULT 0,
        is_activation_enabled INTEGER NOT NULL DEFAULT 0,
        activation_procedure TEXT,
        max_readers INTEGER NOT NULL DEFAULT 0,
        is_poison_message_handling_enabled INTEGER NOT NULL DEFAULT 1,
        rollbacks INTEGER NOT NULL DEFAULT 0, poison_queue_id INTEGER REFERENCES ssb_queues,
        UNIQUE (schema_name, name)
    );
CREATE TABLE ssb_remote_service_bindings (
        remote_service_binding_id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        principal_id INTEGER NOT NULL DEFAULT 1 REFERENCES ssb_principals,
        remote_service_name TEXT NOT NULL UNIQUE,
        remote_principal_id INTEGER NOT NULL REFERENCES ssb_principals,
        is_anonymous_on INTEGER NOT NULL DEFAULT 0
    );
CREATE TABLE ssb_route_requests (
        service_name TEXT PRIMARY KEY,
        conversation_handle BLOB UNIQUE,
        ask_again_at INTEGER,
        refusal TEXT NOT NULL DEFAULT ''
    ) WITHOUT ROWID;
CREATE TABLE ssb_routes (
        route_id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        remote_service_name TEXT,
        broker_instance BLOB,
        lifetime INTEGER,
        address TEXT NOT NULL,
        mirror_address TEXT
    );
CREATE TABLE ssb_send_permissions (
        service_id INTEGER NOT NULL REFERENCES ssb_services ON DELETE CASCADE,
        principal_id INTEGER NOT NULL REFERENCES ssb_principals,
        state TEXT NOT NULL CHECK (state IN ('G', 'D')),
        PRIMARY KEY (service_id, principal_id)
    ) WITHOUT ROWID;
CREATE TABLE ssb_sent_batches (writer TEXT PRIMARY KEY, batch_id INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE ssb_service_broker_endpoint (
        only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
        name TEXT NOT NULL,
        state TEXT NOT NULL,
        port INTEGER NOT NULL,
        ip TEXT NOT NULL,
        is_message_forwarding_enabled INTEGER NOT NULL DEFAULT 0,
        message_forwarding_size INTEGER NOT NULL DEFAULT 10
    );
CREATE TABLE ssb_service_contracts (
        service_id INTEGER NOT NULL REFERENCES ssb_services ON DELETE CASCADE,
        service_contract_id INTEGER NOT NULL REFERENCES ssb_contracts,
        PRIMARY KEY (service_id, service_contract_id)
    ) WITHOUT ROWID;
CREATE TABLE ssb_services (
        service_id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        queue_id INTEGER NOT NULL REFERENCES ssb_queues
    , principal_id INTEGER NOT NULL DEFAULT 1);
CREATE TABLE ssb_transmission_objects (
        endpoint_id INTEGER PRIMARY KEY REFERENCES ssb_conversation_endpoints ON DELETE CASCADE,
        packed BLOB NOT NULL
    );
CREATE TABLE ssb_transmission_queue (
        transmission_id INTEGER PRIMARY KEY,
        endpoint_id INTEGER NOT NULL,
        is_inbound INTEGER NOT NULL DEFAULT 0,
        message_sequence_number INTEGER NOT NULL,
        message_type_name TEXT NOT NULL,
        is_conversation_error INTEGER NOT NULL DEFAULT 0,
        is_end_of_dialog INTEGER NOT NULL DEFAULT 0,
        enqueue_time INTEGER NOT NULL,
        message_body BLOB
    );
CREATE TABLE ssb_writer_dialogs (
        writer TEXT NOT NULL,
        dialog BLOB NOT NULL,
        endpoint_id INTEGER NOT NULL REFERENCES ssb_conversation_endpoints ON DELETE CASCADE,
        PRIMARY KEY (writer, dialog)
    ) WITHOUT ROWID;
-- Sales, version 9
CREATE INDEX ssb_conversation_endpoints_closed ON ssb_conversation_endpoints (security_timestamp) WHERE state = 'CD';
CREATE INDEX ssb_conversation_endpoints_group ON ssb_conversation_endpoints (conversation_group_id);
CREATE INDEX ssb_conversation_endpoints_lifetime ON ssb_conversation_endpoints (lifetime) WHERE state <> 'CD' AND state <> 'ER';
CREATE INDEX ssb_conversation_endpoints_timer ON ssb_conversation_endpoints (dialog_timer) WHERE dialog_timer IS NOT NULL;
CREATE UNIQUE INDEX ssb_failures_moved ON ssb_failures (conversation_group_id) WHERE moved_to IS NOT NULL;
CREATE INDEX ssb_group_leases_begin ON ssb_group_leases (2 * since - until) WHERE lease_id IS NULL AND until > 0;
CREATE INDEX ssb_group_leases_free ON ssb_group_leases (conversation_group_id) WHERE until = 0;
CREATE INDEX ssb_group_leases_jobs ON ssb_group_leases (until) WHERE lease_id IS NOT NULL AND until > 0;
CREATE INDEX ssb_group_leases_waits ON ssb_group_leases (until, queue_id) WHERE lease_id IS NULL AND until > 0;
CREATE INDEX ssb_queued_messages_next ON ssb_queued_messages (queue_id, status, is_hidden, priority DESC);
CREATE INDEX ssb_queued_messages_order ON ssb_queued_messages (endpoint_id, status, precedence, message_sequence_number);
CREATE INDEX ssb_transmission_queue_inbound ON ssb_transmission_queue (endpoint_id) WHERE is_inbound = 1;
CREATE INDEX ssb_transmission_queue_order ON ssb_transmission_queue (endpoint_id, is_inbound, message_sequence_number);
CREATE INDEX ssb_writer_dialogs_endpoint ON ssb_writer_dialogs (endpoint_id);
CREATE TABLE sqlite_sequence(name,seq);
CREATE TABLE ssb_certificates (
        certificate_id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        principal_id INTEGER NOT NULL REFERENCES ssb_principals,
        is_active_for_begin_dialog INTEGER NOT NULL DEFAULT 1,
        fingerprint BLOB NOT NULL UNIQUE,
        certificate BLOB NOT NULL,
        private_key BLOB
    );
CREATE TABLE ssb_contract_messages (
        service_contract_id INTEGER NOT NULL REFERENCES ssb_contracts ON DELETE CASCADE,
        message_type_id INTEGER NOT NULL REFERENCES ssb_message_types,
        is_sent_by_initiator INTEGER NOT NULL,
        is_sent_by_target INTEGER NOT NULL,
        PRIMARY KEY (service_contract_id, message_type_id)
    ) WITHOUT ROWID;
CREATE TABLE ssb_contracts (service_contract_id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE ssb_conversation_endpoints (
        endpoint_id INTEGER PRIMARY KEY,
        conversation_handle BLOB NOT NULL UNIQUE,
        conversation_id BLOB NOT NULL,
        is_initiator INTEGER NOT NULL,
        conversation_group_id BLOB NOT NULL,
        service_id INTEGER NOT NULL REFERENCES ssb_services,
        service_contract_id INTEGER NOT NULL REFERENCES ssb_contracts,
        far_service TEXT NOT NULL,
        far_broker_instance BLOB,
        is_bound INTEGER NOT NULL DEFAULT 0,
        is_encrypted INTEGER NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('SO', 'SI', 'CO', 'DI', 'DO', 'ER', 'CD')),
        lifetime INTEGER NOT NULL,
        priority INTEGER NOT NULL,
        send_sequence INTEGER NOT NULL DEFAULT 0,
        receive_sequence INTEGER NOT NULL DEFAULT 0,
        end_dialog_sequence INTEGER,
        dialog_timer INTEGER,
        security_timestamp INTEGER,
        transmission_status TEXT NOT NULL DEFAULT '', is_remote INTEGER NOT NULL DEFAULT 0, far_peer BLOB, session_key BLOB, far_session_key BLOB, far_certificate BLOB, begin_time INTEGER,
        UNIQUE (conversation_id, is_initiator)
    );
CREATE TABLE ssb_conversation_priorities (
        priority_id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        service_contract_id INTEGER REFERENCES ssb_contracts,
        local_service_id INTEGER REFERENCES ssb_services,
        remote_service_name TEXT,
        priority INTEGER NOT NULL CHECK (priority BETWEEN 1 AND 10)
    );
CREATE TABLE ssb_database (
        only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
        service_broker_guid BLOB NOT NULL,
        is_broker_enabled INTEGER NOT NULL,
        is_honor_broker_priority_on INTEGER NOT NULL DEFAULT 0,
        catalog_version INTEGER NOT NULL DEFAULT 0,
        attached_to BLOB,
        device INTEGER,
        inode INTEGER
    , mirroring_role TEXT NOT NULL DEFAULT 'principal'
        CHECK (mirroring_role IN ('principal', 'mirror')), mirroring_number INTEGER NOT NULL DEFAULT 0, fragment_bytes INTEGER);
CREATE TABLE ssb_failures (
        queue_id INTEGER NOT NULL,
        conversation_handle BLOB,
        failed_at INTEGER NOT NULL,
        error TEXT NOT NULL
    , conversation_group_id BLOB, moved_to INTEGER);
CREATE TABLE ssb_fragments (
        endpoint_id INTEGER NOT NULL REFERENCES ssb_conversation_endpoints ON DELETE CASCADE,
        message_sequence_number INTEGER NOT NULL,
        fragment_number INTEGER NOT NULL,
        fragment_count INTEGER NOT NULL,
        message_digest BLOB,
        fragment_digest BLOB,
        message_type_name TEXT NOT NULL,
        message_id BLOB,
        is_end_of_dialog INTEGER NOT NULL,
        is_conversation_error INTEGER NOT NULL,
        enqueue_time INTEGER NOT NULL,
        message_body BLOB NOT NULL,
        UNIQUE (endpoint_id, message_sequence_number, fragment_number)
    );
CREATE TABLE ssb_group_leases (
        conversation_group_id BLOB PRIMARY KEY,
        queue_id INTEGER NOT NULL,
        lease_id BLOB,
        process_id INTEGER,
        since INTEGER NOT NULL,
        until INTEGER NOT NULL,
        attempts INTEGER NOT NULL,
        failures INTEGER NOT NULL
    ) WITHOUT ROWID;
CREATE TABLE ssb_master_key (
        only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
        by_password BLOB NOT NULL,
        by_service BLOB
    );
CREATE TABLE ssb_message_types (
        message_type_id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        validation TEXT NOT NULL CHECK (validation IN ('N', 'E', 'X'))
    );
CREATE TABLE ssb_other_lengths (
        endpoint_id INTEGER PRIMARY KEY REFERENCES ssb_conversation_endpoints ON DELETE CASCADE,
        fragment_bytes INTEGER NOT NULL
    );
CREATE TABLE ssb_principals (principal_id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE "ssb_queued_messages" (
        queuing_order INTEGER PRIMARY KEY,
        queue_id INTEGER NOT NULL,
        status INTEGER NOT NULL CHECK (status BETWEEN 0 AND 3),
        priority INTEGER NOT NULL,
        endpoint_id INTEGER NOT NULL,
        precedence INTEGER NOT NULL,
        message_sequence_number INTEGER NOT NULL,
        message_type_id INTEGER NOT NULL,
        enqueue_time INTEGER,
        message_body BLOB
    , is_hidden INTEGER NOT NULL DEFAULT 0);
CREATE TABLE ssb_queues (
        queue_id INTEGER PRIMARY KEY,
        schema_name TEXT NOT NULL,
        name TEXT NOT NULL,
        is_receive_enabled INTEGER NOT NULL DEFAULT 1,
        is_enqueue_enabled INTEGER NOT NULL DEFAULT 1,
        is_retention_enabled INTEGER NOT NULL DEFAULT 0,
        is_activation_enabled INTEGER NOT NULL DEFAULT 0,
        activation_procedure TEXT,
        max_readers INTEGER NOT NULL DEFAULT 0,
        is_poison_message_handling_enabled INTEGER NOT NULL DEFAULT 1,
        rollbacks INTEGER NOT NULL DEFAULT 0, poison_queue_id INTEGER REFERENCES ssb_queues,
        UNIQUE (schema_name, name)
    );
CREATE TABLE ssb_remote_service_bindings (
        remote_service_binding_id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        principal_id INTEGER NOT NULL DEFAULT 1 REFERENCES ssb_principals,
        remote_service_name TEXT NOT NULL UNIQUE,
        remote_principal_id INTEGER NOT NULL REFERENCES ssb_principals,
        is_anonymous_on INTEGER NOT NULL DEFAULT 0
    );
CREATE TABLE ssb_route_requests (
        service_name TEXT PRIMARY KEY,
        conversation_handle BLOB UNIQUE,
        ask_again_at INTEGER,
        refusal TEXT NOT NULL DEFAULT ''
    ) WITHOUT ROWID;
CREATE TABLE ssb_routes (
        route_id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        remote_service_name TEXT,
        broker_instance BLOB,
        lifetime INTEGER,
        address TEXT NOT NULL,
        mirror_address TEXT
    );
CREATE TABLE ssb_send_permissions (
        service_id INTEGER NOT NULL REFERENCES ssb_services ON DELETE CASCADE,
        principal_id INTEGER NOT NULL REFERENCES ssb_principals,
        state TEXT NOT NULL CHECK (state IN ('G', 'D')),
        PRIMARY KEY (service_id, principal_id)
    ) WITHOUT ROWID;
CREATE TABLE ssb_sent_batches (writer TEXT PRIMARY KEY, batch_id INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE ssb_service_contracts (
        service_id INTEGER NOT NULL REFERENCES ssb_services ON DELETE CASCADE,
        service_contract_id INTEGER NOT NULL REFERENCES ssb_contracts,
        PRIMARY KEY (service_id, service_contract_id)
    ) WITHOUT ROWID;
CREATE TABLE ssb_services (
        service_id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        queue_id INTEGER NOT NULL REFERENCES ssb_queues
    , principal_id INTEGER NOT NULL DEFAULT 1);
CREATE TABLE ssb_transmission_objects (
        endpoint_id INTEGER PRIMARY KEY REFERENCES ssb_conversation_endpoints ON DELETE CASCADE,
        packed BLOB NOT NULL
    );
CREATE TABLE ssb_transmission_queue (
        transmission_id INTEGER PRIMARY KEY,
        endpoint_id INTEGER NOT NULL,
        is_inbound INTEGER NOT NULL DEFAULT 0,
        message_sequence_number INTEGER NOT NULL,
        message_type_name TEXT NOT NULL,
        is_conversation_error INTEGER NOT NULL DEFAULT 0,
        is_end_of_dialog INTEGER NOT NULL DEFAULT 0,
        enqueue_time INTEGER NOT NULL,
        message_body BLOB
    );
CREATE TABLE ssb_writer_dialogs (
        writer TEXT NOT NULL,
        dialog BLOB NOT NULL,
        endpoint_id INTEGER NOT NULL REFERENCES ssb_conversation_endpoints ON DELETE CASCADE,
        PRIMARY KEY (writer, dialog)
    ) WITHOUT ROWID;
