//! The SQLite library and connection that another extension module (apsw) has opened. Uses `unsafe` because both
//! are C, and because the connection is stored beside the statements that refer to it.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ffi::{c_char, c_int};
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

use rusqlite::{Connection, PrepFlags, Statement, ffi};

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

/// A connection that someone else opened and will close, with its prepared statements. `rusqlite` caches statements
/// too, but allocates and hashes the SQL text at each use.
#[derive(Debug)]
pub struct BorrowedConnection {
    /// Owned; dropped after the statements, which refer to it.
    connection: NonNull<Connection>,
    unused: UnusedStatements,
}

/// The statements that are not in use, with their SQL texts.
type UnusedStatements = RefCell<Vec<(&'static str, Statement<'static>)>>;

// SAFETY: the connection and its statements move to another thread together, and nothing else refers to them.
unsafe impl Send for BorrowedConnection {}

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
        let connection = Box::new(unsafe { Connection::from_handle(database) }?);
        Ok(Self { connection: NonNull::from(Box::leak(connection)), unused: RefCell::default() })
    }

    /// Returns the statement of an SQL text, which is prepared at its first use.
    pub(crate) fn prepare_cached(&self, sql: &'static str) -> rusqlite::Result<CachedStatement<'_>> {
        let mut unused = self.unused.borrow_mut();
        let statement = if let Some(index) = unused.iter().position(|(text, _)| ptr::eq(*text, sql)) {
            unused.swap_remove(index).1
        } else {
            // SAFETY: the connection does not move, and is dropped after all statements.
            let connection: &'static Connection = unsafe { self.connection.as_ref() };
            connection.prepare_with_flags(sql, PrepFlags::SQLITE_PREPARE_PERSISTENT)?
        };
        Ok(CachedStatement { sql, statement: ManuallyDrop::new(statement), unused: &self.unused })
    }
}

impl Deref for BorrowedConnection {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        // SAFETY: the connection is dropped with `self`.
        unsafe { self.connection.as_ref() }
    }
}

impl Drop for BorrowedConnection {
    fn drop(&mut self) {
        self.unused.get_mut().clear();
        // SAFETY: the pointer is that of a box, and the statements that referred to it are gone.
        drop(unsafe { Box::from_raw(self.connection.as_ptr()) });
    }
}

/// A statement that returns to the cache when it is dropped.
pub(crate) struct CachedStatement<'c> {
    sql: &'static str,
    statement: ManuallyDrop<Statement<'static>>,
    unused: &'c UnusedStatements,
}

impl Deref for CachedStatement<'_> {
    type Target = Statement<'static>;

    fn deref(&self) -> &Self::Target {
        &self.statement
    }
}

impl DerefMut for CachedStatement<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.statement
    }
}

impl Drop for CachedStatement<'_> {
    fn drop(&mut self) {
        self.statement.clear_bindings(); // frees the copies of message bodies
        // SAFETY: the statement is not used again.
        let statement = unsafe { ManuallyDrop::take(&mut self.statement) };
        self.unused.borrow_mut().push((self.sql, statement));
    }
}
