//! Who is who: names of runs as directory names, and processes as more than a number.

use std::fmt::{self, Write as _};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// The readable part of a name is cut here.
const READABLE: usize = 64;

/// Directory-safe name of one run, unique on this agent for ever.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunName(String);

impl RunName {
    /// The name of a framework's run.
    ///
    /// Readable first, then a digest of all three parts: task names may hold any bytes and be long,
    /// and two runs must never share a directory.
    #[must_use]
    pub fn for_run(framework: &str, task: &str, attempt: u32) -> Self {
        let readable: String = task
            .chars()
            .take(READABLE)
            .map(|letter| {
                if letter.is_ascii_alphanumeric() || letter == '-' {
                    letter
                } else {
                    '_'
                }
            })
            .collect();
        let mut digest = Fnv128::new();
        // Lengths first: "a" + "bc" must differ from "ab" + "c".
        for part in [framework.as_bytes(), task.as_bytes()] {
            digest.add(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_le_bytes());
            digest.add(part);
        }
        digest.add(&attempt.to_le_bytes());
        // Never a leading dot: an empty task name is a name too.
        Self(format!("t-{readable}.{attempt}.{:032x}", digest.0))
    }

    /// A name read back from a directory or the checkpoint, if it can be one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let safe = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        let fits = !text.is_empty() && text.len() <= 200 && !text.starts_with('.');
        (fits && text.chars().all(safe)).then(|| Self(text.to_owned()))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RunName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// FNV-1a of 128 bits. Two names that meet by malice only make a launch fail: the directory is
/// there.
struct Fnv128(u128);

impl Fnv128 {
    fn new() -> Self {
        Self(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 ^= u128::from(*byte);
            self.0 = self
                .0
                .wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
    }
}

/// What `/proc/<pid>/stat` says of one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessStat {
    /// Its short name.
    pub command: String,
    /// One letter.
    pub state: char,
    /// Its parent.
    pub parent: u32,
    /// Its session.
    pub session: u32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
}

impl ProcessStat {
    /// Reads it below `procfs`; `None` when there is no such process.
    #[must_use]
    pub fn read(procfs: &Path, pid: u32) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(procfs.join(format!("{pid}/stat"))).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        // The name stands in parentheses and may hold blanks and parentheses itself.
        let (before, after) = text.rsplit_once(')')?;
        let command = before.split_once('(')?.1.to_owned();
        let fields: Vec<&str> = after.split_whitespace().collect();
        // Field 3 of proc(5) is the first here.
        let number = |field: usize| fields.get(field.checked_sub(3)?)?.parse::<u64>().ok();
        Some(Self {
            command,
            state: fields.first()?.chars().next()?,
            parent: u32::try_from(number(4)?).ok()?,
            session: u32::try_from(number(6)?).ok()?,
            start_ticks: number(22)?,
        })
    }
}

/// A handle on process `pid` if it is still the one that started at `start_ticks`.
///
/// The handle is taken first and compared afterwards, so the number cannot change hands in between.
///
/// # Errors
/// The kernel refuses the handle for another reason than that there is no such process.
pub fn open_same(procfs: &Path, pid: u32, start_ticks: u64) -> io::Result<Option<OwnedFd>> {
    let Some(handle) = open(pid)? else {
        return Ok(None);
    };
    let same = ProcessStat::read(procfs, pid).is_some_and(|stat| stat.start_ticks == start_ticks);
    Ok(same.then_some(handle))
}

/// A handle on process `pid`, whoever that is now.
pub(crate) fn open(pid: u32) -> io::Result<Option<OwnedFd>> {
    let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return Ok(None);
    };
    match pidfd_open(number, PidfdFlags::empty()) {
        Ok(handle) => Ok(Some(handle)),
        Err(rustix::io::Errno::SRCH | rustix::io::Errno::INVAL) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// The process ids below `procfs`.
pub(crate) fn all_pids(procfs: &Path) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir(procfs) else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

/// The kernel function that a process waits in, and what else is worth telling of one that will
/// not go.
pub(crate) fn describe(procfs: &Path, pid: u32) -> Option<super::StuckProcess> {
    let stat = ProcessStat::read(procfs, pid)?;
    let channel = std::fs::read_to_string(procfs.join(format!("{pid}/wchan")));
    let mut wait_channel = String::new();
    // "0" means that it does not wait.
    for letter in channel
        .unwrap_or_default()
        .trim()
        .chars()
        .filter(|letter| *letter != '0')
        .take(64)
    {
        let _infallible = wait_channel.write_char(letter);
    }
    Some(super::StuckProcess {
        pid,
        state: stat.state.to_string(),
        wait_channel,
        command: stat.command,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_differ_anywhere_have_different_names() {
        let names = [
            RunName::for_run("f", "a", 1),
            RunName::for_run("f", "a", 2),
            RunName::for_run("fa", "", 1),
            RunName::for_run("g", "a", 1),
            RunName::for_run("f", "a/b", 1),
            RunName::for_run("f", "a_b", 1),
            RunName::for_run("f", &"x".repeat(253), 1),
            RunName::for_run("f", &"x".repeat(252), 1),
        ];

        let distinct: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len(), "{names:?}");
        for name in &names {
            assert_eq!(
                RunName::parse(name.as_str()).as_ref(),
                Some(name),
                "readable again"
            );
        }
    }

    #[test]
    fn a_name_that_would_leave_its_directory_is_none() {
        for text in ["", ".", "..", "a/b", "a\0", ".hidden", "é"] {
            assert_eq!(RunName::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_process_that_names_itself_like_a_stat_line_is_read_right() {
        let text = "7 (a) b (c) R 1 7 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0";

        let stat = ProcessStat::parse(text).expect("a stat line");

        assert_eq!(stat.command, "a) b (c");
        assert_eq!(
            (stat.state, stat.parent, stat.session, stat.start_ticks),
            ('R', 1, 7, 4711)
        );
    }

    #[test]
    fn our_own_process_is_known_by_its_start_and_a_stranger_is_not() {
        let procfs = Path::new("/proc");
        let own = std::process::id();
        let stat = ProcessStat::read(procfs, own).expect("we are alive");

        let same = open_same(procfs, own, stat.start_ticks).expect("pidfd_open works");
        let other = open_same(procfs, own, stat.start_ticks + 1).expect("pidfd_open works");

        assert!(same.is_some());
        assert!(other.is_none(), "another start time is another process");
    }
}
