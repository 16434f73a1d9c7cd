//! Locate: which database of the instance takes the message (R31 to R34).

use super::decide::{PassContext, Query};
use super::index::RouteIndex;
use super::pick::Choice;
use crate::catalog::NameId;
use crate::ids::Guid;

impl RouteIndex {
    /// The enabled databases that have the service, by name (R33).
    pub(crate) fn hosts_of(&self, service: Option<NameId>) -> &[u16] {
        service.map_or(&[], |service| self.hosts.of(service))
    }

    /// R31: the database with this broker id, if its broker is enabled and it has the service.
    pub(crate) fn host_with(&self, broker: Guid, service: Option<NameId>) -> Option<u16> {
        self.hosts.with(service?, broker)
    }

    /// Whether *Locate* would find a database: what makes a LOCAL route usable.
    pub(crate) fn can_locate(&self, query: &Query<'_>, context: &PassContext<'_>, route_broker: Option<Guid>) -> bool {
        match query.broker.or(route_broker) {
            Some(broker) => self.host_with(broker, context.service).is_some(),
            None => !self.hosts_of(context.service).is_empty(),
        }
    }

    /// The database that takes the message.
    pub(crate) fn locate(
        &self,
        query: &Query<'_>,
        context: &PassContext<'_>,
        route_broker: Option<Guid>,
    ) -> Option<u16> {
        let service = context.service?;
        if let Some(broker) = query.broker.or(route_broker) {
            return self.host_with(broker, Some(service));
        }
        let hosts = self.hosts.of(service);
        if let Some(holder) = context.database.filter(|holder| hosts.contains(holder)) {
            return Some(holder);
        }
        (!hosts.is_empty()).then(|| hosts[context.picker.pick(Choice::Database, service as usize, hosts.len())])
    }
}
