//! One seat of the replicated log: the protocol, the store below it and the machine above it.
//!
//! The master's loop calls [`Replica::step`] with everything that waits and carries out what comes
//! back. The same proposals in one turn share one message and one flush. What the commands mean is
//! the [`Machine`]'s; what an entry looks like on disk is the store's; who is connected to whom is
//! nobody's here. No clock: ticks come in. No async, and no thread except the one that encodes a
//! snapshot.
//!
//! Promises: an outcome is reported only after its command is durable on a majority and applied
//! here; a proposal that was taken is answered once, if need be with "unknown"; a replica that does
//! not lead refuses and says who does, it never forwards.
//!
//! Any [`Fault`] out of a turn is final: the process ends, memory and disk may disagree. A panic in
//! here is as final.

mod config;
mod log_bridge;
mod machine;
pub mod membership;
mod open;
mod ready;
mod snapshot;
mod tail;
mod turn;
mod waiting;
mod wire;

pub use config::{Config, Encoding, Timers};
pub use machine::{Image, Machine, RestoreError};
pub use open::OpenError;
pub use turn::{
    Applied, Input, NotLogged, Outgoing, Peer, Progress, Proposal, Received, Role, Standing, Token,
    Transfer,
};
pub use wire::{FRAME_LIMIT, FrameError};

use raft::{RawNode, StateRole};

use crate::store::{self, Fault, HardState, Identity, LogStore, Manifest, Origin};
use membership::{Change, Members};
use snapshot::Snapshots;
use tail::Tail;
use waiting::{Proposals, Reads};

/// The most proposals that may wait for a majority at once.
const WAITING_LIMIT: usize = 65_536;

/// One replica. See the module's story.
pub struct Replica<M: Machine> {
    node: RawNode<Tail>,
    store: Box<dyn LogStore>,
    machine: M,
    config: Config,
    identity: Identity,
    /// The newest hard state, as it was or will be written.
    hard: HardState,
    /// Index and term of the last applied entry.
    applied: (u64, u64),
    members: Members,
    manifest: Option<Manifest>,
    proposals: Proposals,
    /// Our own membership change on its way: index, term, token.
    change: Option<(u64, u64, Token)>,
    reads: Reads,
    snapshots: Snapshots,
    standing: Standing,
}

impl<M: Machine> std::fmt::Debug for Replica<M> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Replica")
            .field("identity", &self.identity)
            .field("standing", &self.standing)
            .field("applied", &self.applied)
            .field("hard", &self.hard)
            .field("members", &self.members)
            .finish_non_exhaustive()
    }
}

impl<M: Machine> Replica<M> {
    /// Does one turn: takes everything in, persists with one flush, sends, applies.
    ///
    /// `outlet` is called during the turn for each message to a peer; it must not block and may
    /// drop. Returns what the turn did, and whether another turn has work at once.
    ///
    /// # Errors
    /// [`Fault`] when this machine's disk fails. Final: end the process.
    pub fn step(
        &mut self,
        input: Input,
        outlet: &mut dyn FnMut(Outgoing),
    ) -> Result<(Progress<M::Outcome>, bool), Fault> {
        let mut progress = Progress::default();
        if input.tick {
            self.node.tick();
            self.reads.tick(&mut progress.reads_dropped);
        }
        for frame in &input.messages {
            self.take_frame(frame, &mut progress);
        }
        for peer in input.unreachable {
            self.node.report_unreachable(peer);
        }
        for Transfer {
            to,
            index,
            finished,
        } in input.transfers
        {
            // One that was overtaken by a later transfer to the same peer says nothing any more.
            if !self.snapshots.transfer_ends(to, index) {
                continue;
            }
            let status = [raft::SnapshotStatus::Failure, raft::SnapshotStatus::Finish];
            self.node.report_snapshot(to, status[usize::from(finished)]);
        }
        for received in input.received {
            self.take_received(received, &mut progress, outlet)?;
        }
        self.propose(input.proposals, &mut progress);
        if let Some((token, change)) = input.change {
            self.propose_change(token, change, &mut progress);
        }
        self.ask_reads(input.reads, &mut progress);
        if let Some(peer) = input.hand_over_to {
            self.node.transfer_leader(peer);
        }
        // A frame may have ended the leadership under proposals that still waited.
        self.settle_callers(&mut progress);
        let more = self.drain(&mut progress, &mut None, outlet)?;
        self.keep_rank();
        self.reads.serve(self.applied.0, &mut progress.reads);
        self.keep_house()?;
        let standing = self.look_at_standing();
        if standing != self.standing {
            self.standing = standing;
            progress.standing = Some(standing);
        }
        Ok((progress, more))
    }

