//! `_core.Router`: routes record batches.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use ssbroker_columnar::{RouteKernel, decision_table};
use ssbroker_core::{Guid, Options, PendingRequest, Query, RouteIndex, TieBreak};

use crate::arrow::{dictionary, export_batch, import_batch};
use crate::catalog::{PyCatalog, random_seed};
use crate::detach::detached;
use crate::errors::{invalid_option, to_python};
use crate::explanation::ExplanationBuilder;
use crate::memory::release_free_memory;

/// See `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (found, name, /))]
pub(crate) fn is_misspelling(found: &str, name: &str) -> bool {
    ssbroker_columnar::is_misspelling(found, name)
}

/// See `_core.pyi`.
#[pyfunction]
#[pyo3(signature = (conversations, first_row, /))]
pub(crate) fn tie_break_hashes<'py>(
    py: Python<'py>,
    conversations: &Bound<'py, PyAny>,
    first_row: usize,
) -> PyResult<Bound<'py, PyAny>> {
    let batch = import_batch(conversations)?;
    let hashes = detached(py, || ssbroker_columnar::tie_break_hashes(&batch, first_row))?;
    export_batch(py, hashes)
}

/// See `_core.pyi`.
#[pyclass(frozen, name = "Router", module = "ssbroker._core")]
pub(crate) struct PyRouter {
    kernel: RouteKernel,
}

#[pymethods]
impl PyRouter {
    #[new]
    #[pyo3(signature = (catalog, /, *, tie_break, pending_request))]
    fn new(py: Python<'_>, catalog: &PyCatalog, tie_break: &str, pending_request: &str) -> PyResult<Self> {
        let tie_break = match tie_break {
            "first" => TieBreak::First,
            "hash" => TieBreak::Hash,
            "round_robin" => TieBreak::RoundRobin,
            other => return Err(invalid_option(py, "tie_break", other, "'hash', 'round_robin' or 'first'")),
        };
        let pending_request = match pending_request {
            "continue" => PendingRequest::Continue,
            "delay" => PendingRequest::Delay,
            other => return Err(invalid_option(py, "pending_request", other, "'continue' or 'delay'")),
        };
        let options = Options { tie_break, pending_request };
        let catalog = Arc::clone(&catalog.catalog);
        let kernel = detached(py, move || {
            let kernel = RouteKernel::new(RouteIndex::new(catalog, options, random_seed()));
            release_free_memory();
            Ok(kernel)
        })?;
        Ok(Self { kernel })
    }

    #[pyo3(signature = (conversations, now_us, first_row, /))]
    fn route<'py>(
        &self,
        py: Python<'py>,
        conversations: &Bound<'py, PyAny>,
        now_us: i64,
        first_row: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let batch = import_batch(conversations)?;
        let decisions = detached(py, || self.kernel.route(&batch, now_us, first_row)?.into_batch(dictionary))?;
        export_batch(py, decisions)
    }

    #[pyo3(signature = (conversations, first_row, /))]
    fn invalid_rows<'py>(
        &self,
        py: Python<'py>,
        conversations: &Bound<'py, PyAny>,
        first_row: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let batch = import_batch(conversations)?;
        let rejected = detached(py, || self.kernel.invalid_rows(&batch, first_row))?;
        export_batch(py, rejected)
    }

    #[pyo3(signature = (conversations, now_us, include_named, /))]
    fn route_packed<'py>(
        &self,
        py: Python<'py>,
        conversations: &Bound<'py, PyAny>,
        now_us: i64,
        include_named: bool,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let batch = import_batch(conversations)?;
        let packed = detached(py, || self.kernel.route_packed(&batch, now_us, include_named))?;
        packed.map(|packed| export_batch(py, packed)).transpose()
    }

    #[pyo3(signature = (now_us, /))]
    fn decision_table<'py>(&self, py: Python<'py>, now_us: i64) -> PyResult<Option<Bound<'py, PyAny>>> {
        let table = detached(py, || decision_table(self.kernel.index(), now_us))?;
        table.map(|table| export_batch(py, table)).transpose()
    }

    #[pyo3(signature = (to_service_name, to_broker_instance, database, is_initiator, conversation_id, now_us, /))]
    #[allow(clippy::too_many_arguments)]
    fn explain<'py>(
        &self,
        py: Python<'py>,
        to_service_name: &str,
        to_broker_instance: Option<[u8; 16]>,
        database: Option<&str>,
        is_initiator: bool,
        conversation_id: Option<[u8; 16]>,
        now_us: i64,
    ) -> PyResult<Bound<'py, PyDict>> {
        let index = self.kernel.index();
        let database =
            database.map(|name| self.kernel.database(name).map_err(|error| to_python(py, &error))).transpose()?;
        let query = Query {
            name: to_service_name.as_bytes(),
            broker: to_broker_instance.map(Guid),
            database,
            is_initiator,
            conversation: conversation_id.map(Guid),
        };
        let explanation = detached(py, || Ok(index.explain(&query, now_us)))?;
        ExplanationBuilder { py, index }.build(&query, now_us, &explanation)
    }

    #[getter]
    fn nbytes(&self) -> usize {
        self.kernel.index().nbytes()
    }
}
