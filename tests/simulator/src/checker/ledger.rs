//! The ledger as machines see it: no core, device or byte is held twice, and no run begins twice.
//!
//! The other side of it, the ledger in the state, is walked over at every look of the world; and
//! when the history is applied anew, each launch that passed is held against the state before it.

use std::collections::BTreeMap;

use mete_agent::core::RunKey;
use mete_model::{ClaimId, Code, Inventory, Resources};
use mete_state::command::Launch;
use mete_state::{AgentCondition, Outcome, Rejection, State, Verdict};

/// Which runs have begun, and where.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    begun: BTreeMap<RunKey, usize>,
}

impl Ledger {
    /// A run begins on a machine beside these others, some of which are told to end.
    pub(crate) fn started<'a>(
        &mut self,
        agent: usize,
        key: &RunKey,
        resources: &Resources,
        inventory: &Inventory,
        others: impl Iterator<Item = (&'a RunKey, &'a Resources, bool)>,
    ) -> Vec<String> {
        let mut found = Vec::new();
        if let Some(before) = self.begun.insert(key.clone(), agent) {
            found.push(format!(
                "{key} begins on machine {agent}, and began on {before}"
            ));
        }
        let mut sum = resources.clone();
        for (other, held, is_ending) in others {
            let cores = held.cores.intersection(&resources.cores);
            if !cores.is_empty() {
                found.push(format!(
                    "cores {cores} of machine {agent} are held by {other} and given to {key}"
                ));
            }
            for share in &resources.devices {
                let theirs = held.devices.iter().filter(|it| it.id == share.id);
                let milli: u32 = theirs.map(|it| it.milli).sum();
                if milli + share.milli > 1000 {
                    found.push(format!(
                        "device {} of machine {agent} is held by {other} and given to {key}",
                        share.id
                    ));
                }
            }
            // A run that the master has given up may still be ending: names wait for it, amounts do
            // not.
            if !is_ending {
                sum.add(held);
            }
        }
        // A machine that has shrunk may be over-committed by what ran before.
        let total = &inventory.total;
        let over = sum.cpu > total.cpu || sum.memory > total.memory || sum.disk > total.disk;
        if over && inventory.topology_epoch == 1 {
            found.push(format!(
                "machine {agent} has {total:?}, and with {key} {sum:?} are held"
            ));
        }
        found
    }

    /// Runs that began anywhere.
    pub(crate) fn runs(&self) -> usize {
        self.begun.len()
    }
}

/// What of a launch that passed should not have, by the state as it was before.
pub(crate) fn unlawful(
    before: &State,
    launch: &Launch,
    result: &Result<Outcome, Rejection>,
) -> Vec<String> {
    let Ok(Outcome {
        verdict: Verdict::Launched(verdicts),
        revision,
        ..
    }) = result
    else {
        return Vec::new();
    };
    if *revision <= before.revision() {
        // A call that was logged again: judged at its first index.
        return Vec::new();
    }
    let (agent, framework) = (launch.agent, launch.caller.framework);
    let is_ready = before
        .agent(agent)
        .is_some_and(|agent| agent.condition == AgentCondition::Ready);
    let mut left = before.free(agent).cloned().unwrap_or_default();
    let mut used: BTreeMap<&ClaimId, u32> = BTreeMap::new();
    let mut found = Vec::new();
    for (task, verdict) in launch.tasks.iter().zip(verdicts) {
        if verdict.code != Code::Ok {
            continue;
        }
        let run = &task.run;
        if !is_ready {
            found.push(format!(
                "{run} was granted on agent {agent}, which is not there"
            ));
        }
        if let Err(shortage) = left.subtract(&task.resources) {
            found.push(format!("{run} was granted on agent {agent}: {shortage}"));
        }
        if let Some(id) = &task.claim {
            let used = used.entry(id).or_default();
            let claim = before.claim(framework, id);
            if claim.is_none_or(|claim| claim.remaining() <= *used) {
                found.push(format!(
                    "{run} was granted beyond what claim '{id}' asks for"
                ));
            }
            *used += 1;
        }
    }
    found
}
