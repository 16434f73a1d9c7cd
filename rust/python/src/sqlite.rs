//! Connects to the SQLite library of apsw. Uses `unsafe` because another extension module has opened the connection.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int};
use std::path::PathBuf;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use ssbroker_store::{Api, BorrowedConnection, Database, Error, Statements, init_api};

/// The entry point that SQLite calls, as for any extension.
///
/// # Safety
/// Called by SQLite.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ssbroker_sqlite_init(
    database: *mut Database,
    error: *mut *mut c_char,
    api: *mut Api,
) -> c_int {
    // SAFETY: SQLite passed the arguments.
    unsafe { init_api(database, error, api) }
}

/// See `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (below, /))]
pub(crate) fn register_wal_vfs(below: Option<&str>) -> PyResult<Option<String>> {
    let below = below.map(CString::new).transpose()?;
    Ok(ssbroker_store::register_wal_vfs(below.as_deref()).and_then(|name| name.into_string().ok()))
}

/// Creates statements on an open `apsw.Connection`, which must stay open until they are closed.
pub(crate) fn statements(connection: &Bound<'_, PyAny>) -> PyResult<Statements> {
    let py = connection.py();
    if !connection.is_instance(&py.import("apsw")?.getattr("Connection")?)? {
        return Err(PyTypeError::new_err("connection: expected an apsw.Connection"));
    }
    let database = connection.call_method0("sqlite3_pointer")?.extract::<usize>()? as *mut Database;
    let path = connection.getattr("filename")?.extract::<PathBuf>()?;
    // SAFETY: apsw returned the pointer of an open connection, or raised an error. Its SQLite library is the one
    // that was passed to `init_api`, because `ssbroker.store` makes it load this module first. The documentation of
    // `_core` requires that the statements are closed before the connection.
    let borrowed = unsafe { BorrowedConnection::new(database) }.map_err(|error| to_apsw_error(py, &error))?;
    Ok(Statements::new(borrowed, &path))
}

/// Maps an error of SQLite to the exception that apsw would raise.
pub(crate) fn to_apsw_error(py: Python<'_>, error: &Error) -> PyErr {
    let made = py.import("apsw").and_then(|apsw| match error {
        Error::Schema(_) => apsw.getattr("SQLError")?.call1((error.to_string(),)),
        Error::Sqlite(code, message) => {
            let class = apsw.call_method1("exception_for", (*code,))?.get_type();
            let made = class.call1((message,))?;
            made.setattr("result", code & 0xff)?;
            made.setattr("extendedresult", *code)?;
            Ok(made.into_any())
        }
        Error::RolledBack => apsw.getattr("AbortError")?.call1((error.to_string(),)),
    });
    made.map_or_else(|error| error, PyErr::from_value)
}
