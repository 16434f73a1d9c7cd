//! Service Broker's routing and reassembly over Arrow: record batches of routes, databases and services in, a catalog out; record
//! batches of conversations in, record batches of decisions out; record batches of messages in, record batches of fragments out, and
//! back.
#![forbid(unsafe_code)]

mod arrays;
mod catalog;
mod checkpoint;
mod columns;
mod decisions;
mod envelope;
mod error;
mod extra_columns;
mod fragment;
mod md5;
mod message_runs;
mod messages;
mod packed_decisions;
mod reassemble;
mod route;
pub mod schema;
mod session_keys;
mod view;
mod wire;

pub use crate::catalog::{CatalogTables, databases_batch, read_catalog, routes_batch, services_batch};
pub use crate::decisions::{Coded, Decided};
pub use crate::envelope::{SenderRun, first_hop, header_digests, sender_runs};
pub use crate::error::{Error, Result};
pub use crate::fragment::fragment;
pub use crate::md5::md5;
pub use crate::message_runs::{Leaving, Run, Runs, WaitingRun, departures, plain_runs, waiting_runs};
pub use crate::messages::{bodies, outgoing, received, waiting};
pub use crate::packed_decisions::places;
pub use crate::reassemble::{Reassembled, ReassemblyKernel};
pub use crate::route::RouteKernel;
pub use crate::session_keys::{Keys, SessionKeys};
pub use crate::wire::{crc32c, decode_fragments};
