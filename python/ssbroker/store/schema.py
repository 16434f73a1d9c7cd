"""Tables of database files and of msdb, as migrations."""

from __future__ import annotations

from typing import Final

APPLICATION_ID: Final = 0x53534272
"""`PRAGMA application_id` of database files: `SSBr`."""

DATABASE: Final = (
    """
    -- One row: properties that stay with the file when it is moved, and the instance that it is attached to.
    CREATE TABLE ssb_database (
        only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
        service_broker_guid BLOB NOT NULL,
        is_broker_enabled INTEGER NOT NULL,
        is_honor_broker_priority_on INTEGER NOT NULL DEFAULT 0,
        catalog_version INTEGER NOT NULL DEFAULT 0,
        attached_to BLOB,
        device INTEGER,
        inode INTEGER
    );
    CREATE TABLE ssb_message_types (
        message_type_id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        validation TEXT NOT NULL CHECK (validation IN ('N', 'E', 'X'))
    );
    CREATE TABLE ssb_contracts (service_contract_id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
    CREATE TABLE ssb_contract_messages (
        service_contract_id INTEGER NOT NULL REFERENCES ssb_contracts ON DELETE CASCADE,
        message_type_id INTEGER NOT NULL REFERENCES ssb_message_types,
        is_sent_by_initiator INTEGER NOT NULL,
        is_sent_by_target INTEGER NOT NULL,
        PRIMARY KEY (service_contract_id, message_type_id)
    ) WITHOUT ROWID;
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
        rollbacks INTEGER NOT NULL DEFAULT 0,
        UNIQUE (schema_name, name)
    );
    CREATE TABLE ssb_services (
        service_id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        queue_id INTEGER NOT NULL REFERENCES ssb_queues
    );
    CREATE TABLE ssb_service_contracts (
        service_id INTEGER NOT NULL REFERENCES ssb_services ON DELETE CASCADE,
        service_contract_id INTEGER NOT NULL REFERENCES ssb_contracts,
        PRIMARY KEY (service_id, service_contract_id)
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
    CREATE TABLE ssb_conversation_priorities (
        priority_id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        service_contract_id INTEGER REFERENCES ssb_contracts,
        local_service_id INTEGER REFERENCES ssb_services,
        remote_service_name TEXT,
        priority INTEGER NOT NULL CHECK (priority BETWEEN 1 AND 10)
    );
    -- As in sys.conversation_endpoints. Times are microseconds since 1970, UTC.
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
        transmission_status TEXT NOT NULL DEFAULT '',
        UNIQUE (conversation_id, is_initiator)
    );
    CREATE INDEX ssb_conversation_endpoints_group ON ssb_conversation_endpoints (conversation_group_id);
    CREATE INDEX ssb_conversation_endpoints_lifetime ON ssb_conversation_endpoints (lifetime) WHERE state <> 'CD' AND state <> 'ER';
    CREATE INDEX ssb_conversation_endpoints_timer ON ssb_conversation_endpoints (dialog_timer) WHERE dialog_timer IS NOT NULL;
    CREATE INDEX ssb_conversation_endpoints_closed ON ssb_conversation_endpoints (security_timestamp) WHERE state = 'CD';
    -- The messages of all queues. `precedence`: 0 DialogTimer, 1 Error, 2 all others.
    CREATE TABLE ssb_queue_messages (
        queuing_order INTEGER PRIMARY KEY,
        queue_id INTEGER NOT NULL,
        status INTEGER NOT NULL CHECK (status BETWEEN 0 AND 3),
        priority INTEGER NOT NULL,
        endpoint_id INTEGER NOT NULL,
        precedence INTEGER NOT NULL,
        message_sequence_number INTEGER NOT NULL,
        message_type_id INTEGER NOT NULL,
        message_body BLOB
    );
    CREATE INDEX ssb_queue_messages_next ON ssb_queue_messages (queue_id, status, priority DESC);
    CREATE INDEX ssb_queue_messages_order ON ssb_queue_messages (endpoint_id, status, precedence, message_sequence_number);
    -- Messages that are not delivered yet; `is_inbound`: it arrived while its queue was off.
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
    CREATE INDEX ssb_transmission_queue_order ON ssb_transmission_queue (endpoint_id, is_inbound, message_sequence_number);
    CREATE INDEX ssb_transmission_queue_inbound ON ssb_transmission_queue (endpoint_id) WHERE is_inbound = 1;
    """,
    """
    -- A row for each service whose route is requested: the handle of the dialog while it is open, then the earliest time of the
    -- next request and the reason of a refusal.
    CREATE TABLE ssb_route_requests (
        service_name TEXT PRIMARY KEY,
        conversation_handle BLOB UNIQUE,
        ask_again_at INTEGER,
        refusal TEXT NOT NULL DEFAULT ''
    ) WITHOUT ROWID;
    -- Messages of requests to the configuration service.
    INSERT OR IGNORE INTO ssb_message_types (message_type_id, name, validation) VALUES
        (5, 'http://schemas.microsoft.com/SQL/ServiceBroker/BrokerConfigurationNotice/MissingRoute', 'X'),
        (6, 'http://schemas.microsoft.com/SQL/ServiceBroker/BrokerConfigurationNotice/MissingRemoteServiceBinding', 'X');
    INSERT OR IGNORE INTO ssb_contracts (service_contract_id, name) VALUES
        (2, 'http://schemas.microsoft.com/SQL/ServiceBroker/BrokerConfigurationNotice');
    INSERT OR IGNORE INTO ssb_contract_messages
        SELECT service_contract_id, message_type_id, 1, 0 FROM ssb_contracts c JOIN ssb_message_types m
            ON m.name IN (c.name || '/MissingRoute', c.name || '/MissingRemoteServiceBinding')
        WHERE service_contract_id = 2;
    -- The mirroring role is stored in the file; its number grows by 1 with each failover.
    ALTER TABLE ssb_database ADD COLUMN mirroring_role TEXT NOT NULL DEFAULT 'principal'
        CHECK (mirroring_role IN ('principal', 'mirror'));
    ALTER TABLE ssb_database ADD COLUMN mirroring_number INTEGER NOT NULL DEFAULT 0;
    -- Whether the remote endpoint has been reached over the network, its identity, and the keys of a secured dialog.
    ALTER TABLE ssb_conversation_endpoints ADD COLUMN is_remote INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE ssb_conversation_endpoints ADD COLUMN far_peer BLOB;
    ALTER TABLE ssb_conversation_endpoints ADD COLUMN session_key BLOB;
    ALTER TABLE ssb_conversation_endpoints ADD COLUMN far_session_key BLOB;
    ALTER TABLE ssb_conversation_endpoints ADD COLUMN far_certificate BLOB;
    -- Decrypted fragments from the network of messages that are incomplete or early.
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
    -- Transmission objects of idle dialogs; only the process that wrote them can use them.
    CREATE TABLE ssb_transmission_objects (
        endpoint_id INTEGER PRIMARY KEY REFERENCES ssb_conversation_endpoints ON DELETE CASCADE,
        packed BLOB NOT NULL
    );
    -- Dialog security. Principals: 0 is public, 1 is dbo, the default owner.
    CREATE TABLE ssb_principals (principal_id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
    INSERT INTO ssb_principals VALUES (0, 'public'), (1, 'dbo');
    ALTER TABLE ssb_services ADD COLUMN principal_id INTEGER NOT NULL DEFAULT 1;
    -- The master key, encrypted by its password and by the service master key.
    CREATE TABLE ssb_master_key (
        only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
        by_password BLOB NOT NULL,
        by_service BLOB
    );
    -- The certificate in DER; its private key encrypted by the master key.
    CREATE TABLE ssb_certificates (
        certificate_id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        principal_id INTEGER NOT NULL REFERENCES ssb_principals,
        is_active_for_begin_dialog INTEGER NOT NULL DEFAULT 1,
        fingerprint BLOB NOT NULL UNIQUE,
        certificate BLOB NOT NULL,
        private_key BLOB
    );
    CREATE TABLE ssb_remote_service_bindings (
        remote_service_binding_id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        principal_id INTEGER NOT NULL DEFAULT 1 REFERENCES ssb_principals,
        remote_service_name TEXT NOT NULL UNIQUE,
        remote_principal_id INTEGER NOT NULL REFERENCES ssb_principals,
        is_anonymous_on INTEGER NOT NULL DEFAULT 0
    );
    -- SEND permissions: granted or denied.
    CREATE TABLE ssb_send_permissions (
        service_id INTEGER NOT NULL REFERENCES ssb_services ON DELETE CASCADE,
        principal_id INTEGER NOT NULL REFERENCES ssb_principals,
        state TEXT NOT NULL CHECK (state IN ('G', 'D')),
        PRIMARY KEY (service_id, principal_id)
    ) WITHOUT ROWID;
    INSERT INTO ssb_send_permissions SELECT service_id, 0, 'G' FROM ssb_services;
    """,
    """
    -- Queuing orders are never reused, not even after the queue was empty.
    CREATE TABLE ssb_queue_messages_numbered (
        queuing_order INTEGER PRIMARY KEY AUTOINCREMENT,
        queue_id INTEGER NOT NULL,
        status INTEGER NOT NULL CHECK (status BETWEEN 0 AND 3),
        priority INTEGER NOT NULL,
        endpoint_id INTEGER NOT NULL,
        precedence INTEGER NOT NULL,
        message_sequence_number INTEGER NOT NULL,
        message_type_id INTEGER NOT NULL,
        message_body BLOB
    );
    INSERT INTO ssb_queue_messages_numbered SELECT * FROM ssb_queue_messages ORDER BY queuing_order;
    DROP TABLE ssb_queue_messages;
    ALTER TABLE ssb_queue_messages_numbered RENAME TO ssb_queue_messages;
    CREATE INDEX ssb_queue_messages_next ON ssb_queue_messages (queue_id, status, priority DESC);
    CREATE INDEX ssb_queue_messages_order ON ssb_queue_messages (endpoint_id, status, precedence, message_sequence_number);
    -- The last batch that each bulk sender has sent, and the conversations that it continues.
    CREATE TABLE ssb_sent_batches (writer TEXT PRIMARY KEY, batch_id INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE ssb_writer_dialogs (
        writer TEXT NOT NULL,
        dialog BLOB NOT NULL,
        endpoint_id INTEGER NOT NULL REFERENCES ssb_conversation_endpoints ON DELETE CASCADE,
        PRIMARY KEY (writer, dialog)
    ) WITHOUT ROWID;
    CREATE INDEX ssb_writer_dialogs_endpoint ON ssb_writer_dialogs (endpoint_id);
    """,
    """
    -- The fragment size, and the endpoints that continue with another one.
    ALTER TABLE ssb_database ADD COLUMN fragment_bytes INTEGER;
    CREATE TABLE ssb_other_lengths (
        endpoint_id INTEGER PRIMARY KEY REFERENCES ssb_conversation_endpoints ON DELETE CASCADE,
        fragment_bytes INTEGER NOT NULL
    );
    """,
    """
    -- Queuing orders are never reused: deleting the last message leaves a row with its number in queue 0. AUTOINCREMENT needed
    -- another page write for each message. The table has a new name, so that processes of an older version, which would not keep
    -- that row, cannot delete messages.
    CREATE TABLE ssb_queued_messages (
        queuing_order INTEGER PRIMARY KEY,
        queue_id INTEGER NOT NULL,
        status INTEGER NOT NULL CHECK (status BETWEEN 0 AND 3),
        priority INTEGER NOT NULL,
        endpoint_id INTEGER NOT NULL,
        precedence INTEGER NOT NULL,
        message_sequence_number INTEGER NOT NULL,
        message_type_id INTEGER NOT NULL,
        message_body BLOB
    );
    INSERT INTO ssb_queued_messages SELECT * FROM ssb_queue_messages ORDER BY queuing_order;
    INSERT OR IGNORE INTO ssb_queued_messages
        SELECT seq, 0, 0, 0, 0, 0, 0, 0, NULL FROM sqlite_sequence WHERE name = 'ssb_queue_messages' AND seq > 0;
    DROP TABLE ssb_queue_messages;
    CREATE INDEX ssb_queued_messages_next ON ssb_queued_messages (queue_id, status, priority DESC);
    CREATE INDEX ssb_queued_messages_order ON ssb_queued_messages (endpoint_id, status, precedence, message_sequence_number);
    """,
    """
    -- Conversation groups whose messages are hidden until a time: with `lease_id`, a process works on them; without, they wait for a
    -- retry or for the time for which they were scheduled. `until` is 0 if the group is free again and only the numbers of attempts
    -- and failures are kept.
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
    """,
    """
    -- When the endpoint was created; NULL if an earlier version did so. Shows how long conversations have been left open.
    ALTER TABLE ssb_conversation_endpoints ADD COLUMN begin_time INTEGER;
    -- The message that made poison message handling disable its queue, and its last error.
    CREATE TABLE ssb_failures (
        queue_id INTEGER NOT NULL,
        conversation_handle BLOB,
        failed_at INTEGER NOT NULL,
        error TEXT NOT NULL
    );
    """,
    """
    -- When messages arrived; those of earlier versions count from now on. The column comes before the body, so that reading it does not
    -- read the pages of the body.
    CREATE TABLE ssb_queued_messages_timed (
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
    );
    INSERT INTO ssb_queued_messages_timed
        SELECT queuing_order, queue_id, status, priority, endpoint_id, precedence, message_sequence_number, message_type_id,
            CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER), message_body
        FROM ssb_queued_messages ORDER BY queuing_order;
    DROP TABLE ssb_queued_messages;
    ALTER TABLE ssb_queued_messages_timed RENAME TO ssb_queued_messages;
    CREATE INDEX ssb_queued_messages_next ON ssb_queued_messages (queue_id, status, priority DESC);
    CREATE INDEX ssb_queued_messages_order ON ssb_queued_messages (endpoint_id, status, precedence, message_sequence_number);
    -- Poison message handling moves conversation groups that fail to this queue, instead of disabling the queue.
    ALTER TABLE ssb_queues ADD COLUMN poison_queue_id INTEGER REFERENCES ssb_queues;
    ALTER TABLE ssb_failures ADD COLUMN conversation_group_id BLOB;
    ALTER TABLE ssb_failures ADD COLUMN moved_to INTEGER;
    CREATE UNIQUE INDEX ssb_failures_moved ON ssb_failures (conversation_group_id) WHERE moved_to IS NOT NULL;
    """,
    """
    -- 1 for the messages that were ready when their conversation group began to wait, or when they joined it. RECEIVE skips
    -- them without reading them. SQLite stores 0 and 1 in the header of a record, so the column is read without the pages of the body.
    ALTER TABLE ssb_queued_messages ADD COLUMN is_hidden INTEGER NOT NULL DEFAULT 0;
    UPDATE ssb_queued_messages SET is_hidden = 1 WHERE status = 1 AND endpoint_id IN (
        SELECT endpoint_id FROM ssb_group_leases JOIN ssb_conversation_endpoints USING (conversation_group_id)
        WHERE lease_id IS NULL AND until > 0
    );
    DROP INDEX ssb_queued_messages_next;
    CREATE INDEX ssb_queued_messages_next ON ssb_queued_messages (queue_id, status, is_hidden, priority DESC);
    -- Jobs, and free groups, are few; many groups may wait. The last index finds waits that began before the clock was set back.
    CREATE INDEX ssb_group_leases_jobs ON ssb_group_leases (until) WHERE lease_id IS NOT NULL AND until > 0;
    CREATE INDEX ssb_group_leases_free ON ssb_group_leases (conversation_group_id) WHERE until = 0;
    CREATE INDEX ssb_group_leases_waits ON ssb_group_leases (until, queue_id) WHERE lease_id IS NULL AND until > 0;
    CREATE INDEX ssb_group_leases_begin ON ssb_group_leases (2 * since - until) WHERE lease_id IS NULL AND until > 0;
    """,
)
"""Migrations of every database file; item n migrates version n to n + 1 of `PRAGMA user_version`."""


