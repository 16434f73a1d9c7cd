//! The catalog of an instance: databases, services and routing tables, validated and numbered.

use std::collections::HashMap;

use hashbrown::HashTable;

use crate::address::Address;
use crate::error::{Invalid, InvalidKind};
use crate::guid::Guid;
use crate::hash::{NameHash, Seed};

/// The database whose routing table is used for messages from other instances (R1).
pub const MSDB: &[u8] = b"msdb";
/// The configuration service (R14).
pub const BROKER_CONFIGURATION: &[u8] = b"SQL/ServiceBroker/BrokerConfiguration";
/// The expiry of a route without a lifetime.
pub const NEVER: i64 = i64::MAX;
/// The number of a missing service name or address.
pub const NONE: u32 = u32::MAX;

/// The number of a service name.
pub type NameId = u32;
/// The number of an address in normal form; LOCAL is 0 and TRANSPORT is 1.
pub type AddressId = u32;
/// The address LOCAL.
pub const LOCAL: AddressId = 0;
/// The address TRANSPORT.
pub const TRANSPORT: AddressId = 1;

/// The name of the user database if the tables do not name one.
const DEFAULT_DATABASE: &[u8] = b"user";
const FIRST_ROUTE_ID: i32 = 65_536;
const DATABASES_MAX: usize = 65_000;

/// A row of `sys.databases`.
#[derive(Clone, Debug)]
pub struct Database {
    /// The name.
    pub name: Box<[u8]>,
    /// The broker id, if known.
    pub broker: Option<Guid>,
    /// Whether message delivery is enabled.
    pub enabled: bool,
}

/// A row of `sys.routes`; names and addresses are stored as numbers.
#[derive(Clone, Copy, Debug)]
pub struct RouteRow {
    /// The database in which the route is defined.
    pub database: u16,
    /// The route id, unique within its database.
    pub route_id: i32,
    /// The remote service name; `NONE` if the route names no service.
    pub service: NameId,
    /// The broker id.
    pub broker: Option<Guid>,
    /// When the route expires (R3), in microseconds since 1970.
    pub expires: i64,
    /// The address in normal form.
    pub address: AddressId,
    /// The mirror address in normal form; `NONE` if there is none.
    pub mirror: AddressId,
    pub(crate) address_text: u32,
    pub(crate) mirror_text: u32,
}

impl RouteRow {
    /// Whether the route has not expired at `now` (R3).
    #[must_use]
    #[inline]
    pub fn is_live(&self, now: i64) -> bool {
        now < self.expires
    }
}

/// The rows of a catalog, in input order.
#[derive(Debug)]
pub struct Catalog {
    pub(crate) databases: Vec<Database>,
    pub(crate) routes: Vec<RouteRow>,
    pub(crate) services: Vec<(u16, NameId)>,
    pub(crate) names: Interner,
    pub(crate) settings: Settings,
    pub(crate) msdb: u16,
    pub(crate) user_database: Option<u16>,
    pub(crate) own_addresses: Vec<AddressId>,
    pub(crate) pending: Vec<NameId>,
    /// Numbered like the databases.
    pub(crate) database_names: Interner,
    pub(crate) route_names: Texts,
    pub(crate) address_texts: Interner,
    pub(crate) addresses: Interner,
}

impl Catalog {
    /// Returns the databases, including `msdb`.
    #[must_use]
    pub fn databases(&self) -> &[Database] {
        &self.databases
    }

    /// Returns the routes of all databases.
    #[must_use]
    pub fn routes(&self) -> &[RouteRow] {
        &self.routes
    }

    /// Returns the services as (database, name).
    #[must_use]
    pub fn services(&self) -> &[(u16, NameId)] {
        &self.services
    }

    /// Returns the user database if there is exactly one.
    #[must_use]
    pub fn user_database(&self) -> Option<u16> {
        self.user_database
    }

    /// Returns the number of `msdb`.
    #[must_use]
    pub fn msdb(&self) -> u16 {
        self.msdb
    }

    /// Returns the settings of the instance as given.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the number of a database.
    #[must_use]
    pub fn database(&self, name: &[u8]) -> Option<u16> {
        self.database_names.find(name).map(|number| number as u16)
    }

