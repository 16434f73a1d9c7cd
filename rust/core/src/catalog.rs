//! What an instance knows: its databases, their services and their routing tables, checked and ready to be compiled.

use std::collections::HashMap;

use hashbrown::HashTable;

use crate::address::Address;
use crate::error::{Invalid, InvalidKind};
use crate::guid::Guid;
use crate::hash::{NameHash, Seed};

/// The table for what arrives from outside the instance (R1).
pub const MSDB: &[u8] = b"msdb";
/// The dynamic routing service (R14).
pub const BROKER_CONFIGURATION: &[u8] = b"SQL/ServiceBroker/BrokerConfiguration";
/// The moment of expiry of a route that has none.
pub const NEVER: i64 = i64::MAX;
/// The number of a service name or address that is not there.
pub const NONE: u32 = u32::MAX;

/// A distinct service name.
pub type NameId = u32;
/// A distinct normal form of an address; LOCAL is 0 and TRANSPORT is 1.
pub type EndpointId = u32;
/// LOCAL.
pub const LOCAL: EndpointId = 0;
/// TRANSPORT.
pub const TRANSPORT: EndpointId = 1;

/// A row of `sys.databases`.
#[derive(Clone, Debug)]
pub struct Database {
    /// Its name.
    pub name: Box<[u8]>,
    /// Its broker id, if known.
    pub broker: Option<Guid>,
    /// Whether messages are delivered in it.
    pub enabled: bool,
}

/// A row of `sys.routes`, with texts as numbers.
#[derive(Clone, Copy, Debug)]
pub struct RouteRow {
    /// The database whose table the route stands in.
    pub database: u16,
    /// The id, unique in its database.
    pub route_id: i32,
    /// The service name, `NONE` if it names none.
    pub service: NameId,
    /// The broker id.
    pub broker: Option<Guid>,
    /// The moment from which it is expired (R3), in microseconds since 1970.
    pub expires: i64,
    /// The address in its normal form.
    pub endpoint: EndpointId,
    /// The mirror address in its normal form, `NONE` if there is none.
    pub mirror: EndpointId,
    pub(crate) address_text: u32,
    pub(crate) mirror_text: u32,
}

impl RouteRow {
    /// Whether it is still valid at `now` (R3).
    #[must_use]
    #[inline]
    pub fn is_live(&self, now: i64) -> bool {
        now < self.expires
    }
}

/// The rows of a catalog, valid and numbered, in the order in which they came.
#[derive(Debug)]
pub struct Catalog {
    pub(crate) databases: Vec<Database>,
    pub(crate) routes: Vec<RouteRow>,
    pub(crate) services: Vec<(u16, NameId)>,
    pub(crate) names: Interner,
    pub(crate) settings: Settings,
    pub(crate) msdb: u16,
    pub(crate) user_database: Option<u16>,
    pub(crate) own_endpoints: Vec<EndpointId>,
    pub(crate) pending: Vec<NameId>,
    pub(crate) database_numbers: HashMap<Box<[u8]>, u16>,
    pub(crate) route_names: Texts,
    pub(crate) address_texts: Interner,
    pub(crate) endpoints: Interner,
}

impl Catalog {
    /// The databases, `msdb` among them.
    #[must_use]
    pub fn databases(&self) -> &[Database] {
        &self.databases
    }

    /// The routes of all tables.
    #[must_use]
    pub fn routes(&self) -> &[RouteRow] {
        &self.routes
    }

    /// The services: database and name.
    #[must_use]
    pub fn services(&self) -> &[(u16, NameId)] {
        &self.services
    }

    /// The one user database, if there is exactly one.
    #[must_use]
    pub fn user_database(&self) -> Option<u16> {
        self.user_database
    }

    /// The number of `msdb`.
    #[must_use]
    pub fn msdb(&self) -> u16 {
        self.msdb
    }

    /// Forwarding, and the own addresses and pending requests as given.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The number of the database called `name`.
    #[must_use]
    pub fn database(&self, name: &[u8]) -> Option<u16> {
        self.database_numbers.get(name).copied()
    }

    /// The text of a service name.
    #[must_use]
    pub fn name(&self, id: NameId) -> &[u8] {
        self.names.texts().get(id)
    }

    /// The number of a service name that some route, service or request names.
    #[must_use]
    pub fn find_name(&self, name: &[u8]) -> Option<NameId> {
        self.names.find(name)
    }

    /// The normal form of an address.
    #[must_use]
    pub fn endpoint(&self, id: EndpointId) -> &[u8] {
        self.endpoints.texts().get(id)
    }

