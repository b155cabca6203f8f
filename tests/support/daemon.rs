//! One long-running process of a site, its log, and its end.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::{METE, NOBODY, Site, until};

/// A process that was started from the built program.
#[derive(Debug)]
pub(crate) struct Daemon {
    /// Its arguments, to start it again.
    pub(crate) args: Vec<String>,
    /// How often it was started.
    pub(crate) starts: u32,
    child: Child,
    ended: Option<ExitStatus>,
    log: PathBuf,
}

impl Daemon {
    /// Starts it; stdout and stderr go to a file of their own.
    pub(crate) fn start(site: &Site, name: &str, args: &[&str]) -> Self {
        Self::start_again(site, name, args, 0)
    }

    /// The same after so many starts.
    pub(crate) fn start_again(site: &Site, name: &str, args: &[&str], starts: u32) -> Self {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let mut command = program(site, METE);
        command.args(&args);
        Self::spawn(site, name, command, args, starts + 1)
    }

    /// As `old`, in a mount namespace of its own, after a command of the shell.
    pub(crate) fn start_under(site: &Site, name: &str, old: &Self, shell: &str) -> Self {
        let mut command = program(site, "unshare");
        let script = format!("{shell} && exec \"$@\"");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
        command.arg(site.root()).arg(METE).args(&old.args);
        Self::spawn(site, name, command, old.args.clone(), old.starts + 1)
    }

    /// As a user who may do nothing special; the program is the site's copy.
    pub(crate) fn start_as_nobody(site: &Site, name: &str, args: &[&str]) -> Self {
        use std::os::unix::process::CommandExt;
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let mut command = program(site, &site.arg("mete"));
        command.args(&args).uid(NOBODY).gid(NOBODY);
        Self::spawn(site, name, command, args, 1)
    }

    fn spawn(
        site: &Site,
        name: &str,
        mut command: Command,
        args: Vec<String>,
        starts: u32,
    ) -> Self {
        let log = site.path("logs").join(format!("{name}.{starts}"));
        let file = File::create(&log).expect("a log file");
        command.stdin(Stdio::null());
        command
            .stdout(file.try_clone().expect("a second handle"))
            .stderr(file);
        let child = command.spawn().expect("the program starts");
        Self {
            args,
            starts,
            child,
            ended: None,
            log,
        }
    }

    /// What this start has said so far; an error with it when the process has ended by itself.
    pub(crate) fn alive(&mut self) -> Result<String, String> {
        let said = self.said();
        match self.status() {
            None => Ok(said),
            Some(status) => panic!("{:?} ended by itself with {status}: {said}", self.args),
        }
    }

    /// What this start has said so far.
    pub(crate) fn said(&self) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub(crate) fn status(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().expect("the child can be waited for");
        }
        self.ended
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        until(&format!("{:?} to end", self.args), || {
            self.status().ok_or_else(String::new)
        })
    }

    /// SIGKILL, and no more of it when this returns.
    pub(crate) fn kill(&mut self) {
        if self.status().is_none() {
            // It may have ended at this very moment.
            let _ended = self.child.kill();
            self.ended = Some(self.child.wait().expect("the child can be waited for"));
        }
    }

    /// SIGTERM, and its end; it must be a good one.
    pub(crate) fn stop(&mut self) {
        self.signal(Signal::TERM);
        let status = self.wait();
        assert!(
            status.success(),
            "stopped politely it ended with {status}: {}",
            self.said()
        );
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a process id"), signal).expect("the signal is sent");
    }
}

/// A program in the surroundings of a site: its own configuration, its own home.
pub(crate) fn program(site: &Site, program: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("METE_") {
            command.env_remove(name);
        }
    }
    command
        .current_dir(site.path("work"))
        .env("METE_CONFIG", site.path("config.toml"))
        .env("METE_LOG", "mete=info,warn")
        .env("HOME", site.root())
        .env("TMPDIR", site.path("tmp"))
        .env("USER", "tester")
        .env("NO_COLOR", "1")
        .env("RUST_BACKTRACE", "1");
    if !site.address().is_empty() {
        command.env("METE_MASTER", site.address());
    }
    command
}
