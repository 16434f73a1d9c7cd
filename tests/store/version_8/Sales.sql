
PRAGMA page_size=4096;

BEGIN TRANSACTION;

DROP TABLE IF EXISTS orders;
CREATE TABLE orders (id INTEGER PRIMARY KEY, what TEXT);
INSERT INTO orders VALUES(1,'two chairs');

DROP TABLE IF EXISTS ssb_certificates;
CREATE TABLE ssb_certificates (
        certificate_id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        principal_id INTEGER NOT NULL REFERENCES ssb_principals,
        is_active_for_begin_dialog INTEGER NOT NULL DEFAULT 1,
        fingerprint BLOB NOT NULL UNIQUE,
        certificate BLOB NOT NULL,
        private_key BLOB
    );

DROP TABLE IF EXISTS ssb_contract_messages;
CREATE TABLE ssb_contract_messages (
        service_contract_id INTEGER NOT NULL REFERENCES ssb_contracts ON DELETE CASCADE,
        message_type_id INTEGER NOT NULL REFERENCES ssb_message_types,
        is_sent_by_initiator INTEGER NOT NULL,
        is_sent_by_target INTEGER NOT NULL,
        PRIMARY KEY (service_contract_id, message_type_id)
    ) WITHOUT ROWID;
INSERT INTO ssb_contract_messages VALUES(1,4,1,1);
INSERT INTO ssb_contract_messages VALUES(2,5,1,0);
INSERT INTO ssb_contract_messages VALUES(2,6,1,0);
INSERT INTO ssb_contract_messages VALUES(65536,4,1,1);
INSERT INTO ssb_contract_messages VALUES(65536,65536,1,0);