    fn take_frame(&mut self, frame: &[u8], progress: &mut Progress<M::Outcome>) {
        let message = wire::decode_frame(&self.identity.cluster, self.identity.node, frame);
        let refused = match message {
            Ok(message) if wire::announced(&message).is_some() => {
                "a snapshot was announced without its content".to_owned()
            }
            // The protocol would take it for a lost log of ours, and end the process.
            Ok(message) if wire::committed_by(&message) > self.last_index() => {
                "a heartbeat tells of entries that were never received here".to_owned()
            }
            Ok(message) => match self.node.step(message) {
                Ok(()) => return,
                Err(error) => error.to_string(),
            },
            Err(error) => error.to_string(),
        };
        progress.frames_refused.push(refused);
    }

    /// Hands a received snapshot to the protocol, which takes it or finds it out of date.
    fn take_received(
        &mut self,
        received: Received,
        progress: &mut Progress<M::Outcome>,
        outlet: &mut dyn FnMut(Outgoing),
    ) -> Result<(), Fault> {
        let Received { manifest, message } = received;
        let (cluster, node) = (&self.identity.cluster, self.identity.node);
        let decoded =
            wire::decode_frame(cluster, node, &message).map_err(|error| error.to_string());
        let fits = |message: wire::RaftMessage| match wire::announced(&message) {
            Some(at) if at == manifest.at => Ok(message),
            Some(_) | None => Err("a snapshot does not fit its announcement".to_owned()),
        };
        let stepped = decoded
            .and_then(fits)
            .and_then(|message| self.node.step(message).map_err(|error| error.to_string()));
        if let Err(refused) = stepped {
            progress.frames_refused.push(refused);
            return self.store.discard_snapshot(&manifest);
        }
        let mut arrived = Some(manifest);
        self.drain(progress, &mut arrived, outlet)?;
        arrived.map_or(Ok(()), |unused| self.store.discard_snapshot(&unused))
    }

    fn propose(&mut self, proposals: Vec<Proposal>, progress: &mut Progress<M::Outcome>) {
        if proposals.is_empty() {
            return;
        }
        let (leads, raft) = (self.leads(), &self.node.raft);
        let refusal = if !leads {
            Some(self.not_leader())
        } else if self.store.space_low() {
            Some(NotLogged::SpaceLow)
        } else if self.proposals.len() + proposals.len() > WAITING_LIMIT {
            Some(NotLogged::Busy)
        } else {
            None
        };
        if let Some(refusal) = refusal {
            let refused = proposals
                .into_iter()
                .map(|proposal| (proposal.token, refusal));
            progress.refused.extend(refused);
            return;
        }
        let (first, term) = (raft.raft_log.last_index() + 1, raft.term);
        let limit = self.config.command_bytes;
        let (mut tokens, mut commands) = (Vec::new(), Vec::new());
        for Proposal { token, command } in proposals {
            let bytes = command.len();
            if bytes > limit {
                progress
                    .refused
                    .push((token, NotLogged::TooLarge { bytes, limit }));
                continue;
            }
            tokens.push(token);
            commands.push(command);
        }
        if commands.is_empty() {
            return;
        }
        // One message for all: one append, one flush, one round to the followers.
        match self.node.step(wire::propose(self.identity.node, commands)) {
            Ok(()) => self.proposals.note(first, term, tokens.into_iter()),
            Err(error) => {
                tracing::debug!(%error, "proposals refused");
                progress
                    .refused
                    .extend(tokens.into_iter().map(|token| (token, NotLogged::Busy)));
            }
        }
    }

