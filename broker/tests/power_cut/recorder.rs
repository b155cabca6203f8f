//! Records what this process does to files below one directory, in order.
//!
//! The test binary defines the C library's file functions itself, so that the store, the engine
//! below it and the standard library all come through here; the real work is done by raw system
//! calls. Nothing has to be installed and nothing runs differently.

#![expect(
    unsafe_code,
    reason = "a test that has to see every write defines C functions of its own"
)]

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::os::fd::{AsFd as _, BorrowedFd, IntoRawFd as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};

/// One thing done to a file. Files are named by their inode; names come and go.
#[derive(Debug, Clone)]
pub enum Event {
    /// A file or directory appeared under a name.
    Create { path: PathBuf, inode: u64, is_dir: bool },
    /// A file's length was set.
    Truncate { inode: u64, length: u64 },
    /// Bytes were written.
    Write { inode: u64, offset: u64, bytes: Vec<u8> },
    /// Everything written to the file so far reached the disk. `data_only`: by fdatasync.
    Sync { inode: u64, data_only: bool },
    /// A name moved.
    Rename { from: PathBuf, to: PathBuf },
    /// A name went away.
    Unlink { path: PathBuf },
    /// The workload was told that everything up to here is safe.
    Mark(usize),
}

#[derive(Default)]
struct Recorder {
    root: Option<PathBuf>,
    open: HashMap<c_int, u64>,
    events: Vec<Event>,
}

static RECORDER: Mutex<Option<Recorder>> = Mutex::new(None);

fn lock() -> MutexGuard<'static, Option<Recorder>> {
    RECORDER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins to record everything below `root` (which must have no symbolic links in it).
pub fn start(root: &Path) {
    *lock() = Some(Recorder { root: Some(root.to_owned()), ..Recorder::default() });
}

/// Ends the recording.
pub fn stop() -> Vec<Event> {
    lock().take().map(|recorder| recorder.events).unwrap_or_default()
}

/// Notes an acknowledgement.
pub fn mark(number: usize) {
    with(|recorder| recorder.events.push(Event::Mark(number)));
}

fn with<T>(work: impl FnOnce(&mut Recorder) -> T) -> Option<T> {
    lock().as_mut().map(work)
}

fn inside(recorder: &Recorder, path: &Path) -> bool {
    recorder.root.as_ref().is_some_and(|root| path.starts_with(root))
}

fn path_of(path: *const c_char) -> PathBuf {
    // SAFETY: callers of the C functions hand over terminated strings.
    let text = unsafe { CStr::from_ptr(path) };
    PathBuf::from(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(text.to_bytes()))
}

fn borrowed<'a>(descriptor: c_int) -> BorrowedFd<'a> {
    // SAFETY: callers of the C functions hand over open descriptors for the time of the call.
    unsafe { BorrowedFd::borrow_raw(descriptor) }
}

unsafe extern "C" {
    fn __errno_location() -> *mut c_int;
}

fn fail(error: rustix::io::Errno) -> c_int {
    // SAFETY: the C library gives each thread its own place for the error number.
    unsafe { *__errno_location() = error.raw_os_error() };
    -1
}

fn answer(result: rustix::io::Result<()>) -> c_int {
    result.map_or_else(fail, |()| 0)
}

fn open_at(dir: BorrowedFd<'_>, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    let name = path_of(path);
    let flags = OFlags::from_bits_retain(flags as u32);
    let existed = rustix::fs::statat(dir, &name, AtFlags::empty()).is_ok();
    let opened = rustix::fs::openat(dir, &name, flags, Mode::from_raw_mode(mode));
    let file = match opened {
        Ok(file) => file,
        Err(error) => return fail(error),
    };
    let full = rustix::fs::readlink(fd_path(&file), Vec::new());
    let inode = rustix::fs::fstat(&file).map(|stat| stat.st_ino).unwrap_or(0);
    let descriptor = file.into_raw_fd();
    let full = full.map(|text| PathBuf::from(text.to_string_lossy().into_owned()));
    with(|recorder| {
        let Ok(full) = full else { return };
        if !inside(recorder, &full) {
            recorder.open.remove(&descriptor);
            return;
        }
        recorder.open.insert(descriptor, inode);
        if !existed {
            recorder.events.push(Event::Create { path: full, inode, is_dir: false });
        } else if flags.contains(OFlags::TRUNC) {
            recorder.events.push(Event::Truncate { inode, length: 0 });
        }
    });
    descriptor
}

fn fd_path(file: &impl std::os::fd::AsRawFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Stands in for the C library's function.
#[unsafe(no_mangle)]
extern "C" fn open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    open_at(CWD, path, flags, mode)
}

/// Stands in for the C library's function.
#[unsafe(no_mangle)]
extern "C" fn openat64(dir: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    open_at(borrowed(dir), path, flags, mode)
}

/// Stands in for the C library's function.
#[unsafe(no_mangle)]
extern "C" fn write(descriptor: c_int, buffer: *const c_void, count: usize) -> isize {
    // SAFETY: the caller lends `count` readable bytes.
    let bytes = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), count) };
    // Held over the call, so that the order of events is the order of writes.
    let mut guard = lock();
    let file = borrowed(descriptor);
    let inode = guard.as_ref().and_then(|recorder| recorder.open.get(&descriptor).copied());
    let offset = inode.and_then(|_| rustix::fs::tell(file).ok());
    match rustix::io::write(file, bytes) {
        Ok(written) => {
            if let (Some(recorder), Some(inode), Some(offset)) = (guard.as_mut(), inode, offset) {
                let bytes = bytes[..written].to_vec();
                recorder.events.push(Event::Write { inode, offset, bytes });
            }
            isize::try_from(written).unwrap_or(isize::MAX)
        }
        Err(error) => fail(error) as isize,
    }
}

