//! Makes the locks of SQLite files independent of other uses of these files in the process. Uses `unsafe` because the
//! system calls of SQLite are replaced.
//!
//! SQLite's file locks belong to the process. Another copy of SQLite in the process, such as the one in the module
//! `sqlite3`, does not see them, and all of them are released when anything in the process opens and closes the file.
//! Then another process may write in the middle of a transaction, or delete a WAL that is in use.
//!
//! Linux also has locks that belong to an open file. They conflict with the locks of all processes, including this one,
//! and end only when this open file is closed. This module lets SQLite use them for the databases that are opened with
//! the VFS of this crate, and for their WAL indexes:
//!
//! - The file of a WAL index is open once per process, so each lock is replaced by a lock of that open file.
//! - A database is opened by each connection, and SQLite takes and releases its locks through any of these open files.
//!   Therefore the first file that takes a lock owns all locks until they are released.
//!
//! A forked process shares the open files and would keep their locks when its parent is killed. Therefore it replaces
//! them with `/dev/null`, and their mappings with empty memory; it may not use the connections of its parent anyway.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use libc::{F_GETLK, F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW, F_RDLCK, F_SETLK, F_SETLKW, F_UNLCK, flock};
use rusqlite::ffi::{self, SQLITE_OK};

/// The first byte of a database that SQLite locks; it is locked before all others when SQLite begins to read.
const PENDING_BYTE: i64 = 0x4000_0000;
/// The bytes of a WAL index that SQLite locks. The last one is locked before all others.
const INDEX_BYTES: std::ops::RangeInclusive<i64> = 120..=128;
/// Files with larger numbers keep the locks of the process.
const FILES_MAX: usize = 1 << 16;

/// The files whose locks have been replaced, as bits.
static REPLACED: [AtomicU64; FILES_MAX / 64] = [const { AtomicU64::new(0) }; FILES_MAX / 64];

/// The number of threads that are mapping the WAL index of one of our databases, and may open it. If another index is
/// opened at the same time, its locks are replaced too, which is harmless.
static OPENING_INDEX: AtomicUsize = AtomicUsize::new(0);

/// Device and inode.
type FileId = (u64, u64);

/// The state of this module. The handlers of forks hold its lock, so that the child never finds it half changed.
#[derive(Default)]
struct Known {
    /// The databases, each with the file that owns its locks, if it is locked.
    databases: HashMap<FileId, Option<c_int>>,
    /// The address and size of each mapping of a WAL index.
    mappings: Vec<(usize, usize)>,
}

/// A lock that can be held across a fork.
struct ForkLock {
    is_held: AtomicBool,
    known: UnsafeCell<Option<Known>>,
}

// SAFETY: `known` is used only while `is_held` is true.
unsafe impl Sync for ForkLock {}

static KNOWN: ForkLock = ForkLock { is_held: AtomicBool::new(false), known: UnsafeCell::new(None) };

impl ForkLock {
    fn acquire(&self) {
        while self.is_held.swap(true, Ordering::Acquire) {
            // SAFETY: the call has no arguments.
            unsafe { libc::sched_yield() };
        }
    }

    fn release(&self) {
        self.is_held.store(false, Ordering::Release);
    }

    fn with<R>(&self, run: impl FnOnce(&mut Known) -> R) -> R {
        self.acquire();
        // SAFETY: this thread holds the lock, and `run` does not call `with`.
        let result = run(unsafe { (*self.known.get()).get_or_insert_default() });
        self.release();
        result
    }
}