    /// Returns the text that tells which databases are expected instead of an unknown database.
    #[must_use]
    pub fn expected_database(&self) -> String {
        format!("one of {}", self.database_list())
    }

    /// The names of the first databases.
    fn database_list(&self) -> String {
        let names = self.databases.iter().take(10).map(|database| String::from_utf8_lossy(&database.name));
        names.collect::<Vec<_>>().join(", ")
    }

    /// Returns the text of a service name.
    #[must_use]
    pub fn name(&self, id: NameId) -> &[u8] {
        self.names.texts().get(id)
    }

    /// Returns the number of a service name; `None` if no route, service or request names it.
    #[must_use]
    pub fn find_name(&self, name: &[u8]) -> Option<NameId> {
        self.names.find(name)
    }

    /// Returns an address in normal form.
    #[must_use]
    pub fn address(&self, id: AddressId) -> &[u8] {
        self.addresses.texts().get(id)
    }

    /// Returns the number of distinct addresses.
    #[must_use]
    pub fn address_count(&self) -> usize {
        self.addresses.texts().len()
    }

    /// Returns the number of an address in normal form, if the catalog knows it.
    #[must_use]
    pub fn find_address(&self, normal: &[u8]) -> Option<AddressId> {
        self.addresses.find(normal)
    }

    /// Returns the name of a route.
    #[must_use]
    pub fn route_name(&self, row: usize) -> &[u8] {
        self.route_names.get(row as u32)
    }

    /// Returns the address of a route as it was given.
    #[must_use]
    pub fn address_text(&self, route: &RouteRow) -> &[u8] {
        self.address_texts.texts().get(route.address_text)
    }

    /// Returns the mirror address of a route as it was given.
    #[must_use]
    pub fn mirror_text(&self, route: &RouteRow) -> Option<&[u8]> {
        (route.mirror_text != NONE).then(|| self.address_texts.texts().get(route.mirror_text))
    }

    /// Whether an address belongs to this instance (R41).
    #[must_use]
    #[inline]
    pub fn is_own(&self, address: AddressId) -> bool {
        self.own_addresses.contains(&address)
    }

    /// Whether a route request for this service is pending (R14).
    #[must_use]
    pub fn is_pending(&self, name: NameId) -> bool {
        self.pending.binary_search(&name).is_ok()
    }
}

/// Settings of the whole instance.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The addresses of the instance, as given.
    pub addresses: Vec<String>,
    /// Whether message forwarding is on.
    pub message_forwarding: bool,
    /// Services with a pending request to the configuration service.
    pub pending_requests: Vec<String>,
}

/// A row of `sys.routes` as given to the builder.
#[derive(Clone, Copy, Debug)]
pub struct RouteInput<'a> {
    /// The database; `None` if omitted.
    pub database: Option<&'a [u8]>,
    /// The name of the route.
    pub name: &'a [u8],
    /// The route id; `None` if omitted.
    pub route_id: Option<i32>,
    /// The remote service name.
    pub service: Option<&'a [u8]>,
    /// The broker id.
    pub broker: Option<Guid>,
    /// When the route expires, in microseconds since 1970; `NEVER` if it does not.
    pub expires: i64,
    /// The address.
    pub address: &'a [u8],
    /// The mirror address.
    pub mirror: Option<&'a [u8]>,
}

/// Builds a catalog. Add databases first, then routes, then services.
#[derive(Debug)]
pub struct CatalogBuilder {
    catalog: Catalog,
    without_id: Vec<u32>,
    /// The enabled database with each broker id.
    enabled_brokers: HashMap<Guid, u16>,
    /// The normal form of each distinct address text.
    addresses: Vec<AddressId>,
}