DROP TABLE IF EXISTS ssb_contracts;
CREATE TABLE ssb_contracts (service_contract_id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
INSERT INTO ssb_contracts VALUES(1,'DEFAULT');
INSERT INTO ssb_contracts VALUES(2,'http://schemas.microsoft.com/SQL/ServiceBroker/BrokerConfigurationNotice');
INSERT INTO ssb_contracts VALUES(65536,'Trade');

DROP TABLE IF EXISTS ssb_conversation_endpoints;
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
INSERT INTO ssb_conversation_endpoints VALUES(1,X'8534F45738D048EC8F1099C6C3E1B258',X'C79D679346D44C7A9C3902B38963DC6E',1,X'FD724452CCEA41FF8A14876AEAFF1A09',65537,65536,'//Orders',X'8CA5996666CE4B368512BD1311072231',1,0,'CO',3942702847000000,5,2,1,NULL,NULL,NULL,'',0,NULL,NULL,NULL,NULL,NULL);
INSERT INTO ssb_conversation_endpoints VALUES(2,X'43000DE01B2E440E93ADDCCB2C33BE0A',X'C79D679346D44C7A9C3902B38963DC6E',0,X'06905269ED6F4B09B165C8CE36E2F24B',65536,65536,'//Shop',X'8CA5996666CE4B368512BD1311072231',1,0,'CO',3942702847000000,5,1,2,NULL,NULL,NULL,'',0,NULL,NULL,NULL,NULL,NULL);
INSERT INTO ssb_conversation_endpoints VALUES(3,X'2A31878531844F27859142DECCEA2645',X'DE08CAA1A08149108A25E4664F5253A0',1,X'42A00403CE8044B0A4042BB3D4341AAD',65537,65536,'//Far',NULL,0,0,'CO',3942702847000000,5,1,0,NULL,NULL,NULL,'9748: the message is for another instance, at TCP://far.example:4022, and no process serves this one, so that nothing is sent: `ssbroker serve FOLDER`, or `with instance.serve()`. If the service is in this instance, give its route the address LOCAL: ALTER ROUTE <name> WITH ADDRESS = N''LOCAL'';',0,NULL,NULL,NULL,NULL,NULL);
CREATE INDEX ssb_conversation_endpoints_closed ON ssb_conversation_endpoints (security_timestamp) WHERE state = 'CD';
CREATE INDEX ssb_conversation_endpoints_group ON ssb_conversation_endpoints (conversation_group_id);
CREATE INDEX ssb_conversation_endpoints_lifetime ON ssb_conversation_endpoints (lifetime) WHERE state <> 'CD' AND state <> 'ER';
CREATE INDEX ssb_conversation_endpoints_timer ON ssb_conversation_endpoints (dialog_timer) WHERE dialog_timer IS NOT NULL;

DROP TABLE IF EXISTS ssb_conversation_priorities;
CREATE TABLE ssb_conversation_priorities (
        priority_id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        service_contract_id INTEGER REFERENCES ssb_contracts,
        local_service_id INTEGER REFERENCES ssb_services,
        remote_service_name TEXT,
        priority INTEGER NOT NULL CHECK (priority BETWEEN 1 AND 10)
    );

DROP TABLE IF EXISTS ssb_database;
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
INSERT INTO ssb_database VALUES(1,X'8CA5996666CE4B368512BD1311072231',1,0,-365245382102632548,X'1710CF5327AC435ABA97C643656412A9',65024,10281842,'principal',0,NULL);

DROP TABLE IF EXISTS ssb_failures;
CREATE TABLE ssb_failures (
        queue_id INTEGER NOT NULL,
        conversation_handle BLOB,
        failed_at INTEGER NOT NULL,
        error TEXT NOT NULL
    , conversation_group_id BLOB, moved_to INTEGER);
CREATE UNIQUE INDEX ssb_failures_moved ON ssb_failures (conversation_group_id) WHERE moved_to IS NOT NULL;

DROP TABLE IF EXISTS ssb_fragments;
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

DROP TABLE IF EXISTS ssb_group_leases;
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

DROP TABLE IF EXISTS ssb_master_key;
CREATE TABLE ssb_master_key (
        only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
        by_password BLOB NOT NULL,
        by_service BLOB
    );

DROP TABLE IF EXISTS ssb_message_types;
CREATE TABLE ssb_message_types (
        message_type_id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        validation TEXT NOT NULL CHECK (validation IN ('N', 'E', 'X'))
    );
INSERT INTO ssb_message_types VALUES(1,'http://schemas.microsoft.com/SQL/ServiceBroker/Error','X');
INSERT INTO ssb_message_types VALUES(2,'http://schemas.microsoft.com/SQL/ServiceBroker/EndDialog','E');
INSERT INTO ssb_message_types VALUES(3,'http://schemas.microsoft.com/SQL/ServiceBroker/DialogTimer','E');
INSERT INTO ssb_message_types VALUES(4,'DEFAULT','N');
INSERT INTO ssb_message_types VALUES(5,'http://schemas.microsoft.com/SQL/ServiceBroker/BrokerConfigurationNotice/MissingRoute','X');
INSERT INTO ssb_message_types VALUES(6,'http://schemas.microsoft.com/SQL/ServiceBroker/BrokerConfigurationNotice/MissingRemoteServiceBinding','X');
INSERT INTO ssb_message_types VALUES(65536,'//Order','N');

DROP TABLE IF EXISTS ssb_other_lengths;
CREATE TABLE ssb_other_lengths (
        endpoint_id INTEGER PRIMARY KEY REFERENCES ssb_conversation_endpoints ON DELETE CASCADE,
        fragment_bytes INTEGER NOT NULL
    );

DROP TABLE IF EXISTS ssb_principals;
CREATE TABLE ssb_principals (principal_id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
INSERT INTO ssb_principals VALUES(0,'public');
INSERT INTO ssb_principals VALUES(1,'dbo');

DROP TABLE IF EXISTS ssb_queued_messages;
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
    );
INSERT INTO ssb_queued_messages VALUES(2,65537,1,5,1,2,0,4,1796055731589987,X'6F6E2069747320776179');
INSERT INTO ssb_queued_messages VALUES(3,65536,1,5,2,2,1,65536,1796055731589987,X'706C65617365');
CREATE INDEX ssb_queued_messages_next ON ssb_queued_messages (queue_id, status, priority DESC);
CREATE INDEX ssb_queued_messages_order ON ssb_queued_messages (endpoint_id, status, precedence, message_sequence_number);

DROP TABLE IF EXISTS ssb_queues;
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
INSERT INTO ssb_queues VALUES(65536,'dbo','Orders',1,1,0,0,NULL,0,1,0,NULL);
INSERT INTO ssb_queues VALUES(65537,'dbo','Replies',1,1,0,0,NULL,0,1,0,NULL);

DROP TABLE IF EXISTS ssb_remote_service_bindings;
CREATE TABLE ssb_remote_service_bindings (
        remote_service_binding_id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        principal_id INTEGER NOT NULL DEFAULT 1 REFERENCES ssb_principals,
        remote_service_name TEXT NOT NULL UNIQUE,
        remote_principal_id INTEGER NOT NULL REFERENCES ssb_principals,
        is_anonymous_on INTEGER NOT NULL DEFAULT 0
    );

DROP TABLE IF EXISTS ssb_route_requests;
CREATE TABLE ssb_route_requests (
        service_name TEXT PRIMARY KEY,
        conversation_handle BLOB UNIQUE,
        ask_again_at INTEGER,
        refusal TEXT NOT NULL DEFAULT ''
    ) WITHOUT ROWID;

DROP TABLE IF EXISTS ssb_routes;
CREATE TABLE ssb_routes (
        route_id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        remote_service_name TEXT,
        broker_instance BLOB,
        lifetime INTEGER,
        address TEXT NOT NULL,
        mirror_address TEXT
    );
INSERT INTO ssb_routes VALUES(65536,'AutoCreatedLocal',NULL,NULL,NULL,'LOCAL',NULL);
INSERT INTO ssb_routes VALUES(65537,'Far','//Far',NULL,NULL,'TCP://far.example:4022',NULL);

DROP TABLE IF EXISTS ssb_send_permissions;
CREATE TABLE ssb_send_permissions (
        service_id INTEGER NOT NULL REFERENCES ssb_services ON DELETE CASCADE,
        principal_id INTEGER NOT NULL REFERENCES ssb_principals,
        state TEXT NOT NULL CHECK (state IN ('G', 'D')),
        PRIMARY KEY (service_id, principal_id)
    ) WITHOUT ROWID;
INSERT INTO ssb_send_permissions VALUES(65536,0,'G');
INSERT INTO ssb_send_permissions VALUES(65537,0,'G');

DROP TABLE IF EXISTS ssb_sent_batches;
CREATE TABLE ssb_sent_batches (writer TEXT PRIMARY KEY, batch_id INTEGER NOT NULL) WITHOUT ROWID;

DROP TABLE IF EXISTS ssb_service_contracts;
CREATE TABLE ssb_service_contracts (
        service_id INTEGER NOT NULL REFERENCES ssb_services ON DELETE CASCADE,
        service_contract_id INTEGER NOT NULL REFERENCES ssb_contracts,
        PRIMARY KEY (service_id, service_contract_id)
    ) WITHOUT ROWID;
INSERT INTO ssb_service_contracts VALUES(65536,65536);
INSERT INTO ssb_service_contracts VALUES(65537,1);

DROP TABLE IF EXISTS ssb_services;
CREATE TABLE ssb_services (
        service_id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        queue_id INTEGER NOT NULL REFERENCES ssb_queues
    , principal_id INTEGER NOT NULL DEFAULT 1);
INSERT INTO ssb_services VALUES(65536,'//Orders',65536,1);
INSERT INTO ssb_services VALUES(65537,'//Shop',65537,1);

DROP TABLE IF EXISTS ssb_transmission_objects;
CREATE TABLE ssb_transmission_objects (
        endpoint_id INTEGER PRIMARY KEY REFERENCES ssb_conversation_endpoints ON DELETE CASCADE,
        packed BLOB NOT NULL
    );

DROP TABLE IF EXISTS ssb_transmission_queue;
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
INSERT INTO ssb_transmission_queue VALUES(1,3,0,0,'//Order',0,0,1795219200000000,X'6F6E65207461626C65');
CREATE INDEX ssb_transmission_queue_inbound ON ssb_transmission_queue (endpoint_id) WHERE is_inbound = 1;
CREATE INDEX ssb_transmission_queue_order ON ssb_transmission_queue (endpoint_id, is_inbound, message_sequence_number);

DROP TABLE IF EXISTS ssb_writer_dialogs;
CREATE TABLE ssb_writer_dialogs (
        writer TEXT NOT NULL,
        dialog BLOB NOT NULL,
        endpoint_id INTEGER NOT NULL REFERENCES ssb_conversation_endpoints ON DELETE CASCADE,
        PRIMARY KEY (writer, dialog)
    ) WITHOUT ROWID;
CREATE INDEX ssb_writer_dialogs_endpoint ON ssb_writer_dialogs (endpoint_id);

pragma user_version=8;
pragma application_id=1397965426;

COMMIT TRANSACTION;