    fn propose_change(
        &mut self,
        token: Token,
        change: Change,
        progress: &mut Progress<M::Outcome>,
    ) {
        if !self.leads() {
            progress.refused.push((token, self.not_leader()));
            return;
        }
        if self.change.is_some() || self.members.check(change).is_err() {
            progress.refused.push((token, NotLogged::ChangePending));
            return;
        }
        let (index, term) = (
            self.node.raft.raft_log.last_index() + 1,
            self.node.raft.term,
        );
        match self
            .node
            .propose_conf_change(Vec::new(), wire::change(change))
        {
            Ok(()) => self.change = Some((index, term, token)),
            Err(_) => progress.refused.push((token, NotLogged::Busy)),
        }
    }

    fn ask_reads(&mut self, tokens: Vec<Token>, progress: &mut Progress<M::Outcome>) {
        if tokens.is_empty() {
            return;
        }
        // The protocol drops such a request without a word; saying so is our part.
        if !self.leads() || !self.node.raft.commit_to_current_term() {
            progress.reads_dropped.extend(tokens);
            return;
        }
        let context = self.reads.begin(tokens, self.config.timers.election_ticks);
        self.node.read_index(context.to_be_bytes().to_vec());
    }

    /// Publishes a finished snapshot, trims, begins the next one when it is due.
    fn keep_house(&mut self) -> Result<(), Fault> {
        if let Some(manifest) = self.snapshots.poll()? {
            let live = self.manifest.as_ref().map_or(0, |live| live.at.index);
            if manifest.at.index > live {
                self.store.publish_snapshot(&manifest)?;
                self.node.mut_store().set_live(manifest.at.clone());
                self.manifest = Some(manifest);
                self.trim()?;
            } else {
                // Overtaken by a received snapshot.
                self.store.discard_snapshot(&manifest)?;
            }
        }
        // One at the index of the live one would be the same again.
        let live = self.manifest.as_ref().map_or(0, |live| live.at.index);
        let wanted = self.node.store().take_wanted() && self.applied.0 > live;
        if self.snapshots.due(&self.config, wanted) {
            let (index, term) = self.applied;
            let membership = wire::encode_conf(&self.node.raft.prs().conf().to_conf_state());
            let at = store::Applied {
                index,
                term,
                membership,
            };
            let writer = self.store.snapshot_writer(&at, Origin::Made)?;
            self.snapshots
                .begin(self.machine.image(), writer, self.config.encoding);
        }
        Ok(())
    }

    /// Forgets what the live snapshot holds, except a tail for slow followers.
    fn trim(&mut self) -> Result<(), Fault> {
        let Some(live) = self.manifest.as_ref().map(|manifest| manifest.at.index) else {
            return Ok(());
        };
        let tail = self.node.store();
        let mut first_kept = live.saturating_sub(self.config.tail_entries) + 1;
        if tail.bytes_above(first_kept) > self.config.tail_bytes {
            first_kept = live + 1;
        }
        if let Some(transfer) = self.snapshots.lowest_transfer() {
            // Whoever receives that snapshot needs the log from there on.
            first_kept = first_kept.min(transfer + 1);
        }
        if first_kept < tail.first() + self.config.trim_entries {
            return Ok(());
        }
        self.store.trim(first_kept)?;
        self.node.mut_store().trim(first_kept);
        self.store.tidy()
    }

    /// Two that stand at once take each other's votes: each waits as its present rank says. The
    /// protocol's library draws anew whenever its role or term changes, out of one range for all
    /// time, while ranks change with the members.
    fn keep_rank(&mut self) {
        let rank = self.members.rank(self.identity.node);
        let drawn = self.node.raft.randomized_election_timeout();
        let after = self.config.timers.stand_after(rank, drawn);
        self.node.raft.set_randomized_election_timeout(after);
    }

    fn leads(&self) -> bool {
        self.node.raft.state == StateRole::Leader
    }

    fn not_leader(&self) -> NotLogged {
        let Standing { leader, term, .. } = self.look_at_standing();
        NotLogged::NotLeader { leader, term }
    }

