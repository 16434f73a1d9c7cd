//! Prepared statements of a connection, and its transactions.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::connection::BorrowedConnection;
use crate::error::{Error, Result};
use crate::wal_vfs::{defer_sync, sync_deferred_commits};

/// The interval at which BEGIN checks that the file still exists.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Returns the current time in microseconds since 1970; `None` if the system clock is before that.
#[must_use]
pub fn now() -> Option<i64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    i64::try_from(since.as_micros()).ok()
}

/// The result of BEGIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BeginResult {
    /// The transaction has started and holds the write lock.
    Started,
    /// Another process holds the write lock.
    Busy,
    /// The path no longer leads to the opened file.
    FileReplaced,
}

/// The prepared statements of a connection.
#[derive(Debug)]
pub struct Statements {
    pub(crate) db: BorrowedConnection,
    file: FileIdentity,
}

impl Statements {
    /// Creates the statements for a connection to the file at `path`.
    #[must_use]
    pub fn new(connection: BorrowedConnection, path: &Path) -> Self {
        Self { db: connection, file: FileIdentity::of(path) }
    }

    /// Starts a write transaction without waiting for the lock.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn begin(&self) -> Result<BeginResult> {
        if !self.file.was_checked_recently() && !self.file.is_unchanged() {
            return Ok(BeginResult::FileReplaced);
        }
        self.db.busy_timeout(Duration::ZERO)?; // another user of the connection may have set a timeout
        let result = self.db.prepare_cached("BEGIN IMMEDIATE").and_then(|mut statement| statement.execute([]));
        match result {
            Ok(_) => Ok(BeginResult::Started),
            Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy) => Ok(BeginResult::Busy),
            Err(error) => Err(error.into()),
        }
    }

    /// Commits. A commit that is not durable defers its sync to a later commit or to `sync`: until then, it survives
    /// the end of the process but not a power failure, after which the file is as it was before the commit. Returns
    /// whether the path still leads to the opened file; otherwise the changes are lost with the old file.
    ///
    /// # Errors
    /// The commit failed, or there is no transaction.
    pub fn commit(&self, is_durable: bool) -> Result<bool> {
        self.ensure_transaction()?;
        if !is_durable {
            defer_sync(&self.db, true);
        }
        let committed = self.db.prepare_cached("COMMIT").and_then(|mut statement| statement.execute([]));
        if !is_durable {
            defer_sync(&self.db, false);
        }
        committed?;
        Ok(self.file.is_unchanged())
    }

    /// Makes all commits of this process durable, on any connection.
    ///
    /// # Errors
    /// The file cannot be synced.
    pub fn sync(&self) -> Result<()> {
        self.db.prepare_cached("SELECT 1 FROM sqlite_schema LIMIT 1")?.exists([])?; // opens the log
        sync_deferred_commits(&self.db)
    }

    /// Rolls back.
    ///
    /// # Errors
    /// SQLite refuses; there may be nothing to roll back.
    pub fn roll_back(&self) -> Result<()> {
        if self.in_transaction() {
            self.db.prepare_cached("ROLLBACK")?.execute([])?;
        }
        Ok(())
    }

    /// Returns the version of the database's metadata as this transaction sees it.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn catalog_version(&self) -> Result<i64> {
        let mut statement = self.db.prepare_cached("SELECT catalog_version FROM ssb_database")?;
        Ok(statement.query_row([], |row| row.get(0))?)
    }

    /// Resets the number of consecutive rollbacks of a queue; writes nothing if it is 0.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn reset_rollback_count(&self, queue_id: i64) -> Result<()> {
        let mut counted = self.db.prepare_cached("SELECT 1 FROM ssb_queues WHERE queue_id = ?1 AND rollbacks > 0")?;
        if counted.exists([queue_id])? {
            self.ensure_transaction()?;
            self.db.prepare_cached("UPDATE ssb_queues SET rollbacks = 0 WHERE queue_id = ?1")?.execute([queue_id])?;
        }
        Ok(())
    }

    /// Returns the number of rows changed on this connection.
    #[must_use]
    pub fn total_changes(&self) -> u64 {
        self.db.total_changes()
    }

    /// Whether a transaction is in progress.
    #[must_use]
    pub fn in_transaction(&self) -> bool {
        !self.db.is_autocommit()
    }

    /// Fails if SQLite has rolled the transaction back: each further statement would be committed on its own.
    pub(crate) fn ensure_transaction(&self) -> Result<()> {
        if self.in_transaction() { Ok(()) } else { Err(Error::RolledBack) }
    }
}

/// The path and identity of the opened file.
#[derive(Debug)]
struct FileIdentity {
    path: PathBuf,
    identity: Option<(u64, u64)>,
    /// When the file was last found unchanged.
    checked_at: Cell<Option<Instant>>,
}

impl FileIdentity {
    fn of(path: &Path) -> Self {
        Self { path: path.to_path_buf(), identity: identity(path).ok(), checked_at: Cell::new(None) }
    }

    /// Whether the path still leads to the opened file. If it cannot be checked, the caller's next operation
    /// reports the error.
    fn is_unchanged(&self) -> bool {
        let is_unchanged = self.identity.is_none_or(|opened| identity(&self.path).is_ok_and(|found| found == opened));
        self.checked_at.set(is_unchanged.then(Instant::now));
        is_unchanged
    }

    /// Whether this was checked recently. Every commit checks again.
    fn was_checked_recently(&self) -> bool {
        self.checked_at.get().is_some_and(|at| at.elapsed() < CHECK_INTERVAL)
    }
}

#[cfg(unix)]
fn identity(path: &Path) -> std::io::Result<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).map(|found| (found.dev(), found.ino()))
}

#[cfg(not(unix))]
fn identity(_path: &Path) -> std::io::Result<(u64, u64)> {
    Err(std::io::ErrorKind::Unsupported.into())
}
