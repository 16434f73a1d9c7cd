//! Service Broker's routing and reassembly over Arrow: record batches of routes, databases and services in, a catalog out; record
//! batches of conversations in, record batches of decisions out; record batches of messages in, record batches of fragments out, and
//! back.
#![forbid(unsafe_code)]

mod answered;
mod arrays;
mod bits;
mod bodies;
mod carry;
mod catalog;
mod checkpoint;
mod decisions;
mod departures;
mod dictionary;
mod error;
mod fragment;
mod further;
mod guids;
mod headers;
mod keys;
mod md5;
mod offsets;
mod outgoing;
mod read;
mod reassemble;
mod received;
mod route;
mod rows;
mod runs;
pub mod schema;
mod senders;
mod sound;
mod told;
mod verdicts;
mod view;
mod waiting;
mod wire;

pub use bodies::bodies;
pub use catalog::{CatalogTables, databases_batch, read_catalog, routes_batch, services_batch};
pub use decisions::{Coded, Decided};
pub use departures::{Leaving, WaitingRun, departures, waiting_runs};
pub use error::{Error, Result};
pub use fragment::fragment;
pub use headers::header_digests;
pub use keys::{Keys, SessionKeys};
pub use md5::md5;
pub use outgoing::outgoing;
pub use reassemble::{Reassembled, ReassemblyKernel};
pub use received::received;
pub use route::RouteKernel;
pub use runs::{Run, Runs, plain_runs};
pub use senders::{SenderRun, first_hop, sender_runs};
pub use verdicts::places;
pub use waiting::waiting;
pub use wire::{crc32c, decode_fragments};
