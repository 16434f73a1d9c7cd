//! The rules of Service Broker: routing, and reassembly of fragments.
//!
//! The crate is deterministic: it uses no clock, socket, thread, Arrow or Python. The time, the seed of its hashes
//! and the id of a conversation are arguments. Expected outcomes are values; an error means that the input is
//! invalid.
//!
//! A [`Catalog`] holds the databases, services and routing tables of an instance. A [`RouteIndex`] is compiled from
//! it and decides conversations one at a time ([`RouteIndex::decide`]), in blocks of 64 ([`RouteIndex::resolve`]),
//! or with a trace of every step ([`RouteIndex::explain`]).
#![deny(unsafe_code)]

mod address;
mod catalog;
mod error;
mod guid;
mod hash;
pub mod masks;
pub mod message;
mod prefetch;
pub mod reassembly;
pub mod route;
mod signature;

pub use address::{Address, next_hop_of_service_name};
pub use catalog::{
    AddressId, BROKER_CONFIGURATION, Catalog, CatalogBuilder, Database, LOCAL, MSDB, NEVER, NONE, NameId, RouteInput,
    RouteRow, Settings, TRANSPORT,
};
pub use error::{Invalid, InvalidKind};
pub use guid::{Guid, GuidReader};
pub use hash::{Seed, stable_hash};
pub use prefetch::prefetch_bytes;
pub use route::{Decision, NextHop, Options, Outcome, PendingRequest, Query, Reason, RouteIndex, TieBreak};
pub use signature::{Digest, Header, SessionKey, Signature};
