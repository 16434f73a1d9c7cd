//! The SQLite that apsw brings. One of the few places with `unsafe`: another extension module has opened what is used here.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int};
use std::path::PathBuf;

use pyo3::prelude::*;
use ssbroker_store::{Api, Database, Error, Lent, Statements, learn};

/// The entry point by which SQLite makes itself known to this module, as to any extension of its own.
///
/// # Safety
/// SQLite calls it.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ssbroker_sqlite_init(
    database: *mut Database,
    error: *mut *mut c_char,
    api: *mut Api,
) -> c_int {
    // SAFETY: the arguments are SQLite's.
    unsafe { learn(database, error, api) }
}

/// The name of a virtual file system that writes each commit to the log in one piece, over another one.
#[pyfunction]
#[pyo3(signature = (below, /))]
pub(crate) fn gathering(below: Option<&str>) -> PyResult<Option<String>> {
    let below = below.map(CString::new).transpose()?;
    Ok(ssbroker_store::gathering(below.as_deref()).and_then(|name| name.into_string().ok()))
}

/// Statements on an `apsw.Connection` that is open; whoever has them keeps the connection.
pub(crate) fn statements(connection: &Bound<'_, PyAny>) -> PyResult<Statements> {
    let py = connection.py();
    let database = connection.call_method0("sqlite3_pointer")?.extract::<usize>()? as *mut Database;
    let path = connection.getattr("filename")?.extract::<PathBuf>()?;
    // SAFETY: the pointer is apsw's own of a connection that is open, or it has raised. apsw's SQLite is the one that is known, since
    // `ssbroker.store` has it load this module before it calls this; and the connection keeps the statements, and closes them first.
    let lent = unsafe { Lent::new(database) }.map_err(|error| raised(py, &error))?;
    Ok(Statements::new(lent, &path))
}

/// An error of SQLite as apsw would have raised it.
pub(crate) fn raised(py: Python<'_>, error: &Error) -> PyErr {
    let made = py.import("apsw").and_then(|apsw| match error {
        Error::Altered(_) => apsw.getattr("SQLError")?.call1((error.to_string(),)),
        Error::Sqlite(code, said) => {
            let class = apsw.call_method1("exception_for", (*code,))?.get_type();
            let made = class.call1((said,))?;
            made.setattr("result", code & 0xff)?;
            made.setattr("extendedresult", *code)?;
            Ok(made.into_any())
        }
        Error::Undone => apsw.getattr("AbortError")?.call1((error.to_string(),)),
    });
    made.map_or_else(|error| error, PyErr::from_value)
}
