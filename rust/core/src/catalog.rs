//! What an instance knows: its databases, their services and their routing tables, checked and ready to be compiled.

use std::collections::HashMap;

use crate::builder::Settings;
use crate::ids::Guid;
use crate::intern::{Interner, Texts};

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
