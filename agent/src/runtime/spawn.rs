//! The one place where processes are made: `clone3` straight into a control group, with a handle.
//!
//! Entering a cgroup by being born in it costs a fraction of moving there. Two callers: the agent
//! (many threads and much memory: its child borrows the memory and may only make system calls until
//! it executes) and the shim (one thread, little memory: its child is a copy).

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

/// Which side of the fork this is.
#[derive(Debug)]
pub enum Forked {
    /// The parent.
    Parent {
        /// Process id of the child.
        pid: u32,
        /// Handle on the child.
        handle: OwnedFd,
        /// Whether the child was born in the wanted cgroup.
        born_inside: bool,
    },
    /// The child.
    Child {
        /// Whether this process was born in the wanted cgroup.
        born_inside: bool,
    },
}

/// Makes a child process, in the v2 cgroup directory `cgroup` if one is given and the kernel can.
///
/// # Errors
/// The kernel refuses: too many processes, no memory.
///
/// # Safety
/// In the child of a process with several threads, only async-signal-safe things may be done until
/// execve or _exit: no allocation, no locks, no panic. A process with one thread is free.
#[expect(unsafe_code, reason = "no safe wrapper of clone3 exists")]
pub unsafe fn fork_into(cgroup: Option<BorrowedFd<'_>>) -> io::Result<Forked> {
    if let Some(directory) = cgroup {
        // SAFETY: the caller's promise is passed on.
        match unsafe { clone3(Some(directory)) } {
            // Kernels before 5.7 know the call but not the cgroup.
            Err(error) if matches!(error.raw_os_error(), Some(libc::E2BIG | libc::EINVAL)) => {}
            other => return other,
        }
    }
    // SAFETY: the caller's promise is passed on.
    unsafe { clone3(None) }
}

#[expect(unsafe_code, reason = "no safe wrapper of clone3 exists")]
unsafe fn clone3(cgroup: Option<BorrowedFd<'_>>) -> io::Result<Forked> {
    let mut handle: RawFd = -1;
    // SAFETY: all-zero is the neutral value of this plain C structure.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = u64::try_from(libc::CLONE_PIDFD).unwrap_or(0);
    arguments.pidfd = (&raw mut handle) as u64;
    arguments.exit_signal = u64::try_from(libc::SIGCHLD).unwrap_or(0);
    let mut size = 64_usize;
    if let Some(directory) = cgroup {
        arguments.flags |= INTO_CGROUP;
        arguments.cgroup = u64::try_from(directory.as_raw_fd()).unwrap_or(0);
        size = size_of::<libc::clone_args>();
    }
    let born_inside = cgroup.is_some();
    // SAFETY: the arguments live across the call, no new stack is asked for, so this returns twice
    // like fork(2); the caller keeps to what its child may do.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw mut arguments, size) };
    match pid {
        0 => Ok(Forked::Child { born_inside }),
        pid if pid > 0 => {
            // SAFETY: the kernel has just given us this descriptor.
            let handle = unsafe { OwnedFd::from_raw_fd(handle) };
            let pid = u32::try_from(pid).map_err(io::Error::other)?;
            Ok(Forked::Parent {
                pid,
                handle,
                born_inside,
            })
        }
        _ => Err(io::Error::last_os_error()),
    }
}

const INTO_CGROUP: u64 = 0x2_0000_0000;

/// What a detached program starts with: its descriptors are 0 to 4 and no others.
#[derive(Debug)]
pub struct Detached<'a> {
    /// The program.
    pub program: &'a Path,
    /// argv, the program's name first.
    pub arguments: &'a [CString],
    /// Descriptor 2: where it may complain. 0 and 1 are `/dev/null`.
    pub errors: &'a File,
    /// Descriptor 3.
    pub connection: BorrowedFd<'a>,
    /// Descriptor 4: kept open for its lock.
    pub lock: BorrowedFd<'a>,
    /// Where it is born.
    pub cgroup: Option<BorrowedFd<'a>>,
}

/// On a failed execve the child writes this length, which no frame has, and the errno, into its
/// connection.
pub const EXEC_FAILED: u32 = u32::MAX;

/// Everything the child of [`detached`] needs, made before it is born.
struct Becoming<'a> {
    program: &'a CStr,
    argv: &'a [*const libc::c_char],
    environment: &'a [*const libc::c_char],
    sources: [RawFd; 5],
}

