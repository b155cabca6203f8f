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
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::os::fd::{BorrowedFd, IntoRawFd as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};

/// One thing done to a file. Files have numbers; names come and go.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// A file or directory appeared under a name.
    Create {
        path: PathBuf,
        file: FileId,
        is_dir: bool,
    },
    /// A file's length was set.
    Truncate { file: FileId, length: u64 },
    /// Bytes were written.
    Write {
        file: FileId,
        offset: u64,
        bytes: Vec<u8>,
    },
    /// Everything written to the file so far reached the disk. `data_only`: by fdatasync.
    Sync { file: FileId, data_only: bool },
    /// A name moved.
    Rename { from: PathBuf, to: PathBuf },
    /// A name went away.
    Unlink { path: PathBuf },
    /// The workload was told that everything up to here is safe.
    Mark(usize),
}

/// Our own number of a file: inodes are used again after a file is gone.
pub(crate) type FileId = u64;

#[derive(Default)]
struct Recorder {
    root: Option<PathBuf>,
    open: HashMap<c_int, FileId>,
    files: HashMap<u64, FileId>,
    events: Vec<Event>,
}

impl Recorder {
    fn create(&mut self, path: PathBuf, inode: u64, is_dir: bool) -> FileId {
        let file = self.files.len() as u64 + self.events.len() as u64 + 1;
        self.files.insert(inode, file);
        self.events.push(Event::Create { path, file, is_dir });
        file
    }
}

static RECORDER: Mutex<Option<Recorder>> = Mutex::new(None);

fn lock() -> MutexGuard<'static, Option<Recorder>> {
    RECORDER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Begins to record everything below `root` (which must have no symbolic links in it).
pub(crate) fn start(root: &Path) {
    let mut recorder = Recorder {
        root: Some(root.to_owned()),
        ..Recorder::default()
    };
    let inode = rustix::fs::stat(root)
        .map(|stat| stat.st_ino)
        .expect("the root is there");
    recorder.create(root.to_owned(), inode, true);
    *lock() = Some(recorder);
}

/// Ends the recording.
pub(crate) fn stop() -> Vec<Event> {
    lock()
        .take()
        .map(|recorder| recorder.events)
        .unwrap_or_default()
}

/// Notes an acknowledgement.
pub(crate) fn mark(number: usize) {
    with(|recorder| recorder.events.push(Event::Mark(number)));
}

fn with<T>(work: impl FnOnce(&mut Recorder) -> T) -> Option<T> {
    lock().as_mut().map(work)
}

fn inside(recorder: &Recorder, path: &Path) -> bool {
    recorder
        .root
        .as_ref()
        .is_some_and(|root| path.starts_with(root))
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
    let flags = OFlags::from_bits_retain(flags.cast_unsigned());
    let existed = rustix::fs::statat(dir, &name, AtFlags::empty()).is_ok();
    let opened = rustix::fs::openat(dir, &name, flags, Mode::from_raw_mode(mode & 0o7777));
    let file = match opened {
        Ok(file) => file,
        Err(error) => return fail(error),
    };
    let full = rustix::fs::readlink(fd_path(&file), Vec::new());
    let inode = rustix::fs::fstat(&file)
        .map(|stat| stat.st_ino)
        .unwrap_or(0);
    let descriptor = file.into_raw_fd();
    let full = full.map(|text| PathBuf::from(text.to_string_lossy().into_owned()));
    with(|recorder| {
        let Ok(full) = full else { return };
        if !inside(recorder, &full) {
            recorder.open.remove(&descriptor);
            return;
        }
        let known = recorder.files.get(&inode).copied().filter(|_| existed);
        let file = known.unwrap_or_else(|| recorder.create(full, inode, false));
        recorder.open.insert(descriptor, file);
        if known.is_some() && flags.contains(OFlags::TRUNC) {
            recorder.events.push(Event::Truncate { file, length: 0 });
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
    let file = guard
        .as_ref()
        .and_then(|recorder| recorder.open.get(&descriptor).copied());
    let offset = file.and_then(|_| rustix::fs::tell(borrowed(descriptor)).ok());
    match rustix::io::write(borrowed(descriptor), bytes) {
        Ok(written) => {
            if let (Some(recorder), Some(file), Some(offset)) = (guard.as_mut(), file, offset) {
                let bytes = bytes[..written].to_vec();
                recorder.events.push(Event::Write {
                    file,
                    offset,
                    bytes,
                });
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
                && let Some(file) = recorder.open.get(&descriptor).copied()
            {
                let bytes = bytes[..written].to_vec();
                recorder.events.push(Event::Write {
                    file,
                    offset: at,
                    bytes,
                });
            }
            isize::try_from(written).unwrap_or(isize::MAX)
        }
        Err(error) => fail(error) as isize,
    }
}

/// Notes a sync and does none: the images are built from the record, so this machine's disk need
/// not be troubled, neither while recording nor while hundreds of images are opened.
fn sync(descriptor: c_int, data_only: bool) -> c_int {
    with(|recorder| {
        if let Some(file) = recorder.open.get(&descriptor).copied() {
            recorder.events.push(Event::Sync { file, data_only });
        }
    });
    0
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
        && let Some(file) = recorder.open.get(&descriptor).copied()
    {
        recorder.events.push(Event::Truncate { file, length });
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
    remove_at(
        borrowed(dir),
        path_of(path),
        AtFlags::from_bits_retain(flags.cast_unsigned()),
    )
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
        recorder.create(path, inode, true);
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
