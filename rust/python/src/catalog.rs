//! `_core.Catalog`, and parsing of addresses and GUIDs.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use pyo3::prelude::*;
use ssbroker_columnar::{
    CatalogTables, Error, databases_batch, destinations, read_catalog, routes_batch, services_batch,
};
use ssbroker_core::{Address, Catalog, Guid, Invalid, InvalidKind, Seed, Settings};

use crate::arrow::{export_batch, import_stream};
use crate::detach::detached;
use crate::errors::to_python;
use crate::memory::release_free_memory;

/// See `_core.pyi`.
#[pyclass(frozen, name = "Catalog", module = "ssbroker._core")]
pub(crate) struct PyCatalog {
    pub(crate) catalog: Arc<Catalog>,
}

/// Returns a secret seed; it does not affect results.
pub(crate) fn random_seed() -> Seed {
    let state = RandomState::new();
    Seed([state.hash_one(0), state.hash_one(1)])
}

#[pymethods]
impl PyCatalog {
    #[new]
    #[pyo3(signature = (routes, databases=None, services=None, /, *, addresses, message_forwarding, pending_requests))]
    fn new(
        py: Python<'_>,
        routes: &Bound<'_, PyAny>,
        databases: Option<&Bound<'_, PyAny>>,
        services: Option<&Bound<'_, PyAny>>,
        addresses: Vec<String>,
        message_forwarding: bool,
        pending_requests: Vec<String>,
    ) -> PyResult<Self> {
        let optional = |table: Option<&Bound<'_, PyAny>>| table.map_or_else(|| Ok(Vec::new()), import_stream);
        let tables = CatalogTables {
            routes: import_stream(routes)?,
            databases: optional(databases)?,
            services: optional(services)?,
        };
        let settings = Settings { addresses, message_forwarding, pending_requests };
        let catalog = detached(py, move || {
            let catalog = read_catalog(&tables, settings, random_seed());
            release_free_memory();
            catalog
        })?;
        Ok(Self { catalog: Arc::new(catalog) })
    }

    fn routes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        export_batch(py, detached(py, || routes_batch(&self.catalog))?)
    }

    fn databases<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        export_batch(py, detached(py, || databases_batch(&self.catalog))?)
    }

    fn services<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        export_batch(py, detached(py, || services_batch(&self.catalog))?)
    }

    fn destinations(&self) -> Option<(Vec<String>, Vec<String>)> {
        destinations(&self.catalog)
    }

    #[getter]
    fn addresses(&self) -> Vec<String> {
        let parsed = self.catalog.settings().addresses.iter().filter_map(|text| Address::parse(text.as_bytes()));
        parsed.map(|address| address.as_str().to_owned()).collect()
    }

    #[getter]
    fn message_forwarding(&self) -> bool {
        self.catalog.settings().message_forwarding
    }

    #[getter]
    fn pending_requests(&self) -> Vec<String> {
        self.catalog.settings().pending_requests.clone()
    }

    #[getter]
    fn user_database(&self) -> Option<String> {
        let number = self.catalog.user_database()?;
        Some(String::from_utf8_lossy(&self.catalog.databases()[usize::from(number)].name).into_owned())
    }
}

/// See `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (text, /))]
pub(crate) fn normalize_address(py: Python<'_>, text: &str) -> PyResult<String> {
    Address::parse(text.as_bytes()).map(|address| address.as_str().to_owned()).ok_or_else(|| {
        let expected = "TCP://host[:port], LOCAL or TRANSPORT";
        let invalid = Invalid::new(InvalidKind::Address, "address", None, Some(text.as_bytes()), expected);
        to_python(py, &Error::Invalid(invalid))
    })
}

/// See `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (text, /))]
pub(crate) fn parse_guid(py: Python<'_>, text: &str) -> PyResult<[u8; 16]> {
    Guid::parse(text.as_bytes()).map(|guid| guid.0).ok_or_else(|| {
        let expected = "36 characters, braces allowed";
        let invalid = Invalid::new(InvalidKind::Guid, "guid", None, Some(text.as_bytes()), expected);
        to_python(py, &Error::Invalid(invalid))
    })
}
