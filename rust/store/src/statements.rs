//! A transaction's begin and end, and the statements between them.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rusqlite::Connection;

use crate::connection::Lent;
use crate::error::{Error, Result};

/// More than there are statements here, so that each is prepared once.
const STATEMENTS: usize = 32;
/// Who begins looks for the file so often at most.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The current moment, in microseconds since 1970; `None` where the system tells one before that.
#[must_use]
pub fn now() -> Option<i64> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    i64::try_from(since.as_micros()).ok()
}

/// What became of the wish to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// The transaction is begun, and the file locked.
    Begun,
    /// Another process has the lock, or had it a moment ago.
    Busy,
    /// Another file stands in the place of the one that was opened, or none.
    OutOfPlace,
}

/// The prepared statements of one connection, and its transaction.
#[derive(Debug)]
pub struct Statements {
    pub(crate) db: Connection,
    place: Place,
}

impl Statements {
    /// Statements on a connection to the file at a path.
    #[must_use]
    pub fn new(connection: Lent, path: &Path) -> Self {
        connection.0.set_prepared_statement_cache_capacity(STATEMENTS);
        Self { db: connection.0, place: Place::of(path) }
    }

    /// Begins a transaction, with the lock on writing, without waiting for anybody.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn begin(&self) -> Result<Begun> {
        if !self.place.was_as_opened_just_now() && !self.place.is_as_opened() {
            return Ok(Begun::OutOfPlace);
        }
        self.db.busy_timeout(Duration::ZERO)?; // whoever had the connection before may have set another
        let begun = self.db.prepare_cached("BEGIN IMMEDIATE").and_then(|mut statement| statement.execute([]));
        match begun {
            Ok(_) => Ok(Begun::Begun),
            Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy) => Ok(Begun::Busy),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes what was done durable and visible.
    ///
    /// # Returns
    /// Whether the file still stands where it was opened: elsewhere, nobody finds what was committed.
    ///
    /// # Errors
    /// It could not be, or the transaction is not there any more.
    pub fn commit(&self) -> Result<bool> {
        self.check()?;
        self.db.prepare_cached("COMMIT")?.execute([])?;
        Ok(self.place.is_as_opened())
    }

    /// Undoes what was done.
    ///
    /// # Errors
    /// SQLite refuses; there may be nothing to undo any more.
    pub fn undo(&self) -> Result<()> {
        if self.is_begun() {
            self.db.prepare_cached("ROLLBACK")?.execute([])?;
        }
        Ok(())
    }

    /// The version of what stands in the database (`Picture`), as this transaction sees it.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn catalog_version(&self) -> Result<i64> {
        let mut statement = self.db.prepare_cached("SELECT catalog_version FROM ssb_database")?;
        Ok(statement.query_row([], |row| row.get(0))?)
    }

    /// Has a queue count anew how often in a row those who received from it were rolled back (B24); writes nothing where nothing was counted.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn forget_rollbacks(&self, queue_id: i64) -> Result<()> {
        let mut counted = self.db.prepare_cached("SELECT 1 FROM ssb_queues WHERE queue_id = ?1 AND rollbacks > 0")?;
        if counted.exists([queue_id])? {
            self.check()?;
            self.db.prepare_cached("UPDATE ssb_queues SET rollbacks = 0 WHERE queue_id = ?1")?.execute([queue_id])?;
        }
        Ok(())
    }

    /// How many rows were changed on this connection so far.
    #[must_use]
    pub fn total_changes(&self) -> u64 {
        self.db.total_changes()
    }

    /// Whether a transaction is begun.
    #[must_use]
    pub fn is_begun(&self) -> bool {
        !self.db.is_autocommit()
    }

    /// Refuses where the transaction was undone: each statement would be committed by itself.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_begun() { Ok(()) } else { Err(Error::Undone) }
    }
}

/// Where the file stands, and which one was opened there.
#[derive(Debug)]
struct Place {
    path: PathBuf,
    identity: Option<(u64, u64)>,
    /// When it was found to be so.
    looked: Cell<Option<Instant>>,
}

impl Place {
    fn of(path: &Path) -> Self {
        Self { path: path.to_path_buf(), identity: identity(path).ok(), looked: Cell::new(None) }
    }

    /// Whether the file that was opened stands there still; who may not look does not know, and is told by Python what it means.
    fn is_as_opened(&self) -> bool {
        let is = self.identity.is_none_or(|opened| identity(&self.path).is_ok_and(|found| found == opened));
        self.looked.set(is.then(Instant::now));
        is
    }

    /// Whether it was a moment ago; every commit looks anew.
    fn was_as_opened_just_now(&self) -> bool {
        self.looked.get().is_some_and(|at| at.elapsed() < LOOK_EVERY)
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
