//! The names and types of all columns, defined only here.

use std::sync::Arc;

use arrow_schema::{DataType, Field, FieldRef, Schema, SchemaRef, TimeUnit};

/// Columns of `sys.routes`.
pub mod routes {
    #![allow(missing_docs)]
    pub const DATABASE: &str = "database";
    pub const NAME: &str = "name";
    pub const ROUTE_ID: &str = "route_id";
    pub const REMOTE_SERVICE_NAME: &str = "remote_service_name";
    pub const BROKER_INSTANCE: &str = "broker_instance";
    pub const LIFETIME: &str = "lifetime";
    pub const ADDRESS: &str = "address";
    pub const MIRROR_ADDRESS: &str = "mirror_address";
    pub const ALL: [&str; 8] =
        [DATABASE, NAME, ROUTE_ID, REMOTE_SERVICE_NAME, BROKER_INSTANCE, LIFETIME, ADDRESS, MIRROR_ADDRESS];
}

/// Columns of `sys.databases`.
pub mod databases {
    #![allow(missing_docs)]
    pub const NAME: &str = "name";
    pub const SERVICE_BROKER_GUID: &str = "service_broker_guid";
    pub const IS_BROKER_ENABLED: &str = "is_broker_enabled";
    pub const ALL: [&str; 3] = [NAME, SERVICE_BROKER_GUID, IS_BROKER_ENABLED];
}

/// Columns of `sys.services`.
pub mod services {
    #![allow(missing_docs)]
    pub const DATABASE: &str = "database";
    pub const NAME: &str = "name";
    pub const ALL: [&str; 2] = [DATABASE, NAME];
}

/// Columns of conversations to route.
pub mod conversations {
    #![allow(missing_docs)]
    pub const CONVERSATION_ID: &str = "conversation_id";
    pub const CONVERSATION_HANDLE: &str = "conversation_handle";
    pub const DATABASE: &str = "database";
    pub const TO_SERVICE_NAME: &str = "to_service_name";
    pub const TO_BROKER_INSTANCE: &str = "to_broker_instance";
    pub const IS_INITIATOR: &str = "is_initiator";
    pub const ALL: [&str; 6] =
        [CONVERSATION_ID, CONVERSATION_HANDLE, DATABASE, TO_SERVICE_NAME, TO_BROKER_INSTANCE, IS_INITIATOR];
}

/// Columns of fragments and of messages.
pub mod fragments {
    #![allow(missing_docs)]
    pub const CONVERSATION_ID: &str = super::conversations::CONVERSATION_ID;
    pub const CONVERSATION_HANDLE: &str = super::conversations::CONVERSATION_HANDLE;
    pub const IS_INITIATOR: &str = super::conversations::IS_INITIATOR;
    pub const MESSAGE_SEQUENCE_NUMBER: &str = "message_sequence_number";
    pub const FRAGMENT_NUMBER: &str = "fragment_number";
    pub const FRAGMENT_COUNT: &str = "fragment_count";
    pub const MESSAGE_BODY: &str = "message_body";
    pub const MESSAGE_SIGNATURE: &str = "message_signature";
    pub const FRAGMENT_SIGNATURE: &str = "fragment_signature";
    /// The columns of a fragment; all others are extra columns.
    pub const ALL: [&str; 8] = [
        CONVERSATION_ID,
        IS_INITIATOR,
        MESSAGE_SEQUENCE_NUMBER,
        FRAGMENT_NUMBER,
        FRAGMENT_COUNT,
        MESSAGE_BODY,
        MESSAGE_SIGNATURE,
        FRAGMENT_SIGNATURE,
    ];
}

/// Columns of the wire format that are limited or signed.
pub mod wire {
    #![allow(missing_docs)]
    pub const IS_SEQUENCED: &str = "is_sequenced";
    pub const FROM_SERVICE_NAME: &str = "from_service_name";
    pub const FROM_BROKER_INSTANCE: &str = "from_broker_instance";
    pub const TO_SERVICE_NAME: &str = "to_service_name";
    pub const TO_BROKER_INSTANCE: &str = "to_broker_instance";
    pub const SERVICE_CONTRACT_NAME: &str = "service_contract_name";
    pub const MESSAGE_TYPE_NAME: &str = "message_type_name";
    pub const MESSAGE_ID: &str = "message_id";
    pub const PRIORITY: &str = "priority";
    pub const IS_END_OF_DIALOG: &str = "is_end_of_dialog";
    pub const IS_CONVERSATION_ERROR: &str = "is_conversation_error";
    pub const LIFETIME: &str = "lifetime";
    pub const SECURITY: &str = "security";
    pub const ACKED_SEQUENCE_NUMBER: &str = "acked_sequence_number";
    pub const ACKED_AHEAD: &str = "acked_ahead";
    pub const HEADER_SIGNATURE: &str = "header_signature";
    pub const HOPS_REMAINING: &str = "hops_remaining";
    pub const TIME_TO_LIVE: &str = "time_to_live";
    pub const TIME_CONSUMED: &str = "time_consumed";
    pub const KEY_EXCHANGE: &str = "key_exchange";
}

