//! The hot path of a running instance: what plain messages need of a database file, on a connection that somebody else has opened.
//!
//! Python opens the file and does whatever is rare. What happens for every message stands here: a transaction's begin and end, SEND to a
//! conversation that goes on, RECEIVE. Where anything is not plain, nothing is done, and Python's own way is gone. SQLite is the one that
//! opened the file, as an extension is given it, so that both see one transaction.
#![deny(unsafe_code)]

mod connection;
mod error;
mod metadata;
mod receive;
mod send;
mod statements;
mod transmission;
mod wal_vfs;

pub use crate::connection::{Api, Database, Lent, learn};
pub use crate::error::{Error, Result};
pub use crate::metadata::{Contract, Kind, Picture, Queue, Rule, Service};
pub use crate::receive::{Asked, Only};
pub use crate::send::{Enqueued, QueueRow, Sent, TransmissionRow};
pub use crate::statements::{Begun, Statements, now};
pub use crate::transmission::Wanted;
pub use crate::wal_vfs::gathering;