/// Stands in for the C library's function.
#[unsafe(no_mangle)]
extern "C" fn pwrite64(
    descriptor: c_int,
    buffer: *const c_void,
    count: usize,
    offset: i64,
) -> isize {
    // SAFETY: the caller lends `count` readable bytes.
    let bytes = unsafe { std::slice::from_raw_parts(buffer.cast::<u8>(), count) };
    let mut guard = lock();
    let at = u64::try_from(offset).unwrap_or(0);
    match rustix::io::pwrite(borrowed(descriptor), bytes, at) {
        Ok(written) => {
            if let Some(recorder) = guard.as_mut()
                && let Some(inode) = recorder.open.get(&descriptor).copied()
            {
                let bytes = bytes[..written].to_vec();
                recorder.events.push(Event::Write { inode, offset: at, bytes });
            }
            isize::try_from(written).unwrap_or(isize::MAX)
        }
        Err(error) => fail(error) as isize,
    }
}

fn sync(descriptor: c_int, data_only: bool) -> c_int {
    let mut guard = lock();
    let recorded = guard
        .as_mut()
        .and_then(|recorder| recorder.open.get(&descriptor).copied().map(|inode| (recorder, inode)));
    if let Some((recorder, inode)) = recorded {
        // What is recorded need not reach this machine's disk: the images are built from the record.
        recorder.events.push(Event::Sync { inode, data_only });
        return 0;
    }
    drop(guard);
    let file = borrowed(descriptor);
    answer(if data_only { rustix::fs::fdatasync(file) } else { rustix::fs::fsync(file) })
}

/// Stands in for the C library's function.
#[unsafe(no_mangle)]
extern "C" fn fsync(descriptor: c_int) -> c_int {
    sync(descriptor, false)
}

/// Stands in for the C library's function.
#[unsafe(no_mangle)]
extern "C" fn fdatasync(descriptor: c_int) -> c_int {
    sync(descriptor, true)
}

/// Stands in for the C library's function.
#[unsafe(no_mangle)]
extern "C" fn ftruncate64(descriptor: c_int, length: i64) -> c_int {
    let mut guard = lock();
    let length = u64::try_from(length).unwrap_or(0);
    let result = rustix::fs::ftruncate(borrowed(descriptor), length);
    if result.is_ok()
        && let Some(recorder) = guard.as_mut()
        && let Some(inode) = recorder.open.get(&descriptor).copied()
    {
        recorder.events.push(Event::Truncate { inode, length });
    }
    answer(result)
}

/// Stands in for the C library's function.
#[unsafe(no_mangle)]
extern "C" fn rename(from: *const c_char, to: *const c_char) -> c_int {
    let (from, to) = (path_of(from), path_of(to));
    let mut guard = lock();
    let result = rustix::fs::rename(&from, &to);
    if result.is_ok()
        && let Some(recorder) = guard.as_mut().filter(|recorder| inside(recorder, &to))
    {
        recorder.events.push(Event::Rename { from, to });
    }
    answer(result)
}

fn remove_at(dir: BorrowedFd<'_>, path: PathBuf, flags: AtFlags) -> c_int {
    let base = rustix::fs::readlink(fd_path(&dir), Vec::new());
    let full = match base {
        Ok(base) if path.is_relative() => Path::new(&*base.to_string_lossy()).join(&path),
        Ok(_) | Err(_) => path.clone(),
    };
    let mut guard = lock();
    let result = rustix::fs::unlinkat(dir, &path, flags);
    if result.is_ok()
        && let Some(recorder) = guard.as_mut().filter(|recorder| inside(recorder, &full))
    {
        recorder.events.push(Event::Unlink { path: full });
    }
    answer(result)
}

/// Stands in for the C library's function.
#[unsafe(no_mangle)]
extern "C" fn unlink(path: *const c_char) -> c_int {
    remove_at(CWD, path_of(path), AtFlags::empty())
}

/// Stands in for the C library's function.
#[unsafe(no_mangle)]
extern "C" fn rmdir(path: *const c_char) -> c_int {
    remove_at(CWD, path_of(path), AtFlags::REMOVEDIR)
}

/// Stands in for the C library's function.
#[unsafe(no_mangle)]
extern "C" fn unlinkat(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
    remove_at(borrowed(dir), path_of(path), AtFlags::from_bits_retain(flags as u32))
}

/// Stands in for the C library's function.
#[unsafe(no_mangle)]
extern "C" fn mkdir(path: *const c_char, mode: c_uint) -> c_int {
    let path = path_of(path);
    let mut guard = lock();
    let result = rustix::fs::mkdir(&path, Mode::from_raw_mode(mode));
    if result.is_ok()
        && let Some(recorder) = guard.as_mut().filter(|recorder| inside(recorder, &path))
    {
        let inode = rustix::fs::stat(&path).map(|stat| stat.st_ino).unwrap_or(0);
        recorder.events.push(Event::Create { path, inode, is_dir: true });
    }
    answer(result)
}

/// Stands in for the C library's function: forgets the descriptor, then closes it.
#[unsafe(no_mangle)]
extern "C" fn close(descriptor: c_int) -> c_int {
    with(|recorder| recorder.open.remove(&descriptor));
    // SAFETY: the caller gives the descriptor up.
    unsafe { rustix::io::close(descriptor) };
    0
}

/// Keeps the linker from dropping what only the C library's callers name.
pub fn is_linked() -> bool {
    let path = CString::new("/proc/self/exe").expect("no zero byte in it");
    let descriptor = open64(path.as_ptr(), 0, 0);
    descriptor >= 0 && borrowed(descriptor).as_fd().try_clone_to_owned().is_ok() && close(descriptor) == 0
}