const GUID: DataType = DataType::FixedSizeBinary(16);
const DIGEST: DataType = DataType::FixedSizeBinary(16);

fn label(code: DataType) -> DataType {
    DataType::Dictionary(Box::new(code), Box::new(DataType::Utf8))
}

/// The schema of `sys.routes` in a catalog.
#[must_use]
pub fn routes_schema() -> SchemaRef {
    let utc = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    Arc::new(Schema::new(vec![
        Field::new(routes::DATABASE, DataType::Utf8, false),
        Field::new(routes::NAME, DataType::Utf8, false),
        Field::new(routes::ROUTE_ID, DataType::Int32, false),
        Field::new(routes::REMOTE_SERVICE_NAME, DataType::Utf8, true),
        Field::new(routes::BROKER_INSTANCE, GUID, true),
        Field::new(routes::LIFETIME, utc, true),
        Field::new(routes::ADDRESS, DataType::Utf8, false),
        Field::new(routes::MIRROR_ADDRESS, DataType::Utf8, true),
    ]))
}

/// The schema of `sys.databases` in a catalog.
#[must_use]
pub fn databases_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new(databases::NAME, DataType::Utf8, false),
        Field::new(databases::SERVICE_BROKER_GUID, GUID, true),
        Field::new(databases::IS_BROKER_ENABLED, DataType::Boolean, false),
    ]))
}

/// The schema of `sys.services` in a catalog.
#[must_use]
pub fn services_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new(services::DATABASE, DataType::Utf8, false),
        Field::new(services::NAME, DataType::Utf8, false),
    ]))
}

/// The schema of decisions, one row per conversation.
#[must_use]
pub fn decisions_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("outcome", label(DataType::Int8), false),
        Field::new("match_step", DataType::Int8, true),
        Field::new("route_id", DataType::Int32, true),
        Field::new("next_hop_address", label(DataType::Int32), true),
        Field::new("mirror_address", label(DataType::Int32), true),
        Field::new("target_database", label(DataType::Int32), true),
        Field::new("broker_instance", GUID, true),
        Field::new("reason", label(DataType::Int8), false),
    ]))
}

/// The schema of the decision table.
#[must_use]
pub fn decision_table_schema() -> SchemaRef {
    let utc = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    Arc::new(Schema::new(vec![
        Field::new("database", DataType::Utf8, true),
        Field::new("is_reply", DataType::Boolean, false),
        Field::new("to_service_name", DataType::Utf8, true),
        Field::new("has_broker_instance", DataType::Boolean, false),
        Field::new("to_broker_instance", GUID, true),
        Field::new("hash_from", DataType::Int64, false),
        Field::new("hash_to", DataType::Int64, false),
        Field::new("only_from_initiator", DataType::Boolean, false),
        Field::new("valid_until", utc, true),
        Field::new("outcome", DataType::Utf8, true),
        Field::new("match_step", DataType::Int8, true),
        Field::new("route_id", DataType::Int32, true),
        Field::new("next_hop_address", DataType::Utf8, true),
        Field::new("mirror_address", DataType::Utf8, true),
        Field::new("target_database", DataType::Utf8, true),
        Field::new("broker_instance", GUID, true),
        Field::new("reason", DataType::Utf8, true),
    ]))
}

/// The schema of rejected conversations.
#[must_use]
pub fn rejected_rows_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("row", DataType::Int64, false),
        Field::new("column", DataType::Utf8, false),
        Field::new("value", DataType::Utf8, true),
        Field::new("reason", DataType::Utf8, false),
    ]))
}

/// The first columns of every schema about messages.
fn message_keys() -> Vec<FieldRef> {
    vec![
        field(fragments::CONVERSATION_ID, GUID, false),
        field(fragments::IS_INITIATOR, DataType::Boolean, false),
        field(fragments::MESSAGE_SEQUENCE_NUMBER, DataType::Int64, false),
    ]
}

fn field(name: &str, data_type: DataType, nullable: bool) -> FieldRef {
    Arc::new(Field::new(name, data_type, nullable))
}

/// The schema of fragments with extra columns.
#[must_use]
pub fn fragments_schema(extra: &[FieldRef]) -> SchemaRef {
    let mut fields = message_keys();
    fields.extend([
        field(fragments::FRAGMENT_NUMBER, DataType::Int32, false),
        field(fragments::FRAGMENT_COUNT, DataType::Int32, false),
        field(fragments::MESSAGE_BODY, DataType::Binary, false),
        field(fragments::MESSAGE_SIGNATURE, DIGEST, true),
        field(fragments::FRAGMENT_SIGNATURE, DIGEST, true),
    ]);
    fields.extend_from_slice(extra);
    Arc::new(Schema::new(fields))
}

