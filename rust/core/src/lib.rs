//! The rules of Service Broker's routing.
//!
//! This crate knows no clock, no socket, no thread, no Arrow and no Python: the time, the seed of its hashes and the identity of a
//! conversation are parameters. What the rules call an outcome is a value; an error means that the input was wrong.
//!
//! A [`Catalog`] is what an instance knows: databases, services, routing tables. A [`RouteIndex`] is the same, compiled: it answers
//! *where would this conversation go* one conversation at a time ([`RouteIndex::decide`]), for blocks of 64 at the speed of the memory
//! ([`RouteIndex::resolve`]), or with every step of the way ([`RouteIndex::explain`]).
#![deny(unsafe_code)]

mod address;
mod catalog;
mod error;
mod guid;
mod hash;
pub mod message;
mod prefetch;
pub mod reassembly;
pub mod route;
mod signature;

pub use address::{Address, next_hop_of_service_name};
pub use catalog::{
    BROKER_CONFIGURATION, Catalog, CatalogBuilder, Database, EndpointId, LOCAL, MSDB, NEVER, NONE, NameId, RouteInput,
    RouteRow, Settings, TRANSPORT,
};
pub use error::{Invalid, InvalidKind};
pub use guid::{Guid, GuidReader};
pub use hash::{Seed, stable_hash};
pub use prefetch::prefetch_bytes;
pub use route::{Decision, NextHop, Options, Outcome, PendingRequest, Query, Reason, RouteIndex, TieBreak};
pub use signature::{Digest, Header, SessionKey, Signature};