/// Replaces the system calls of SQLite, once. Does nothing if SQLite has no file system called `unix`.
pub(crate) fn replace_system_calls() {
    static ONCE: Once = Once::new();
    // The replacement of `fcntl` has fixed arguments, while SQLite calls it with variable ones. The ABIs of these
    // processors pass both in the same registers.
    if cfg!(not(any(target_arch = "x86_64", target_arch = "aarch64"))) {
        return;
    }
    // SAFETY: SQLite is initialized. The functions have the signatures of the calls that they replace; for `fcntl`, see
    // above and there.
    ONCE.call_once(|| unsafe {
        let vfs = ffi::sqlite3_vfs_find(c"unix".as_ptr());
        let Some(set) = vfs.as_ref().filter(|vfs| vfs.iVersion >= 3).and_then(|vfs| vfs.xSetSystemCall) else { return };
        libc::pthread_atfork(Some(before_fork), Some(after_fork_in_parent), Some(after_fork_in_child));
        let calls: [(&CStr, *const ()); 4] = [
            (c"close", close as *const ()),
            (c"mmap", mmap as *const ()),
            (c"munmap", munmap as *const ()),
            (c"fcntl", fcntl as *const ()), // the last one, because it needs the others
        ];
        for (name, call) in calls {
            let call = std::mem::transmute::<*const (), unsafe extern "C" fn()>(call);
            if set(vfs, name.as_ptr(), Some(call)) != SQLITE_OK {
                return;
            }
        }
    });
}

/// Replaces all locks that are taken on a database from now on.
pub(crate) fn add_database(path: &CStr) {
    let mut found = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the path ends with a null byte, and a successful call writes the result.
    let id = unsafe { (libc::stat(path.as_ptr(), found.as_mut_ptr()) == 0).then(|| file_id(&found.assume_init())) };
    if let Some(id) = id {
        KNOWN.with(|known| {
            known.databases.entry(id).or_insert(None);
        });
    }
}

/// Replaces the locks of a WAL index if `run` opens it.
pub(crate) fn mapping_index<R>(run: impl FnOnce() -> R) -> R {
    OPENING_INDEX.fetch_add(1, Ordering::Relaxed);
    let result = run();
    OPENING_INDEX.fetch_sub(1, Ordering::Relaxed);
    result
}

#[allow(clippy::unnecessary_cast, clippy::cast_lossless)] // the types depend on the processor
fn file_id(found: &libc::stat) -> FileId {
    (found.st_dev as u64, found.st_ino as u64)
}

fn id_of(file: c_int) -> Option<FileId> {
    let mut found = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: a successful call writes the result.
    unsafe { (libc::fstat(file, found.as_mut_ptr()) == 0).then(|| file_id(&found.assume_init())) }
}

fn word_and_bit(file: c_int) -> Option<(&'static AtomicU64, u64)> {
    let number = usize::try_from(file).ok()?;
    Some((REPLACED.get(number / 64)?, 1 << (number % 64)))
}

fn is_replaced(file: c_int) -> bool {
    word_and_bit(file).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}

/// Marks a file; returns false if its number is too large.
fn mark(file: c_int) -> bool {
    word_and_bit(file).is_some_and(|(word, bit)| {
        word.fetch_or(bit, Ordering::Relaxed);
        true
    })
}

