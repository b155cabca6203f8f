//! History: one log for all, nothing acknowledged is lost, nothing happens twice.
//!
//! Each replica tells every command that it applies and, now and then, the digest of its state.
//! Equal indexes must hold equal commands with equal outcomes and lead to equal digests; a term has
//! one leader; and in the end the history, applied anew from nothing, must give the state that the
//! replicas have.

use std::collections::BTreeMap;

use mete_broker::machine::Done;
use mete_model::{Code, FrameworkId};
use mete_state::{Command, Stamped, State, StoreVerdict, Verdict};

use crate::checker::ledger;
use crate::masters::Told;
use crate::random::Digest;

/// A call as its framework names it: who, which process, which number; nobody for an operator.
pub(crate) type CallName = (Option<FrameworkId>, u64, u64);

/// Everything that was applied anywhere, and everything that was answered as done.
#[derive(Debug, Default)]
pub(crate) struct History {
    by_index: BTreeMap<u64, (Done, u64)>,
    digests: BTreeMap<u64, (u64, u64)>,
    leaders: BTreeMap<u64, u64>,
    acknowledged: Vec<(CallName, u64, bool)>,
}

impl History {
    /// A replica applied something, or said what its state hashes to.
    pub(crate) fn told(&mut self, node: u64, told: Told) -> Option<String> {
        match told {
            Told::Applied(done) => self.applied(node, *done),
            Told::Digest { revision, digest } => {
                let (first, by) = *self.digests.entry(revision).or_insert((digest, node));
                (first != digest).then(|| {
                    format!(
                        "at {revision} master {node} has digest {digest:016x}, master {by} had \
                         {first:016x}"
                    )
                })
            }
        }
    }

    fn applied(&mut self, node: u64, done: Done) -> Option<String> {
        let index = done.revision;
        let Some((first, by)) = self.by_index.get(&index) else {
            self.by_index.insert(index, (done, node));
            return None;
        };
        let same = first.command == done.command && first.result == done.result;
        (!same).then(|| {
            format!(
                "at {index} master {node} applied {:?} with {:?}, master {by} had {:?} with {:?}",
                done.command, done.result, first.command, first.result
            )
        })
    }

    /// A replica leads this term.
    pub(crate) fn leads(&mut self, node: u64, term: u64) -> Option<String> {
        let first = *self.leaders.entry(term).or_insert(node);
        (first != node).then(|| format!("masters {first} and {node} both lead term {term}"))
    }

    /// A call was answered as done at this revision.
    ///
    /// The verdict counts where it says whether something has changed.
    pub(crate) fn acknowledged(
        &mut self,
        call: CallName,
        revision: u64,
        verdict: Option<&Verdict>,
    ) {
        let changed = match verdict {
            Some(Verdict::StoreWritten(written)) => *written == StoreVerdict::Written,
            Some(Verdict::Launched(launched)) => {
                launched.iter().any(|verdict| verdict.code == Code::Ok)
            }
            Some(_) | None => false,
        };
        self.acknowledged.push((call, revision, changed));
    }

    /// Terms that had a leader.
    pub(crate) fn terms(&self) -> usize {
        self.leaders.len()
    }

    /// Commands that were applied.
    pub(crate) fn commands(&self) -> usize {
        self.by_index.len()
    }

    /// When everything is over: `state` is what the leader has, `founded` what all began with.
    pub(crate) fn finish(&self, mut founded: State, state: &State) -> Vec<String> {
        let mut found = self.calls();
        for (index, (done, _)) in &self.by_index {
            if *index > state.revision() {
                found.push(format!(
                    "index {index} was applied, and the cluster ends at {}",
                    state.revision()
                ));
                break;
            }
            let stamped = Stamped {
                at: done.at,
                command: done.command.clone(),
            };
            if let Command::Launch(launch) = &done.command {
                found.extend(ledger::unlawful(&founded, launch, &done.result));
            }
            let result = founded.apply(*index, &stamped);
            if result != done.result {
                found.push(format!(
                    "applied anew, index {index} gives {result:?}, it gave {:?}",
                    done.result
                ));
                break;
            }
        }
        if found.is_empty() && founded.digest() != state.digest() {
            found.push(format!(
                "the history up to {} does not lead to the state that the leader has at {}",
                founded.revision(),
                state.revision()
            ));
        }
        found
    }

    /// Every numbered call has an effect at most once and in its order, and those that were said to
    /// be done have it.
    fn calls(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut effects: BTreeMap<CallName, u64> = BTreeMap::new();
        let mut last_call: BTreeMap<(FrameworkId, u64), u64> = BTreeMap::new();
        let mut newest: BTreeMap<FrameworkId, (u64, u64)> = BTreeMap::new();
        for (index, (done, _)) in &self.by_index {
            let Ok(outcome) = &done.result else { continue };
            if let Verdict::Subscribed {
                framework,
                incarnation,
                ..
            } = &outcome.verdict
            {
                newest.insert(*framework, (*incarnation, *index));
            }
            let Some(caller) = done.command.caller() else {
                continue;
            };
            if let Some((incarnation, since)) = newest.get(&caller.framework)
                && caller.incarnation < *incarnation
            {
                found.push(format!(
                    "index {index} is a call of incarnation {}, superseded by {incarnation} at \
                     {since}",
                    caller.incarnation
                ));
            }
            // A call that was logged again gives what it gave first, at its first index.
            if caller.call == 0 || outcome.revision != *index {
                continue;
            }
            let process = (caller.framework, caller.incarnation);
            let last = last_call.entry(process).or_default();
            if caller.call < *last {
                found.push(format!(
                    "index {index} has call {} of {process:?}, and call {last} was before it",
                    caller.call
                ));
            }
            *last = (*last).max(caller.call);
            let name = (Some(caller.framework), caller.incarnation, caller.call);
            if let Some(first) = effects.insert(name, *index) {
                found.push(format!(
                    "call {name:?} had its effect at {first} and at {index}"
                ));
            }
        }
        for (name, revision, changed) in &self.acknowledged {
            let has_number = name.2 != 0;
            if *changed && has_number && effects.get(name) != Some(revision) {
                found.push(format!(
                    "call {name:?} was answered as done at {revision}, its effect is at {:?}",
                    effects.get(name)
                ));
            }
        }
        found
    }

    pub(crate) fn digest(&self, digest: &mut Digest) {
        for (index, (done, node)) in &self.by_index {
            digest.add(*index);
            digest.add(*node);
            digest.add(done.at.0);
        }
        for (revision, (hash, _)) in &self.digests {
            digest.add(*revision);
            digest.add(*hash);
        }
        for (term, node) in &self.leaders {
            digest.add(*term);
            digest.add(*node);
        }
    }
}
