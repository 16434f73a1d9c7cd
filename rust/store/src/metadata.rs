//! What stands in a database, as far as it decides about messages.

use std::collections::{HashMap, HashSet};

use ssbroker_core::Guid;

/// A queue.
#[derive(Clone, Debug)]
pub struct Queue {
    /// Its name, where that needs no schema.
    pub name: Option<String>,
    /// Whether messages may be received from it.
    pub is_receive_enabled: bool,
    /// Whether messages may enter it.
    pub is_enqueue_enabled: bool,
    /// Whether they stay in it after they were received.
    pub is_retention_enabled: bool,
}

/// A service.
#[derive(Clone, Debug)]
pub struct Service {
    /// Its name.
    pub name: String,
    /// Its queue.
    pub queue_id: i64,
}

/// A message type.
#[derive(Clone, Debug)]
pub struct Kind {
    /// Its name.
    pub name: String,
    /// `N`, `E` or `X` (fact 154).
    pub validation: String,
}

/// Who may send a message type under a contract.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// Whether the initiator may.
    pub is_sent_by_initiator: bool,
    /// Whether the target may.
    pub is_sent_by_target: bool,
}

/// A contract.
#[derive(Clone, Debug)]
pub struct Contract {
    /// Its name.
    pub name: String,
    /// Its message types, by their ids.
    pub rules: HashMap<i64, Rule>,
}

/// What stands in a database; it never changes.
#[derive(Clone, Debug)]
pub struct Picture {
    /// The database's own broker id.
    pub broker_instance: Guid,
    /// Whether the database sends and takes messages.
    pub is_delivering: bool,
    /// The queues, by their ids.
    pub queues: HashMap<i64, Queue>,
    /// The services, by their ids.
    pub services: HashMap<i64, Service>,
    /// The contracts, by their ids.
    pub contracts: HashMap<i64, Contract>,
    /// The message types, by their ids.
    pub kinds: HashMap<i64, Kind>,
    /// Those of the services that no route leads away from: who names this database's broker id and one of them finds it here (B10).
    pub staying: HashSet<String>,
    /// The ids of the queues of the schema that names without one are of, by name.
    queue_ids: HashMap<String, i64>,
    /// The names of all services.
    hosted: HashSet<String>,
    /// The ids of the message types, by name.
    kind_ids: HashMap<String, i64>,
}

impl Picture {
    /// A picture of all that stands in a database.
    #[must_use]
    pub fn new(
        broker_instance: Guid,
        is_delivering: bool,
        queues: HashMap<i64, Queue>,
        services: HashMap<i64, Service>,
        contracts: HashMap<i64, Contract>,
        kinds: HashMap<i64, Kind>,
        staying: HashSet<String>,
    ) -> Self {
        let queue_ids = queues.iter().filter_map(|(id, queue)| Some((queue.name.clone()?, *id))).collect();
        let hosted = services.values().map(|service| service.name.clone()).collect();
        let kind_ids = kinds.iter().map(|(id, kind)| (kind.name.clone(), *id)).collect();
        Self {
            broker_instance,
            is_delivering,
            queues,
            services,
            contracts,
            kinds,
            staying,
            queue_ids,
            hosted,
            kind_ids,
        }
    }

    /// Whether a service of this name stands in the database.
    #[must_use]
    pub fn hosts(&self, service: &str) -> bool {
        self.hosted.contains(service)
    }

    /// A queue by its name, without a schema: its id, and itself.
    #[must_use]
    pub fn queue_named(&self, name: &str) -> Option<(i64, &Queue)> {
        let id = *self.queue_ids.get(name)?;
        self.queues.get(&id).map(|queue| (id, queue))
    }

    /// The message type that one side may send under a contract: its id, and itself.
    #[must_use]
    pub fn kind_sent(&self, contract_id: i64, name: &str, by_initiator: bool) -> Option<(i64, &Kind)> {
        let id = *self.kind_ids.get(name)?;
        let rule = self.contracts.get(&contract_id)?.rules.get(&id)?;
        let may = if by_initiator { rule.is_sent_by_initiator } else { rule.is_sent_by_target };
        may.then(|| self.kinds.get(&id).map(|kind| (id, kind))).flatten()
    }

    /// The queue of a service: its id, and itself.
    #[must_use]
    pub fn queue_of(&self, service_id: i64) -> Option<(i64, &Queue)> {
        let id = self.services.get(&service_id)?.queue_id;
        self.queues.get(&id).map(|queue| (id, queue))
    }
}
