//! The one symbol that makes the log's flush durable.
//!
//! The storage engine ends each flush with `sync_file_range`, which neither empties the drive's
//! cache nor commits the file's length. This program therefore defines that C function itself and
//! answers it with `fdatasync`; the linker binds the engine's call to it in every program that
//! links this crate. Writes keep their order, so what the engine assumes about it stays true.
//!
//! The counter lets a store refuse to run when its first flush did not come through here.

#![expect(
    unsafe_code,
    reason = "a C symbol has to be defined and a raw descriptor borrowed; nothing else can make \
              the engine's flush reach the disk (the design's engineering notes, 3.1)"
)]

use std::ffi::{c_int, c_uint};
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd as _;
use std::sync::atomic::{AtomicU64, Ordering};

static SYNCS: AtomicU64 = AtomicU64::new(0);

/// How many syncs went through the own symbol since the process began.
#[must_use]
pub fn syncs() -> u64 {
    SYNCS.load(Ordering::Acquire)
}

/// True if `work` (which must write and flush) made the counter rise.
pub fn sync_is_interposed<E>(work: impl FnOnce() -> Result<(), E>) -> Result<bool, E> {
    let before = syncs();
    work()?;
    Ok(syncs() > before)
}

/// Stands in for the C library's function of this name: syncs the whole file's data.
///
/// Offset, length and flags are ignored, since a narrower sync is the thing to be avoided. A failed
/// sync aborts at once: the kernel may have dropped the dirty pages, so a second try would lie.
///
/// # Safety
/// `descriptor` must be open for the duration of the call, as for the C library's own function.
#[unsafe(no_mangle)]
unsafe extern "C" fn sync_file_range(
    descriptor: c_int,
    _offset: i64,
    _length: i64,
    _flags: c_uint,
) -> c_int {
    // SAFETY: the caller lends an open descriptor; ManuallyDrop gives it back unclosed.
    let file = ManuallyDrop::new(unsafe { File::from_raw_fd(descriptor) });
    if let Err(error) = file.sync_data() {
        tracing::error!(%error, "sync of the log failed; ending, since a retry would not be true");
        std::process::abort();
    }
    SYNCS.fetch_add(1, Ordering::Release);
    0
}
