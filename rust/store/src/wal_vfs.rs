//! What a commit writes to the log, in one piece. One of the few places with `unsafe`: SQLite asks for its files by C structures.
//!
//! SQLite writes a commit to its log page by page, and each page in two calls, of 24 bytes and of the page. This is a virtual file system
//! over another one, in which the frames of a transaction are kept until the last of them has come, which says that it commits, and are then
//! written at once; the sync that makes them durable follows as ever. The file gets the bytes that SQLite writes, in its order. Later than
//! SQLite meant they are seen by nobody: what is kept is written before the connection reads the log, syncs it, writes anywhere else in it,
//! or lets go of the right to write.
//!
//! A log that grows costs two syncs at each commit, for its length has to be durable too. So it grows ahead, by zeros, which no frame begins
//! with; later commits are written over them.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::{mem, ptr};

use rusqlite::ffi::{
    self, SQLITE_OK, SQLITE_OPEN_WAL, sqlite3_file, sqlite3_filename, sqlite3_int64, sqlite3_io_methods, sqlite3_vfs,
};

/// What is before the name of the system below in the name of one that gathers.
const NAME: &str = "ssbroker-";

/// Registers a system that gathers what is written to logs, over another one.
///
/// # Returns
/// Its name; `None` where there is none to stand on.
#[must_use]
pub fn gathering(below: Option<&CStr>) -> Option<CString> {
    // SAFETY: SQLite is known before anything is opened. What is registered lives for as long as the process.
    unsafe {
        let below = ffi::sqlite3_vfs_find(below.map_or(ptr::null(), CStr::as_ptr));
        let base = below.as_ref()?;
        let name = CString::new([NAME.as_bytes(), CStr::from_ptr(base.zName).to_bytes()].concat()).ok()?;
        let known = ffi::sqlite3_vfs_find(name.as_ptr());
        if known.as_ref().is_none_or(|known| !ptr::eq(known.pAppData, below.cast())) {
            if !known.is_null() {
                ffi::sqlite3_vfs_unregister(known); // it stood on one of the same name that is not registered any more
            }
            let kept = CString::into_raw(name.clone());
            let made = sqlite3_vfs {
                iVersion: base.iVersion.min(2),
                szOsFile: c_int::try_from(OWN_BYTES).ok()? + base.szOsFile,
                mxPathname: base.mxPathname,
                pNext: ptr::null_mut(),
                zName: kept,
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
                xCurrentTimeInt64: base.xCurrentTimeInt64.map(|_| current_time_int64 as _),
                ..mem::zeroed()
            };
            if ffi::sqlite3_vfs_register(Box::into_raw(Box::new(made)), 0) != SQLITE_OK {
                return None;
            }
        }
        Some(name)
    }
}

/// A function of a library that SQLite loads.
type Symbol = Option<unsafe extern "C" fn(*mut sqlite3_vfs, *mut c_void, *const c_char)>;

