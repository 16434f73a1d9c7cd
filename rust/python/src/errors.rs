//! Maps errors to the exceptions of `ssbroker.exceptions`.

use std::any::Any;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use ssbroker_columnar::Error;
use ssbroker_core::{Invalid, InvalidKind};

/// Maps an error of the kernels.
pub(crate) fn to_python(py: Python<'_>, error: &Error) -> PyErr {
    let fields = PyDict::new(py);
    let class = match error {
        Error::Invalid(invalid) => invalid_fields(&fields, invalid).map(|()| class_of(invalid.kind)),
        Error::Malformed { column, row, .. } => {
            fields.set_item("column", column).and_then(|()| fields.set_item("row", row)).map(|()| "MalformedDataError")
        }
        Error::State(_) => fields.set_item("expected", "a checkpoint").map(|()| "MalformedDataError"),
        Error::Internal(what) => return internal_error(py, what),
        Error::Wire(_) => fields.set_item("expected", "a batch of fragments").map(|()| "MalformedDataError"),
        Error::Schema { column, expected, actual } => fields
            .set_item("column", column)
            .and_then(|()| fields.set_item("expected", expected))
            .and_then(|()| fields.set_item("actual", actual))
            .map(|()| "SchemaError"),
    };
    class.map_or_else(|error| error, |class| raise(py, class, &error.to_string(), Some(&fields)))
}

/// Reports malformed Arrow data.
pub(crate) fn malformed(py: Python<'_>, what: &str) -> PyErr {
    raise(py, "MalformedDataError", &format!("malformed Arrow data: {what}"), None)
}

/// Reports an invalid option.
pub(crate) fn invalid_option(py: Python<'_>, name: &str, value: &str, allowed: &str) -> PyErr {
    option_error(py, &format!("{name}: '{value}' is not allowed; expected {allowed}"))
}

/// Returns an `OptionError` with a text.
pub(crate) fn option_error(py: Python<'_>, text: &str) -> PyErr {
    raise(py, "OptionError", text, None)
}

/// Returns the message of a panic that was caught.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without a message")
}

/// Reports a panic that was caught.
pub(crate) fn panicked(py: Python<'_>, panic: &(dyn Any + Send)) -> PyErr {
    internal_error(py, panic_text(panic))
}

/// Reports a call on an object that cannot be used.
pub(crate) fn unusable(py: Python<'_>) -> PyErr {
    internal_error(py, "the object is closed, or an earlier internal error has interrupted a call")
}

fn internal_error(py: Python<'_>, what: &str) -> PyErr {
    raise(py, "SsbrokerError", &format!("internal error in the native module; please report it: {what}"), None)
}

/// Reports an object that another thread was using when this process was forked.
pub(crate) fn in_use_at_fork(py: Python<'_>) -> PyErr {
    let message = "another thread used the reassembler when this process was forked, so it cannot be used here; fork \
                   while no thread uses it, or start processes with `spawn`";
    raise(py, "SsbrokerError", message, None)
}

/// Formats a time as ISO 8601 in UTC.
pub(crate) fn iso_time(py: Python<'_>, micros: i64) -> PyResult<String> {
    let datetime = py.import("datetime")?;
    let epoch = datetime.getattr("datetime")?.call1((1970, 1, 1))?;
    let since = datetime.getattr("timedelta")?.call1((0, 0, micros))?;
    match epoch.add(since) {
        Ok(time) => Ok(format!("{}Z", time.call_method0("isoformat")?.extract::<String>()?)),
        // Outside the years that Python supports, use the number.
        Err(_) => Ok(format!("{micros} µs since 1970")),
    }
}

fn invalid_fields(fields: &Bound<'_, PyDict>, invalid: &Invalid) -> PyResult<()> {
    fields.set_item("column", &invalid.column)?;
    fields.set_item("row", invalid.row)?;
    fields.set_item("value", &invalid.value)?;
    fields.set_item("expected", &invalid.expected)
}

fn class_of(kind: InvalidKind) -> &'static str {
    match kind {
        InvalidKind::Address => "InvalidAddressError",
        InvalidKind::Duplicate => "DuplicateError",
        InvalidKind::Guid => "InvalidGuidError",
        InvalidKind::Null => "NullError",
        InvalidKind::OutOfRange => "InputError",
        InvalidKind::UnknownDatabase => "UnknownDatabaseError",
    }
}

fn raise(py: Python<'_>, class: &str, message: &str, fields: Option<&Bound<'_, PyDict>>) -> PyErr {
    let exception = py
        .import("ssbroker.exceptions")
        .and_then(|module| module.getattr(class))
        .and_then(|class| class.call((message,), fields));
    exception.map_or_else(|error| error, PyErr::from_value)
}
