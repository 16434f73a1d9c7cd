//! `_core.MetadataSnapshot`: the objects of a database that are relevant to messages.

use pyo3::prelude::*;
use ssbroker_core::Guid;
use ssbroker_store::{Contract, MessageType, MetadataSnapshot, Queue, Rule, Service};

type Rules = Vec<(i64, bool, bool)>;
/// A queue: id, whether RECEIVE, enqueuing and retention are enabled, and its name if it is in the default schema.
type QueueRow = (i64, bool, bool, bool, Option<String>);

/// See `_core.pyi`.
#[pyclass(frozen, name = "MetadataSnapshot", module = "ssbroker._core")]
pub(crate) struct PyMetadataSnapshot(pub(crate) MetadataSnapshot);

#[pymethods]
impl PyMetadataSnapshot {
    #[new]
    #[pyo3(signature = (*, broker_instance, queues, services, contracts, message_types, services_routed_locally))]
    fn new(
        broker_instance: [u8; 16],
        queues: Vec<QueueRow>,
        services: Vec<(i64, String, i64)>,
        contracts: Vec<(i64, String, Rules)>,
        message_types: Vec<(i64, String, String)>,
        services_routed_locally: Vec<String>,
    ) -> Self {
        let queue = |(id, is_receive_enabled, is_enqueue_enabled, is_retention_enabled, name): QueueRow| {
            (id, Queue { name, is_receive_enabled, is_enqueue_enabled, is_retention_enabled })
        };
        let rule =
            |(id, is_sent_by_initiator, is_sent_by_target)| (id, Rule { is_sent_by_initiator, is_sent_by_target });
        let contract =
            |(id, name, rules): (_, _, Rules)| (id, Contract { name, rules: rules.into_iter().map(rule).collect() });
        Self(MetadataSnapshot::new(
            Guid(broker_instance),
            queues.into_iter().map(queue).collect(),
            services.into_iter().map(|(id, name, queue_id)| (id, Service { name, queue_id })).collect(),
            contracts.into_iter().map(contract).collect(),
            message_types.into_iter().map(|(id, name, validation)| (id, MessageType { name, validation })).collect(),
            services_routed_locally.into_iter().collect(),
        ))
    }
}
