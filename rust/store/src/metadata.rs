//! A snapshot of the objects of a database that are relevant to messages.

use std::collections::{HashMap, HashSet};

use ssbroker_core::Guid;

/// A queue.
#[derive(Clone, Debug)]
pub struct Queue {
    /// The name, if the queue is in the default schema.
    pub name: Option<String>,
    /// Whether RECEIVE is allowed.
    pub is_receive_enabled: bool,
    /// Whether messages may be enqueued.
    pub is_enqueue_enabled: bool,
    /// Whether received messages are retained.
    pub is_retention_enabled: bool,
}

/// A service.
#[derive(Clone, Debug)]
pub struct Service {
    /// The name.
    pub name: String,
    /// The id of its queue.
    pub queue_id: i64,
}

/// A message type.
#[derive(Clone, Debug)]
pub struct MessageType {
    /// The name.
    pub name: String,
    /// The validation: `N` (none), `E` (empty) or `X` (XML).
    pub validation: String,
}

/// Which side may send a message type of a contract.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Whether the initiator may send it.
    pub is_sent_by_initiator: bool,
    /// Whether the target may send it.
    pub is_sent_by_target: bool,
}

/// A contract.
#[derive(Clone, Debug)]
pub struct Contract {
    /// The name.
    pub name: String,
    /// The message types by id.
    pub rules: HashMap<i64, Rule>,
}

/// An immutable snapshot of the objects of a database.
#[derive(Clone, Debug)]
pub struct MetadataSnapshot {
    /// The broker id of the database.
    pub broker_instance: Guid,
    /// The queues by id.
    pub queues: HashMap<i64, Queue>,
    /// The services by id.
    pub services: HashMap<i64, Service>,
    /// The contracts by id.
    pub contracts: HashMap<i64, Contract>,
    /// The message types by id.
    pub message_types: HashMap<i64, MessageType>,
    /// The services without routes to other instances: a conversation with one of them and this database's broker
    /// id stays in the database. Empty if message delivery is disabled.
    pub services_routed_locally: HashSet<String>,
    /// The ids of the queues of the default schema by name.
    queue_ids: HashMap<String, i64>,
    /// The names of all services.
    service_names: HashSet<String>,
    /// The ids of the message types by name.
    message_type_ids: HashMap<String, i64>,
}

impl MetadataSnapshot {
    /// Creates a snapshot.
    #[must_use]
    pub fn new(
        broker_instance: Guid,
        queues: HashMap<i64, Queue>,
        services: HashMap<i64, Service>,
        contracts: HashMap<i64, Contract>,
        message_types: HashMap<i64, MessageType>,
        services_routed_locally: HashSet<String>,
    ) -> Self {
        let queue_ids = queues.iter().filter_map(|(id, queue)| Some((queue.name.clone()?, *id))).collect();
        let service_names = services.values().map(|service| service.name.clone()).collect();
        let message_type_ids =
            message_types.iter().map(|(id, message_type)| (message_type.name.clone(), *id)).collect();
        Self {
            broker_instance,
            queues,
            services,
            contracts,
            message_types,
            services_routed_locally,
            queue_ids,
            service_names,
            message_type_ids,
        }
    }

    /// Whether the database has a service with this name.
    #[must_use]
    pub fn has_service(&self, service: &str) -> bool {
        self.service_names.contains(service)
    }

    /// Returns the id and the queue of a name in the default schema.
    #[must_use]
    pub fn queue_named(&self, name: &str) -> Option<(i64, &Queue)> {
        let id = *self.queue_ids.get(name)?;
        self.queues.get(&id).map(|queue| (id, queue))
    }

    /// Returns the id and the message type that one side may send under a contract.
    #[must_use]
    pub fn message_type_sent(&self, contract_id: i64, name: &str, by_initiator: bool) -> Option<(i64, &MessageType)> {
        let id = *self.message_type_ids.get(name)?;
        let rule = self.contracts.get(&contract_id)?.rules.get(&id)?;
        let may = if by_initiator { rule.is_sent_by_initiator } else { rule.is_sent_by_target };
        may.then(|| self.message_types.get(&id).map(|message_type| (id, message_type))).flatten()
    }

    /// Returns the id and the queue of a service.
    #[must_use]
    pub fn queue_of(&self, service_id: i64) -> Option<(i64, &Queue)> {
        let id = self.services.get(&service_id)?.queue_id;
        self.queues.get(&id).map(|queue| (id, queue))
    }
}
