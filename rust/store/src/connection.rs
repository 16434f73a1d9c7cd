//! The SQLite library and connection that another extension module (apsw) has opened. Uses `unsafe` because both
//! are C.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int};

use rusqlite::{Connection, ffi};

use crate::error::Result;

/// An open SQLite database.
pub type Database = ffi::sqlite3;
/// The API routines that SQLite passes to its extensions.
pub type Api = ffi::sqlite3_api_routines;

/// Initializes the API routines once per process. SQLite calls it as the entry point of an extension.
///
/// # Safety
/// The arguments come from SQLite.
pub unsafe fn init_api(database: *mut Database, error: *mut *mut c_char, api: *mut Api) -> c_int {
    // SAFETY: SQLite passed the arguments, and the database is not used.
    unsafe { Connection::extension_init2(database, error, api, |_| Ok(true)) }
}

/// A connection that someone else opened and will close.
#[derive(Debug)]
pub struct BorrowedConnection(pub(crate) Connection);

impl BorrowedConnection {
    /// Wraps a connection handle.
    ///
    /// # Errors
    /// SQLite rejects the handle.
    ///
    /// # Safety
    /// The database is open, was opened by the SQLite library that was passed to `init_api`, and stays open until
    /// this is dropped.
    pub unsafe fn new(database: *mut Database) -> Result<Self> {
        // SAFETY: guaranteed by the caller; the wrapper does not close the handle.
        Ok(Self(unsafe { Connection::from_handle(database) }?))
    }
}