fn unmark(file: c_int) {
    if let Some((word, bit)) = word_and_bit(file) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// Replaces SQLite's `close`.
unsafe extern "C" fn close(file: c_int) -> c_int {
    if is_replaced(file) {
        release_database(file);
    }
    // SAFETY: SQLite closes its file.
    unsafe { libc::close(file) }
}

/// Replaces SQLite's `mmap`.
unsafe extern "C" fn mmap(
    at: *mut c_void,
    size: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    // SAFETY: SQLite maps its file.
    let address = unsafe { libc::mmap(at, size, protection, flags, file, offset) };
    if OPENING_INDEX.load(Ordering::Relaxed) > 0 && address != libc::MAP_FAILED {
        KNOWN.with(|known| known.mappings.push((address as usize, size)));
    }
    address
}

/// Replaces SQLite's `munmap`.
unsafe extern "C" fn munmap(address: *mut c_void, size: usize) -> c_int {
    KNOWN.with(|known| known.mappings.retain(|(known, _)| *known != address as usize));
    // SAFETY: SQLite unmaps its file.
    unsafe { libc::munmap(address, size) }
}

/// Replaces SQLite's `fcntl`. Its third argument is a pointer to a `flock` for lock commands, and an `int` or missing
/// for others; then the upper bits or all bits of `argument` are arbitrary, and the system ignores them.
#[allow(clippy::unnecessary_cast)] // the types depend on the processor
unsafe extern "C" fn fcntl(file: c_int, command: c_int, argument: usize) -> c_int {
    if !matches!(command, F_SETLK | F_SETLKW | F_GETLK) {
        // SAFETY: SQLite passes the arguments of `fcntl`.
        return unsafe { libc::fcntl(file, command, argument) };
    }
    let request = argument as *mut flock;
    // SAFETY: SQLite passes a lock with this command.
    let (start, length, kind) = unsafe { ((*request).l_start as i64, (*request).l_len as i64, (*request).l_type) };
    let owner = if INDEX_BYTES.contains(&start) {
        if start == *INDEX_BYTES.end() && OPENING_INDEX.load(Ordering::Relaxed) > 0 {
            mark(file);
        }
        is_replaced(file).then_some(file)
    } else if start >= PENDING_BYTE || (start, length) == (0, 0) {
        let begins = start == PENDING_BYTE && c_int::from(kind) == F_RDLCK && command != F_GETLK;
        owner_of_database(file, begins)
    } else {
        None
    };
    // SAFETY: as above; the lock is SQLite's to change.
    unsafe {
        let Some(owner) = owner else { return libc::fcntl(file, command, argument) };
        (*request).l_pid = 0;
        let result = libc::fcntl(owner, command_of_open_file(command), argument);
        if result == -1 && *libc::__errno_location() == libc::EINVAL {
            give_up(owner);
            return libc::fcntl(file, command, argument);
        }
        if (start, length) == (0, 0) && c_int::from(kind) == F_UNLCK {
            release_database(owner);
        }
        result
    }
}

fn command_of_open_file(command: c_int) -> c_int {
    match command {
        F_GETLK => F_OFD_GETLK,
        F_SETLKW => F_OFD_SETLKW,
        _ => F_OFD_SETLK,
    }
}

/// Returns the file that owns the locks of a database; `file` becomes the owner if it begins to lock. `None` if the
/// locks are not replaced: the database is not ours, or it was locked before it became ours.
fn owner_of_database(file: c_int, begins: bool) -> Option<c_int> {
    let id = id_of(file)?;
    KNOWN.with(|known| {
        let owner = known.databases.get_mut(&id)?;
        if owner.is_none() && begins && mark(file) {
            *owner = Some(file);
        }
        *owner
    })
}

/// Keeps process locks for a database or WAL index, because its file system or the operating system does not support
/// others. Locks of other files may be held and stay replaced.
fn give_up(owner: c_int) {
    KNOWN.with(|known| known.databases.retain(|_, each| *each != Some(owner)));
    unmark(owner);
}

fn release_database(owner: c_int) {
    KNOWN.with(|known| {
        known.databases.values_mut().filter(|each| **each == Some(owner)).for_each(|each| *each = None);
    });
    unmark(owner);
}

unsafe extern "C" fn before_fork() {
    KNOWN.acquire();
}

unsafe extern "C" fn after_fork_in_parent() {
    KNOWN.release();
}

fn open_null() -> c_int {
    // SAFETY: the path is a constant.
    unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) }
}

/// Closes the parent's files whose locks have been replaced, without allocating memory.
unsafe extern "C" fn after_fork_in_child() {
    // SAFETY: the calls take numbers of files; `before_fork` has acquired the databases.
    unsafe {
        let mut null = open_null();
        let is_spare = null != -1;
        for (position, word) in REPLACED.iter().enumerate() {
            let mut bits = word.swap(0, Ordering::Relaxed);
            while bits != 0 {
                let file = (position * 64) as c_int + bits.trailing_zeros() as c_int;
                if null == -1 {
                    libc::close(file); // no number of a file is free
                    null = open_null();
                } else {
                    libc::dup3(null, file, libc::O_CLOEXEC);
                }
                bits &= bits - 1;
            }
        }
        if is_spare {
            libc::close(null);
        }
        if let Some(known) = &mut *KNOWN.known.get() {
            known.databases.values_mut().for_each(|owner| *owner = None);
            // A mapping keeps its file open.
            for (address, size) in known.mappings.drain(..) {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
                libc::mmap(address as *mut c_void, size, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            }
        }
    }
    KNOWN.release();
}
