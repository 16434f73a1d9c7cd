//! A SQLite virtual file system that writes each commit to the WAL in one piece. Uses `unsafe` because SQLite's
//! file interface is C.
//!
//! SQLite writes a commit page by page, and each page in two calls, one of 24 bytes and one of the page. This VFS
//! wraps another one. It buffers the frames of a transaction until the last one, which marks the commit, and then
//! writes them in one call; the sync that makes them durable follows as usual. The file receives the same bytes in
//! the same order. The delay cannot be observed: the buffer is written before the connection reads the WAL, syncs it,
//! writes to another position, or releases the write lock.
//!
//! A growing WAL costs two syncs per commit, because its length must become durable as well. Therefore the file is
//! extended in advance with zeros, which are not valid frames; later commits overwrite them.
//!
//! A commit may defer its sync to a later one. A sync covers the whole file, so it makes all earlier commits durable,
//! no matter which connection or process calls it. The files of a process count the commits that are not yet synced.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::{mem, ptr};

use rusqlite::Connection;
use rusqlite::ffi::{
    self, SQLITE_OK, SQLITE_OPEN_WAL, sqlite3_file, sqlite3_filename, sqlite3_int64, sqlite3_io_methods, sqlite3_vfs,
};

use crate::error::Result;

/// The prefix of the VFS name; the name of the wrapped VFS follows.
const NAME_PREFIX: &str = "ssbroker-";

/// Registers the VFS over another one. Returns its name, or `None` if the other one does not exist.
#[must_use]
pub fn register_wal_vfs(below: Option<&CStr>) -> Option<CString> {
    #[cfg(target_os = "linux")]
    crate::file_locks::replace_system_calls();
    // SAFETY: the SQLite API is initialized before anything is opened. What is registered is never freed.
    unsafe {
        let below = ffi::sqlite3_vfs_find(below.map_or(ptr::null(), CStr::as_ptr));
        let base = below.as_ref()?;
        let name = CString::new([NAME_PREFIX.as_bytes(), CStr::from_ptr(base.zName).to_bytes()].concat()).ok()?;
        let known = ffi::sqlite3_vfs_find(name.as_ptr());
        if known.as_ref().is_none_or(|known| !ptr::eq(known.pAppData, below.cast())) {
            if !known.is_null() {
                ffi::sqlite3_vfs_unregister(known); // it wrapped a VFS of the same name that has been unregistered
            }
            let leaked_name = CString::into_raw(name.clone());
            let made = sqlite3_vfs {
                iVersion: base.iVersion.min(2),
                szOsFile: c_int::try_from(FILE_BYTES).ok()? + base.szOsFile,
                mxPathname: base.mxPathname,
                pNext: ptr::null_mut(),
                zName: leaked_name,
                pAppData: below.cast(),
                xOpen: Some(open),
                xDelete: Some(delete),
                xAccess: Some(access),
                xFullPathname: Some(full_pathname),
                xDlOpen: base.xDlOpen.map(|_| dl_open as _),
                xDlError: base.xDlError.map(|_| dl_error as _),
                xDlSym: base.xDlSym.map(|_| dl_sym as _),
                xDlClose: base.xDlClose.map(|_| dl_close as _),
                xRandomness: Some(randomness),
                xSleep: Some(sleep),
                xCurrentTime: Some(current_time),
                xGetLastError: Some(last_error),
                xCurrentTimeInt64: if base.iVersion < 2 {
                    None // the structure may end before it
                } else {
                    base.xCurrentTimeInt64.map(|_| current_time_int64 as _)
                },
                ..mem::zeroed()
            };
            if ffi::sqlite3_vfs_register(Box::into_raw(Box::new(made)), 0) != SQLITE_OK {
                return None;
            }
        }
        Some(name)
    }
}

/// A function of a library loaded by SQLite.
type Symbol = Option<unsafe extern "C" fn(*mut sqlite3_vfs, *mut c_void, *const c_char)>;

/// Calls a method of the wrapped VFS.
macro_rules! call_below_vfs {
    ($vfs:expr, $method:ident($($argument:expr),*), $none:expr) => {{
        // SAFETY: `pAppData` is the wrapped VFS.
        unsafe {
            let vfs = (*$vfs).pAppData.cast::<sqlite3_vfs>();
            (*vfs).$method.map_or($none, |method| method(vfs $(, $argument)*))
        }
    }};
}

