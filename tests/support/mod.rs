//! A cluster of real processes for one story: started, killed, started again, asked, always reaped.
//!
//! A [`Site`] is a temporary directory in which everything lives: states, runs, logs, the command
//! line's configuration. Daemons are the built `mete` and nothing else; the stories look through
//! the command line with `-o json`, through the SDK, or through gRPC. Nothing sleeps and hopes:
//! everything waits for a condition with a deadline. When a story fails, what the cluster says
//! about itself is printed with the logs. Whatever happens, no process of a site outlives it.

#![expect(dead_code, reason = "each story uses its own part of it")]

pub(crate) mod ask;
pub(crate) mod daemon;
pub(crate) mod framework;
pub(crate) mod reap;
pub(crate) mod relay;
pub(crate) mod schema;
pub(crate) mod trio;

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use self::ask::Answer;
use self::daemon::Daemon;

/// The program under test.
pub(crate) const METE: &str = env!("CARGO_BIN_EXE_mete");

/// Longest wait for any one condition; generous, since two cores may be busy with other tests.
pub(crate) const DEADLINE: Duration = Duration::from_secs(90);

/// How `mete dev` is started here.
const DEV: &[&str] = &[
    "dev",
    "--headless",
    "--ready-json",
    "--listen",
    "127.0.0.1:0",
];

/// A user that owns nothing.
pub(crate) const NOBODY: u32 = 65_534;

static SITES: AtomicU32 = AtomicU32::new(0);

/// Looks until the condition holds; the last reason why it does not is what a failure says.
pub(crate) fn until<T>(what: &str, look: impl FnMut() -> Result<T, String>) -> T {
    within(DEADLINE, what, look)
}

