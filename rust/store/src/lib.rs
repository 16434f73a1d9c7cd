//! The fast path of SEND, RECEIVE and commit on a database file.
//!
//! Python opens the file and handles everything uncommon. This crate handles what happens for every message: BEGIN
//! and COMMIT, SEND on an established conversation, and RECEIVE. If anything about a message is uncommon, it
//! changes nothing and leaves the message to Python. It uses the SQLite library and connection of apsw, so that
//! both sides share one transaction.
#![deny(unsafe_code)]

mod codes;
mod connection;
mod error;
#[cfg(target_os = "linux")]
mod file_locks;
mod metadata;
mod receive;
mod send;
mod shared_memory;
mod statements;
mod transmission;
mod wal_vfs;

pub use crate::connection::{Api, BorrowedConnection, Database, init_api};
pub use crate::error::{Error, Result};
pub use crate::metadata::{Contract, MessageType, MetadataSnapshot, Queue, Rule, Service};
pub use crate::receive::{QueueState, ReceiveRequest, Selection, Taking};
pub use crate::send::{BODY_MAX, EnqueueTarget, QueueRow, Sent, TransmissionRow};
pub use crate::shared_memory::{LockHolder, SharedMemory};
pub use crate::statements::{BeginResult, Statements, now};
pub use crate::transmission::ReadRequest;
pub use crate::wal_vfs::register_wal_vfs;