unsafe extern "C" fn open(
    vfs: *mut sqlite3_vfs,
    name: sqlite3_filename,
    file: *mut sqlite3_file,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    // SAFETY: SQLite passes `szOsFile` bytes of memory for this file.
    let below = unsafe { prepare(file) };
    let code = call_below_vfs!(vfs, xOpen(name, below, flags, out), ffi::SQLITE_CANTOPEN);
    #[cfg(target_os = "linux")]
    if code == SQLITE_OK && flags & ffi::SQLITE_OPEN_MAIN_DB != 0 && !name.is_null() {
        // SAFETY: SQLite passes the name of the file.
        crate::file_locks::add_database(unsafe { CStr::from_ptr(name) });
    }
    // SAFETY: the file has been prepared, and SQLite passes the name.
    unsafe { finish_open(file, name, flags, code == SQLITE_OK) };
    code
}

unsafe extern "C" fn delete(vfs: *mut sqlite3_vfs, name: *const c_char, is_synced: c_int) -> c_int {
    call_below_vfs!(vfs, xDelete(name, is_synced), ffi::SQLITE_IOERR_DELETE)
}

unsafe extern "C" fn access(vfs: *mut sqlite3_vfs, name: *const c_char, flags: c_int, out: *mut c_int) -> c_int {
    call_below_vfs!(vfs, xAccess(name, flags, out), ffi::SQLITE_IOERR_ACCESS)
}

unsafe extern "C" fn full_pathname(vfs: *mut sqlite3_vfs, name: *const c_char, size: c_int, out: *mut c_char) -> c_int {
    call_below_vfs!(vfs, xFullPathname(name, size, out), ffi::SQLITE_CANTOPEN)
}

unsafe extern "C" fn dl_open(vfs: *mut sqlite3_vfs, name: *const c_char) -> *mut c_void {
    call_below_vfs!(vfs, xDlOpen(name), ptr::null_mut())
}

unsafe extern "C" fn dl_error(vfs: *mut sqlite3_vfs, size: c_int, out: *mut c_char) {
    let () = call_below_vfs!(vfs, xDlError(size, out), ());
}

unsafe extern "C" fn dl_sym(vfs: *mut sqlite3_vfs, library: *mut c_void, name: *const c_char) -> Symbol {
    call_below_vfs!(vfs, xDlSym(library, name), None)
}

unsafe extern "C" fn dl_close(vfs: *mut sqlite3_vfs, library: *mut c_void) {
    let () = call_below_vfs!(vfs, xDlClose(library), ());
}

unsafe extern "C" fn randomness(vfs: *mut sqlite3_vfs, count: c_int, out: *mut c_char) -> c_int {
    call_below_vfs!(vfs, xRandomness(count, out), 0)
}

unsafe extern "C" fn sleep(vfs: *mut sqlite3_vfs, micros: c_int) -> c_int {
    call_below_vfs!(vfs, xSleep(micros), 0)
}

unsafe extern "C" fn current_time(vfs: *mut sqlite3_vfs, out: *mut f64) -> c_int {
    call_below_vfs!(vfs, xCurrentTime(out), ffi::SQLITE_ERROR)
}

unsafe extern "C" fn current_time_int64(vfs: *mut sqlite3_vfs, out: *mut sqlite3_int64) -> c_int {
    call_below_vfs!(vfs, xCurrentTimeInt64(out), ffi::SQLITE_ERROR)
}

unsafe extern "C" fn last_error(vfs: *mut sqlite3_vfs, size: c_int, out: *mut c_char) -> c_int {
    call_below_vfs!(vfs, xGetLastError(size, out), 0)
}

// Files of the VFS.

/// The size of a frame header. Its second number is not zero in the last frame of a commit.
const FRAME_HEADER: usize = 24;
/// The maximum size of one write in bytes: SQLite's own VFS writes at most 2^17 - 1 bytes at a time and reports the
/// rest as a full disk.
const WRITE_MAX: usize = 96 << 10;
/// The WAL is extended after a small commit by half of its length, within these limits.
const GROWTH_MIN: i64 = 256 << 10;
const GROWTH_MAX: i64 = 4 << 20;
/// Larger commits do not need it. One that puts a message into a new dialog changes eight to ten pages of 4 KiB.
const SMALL_COMMIT: usize = 64 << 10;
/// The index of the write lock among the locks of the WAL index.
const WRITE_LOCK: c_int = 0;