    /// How many distinct normal forms there are.
    #[must_use]
    pub fn endpoint_count(&self) -> usize {
        self.endpoints.texts().len()
    }

    /// The number of a normal form that the catalog knows.
    #[must_use]
    pub fn find_endpoint(&self, normal: &[u8]) -> Option<EndpointId> {
        self.endpoints.find(normal)
    }

    /// The name of the route in row `row`.
    #[must_use]
    pub fn route_name(&self, row: usize) -> &[u8] {
        self.route_names.get(row as u32)
    }

    /// The address of a route as it was written.
    #[must_use]
    pub fn address_text(&self, route: &RouteRow) -> &[u8] {
        self.address_texts.texts().get(route.address_text)
    }

    /// The mirror address of a route as it was written.
    #[must_use]
    pub fn mirror_text(&self, route: &RouteRow) -> Option<&[u8]> {
        (route.mirror_text != NONE).then(|| self.address_texts.texts().get(route.mirror_text))
    }

    /// Whether an address leads to this instance (R41).
    #[must_use]
    #[inline]
    pub fn is_own(&self, endpoint: EndpointId) -> bool {
        self.own_endpoints.contains(&endpoint)
    }

    /// Whether a request for this service is pending (R14).
    #[must_use]
    pub fn is_pending(&self, name: &[u8]) -> bool {
        self.find_name(name).is_some_and(|id| self.pending.contains(&id))
    }
}

// Rows in, checked and numbered: how a catalog comes to be.

/// What a lone routing table's database is called (K23).
const LONE_DATABASE: &[u8] = b"user";
const FIRST_ROUTE_ID: i32 = 65_536;
const DATABASES_MAX: usize = 65_000;

/// What holds for the whole instance.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The instance's own addresses, as given.
    pub addresses: Vec<String>,
    /// Whether forwarding is on.
    pub message_forwarding: bool,
    /// The services for which a request to the dynamic routing service is pending.
    pub pending_requests: Vec<String>,
}

/// A route as it is handed to the builder.
#[derive(Clone, Copy, Debug)]
pub struct RouteInput<'a> {
    /// The database, `None` if left out.
    pub database: Option<&'a [u8]>,
    /// The name of the route.
    pub name: &'a [u8],
    /// The id, `None` if left out.
    pub route_id: Option<i32>,
    /// The service name.
    pub service: Option<&'a [u8]>,
    /// The broker id.
    pub broker: Option<Guid>,
    /// The moment of expiry in microseconds since 1970, `NEVER` if there is none.
    pub expires: i64,
    /// The address.
    pub address: &'a [u8],
    /// The mirror address.
    pub mirror: Option<&'a [u8]>,
}

/// Builds a catalog: first the databases, then the routes, then the services.
#[derive(Debug)]
pub struct CatalogBuilder {
    catalog: Catalog,
    unnumbered: Vec<u32>,
    /// The normal form of each text of an address.
    endpoints: Vec<EndpointId>,
}

impl CatalogBuilder {
    /// An empty catalog of an instance with these settings.
    ///
    /// # Errors
    /// An own address that is no network address.
    pub fn new(seed: Seed, settings: Settings) -> Result<Self, Invalid> {
        let mut endpoints = Interner::new(seed);
        endpoints.intern(b"LOCAL");
        endpoints.intern(b"TRANSPORT");
        let mut names = Interner::new(seed);
        let mut own_endpoints = Vec::new();
        for (place, text) in settings.addresses.iter().enumerate() {
            let Some(Address::Network(normal)) = Address::parse(text.as_bytes()) else {
                let expected = "TCP://host[:port]";
                return Err(Invalid::new(
                    InvalidKind::Address,
                    "addresses",
                    Some(place),
                    Some(text.as_bytes()),
                    expected,
                ));
            };
            own_endpoints.extend(endpoints.intern(normal.as_bytes()));
        }
        let pending = settings.pending_requests.iter().filter_map(|name| names.intern(name.as_bytes())).collect();
        let catalog = Catalog {
            databases: Vec::new(),
            routes: Vec::new(),
            services: Vec::new(),
            names,
            settings,
            msdb: 0,
            user_database: None,
            own_endpoints,
            pending,
            database_numbers: HashMap::new(),
            route_names: Texts::new(),
            address_texts: Interner::new(seed),
            endpoints,
        };
        Ok(Self { catalog, unnumbered: Vec::new(), endpoints: Vec::new() })
    }