/// The same with another deadline.
pub(crate) fn within<T>(
    deadline: Duration,
    what: &str,
    mut look: impl FnMut() -> Result<T, String>,
) -> T {
    let began = Instant::now();
    loop {
        let why = match look() {
            Ok(found) => return found,
            Err(why) => why,
        };
        assert!(
            began.elapsed() < deadline,
            "waited {deadline:?} for {what}; {why}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// `Ok` when it holds, else what is said.
pub(crate) fn holds(condition: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if condition { Ok(()) } else { Err(why()) }
}

/// Says loudly that a part was not tested; with METE_ALL=1 that is a failure.
pub(crate) fn skip(what: &str) {
    let all = std::env::var_os("METE_ALL").is_some_and(|all| all != "0");
    assert!(
        !all,
        "METE_ALL is set and this cannot be tested here: {what}"
    );
    eprintln!("SKIPPED: {what}");
}

/// One cluster in one temporary directory.
#[derive(Debug)]
pub(crate) struct Site {
    directory: tempfile::TempDir,
    /// Unique on this machine for as long as the test runs; part of every node's name.
    pub(crate) mark: String,
    address: String,
    daemons: BTreeMap<String, Daemon>,
}

impl Site {
    /// An empty site: nothing runs.
    pub(crate) fn new() -> Self {
        let number = SITES.fetch_add(1, Ordering::Relaxed);
        let mark = format!("{}-{number}", std::process::id());
        let directory = tempfile::Builder::new()
            .prefix(&format!("mete-site-{mark}-"))
            .tempdir()
            .expect("a temporary directory");
        for name in ["logs", "work", "tmp"] {
            std::fs::create_dir(directory.path().join(name)).expect("a directory of the site");
        }
        Self {
            directory,
            mark,
            address: String::new(),
            daemons: BTreeMap::new(),
        }
    }

    /// A master, one agent on this whole machine, the batch framework: each a process.
    pub(crate) fn cluster() -> Self {
        let mut site = Self::new();
        site.start_master();
        site.start_agent("n1", &[]);
        site.start_batch();
        site
    }

    /// `mete dev` with these flags.
    pub(crate) fn dev(flags: &[&str]) -> Self {
        let mut site = Self::new();
        site.spawn("dev", &[DEV, flags].concat());
        site.wait_for_dev();
        site
    }

    /// `mete dev` of an ordinary user, also when the tests run as root.
    pub(crate) fn dev_as_nobody() -> Self {
        let mut site = Self::new();
        // The program may lie where only its owner may go.
        std::fs::copy(METE, site.path("mete")).expect("a copy of the program");
        for name in ["", "logs", "work", "tmp"] {
            let path = site.path(name);
            std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).expect("root gives away");
        }
        let started = Daemon::start_as_nobody(&site, "dev", DEV);
        site.daemons.insert("dev".to_owned(), started);
        site.wait_for_dev();
        site
    }

    fn wait_for_dev(&mut self) {
        let ready: Value = until("mete dev to be ready", || {
            let said = self.daemon("dev").alive()?;
            let line = said.lines().find(|line| line.contains("DevReady"));
            line.and_then(|line| serde_json::from_str(line).ok())
                .ok_or(said)
        });
        self.address = ready["masters"][0]
            .as_str()
            .expect("a master's address")
            .to_owned();
    }

    /// A path in the site.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The site itself.
    pub(crate) fn root(&self) -> &Path {
        self.directory.path()
    }

    /// A path in the site, as an argument.
    pub(crate) fn arg(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// The master's `host:port`; empty before there is one.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Says where the master is that a story started by itself.
    pub(crate) fn set_address(&mut self, address: &str) {
        address.clone_into(&mut self.address);
    }

    /// The name of a node of this site in the cluster.
    pub(crate) fn node(&self, name: &str) -> String {
        format!("{name}-{}", self.mark)
    }

    /// Founds the cluster and starts its master; makes the role `batch`.
    pub(crate) fn start_master(&mut self) {
        self.found_master();
        self.start_founded_master();
        for role in ["batch", "service", "dev"] {
            self.mete(&["quota", "set", role]).done();
        }
    }

    /// `mete master init`, and a port that stays the same over restarts.
    pub(crate) fn found_master(&mut self) {
        let state = self.arg("master");
        self.mete(&["master", "init", "--state-dir", &state]).done();
        self.address = format!("127.0.0.1:{}", free_port());
    }

    /// `mete master start` on a founded directory; waits until it leads.
    pub(crate) fn start_founded_master(&mut self) {
        let (state, listen) = (self.arg("master"), self.address.clone());
        self.spawn(
            "master",
            &[
                "master",
                "start",
                "--state-dir",
                &state,
                "--listen",
                &listen,
            ],
        );
        self.wait_for_master();
    }

    /// Waits until the master leads and answers.
    pub(crate) fn wait_for_master(&mut self) {
        until("the master to lead", || {
            self.daemon("master").alive()?;
            let answer = self.mete(&["status", "-o", "json", "--timeout", "5s"]);
            holds(answer.code == 0, || answer.to_string())
        });
    }

    /// `mete agent start`; waits until it is registered.
    pub(crate) fn start_agent(&mut self, name: &str, flags: &[&str]) {
        let (state, run, node) = (self.arg(name), self.arg("run"), self.node(name));
        let mut args = vec!["agent", "start", "--state-dir", &state, "--run-dir", &run];
        args.extend(["--name", &node, "--listen", "127.0.0.1:0"]);
        args.extend(flags);
        self.spawn(name, &args);
        self.wait_for_agent(name);
    }

    /// Waits until the present process of this agent is registered and its node ready.
    pub(crate) fn wait_for_agent(&mut self, name: &str) {
        until(&format!("agent {name} to be registered"), || {
            let said = self.daemon(name).alive()?;
            holds(said.contains("is registered"), || said)
        });
        self.wait_for_node(name, "ready");
    }

    /// Waits until the master says so of this node.
    pub(crate) fn wait_for_node(&self, name: &str, state: &str) {
        let node = self.node(name);
        until(&format!("node {node} to be {state}"), || {
            let list = self.json(&["node", "list"]);
            let found = list.find("name", &node)?;
            holds(found["state"].as_str() == Some(state), || found.to_string())
        });
    }

    /// `mete batch start`; waits until it answers.
    pub(crate) fn start_batch(&mut self) {
        self.spawn("batch", &["batch", "start", "--role", "batch"]);
        self.wait_for_batch();
    }

    /// Waits until the present process of the batch framework answers.
    pub(crate) fn wait_for_batch(&mut self) {
        until("the batch framework to answer", || {
            self.daemon("batch").alive()?;
            let answer = self.mete(&["batch", "list", "-A", "--timeout", "5s"]);
            holds(answer.code == 0, || answer.to_string())
        });
    }

    /// Starts a daemon of this name.
    pub(crate) fn spawn(&mut self, name: &str, args: &[&str]) {
        let started = Daemon::start(self, name, args);
        let before = self.daemons.insert(name.to_owned(), started);
        assert!(before.is_none(), "{name} was started twice: use restart");
    }

    /// A daemon that was started.
    pub(crate) fn daemon(&mut self, name: &str) -> &mut Daemon {
        self.daemons
            .get_mut(name)
            .unwrap_or_else(|| panic!("no daemon {name} was started"))
    }

    /// Sends a signal to a daemon.
    pub(crate) fn signal(&self, name: &str, signal: rustix::process::Signal) {
        let daemon = self.daemons.get(name);
        daemon
            .unwrap_or_else(|| panic!("no daemon {name} was started"))
            .signal(signal);
    }

    /// SIGKILL; what it left behind stays.
    pub(crate) fn kill(&mut self, name: &str) {
        self.daemon(name).kill();
    }

    /// Starts a daemon that has ended again, as it was started first.
    pub(crate) fn restart(&mut self, name: &str) {
        let mut old = self
            .daemons
            .remove(name)
            .unwrap_or_else(|| panic!("no daemon {name}"));
        old.kill();
        let args: Vec<&str> = old.args.iter().map(String::as_str).collect();
        let started = Daemon::start_again(self, name, &args, old.starts);
        self.daemons.insert(name.to_owned(), started);
    }

    /// The same in a mount namespace of its own, after a command of the shell that may change what
    /// is mounted there; `$0` is the site.
    pub(crate) fn restart_under(&mut self, name: &str, shell: &str) {
        let mut old = self
            .daemons
            .remove(name)
            .unwrap_or_else(|| panic!("no daemon {name}"));
        old.kill();
        let started = Daemon::start_under(self, name, &old, shell);
        self.daemons.insert(name.to_owned(), started);
    }

    /// Whether this user may have a mount namespace.
    pub(crate) fn may_mount(&self) -> bool {
        let tried = std::process::Command::new("unshare")
            .args(["--mount", "true"])
            .output();
        rustix::process::geteuid().is_root() && tried.is_ok_and(|tried| tried.status.success())
    }

    /// Runs `mete` with these arguments to its end.
    pub(crate) fn mete(&self, args: &[&str]) -> Answer {
        ask::run(self, args, &[])
    }

    /// Runs `mete … -o json`, which must work, and reads its envelope.
    pub(crate) fn json(&self, args: &[&str]) -> ask::Envelope {
        let mut all = args.to_vec();
        all.extend(["-o", "json"]);
        let answer = self.mete(&all);
        assert_eq!(answer.code, 0, "{answer}");
        ask::Envelope::read(&answer)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if std::thread::panicking() {
            reap::report(self);
        }
        for daemon in self.daemons.values_mut() {
            daemon.kill();
        }
        reap::reap(self.root());
    }
}

/// A port that nobody uses and that no outgoing connection will be given: below the range that the
/// kernel takes those from, so that a client that tries a dead master cannot end up being it.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    for _ in 0..2_000 {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 12_000 + (std::process::id().wrapping_mul(31).wrapping_add(number)) % 18_000;
        let port = u16::try_from(port).expect("below 30 000");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no port is free between 12000 and 30000");
}

/// Small, seeded, good enough to vary times and bytes; the seed is printed when a story fails.
#[derive(Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    /// From METE_SEED, or from the clock.
    pub(crate) fn new() -> Self {
        let seed = std::env::var("METE_SEED")
            .ok()
            .and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| {
            let clock = std::time::SystemTime::UNIX_EPOCH
                .elapsed()
                .unwrap_or_default();
            clock.as_secs() ^ u64::from(clock.subsec_nanos()) << 20
        });
        eprintln!("seed: METE_SEED={seed}");
        Self(seed.wrapping_mul(2).wrapping_add(1))
    }

    /// The next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}