/// The size of this file structure, without the wrapped file.
pub(super) const FILE_BYTES: usize = size_of::<File>();

/// A file; the wrapped file follows in memory.
#[repr(C)]
struct File {
    base: sqlite3_file,
    /// The WAL of a database, or the database of a WAL. Null if the other is not open.
    other: *mut File,
    /// The buffer of a WAL.
    buffer: *mut WalBuffer,
}

/// The commits to a WAL by this process that deferred their sync.
#[derive(Clone, Copy, Debug, Default)]
struct Deferred {
    /// The number of these commits.
    commits: u64,
    /// The number of these commits that have been synced since.
    synced: u64,
    /// The bytes of the commits that have not been synced.
    from: i64,
    to: i64,
    /// Whether a sync has failed since: the system may have dropped the bytes, so they are written again.
    is_suspect: bool,
}

/// Shared by all connections of the process to a WAL.
type SharedDeferred = Arc<Mutex<Deferred>>;

static DEFERRED: Mutex<Option<HashMap<CString, Weak<Mutex<Deferred>>>>> = Mutex::new(None);

fn deferred_of(name: &CStr) -> SharedDeferred {
    let mut held = DEFERRED.lock().unwrap_or_else(PoisonError::into_inner);
    let known = held.get_or_insert_default();
    if let Some(found) = known.get(name).and_then(Weak::upgrade) {
        return found;
    }
    known.retain(|_, weak| weak.strong_count() > 0);
    let made = SharedDeferred::default();
    known.insert(name.to_owned(), Arc::downgrade(&made));
    made
}

/// The buffer of a WAL.
#[derive(Default)]
#[allow(clippy::struct_excessive_bools)] // they are independent of each other
struct WalBuffer {
    bytes: Vec<u8>,
    /// The file position after the buffered bytes, or after the last write of this transaction.
    next: Option<i64>,
    /// Whether the header of the last frame of a commit has been written but its page has not.
    is_last_frame: bool,
    /// The position up to which the file has been written.
    end: i64,
    /// Whether extending the file has failed; if so, it is not tried again.
    growth_failed: bool,
    /// The position of the first frame of this transaction.
    begin: i64,
    /// Whether this transaction's last frame has been written.
    is_complete: bool,
    /// Whether the sync that ends the commit of this transaction is deferred.
    defers_sync: bool,
    /// Whether the connection holds the write lock.
    is_writer: bool,
    deferred: SharedDeferred,
}

/// Returns the wrapped file.
///
/// # Safety
/// The file belongs to this VFS.
unsafe fn below(file: *mut sqlite3_file) -> *mut sqlite3_file {
    // SAFETY: `szOsFile` has space for it after `File`, whose size is a multiple of its alignment.
    unsafe { file.cast::<File>().add(1).cast() }
}

/// Calls a method of the wrapped file; `$none` if it has no such method.
macro_rules! call_below {
    ($file:expr, $method:ident($($argument:expr),*), $none:expr) => {{
        // SAFETY: the wrapped file is open, so its methods exist and may be called with it.
        unsafe {
            let file = below($file);
            (*(*file).pMethods).$method.map_or($none, |method| method(file $(, $argument)*))
        }
    }};
}

/// Initializes a closed file in memory of `FILE_BYTES` and the size of the wrapped file, and returns the wrapped
/// file.
///
/// # Safety
/// The memory has space for both and is not used otherwise.
pub(super) unsafe fn prepare(file: *mut sqlite3_file) -> *mut sqlite3_file {
    let closed = sqlite3_file { pMethods: ptr::null() };
    // SAFETY: guaranteed by the caller.
    unsafe {
        let own = File { base: closed, other: ptr::null_mut(), buffer: ptr::null_mut() };
        file.cast::<File>().write(own);
        below(file).write(closed);
        below(file)
    }
}

