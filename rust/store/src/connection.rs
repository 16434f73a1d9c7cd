//! The SQLite that has opened the file. One of the few places with `unsafe`: it is C, and another extension module holds it.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};

use rusqlite::{Connection, ffi};

use crate::error::Result;

/// An open database, as SQLite has it.
pub type Database = ffi::sqlite3;
/// The functions of a SQLite, as it gives them to its extensions.
pub type Api = ffi::sqlite3_api_routines;

/// Learns the functions of a SQLite, once in a process: it is called by that SQLite, as the entry point of an extension.
///
/// # Safety
/// The arguments are those that SQLite gives to an extension.
pub unsafe fn learn(database: *mut Database, error: *mut *mut c_char, api: *mut Api) -> c_int {
    // SAFETY: SQLite gave the arguments, and nothing is done with the database.
    unsafe { Connection::extension_init2(database, error, api, |_| Ok(true)) }
}

/// A connection that somebody else has opened, and closes.
#[derive(Debug)]
pub struct Lent(pub(crate) Connection);

impl Lent {
    /// A connection by its handle.
    ///
    /// # Errors
    /// SQLite refuses.
    ///
    /// # Safety
    /// The database is open, was opened by the SQLite that has been learnt, and stays open until this is dropped.
    pub unsafe fn new(database: *mut Database) -> Result<Self> {
        // SAFETY: the caller says so; the connection does not close what it was made of.
        Ok(Self(unsafe { Connection::from_handle(database) }?))
    }
}
