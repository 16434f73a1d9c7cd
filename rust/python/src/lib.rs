//! Python bindings of ssbroker: Arrow data in and out, batches processed without the GIL, errors as
//! `ssbroker.exceptions`.
#![deny(unsafe_code)]

mod arrow;
mod catalog;
mod counts;
mod detach;
mod errors;
mod explanation;
mod memory;
mod metadata;
mod network;
mod reassembly;
mod router;
mod session;
mod shared_memory;
mod sqlite;
mod statements;
mod vectors;
mod write_lock;

use mimalloc::MiMalloc;

/// Reuses the memory of one result for the next. The system allocator would return it to the system and get it back
/// zeroed, which takes a third of the time of routing a large batch.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// See `_core.pyi`.
#[pyo3::pymodule(gil_used = false)]
mod _core {
    #[pymodule_init]
    #[allow(clippy::unnecessary_wraps)]
    fn init(_module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        super::memory::set_purge_delay();
        Ok(())
    }

    #[pymodule_export]
    use super::catalog::{PyCatalog, normalize_address, parse_guid};
    #[pymodule_export]
    use super::counts::{PyArrivals, PyCounts};
    #[pymodule_export]
    use super::metadata::PyMetadataSnapshot;
    #[pymodule_export]
    use super::network::{crc32c, decode_fragments, header_digests, incoming_runs};
    #[pymodule_export]
    use super::network::{first_hop, outgoing_rows, outgoing_runs, sender_runs};
    #[pymodule_export]
    use super::reassembly::PyReassembler;
    #[pymodule_export]
    use super::reassembly::PySessionKeys;
    #[pymodule_export]
    use super::reassembly::fragment;
    #[pymodule_export]
    use super::reassembly::md5;
    #[pymodule_export]
    use super::router::{PyRouter, is_misspelling, tie_break_hashes};
    #[pymodule_export]
    use super::session::{PySession, PySessionContext};
    #[pymodule_export]
    use super::shared_memory::PySharedMemory;
    #[pymodule_export]
    use super::sqlite::register_wal_vfs;
    #[pymodule_export]
    use super::statements::PyStatements;
    #[pymodule_export]
    use super::vectors::limit_vectors;
    #[pymodule_export]
    use super::write_lock::PyWriteLock;

    /// The maximum size of a body in bytes (error 8459).
    #[pymodule_export]
    const BODY_MAX: usize = ssbroker_store::BODY_MAX;

    /// "release" or "debug"; a debug build is ten times slower.
    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const build_profile: &str = if cfg!(debug_assertions) { "debug" } else { "release" };

    /// The version of this module.
    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