/// Sets the methods after the wrapped file was opened: SQLite closes every file that has methods, even if opening
/// failed.
///
/// # Safety
/// `prepare` has initialized the file, and `name` is the name that SQLite passed to xOpen.
pub(super) unsafe fn finish_open(file: *mut sqlite3_file, name: sqlite3_filename, flags: c_int, has_opened: bool) {
    // SAFETY: `prepare` has initialized both files.
    unsafe {
        let own = file.cast::<File>();
        let Some(methods) = (*below(file)).pMethods.as_ref() else { return };
        let is_shared = methods.iVersion >= 2 && methods.xShmMap.is_some();
        (*own).base.pMethods = if is_shared { &raw const METHODS_V2 } else { &raw const METHODS_V1 };
        if has_opened && flags & SQLITE_OPEN_WAL != 0 {
            start_buffering(own, name);
        }
    }
}

/// Starts buffering for a WAL if its database belongs to this VFS too.
///
/// # Safety
/// See `finish_open`.
unsafe fn start_buffering(own: *mut File, name: sqlite3_filename) {
    // SAFETY: SQLite keeps the database file in place while its WAL is open, and finds it by the name of the WAL.
    unsafe {
        let database = ffi::sqlite3_database_file_object(name);
        let is_ours = database.as_ref().is_some_and(|database| ptr::eq(database.pMethods, &raw const METHODS_V2));
        // Without this guarantee SQLite syncs between the frames that fill up a sector, and readers must be able to
        // find the last frame.
        if !is_ours || device_characteristics(database) & ffi::SQLITE_IOCAP_POWERSAFE_OVERWRITE == 0 {
            return;
        }
        let mut buffer = Box::new(WalBuffer { deferred: deferred_of(CStr::from_ptr(name)), ..WalBuffer::default() });
        if size_below(own.cast(), &raw mut buffer.end) == SQLITE_OK {
            (*own).other = database.cast();
            (*database.cast::<File>()).other = own;
            (*own).buffer = Box::into_raw(buffer);
        }
    }
}

/// Returns the buffer of a WAL; `None` for other files.
///
/// # Safety
/// The file belongs to this VFS and is used by one thread at a time; there is one reference at a time.
unsafe fn buffer_of<'f>(file: *mut sqlite3_file) -> Option<&'f mut WalBuffer> {
    // SAFETY: the file belongs to this VFS; SQLite uses it in one thread at a time.
    unsafe { (*file.cast::<File>()).buffer.as_mut() }
}

/// Writes the buffer if the file is a WAL.
///
/// # Safety
/// See `buffer_of`.
unsafe fn flush(file: *mut sqlite3_file) -> c_int {
    // SAFETY: see `buffer_of`.
    unsafe { buffer_of(file).map_or(SQLITE_OK, |buffer| flush_buffer(file, buffer)) }
}

/// Writes the buffered bytes. If that fails, they remain in the buffer: SQLite may undo only the current statement, and
/// commit the frames of earlier ones.
fn flush_buffer(file: *mut sqlite3_file, buffer: &mut WalBuffer) -> c_int {
    let Some(next) = buffer.next.filter(|_| !buffer.bytes.is_empty()) else { return SQLITE_OK };
    if next > buffer.end && buffer.bytes.len() <= SMALL_COMMIT && !buffer.growth_failed {
        extend_file(file, buffer, next);
    }
    let code = write_at(file, &buffer.bytes, next - length(&buffer.bytes));
    if code == SQLITE_OK {
        buffer.end = buffer.end.max(next);
        buffer.bytes.clear();
    }
    code
}

/// Extends the file. A failure is harmless: the following write reports it if it matters.
fn extend_file(file: *mut sqlite3_file, buffer: &mut WalBuffer, from: i64) {
    static ZEROS: [u8; 32 << 10] = [0; 32 << 10];
    let to = from + (from / 2).clamp(GROWTH_MIN, GROWTH_MAX) / GROWTH_MIN * GROWTH_MIN;
    let mut at = from;
    while at < to {
        let some = &ZEROS[..usize::try_from(to - at).unwrap_or(ZEROS.len()).min(ZEROS.len())];
        if write_at(file, some, at) != SQLITE_OK {
            buffer.growth_failed = true;
            return;
        }
        at += length(some);
    }
    buffer.end = to;
}

fn write_at(file: *mut sqlite3_file, bytes: &[u8], at: i64) -> c_int {
    // The buffer has at most `WRITE_MAX` bytes or is one page.
    write_below(file, bytes.as_ptr().cast(), bytes.len() as c_int, at)
}

fn write_below(file: *mut sqlite3_file, from: *const c_void, count: c_int, at: i64) -> c_int {
    call_below!(file, xWrite(from, count, at), ffi::SQLITE_IOERR_WRITE)
}