impl CatalogBuilder {
    /// Creates a builder for an instance with these settings.
    ///
    /// # Errors
    /// An address of the instance is not a network address.
    pub fn new(seed: Seed, settings: Settings) -> Result<Self, Invalid> {
        let mut addresses = Interner::new(seed);
        addresses.intern(b"LOCAL");
        addresses.intern(b"TRANSPORT");
        let mut names = Interner::new(seed);
        let mut own_addresses = Vec::new();
        for (position, text) in settings.addresses.iter().enumerate() {
            let Some(Address::Network(normal)) = Address::parse(text.as_bytes()) else {
                let expected = "TCP://host[:port]";
                return Err(Invalid::new(
                    InvalidKind::Address,
                    "addresses",
                    Some(position),
                    Some(text.as_bytes()),
                    expected,
                ));
            };
            own_addresses.extend(addresses.intern(normal.as_bytes()));
        }
        let mut pending: Vec<NameId> =
            settings.pending_requests.iter().filter_map(|name| names.intern(name.as_bytes())).collect();
        pending.sort_unstable();
        let catalog = Catalog {
            databases: Vec::new(),
            routes: Vec::new(),
            services: Vec::new(),
            names,
            settings,
            msdb: 0,
            user_database: None,
            own_addresses,
            pending,
            database_names: Interner::new(seed),
            route_names: Texts::new(),
            address_texts: Interner::new(seed),
            addresses,
        };
        Ok(Self { catalog, without_id: Vec::new(), enabled_brokers: HashMap::new(), addresses: Vec::new() })
    }

    /// Adds a row of `sys.databases`.
    ///
    /// # Errors
    /// The name is a duplicate, or another enabled database has the broker id (I7).
    pub fn database(&mut self, row: usize, name: &[u8], broker: Option<Guid>, enabled: bool) -> Result<(), Invalid> {
        if self.catalog.database(name).is_some() {
            let expected = "unique database names";
            return Err(Invalid::new(InvalidKind::Duplicate, "databases.name", Some(row), Some(name), expected));
        }
        let id = broker.filter(|_| enabled);
        if let Some((id, other)) = id.and_then(|id| Some((id, *self.enabled_brokers.get(&id)?))) {
            let (column, value) = ("databases.service_broker_guid", id.to_string());
            let other = String::from_utf8_lossy(&self.catalog.databases[usize::from(other)].name);
            let expected = format!("a unique broker id for each enabled database; the database {other} has it too");
            return Err(Invalid::new(InvalidKind::Duplicate, column, Some(row), Some(value.as_bytes()), expected));
        }
        let number = self.add_database(name, broker, enabled)?;
        self.enabled_brokers.extend(id.map(|id| (id, number)));
        Ok(())
    }

    /// Reserves space for `routes` routes.
    pub fn reserve(&mut self, routes: usize) {
        self.catalog.routes.reserve(routes);
        self.catalog.names.reserve(routes);
    }

    /// Declares that the routing table has no `database` column: its routes belong to the only user database.
    ///
    /// # Errors
    /// The catalog has several user databases.
    pub fn use_single_database(&mut self) -> Result<(), Invalid> {
        self.single_database(None).map(|_| ())
    }

    /// Adds a row of `sys.routes`.
    ///
    /// # Errors
    /// An address is invalid, or the database is omitted and the catalog has several user databases.
    pub fn route(&mut self, row: usize, input: RouteInput<'_>) -> Result<(), Invalid> {
        let database = match input.database {
            Some(name) => match self.catalog.database(name) {
                Some(number) => number,
                None => self.add_database(name, None, true)?,
            },
            None => self.single_database(Some(row))?,
        };
        let limit_exceeded =
            || Invalid::new(InvalidKind::OutOfRange, "routes", Some(row), None, "at most 4 GiB of text");
        let (address_text, address) = self.address(row, "routes.address", input.address)?;
        let (mirror_text, mirror) = match input.mirror {
            Some(text) => self.address(row, "routes.mirror_address", text)?,
            None => (NONE, NONE),
        };
        let service = match input.service {
            Some(name) => self.catalog.names.intern(name).ok_or_else(limit_exceeded)?,
            None => NONE,
        };
        self.catalog.route_names.push(input.name).ok_or_else(limit_exceeded)?;
        if input.route_id.is_none() {
            self.without_id.push(row as u32);
        }
        self.catalog.routes.push(RouteRow {
            database,
            route_id: input.route_id.unwrap_or(0),
            service,
            broker: input.broker,
            expires: input.expires,
            address,
            mirror,
            address_text,
            mirror_text,
        });
        Ok(())
    }

