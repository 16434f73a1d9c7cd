//! Routing and reassembly over Arrow record batches: reads catalogs, decides conversations, splits messages into
//! fragments and reassembles them, and converts messages of the database and the network.
#![forbid(unsafe_code)]

mod arrays;
mod catalog;
mod checkpoint;
mod columns;
mod decision_table;
mod decisions;
mod envelope;
mod error;
mod extra_columns;
mod fragment;
mod invalid_rows;
mod masks;
mod md5;
mod message_runs;
mod messages;
mod packed_decisions;
mod reassemble;
mod route;
pub mod schema;
mod session_keys;
mod validation;
mod view;
mod wire;

pub use crate::catalog::{CatalogTables, databases_batch, read_catalog, routes_batch, services_batch};
pub use crate::columns::is_misspelling;
pub use crate::decision_table::{decision_table, tie_break_hashes};
pub use crate::decisions::{DecisionColumns, DictionaryColumn};
pub use crate::envelope::{SenderRun, first_hop, header_digests, sender_runs};
pub use crate::error::{Error, Result, type_name};
pub use crate::fragment::fragment;
pub use crate::md5::md5;
pub use crate::message_runs::{
    IncomingRun, IncomingRuns, OutgoingRun, RunEnvelope, incoming_runs, outgoing_rows, outgoing_runs,
};
pub use crate::messages::{message_bodies, read_outgoing, received_batch, transmission_batch};
pub use crate::packed_decisions::destinations;
pub use crate::reassemble::{Reassembled, ReassemblyKernel};
pub use crate::route::RouteKernel;
pub use crate::session_keys::{SessionKeySource, SessionKeys};
pub use crate::wire::{crc32c, decode_fragments};
