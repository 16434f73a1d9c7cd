//! Memory shared by the processes that have a database file open: it wakes waiting receivers and names the writer.
//!
//! It is a file of one page next to the database file. Nothing in it has to be durable or correct: a receiver also
//! checks its queue from time to time, and the file lock of SQLite decides who writes. A process may be killed at any
//! moment.

use std::path::Path;

/// The process that holds the write lock of the database file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockHolder {
    /// The id of the process.
    pub process_id: u32,
    /// When it took the lock, in microseconds since 1970.
    pub since: i64,
    /// The kinds of calls that it has made since, as bits that the caller defines.
    pub calls: u32,
}

#[cfg(target_os = "linux")]
pub use linux::SharedMemory;
#[cfg(not(target_os = "linux"))]
pub use other::SharedMemory;

#[cfg(target_os = "linux")]
#[allow(unsafe_code)]
mod linux {
    use std::ffi::c_void;
    use std::fs::{self, File, OpenOptions};
    use std::io;
    use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
    use std::ptr;
    use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};
    use std::time::Duration;

    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    use rustix::thread::futex;

    use super::{LockHolder, Path};

    /// The size of the file.
    const BYTES: usize = 4096;
    /// The last byte of each block of the smallest block size in use; writing it reserves the disk space. These bytes
    /// are not used.
    const RESERVED: [u64; 4] = [1023, 2047, 3071, 4095];
    /// If two queues have the same number, their receivers only check more often.
    const SLOTS: usize = 120;
    const PERMISSION_BITS: u32 = 0o777;

    /// What the file contains. A new file is all zeros.
    #[repr(C)]
    struct Content {
        /// 0 if no process holds the write lock.
        process_id: AtomicU32,
        calls: AtomicU32,
        since: AtomicI64,
        /// The number of threads that wait for the write lock. It stays too high if a waiting process is killed.
        writers_waiting: AtomicU32,
        /// Keeps the slots apart from the data of writers.
        padding: [u32; 507],
        slots: [Slot; SLOTS],
    }

    /// The arrivals in one queue.
    #[repr(C)]
    struct Slot {
        /// Changes with each arrival.
        count: AtomicU32,
        /// The number of waiting threads. It stays too high if a waiting process is killed.
        waiting: AtomicU32,
    }

    /// The memory; see the module.
    #[derive(Debug)]
    pub struct SharedMemory {
        content: ptr::NonNull<Content>,
        /// The id by which other processes know this process.
        process_id: u32,
    }

    // SAFETY: the content consists of atomic numbers.
    unsafe impl Send for SharedMemory {}
    // SAFETY: as above.
    unsafe impl Sync for SharedMemory {}

    impl SharedMemory {
        /// Opens the memory in the file at `path`, and creates it with the permissions of the database file.
        ///
        /// # Errors
        /// The file cannot be created, enlarged or mapped; the disk may be full.
        pub fn open(path: &Path, database: &Path, process_id: u32) -> io::Result<Self> {
            const { assert!(size_of::<Content>() < RESERVED[2] as usize) };
            let mode = fs::metadata(database)?.permissions().mode() & PERMISSION_BITS;
            let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(mode).open(path)?;
            if file.metadata()?.size() < BYTES as u64 {
                reserve(&file)?;
            }
            let flags = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: no memory in use is replaced. The file has this size, and its disk space is reserved.
            let memory = unsafe { mmap(ptr::null_mut(), BYTES, flags, MapFlags::SHARED, &file, 0)? };
            let content = ptr::NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
            Ok(Self { content, process_id })
        }

        fn content(&self) -> &Content {
            // SAFETY: the mapping is large enough, aligned to a page, and lives as long as `self`; any bytes are valid
            // atomic numbers. Nobody makes the file shorter: accessing a page beyond its end would end the process.
            unsafe { self.content.as_ref() }
        }

        fn slot(&self, queue_id: i64) -> &Slot {
            &self.content().slots[queue_id.unsigned_abs() as usize % SLOTS]
        }

        /// Returns a number that changes with each arrival in a queue.
        #[must_use]
        pub fn count(&self, queue_id: i64) -> u32 {
            self.slot(queue_id).count.load(Ordering::SeqCst)
        }

        /// Counts an arrival in a queue, and wakes the threads that wait for it in all processes.
        pub fn notify(&self, queue_id: i64) {
            let slot = self.slot(queue_id);
            slot.count.fetch_add(1, Ordering::SeqCst);
            if slot.waiting.load(Ordering::SeqCst) > 0 {
                let _ = futex::wake(&slot.count, futex::Flags::empty(), i32::MAX as u32);
            }
        }

        /// Waits until the count differs from `seen`; returns earlier after `timeout` seconds or a signal.
        pub fn wait(&self, queue_id: i64, seen: u32, timeout: f64) {
            let slot = self.slot(queue_id);
            wait_while_equal(&slot.count, seen, &slot.waiting, timeout);
        }

        /// Records that this process holds the write lock.
        pub fn set_holder(&self, since: i64) {
            let content = self.content();
            content.calls.store(0, Ordering::Relaxed);
            content.since.store(since, Ordering::Relaxed);
            content.process_id.store(self.process_id, Ordering::Release);
        }

        /// Records kinds of calls that the holder of the write lock has made.
        pub fn add_calls(&self, calls: u32) {
            self.content().calls.fetch_or(calls, Ordering::Relaxed);
        }

        /// Records that this process does not hold the write lock, and wakes a thread that waits for it; another
        /// process may already have taken it.
        pub fn clear_holder(&self) {
            let Content { process_id, writers_waiting, .. } = self.content();
            let cleared = process_id.compare_exchange(self.process_id, 0, Ordering::SeqCst, Ordering::Relaxed);
            if cleared.is_ok() && writers_waiting.load(Ordering::SeqCst) > 0 {
                let _ = futex::wake(process_id, futex::Flags::empty(), 1);
            }
        }

        /// Waits until the holder of the write lock releases it; returns earlier after `timeout` seconds or a signal.
        /// Returns false at once if the holder is unknown.
        #[must_use]
        pub fn wait_for_release(&self, timeout: f64) -> bool {
            let Content { process_id, writers_waiting, .. } = self.content();
            let holder = process_id.load(Ordering::SeqCst);
            if holder != 0 {
                wait_while_equal(process_id, holder, writers_waiting, timeout);
            }
            holder != 0
        }

        /// Returns the process that holds the write lock. It may just have released it, or been killed.
        #[must_use]
        pub fn holder(&self) -> Option<LockHolder> {
            let content = self.content();
            let process_id = content.process_id.load(Ordering::Acquire);
            let (since, calls) = (content.since.load(Ordering::Relaxed), content.calls.load(Ordering::Relaxed));
            (process_id != 0).then_some(LockHolder { process_id, since, calls })
        }
    }

    impl Drop for SharedMemory {
        fn drop(&mut self) {
            // SAFETY: `open` has mapped it, and nothing refers to it any more.
            let _ = unsafe { munmap(self.content.as_ptr().cast::<c_void>(), BYTES) };
        }
    }

    /// Waits until a number changes; returns earlier after `timeout` seconds or a signal.
    fn wait_while_equal(number: &AtomicU32, seen: u32, waiting: &AtomicU32, timeout: f64) {
        // A time that is too long, such as infinity, is no limit.
        let timeout = Duration::try_from_secs_f64(timeout.max(0.0)).ok();
        let timeout = timeout.and_then(|timeout| futex::Timespec::try_from(timeout).ok());
        waiting.fetch_add(1, Ordering::SeqCst);
        let _ = futex::wait(number, futex::Flags::empty(), seen, timeout.as_ref());
        waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Enlarges the file without changing what others have written into it. Writing to a mapping for which the disk
    /// has no space would kill the process.
    fn reserve(file: &File) -> io::Result<()> {
        RESERVED.iter().try_for_each(|end| file.write_all_at(&[0], *end))
    }
}

