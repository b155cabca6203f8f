//! One turn of the protocol, in the order that keeps promises. Written once, here.
//!
//! Free messages leave first (a leader's, so that the followers' disks work at the same time as
//! ours), then snapshot, entries and hard state are made durable with one flush, then what had to
//! wait for the disk leaves (votes and append responses: sending them early is how data is lost),
//! then committed entries apply.

use raft::StateRole;

use crate::replica::Replica;
use crate::replica::machine::{Machine, RestoreError};
use crate::replica::snapshot;
use crate::replica::turn::{Applied as AppliedEntry, NotLogged, Outgoing, Progress};
use crate::replica::wire::{self, RaftEntry, RaftMessage, RaftSnapshot};
use crate::store::{Applied, Entry, Fault, Manifest};

/// Rounds of one turn. Each does bounded work; what is left over is the next turn's.
const ROUNDS: u32 = 64;

impl<M: Machine> Replica<M> {
    /// Handles everything that the protocol has ready. True if something is left for another turn.
    pub(super) fn drain(
        &mut self,
        progress: &mut Progress<M::Outcome>,
        arrived: &mut Option<Manifest>,
        outlet: &mut dyn FnMut(Outgoing),
    ) -> Result<bool, Fault> {
        for _ in 0..ROUNDS {
            if !self.node.has_ready() {
                return Ok(false);
            }
            let mut ready = self.node.ready();
            let number = ready.number();
            self.send(ready.take_messages(), outlet);
            if let Some(hard) = ready.hs() {
                self.node.mut_store().set_hard(hard.clone());
                self.hard = wire::hard_to_stored(hard);
            }
            if !ready.snapshot().is_empty() {
                self.install(ready.snapshot(), arrived, progress)?;
            }
            let entries = ready.take_entries();
            let stored: Vec<Entry> = entries.iter().map(wire::to_stored).collect();
            self.node.mut_store().append(entries);
            if ready.must_sync() {
                self.store.append(&stored, &self.hard)?;
            }
            self.send(ready.take_persisted_messages(), outlet);
            for state in ready.take_read_states() {
                let context = <[u8; 8]>::try_from(state.request_ctx.as_slice());
                if let Ok(context) = context {
                    self.reads.confirm(u64::from_be_bytes(context), state.index);
                }
            }
            for entry in ready.take_committed_entries() {
                self.apply(&entry, progress)?;
            }
            // In this order: the second looks for the record that the first leaves.
            self.node.advance_append_async(ready);
            self.node.on_persist_ready(number);
            self.node.advance_apply_to(self.applied.0);
            self.settle_callers(progress);
        }
        Ok(self.node.has_ready())
    }

    /// A leadership that ended, or began anew in a later term, answers whoever still waits.
    pub(super) fn settle_callers(&mut self, progress: &mut Progress<M::Outcome>) {
        let raft = &self.node.raft;
        let leading = (raft.state == StateRole::Leader).then_some(raft.term);
        self.proposals.give_up(leading, &mut progress.unknown);
        if let Some((_, term, token)) = self.change.filter(|(_, term, _)| Some(*term) != leading) {
            tracing::info!(term, "a membership change was overtaken by an election");
            progress.unknown.push(token);
            self.change = None;
        }
        if leading.is_none() {
            self.reads.give_up(&mut progress.reads_dropped);
        }
    }

    fn send(&mut self, messages: Vec<RaftMessage>, outlet: &mut dyn FnMut(Outgoing)) {
        for message in messages {
            let to = message.to;
            let announced = wire::announced(&message);
            let bytes = wire::encode_frame(&self.identity.cluster, message);
            let Some(at) = announced else {
                outlet(Outgoing::Message { to, bytes });
                continue;
            };
            match self.manifest.clone().filter(|manifest| manifest.at == at) {
                Some(manifest) => {
                    self.snapshots.transfer_begins(to, at.index);
                    outlet(Outgoing::Snapshot {
                        to,
                        announcement: bytes,
                        manifest,
                    });
                }
                // A newer snapshot replaced it between the decision and now: the peer asks again.
                None => self.node.report_snapshot(to, raft::SnapshotStatus::Failure),
            }
        }
    }