    /// Adds a row of `sys.databases`.
    ///
    /// # Errors
    /// A name that was there, or the broker id of another enabled database (I7).
    pub fn database(&mut self, row: usize, name: &[u8], broker: Option<Guid>, enabled: bool) -> Result<(), Invalid> {
        if self.catalog.database(name).is_some() {
            let expected = "every database once";
            return Err(Invalid::new(InvalidKind::Duplicate, "databases.name", Some(row), Some(name), expected));
        }
        let is_taken =
            |id: &Guid| self.catalog.databases.iter().any(|other| other.enabled && other.broker == Some(*id));
        if let Some(id) = broker.filter(|id| enabled && is_taken(id)) {
            let (column, value) = ("databases.service_broker_guid", id.to_string());
            let expected = "a broker id of its own for every enabled database (I7)";
            return Err(Invalid::new(InvalidKind::Duplicate, column, Some(row), Some(value.as_bytes()), expected));
        }
        self.add_database(name, broker, enabled).map(|_| ())
    }

    /// Makes room for so many routes.
    pub fn reserve(&mut self, routes: usize) {
        self.catalog.routes.reserve(routes);
        self.catalog.names.reserve(routes);
    }

    /// Says that the routing table has no `database` column: it belongs to the one user database.
    ///
    /// # Errors
    /// The catalog has several user databases.
    pub fn lone_table(&mut self) -> Result<(), Invalid> {
        self.lone_database(None).map(|_| ())
    }

    /// Adds a row of `sys.routes`.
    ///
    /// # Errors
    /// An address that is none, or no database where the catalog has several.
    pub fn route(&mut self, row: usize, input: RouteInput<'_>) -> Result<(), Invalid> {
        let database = match input.database {
            Some(name) => match self.catalog.database(name) {
                Some(number) => number,
                None => self.add_database(name, None, true)?,
            },
            None => self.lone_database(Some(row))?,
        };
        let too_much = || Invalid::new(InvalidKind::Limit, "routes", Some(row), None, "at most 4 GiB of text");
        let (address_text, endpoint) = self.address(row, "routes.address", input.address)?;
        let (mirror_text, mirror) = match input.mirror {
            Some(text) => self.address(row, "routes.mirror_address", text)?,
            None => (NONE, NONE),
        };
        let service = match input.service {
            Some(name) => self.catalog.names.intern(name).ok_or_else(too_much)?,
            None => NONE,
        };
        self.catalog.route_names.push(input.name).ok_or_else(too_much)?;
        if input.route_id.is_none() {
            self.unnumbered.push(row as u32);
        }
        self.catalog.routes.push(RouteRow {
            database,
            route_id: input.route_id.unwrap_or(0),
            service,
            broker: input.broker,
            expires: input.expires,
            endpoint,
            mirror,
            address_text,
            mirror_text,
        });
        Ok(())
    }

    /// Ends the routes: numbers those without an id (K23) and completes the databases.
    ///
    /// # Errors
    /// A route id that occurs twice in a database, or one that does not fit.
    pub fn end_of_routes(&mut self) -> Result<(), Invalid> {
        if self.catalog.database(MSDB).is_none() {
            self.add_database(MSDB, None, true)?;
        }
        let catalog = &mut self.catalog;
        catalog.msdb = catalog.database(MSDB).unwrap_or_default();
        let mut users = (0..catalog.databases.len() as u16).filter(|&number| number != catalog.msdb);
        catalog.user_database = users.next().filter(|_| users.next().is_none());
        self.number_routes()
    }

    /// Adds a row of `sys.services`.
    ///
    /// # Errors
    /// A database that the catalog does not have.
    pub fn service(&mut self, row: usize, database: &[u8], name: &[u8]) -> Result<(), Invalid> {
        let Some(number) = self.catalog.database(database) else {
            let (column, expected) = ("services.database", format!("one of {}", self.database_list()));
            return Err(Invalid::new(InvalidKind::UnknownDatabase, column, Some(row), Some(database), expected));
        };
        let Some(id) = self.catalog.names.intern(name) else {
            return Err(Invalid::new(InvalidKind::Limit, "services.name", Some(row), None, "at most 4 GiB of text"));
        };
        self.catalog.services.push((number, id));
        Ok(())
    }

    /// The catalog.
    #[must_use]
    pub fn finish(self) -> Catalog {
        self.catalog
    }

    fn database_list(&self) -> String {
        let names = self.catalog.databases.iter().take(10).map(|database| String::from_utf8_lossy(&database.name));
        names.collect::<Vec<_>>().join(", ")
    }

