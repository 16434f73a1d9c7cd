//! Which databases have which services.

use crate::catalog::Catalog;

/// For each service name, the databases that have it.
#[derive(Debug)]
pub(crate) struct Hosts {
    starts: Vec<u32>,
    databases: Vec<u16>,
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
        Self { starts, databases: pairs.into_iter().map(|(_, database)| database).collect() }
    }

    pub(crate) fn nbytes(&self) -> usize {
        size_of_val(&self.starts[..]) + size_of_val(&self.databases[..])
    }

    /// Whether no service is hosted at all.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.databases.is_empty()
    }

    /// The enabled databases that have the service, by name.
    #[inline]
    pub(crate) fn of(&self, name: u32) -> &[u16] {
        let name = name as usize;
        &self.databases[self.starts[name] as usize..self.starts[name + 1] as usize]
    }
}