/// Starts a program in a session of its own, with an empty environment and all signals blocked: it
/// says itself which it takes.
///
/// # Errors
/// The process cannot be made. A failure of execve itself comes through the connection.
#[expect(
    unsafe_code,
    reason = "between fork and execve only raw system calls are allowed"
)]
pub fn detached(start: &Detached<'_>) -> io::Result<(u32, OwnedFd)> {
    use std::os::unix::ffi::OsStrExt;

    let program = CString::new(start.program.as_os_str().as_bytes())?;
    let mut argv: Vec<*const libc::c_char> = start
        .arguments
        .iter()
        .map(|argument| argument.as_ptr())
        .collect();
    argv.push(std::ptr::null());
    let environment: [*const libc::c_char; 1] = [std::ptr::null()];
    // Above the targets, so that no dup2 below overwrites a later source.
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let null = rustix::io::fcntl_dupfd_cloexec(&null, 10)?;
    let errors = rustix::io::fcntl_dupfd_cloexec(start.errors, 10)?;
    let connection = rustix::io::fcntl_dupfd_cloexec(start.connection, 10)?;
    let lock = rustix::io::fcntl_dupfd_cloexec(start.lock, 10)?;
    let sources = [
        null.as_raw_fd(),
        null.as_raw_fd(),
        errors.as_raw_fd(),
        connection.as_raw_fd(),
        lock.as_raw_fd(),
    ];
    let becoming = Becoming {
        program: &program,
        argv: &argv,
        environment: &environment,
        sources,
    };
    // A signal handler of this process must not run in a child that shares its memory.
    let before = block_signals()?;
    // SAFETY: the child does nothing but system calls on values made before its birth.
    let born = unsafe { born(start.cgroup, &becoming) };
    restore_signals(&before);
    born
}

#[expect(unsafe_code, reason = "no safe wrapper of signal masks exists")]
fn block_signals() -> io::Result<libc::sigset_t> {
    // SAFETY: the sets are plain data, initialised before use, and live across the calls.
    unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) =
            (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        match libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before) {
            0 => Ok(before),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

#[expect(unsafe_code, reason = "no safe wrapper of signal masks exists")]
fn restore_signals(before: &libc::sigset_t) {
    // SAFETY: the set came from the same call; it cannot be refused.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
}

/// The birth of [`detached`]: a child that borrows this process's memory until it executes, so that
/// an agent of any size starts a program in the same time.
///
/// # Safety
/// As for [`fork_into`]; all signals are blocked.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "no safe wrapper of clone3 exists")]
unsafe fn born(
    cgroup: Option<BorrowedFd<'_>>,
    becoming: &Becoming<'_>,
) -> io::Result<(u32, OwnedFd)> {
    if let Some(directory) = cgroup {
        // SAFETY: the caller's promise is passed on.
        match unsafe { borrow_memory(Some(directory), becoming) } {
            // Kernels before 5.7 know the call but not the cgroup.
            Err(error) if matches!(error.raw_os_error(), Some(libc::E2BIG | libc::EINVAL)) => {}
            other => return other,
        }
    }
    // SAFETY: the caller's promise is passed on.
    unsafe { borrow_memory(None, becoming) }
}

/// The same with a copy of this process's memory, on machines for which nobody has written the few
/// instructions of the other way.
#[cfg(not(target_arch = "x86_64"))]
#[expect(unsafe_code, reason = "no safe wrapper of clone3 exists")]
unsafe fn born(
    cgroup: Option<BorrowedFd<'_>>,
    becoming: &Becoming<'_>,
) -> io::Result<(u32, OwnedFd)> {
    // SAFETY: the caller's promise is passed on.
    match unsafe { fork_into(cgroup)? } {
        Forked::Parent { pid, handle, .. } => Ok((pid, handle)),
        // SAFETY: raw system calls on descriptors and pointers that outlive them; never returns.
        Forked::Child { .. } => unsafe { become_program(becoming) },
    }
}

/// `clone3` as vfork(2) does it, on a stack of its own: this thread waits until the child executes
/// or ends.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "no safe wrapper of clone3 exists")]
unsafe fn borrow_memory(
    cgroup: Option<BorrowedFd<'_>>,
    becoming: &Becoming<'_>,
) -> io::Result<(u32, OwnedFd)> {
    /// Far more than a few system calls need.
    const STACK: usize = 64 << 10;

    extern "C" fn child(becoming: &Becoming<'_>) -> ! {
        // SAFETY: this is the child; everything it is given outlives its execve.
        unsafe { become_program(becoming) }
    }

    // Of 16 bytes each: the alignment of a stack.
    let mut stack: Vec<u128> = Vec::with_capacity(STACK / size_of::<u128>());
    let mut handle: RawFd = -1;
    // SAFETY: all-zero is the neutral value of this plain C structure.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    let flags = libc::CLONE_PIDFD | libc::CLONE_VM | libc::CLONE_VFORK;
    arguments.flags = u64::try_from(flags).unwrap_or(0);
    arguments.pidfd = (&raw mut handle) as u64;
    arguments.exit_signal = u64::try_from(libc::SIGCHLD).unwrap_or(0);
    arguments.stack = stack.as_mut_ptr() as u64;
    arguments.stack_size = u64::try_from(STACK).unwrap_or(0);
    let mut size = 64_usize;
    if let Some(directory) = cgroup {
        arguments.flags |= INTO_CGROUP;
        arguments.cgroup = u64::try_from(directory.as_raw_fd()).unwrap_or(0);
        size = size_of::<libc::clone_args>();
    }
    let result: libc::c_long;
    // SAFETY: the kernel keeps the child's registers but for the result and the stack pointer,
    // which then points to the end of a stack that nobody else uses; the child calls a function
    // that never returns. Here the call is an ordinary one that clobbers what is named.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone3 => result,
            in("rdi") &raw mut arguments,
            in("rsi") size,
            in("r12") becoming,
            in("r13") child as extern "C" fn(&Becoming<'_>) -> !,
            out("rcx") _,
            out("r11") _,
        );
    }
    drop(stack);
    if result < 0 {
        let errno = i32::try_from(-result).unwrap_or(libc::EIO);
        return Err(io::Error::from_raw_os_error(errno));
    }
    // SAFETY: the kernel has just given us this descriptor.
    let handle = unsafe { OwnedFd::from_raw_fd(handle) };
    Ok((u32::try_from(result).map_err(io::Error::other)?, handle))
}