fn size_below(file: *mut sqlite3_file, size: *mut i64) -> c_int {
    call_below!(file, xFileSize(size), ffi::SQLITE_IOERR_FSTAT)
}

fn length(bytes: &[u8]) -> i64 {
    bytes.len() as i64
}

/// Writes the rest of the buffer when a transaction ends, i.e. was rolled back; the next transaction may start at
/// another position.
///
/// If this fails, nothing is lost: a commit has been written before, or its error has been reported.
///
/// # Safety
/// See `buffer_of`, for the database and its WAL.
unsafe fn end_transaction(database: *mut sqlite3_file) {
    // SAFETY: both files belong to this VFS; SQLite uses a connection in one thread at a time.
    unsafe {
        let wal = (*database.cast::<File>()).other.cast();
        if let Some(buffer) = ptr::NonNull::new(wal).and_then(|wal| buffer_of(wal.as_ptr())) {
            flush_buffer(wal, buffer);
            buffer.bytes.clear();
            buffer.next = None;
            buffer.is_last_frame = false;
            buffer.is_complete = false;
            buffer.is_writer = false;
        }
    }
}

unsafe extern "C" fn close(file: *mut sqlite3_file) -> c_int {
    // SAFETY: see `buffer_of`; the file is not used after this.
    unsafe {
        let own = &mut *file.cast::<File>();
        if !own.other.is_null() {
            (*own.other).other = ptr::null_mut();
            own.other = ptr::null_mut();
        }
        if !own.buffer.is_null() {
            drop(Box::from_raw(mem::replace(&mut own.buffer, ptr::null_mut())));
        }
    }
    call_below!(file, xClose(), SQLITE_OK)
}

unsafe extern "C" fn read(file: *mut sqlite3_file, into: *mut c_void, count: c_int, at: sqlite3_int64) -> c_int {
    // SAFETY: the file comes from SQLite.
    let code = unsafe { flush(file) };
    if code == SQLITE_OK { call_below!(file, xRead(into, count, at), ffi::SQLITE_IOERR_READ) } else { code }
}

unsafe extern "C" fn write(file: *mut sqlite3_file, from: *const c_void, count: c_int, at: sqlite3_int64) -> c_int {
    // SAFETY: SQLite passes `count` bytes.
    unsafe {
        let Some(buffer) = buffer_of(file) else { return write_below(file, from, count, at) };
        let bytes = std::slice::from_raw_parts(from.cast::<u8>(), usize::try_from(count).unwrap_or(0));
        let is_next = buffer.next.is_none_or(|next| next == at);
        if !is_next || buffer.bytes.len() + bytes.len() > WRITE_MAX {
            let code = flush_buffer(file, buffer);
            if code != SQLITE_OK {
                return code;
            }
        }
        if !is_next {
            return write_below(file, from, count, at); // overwrites a frame of this transaction
        }
        if buffer.next.is_none() {
            buffer.begin = at;
        }
        buffer.next = Some(at + length(bytes));
        buffer.bytes.extend_from_slice(bytes);
        let is_header = bytes.len() == FRAME_HEADER;
        let is_whole = mem::replace(&mut buffer.is_last_frame, is_header && bytes[4..8] != [0; 4]);
        buffer.is_complete = is_whole;
        if is_whole { flush_buffer(file, buffer) } else { SQLITE_OK }
    }
}

unsafe extern "C" fn truncate(file: *mut sqlite3_file, size: sqlite3_int64) -> c_int {
    // SAFETY: the file comes from SQLite.
    let code = unsafe { flush(file) };
    if code != SQLITE_OK {
        return code;
    }
    // SAFETY: as above.
    if let Some(buffer) = unsafe { buffer_of(file) } {
        buffer.end = size;
    }
    call_below!(file, xTruncate(size), ffi::SQLITE_IOERR_TRUNCATE)
}

unsafe extern "C" fn sync(file: *mut sqlite3_file, flags: c_int) -> c_int {
    // SAFETY: the file comes from SQLite.
    let code = unsafe { flush(file) };
    if code != SQLITE_OK {
        return code;
    }
    // SAFETY: as above.
    match unsafe { buffer_of(file) } {
        Some(buffer) => sync_wal(file, buffer, flags),
        None => sync_below(file, flags),
    }
}