    fn look_at_standing(&self) -> Standing {
        let raft = &self.node.raft;
        let role = match raft.state {
            StateRole::Follower => Role::Follower,
            StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
            StateRole::Leader => Role::Leader,
        };
        let ready = role == Role::Leader && self.applied.1 == raft.term;
        Standing {
            role,
            leader: Some(raft.leader_id).filter(|id| *id != 0),
            term: raft.term,
            ready,
        }
    }

    /// Role, leader and term as they are now.
    #[must_use]
    pub fn standing(&self) -> Standing {
        self.standing
    }

    /// Who this replica is.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Who belongs to the cluster, as far as this replica has applied.
    #[must_use]
    pub fn members(&self) -> &Members {
        &self.members
    }

    /// How far the other members are, as a leader sees it; nothing anywhere else.
    #[must_use]
    pub fn peers(&self) -> Vec<Peer> {
        if !self.leads() {
            return Vec::new();
        }
        let own = self.identity.node;
        let others = self.node.raft.prs().iter().filter(|(id, _)| **id != own);
        let peers = others.map(|(id, progress)| Peer {
            node: *id,
            matched: progress.matched,
            active: progress.recent_active,
            in_snapshot: progress.state == raft::ProgressState::Snapshot,
        });
        let mut peers: Vec<Peer> = peers.collect();
        peers.sort_unstable_by_key(|peer| peer.node);
        peers
    }

    /// Index of the last entry of the log, committed or not.
    #[must_use]
    pub fn last_index(&self) -> u64 {
        self.node.raft.raft_log.last_index()
    }

    /// Index of the last entry that is known to be committed.
    #[must_use]
    pub fn committed(&self) -> u64 {
        self.node.raft.raft_log.committed
    }

    /// Index of the first entry that is still kept.
    #[must_use]
    pub fn first_index(&self) -> u64 {
        self.node.store().first()
    }

    /// Index of the last applied entry: the machine's revision.
    #[must_use]
    pub fn applied_index(&self) -> u64 {
        self.applied.0
    }

    /// The machine. It changes only inside [`Replica::step`].
    #[must_use]
    pub fn machine(&self) -> &M {
        &self.machine
    }

    /// True when the disk is too full for new commands.
    #[must_use]
    pub fn space_low(&self) -> bool {
        self.store.space_low()
    }

    /// Bytes that the log and the snapshot take on this master's disk.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        self.store.disk_bytes()
    }

    /// The live snapshot, if the replica was founded or has received one.
    #[must_use]
    pub fn live_snapshot(&self) -> Option<&Manifest> {
        self.manifest.as_ref()
    }

    /// Opens a snapshot to send it: content bytes, checked as they are read. May move to another
    /// thread.
    ///
    /// # Errors
    /// [`Fault::Snapshot`] if it was replaced meanwhile: report the transfer as failed.
    pub fn snapshot(&self, manifest: &Manifest) -> Result<Box<dyn store::SnapshotSource>, Fault> {
        self.store.open_snapshot(manifest)
    }

    /// Begins to receive the snapshot that `announcement` names. Write the content into it, call
    /// `finish` with the sender's digest, and hand both over as [`Received`]. The writer may move
    /// to another thread.
    ///
    /// # Errors
    /// The frame's error as text for the sender; a [`Fault`] of our own disk is final as ever.
    pub fn receive_snapshot(
        &self,
        announcement: &[u8],
    ) -> Result<Result<Box<dyn store::SnapshotWriter>, FrameError>, Fault> {
        let (cluster, node) = (&self.identity.cluster, self.identity.node);
        let decoded = wire::decode_frame(cluster, node, announcement);
        let at = decoded.and_then(|message| {
            wire::announced(&message).ok_or(FrameError::Kind("something else than a snapshot"))
        });
        match at {
            Ok(at) => self.store.snapshot_writer(&at, Origin::Received).map(Ok),
            Err(error) => Ok(Err(error)),
        }
    }

    /// Ends gracefully: everything written lazily is flushed, and the log's end marked as flushed.
    ///
    /// # Errors
    /// [`Fault`] when the disk refuses.
    pub fn close(mut self) -> Result<M, Fault> {
        self.store.close()?;
        Ok(self.machine)
    }
}

#[cfg(test)]
mod tests;
