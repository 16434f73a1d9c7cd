//! The hot path of a running instance: what plain messages need of a database file, on a connection that somebody else has opened.
//!
//! Python opens the file and does whatever is rare. What happens for every message stands here: a transaction's begin and end, SEND to a
//! conversation that goes on, RECEIVE. Where anything is not plain, nothing is done, and Python's own way is gone. SQLite is the one that
//! opened the file, as an extension is given it, so that both see one transaction.
#![deny(unsafe_code)]

mod error;
mod gathering;
mod library;
mod picture;
mod receiving;
mod sending;
mod statements;
mod waiting;

pub use error::{Error, Result};
pub use gathering::gathering;
pub use library::{Api, Database, Lent, learn};
pub use picture::{Contract, Kind, Picture, Queue, Rule, Service};
pub use receiving::{Asked, Only};
pub use sending::{Enqueued, Sent};
pub use statements::{Begun, Statements, now};
pub use waiting::Wanted;
