//! Which databases have which services.

use std::ops::Range;

use crate::catalog::Catalog;
use crate::guid::Guid;

/// For each service name, the databases that have it; and which broker ids there are.
#[derive(Debug)]
pub(crate) struct Hosts {
    starts: Vec<u32>,
    databases: Vec<u16>,
    /// The same databases of each service in the order of their broker ids, those whose id is unknown first.
    by_broker: Vec<(Option<Guid>, u16)>,
    /// The broker ids of all databases, those of disabled ones too, in order.
    brokers: Vec<Guid>,
}

impl Hosts {
    pub(crate) fn new(catalog: &Catalog) -> Self {
        let mut pairs: Vec<(u32, u16)> = catalog.services.iter().map(|&(database, name)| (name, database)).collect();
        pairs.retain(|&(_, database)| catalog.databases[usize::from(database)].enabled);
        let by_name = |&(name, database): &(u32, u16)| (name, &catalog.databases[usize::from(database)].name);
        pairs.sort_by(|one, other| by_name(one).cmp(&by_name(other)));
        pairs.dedup();
        let count = catalog.names.texts().len();
        let mut starts = vec![0u32; count + 1];
        for &(name, _) in &pairs {
            starts[name as usize + 1] += 1;
        }
        for place in 0..count {
            starts[place + 1] += starts[place];
        }
        let databases: Vec<u16> = pairs.into_iter().map(|(_, database)| database).collect();
        let mut by_broker: Vec<_> =
            databases.iter().map(|&database| (catalog.databases[usize::from(database)].broker, database)).collect();
        for service in starts.windows(2) {
            by_broker[service[0] as usize..service[1] as usize].sort_by_key(|&(broker, _)| broker);
        }
        let mut brokers: Vec<Guid> = catalog.databases.iter().filter_map(|database| database.broker).collect();
        brokers.sort_unstable();
        Self { starts, databases, by_broker, brokers }
    }

    pub(crate) fn nbytes(&self) -> usize {
        size_of_val(&self.starts[..])
            + size_of_val(&self.databases[..])
            + size_of_val(&self.by_broker[..])
            + size_of_val(&self.brokers[..])
    }

    /// Whether no service is hosted at all.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.databases.is_empty()
    }

    /// The enabled databases that have the service, by name.
    #[inline]
    pub(crate) fn of(&self, name: u32) -> &[u16] {
        &self.databases[self.range(name)]
    }

    /// The enabled database that has the service and this broker id.
    pub(crate) fn with(&self, name: u32, broker: Guid) -> Option<u16> {
        let hosts = &self.by_broker[self.range(name)];
        let place = hosts.partition_point(|&(one, _)| one < Some(broker));
        hosts.get(place).filter(|&&(one, _)| one == Some(broker)).map(|&(_, database)| database)
    }

    /// Whether a database has this broker id, enabled or not.
    pub(crate) fn is_broker(&self, broker: Guid) -> bool {
        self.brokers.binary_search(&broker).is_ok()
    }

    #[inline]
    fn range(&self, name: u32) -> Range<usize> {
        let name = name as usize;
        self.starts[name] as usize..self.starts[name + 1] as usize
    }
}