/// The schema of reassembled messages with extra columns.
#[must_use]
pub fn messages_schema(extra: &[FieldRef]) -> SchemaRef {
    let mut fields = message_keys();
    fields.push(field(fragments::MESSAGE_BODY, DataType::Binary, false));
    fields.push(field(fragments::MESSAGE_SIGNATURE, DIGEST, true));
    fields.extend_from_slice(extra);
    Arc::new(Schema::new(fields))
}

/// The schema of messages to transmit; a body that was not read is null.
#[must_use]
pub fn waiting_schema() -> SchemaRef {
    let mut fields = message_keys();
    fields.extend([
        field(wire::MESSAGE_TYPE_NAME, DataType::Utf8, false),
        field(wire::MESSAGE_ID, GUID, false),
        field(wire::IS_END_OF_DIALOG, DataType::Boolean, false),
        field(wire::IS_CONVERSATION_ERROR, DataType::Boolean, false),
        field(fragments::MESSAGE_BODY, DataType::Binary, true),
    ]);
    Arc::new(Schema::new(fields))
}

/// The schema of received messages.
#[must_use]
pub fn received_schema() -> SchemaRef {
    let mut fields = message_keys();
    fields.extend([
        field(fragments::MESSAGE_BODY, DataType::Binary, true),
        field(fragments::MESSAGE_SIGNATURE, DIGEST, true),
        field(fragments::CONVERSATION_HANDLE, GUID, false),
        field("conversation_group_id", GUID, false),
        field(wire::MESSAGE_TYPE_NAME, DataType::Utf8, false),
        field("service_name", DataType::Utf8, false),
        field(wire::SERVICE_CONTRACT_NAME, DataType::Utf8, false),
        field("priority", DataType::Int32, false),
        field("queuing_order", DataType::Int64, false),
        field("status", DataType::Int32, false),
        field("validation", DataType::Utf8, false),
    ]);
    Arc::new(Schema::new(fields))
}

/// The schema of rejected fragments.
#[must_use]
pub fn rejected_schema() -> SchemaRef {
    let mut fields = message_keys();
    fields.extend([
        field(fragments::FRAGMENT_NUMBER, DataType::Int32, false),
        field(fragments::FRAGMENT_COUNT, DataType::Int32, false),
        field("reason", label(DataType::Int8), false),
    ]);
    Arc::new(Schema::new(fields))
}

/// The schema of acknowledgements, one row per direction.
#[must_use]
pub fn acknowledgements_schema() -> SchemaRef {
    let mut fields = message_keys();
    fields.truncate(2);
    fields.push(field(wire::ACKED_SEQUENCE_NUMBER, DataType::Int64, true));
    fields.push(field("partial_sequence_number", DataType::Int64, true));
    fields.push(field("partial_fragments", DataType::List(item_field()), true));
    Arc::new(Schema::new(fields))
}

/// The elements of `partial_fragments`.
pub(crate) fn item_field() -> FieldRef {
    field("item", DataType::Int32, true)
}

/// The schema of incomplete or held messages.
#[must_use]
pub fn pending_schema() -> SchemaRef {
    let mut fields = message_keys();
    fields.extend([
        field(fragments::FRAGMENT_COUNT, DataType::Int32, false),
        field("received_fragments", DataType::Int32, false),
        field("received_bytes", DataType::Int64, false),
        field("first_missing_fragment", DataType::Int32, true),
        field("waits_for_sequence_number", DataType::Int64, true),
    ]);
    Arc::new(Schema::new(fields))
}

/// The schema of a fragment in transit: fragment, header, and hop fields.
#[must_use]
pub fn wire_schema() -> SchemaRef {
    let utc = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    fragments_schema(&[
        field(wire::IS_SEQUENCED, DataType::Boolean, false),
        field(wire::FROM_SERVICE_NAME, DataType::Utf8, false),
        field(wire::FROM_BROKER_INSTANCE, GUID, false),
        field(wire::TO_SERVICE_NAME, DataType::Utf8, false),
        field(wire::TO_BROKER_INSTANCE, GUID, true),
        field(wire::SERVICE_CONTRACT_NAME, DataType::Utf8, false),
        field(wire::MESSAGE_TYPE_NAME, DataType::Utf8, true),
        field(wire::MESSAGE_ID, GUID, true),
        field(wire::PRIORITY, DataType::Int8, false),
        field(wire::IS_END_OF_DIALOG, DataType::Boolean, false),
        field(wire::IS_CONVERSATION_ERROR, DataType::Boolean, false),
        field(wire::LIFETIME, utc, true),
        field(wire::SECURITY, DataType::Int8, false),
        field(wire::ACKED_SEQUENCE_NUMBER, DataType::Int64, true),
        field(wire::ACKED_AHEAD, DataType::Binary, true),
        field(wire::HEADER_SIGNATURE, DIGEST, false),
        field(wire::HOPS_REMAINING, DataType::Int8, false),
        field(wire::TIME_TO_LIVE, DataType::Int32, false),
        field(wire::TIME_CONSUMED, DataType::Int32, false),
        field(wire::KEY_EXCHANGE, DataType::Binary, true),
    ])
}
