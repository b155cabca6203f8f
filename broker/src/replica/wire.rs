//! The only file that names the raft crate's own message types.
//!
//! Between masters a raft message travels as a frame of ours; on disk an entry is a plain record.
//! The crate's protobuf 2 parser never sees a byte from the network: frames are decoded by the
//! mirrors below (same wire format, prost, bounded recursion) and converted struct to struct.
//!
//! ```text
//! frame  version u8, cluster 16 bytes, message, CRC32C
//! ```

use prost::Message as _;
use raft::eraftpb as pb;
use thiserror::Error;

use crate::replica::membership::{Change, Members};
use crate::store::{Applied, ClusterId, Entry, EntryKind, HardState};

pub(super) type RaftEntry = pb::Entry;
pub(super) type RaftMessage = pb::Message;
pub(super) type RaftSnapshot = pb::Snapshot;
pub(super) type RaftHardState = pb::HardState;
pub(super) type RaftConfState = pb::ConfState;
pub(super) type RaftChange = pb::ConfChangeV2;

/// The longest frame that is taken from a peer.
pub const FRAME_LIMIT: usize = 8 << 20;

const VERSION: u8 = 1;
const HEAD: usize = 1 + 16;

/// Why a peer's frame was not taken. Nothing happened; the peer sends again.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FrameError {
    /// Longer than any message.
    #[error("a frame of {0} bytes is longer than any message")]
    TooLong(usize),
    /// Shorter than its head, or the checksum does not hold.
    #[error("a frame arrived damaged")]
    Damaged,
    /// Of a release that speaks another form.
    #[error("a frame has version {0}, this release speaks {VERSION}")]
    Version(u8),
    /// From a master of another cluster.
    #[error("a frame of another cluster arrived; check the peer addresses of this master")]
    OtherCluster,
    /// Not addressed to this replica, or from itself.
    #[error("a frame from {from} to {to} arrived at {here}; check the peer addresses")]
    Misrouted {
        /// Sender named in it.
        from: u64,
        /// Receiver named in it.
        to: u64,
        /// This replica.
        here: u64,
    },
    /// Whole, but not a message that may come over the network.
    #[error("a frame holds {0}, which does not come over the network")]
    Kind(&'static str),
}

// Mirrors of the messages. Tags and types are those of the raft crate's own definition.

