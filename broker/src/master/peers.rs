//! The other masters, as this one knows them beside the log: who was heard when, where each is
//! dialled, and what goes to and comes from the network in a turn.
//!
//! Soft: everything here may be lost. What the seats shall be stands in the state, what they are in
//! the log's membership; [`crate::seats`] decides. This room gathers the facts for it, and carries
//! out what it says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;

use mete_model::Code;
use mete_state::{Command, State, Verdict};

use super::Master;
use crate::event::{Event, Monotonic, PeerEvent, PeerFacts};
use crate::leader::Now;
use crate::output::Output;
use crate::replica::membership::Change;
use crate::replica::{Input, Outgoing, Received, Transfer};
use crate::request::{OperatorAction, Refusal, Reply, Request};
use crate::seats::{self, Facts, Peer, Said, Step};
use crate::session::peers::Outlet;

/// A master that was not heard for so long does not count as answering. Ten of its heartbeats.
const SILENT_AFTER: u64 = 1_000;

/// A leader that was not heard for so long may be gone: nobody is sent to it. Three of its
/// heartbeats; the others stand for election later than this.
const MISSED_AFTER: u64 = 300;

/// Masters that have connected and are not named: remembered at the most.
const MOST_UNNAMED: usize = 32;

/// Between two looks at the seats, in milliseconds.
const LOOK_EVERY: u64 = 100;

/// Whoever has what the leader had so long ago has caught up.
const CAUGHT_UP_WITHIN: u64 = 1_000;

/// A change of two majorities that is open for so long was left by its leader.
const STUCK_AFTER: u64 = 2_000;

/// How long a handing over is waited for when the process ends.
const FAREWELL: u64 = 1_500;

/// Where the log ended a moment ago: whoever has that much has caught up.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    /// When the newest mark was set, and where the log ended then.
    newest: Option<(Monotonic, u64)>,
    /// The one before: at least [`CAUGHT_UP_WITHIN`] old.
    before: Option<u64>,
}

/// Where, and what of it, the others are.
pub(super) struct Peers {
    outlet: Box<dyn Outlet>,
    heard: BTreeMap<u64, Monotonic>,
    /// The connection to them has broken since they were heard.
    broken: BTreeSet<u64>,
    /// When each had last acknowledged something; of a leader only.
    acknowledged: BTreeMap<u64, Monotonic>,
    /// What each said of itself when it connected.
    told: BTreeMap<u64, PeerFacts>,
    /// Where each is dialled, this one included.
    directory: BTreeMap<u64, String>,
    look_again: Monotonic,
    mark: Mark,
    changing_since: Option<Monotonic>,
    messages: Vec<Vec<u8>>,
    unreachable: Vec<u64>,
    transfers: Vec<Transfer>,
    received: Vec<Received>,
    change: Option<Change>,
    hand_over_to: Option<u64>,
    /// A member says that this master was taken out.
    removed: bool,
}

impl Peers {
    pub(super) fn new(outlet: Box<dyn Outlet>) -> Self {
        Self {
            outlet,
            heard: BTreeMap::new(),
            broken: BTreeSet::new(),
            acknowledged: BTreeMap::new(),
            told: BTreeMap::new(),
            directory: BTreeMap::new(),
            look_again: Monotonic::default(),
            mark: Mark::default(),
            changing_since: None,
            messages: Vec::new(),
            unreachable: Vec::new(),
            transfers: Vec::new(),
            received: Vec::new(),
            change: None,
            hand_over_to: None,
            removed: false,
        }
    }

    pub(super) fn connect(&mut self, outlet: Box<dyn Outlet>) {
        self.outlet = outlet;
        self.outlet.directory(&self.directory);
    }

    pub(super) fn send(&mut self, outgoing: Outgoing) {
        self.outlet.send(outgoing);
    }

    fn heard(&mut self, node: u64, at: Monotonic) {
        self.heard.insert(node, at);
        self.broken.remove(&node);
    }