fn sync_below(file: *mut sqlite3_file, flags: c_int) -> c_int {
    call_below!(file, xSync(flags), ffi::SQLITE_IOERR_FSYNC)
}

/// Syncs a WAL, unless this sync ends a commit that defers it. The sync of a new header is never deferred.
fn sync_wal(file: *mut sqlite3_file, buffer: &mut WalBuffer, flags: c_int) -> c_int {
    let held = || buffer.deferred.lock().unwrap_or_else(PoisonError::into_inner);
    if buffer.is_complete && mem::take(&mut buffer.defers_sync) {
        let mut deferred = held();
        // A checkpoint syncs the WAL before it is restarted, so frames of the previous WAL need not be written again.
        let is_restarted = buffer.begin < deferred.from;
        if deferred.commits == deferred.synced || is_restarted {
            deferred.from = buffer.begin;
        }
        deferred.to = buffer.next.unwrap_or(deferred.from);
        deferred.commits += 1;
        return SQLITE_OK;
    }
    let before = *held();
    let has_unsynced_commits = before.commits > before.synced;
    let mut code = SQLITE_OK;
    if has_unsynced_commits && before.is_suspect {
        // A checkpoint does not hold the write lock; it fails, and the next transaction writes the frames again.
        code = if buffer.is_writer { write_again(file, before.from, before.to) } else { ffi::SQLITE_IOERR_FSYNC };
    }
    if code == SQLITE_OK {
        code = sync_below(file, flags);
    }
    let mut deferred = held();
    if code == SQLITE_OK {
        if before.commits > deferred.synced {
            deferred.synced = before.commits;
            deferred.from = before.to;
        }
        deferred.is_suspect &= deferred.commits > deferred.synced && !before.is_suspect;
    } else {
        deferred.is_suspect |= has_unsynced_commits;
    }
    code
}

/// Writes bytes that are already in the file again. Requires the write lock: another process may have restarted the WAL
/// and may be writing other frames here.
fn write_again(file: *mut sqlite3_file, from: i64, to: i64) -> c_int {
    let mut bytes = vec![0; WRITE_MAX];
    let mut at = from;
    while at < to {
        let count = usize::try_from(to - at).unwrap_or(WRITE_MAX).min(WRITE_MAX);
        let some = &mut bytes[..count];
        let into = some.as_mut_ptr().cast();
        let mut code = call_below!(file, xRead(into, count as c_int, at), ffi::SQLITE_IOERR_READ);
        if code == SQLITE_OK {
            code = write_at(file, some, at);
        }
        if code != SQLITE_OK {
            return code;
        }
        at += length(some);
    }
    SQLITE_OK
}

/// Returns the WAL of a connection's main database; null unless both belong to this VFS and are open.
///
/// # Safety
/// The connection is open.
unsafe fn wal_file_of(database: *mut ffi::sqlite3) -> *mut sqlite3_file {
    let mut file: *mut sqlite3_file = ptr::null_mut();
    // SAFETY: SQLite writes the pointer of the file, which stays open as long as the connection.
    unsafe {
        let into = (&raw mut file).cast();
        let code = ffi::sqlite3_file_control(database, c"main".as_ptr(), ffi::SQLITE_FCNTL_FILE_POINTER, into);
        let is_ours =
            code == SQLITE_OK && file.as_ref().is_some_and(|file| ptr::eq(file.pMethods, &raw const METHODS_V2));
        if is_ours { (*file.cast::<File>()).other.cast() } else { ptr::null_mut() }
    }
}

/// Sets whether the next commit of a connection defers its sync. If the wrapped VFS cannot share
/// files, it is always synced.
pub(crate) fn defer_sync(connection: &Connection, is_deferred: bool) {
    // SAFETY: the connection is open, and only this thread has it.
    unsafe {
        let wal = wal_file_of(connection.handle());
        if let Some(buffer) = ptr::NonNull::new(wal).and_then(|wal| buffer_of(wal.as_ptr())) {
            buffer.defers_sync = is_deferred;
        }
    }
}