    /// Makes a received snapshot the beginning of everything.
    fn install(
        &mut self,
        snapshot: &RaftSnapshot,
        arrived: &mut Option<Manifest>,
        progress: &mut Progress<M::Outcome>,
    ) -> Result<(), Fault> {
        let at = wire::point(snapshot);
        let manifest = arrived.take().filter(|manifest| manifest.at == at);
        // Snapshot messages enter only together with their file, see `Replica::take_received`.
        let manifest = manifest.expect("a snapshot is stepped only with its finished file");
        let restored = snapshot::restore(self.store.as_ref(), &manifest, &mut self.machine);
        restored.map_err(|error| match error {
            RestoreError::TooNew(found) => Fault::TooNew(found),
            RestoreError::Read(_) | RestoreError::Content(_) | RestoreError::Digest { .. } => {
                Fault::Snapshot {
                    file: manifest.file.clone(),
                    what: error_text(&error),
                }
            }
        })?;
        self.store.install_snapshot(&manifest, &self.hard)?;
        let conf = snapshot.get_metadata().get_conf_state().clone();
        self.members = wire::members(&conf);
        self.node.mut_store().install(at.clone(), conf);
        self.applied = (at.index, at.term);
        self.manifest = Some(manifest);
        self.snapshots.reset();
        progress.restored = Some(at.index);
        progress.members = Some(self.members.clone());
        Ok(())
    }

    fn apply(
        &mut self,
        entry: &RaftEntry,
        progress: &mut Progress<M::Outcome>,
    ) -> Result<(), Fault> {
        let (index, term) = (entry.index, entry.term);
        self.applied = (index, term);
        if wire::is_change(entry) {
            return self.apply_change(entry, progress);
        }
        if self.change.is_some_and(|(at, _, _)| at == index) {
            // The protocol turned our change into an empty entry: another one was pending.
            let token = self.change.take().map(|(_, _, token)| token);
            progress
                .refused
                .extend(token.map(|token| (token, NotLogged::ChangePending)));
            return Ok(());
        }
        let token = self.proposals.take(index, term, &mut progress.unknown);
        let command = entry.get_data();
        // A new leader's first entry is empty and means nothing to the machine.
        let outcome = if command.is_empty() {
            None
        } else {
            Some(self.machine.apply(index, term, command)?)
        };
        self.snapshots.count(command.len());
        if outcome.is_some() || token.is_some() {
            progress.applied.push(AppliedEntry {
                index,
                term,
                token,
                outcome,
            });
        }
        Ok(())
    }

    fn apply_change(
        &mut self,
        entry: &RaftEntry,
        progress: &mut Progress<M::Outcome>,
    ) -> Result<(), Fault> {
        let (index, term) = (entry.index, entry.term);
        let bad = |what: String| Fault::Log {
            dir: std::path::PathBuf::from("memory"),
            what: format!("the membership change at {index} cannot be applied: {what}"),
        };
        let change = wire::decode_change(entry).map_err(bad)?;
        let change = change.ok_or_else(|| bad("it has a form this release never writes".into()))?;
        let conf = self
            .node
            .apply_conf_change(&change)
            .map_err(|error| bad(error.to_string()))?;
        let membership = wire::encode_conf(&conf);
        if self.node.raft.state == StateRole::Leader && !wire::votes(&conf, self.identity.node) {
            // It leads nobody any more, and the protocol does not step down by itself.
            let term = self.node.raft.term;
            self.node.raft.become_follower(term, raft::INVALID_ID);
        }
        self.members = wire::members(&conf);
        self.node.mut_store().set_conf(conf);
        // Index and membership belong together, in one record.
        self.store.save_applied(
            &self.hard,
            &Applied {
                index,
                term,
                membership,
            },
        )?;
        self.hard.commit = self.hard.commit.max(index);
        self.snapshots.count(entry.get_data().len());
        progress.members = Some(self.members.clone());
        if let Some((_, _, token)) = self
            .change
            .take_if(|(at, of, _)| (*at, *of) == (index, term))
        {
            progress.applied.push(AppliedEntry {
                index,
                term,
                token: Some(token),
                outcome: None,
            });
        }
        Ok(())
    }
}

/// An error with its causes, for a fault's text.
fn error_text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}
