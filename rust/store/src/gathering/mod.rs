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

mod file;

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem;
use std::ptr;

use rusqlite::ffi::{self, SQLITE_OK, sqlite3_file, sqlite3_filename, sqlite3_int64, sqlite3_vfs};

use self::file::{OWN_BYTES, begin, opened};

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