    /// One that nobody has named yet may join: a few of them are remembered.
    fn tell(&mut self, facts: PeerFacts, state: &State) {
        let unnamed = |node: &u64| state.master(*node).is_none();
        let room = self.told.keys().filter(|node| unnamed(node)).count() < MOST_UNNAMED;
        if room || !unnamed(&facts.node) || self.told.contains_key(&facts.node) {
            self.told.insert(facts.node, facts);
        }
    }

    pub(super) fn told(&self, node: u64) -> Option<&PeerFacts> {
        self.told.get(&node)
    }

    /// Whether it was heard a moment ago, and nothing speaks against it since.
    pub(super) fn is_heard(&self, node: u64, now: Monotonic) -> bool {
        let heard = self.heard_at(node);
        !self.broken.contains(&node) && heard.is_some_and(|at| now.since(at) < MISSED_AFTER)
    }

    pub(super) fn heard_at(&self, node: u64) -> Option<Monotonic> {
        self.heard.get(&node).copied()
    }

    pub(super) fn address(&self, node: u64) -> Option<&str> {
        let address = self.directory.get(&node).map(String::as_str);
        address.filter(|address| !address.is_empty())
    }

    /// Moves what came from the network and what is to be asked of the membership into a turn.
    pub(super) fn fill(&mut self, input: &mut Input, change_token: Option<u64>) {
        input.messages.append(&mut self.messages);
        input.unreachable.append(&mut self.unreachable);
        input.transfers.append(&mut self.transfers);
        input.received.append(&mut self.received);
        input.hand_over_to = self.hand_over_to.take();
        input.change = change_token.zip(self.change.take());
    }

    pub(super) fn wants_change(&self) -> bool {
        self.change.is_some()
    }

    /// Something waits for the next turn of the replica.
    pub(super) fn has_work(&self) -> bool {
        self.change.is_some() || self.hand_over_to.is_some()
    }

    /// Where everybody is dialled: by the state's records, or by what they said themselves.
    fn look_at_addresses(&mut self, state: &State, own: u64, advertised: &str) {
        self.told.retain(|node, _| !state.has_left(*node));
        let told = &self.told;
        let known = |node: &u64| state.master(*node).is_some() || told.contains_key(node);
        self.heard.retain(|node, _| known(node));
        self.broken.retain(|node| known(node));
        self.acknowledged.retain(|node, _| known(node));
        let said = self
            .told
            .values()
            .filter(|told| !told.address.is_empty())
            .map(|told| (told.node, told.address.clone()));
        let named = state
            .masters()
            .map(|master| (master.node, master.address.clone()));
        // What one says of itself is newer than what a leader has recorded: when all have moved
        // there is no leader to record it.
        let mut directory: BTreeMap<u64, String> = named.chain(said).collect();
        if !advertised.is_empty() {
            directory.insert(own, advertised.to_owned());
        }
        if directory != self.directory {
            self.directory = directory;
            self.outlet.directory(&self.directory);
        }
    }

    /// Where all masters are dialled, this one included.
    pub(super) fn addresses(&self) -> Vec<String> {
        let known = self.directory.values();
        known
            .filter(|address| !address.is_empty())
            .cloned()
            .collect()
    }

    fn look_at_log(&mut self, last_index: u64, now: Monotonic) {
        let Mark { newest, .. } = self.mark;
        if newest.is_none_or(|(when, _)| now.since(when) >= CAUGHT_UP_WITHIN) {
            self.mark = Mark {
                newest: Some((now, last_index)),
                before: newest.map(|(_, last)| last),
            };
        }
    }
}

/// The way out, one of the process ending: hand the leadership over first, but not for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stopping {
    /// Nobody has said so.
    No,
    /// As soon as another one leads, or at this moment.
    Until(Monotonic),
}

impl Master {
    /// Gives everything for other masters to `outlet` from here on.
    pub fn connect(&mut self, outlet: Box<dyn Outlet>) {
        self.peers.connect(outlet);
    }

    /// Where a master is dialled, if that is known.
    #[must_use]
    pub fn address_of(&self, node: u64) -> Option<&str> {
        self.peers.address(node)
    }