/// Syncs the commits of this process that deferred it; does nothing if there are none. The
/// connection must have read something, because that opens the WAL.
///
/// # Errors
/// The file cannot be synced.
pub(crate) fn sync_deferred_commits(connection: &Connection) -> Result<()> {
    // SAFETY: the connection is open, and only this thread has it.
    let (file, deferred) = unsafe {
        let file = wal_file_of(connection.handle());
        let Some(buffer) = ptr::NonNull::new(file).and_then(|file| buffer_of(file.as_ptr())) else { return Ok(()) };
        (file, *buffer.deferred.lock().unwrap_or_else(PoisonError::into_inner))
    };
    if deferred.commits == deferred.synced {
        return Ok(());
    }
    if deferred.is_suspect {
        connection.execute_batch("BEGIN IMMEDIATE")?;
    }
    // SAFETY: as above.
    let code = unsafe { sync(file, ffi::SQLITE_SYNC_NORMAL) };
    if deferred.is_suspect {
        connection.execute_batch("ROLLBACK")?;
    }
    if code == SQLITE_OK {
        return Ok(());
    }
    Err(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None).into())
}

unsafe extern "C" fn file_size(file: *mut sqlite3_file, size: *mut sqlite3_int64) -> c_int {
    // SAFETY: the file comes from SQLite.
    let code = unsafe { flush(file) };
    if code == SQLITE_OK { size_below(file, size) } else { code }
}

unsafe extern "C" fn lock(file: *mut sqlite3_file, level: c_int) -> c_int {
    call_below!(file, xLock(level), SQLITE_OK)
}

unsafe extern "C" fn unlock(file: *mut sqlite3_file, level: c_int) -> c_int {
    call_below!(file, xUnlock(level), SQLITE_OK)
}

unsafe extern "C" fn check_reserved_lock(file: *mut sqlite3_file, out: *mut c_int) -> c_int {
    call_below!(file, xCheckReservedLock(out), SQLITE_OK)
}

unsafe extern "C" fn file_control(file: *mut sqlite3_file, operation: c_int, argument: *mut c_void) -> c_int {
    call_below!(file, xFileControl(operation, argument), ffi::SQLITE_NOTFOUND)
}

unsafe extern "C" fn sector_size(file: *mut sqlite3_file) -> c_int {
    call_below!(file, xSectorSize(), 4096)
}

unsafe extern "C" fn device_characteristics(file: *mut sqlite3_file) -> c_int {
    call_below!(file, xDeviceCharacteristics(), 0)
}

unsafe extern "C" fn shm_map(
    file: *mut sqlite3_file,
    region: c_int,
    size: c_int,
    extend: c_int,
    out: *mut *mut c_void,
) -> c_int {
    let map = || call_below!(file, xShmMap(region, size, extend, out), ffi::SQLITE_IOERR_SHMMAP);
    #[cfg(target_os = "linux")]
    return crate::file_locks::mapping_index(map);
    #[cfg(not(target_os = "linux"))]
    map()
}

unsafe extern "C" fn shm_lock(file: *mut sqlite3_file, offset: c_int, count: c_int, flags: c_int) -> c_int {
    if offset == WRITE_LOCK && flags & ffi::SQLITE_SHM_UNLOCK != 0 {
        // SAFETY: the file is a database of this VFS.
        unsafe { end_transaction(file) };
    }
    let code = call_below!(file, xShmLock(offset, count, flags), ffi::SQLITE_IOERR_SHMLOCK);
    if offset == WRITE_LOCK && flags & ffi::SQLITE_SHM_LOCK != 0 && code == SQLITE_OK {
        // SAFETY: as above, and see `buffer_of`.
        unsafe {
            let wal = (*file.cast::<File>()).other.cast();
            if let Some(buffer) = ptr::NonNull::new(wal).and_then(|wal| buffer_of(wal.as_ptr())) {
                buffer.is_writer = true;
            }
        }
    }
    code
}

unsafe extern "C" fn shm_barrier(file: *mut sqlite3_file) {
    let () = call_below!(file, xShmBarrier(), ());
}

unsafe extern "C" fn shm_unmap(file: *mut sqlite3_file, delete: c_int) -> c_int {
    call_below!(file, xShmUnmap(delete), SQLITE_OK)
}

static METHODS_V1: sqlite3_io_methods = sqlite3_io_methods {
    iVersion: 1,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: None,
    xShmLock: None,
    xShmBarrier: None,
    xShmUnmap: None,
    xFetch: None,
    xUnfetch: None,
};

/// With the WAL index, which processes share. Files are not memory-mapped.
static METHODS_V2: sqlite3_io_methods = sqlite3_io_methods {
    iVersion: 2,
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    ..METHODS_V1
};