#[derive(Clone, PartialEq, prost::Message)]
struct MirrorEntry {
    #[prost(int32, tag = "1")]
    entry_type: i32,
    #[prost(uint64, tag = "2")]
    term: u64,
    #[prost(uint64, tag = "3")]
    index: u64,
    #[prost(bytes = "vec", tag = "4")]
    data: Vec<u8>,
    #[prost(bytes = "vec", tag = "6")]
    context: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct MirrorConfState {
    #[prost(uint64, repeated, tag = "1")]
    voters: Vec<u64>,
    #[prost(uint64, repeated, tag = "2")]
    learners: Vec<u64>,
    #[prost(uint64, repeated, tag = "3")]
    voters_outgoing: Vec<u64>,
    #[prost(uint64, repeated, tag = "4")]
    learners_next: Vec<u64>,
    #[prost(bool, tag = "5")]
    auto_leave: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct MirrorSnapshotMetadata {
    #[prost(message, optional, tag = "1")]
    conf_state: Option<MirrorConfState>,
    #[prost(uint64, tag = "2")]
    index: u64,
    #[prost(uint64, tag = "3")]
    term: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct MirrorSnapshot {
    #[prost(message, optional, tag = "2")]
    metadata: Option<MirrorSnapshotMetadata>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct MirrorMessage {
    #[prost(int32, tag = "1")]
    msg_type: i32,
    #[prost(uint64, tag = "2")]
    to: u64,
    #[prost(uint64, tag = "3")]
    from: u64,
    #[prost(uint64, tag = "4")]
    term: u64,
    #[prost(uint64, tag = "5")]
    log_term: u64,
    #[prost(uint64, tag = "6")]
    index: u64,
    #[prost(message, repeated, tag = "7")]
    entries: Vec<MirrorEntry>,
    #[prost(uint64, tag = "8")]
    commit: u64,
    #[prost(message, optional, tag = "9")]
    snapshot: Option<MirrorSnapshot>,
    #[prost(bool, tag = "10")]
    reject: bool,
    #[prost(uint64, tag = "11")]
    reject_hint: u64,
    #[prost(bytes = "vec", tag = "12")]
    context: Vec<u8>,
    #[prost(uint64, tag = "13")]
    request_snapshot: u64,
    #[prost(uint64, tag = "14")]
    deprecated_priority: u64,
    #[prost(uint64, tag = "15")]
    commit_term: u64,
    #[prost(int64, tag = "16")]
    priority: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct MirrorChangeSingle {
    #[prost(int32, tag = "1")]
    change_type: i32,
    #[prost(uint64, tag = "2")]
    node_id: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct MirrorChange {
    #[prost(int32, tag = "1")]
    transition: i32,
    #[prost(message, repeated, tag = "2")]
    changes: Vec<MirrorChangeSingle>,
    #[prost(bytes = "vec", tag = "3")]
    context: Vec<u8>,
}

/// Every kind of message with its number on the wire.
const MESSAGE_TYPES: [pb::MessageType; 19] = [
    pb::MessageType::MsgHup,
    pb::MessageType::MsgBeat,
    pb::MessageType::MsgPropose,
    pb::MessageType::MsgAppend,
    pb::MessageType::MsgAppendResponse,
    pb::MessageType::MsgRequestVote,
    pb::MessageType::MsgRequestVoteResponse,
    pb::MessageType::MsgSnapshot,
    pb::MessageType::MsgHeartbeat,
    pb::MessageType::MsgHeartbeatResponse,
    pb::MessageType::MsgUnreachable,
    pb::MessageType::MsgSnapStatus,
    pb::MessageType::MsgCheckQuorum,
    pb::MessageType::MsgTransferLeader,
    pb::MessageType::MsgTimeoutNow,
    pb::MessageType::MsgReadIndex,
    pb::MessageType::MsgReadIndexResp,
    pb::MessageType::MsgRequestPreVote,
    pb::MessageType::MsgRequestPreVoteResponse,
];

/// Packs a message for its receiver.
pub(super) fn encode_frame(cluster: &ClusterId, message: RaftMessage) -> Vec<u8> {
    let mirror = to_mirror(message);
    let mut out = Vec::with_capacity(HEAD + mirror.encoded_len() + 4);
    out.push(VERSION);
    out.extend_from_slice(cluster);
    out.extend_from_slice(&mirror.encode_to_vec());
    let crc = crc32c::crc32c(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    out
}

/// Unpacks a frame that came from the network to replica `here`.
pub(super) fn decode_frame(
    cluster: &ClusterId,
    here: u64,
    frame: &[u8],
) -> Result<RaftMessage, FrameError> {
    if frame.len() > FRAME_LIMIT {
        return Err(FrameError::TooLong(frame.len()));
    }
    let (sealed, crc) = frame.split_last_chunk::<4>().ok_or(FrameError::Damaged)?;
    if crc32c::crc32c(sealed) != u32::from_le_bytes(*crc) {
        return Err(FrameError::Damaged);
    }
    let (head, body) = sealed
        .split_first_chunk::<HEAD>()
        .ok_or(FrameError::Damaged)?;
    let [version, sender @ ..] = head;
    if *version != VERSION {
        return Err(FrameError::Version(*version));
    }
    if sender != cluster {
        return Err(FrameError::OtherCluster);
    }
    let mirror = MirrorMessage::decode(body).map_err(|_| FrameError::Damaged)?;
    let (from, to) = (mirror.from, mirror.to);
    if to != here || from == here || from == 0 {
        return Err(FrameError::Misrouted { from, to, here });
    }
    let message = from_mirror(mirror)?;
    match message.get_msg_type() {
        pb::MessageType::MsgHup
        | pb::MessageType::MsgBeat
        | pb::MessageType::MsgUnreachable
        | pb::MessageType::MsgSnapStatus
        | pb::MessageType::MsgCheckQuorum => Err(FrameError::Kind("a message to oneself")),
        // A follower never forwards: the caller is told who leads.
        pb::MessageType::MsgPropose => Err(FrameError::Kind("a forwarded proposal")),
        pb::MessageType::MsgReadIndex | pb::MessageType::MsgReadIndexResp => {
            Err(FrameError::Kind("a forwarded read"))
        }
        pb::MessageType::MsgAppend
        | pb::MessageType::MsgAppendResponse
        | pb::MessageType::MsgRequestVote
        | pb::MessageType::MsgRequestVoteResponse
        | pb::MessageType::MsgSnapshot
        | pb::MessageType::MsgHeartbeat
        | pb::MessageType::MsgHeartbeatResponse
        | pb::MessageType::MsgTransferLeader
        | pb::MessageType::MsgTimeoutNow
        | pb::MessageType::MsgRequestPreVote
        | pb::MessageType::MsgRequestPreVoteResponse => Ok(message),
    }
}

fn to_mirror(mut message: RaftMessage) -> MirrorMessage {
    let kind = message.get_msg_type();
    let number = MESSAGE_TYPES
        .iter()
        .position(|candidate| *candidate == kind);
    let metadata = message
        .has_snapshot()
        .then(|| message.get_snapshot().get_metadata());
    let snapshot = metadata.map(|metadata| MirrorSnapshot {
        metadata: Some(MirrorSnapshotMetadata {
            conf_state: Some(conf_to_mirror(metadata.get_conf_state())),
            index: metadata.index,
            term: metadata.term,
        }),
    });
    MirrorMessage {
        // The table has 19 rows, so the number always fits.
        msg_type: number
            .and_then(|number| i32::try_from(number).ok())
            .unwrap_or(-1),
        to: message.to,
        from: message.from,
        term: message.term,
        log_term: message.log_term,
        index: message.index,
        entries: message
            .take_entries()
            .into_iter()
            .map(entry_to_mirror)
            .collect(),
        commit: message.commit,
        snapshot,
        reject: message.reject,
        reject_hint: message.reject_hint,
        context: message.take_context().to_vec(),
        request_snapshot: message.request_snapshot,
        deprecated_priority: message.deprecated_priority,
        commit_term: message.commit_term,
        priority: message.priority,
    }
}

fn from_mirror(mirror: MirrorMessage) -> Result<RaftMessage, FrameError> {
    let kind = usize::try_from(mirror.msg_type)
        .ok()
        .and_then(|at| MESSAGE_TYPES.get(at));
    let mut message = RaftMessage::default();
    message.set_msg_type(*kind.ok_or(FrameError::Kind("an unknown message"))?);
    message.to = mirror.to;
    message.from = mirror.from;
    message.term = mirror.term;
    message.log_term = mirror.log_term;
    message.index = mirror.index;
    message.commit = mirror.commit;
    message.reject = mirror.reject;
    message.reject_hint = mirror.reject_hint;
    message.context = mirror.context.into();
    message.request_snapshot = mirror.request_snapshot;
    message.deprecated_priority = mirror.deprecated_priority;
    message.commit_term = mirror.commit_term;
    message.priority = mirror.priority;
    let entries: Result<Vec<RaftEntry>, FrameError> =
        mirror.entries.into_iter().map(entry_from_mirror).collect();
    message.set_entries(entries?.into());
    if let Some(metadata) = mirror.snapshot.and_then(|snapshot| snapshot.metadata) {
        let conf = conf_from_mirror(metadata.conf_state.unwrap_or_default());
        message.set_snapshot(snapshot(metadata.index, metadata.term, conf));
    }
    Ok(message)
}

fn entry_to_mirror(mut entry: RaftEntry) -> MirrorEntry {
    MirrorEntry {
        entry_type: entry_type_number(entry.get_entry_type()),
        term: entry.term,
        index: entry.index,
        data: entry.take_data().to_vec(),
        context: entry.take_context().to_vec(),
    }
}

fn entry_from_mirror(mirror: MirrorEntry) -> Result<RaftEntry, FrameError> {
    let mut entry = RaftEntry::default();
    entry.set_entry_type(match mirror.entry_type {
        0 => pb::EntryType::EntryNormal,
        1 => pb::EntryType::EntryConfChange,
        2 => pb::EntryType::EntryConfChangeV2,
        _ => return Err(FrameError::Kind("an unknown entry")),
    });
    entry.term = mirror.term;
    entry.index = mirror.index;
    entry.data = mirror.data.into();
    entry.context = mirror.context.into();
    Ok(entry)
}

fn entry_type_number(kind: pb::EntryType) -> i32 {
    match kind {
        pb::EntryType::EntryNormal => 0,
        pb::EntryType::EntryConfChange => 1,
        pb::EntryType::EntryConfChangeV2 => 2,
    }
}

fn conf_to_mirror(conf: &RaftConfState) -> MirrorConfState {
    MirrorConfState {
        voters: conf.get_voters().to_vec(),
        learners: conf.get_learners().to_vec(),
        voters_outgoing: conf.get_voters_outgoing().to_vec(),
        learners_next: conf.get_learners_next().to_vec(),
        auto_leave: conf.auto_leave,
    }
}

fn conf_from_mirror(mirror: MirrorConfState) -> RaftConfState {
    let mut conf = RaftConfState::default();
    conf.set_voters(mirror.voters);
    conf.set_learners(mirror.learners);
    conf.set_voters_outgoing(mirror.voters_outgoing);
    conf.set_learners_next(mirror.learners_next);
    conf.auto_leave = mirror.auto_leave;
    conf
}

/// The membership as stored bytes.
pub(super) fn encode_conf(conf: &RaftConfState) -> Vec<u8> {
    conf_to_mirror(conf).encode_to_vec()
}

/// The membership from stored bytes.
pub(super) fn decode_conf(bytes: &[u8]) -> Result<RaftConfState, String> {
    MirrorConfState::decode(bytes)
        .map(conf_from_mirror)
        .map_err(|error| error.to_string())
}

/// The membership of a cluster's first day.
pub(super) fn founding_conf(founders: &[u64]) -> RaftConfState {
    let mut voters = founders.to_vec();
    voters.sort_unstable();
    voters.dedup();
    let mut conf = RaftConfState::default();
    conf.set_voters(voters);
    conf
}

/// True if the node belongs to the membership in any way.
pub(super) fn has_member(conf: &RaftConfState, node: u64) -> bool {
    let lists = [
        conf.get_voters(),
        conf.get_learners(),
        conf.get_voters_outgoing(),
    ];
    lists.iter().any(|list| list.contains(&node))
}

/// The membership for people and for the leader.
pub(super) fn members(conf: &RaftConfState) -> Members {
    let mut voters = conf.get_voters().to_vec();
    let mut learners = conf.get_learners().to_vec();
    voters.sort_unstable();
    learners.sort_unstable();
    Members {
        voters,
        learners,
        changing: !conf.get_voters_outgoing().is_empty(),
    }
}

/// A membership change as the raft crate wants it.
pub(super) fn change(change: Change) -> RaftChange {
    let single = |kind: pb::ConfChangeType, node: u64| {
        let mut single = pb::ConfChangeSingle::default();
        single.set_change_type(kind);
        single.node_id = node;
        single
    };
    let (add, remove) = (pb::ConfChangeType::AddNode, pb::ConfChangeType::RemoveNode);
    let changes = match change {
        Change::AddLearner(node) => vec![single(pb::ConfChangeType::AddLearnerNode, node)],
        Change::Promote(node) => vec![single(add, node)],
        Change::Remove(node) => vec![single(remove, node)],
        // Two at once make the crate go through both majorities, and leave by itself.
        Change::Replace { enters, leaves } => vec![single(add, enters), single(remove, leaves)],
        // None at all leaves.
        Change::Settle => Vec::new(),
    };
    let mut change = RaftChange::default();
    change.set_changes(changes.into());
    change
}

/// A membership change out of a committed entry.
pub(super) fn decode_change(entry: &RaftEntry) -> Result<Option<RaftChange>, String> {
    if entry.get_entry_type() != pb::EntryType::EntryConfChangeV2 {
        return Ok(None);
    }
    let mirror = MirrorChange::decode(entry.get_data()).map_err(|error| error.to_string())?;
    let mut change = RaftChange::default();
    change.set_transition(match mirror.transition {
        0 => pb::ConfChangeTransition::Auto,
        1 => pb::ConfChangeTransition::Implicit,
        2 => pb::ConfChangeTransition::Explicit,
        other => return Err(format!("unknown transition {other}")),
    });
    let mut singles = Vec::new();
    for mirror in mirror.changes {
        let mut single = pb::ConfChangeSingle::default();
        single.set_change_type(match mirror.change_type {
            0 => pb::ConfChangeType::AddNode,
            1 => pb::ConfChangeType::RemoveNode,
            2 => pb::ConfChangeType::AddLearnerNode,
            other => return Err(format!("unknown change {other}")),
        });
        single.node_id = mirror.node_id;
        singles.push(single);
    }
    change.set_changes(singles.into());
    change.context = mirror.context.into();
    Ok(Some(change))
}

/// True for an entry that changes the membership.
pub(super) fn is_change(entry: &RaftEntry) -> bool {
    entry.get_entry_type() != pb::EntryType::EntryNormal
}

/// One proposal message with all commands of a turn.
pub(super) fn propose(node: u64, commands: Vec<Vec<u8>>) -> RaftMessage {
    let to_entry = |command: Vec<u8>| RaftEntry {
        data: command.into(),
        ..RaftEntry::default()
    };
    let mut message = RaftMessage::default();
    message.set_msg_type(pb::MessageType::MsgPropose);
    message.from = node;
    message.set_entries(
        commands
            .into_iter()
            .map(to_entry)
            .collect::<Vec<_>>()
            .into(),
    );
    message
}

/// Up to where a heartbeat says that the receiver's own log is committed; 0 of any other message.
pub(super) fn committed_by(message: &RaftMessage) -> u64 {
    if message.get_msg_type() == pb::MessageType::MsgHeartbeat {
        message.commit
    } else {
        0
    }
}

/// True if the node belongs to one of the majorities that decide.
pub(super) fn votes(conf: &RaftConfState, node: u64) -> bool {
    conf.get_voters().contains(&node) || conf.get_voters_outgoing().contains(&node)
}

/// What a snapshot message announces, or `None` for any other message.
pub(super) fn announced(message: &RaftMessage) -> Option<Applied> {
    (message.get_msg_type() == pb::MessageType::MsgSnapshot).then(|| point(message.get_snapshot()))
}

/// Index, term and membership of a snapshot.
pub(super) fn point(snapshot: &RaftSnapshot) -> Applied {
    let metadata = snapshot.get_metadata();
    Applied {
        index: metadata.index,
        term: metadata.term,
        membership: encode_conf(metadata.get_conf_state()),
    }
}

/// A snapshot without content: the content travels by itself.
pub(super) fn snapshot(index: u64, term: u64, conf: RaftConfState) -> RaftSnapshot {
    let mut snapshot = RaftSnapshot::default();
    let metadata = snapshot.mut_metadata();
    metadata.index = index;
    metadata.term = term;
    metadata.set_conf_state(conf);
    snapshot
}

/// An entry as the store keeps it.
pub(super) fn to_stored(entry: &RaftEntry) -> Entry {
    let kind = match entry.get_entry_type() {
        pb::EntryType::EntryNormal => EntryKind::Command,
        pb::EntryType::EntryConfChange => EntryKind::Change,
        pb::EntryType::EntryConfChangeV2 => EntryKind::ChangeV2,
    };
    Entry {
        index: entry.index,
        term: entry.term,
        kind,
        data: entry.get_data().to_vec(),
    }
}

/// An entry as the store kept it.
pub(super) fn from_stored(stored: Entry) -> RaftEntry {
    let mut entry = RaftEntry::default();
    entry.set_entry_type(match stored.kind {
        EntryKind::Command => pb::EntryType::EntryNormal,
        EntryKind::Change => pb::EntryType::EntryConfChange,
        EntryKind::ChangeV2 => pb::EntryType::EntryConfChangeV2,
    });
    entry.index = stored.index;
    entry.term = stored.term;
    entry.data = stored.data.into();
    entry
}

/// The hard state as the store keeps it.
pub(super) fn hard_to_stored(hard: &RaftHardState) -> HardState {
    HardState {
        term: hard.term,
        vote: hard.vote,
        commit: hard.commit,
    }
}

/// The hard state as the store kept it.
pub(super) fn hard_from_stored(stored: &HardState) -> RaftHardState {
    let HardState { term, vote, commit } = *stored;
    RaftHardState {
        term,
        vote,
        commit,
        ..RaftHardState::default()
    }
}

#[cfg(test)]
mod tests;
