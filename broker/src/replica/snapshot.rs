//! When a snapshot is taken, who encodes it, and what is trimmed afterwards.
//!
//! The loop only takes the machine's cheap copy; encoding runs on a thread of its own and the
//! finished file is picked up in a later turn. Only then does the log shrink, and never past a tail
//! for slow followers, nor past a snapshot that is on its way to one.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};

use crate::replica::config::{Config, Encoding};
use crate::replica::machine::{Image, Machine, RestoreError};
use crate::store::{Applied, Fault, LogStore, Manifest, Origin, SnapshotWriter};

/// A snapshot that is being encoded, and what counts towards the next one.
#[derive(Debug, Default)]
pub(super) struct Snapshots {
    running: Option<Receiver<Result<Manifest, Fault>>>,
    entries: u64,
    bytes: u64,
    /// Peers that receive a snapshot, with its index.
    transfers: BTreeMap<u64, u64>,
}

impl Snapshots {
    /// Counts on after a start: so many entries were applied since the live snapshot.
    pub(super) fn since_live(entries: u64) -> Self {
        Self {
            entries,
            ..Self::default()
        }
    }

    /// One command was applied.
    pub(super) fn count(&mut self, bytes: usize) {
        self.entries += 1;
        self.bytes += bytes as u64;
    }

    /// True if it is time for a new one. It is wanted when a peer can use none that there is.
    pub(super) fn due(&self, config: &Config, wanted: bool) -> bool {
        let grown = self.entries >= config.snapshot_entries || self.bytes >= config.snapshot_bytes;
        self.running.is_none() && (wanted || (self.entries > 0 && grown))
    }

    /// Begins one from `image`.
    pub(super) fn begin<I: Image>(
        &mut self,
        image: I,
        writer: Box<dyn SnapshotWriter>,
        encoding: Encoding,
    ) {
        (self.entries, self.bytes) = (0, 0);
        let (done, result) = sync_channel(1);
        // Nobody listens any more only when the replica is gone: then the result is of no use.
        let work = move || drop(done.send(write(&image, writer)));
        match encoding {
            Encoding::Inline => work(),
            Encoding::Thread => {
                let name = "mete-snapshot".to_owned();
                if let Err(error) = std::thread::Builder::new().name(name).spawn(work) {
                    // The closure is gone with the thread, so the channel reads as disconnected and
                    // the snapshot is tried again when it is due again.
                    tracing::warn!(%error, "no thread for a snapshot; trying again later");
                }
            }
        }
        self.running = Some(result);
    }

    /// The finished snapshot, if there is one.
    pub(super) fn poll(&mut self) -> Result<Option<Manifest>, Fault> {
        let Some(running) = &self.running else {
            return Ok(None);
        };
        match running.try_recv() {
            Ok(result) => {
                self.running = None;
                result.map(Some)
            }
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => {
                self.running = None;
                Ok(None)
            }
        }
    }

    /// Anything that was counted or is being encoded is void: the machine was replaced.
    pub(super) fn reset(&mut self) {
        (self.entries, self.bytes) = (0, 0);
    }

    pub(super) fn transfer_begins(&mut self, peer: u64, index: u64) {
        self.transfers.insert(peer, index);
    }

    /// False for a transfer that a later one to the same peer has overtaken.
    pub(super) fn transfer_ends(&mut self, peer: u64, index: u64) -> bool {
        let present = self.transfers.get(&peer) == Some(&index);
        if present {
            self.transfers.remove(&peer);
        }
        present
    }

    /// The lowest snapshot index that is on its way to a peer.
    pub(super) fn lowest_transfer(&self) -> Option<u64> {
        self.transfers.values().min().copied()
    }
}

fn write(image: &impl Image, mut writer: Box<dyn SnapshotWriter>) -> Result<Manifest, Fault> {
    let path = std::path::PathBuf::from("the snapshot");
    image.write_to(&mut writer).map_err(|source| Fault::Io {
        action: "write",
        path,
        source,
    })?;
    writer.finish(image.digest())
}

/// Fills `machine` from the snapshot of `manifest`, all checksums and the digest checked.
pub(super) fn restore<M: Machine>(
    store: &dyn LogStore,
    manifest: &Manifest,
    machine: &mut M,
) -> Result<(), RestoreError> {
    let mut source = store
        .open_snapshot(manifest)
        .map_err(std::io::Error::other)?;
    machine.restore(&mut source)?;
    // The footer is checked only at the end, so the end must be reached.
    let mut beyond = [0_u8; 1];
    if source.read(&mut beyond)? != 0 {
        return Err(RestoreError::Content(
            "something follows the content".to_owned(),
        ));
    }
    let (written, found) = (manifest.digest, machine.digest());
    if written != found {
        return Err(RestoreError::Digest { written, found });
    }
    Ok(())
}

/// Writes the first snapshot of a cluster: the empty machine at index 1 with the founders as
/// voters. All founders write the same, so none of them has a first day of its own.
pub(super) fn found<M: Machine>(
    store: &mut dyn LogStore,
    machine: &M,
    membership: Vec<u8>,
) -> Result<Manifest, Fault> {
    let at = Applied {
        index: 1,
        term: 1,
        membership,
    };
    let manifest = write(&machine.image(), store.snapshot_writer(&at, Origin::Made)?)?;
    let hard = crate::store::HardState {
        term: 1,
        vote: 0,
        commit: 1,
    };
    store.install_snapshot(&manifest, &hard)?;
    Ok(manifest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_can_use_no_snapshot_gets_one_though_nothing_was_applied_since_the_start() {
        let config = Config {
            snapshot_entries: 10,
            ..Config::shipped(vec![1])
        };
        let started = Snapshots::since_live(9);
        assert!(started.due(&config, true));
        assert!(!started.due(&config, false));
        // What the log holds beyond the live snapshot counts, whoever applied it.
        let mut started = Snapshots::since_live(9);
        started.count(1);
        assert!(started.due(&config, false));
        assert!(!Snapshots::default().due(&config, false));
    }
}
