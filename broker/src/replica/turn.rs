//! What goes into one turn of a replica and what comes out of it.
//!
//! Plain data, so that the master's loop, the simulator and tests drive a replica alike. Messages
//! to other replicas leave during the turn, through the outlet given to `step`, because some must
//! leave before the disk is written and some only after it.

use crate::replica::membership::Change;
use crate::store::Manifest;

/// The caller's name for one of its proposals or reads. Must be unique while it is outstanding.
pub type Token = u64;

/// Everything that enters one turn. `Input::default()` is an empty turn.
#[derive(Debug, Default)]
pub struct Input {
    /// One tick of 20 ms is due. Several missed ticks count as one, else a stall starts elections.
    pub tick: bool,
    /// Commands to replicate, in this order. All of them share one flush.
    pub proposals: Vec<Proposal>,
    /// At most one change of the membership at a time; `None` most of the time.
    pub change: Option<(Token, Change)>,
    /// Frames of other replicas as they came from the network, length and peer already checked.
    pub messages: Vec<Vec<u8>>,
    /// Snapshots that arrived whole (written through
    /// [`crate::replica::Replica::receive_snapshot`]), each with the frame that announced it.
    pub received: Vec<Received>,
    /// Reads that want a linearizable point in the log.
    pub reads: Vec<Token>,
    /// Peers whose connection failed.
    pub unreachable: Vec<u64>,
    /// Ends of snapshot transfers to peers: finished or failed, always reported.
    pub transfers: Vec<Transfer>,
    /// Hand the leadership to this peer (a graceful stop).
    pub hand_over_to: Option<u64>,
}

/// One command to replicate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal {
    /// Comes back with the outcome, the refusal or "unknown".
    pub token: Token,
    /// The encoded command.
    pub command: Vec<u8>,
}

/// A snapshot that arrived whole from the leader.
#[derive(Debug)]
pub struct Received {
    /// What the receiving writer's `finish` returned.
    pub manifest: Manifest,
    /// The frame that announced the transfer.
    pub message: Vec<u8>,
}

/// How the sending of a snapshot ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// The receiving peer.
    pub to: u64,
    /// The snapshot's index.
    pub index: u64,
    /// True when the peer has it whole; false on any failure, a lost connection included.
    pub finished: bool,
}

/// What leaves for another replica during a turn.
#[derive(Debug)]
pub enum Outgoing {
    /// An ordinary frame. May be lost; never reorder frames to one peer on purpose.
    Message {
        /// Receiving replica.
        to: u64,
        /// The frame.
        bytes: Vec<u8>,
    },
    /// The peer needs a snapshot: send the announcement and the file's pieces over a call of their
    /// own, then report the end as a [`Transfer`], also when it failed.
    Snapshot {
        /// Receiving replica.
        to: u64,
        /// The announcing frame, to be handed over together with the finished file.
        announcement: Vec<u8>,
        /// Which snapshot; open it with [`crate::replica::Replica::snapshot`].
        manifest: Manifest,
    },
}

/// What one turn did. Every token that entered leaves exactly once, in this turn or a later one.
#[derive(Debug)]
pub struct Progress<O> {
    /// Commands applied in log order, also those that other replicas proposed.
    pub applied: Vec<Applied<O>>,
    /// Proposals that were not taken: nothing was logged.
    pub refused: Vec<(Token, NotLogged)>,
    /// Proposals taken while leading whose fate this replica cannot tell any more. They may or may
    /// not commit: the caller must ask again with the same key.
    pub unknown: Vec<Token>,
    /// Reads that may be answered from the machine now, with the index they are good for.
    pub reads: Vec<(Token, u64)>,
    /// Reads that were dropped (no leader, leader changed): ask again.
    pub reads_dropped: Vec<Token>,
    /// The machine was replaced by a received snapshot up to this index: every view of it is void.
    pub restored: Option<u64>,
    /// Set when role, leader or term changed during the turn: the state after it.
    pub standing: Option<Standing>,
    /// Set when the membership changed.
    pub members: Option<crate::replica::membership::Members>,
    /// Peer frames that were not taken, with the reason, for a log line. Harmless.
    pub frames_refused: Vec<String>,
}

impl<O> Default for Progress<O> {
    fn default() -> Self {
        Self {
            applied: Vec::new(),
            refused: Vec::new(),
            unknown: Vec::new(),
            reads: Vec::new(),
            reads_dropped: Vec::new(),
            restored: None,
            standing: None,
            members: None,
            frames_refused: Vec::new(),
        }
    }
}

/// One applied command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied<O> {
    /// Its place in the log.
    pub index: u64,
    /// The term it was proposed in.
    pub term: u64,
    /// The proposal's token if it was proposed here and in the present term.
    pub token: Option<Token>,
    /// What the machine gave back. `None` for a membership change.
    pub outcome: Option<O>,
}

/// Why a proposal was not logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotLogged {
    /// This replica does not lead; `leader` does, as far as it knows.
    NotLeader {
        /// The leader's node id.
        leader: Option<u64>,
        /// The term this was known in.
        term: u64,
    },
    /// Too many bytes wait for the majority, or the leadership is being handed over: try later.
    Busy,
    /// The disk is nearly full: new commands wait until there is room.
    SpaceLow,
    /// The command is larger than the limit.
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The most that is taken.
        limit: usize,
    },
    /// A membership change is already on its way, or the cluster is not in a state for this one.
    ChangePending,
}

/// How far another member is, as the leader sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its node id.
    pub node: u64,
    /// Its log equals the leader's up to this index.
    pub matched: u64,
    /// It has acknowledged something since the leader last looked, at most an election's time ago.
    pub active: bool,
    /// It is being sent a snapshot.
    pub in_snapshot: bool,
}

/// What a replica is at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Follows a leader, or waits for one.
    Follower,
    /// Stands for election.
    Candidate,
    /// Leads.
    Leader,
}

/// Role, leader and term of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// What this replica is.
    pub role: Role,
    /// Who leads, if known.
    pub leader: Option<u64>,
    /// The present term.
    pub term: u64,
    /// True when this replica leads and has applied everything committed before its own term: only
    /// then may it decide by reading the machine.
    pub ready: bool,
}
