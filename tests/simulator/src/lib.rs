//! A deterministic simulator: whole clusters in one thread, on virtual time, out of one seed.
//!
//! The masters are the real loop on the real store over a disk in memory, the agents are the real
//! core; frameworks and operators are scripted. Between them lies a network that delays, loses,
//! repeats, reorders and cuts, below them are disks that lose what was not flushed, and processes
//! die between any two writes, stand still, or have clocks that jump. Separate checkers watch.
//! After a while nothing goes wrong any more, and everything must be well again within a bound.
//!
//! The same seed gives the same history, so a failure is replayed by its number:
//! `mete simulate --seed N --trace`. There is no runtime, no wall clock and no other source of
//! chance in here.

mod agenda;
mod agents;
mod checker;
mod clients;
mod disk;
mod faults;
mod masters;
mod network;
mod operator;
mod peers;
mod plan;
mod random;
mod script;
mod streams;
mod variant;
mod world;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use variant::Variant;

use crate::world::{Trace, World};

/// What to simulate besides the seed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Break the cluster in this way: for tests of the checkers.
    pub variant: Option<Variant>,
    /// Keep a line for everything that happens.
    pub trace: bool,
}

/// Something that must not have happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Who found it: `ledger`, `history`, `linear`, `status`, `fencing`, `liveness`, `store`, or
    /// `panic`.
    pub checker: &'static str,
    /// The facts.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.checker, self.detail)
    }
}

/// How one seed's world went.
#[derive(Clone, Debug)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// A hash of everything that happened: the same for every run of the seed.
    pub digest: u64,
    /// What must not have happened; empty when all is well.
    pub violations: Vec<Violation>,
    /// What happened, if it was asked for.
    pub trace: Vec<String>,
    /// How much happened.
    pub facts: Facts,
}

impl Report {
    /// The command that shows this history again.
    #[must_use]
    pub fn replay(&self) -> String {
        format!("mete simulate --seed {} --trace", self.seed)
    }
}

/// How much happened in a world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Virtual milliseconds.
    pub milliseconds: u64,
    /// Happenings.
    pub happenings: u64,
    /// Commands that the log agreed on.
    pub commands: usize,
    /// Terms that had a leader.
    pub terms: usize,
    /// Runs that began on a machine.
    pub runs: usize,
    /// Operations on frameworks' stores that were answered.
    pub operations: usize,
}

/// Simulates one seed's world from its beginning to its end.
#[must_use]
pub fn run(seed: u64, options: &Options) -> Report {
    let trace = Trace::new(options.trace);
    #[cfg(feature = "broken")]
    let unchecked = options.variant == Some(Variant::GrantUnchecked);
    #[cfg(feature = "broken")]
    mete_state::broken::leave_launches_unchecked(unchecked);
    let lived = catch_unwind(AssertUnwindSafe(|| live(seed, options, trace.clone())));
    let mut report = lived.unwrap_or_else(|panic| Report {
        seed,
        digest: 0,
        violations: vec![Violation {
            checker: "panic",
            detail: said(panic.as_ref()),
        }],
        trace: Vec::new(),
        facts: Facts::default(),
    });
    #[cfg(feature = "broken")]
    mete_state::broken::leave_launches_unchecked(false);
    report.trace = trace.lines();
    report
}

fn live(seed: u64, options: &Options, trace: Trace) -> Report {
    let mut world = World::new(seed, options, trace);
    world.run_until(world.plan.troubled);
    if world.checkers.found.is_empty() {
        world.calm_down();
        world.recover();
    }
    let mut digest = world.digest;
    world.checkers.digest(&mut digest);
    let facts = Facts {
        milliseconds: world.now() / agenda::MILLISECOND,
        happenings: world.happened,
        commands: world.checkers.history.commands(),
        terms: world.checkers.history.terms(),
        runs: world.checkers.ledger.runs(),
        operations: world.checkers.linear.answered(),
    };
    Report {
        seed,
        digest: digest.0,
        violations: std::mem::take(&mut world.checkers.found),
        trace: Vec::new(),
        facts,
    }
}

/// What a panic said.
fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without words").to_owned()
}
