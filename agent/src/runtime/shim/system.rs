//! System calls of the shim that no crate wraps safely.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::FromRawFd;

/// Signals that the shim takes from a descriptor instead of a handler.
const TAKEN: [libc::c_int; 4] = [libc::SIGCHLD, libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// The descriptor through which signals come; reading it never blocks.
#[derive(Debug)]
pub(super) struct Signals {
    pub(super) file: File,
}

impl Signals {
    /// Blocks exactly these signals and opens the descriptor: the agent starts a shim with all of
    /// them blocked.
    #[expect(unsafe_code, reason = "no safe wrapper of signalfd exists")]
    pub(super) fn open() -> io::Result<Self> {
        // SAFETY: the set is initialised before use and lives across the calls; the descriptor is
        // new and owned by nobody else.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for signal in TAKEN {
                libc::sigaddset(&raw mut set, signal);
            }
            if libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
            let number = libc::signalfd(-1, &raw const set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC);
            if number < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Self {
                file: File::from_raw_fd(number),
            })
        }
    }

    /// Whether a signal asks the shim to stop its run. Takes all that are there.
    pub(super) fn take(&mut self) -> bool {
        let mut stop = false;
        let mut bytes = [0_u8; size_of::<libc::signalfd_siginfo>()];
        while self
            .file
            .read(&mut bytes)
            .is_ok_and(|read| read == bytes.len())
        {
            // The signal's number is the first field.
            let number = bytes
                .first_chunk::<4>()
                .map(|bytes| u32::from_ne_bytes(*bytes));
            // A terminal that closes says nothing about the run; a hang-up is passed over.
            stop |= [libc::SIGTERM, libc::SIGINT]
                .iter()
                .any(|signal| u32::try_from(*signal).ok() == number);
        }
        stop
    }
}

/// In the child: every signal as a fresh program expects it.
#[expect(unsafe_code, reason = "no safe wrapper of signal dispositions exists")]
pub(super) fn reset_signals() -> io::Result<()> {
    // What the kernel reads: handler, flags, restorer and mask, all of them zero; no machine's is
    // larger.
    let default = [0_u64; 8];
    for signal in 1..=64 {
        // SAFETY: the default disposition takes no pointer of ours. Not through the C library,
        // which hides two signals of its own that the agent may have been started with ignored.
        // SIGKILL and SIGSTOP are refused, which is what is wanted.
        unsafe {
            let none: *const u64 = std::ptr::null();
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                none,
                8_usize,
            )
        };
    }
    // SAFETY: the set is initialised before use and lives across the call.
    let set = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut())
    };
    if set == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// In the child: the normal policy. A real-time process cannot enter a v1 cpu cgroup.
#[expect(unsafe_code, reason = "no safe wrapper of sched_setscheduler exists")]
pub(super) fn normal_scheduling() -> io::Result<()> {
    // SAFETY: the parameter lives across the call.
    let set = unsafe {
        let parameter: libc::sched_param = std::mem::zeroed();
        libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const parameter)
    };
    if set == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// CPU time and largest memory of all children that were waited for: nanoseconds, bytes.
#[expect(unsafe_code, reason = "no safe wrapper of getrusage exists")]
pub(super) fn children_usage() -> (u64, u64) {
    // SAFETY: the structure is plain data and lives across the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        if libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) != 0 {
            return (0, 0);
        }
        usage
    };
    let nanos = |time: libc::timeval| {
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let micros = u64::try_from(time.tv_usec).unwrap_or(0);
        seconds
            .saturating_mul(1_000_000_000)
            .saturating_add(micros.saturating_mul(1000))
    };
    let cpu = nanos(usage.ru_utime).saturating_add(nanos(usage.ru_stime));
    (
        cpu,
        u64::try_from(usage.ru_maxrss)
            .unwrap_or(0)
            .saturating_mul(1024),
    )
}

/// The descriptor that the agent gave this shim at its start, if it is open and a socket.
#[expect(
    unsafe_code,
    reason = "an inherited descriptor is only a number until it is owned"
)]
pub(super) fn inherited_connection() -> Option<std::os::unix::net::UnixStream> {
    const CONNECTION: libc::c_int = 3;
    // SAFETY: asks for the kind of a descriptor; a number that is not open is refused.
    let (known, kind) = unsafe {
        let mut kind: libc::c_int = 0;
        let mut size = libc::socklen_t::try_from(size_of::<libc::c_int>()).ok()?;
        let known = libc::getsockopt(
            CONNECTION,
            libc::SOL_SOCKET,
            libc::SO_DOMAIN,
            (&raw mut kind).cast(),
            &raw mut size,
        );
        (known, kind)
    };
    if known != 0 || kind != libc::AF_UNIX {
        return None;
    }
    // SAFETY: the agent opened it for us before execve and nothing here owns it yet: this is called
    // once, before any other descriptor is made.
    Some(unsafe { std::os::unix::net::UnixStream::from_raw_fd(CONNECTION) })
}
