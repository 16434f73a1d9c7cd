PRAGMA application_id = 1397965426;
PRAGMA user_version = 1;
BEGIN TRANSACTION;
CREATE TABLE orders (id INTEGER PRIMARY KEY, what TEXT);
INSERT INTO "orders" VALUES(1,'two chairs');
CREATE TABLE ssb_contract_messages (
        service_contract_id INTEGER NOT NULL REFERENCES ssb_contracts ON DELETE CASCADE,
        message_type_id INTEGER NOT NULL REFERENCES ssb_message_types,
        is_sent_by_initiator INTEGER NOT NULL,
        is_sent_by_target INTEGER NOT NULL,
        PRIMARY KEY (service_contract_id, message_type_id)
    ) WITHOUT ROWID;
INSERT INTO "ssb_contract_messages" VALUES(1,4,1,1);
INSERT INTO "ssb_contract_messages" VALUES(65536,4,1,1);
INSERT INTO "ssb_contract_messages" VALUES(65536,65536,1,0);
CREATE TABLE ssb_contracts (service_contract_id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
INSERT INTO "ssb_contracts" VALUES(1,'DEFAULT');
INSERT INTO "ssb_contracts" VALUES(65536,'Trade');
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
INSERT INTO "ssb_conversation_endpoints" VALUES(1,X'E4B06CE6074147A8BCE42C8218072E8C',X'9B810E766EC94286A3CA828DD5F4B3B2',1,X'35BF992DC9E94616A12E7696A6CECC1B',65537,65536,'//Orders',X'78E51061731148A382CE6F447ED4D57B',1,1,'CO',3942702847000000,5,2,1,NULL,NULL,NULL,'');
INSERT INTO "ssb_conversation_endpoints" VALUES(2,X'B2221A58008A45A684647159C324C985',X'9B810E766EC94286A3CA828DD5F4B3B2',0,X'CD447E35B8B648FE842E3D437204E52D',65536,65536,'//Shop',X'78E51061731148A382CE6F447ED4D57B',1,1,'CO',3942702847000000,5,1,2,NULL,NULL,NULL,'');
INSERT INTO "ssb_conversation_endpoints" VALUES(3,X'05B6E6E307D44EDC91431193E6C3F339',X'025B413F8A9A421EA648A7DD06839EB9',1,X'1A2B8F1FF1FD42A29755D4C13A902931',65537,65536,'//Far',NULL,0,1,'CO',3942702847000000,5,1,0,NULL,NULL,NULL,'9748: the message is for another instance, at TCP://far.example:4022, and this instance has no Service Broker endpoint to send with. If the service is in this instance, give its route the address LOCAL: ALTER ROUTE <name> WITH ADDRESS = N''LOCAL'';');
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
    );
INSERT INTO "ssb_database" VALUES(1,X'78E51061731148A382CE6F447ED4D57B',1,0,-248031064686815225,X'1E2FEB89414C443C9027C4D1C386BBC4',65024,10183074);
CREATE TABLE ssb_message_types (
        message_type_id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        validation TEXT NOT NULL CHECK (validation IN ('N', 'E', 'X'))
    );
INSERT INTO "ssb_message_types" VALUES(1,'http://schemas.microsoft.com/SQL/ServiceBroker/Error','X');
INSERT INTO "ssb_message_types" VALUES(2,'http://schemas.microsoft.com/SQL/ServiceBroker/EndDialog','E');
INSERT INTO "ssb_message_types" VALUES(3,'http://schemas.microsoft.com/SQL/ServiceBroker/DialogTimer','E');
INSERT INTO "ssb_message_types" VALUES(4,'DEFAULT','N');
INSERT INTO "ssb_message_types" VALUES(65536,'Order','X');
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
INSERT INTO "ssb_queue_messages" VALUES(2,65536,1,5,2,2,1,4,X'706C65617365');
INSERT INTO "ssb_queue_messages" VALUES(3,65537,1,5,1,2,0,4,X'6F6E2069747320776179');
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
INSERT INTO "ssb_queues" VALUES(65536,'dbo','Orders',1,1,0,0,NULL,0,1,0);
INSERT INTO "ssb_queues" VALUES(65537,'dbo','Replies',1,1,0,0,NULL,0,1,0);
CREATE TABLE ssb_routes (
        route_id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        remote_service_name TEXT,
        broker_instance BLOB,
        lifetime INTEGER,
        address TEXT NOT NULL,
        mirror_address TEXT
    );
INSERT INTO "ssb_routes" VALUES(65536,'AutoCreatedLocal',NULL,NULL,NULL,'LOCAL',NULL);
INSERT INTO "ssb_routes" VALUES(65537,'Far','//Far',NULL,NULL,'TCP://far.example:4022',NULL);
CREATE TABLE ssb_service_contracts (
        service_id INTEGER NOT NULL REFERENCES ssb_services ON DELETE CASCADE,
        service_contract_id INTEGER NOT NULL REFERENCES ssb_contracts,
        PRIMARY KEY (service_id, service_contract_id)
    ) WITHOUT ROWID;
INSERT INTO "ssb_service_contracts" VALUES(65536,65536);
INSERT INTO "ssb_service_contracts" VALUES(65537,1);
CREATE TABLE ssb_services (
        service_id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        queue_id INTEGER NOT NULL REFERENCES ssb_queues
    );
INSERT INTO "ssb_services" VALUES(65536,'//Orders',65536);
INSERT INTO "ssb_services" VALUES(65537,'//Shop',65537);
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
INSERT INTO "ssb_transmission_queue" VALUES(1,3,0,0,'DEFAULT',0,0,1795219200000000,X'6F6E65207461626C65');
CREATE INDEX ssb_conversation_endpoints_group ON ssb_conversation_endpoints (conversation_group_id);
CREATE INDEX ssb_conversation_endpoints_lifetime ON ssb_conversation_endpoints (lifetime) WHERE state <> 'CD' AND state <> 'ER';
CREATE INDEX ssb_conversation_endpoints_timer ON ssb_conversation_endpoints (dialog_timer) WHERE dialog_timer IS NOT NULL;
CREATE INDEX ssb_conversation_endpoints_closed ON ssb_conversation_endpoints (security_timestamp) WHERE state = 'CD';
CREATE INDEX ssb_queue_messages_next ON ssb_queue_messages (queue_id, status, priority DESC);
CREATE INDEX ssb_queue_messages_order ON ssb_queue_messages (endpoint_id, status, precedence, message_sequence_number);
CREATE INDEX ssb_transmission_queue_order ON ssb_transmission_queue (endpoint_id, is_inbound, message_sequence_number);
CREATE INDEX ssb_transmission_queue_inbound ON ssb_transmission_queue (endpoint_id) WHERE is_inbound = 1;
COMMIT;