    /// What a master said of itself when it connected here.
    #[must_use]
    pub fn told_by(&self, node: u64) -> Option<&PeerFacts> {
        self.peers.told(node)
    }

    /// When a master was last heard.
    #[must_use]
    pub fn heard_at(&self, node: u64) -> Option<Monotonic> {
        self.peers.heard_at(node)
    }

    /// The others as seats are decided from; of a leader only.
    pub(crate) fn seat_peers(&self) -> Vec<Peer> {
        let mark = self.peers.mark.before;
        let now = self.now().monotonic;
        let peers = self.replica.peers();
        let peers = peers.iter().map(|peer| {
            let acknowledged = self.peers.acknowledged.get(&peer.node);
            Peer {
                node: peer.node,
                matched: peer.matched,
                // One that has answered since the last look is not noted yet.
                answers: peer.active
                    || acknowledged.is_some_and(|at| now.since(*at) < SILENT_AFTER),
                // As long as nothing is known of the moment before, nobody has.
                caught_up: mark.is_some_and(|mark| peer.matched >= mark) && !peer.in_snapshot,
            }
        });
        peers.collect()
    }

    /// Looks at the facts of the seats.
    pub(crate) fn read_seats<T>(&self, look: impl FnOnce(&Facts<'_>) -> T) -> T {
        let now = self.now().monotonic;
        let masters: Vec<_> = self.read_state(|state| state.masters().cloned().collect());
        let since = self.peers.changing_since;
        look(&Facts {
            own: self.replica.identity().node,
            masters: &masters,
            members: self.replica.members(),
            peers: &self.seat_peers(),
            stuck: since.is_some_and(|since| now.since(since) >= STUCK_AFTER),
        })
    }

    /// Keeps the addresses, and as a leader brings the seats to what the state says.
    pub(super) fn tend_masters(&mut self, now: Now) {
        if now.monotonic < self.peers.look_again {
            return;
        }
        self.peers.look_again = now.monotonic.after(LOOK_EVERY);
        let own = self.replica.identity().node;
        let advertised = self.advertised.clone();
        let state = self.shared_state();
        let state = state.read().unwrap_or_else(PoisonError::into_inner);
        self.peers.look_at_addresses(&state, own, &advertised);
        if self.leader.is_none() {
            self.peers.mark = Mark::default();
            self.peers.acknowledged.clear();
            return;
        }
        for peer in self.replica.peers() {
            if peer.active {
                self.peers.acknowledged.insert(peer.node, now.monotonic);
            }
        }
        if let Some(leader) = &mut self.leader {
            leader.know_masters(self.peers.addresses());
        }
        self.peers
            .look_at_log(self.replica.last_index(), now.monotonic);
        self.peers.changing_since = match self.peers.changing_since {
            _ if !self.replica.members().changing => None,
            None => Some(now.monotonic),
            since => since,
        };
        let level = state.level();
        drop(state);
        let said = self.said();
        let (commands, step) = self.read_seats(|facts| {
            let commands = seats::corrections(facts, &said, level);
            (commands, seats::next_step(facts))
        });
        let forget = match step {
            Some(Step::Change(change)) => {
                self.peers.change = Some(change);
                None
            }
            Some(Step::HandOver(heir)) => {
                self.peers.hand_over_to = Some(heir);
                None
            }
            Some(Step::Forget(node)) => Some(Command::RemoveMaster {
                node,
                actor: "the leader".to_owned(),
            }),
            None => None,
        };
        let state = self.shared_state();
        let state = state.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(leader) = &mut self.leader {
            for command in commands.into_iter().chain(forget) {
                leader.log_own(command, &state, now);
            }
        }
    }

    /// What every master that is known says of itself, this one included.
    fn said(&self) -> Vec<Said<'_>> {
        let others = self.peers.told.values().map(|told| Said {
            node: told.node,
            address: &told.address,
            level: told.level,
        });
        let own = Said {
            node: self.replica.identity().node,
            address: &self.advertised,
            level: self.level,
        };
        others.chain([own]).collect()
    }

