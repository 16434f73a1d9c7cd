//! Which databases have which services.

use std::ops::Range;

use crate::catalog::Catalog;
use crate::guid::Guid;

/// Up to this many broker ids are compared one after the other without branches, which is faster than a binary search.
const LINEAR_SCAN_MAX: usize = 32;

/// The databases that have each service, and all broker ids.
#[derive(Debug)]
pub(crate) struct ServiceDatabases {
    starts: Vec<u32>,
    databases: Vec<u16>,
    /// The databases of each service, sorted by broker id; databases with an unknown id come first.
    by_broker: Vec<(Option<Guid>, u16)>,
    /// The broker ids of all databases, including disabled ones, sorted.
    brokers: Vec<Guid>,
}

impl ServiceDatabases {
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
        for position in 0..count {
            starts[position + 1] += starts[position];
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

    /// Returns the names of the services that an enabled database has.
    pub(crate) fn names(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.starts.len() as u32 - 1).filter(|&name| !self.range(name).is_empty())
    }

    /// Returns the enabled databases that have the service and a known broker id.
    pub(crate) fn by_broker(&self, name: u32) -> impl Iterator<Item = (Guid, u16)> + '_ {
        self.by_broker[self.range(name)]
            .iter()
            .filter_map(|&(broker, database)| broker.map(|broker| (broker, database)))
    }

    /// Returns the enabled databases that have the service, sorted by name.
    #[inline]
    pub(crate) fn of(&self, name: u32) -> &[u16] {
        &self.databases[self.range(name)]
    }

    /// Returns the enabled database with the service and this broker id.
    pub(crate) fn with(&self, name: u32, broker: Guid) -> Option<u16> {
        let hosts = &self.by_broker[self.range(name)];
        let position = hosts.partition_point(|&(one, _)| one < Some(broker));
        hosts.get(position).filter(|&&(one, _)| one == Some(broker)).map(|&(_, database)| database)
    }

    /// Whether a database has this broker id, enabled or not.
    #[allow(clippy::needless_bitwise_bool)]
    pub(crate) fn is_broker(&self, broker: Guid) -> bool {
        if self.brokers.len() > LINEAR_SCAN_MAX {
            return self.brokers.binary_search(&broker).is_ok();
        }
        self.brokers.iter().fold(false, |is_found, &known| is_found | (known == broker))
    }

    #[inline]
    fn range(&self, name: u32) -> Range<usize> {
        let name = name as usize;
        self.starts[name] as usize..self.starts[name + 1] as usize
    }
}