MSDB: Final = (
    """
    CREATE TABLE ssb_instance (
        only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
        name TEXT NOT NULL,
        instance_id BLOB NOT NULL,
        list_version INTEGER NOT NULL DEFAULT 0
    );
    -- The index keeps two databases with the same broker id from being enabled, whichever process tries.
    CREATE TABLE ssb_databases (
        database_id INTEGER PRIMARY KEY AUTOINCREMENT,  -- never reused: other processes identify databases by it
        name TEXT NOT NULL UNIQUE,
        file TEXT NOT NULL UNIQUE,
        service_broker_guid BLOB NOT NULL,
        is_broker_enabled INTEGER NOT NULL
    );
    CREATE UNIQUE INDEX ssb_databases_enabled ON ssb_databases (service_broker_guid) WHERE is_broker_enabled;
    -- At most one row: the Service Broker endpoint.
    CREATE TABLE ssb_service_broker_endpoint (
        only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
        name TEXT NOT NULL,
        state TEXT NOT NULL,
        port INTEGER NOT NULL,
        ip TEXT NOT NULL,
        is_message_forwarding_enabled INTEGER NOT NULL DEFAULT 0,
        message_forwarding_size INTEGER NOT NULL DEFAULT 10
    );
    """,
    "",
    "",
    "",
    "",
    "",
    "",
    "",
    "",
)
"""Additional migrations of msdb; each runs together with the item of `DATABASE` at the same index."""
