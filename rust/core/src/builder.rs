//! Rows in, checked and numbered: how a catalog comes to be.

use std::collections::HashMap;

use crate::address::Address;
use crate::catalog::{Catalog, Database, EndpointId, MSDB, NONE, RouteRow};
use crate::error::{Invalid, InvalidKind};
use crate::hash::Seed;
use crate::ids::Guid;
use crate::intern::{Interner, Texts};

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