    /// Assigns the omitted route ids and adds `msdb` if it is missing. Call after the last route.
    ///
    /// # Errors
    /// A route id occurs twice in a database, or no id is free.
    pub fn finish_routes(&mut self) -> Result<(), Invalid> {
        if self.catalog.database(MSDB).is_none() {
            self.add_database(MSDB, None, true)?;
        }
        let catalog = &mut self.catalog;
        catalog.msdb = catalog.database(MSDB).unwrap_or_default();
        let mut users = (0..catalog.databases.len() as u16).filter(|&number| number != catalog.msdb);
        catalog.user_database = users.next().filter(|_| users.next().is_none());
        self.assign_route_ids()
    }

    /// Adds a row of `sys.services`.
    ///
    /// # Errors
    /// The catalog has no such database.
    pub fn service(&mut self, row: usize, database: &[u8], name: &[u8]) -> Result<(), Invalid> {
        let Some(number) = self.catalog.database(database) else {
            let (column, expected) = ("services.database", self.catalog.expected_database());
            return Err(Invalid::new(InvalidKind::UnknownDatabase, column, Some(row), Some(database), expected));
        };
        let Some(id) = self.catalog.names.intern(name) else {
            return Err(Invalid::new(
                InvalidKind::OutOfRange,
                "services.name",
                Some(row),
                None,
                "at most 4 GiB of text",
            ));
        };
        self.catalog.services.push((number, id));
        Ok(())
    }

    /// Returns the catalog.
    #[must_use]
    pub fn finish(self) -> Catalog {
        self.catalog
    }

    fn add_database(&mut self, name: &[u8], broker: Option<Guid>, enabled: bool) -> Result<u16, Invalid> {
        let number = self.catalog.databases.len();
        if number >= DATABASES_MAX {
            let expected = format!("at most {DATABASES_MAX} databases");
            return Err(Invalid::new(InvalidKind::OutOfRange, "databases.name", None, Some(name), expected));
        }
        if self.catalog.database_names.intern(name).is_none() {
            let expected = "at most 4 GiB of text";
            return Err(Invalid::new(InvalidKind::OutOfRange, "databases.name", None, None, expected));
        }
        self.catalog.databases.push(Database { name: name.into(), broker, enabled });
        Ok(number as u16)
    }

    fn single_database(&mut self, row: Option<usize>) -> Result<u16, Invalid> {
        let users: Vec<u16> = (0..self.catalog.databases.len() as u16)
            .filter(|&number| *self.catalog.databases[usize::from(number)].name != *MSDB)
            .collect();
        match users[..] {
            [one] => Ok(one),
            [] => self.add_database(DEFAULT_DATABASE, None, true),
            _ => {
                let expected = format!(
                    "the name of a database, because the catalog has several: {}",
                    self.catalog.database_list()
                );
                Err(Invalid::new(InvalidKind::Null, "routes.database", row, None, expected))
            }
        }
    }

    fn address(&mut self, row: usize, column: &str, text: &[u8]) -> Result<(u32, AddressId), Invalid> {
        if let Some(known) = self.catalog.address_texts.find(text) {
            return Ok((known, self.addresses[known as usize]));
        }
        let Some(address) = Address::parse(text) else {
            let expected = "TCP://host[:port], LOCAL or TRANSPORT";
            return Err(Invalid::new(InvalidKind::Address, column, Some(row), Some(text), expected));
        };
        let text = self.catalog.address_texts.intern(text);
        let address = self.catalog.addresses.intern(address.as_str().as_bytes());
        let (text, address) = text
            .zip(address)
            .ok_or_else(|| Invalid::new(InvalidKind::OutOfRange, column, Some(row), None, "at most 4 GiB of text"))?;
        self.addresses.push(address);
        Ok((text, address))
    }

