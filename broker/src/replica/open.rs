//! From a store to a running replica: found or load, rebuild the machine, catch up.

use raft::RawNode;
use thiserror::Error;

use crate::replica::config::Config;
use crate::replica::log_bridge;
use crate::replica::machine::{Machine, RestoreError};
use crate::replica::snapshot::{self, Snapshots};
use crate::replica::tail::Tail;
use crate::replica::turn::{Progress, Role, Standing};
use crate::replica::waiting::{Proposals, Reads};
use crate::replica::{Replica, wire};
use crate::store::{Applied, EntryKind, Fault, Loaded, LogStore, Manifest, TooNew};

/// Why a replica did not start.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The store was used up by an earlier start.
    #[error("start a replica on a store that was already taken; open the store again")]
    StoreTaken,
    /// This node is not among the founders.
    #[error(
        "found a cluster as node {node}: the founders are {founders:?}; name this node among them"
    )]
    NotAFounder {
        /// This node.
        node: u64,
        /// The founders in the configuration.
        founders: Vec<u64>,
    },
    /// The snapshot cannot be used.
    #[error(
        "restore the machine from {file}; this replica's disk cannot be trusted: keep the \
         directory as it is. One of several masters: with an empty directory, mete master init \
         --state-dir DIR --join ANOTHER --advertise OWN --replaces mN. A master that is alone: \
         start on a copy of it that was taken while the master was stopped"
    )]
    Restore {
        /// The file.
        file: String,
        /// The cause.
        #[source]
        source: RestoreError,
    },
    /// A saved membership cannot be read.
    #[error("read the saved membership: {0}; start on a saved copy of the state directory")]
    Membership(String),
    /// The settings contradict each other.
    #[error("start the protocol: {0}; check the timers and limits in the configuration")]
    Settings(String),
    /// The cluster has gone on to what only a newer release knows.
    #[error(transparent)]
    TooNew(#[from] TooNew),
    /// The disk failed at once.
    #[error("start the replica")]
    Fault(#[source] Fault),
}

impl From<Fault> for OpenError {
    /// What an applied entry has told says the same whether it was replayed or committed just now.
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::TooNew(found) => Self::TooNew(found),
            Fault::Io { .. } | Fault::Log { .. } | Fault::Snapshot { .. } => Self::Fault(fault),
        }
    }
}

impl<M: Machine> Replica<M> {
    /// Starts a replica on an open store.
    ///
    /// A new store is founded first, by the same steps for one founder as for three. The machine is
    /// rebuilt from snapshot and log; whatever is known as committed is applied before this
    /// returns.
    /// `machine` must be empty. A replica that is alone leads when this returns.
    ///
    /// # Errors
    /// [`OpenError`]; the process should end with it.
    pub fn open(
        config: Config,
        mut store: Box<dyn LogStore>,
        mut machine: M,
    ) -> Result<Self, OpenError> {
        let loaded = store.take_loaded().ok_or(OpenError::StoreTaken)?;
        let loaded = found_if_new(&config, store.as_mut(), &machine, loaded)?;
        if let Some(manifest) = &loaded.manifest {
            let restored = snapshot::restore(store.as_ref(), manifest, &mut machine);
            restored.map_err(|source| match source {
                RestoreError::TooNew(found) => OpenError::TooNew(found),
                RestoreError::Read(_) | RestoreError::Content(_) | RestoreError::Digest { .. } => {
                    OpenError::Restore {
                        file: manifest.file.clone(),
                        source,
                    }
                }
            })?;
        }
        let start = starting_point(&loaded);
        let conf = wire::decode_conf(&start.membership).map_err(OpenError::Membership)?;
        replay(&loaded, start.index, &mut machine)?;
        let (identity, manifest, hard) = (loaded.identity, loaded.manifest, loaded.hard);
        let members = wire::members(&conf);
        let live = manifest.as_ref().map(|manifest| manifest.at.clone());
        let behind = start
            .index
            .saturating_sub(live.as_ref().map_or(0, |live| live.index));
        let tail = Tail::new(live, loaded.entries, wire::hard_from_stored(&hard), conf);
        let raft = config.raft(identity.node, start.index);
        let node = RawNode::new(&raft, tail, &log_bridge::logger())
            .map_err(|error| OpenError::Settings(error.to_string()))?;
        let mut replica = Self {
            node,
            store,
            machine,
            config,
            identity,
            hard,
            applied: (start.index, start.term),
            members,
            manifest,
            proposals: Proposals::default(),
            change: None,
            reads: Reads::default(),
            snapshots: Snapshots::since_live(behind),
            standing: Standing {
                role: Role::Follower,
                leader: None,
                term: 0,
                ready: false,
            },
        };
        replica.catch_up()?;
        Ok(replica)
    }

    /// Applies what is known as committed; a replica that is alone also takes the lead. Outcomes go
    /// nowhere: whoever asked for them was answered by an earlier life, or asks again.
    fn catch_up(&mut self) -> Result<(), OpenError> {
        if self.members.is_alone(self.identity.node) {
            let stood = self.node.campaign();
            stood.map_err(|error| OpenError::Settings(error.to_string()))?;
        }
        loop {
            let mut progress = Progress::default();
            // Nobody is connected yet; anything said now is repeated by the protocol's own timers.
            let more = self.drain(&mut progress, &mut None, &mut |_| {})?;
            if !more {
                break;
            }
        }
        self.standing = self.look_at_standing();
        Ok(())
    }
}

fn found_if_new<M: Machine>(
    config: &Config,
    store: &mut dyn LogStore,
    machine: &M,
    mut loaded: Loaded,
) -> Result<Loaded, OpenError> {
    let is_new = loaded.manifest.is_none() && loaded.entries.is_empty();
    if !is_new || config.founders.is_empty() {
        return Ok(loaded);
    }
    let (node, founders) = (loaded.identity.node, config.founders.clone());
    if !founders.contains(&node) {
        return Err(OpenError::NotAFounder { node, founders });
    }
    let membership = wire::encode_conf(&wire::founding_conf(&founders));
    let manifest: Manifest = snapshot::found(store, machine, membership)?;
    loaded.hard = crate::store::HardState {
        term: 1,
        vote: 0,
        commit: 1,
    };
    loaded.applied = Some(manifest.at.clone());
    loaded.manifest = Some(manifest);
    Ok(loaded)
}

/// The applied index that the protocol starts from, with the membership of that very index: the
/// saved one, or the snapshot's if that is newer.
fn starting_point(loaded: &Loaded) -> Applied {
    let snapshot = loaded.manifest.as_ref().map(|manifest| manifest.at.clone());
    let newest = [loaded.applied.clone(), snapshot].into_iter().flatten();
    newest
        .max_by_key(|applied| applied.index)
        .unwrap_or_default()
}

/// Brings the machine from the snapshot to `until`. Membership entries are left alone: their effect
/// is in the saved membership already.
fn replay<M: Machine>(loaded: &Loaded, until: u64, machine: &mut M) -> Result<(), TooNew> {
    let from = loaded
        .manifest
        .as_ref()
        .map_or(0, |manifest| manifest.at.index);
    let missing = loaded
        .entries
        .iter()
        .filter(|entry| entry.index > from && entry.index <= until);
    for entry in missing {
        if entry.kind == EntryKind::Command && !entry.data.is_empty() {
            machine.apply(entry.index, entry.term, &entry.data)?;
        }
    }
    Ok(())
}