    /// Calls about the masters themselves that must not go on as they are: refused, or carried out
    /// here. Gives back what goes on.
    pub(super) fn judge_seats(&mut self, event: Event) -> Option<Event> {
        let Event::Call {
            request:
                Request::Operator {
                    mut action,
                    dry_run,
                    actor,
                },
            reply,
        } = event
        else {
            return Some(event);
        };
        let answer = match &mut action {
            OperatorAction::AddMaster {
                address,
                replaces,
                above,
                ..
            } => {
                let members = self.replica.members();
                let seated = members.voters.iter().chain(&members.learners);
                *above = seated.copied().max().unwrap_or(0);
                self.added_before(address, replaces.unwrap_or(0))
            }
            OperatorAction::RemoveMaster { node } => self
                .read_seats(|facts| seats::may_leave(facts, *node))
                .err()
                .map(|why| Err(Refusal::new(Code::QuorumLoss, why))),
            OperatorAction::HandOver { to } => {
                let to = *to;
                Some(self.hand_over(to, dry_run))
            }
            OperatorAction::SetRole { .. }
            | OperatorAction::RemoveRole { .. }
            | OperatorAction::KillTasks { .. }
            | OperatorAction::SuppressFramework { .. }
            | OperatorAction::RemoveFramework { .. }
            | OperatorAction::RescindOffers { .. }
            | OperatorAction::PromoteMaster { .. }
            | OperatorAction::RemoveNode { .. } => None,
        };
        if let Some(answer) = answer {
            match &mut self.leader {
                // By the time a majority has confirmed this leader, another one may lead.
                Some(leader) if !matches!(answer, Ok(Reply::HandedOver { .. })) => {
                    leader.answer_confirmed(vec![reply], answer);
                }
                _ => self.outputs.push(Output::Reply { to: reply, answer }),
            }
            return None;
        }
        Some(Event::Call {
            request: Request::Operator {
                action,
                dry_run,
                actor,
            },
            reply,
        })
    }

    /// The answer to a call that was answered before, or cannot be taken as it is.
    fn added_before(&self, address: &str, replaces: u64) -> Option<Result<Reply, Refusal>> {
        let known = self.read_seats(|facts| seats::same_again(facts, address, replaces));
        match known {
            Ok(None) => None,
            Ok(Some(node)) => Some(Ok(Reply::Applied {
                revision: self.replica.applied_index(),
                verdict: Verdict::MasterAdded { node },
            })),
            Err(why) => Some(Err(Refusal::new(Code::InUse, why))),
        }
    }

    fn hand_over(&mut self, to: Option<u64>, dry_run: bool) -> Result<Reply, Refusal> {
        let own = self.replica.identity().node;
        let heir = self.read_seats(|facts| {
            let voter = |node: u64| facts.members.voters.contains(&node);
            match to {
                None => facts.heir().ok_or_else(|| {
                    let present = facts.present();
                    Refusal::new(
                        Code::QuorumLoss,
                        format!("no other voter has everything and answers: {present}"),
                    )
                }),
                Some(node) if node == own => Ok(own),
                Some(node) if !voter(node) => Err(Refusal::new(
                    Code::NotFound,
                    format!(
                        "master {node} has no vote; voters: {:?}",
                        facts.members.voters
                    ),
                )),
                Some(node) => {
                    let mut peers = facts.peers.iter();
                    let ready =
                        peers.any(|peer| peer.node == node && peer.answers && peer.caught_up);
                    ready.then_some(node).ok_or_else(|| {
                        Refusal::new(
                            Code::Busy,
                            format!(
                                "master {node} does not answer or lags behind; try again later"
                            ),
                        )
                    })
                }
            }
        })?;
        if !dry_run && heir != own {
            self.peers.hand_over_to = Some(heir);
        }
        Ok(Reply::HandedOver { to: heir })
    }

