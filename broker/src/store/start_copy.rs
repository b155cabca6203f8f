//! The engine opens a copy of the live generation, never the live one.
//!
//! Opening is where the engine is least careful: it cuts torn ends off, overwrites segments that it
//! found unused without a sync, and renames its recovery snapshot without syncing the directory. A
//! power cut in that moment can leave an old recovery snapshot beside overwritten segments, which
//! no later start can read (the power-cut replay found it). So a start copies the generation, opens
//! the copy, checks it, and only then makes it the live one. What CURRENT names is never touched by
//! an opening, and a store that is refused stays exactly as it was found.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::fs::FlockOperation;

use crate::store::layout;

/// How long an engine that was closed in this very process may take to let go of its file.
const LOCK_TRIES: u32 = 40;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// The files of a generation that a copy takes along: not the engine's unfinished ones.
fn is_wanted(name: &str) -> bool {
    name == "conf" || name == "db" || (name.starts_with("snap.") && !name.ends_with("generating"))
}

/// Bytes that a copy of the generation takes.
pub(super) fn bytes(generation: &Path) -> io::Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(generation)? {
        let entry = entry?;
        if is_wanted(&entry.file_name().to_string_lossy()) {
            sum += entry.metadata()?.len();
        }
    }
    Ok(sum)
}

/// Copies the generation in `from` to `to`, replacing what an earlier start left there. Durable on
/// return, except the name of `to` itself.
pub(super) fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let _lock = engine_lock(&from.join("db"))?;
    if to.exists() {
        fs::remove_dir_all(to)?;
    }
    fs::create_dir_all(to.join("blobs"))?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if is_wanted(&entry.file_name().to_string_lossy()) {
            let target = to.join(entry.file_name());
            copy_file(&entry.path(), &target)?;
        }
    }
    layout::sync_dir(&to.join("blobs"))?;
    layout::sync_dir(to)
}

fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    let (mut source, mut target) = (File::open(from)?, File::create(to)?);
    let mut buffer = vec![0_u8; 1 << 20];
    loop {
        let taken = io::Read::read(&mut source, &mut buffer)?;
        let Some(part) = buffer.get(..taken).filter(|part| !part.is_empty()) else {
            break;
        };
        io::Write::write_all(&mut target, part)?;
    }
    target.sync_all()
}

/// Waits until an engine of this process, closed a moment ago, has written its last. Other
/// processes are kept out by the store's own lock.
fn engine_lock(data: &Path) -> io::Result<File> {
    let file = File::open(data)?;
    let mut tries = 0;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(error) if error == rustix::io::Errno::WOULDBLOCK && tries < LOCK_TRIES => {
                tries += 1;
                std::thread::sleep(LOCK_PAUSE);
            }
            Err(error) => return Err(error.into()),
        }
    }
}
