//! The names and types of all columns; no other file spells them.

use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};

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
}

/// Columns of `sys.databases`.
pub mod databases {
    #![allow(missing_docs)]
    pub const NAME: &str = "name";
    pub const SERVICE_BROKER_GUID: &str = "service_broker_guid";
    pub const IS_BROKER_ENABLED: &str = "is_broker_enabled";
}

/// Columns of `sys.services`.
pub mod services {
    #![allow(missing_docs)]
    pub const DATABASE: &str = "database";
    pub const NAME: &str = "name";
}

/// Columns of the conversations to be routed.
pub mod conversations {
    #![allow(missing_docs)]
    pub const CONVERSATION_ID: &str = "conversation_id";
    pub const CONVERSATION_HANDLE: &str = "conversation_handle";
    pub const DATABASE: &str = "database";
    pub const TO_SERVICE_NAME: &str = "to_service_name";
    pub const TO_BROKER_INSTANCE: &str = "to_broker_instance";
    pub const IS_INITIATOR: &str = "is_initiator";
}

const GUID: DataType = DataType::FixedSizeBinary(16);

fn label(code: DataType) -> DataType {
    DataType::Dictionary(Box::new(code), Box::new(DataType::Utf8))
}

/// `sys.routes`, as a catalog holds it.
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

/// `sys.databases`, as a catalog holds it.
#[must_use]
pub fn databases_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new(databases::NAME, DataType::Utf8, false),
        Field::new(databases::SERVICE_BROKER_GUID, GUID, true),
        Field::new(databases::IS_BROKER_ENABLED, DataType::Boolean, false),
    ]))
}

/// `sys.services`, as a catalog holds it.
#[must_use]
pub fn services_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new(services::DATABASE, DataType::Utf8, false),
        Field::new(services::NAME, DataType::Utf8, false),
    ]))
}

/// The decisions, one row for each conversation.
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
