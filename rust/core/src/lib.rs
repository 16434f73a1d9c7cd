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
mod builder;
mod catalog;
mod error;
mod fragment;
mod guid_text;
mod hash;
mod ids;
pub mod integrity;
mod intern;
pub mod message;
mod outcome;
mod prefetch;
pub mod reassembly;
pub mod route;

pub use address::{Address, next_hop_of_service_name};
pub use builder::{CatalogBuilder, RouteInput, Settings};
pub use catalog::{
    BROKER_CONFIGURATION, Catalog, Database, EndpointId, LOCAL, MSDB, NEVER, NONE, NameId, RouteRow, TRANSPORT,
};
pub use error::{Invalid, InvalidKind};
pub use fragment::{Digest, Header, Signature};
pub use guid_text::GuidReader;
pub use hash::{Seed, stable_hash};
pub use ids::Guid;
pub use outcome::{Outcome, Reason};
pub use prefetch::prefetch_bytes;
pub use route::{Decision, NextHop, Options, PendingRequest, Query, RouteIndex, TieBreak};