#[cfg(not(target_os = "linux"))]
mod other {
    use std::io;

    use super::{LockHolder, Path};

    /// Not available on this system: receivers check their queues more often instead.
    #[derive(Debug)]
    pub enum SharedMemory {}

    impl SharedMemory {
        /// Fails.
        ///
        /// # Errors
        /// Always.
        pub fn open(_path: &Path, _database: &Path, _process_id: u32) -> io::Result<Self> {
            Err(io::ErrorKind::Unsupported.into())
        }

        /// Never called.
        #[must_use]
        pub fn count(&self, _queue_id: i64) -> u32 {
            match *self {}
        }

        /// Never called.
        pub fn notify(&self, _queue_id: i64) {
            match *self {}
        }

        /// Never called.
        pub fn wait(&self, _queue_id: i64, _seen: u32, _timeout: f64) {
            match *self {}
        }

        /// Never called.
        pub fn set_holder(&self, _since: i64) {
            match *self {}
        }

        /// Never called.
        pub fn add_calls(&self, _calls: u32) {
            match *self {}
        }

        /// Never called.
        pub fn clear_holder(&self) {
            match *self {}
        }

        /// Never called.
        #[must_use]
        pub fn wait_for_release(&self, _timeout: f64) -> bool {
            match *self {}
        }

        /// Never called.
        #[must_use]
        pub fn holder(&self) -> Option<LockHolder> {
            match *self {}
        }
    }
}
