//! The masters' seats: the next step from who sits where to who shall.
//!
//! Pure. The state's records say what each master's seat shall be; the log's own membership says
//! what it is. The leader asks [`next_step`] at every look and does what it says, so a change that
//! a leader began and did not live to finish goes on under the next one. One step at a time, a
//! learner always first, and never one that would leave fewer answering voters than a majority.

use mete_state::command::SetMaster;
use mete_state::{Command, Master, Seat};

use crate::replica::membership::{Change, Members};

/// What is known of another master at the moment, by the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its node id.
    pub node: u64,
    /// It has acknowledged something within the last second.
    pub answers: bool,
    /// It has everything that the leader had a moment ago.
    pub caught_up: bool,
    /// Its log equals the leader's up to here.
    pub matched: u64,
}

/// Everything a step is decided from.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The leader itself: always answers, always has everything.
    pub own: u64,
    /// What the seats shall be.
    pub masters: &'a [Master],
    /// What they are.
    pub members: &'a Members,
    /// The others.
    pub peers: &'a [Peer],
    /// The open change has been open for long: its leader is gone.
    pub stuck: bool,
}

/// What the leader does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Change the log's membership.
    Change(Change),
    /// Give the leadership to this voter: the leader itself is to leave.
    HandOver(u64),
    /// The master is no member any more: its record goes.
    Forget(u64),
}

/// Voters, how many of them answer, and how many a majority needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quorum {
    /// Voters.
    pub voters: usize,
    /// Voters that answer.
    pub answering: usize,
}

impl Quorum {
    /// How many a decision needs.
    #[must_use]
    pub fn needed(self) -> usize {
        self.voters / 2 + 1
    }

    /// How many more may be lost.
    #[must_use]
    pub fn can_lose(self) -> usize {
        self.answering.saturating_sub(self.needed())
    }

    /// Decisions can be made.
    #[must_use]
    pub fn holds(self) -> bool {
        self.answering >= self.needed()
    }
}

impl std::fmt::Display for Quorum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { voters, answering } = self;
        let (needed, lose) = (self.needed(), self.can_lose());
        write!(
            f,
            "{answering} of {voters} voters answer, {needed} are needed, can lose {lose}"
        )
    }
}

impl Facts<'_> {
    /// The quorum with these voters.
    fn quorum(&self, voters: impl Iterator<Item = u64>) -> Quorum {
        let mut quorum = Quorum {
            voters: 0,
            answering: 0,
        };
        for voter in voters {
            quorum.voters += 1;
            quorum.answering += usize::from(self.answers(voter));
        }
        quorum
    }

    /// The quorum without `node`; whoever counts has acknowledged all up to `since`.
    fn acknowledged(&self, node: u64, since: u64) -> Quorum {
        self.count(since, |voter| voter != node)
    }

    /// The quorum of those who stay when `node` leaves too.
    fn staying(&self, node: u64, since: u64) -> Quorum {
        self.count(since, |voter| voter != node && !self.leaves(voter))
    }

    fn count(&self, since: u64, counts: impl Fn(u64) -> bool) -> Quorum {
        let mut quorum = Quorum {
            voters: 0,
            answering: 0,
        };
        let voters = self.members.voters.iter().copied();
        for voter in voters.filter(|voter| counts(*voter)) {
            let has = |peer: &Peer| peer.answers && peer.matched >= since;
            let acknowledges = voter == self.own || self.peer(voter).is_some_and(has);
            quorum.voters += 1;
            quorum.answering += usize::from(acknowledges);
        }
        quorum
    }

    /// The quorum as it is.
    #[must_use]
    pub fn present(&self) -> Quorum {
        self.quorum(self.members.voters.iter().copied())
    }

    fn with(&self, node: u64) -> Quorum {
        self.quorum(self.members.voters.iter().copied().chain([node]))
    }

    fn peer(&self, node: u64) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.node == node)
    }

    fn answers(&self, node: u64) -> bool {
        node == self.own || self.peer(node).is_some_and(|peer| peer.answers)
    }

    fn is_ready(&self, node: u64) -> bool {
        self.peer(node)
            .is_some_and(|peer| peer.answers && peer.caught_up)
    }

    /// The voter that is to lead when this one must not: one that stays and has everything.
    #[must_use]
    pub fn heir(&self) -> Option<u64> {
        let mut voters = self.members.voters.iter().copied();
        voters.find(|voter| *voter != self.own && !self.leaves(*voter) && self.is_ready(*voter))
    }

    /// It shall leave, or another one has its vote in its place.
    fn leaves(&self, node: u64) -> bool {
        let mut masters = self.masters.iter();
        masters.any(|master| {
            let leaving = master.node == node && master.seat == Seat::Leaving;
            leaving || (master.replaces == node && self.members.voters.contains(&master.node))
        })
    }
}

/// What to do next; nothing when every seat is as it shall be, or has to wait.
#[must_use]
pub fn next_step(facts: &Facts<'_>) -> Option<Step> {
    if facts.members.changing {
        return facts.stuck.then_some(Step::Change(Change::Settle));
    }
    let mut masters = facts.masters.iter();
    masters.find_map(|master| step_of(facts, master))
}