    /// The process is about to end: whoever leads hands over first.
    pub(super) fn begin_to_stop(&mut self, now: Now) {
        let heir = match &self.leader {
            Some(_) => self.read_seats(|facts| facts.heir()),
            None => None,
        };
        self.peers.hand_over_to = heir.or(self.peers.hand_over_to);
        let wait = if heir.is_some() { FAREWELL } else { 0 };
        self.stopping = Stopping::Until(now.monotonic.after(wait));
    }

    /// Whether the process may end now.
    pub(super) fn may_stop(&self, now: Now) -> bool {
        match self.stopping {
            Stopping::No => false,
            Stopping::Until(latest) => {
                now.monotonic >= latest || (self.leader.is_none() && !self.peers.has_work())
            }
        }
    }

    /// Takes in what happened between this master and another one.
    pub(super) fn take_peer(&mut self, event: PeerEvent, now: Now) {
        match event {
            PeerEvent::Hello(facts) => {
                self.peers.heard(facts.node, now.monotonic);
                let state = self.state.read().unwrap_or_else(PoisonError::into_inner);
                self.peers.tell(facts, &state);
            }
            PeerEvent::Frames { from, mut frames } => {
                self.peers.heard(from, now.monotonic);
                self.peers.messages.append(&mut frames);
            }
            PeerEvent::Unreachable { node } => {
                self.peers.broken.insert(node);
                self.peers.unreachable.push(node);
            }
            PeerEvent::SnapshotSent {
                to,
                index,
                finished,
            } => self.peers.transfers.push(Transfer {
                to,
                index,
                finished,
            }),
            PeerEvent::SnapshotReceived { received, taken } => {
                self.peers.received.push(*received);
                self.outputs.push(Output::SnapshotTaken { to: taken });
            }
            PeerEvent::Removed { by } => self.removed_by(Some(by)),
        }
    }

    /// A member says that this master was taken out of the cluster, or its own log does.
    fn removed_by(&mut self, by: Option<u64>) {
        let own = self.replica.identity().node;
        if self.leader.is_some() || std::mem::replace(&mut self.peers.removed, true) {
            return;
        }
        tracing::error!(own, by, "this master was removed from its cluster");
        self.outputs.push(Output::Removed { by });
    }

    /// The membership has changed: am I still in it? One that is about to join has none yet.
    pub(super) fn look_at_own_seat(&mut self) {
        let (own, members) = (self.replica.identity().node, self.replica.members());
        let known = self.read_state(|state| own <= state.last_master());
        // In the middle of a step that needs both majorities those who leave are still needed.
        if known && !members.changing && !members.voters.is_empty() && !members.has(own) {
            self.removed_by(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::peers::Nobody;

    fn says(node: u64, address: &str) -> PeerFacts {
        PeerFacts {
            node,
            address: address.to_owned(),
            version: String::new(),
            level: 0,
        }
    }

    #[test]
    fn what_a_master_says_of_its_address_counts_before_the_record_unless_it_says_nothing() {
        let named = [(1, "a:1"), (2, "b:1"), (3, "c:1")];
        let named = named.map(|(node, address)| (node, address.to_owned()));
        let state = State::founded(&BTreeMap::from(named));
        let mut peers = Peers::new(Box::new(Nobody));
        peers.tell(says(2, "moved:1"), &state);
        peers.tell(says(3, ""), &state);

        peers.look_at_addresses(&state, 1, "own:1");

        let addresses = [1, 2, 3].map(|node| peers.address(node));
        assert_eq!(addresses, [Some("own:1"), Some("moved:1"), Some("c:1")]);
    }

    #[test]
    fn only_a_few_that_nobody_has_named_are_remembered() {
        let state = State::founded(&BTreeMap::from([(1, "a:1".to_owned())]));
        let mut peers = Peers::new(Box::new(Nobody));
        for node in 2..1_000 {
            peers.tell(says(node, "x:1"), &state);
        }
        // One that is named has its place all the same.
        peers.tell(says(1, "a:2"), &state);

        assert_eq!(peers.told.len(), MOST_UNNAMED + 1);
        assert!(peers.told(1).is_some());
    }
}
