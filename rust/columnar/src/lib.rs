//! Service Broker's routing over Arrow: record batches of routes, databases and services in, a catalog out; record batches of
//! conversations in, record batches of decisions out.
#![forbid(unsafe_code)]

mod catalog;
mod decisions;
mod error;
mod read;
mod route;
pub mod schema;
mod view;

pub use catalog::{CatalogTables, databases_batch, read_catalog, routes_batch, services_batch};
pub use error::{Error, Result};
pub use route::RouteKernel;