/// Calls a method of the system below.
macro_rules! ask {
    ($vfs:expr, $method:ident($($argument:expr),*), $none:expr) => {{
        // SAFETY: `pAppData` is the system that this one was made over.
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
    // SAFETY: SQLite gives room of `szOsFile` bytes, which nothing else uses.
    let below = unsafe { begin(file) };
    let code = ask!(vfs, xOpen(name, below, flags, out), ffi::SQLITE_CANTOPEN);
    // SAFETY: it was begun, and the name is SQLite's.
    unsafe { opened(file, name, flags, code == SQLITE_OK) };
    code
}

unsafe extern "C" fn delete(vfs: *mut sqlite3_vfs, name: *const c_char, is_synced: c_int) -> c_int {
    ask!(vfs, xDelete(name, is_synced), ffi::SQLITE_IOERR_DELETE)
}

unsafe extern "C" fn access(vfs: *mut sqlite3_vfs, name: *const c_char, flags: c_int, out: *mut c_int) -> c_int {
    ask!(vfs, xAccess(name, flags, out), ffi::SQLITE_IOERR_ACCESS)
}

unsafe extern "C" fn full_pathname(vfs: *mut sqlite3_vfs, name: *const c_char, size: c_int, out: *mut c_char) -> c_int {
    ask!(vfs, xFullPathname(name, size, out), ffi::SQLITE_CANTOPEN)
}

unsafe extern "C" fn dl_open(vfs: *mut sqlite3_vfs, name: *const c_char) -> *mut c_void {
    ask!(vfs, xDlOpen(name), ptr::null_mut())
}

unsafe extern "C" fn dl_error(vfs: *mut sqlite3_vfs, size: c_int, out: *mut c_char) {
    let () = ask!(vfs, xDlError(size, out), ());
}

unsafe extern "C" fn dl_sym(vfs: *mut sqlite3_vfs, library: *mut c_void, name: *const c_char) -> Symbol {
    ask!(vfs, xDlSym(library, name), None)
}

unsafe extern "C" fn dl_close(vfs: *mut sqlite3_vfs, library: *mut c_void) {
    let () = ask!(vfs, xDlClose(library), ());
}

unsafe extern "C" fn randomness(vfs: *mut sqlite3_vfs, count: c_int, out: *mut c_char) -> c_int {
    ask!(vfs, xRandomness(count, out), 0)
}

unsafe extern "C" fn sleep(vfs: *mut sqlite3_vfs, micros: c_int) -> c_int {
    ask!(vfs, xSleep(micros), 0)
}

unsafe extern "C" fn current_time(vfs: *mut sqlite3_vfs, out: *mut f64) -> c_int {
    ask!(vfs, xCurrentTime(out), ffi::SQLITE_ERROR)
}

unsafe extern "C" fn current_time_int64(vfs: *mut sqlite3_vfs, out: *mut sqlite3_int64) -> c_int {
    ask!(vfs, xCurrentTimeInt64(out), ffi::SQLITE_ERROR)
}

unsafe extern "C" fn last_error(vfs: *mut sqlite3_vfs, size: c_int, out: *mut c_char) -> c_int {
    ask!(vfs, xGetLastError(size, out), 0)
}

// A file of the system that gathers. One of the few places with `unsafe`: SQLite asks for its files by C structures.

/// The header of a frame; its second number is not zero in the last frame of a commit.
const FRAME_HEADER: usize = 24;
/// No write may be longer: SQLite's own system takes 2^17 - 1 bytes at a time, and counts what is beyond as a full disk.
const WRITE_MAX: usize = 96 << 10;
/// By how much a log grows ahead, where a commit is small.
const AHEAD: i64 = 256 << 10;
/// Longer commits are not worth it.
const SMALL: usize = 32 << 10;
/// The lock of who writes, among those of the log's index.
const WRITE_LOCK: c_int = 0;

/// How much room a file takes beside the one below.
pub(super) const OWN_BYTES: usize = size_of::<File>();

/// A file as SQLite has it; what it is below follows in memory.
#[repr(C)]
struct File {
    base: sqlite3_file,
    /// Of a database: its log; of a log: its database. Null where the other one is not open.
    other: *mut File,
    /// What is gathered, of a log.
    log: *mut Log,
}

/// What is gathered of a log.
#[derive(Default)]
struct Log {
    bytes: Vec<u8>,
    /// Where they end in the file, or where what was last written of this transaction ends; the next frame goes there.
    next: Option<i64>,
    /// Whether the header of the last frame of a commit has come, and its page has not.
    is_last: bool,
    /// Up to where the file was written.
    end: i64,
    /// Whether the file does not grow ahead any more, since that has failed.
    is_bounded: bool,
}

/// The file below.
///
/// # Safety
/// The file is one of this system.
unsafe fn below(file: *mut sqlite3_file) -> *mut sqlite3_file {
    // SAFETY: `szOsFile` has room for it behind `File`, whose size is a multiple of its alignment.
    unsafe { file.cast::<File>().add(1).cast() }
}

/// Calls a method of the file below, or gives `$none` where it has none.
macro_rules! pass {
    ($file:expr, $method:ident($($argument:expr),*), $none:expr) => {{
        // SAFETY: the file below was opened, so its methods are there, and it is passed to its own.
        unsafe {
            let file = below($file);
            (*(*file).pMethods).$method.map_or($none, |method| method(file $(, $argument)*))
        }
    }};
}

/// Makes a file that is not open, in room of `OWN_BYTES` and what the file below needs, which is given to be opened.
///
/// # Safety
/// There is room for both, which nothing else uses.
pub(super) unsafe fn begin(file: *mut sqlite3_file) -> *mut sqlite3_file {
    let closed = sqlite3_file { pMethods: ptr::null() };
    // SAFETY: there is room for both, which nothing else uses.
    unsafe {
        let own = File { base: closed, other: ptr::null_mut(), log: ptr::null_mut() };
        file.cast::<File>().write(own);
        below(file).write(closed);
        below(file)
    }
}

/// Notes what became of the file below: SQLite closes what has methods, whether it was opened or not.
///
/// # Safety
/// `begin` has made the file, and `name` is what SQLite gave to have it opened.
pub(super) unsafe fn opened(file: *mut sqlite3_file, name: sqlite3_filename, flags: c_int, is_open: bool) {
    // SAFETY: `begin` has made both.
    unsafe {
        let own = file.cast::<File>();
        let Some(methods) = (*below(file)).pMethods.as_ref() else { return };
        let is_shared = methods.iVersion >= 2 && methods.xShmMap.is_some();
        (*own).base.pMethods = if is_shared { &raw const SHARED } else { &raw const ALONE };
        if is_open && flags & SQLITE_OPEN_WAL != 0 {
            gather(own, name);
        }
    }
}

/// Has a log gathered, if its database is of this system too.
///
/// # Safety
/// As `opened`.
unsafe fn gather(own: *mut File, name: sqlite3_filename) {
    // SAFETY: SQLite keeps the file of a database in place for as long as its log is open, and gives it by the name of the log.
    unsafe {
        let database = ffi::sqlite3_database_file_object(name);
        let is_ours = database.as_ref().is_some_and(|database| ptr::eq(database.pMethods, &raw const SHARED));
        // Otherwise SQLite syncs in the middle of the frames with which it fills up a sector, and has readers find the last of them at once.
        if !is_ours || device_characteristics(database) & ffi::SQLITE_IOCAP_POWERSAFE_OVERWRITE == 0 {
            return;
        }
        let mut log = Box::<Log>::default();
        if size_below(own.cast(), &raw mut log.end) == SQLITE_OK {
            (*own).other = database.cast();
            (*database.cast::<File>()).other = own;
            (*own).log = Box::into_raw(log);
        }
    }
}

/// The log of a file that is one, and gathers.
///
/// # Safety
/// The file is one of this system, and used by one thread at a time; there is one log at a time.
unsafe fn log_of<'f>(file: *mut sqlite3_file) -> Option<&'f mut Log> {
    // SAFETY: the file is one of this system; SQLite uses it in one thread at a time.
    unsafe { (*file.cast::<File>()).log.as_mut() }
}

/// Writes what is gathered, if the file is a log.
///
/// # Safety
/// As `log_of`.
unsafe fn flush(file: *mut sqlite3_file) -> c_int {
    // SAFETY: as `log_of`.
    unsafe { log_of(file).map_or(SQLITE_OK, |log| write_out(file, log)) }
}

fn write_out(file: *mut sqlite3_file, log: &mut Log) -> c_int {
    let Some(next) = log.next.filter(|_| !log.bytes.is_empty()) else { return SQLITE_OK };
    if next > log.end && log.bytes.len() <= SMALL && !log.is_bounded {
        grow(file, log, next);
    }
    let code = write_at(file, &log.bytes, next - length(&log.bytes));
    if code == SQLITE_OK {
        log.end = log.end.max(next);
    }
    log.bytes.clear();
    code
}

/// Has the file grow ahead. That it cannot is no harm: what is needed is written next, and says so if it cannot be either.
fn grow(file: *mut sqlite3_file, log: &mut Log, from: i64) {
    static ZEROS: [u8; 32 << 10] = [0; 32 << 10];
    let to = (from / AHEAD + 1) * AHEAD;
    let mut at = from;
    while at < to {
        let some = &ZEROS[..usize::try_from(to - at).unwrap_or(ZEROS.len()).min(ZEROS.len())];
        if write_at(file, some, at) != SQLITE_OK {
            log.is_bounded = true;
            return;
        }
        at += length(some);
    }
    log.end = to;
}

fn write_at(file: *mut sqlite3_file, bytes: &[u8], at: i64) -> c_int {
    // What is gathered has at most `WRITE_MAX` bytes, or is one page.
    write_below(file, bytes.as_ptr().cast(), bytes.len() as c_int, at)
}

fn write_below(file: *mut sqlite3_file, from: *const c_void, count: c_int, at: i64) -> c_int {
    pass!(file, xWrite(from, count, at), ffi::SQLITE_IOERR_WRITE)
}

fn size_below(file: *mut sqlite3_file, size: *mut i64) -> c_int {
    pass!(file, xFileSize(size), ffi::SQLITE_IOERR_FSTAT)
}

fn length(bytes: &[u8]) -> i64 {
    bytes.len() as i64
}

/// Writes what is still gathered of a transaction that ends, one that was undone; the next one may begin elsewhere.
///
/// Where it cannot be written, nothing is lost: a commit was written before, or its error was told.
///
/// # Safety
/// As `log_of`, for the database and its log.
unsafe fn end(database: *mut sqlite3_file) {
    // SAFETY: both files are of this system; SQLite uses a connection in one thread at a time.
    unsafe {
        let log = (*database.cast::<File>()).other.cast();
        if let Some(gathered) = ptr::NonNull::new(log).and_then(|log| log_of(log.as_ptr())) {
            write_out(log, gathered);
            gathered.next = None;
            gathered.is_last = false;
        }
    }
}

unsafe extern "C" fn close(file: *mut sqlite3_file) -> c_int {
    // SAFETY: as `forget`; nothing uses the file after this.
    unsafe {
        let own = &mut *file.cast::<File>();
        if !own.other.is_null() {
            (*own.other).other = ptr::null_mut();
            own.other = ptr::null_mut();
        }
        if !own.log.is_null() {
            drop(Box::from_raw(mem::replace(&mut own.log, ptr::null_mut())));
        }
    }
    pass!(file, xClose(), SQLITE_OK)
}

unsafe extern "C" fn read(file: *mut sqlite3_file, into: *mut c_void, count: c_int, at: sqlite3_int64) -> c_int {
    // SAFETY: SQLite's file.
    let code = unsafe { flush(file) };
    if code == SQLITE_OK { pass!(file, xRead(into, count, at), ffi::SQLITE_IOERR_READ) } else { code }
}

unsafe extern "C" fn write(file: *mut sqlite3_file, from: *const c_void, count: c_int, at: sqlite3_int64) -> c_int {
    // SAFETY: SQLite gives `count` bytes.
    unsafe {
        let Some(log) = log_of(file) else { return write_below(file, from, count, at) };
        let bytes = std::slice::from_raw_parts(from.cast::<u8>(), usize::try_from(count).unwrap_or(0));
        let is_next = log.next.is_none_or(|next| next == at);
        if !is_next || log.bytes.len() + bytes.len() > WRITE_MAX {
            let code = write_out(file, log);
            if code != SQLITE_OK {
                return code;
            }
        }
        if !is_next {
            return write_below(file, from, count, at); // over a frame of this transaction
        }
        log.next = Some(at + length(bytes));
        log.bytes.extend_from_slice(bytes);
        let is_header = bytes.len() == FRAME_HEADER;
        let is_whole = mem::replace(&mut log.is_last, is_header && bytes[4..8] != [0; 4]);
        if is_whole { write_out(file, log) } else { SQLITE_OK }
    }
}

unsafe extern "C" fn truncate(file: *mut sqlite3_file, size: sqlite3_int64) -> c_int {
    // SAFETY: SQLite's file.
    let code = unsafe { flush(file) };
    if code != SQLITE_OK {
        return code;
    }
    // SAFETY: as above.
    if let Some(log) = unsafe { log_of(file) } {
        log.end = size;
    }
    pass!(file, xTruncate(size), ffi::SQLITE_IOERR_TRUNCATE)
}

unsafe extern "C" fn sync(file: *mut sqlite3_file, flags: c_int) -> c_int {
    // SAFETY: SQLite's file.
    let code = unsafe { flush(file) };
    if code == SQLITE_OK { pass!(file, xSync(flags), ffi::SQLITE_IOERR_FSYNC) } else { code }
}

unsafe extern "C" fn file_size(file: *mut sqlite3_file, size: *mut sqlite3_int64) -> c_int {
    // SAFETY: SQLite's file.
    let code = unsafe { flush(file) };
    if code == SQLITE_OK { size_below(file, size) } else { code }
}

unsafe extern "C" fn lock(file: *mut sqlite3_file, level: c_int) -> c_int {
    pass!(file, xLock(level), SQLITE_OK)
}

unsafe extern "C" fn unlock(file: *mut sqlite3_file, level: c_int) -> c_int {
    pass!(file, xUnlock(level), SQLITE_OK)
}

unsafe extern "C" fn check_reserved_lock(file: *mut sqlite3_file, out: *mut c_int) -> c_int {
    pass!(file, xCheckReservedLock(out), SQLITE_OK)
}

unsafe extern "C" fn file_control(file: *mut sqlite3_file, operation: c_int, argument: *mut c_void) -> c_int {
    pass!(file, xFileControl(operation, argument), ffi::SQLITE_NOTFOUND)
}

unsafe extern "C" fn sector_size(file: *mut sqlite3_file) -> c_int {
    pass!(file, xSectorSize(), 4096)
}

unsafe extern "C" fn device_characteristics(file: *mut sqlite3_file) -> c_int {
    pass!(file, xDeviceCharacteristics(), 0)
}

unsafe extern "C" fn shm_map(
    file: *mut sqlite3_file,
    region: c_int,
    size: c_int,
    extend: c_int,
    out: *mut *mut c_void,
) -> c_int {
    pass!(file, xShmMap(region, size, extend, out), ffi::SQLITE_IOERR_SHMMAP)
}

unsafe extern "C" fn shm_lock(file: *mut sqlite3_file, offset: c_int, count: c_int, flags: c_int) -> c_int {
    if offset == WRITE_LOCK && flags & ffi::SQLITE_SHM_UNLOCK != 0 {
        // SAFETY: the file is a database of this system.
        unsafe { end(file) };
    }
    pass!(file, xShmLock(offset, count, flags), ffi::SQLITE_IOERR_SHMLOCK)
}

unsafe extern "C" fn shm_barrier(file: *mut sqlite3_file) {
    let () = pass!(file, xShmBarrier(), ());
}

unsafe extern "C" fn shm_unmap(file: *mut sqlite3_file, delete: c_int) -> c_int {
    pass!(file, xShmUnmap(delete), SQLITE_OK)
}

static ALONE: sqlite3_io_methods = sqlite3_io_methods {
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

/// With the index of the log, which several processes share. A file is not mapped into memory.
static SHARED: sqlite3_io_methods = sqlite3_io_methods {
    iVersion: 2,
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    ..ALONE
};