    fn add_database(&mut self, name: &[u8], broker: Option<Guid>, enabled: bool) -> Result<u16, Invalid> {
        let number = self.catalog.databases.len();
        if number >= DATABASES_MAX {
            let expected = format!("at most {DATABASES_MAX} databases");
            return Err(Invalid::new(InvalidKind::Limit, "databases.name", None, Some(name), expected));
        }
        self.catalog.databases.push(Database { name: name.into(), broker, enabled });
        self.catalog.database_numbers.insert(name.into(), number as u16);
        Ok(number as u16)
    }

    fn lone_database(&mut self, row: Option<usize>) -> Result<u16, Invalid> {
        let users: Vec<u16> = (0..self.catalog.databases.len() as u16)
            .filter(|&number| *self.catalog.databases[usize::from(number)].name != *MSDB)
            .collect();
        match users[..] {
            [one] => Ok(one),
            [] => self.add_database(LONE_DATABASE, None, true),
            _ => {
                let expected = format!("the name of a database: the catalog has several, {}", self.database_list());
                Err(Invalid::new(InvalidKind::Null, "routes.database", row, None, expected))
            }
        }
    }

    fn address(&mut self, row: usize, column: &str, text: &[u8]) -> Result<(u32, EndpointId), Invalid> {
        if let Some(known) = self.catalog.address_texts.find(text) {
            return Ok((known, self.endpoints[known as usize]));
        }
        let Some(address) = Address::parse(text) else {
            let expected = "TCP://host[:port], LOCAL or TRANSPORT";
            return Err(Invalid::new(InvalidKind::Address, column, Some(row), Some(text), expected));
        };
        let text = self.catalog.address_texts.intern(text);
        let endpoint = self.catalog.endpoints.intern(address.as_str().as_bytes());
        let (text, endpoint) = text
            .zip(endpoint)
            .ok_or_else(|| Invalid::new(InvalidKind::Limit, column, Some(row), None, "at most 4 GiB of text"))?;
        self.endpoints.push(endpoint);
        Ok((text, endpoint))
    }

    fn number_routes(&mut self) -> Result<(), Invalid> {
        let routes = &mut self.catalog.routes;
        let mut is_given = vec![true; routes.len()];
        for &row in &self.unnumbered {
            is_given[row as usize] = false;
        }
        let mut given: Vec<(u16, i32, u32)> = (0..routes.len() as u32)
            .filter(|&row| is_given[row as usize])
            .map(|row| (routes[row as usize].database, routes[row as usize].route_id, row))
            .collect();
        given.sort_unstable();
        let twice = given.windows(2).filter(|pair| (pair[0].0, pair[0].1) == (pair[1].0, pair[1].1));
        if let Some((_, id, row)) = twice.map(|pair| pair[1]).min_by_key(|&(_, _, row)| row) {
            let (value, expected) = (id.to_string(), "every route id once in its database");
            let (kind, row) = (InvalidKind::Duplicate, Some(row as usize));
            return Err(Invalid::new(kind, "routes.route_id", row, Some(value.as_bytes()), expected));
        }
        let mut next = vec![i64::from(FIRST_ROUTE_ID); self.catalog.databases.len()];
        for &(database, id, _) in &given {
            let slot = &mut next[usize::from(database)];
            *slot = (*slot).max(i64::from(id) + 1);
        }
        for &row in &self.unnumbered {
            let route = &mut routes[row as usize];
            let slot = &mut next[usize::from(route.database)];
            route.route_id = i32::try_from(*slot).map_err(|_| {
                let expected = "route ids that leave room for those left out";
                Invalid::new(InvalidKind::Limit, "routes.route_id", Some(row as usize), None, expected)
            })?;
            *slot += 1;
        }
        Ok(())
    }
}

// Texts that are kept once and named by number.

/// Distinct byte strings, numbered from 0 in the order of their arrival.
#[derive(Debug)]
pub(crate) struct Interner {
    hash: NameHash,
    texts: Texts,
    table: HashTable<u32>,
}

/// Byte strings one after the other.
#[derive(Debug)]
pub(crate) struct Texts {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Interner {
    pub(crate) fn new(seed: Seed) -> Self {
        Self { hash: NameHash::new(seed), texts: Texts::new(), table: HashTable::new() }
    }

    /// Makes room for so many distinct texts.
    pub(crate) fn reserve(&mut self, count: usize) {
        let (hash, texts) = (&self.hash, &self.texts);
        self.table.reserve(count, |&id| hash.of(texts.get(id), 0));
    }

    /// The number of `text`, a new one if it was not seen before; `None` if there is no room left.
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

    /// Appends `text` and returns its number; `None` if the whole would exceed 4 GiB.
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