fn step_of(facts: &Facts<'_>, master: &Master) -> Option<Step> {
    let (node, members) = (master.node, facts.members);
    let (votes, leaves) = (members.voters.contains(&node), facts.leaves(node));
    if !members.has(node) {
        return Some(if leaves {
            Step::Forget(node)
        } else {
            Step::Change(Change::AddLearner(node))
        });
    }
    if leaves && votes && node == facts.own {
        return facts.heir().map(Step::HandOver);
    }
    if leaves {
        // Whoever counts has acknowledged the very record that asks for this.
        let safe = !votes || facts.acknowledged(node, master.revision).holds();
        return safe.then_some(Step::Change(Change::Remove(node)));
    }
    if votes || master.seat != Seat::Voter || !facts.is_ready(node) {
        return None;
    }
    let replaces = Some(master.replaces).filter(|other| members.voters.contains(other));
    let other_leads = replaces.filter(|other| *other != facts.own);
    if let Some(leaves) = other_leads {
        let enters = node;
        return Some(Step::Change(Change::Replace { enters, leaves }));
    }
    // The leader cannot go in the same step: it hands over first, if there is anybody else.
    if replaces.is_some()
        && let Some(heir) = facts.heir()
    {
        return Some(Step::HandOver(heir));
    }
    let safe = facts.with(node).holds();
    safe.then_some(Step::Change(Change::Promote(node)))
}

/// What a master says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said<'a> {
    /// Its node id.
    pub node: u64,
    /// Where it is dialled; empty where that is not known.
    pub address: &'a str,
    /// The highest level its release knows.
    pub level: u32,
}

/// Records that are not true any more: addresses, and a level that all members know. `level` is the
/// one that the state has; `said` holds the leader's own word too.
#[must_use]
pub fn corrections(facts: &Facts<'_>, said: &[Said<'_>], level: u32) -> Vec<Command> {
    let record = |node: u64| facts.masters.iter().find(|master| master.node == node);
    let corrected = |said: &Said<'_>| {
        let record = record(said.node);
        let own = said.node == facts.own && facts.members.has(said.node);
        let (is_new, moved) = match record {
            None => (own, false),
            Some(record) => (false, record.address != said.address),
        };
        // Nothing but the address: an operator's change of the seat may be on its way.
        (!said.address.is_empty() && (is_new || moved)).then(|| {
            Command::SetMaster(SetMaster {
                node: said.node,
                address: Some(said.address.to_owned()),
                seat: is_new.then_some(Seat::Voter),
                replaces: None,
                actor: format!("master {}", said.node),
            })
        })
    };
    let mut commands: Vec<Command> = said.iter().filter_map(corrected).collect();
    let members = facts.members.voters.iter().chain(&facts.members.learners);
    let levels = members.map(|node| {
        // One that has not said what it knows may be of the oldest release.
        let said = said.iter().find(|said| said.node == *node);
        said.map_or(0, |said| said.level)
    });
    let known = levels.min().unwrap_or(0);
    if known > level {
        commands.push(Command::RaiseLevel { level: known });
    }
    commands
}

/// Says why a master may not be taken out now. Those already on their way out do not count.
///
/// # Errors
/// A sentence with the arithmetic.
pub fn may_leave(facts: &Facts<'_>, node: u64) -> Result<(), String> {
    if !facts.members.voters.contains(&node) {
        return Ok(());
    }
    let after = facts.staying(node, 0);
    if after.voters == 0 {
        return Err(format!(
            "master {node} is the last voter that stays; a cluster without masters decides nothing"
        ));
    }
    if after.holds() {
        return Ok(());
    }
    let silent: Vec<String> = facts
        .members
        .voters
        .iter()
        .filter(|voter| **voter != node && !facts.answers(**voter))
        .map(u64::to_string)
        .collect();
    Err(format!(
        "without master {node} there are {} voters of which {} answer (silent: {}), and {} are \
         needed; bring the silent ones back or remove them first",
        after.voters,
        after.answering,
        silent.join(", "),
        after.needed(),
    ))
}

/// Whether a call that names a new master at a known address is the same call once more: the one
/// that is known by it has never held anything of the log. Gives its node id.
///
/// # Errors
/// A sentence, where the known one may have voted or acknowledged: its place is not free.
pub fn same_again(facts: &Facts<'_>, address: &str, replaces: u64) -> Result<Option<u64>, String> {
    let mut masters = facts.masters.iter();
    let Some(known) = masters.find(|master| master.address == address) else {
        return Ok(None);
    };
    let node = known.node;
    if node == replaces {
        return Ok(None);
    }
    let held = facts.peer(node).is_some_and(|peer| peer.matched > 0);
    if node == facts.own || facts.members.voters.contains(&node) || held {
        return Err(format!(
            "{address} is the address of master {node}, which has a part of the log: if its disk \
             is lost, the new one joins with --replaces m{node}; else remove m{node} first"
        ));
    }
    Ok(Some(node))
}

#[cfg(test)]
mod tests;