    fn assign_route_ids(&mut self) -> Result<(), Invalid> {
        let routes = &mut self.catalog.routes;
        let mut is_given = vec![true; routes.len()];
        for &row in &self.without_id {
            is_given[row as usize] = false;
        }
        let mut given: Vec<(u16, i32, u32)> = (0..routes.len() as u32)
            .filter(|&row| is_given[row as usize])
            .map(|row| (routes[row as usize].database, routes[row as usize].route_id, row))
            .collect();
        given.sort_unstable();
        let duplicates = given.windows(2).filter(|pair| (pair[0].0, pair[0].1) == (pair[1].0, pair[1].1));
        if let Some([first, second]) = duplicates.map(|pair| [pair[0], pair[1]]).min_by_key(|pair| pair[1].2) {
            let (database, id, row) = second;
            let database = String::from_utf8_lossy(&self.catalog.databases[usize::from(database)].name);
            let expected =
                format!("unique route ids within a database; row {}, also in {database}, has this route id", first.2);
            let (kind, row, value) = (InvalidKind::Duplicate, Some(row as usize), id.to_string());
            return Err(Invalid::new(kind, "routes.route_id", row, Some(value.as_bytes()), expected));
        }
        let mut next = vec![i64::from(FIRST_ROUTE_ID); self.catalog.databases.len()];
        for &(database, id, _) in &given {
            let slot = &mut next[usize::from(database)];
            *slot = (*slot).max(i64::from(id) + 1);
        }
        for &row in &self.without_id {
            let route = &mut routes[row as usize];
            let slot = &mut next[usize::from(route.database)];
            route.route_id = i32::try_from(*slot).map_err(|_| {
                let expected = "lower ids in the other rows; routes without an id are numbered after the highest id";
                Invalid::new(InvalidKind::OutOfRange, "routes.route_id", Some(row as usize), None, expected)
            })?;
            *slot += 1;
        }
        Ok(())
    }
}

/// Distinct byte strings, numbered from 0 in order of insertion.
#[derive(Debug)]
pub(crate) struct Interner {
    hash: NameHash,
    texts: Texts,
    table: HashTable<u32>,
}

/// A list of byte strings in one buffer.
#[derive(Debug)]
pub(crate) struct Texts {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Interner {
    pub(crate) fn new(seed: Seed) -> Self {
        Self { hash: NameHash::new(seed), texts: Texts::new(), table: HashTable::new() }
    }

    /// Reserves space for `count` distinct texts.
    pub(crate) fn reserve(&mut self, count: usize) {
        let (hash, texts) = (&self.hash, &self.texts);
        self.table.reserve(count, |&id| hash.of(texts.get(id), 0));
    }

    /// Returns the number of `text`, inserting it if it is new; `None` if the limit is reached.
    pub(crate) fn intern(&mut self, text: &[u8]) -> Option<u32> {
        let hash = self.hash.of(text, 0);
        if let Some(&id) = self.table.find(hash, |&id| self.texts.get(id) == text) {
            return Some(id);
        }
        let id = self.texts.push(text)?;
        self.table.insert_unique(hash, id, |&id| self.hash.of(self.texts.get(id), 0));
        Some(id)
    }

    pub(crate) fn find(&self, text: &[u8]) -> Option<u32> {
        self.table.find(self.hash.of(text, 0), |&id| self.texts.get(id) == text).copied()
    }

    pub(crate) fn texts(&self) -> &Texts {
        &self.texts
    }
}

impl Texts {
    pub(crate) fn new() -> Self {
        Self { bytes: Vec::new(), ends: Vec::new() }
    }

    /// Appends `text` and returns its number; `None` if all texts together would exceed 4 GiB.
    pub(crate) fn push(&mut self, text: &[u8]) -> Option<u32> {
        let id = u32::try_from(self.ends.len()).ok()?;
        let end = u32::try_from(self.bytes.len().checked_add(text.len())?).ok()?;
        self.bytes.extend_from_slice(text);
        self.ends.push(end);
        Some(id)
    }

    #[inline]
    pub(crate) fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let start = if id == 0 { 0 } else { self.ends[id - 1] as usize };
        &self.bytes[start..self.ends[id] as usize]
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }
}