/// The child's part of [`detached`].
#[expect(
    unsafe_code,
    reason = "between fork and execve only raw system calls are allowed"
)]
unsafe fn become_program(becoming: &Becoming<'_>) -> ! {
    let Becoming {
        program,
        argv,
        environment,
        sources,
    } = becoming;
    // SAFETY: each is an async-signal-safe system call; the pointers are NUL-terminated strings and
    // NULL-terminated arrays that the caller keeps alive; on failure the process ends here.
    unsafe {
        libc::setsid();
        for (target, source) in (0..).zip(sources) {
            if libc::dup2(*source, target) < 0 {
                libc::_exit(127);
            }
        }
        close_from(5);
        libc::chdir(c"/".as_ptr());
        libc::execve(program.as_ptr(), argv.as_ptr(), environment.as_ptr());
        let errno = *libc::__errno_location();
        let mut told = [0_u8; 8];
        let (length, number) = told.split_at_mut(4);
        length.copy_from_slice(&EXEC_FAILED.to_be_bytes());
        number.copy_from_slice(&errno.to_be_bytes());
        libc::write(3, told.as_ptr().cast(), told.len());
        libc::_exit(127)
    }
}

/// Closes every descriptor from `first` on. Async-signal-safe.
#[expect(unsafe_code, reason = "no safe wrapper of close_range exists")]
fn close_from(first: libc::c_uint) {
    // SAFETY: closing descriptors of this process, right before it executes something else.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0_u32) };
    if closed != 0 {
        // Before kernel 5.9: one by one, as far as descriptors may reach here.
        for number in first..65_536 {
            // SAFETY: as above.
            unsafe { libc::close(libc::c_int::try_from(number).unwrap_or(-1)) };
        }
    }
}

/// Whether a process can be born in the cgroup `directory`: tried with one that leaves at once.
///
/// # Errors
/// No process can be made at all.
#[expect(unsafe_code, reason = "tries the very call that starts use")]
pub(crate) fn can_be_born_in(directory: &File) -> io::Result<bool> {
    // SAFETY: the child leaves at once, with a system call and nothing else.
    match unsafe { fork_into(Some(directory.as_fd()))? } {
        Forked::Child { .. } => leave(0),
        Forked::Parent {
            handle,
            born_inside,
            ..
        } => {
            let options = rustix::process::WaitIdOptions::EXITED;
            rustix::process::waitid(rustix::process::WaitId::PidFd(handle.as_fd()), options)?;
            Ok(born_inside)
        }
    }
}

/// Marks every descriptor from `first` on as closed by the next execve.
#[expect(unsafe_code, reason = "no safe wrapper of close_range exists")]
pub(crate) fn close_on_exec_from(first: libc::c_uint) {
    // SAFETY: only a flag of this process's own descriptors changes.
    let marked = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            first,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    if marked == 0 {
        return;
    }
    for number in first..65_536 {
        let number = libc::c_int::try_from(number).unwrap_or(-1);
        // SAFETY: as above; a number that is not open is refused with EBADF.
        unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

/// Ends this process at once, without running anything of the parent's that was copied into it.
#[expect(unsafe_code, reason = "std has no _exit")]
pub(crate) fn leave(code: i32) -> ! {
    // SAFETY: ends the process; nothing of it is used afterwards.
    unsafe { libc::_exit(code) }
}
