//! What must hold after every command, checked from the records alone.
//!
//! - **I1**: no core is in two live grants, no device is granted beyond one whole, and nothing
//!   launched since an agent's last change passes its total.
//! - **I2**: the ledger equals one rebuilt from the runs: free, granted, sums by framework, by role
//!   with all ancestors, and in all.
//! - **I3**: a run is terminal exactly when it has ended; over and acknowledged ones are in history
//!   only; its statuses rise in number and never go back in phase; a kill shows as `Finishing` or
//!   an end.
//! - **I4**: a live run has an agent that is not gone, and a framework that is live or a tombstone.
//! - **I5**: a claim has launched at least as many runs as are known of it, and only roles that are
//!   held have claims.
//! - **I6**: every index and count equals one rebuilt from the records.
//! - **I7**: each grant is behind one run, and counted.
//! - **I8**: history and memories are within their bounds.
//! - **I9**: no two masters have one address unless one replaces the other, each one's id is at
//!   most the highest ever given, and each that replaces another replaces a known one.
//! - **I10**: a run is marked as replaceable only while its agent is unreachable, and not before
//!   its policy's time; the run that took its place says so; and when its agent is back one of the
//!   two is over or being ended.
//!
//! A violation is a defect of ours, never of the input: the caller raises an alarm and makes no new
//! offers, and goes on.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use mete_model::{CpuSet, DeviceId, FrameworkId, GrantId, Resources, RunId, TaskPhase, device};

use crate::command::AgentCondition;
use crate::ledger::{Holdings, Ledger};
use crate::limits::{
    CLAIMS_OF_A_FRAMEWORK, ENDED_IN_ALL, HISTORY_IN_ALL, HISTORY_OF_A_FRAMEWORK, STATUSES_OF_A_RUN,
    STORE_BYTES, STORE_BYTES_IN_ALL,
};
use crate::record::Run;
use crate::state::State;

/// Something that must hold and does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// `I1` and so on, as listed above.
    pub invariant: &'static str,
    /// Where, and the facts.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.detail)
    }
}

/// Checks everything; takes a walk over the whole state.
#[must_use]
pub fn check(state: &State) -> Vec<Violation> {
    let mut found = Found::default();
    names_and_amounts(state, &mut found);
    ledger(state, &mut found);
    runs(state, &mut found);
    claims(state, &mut found);
    indexes(state, &mut found);
    grants(state, &mut found);
    bounds(state, &mut found);
    masters(state, &mut found);
    replacements(state, &mut found);
    found.0
}

#[derive(Default)]
struct Found(Vec<Violation>);

impl Found {
    fn expect(&mut self, holds: bool, invariant: &'static str, detail: impl FnOnce() -> String) {
        if !holds {
            let detail = detail();
            self.0.push(Violation { invariant, detail });
        }
    }
}

fn masters(state: &State, found: &mut Found) {
    for (node, master) in &state.masters {
        let mut others = state.masters.values();
        let twin = others.find(|other| {
            let related = other.replaces == *node || master.replaces == other.node;
            other.node != *node && other.address == master.address && !related
        });
        found.expect(twin.is_none(), "I9", || {
            format!("{} is the address of two masters", master.address)
        });
        let known = master.replaces == 0 || state.masters.contains_key(&master.replaces);
        let counted = *node == master.node && *node <= state.meta.last_master;
        found.expect(known && counted, "I9", || {
            let last = state.meta.last_master;
            format!("master {node} with the last id {last} is {master:?}")
        });
    }
}

fn replacements(state: &State, found: &mut Found) {
    for run in state.all_runs() {
        let (id, places) = (&run.id, run.replacement.places());
        let agent = state.agent(run.agent);
        if let Some(marked) = places.replaceable {
            let lost = agent.filter(|agent| agent.condition == AgentCondition::Unreachable);
            let patience = run.spec.partition.replace_after;
            let timely = lost
                .zip(patience)
                .is_some_and(|(agent, patience)| agent.since.after(patience) <= marked);
            found.expect(timely && !run.phase.is_terminal(), "I10", || {
                format!("{id} is {} and replaceable since {}", run.phase, marked.0)
            });
        }
        let new = places.replaced_by.as_ref();
        let Some(new) = new.and_then(|new| state.run(run.framework, new)) else {
            continue;
        };
        let mutual = new.replacement.places().replaces.as_ref() == Some(id);
        found.expect(mutual, "I10", || {
            format!("{} took the place of {id} and does not say so", new.id)
        });
        let ends = |run: &Run| run.phase.is_terminal() || run.kill.is_some();
        let away = agent.is_none_or(|agent| agent.condition != AgentCondition::Ready);
        found.expect(away || ends(run) || ends(new), "I10", || {
            format!("{id} and {} live beside each other", new.id)
        });
    }
}

fn names_and_amounts(state: &State, found: &mut Found) {
    for (id, holdings) in state.ledger.iter() {
        let mut cores = CpuSet::new();
        let mut devices: BTreeMap<&DeviceId, u32> = BTreeMap::new();
        for run in state.runs_on(id) {
            let twice = cores.intersection(&run.resources.cores);
            found.expect(twice.is_empty(), "I1", || {
                format!(
                    "cores {twice} of agent {id} are granted twice, again to {}",
                    run.id
                )
            });
            cores = cores.union(&run.resources.cores);
            for share in &run.resources.devices {
                let sum = devices.entry(&share.id).or_default();
                *sum = sum.saturating_add(share.milli);
            }
        }
        for (device, milli) in devices {
            found.expect(milli <= device::WHOLE, "I1", || {
                format!("{milli} thousandths of device {device} of agent {id} are granted")
            });
        }
        amounts(state, holdings, id, found);
    }
}

/// Kind, total, granted, and the amount of one grant.
type Amount<'a> = (&'a str, u64, u64, fn(&Resources) -> u64);

/// An agent may shrink below its grants; what is launched after that must fit again.
fn amounts(state: &State, holdings: &Holdings, id: mete_model::AgentId, found: &mut Found) {
    let changed = state.agent(id).map_or(0, |agent| agent.revision);
    let (total, granted) = (&holdings.total, &holdings.granted);
    let kinds: [Amount<'_>; 3] = [
        ("cpu", total.cpu.0, granted.cpu.0, |r| r.cpu.0),
        ("memory", total.memory.0, granted.memory.0, |r| r.memory.0),
        ("disk", total.disk.0, granted.disk.0, |r| r.disk.0),
    ];
    for (kind, total, granted, amount) in kinds {
        let later = |run: &Run| run.launched_at > changed && amount(&run.resources) > 0;
        let fits = granted <= total || !state.runs_on(id).any(later);
        found.expect(fits, "I1", || {
            format!("agent {id} has {total} of {kind} and has granted {granted}")
        });
    }
}

fn ledger(state: &State, found: &mut Found) {
    let mut rebuilt = Ledger::default();
    for agent in state.agents() {
        if agent.condition == AgentCondition::Gone {
            rebuilt.set_total(agent.id, &Resources::default());
        } else {
            rebuilt.set_total(agent.id, &agent.inventory.total);
        }
    }
    for run in state.all_runs().filter(|run| !run.phase.is_terminal()) {
        rebuilt.book(run);
    }
    found.expect(state.ledger == rebuilt, "I2", || {
        let differs = state
            .ledger
            .iter()
            .find(|(id, held)| rebuilt.holdings(*id) != Some(held));
        match differs {
            Some((id, held)) => format!("agent {id} is booked as {held:?}"),
            None => "sums by framework or role differ from those of the runs".to_owned(),
        }
    });
}

fn runs(state: &State, found: &mut Found) {
    for run in state.all_runs() {
        let name = || format!("{} of {}", run.id, run.framework);
        let over = run.phase.is_terminal();
        found.expect(!over || run.acknowledged < run.sequence, "I3", || {
            format!("{} is over and acknowledged, and not in history", name())
        });
        let tombstone = state.tombstone(run.framework);
        let known = tombstone.is_some() || state.framework(run.framework).is_some();
        found.expect(known, "I4", || format!("{} has no framework", name()));
        if !over {
            let agent = state.agent(run.agent);
            let lives = agent.is_some_and(|agent| agent.condition != AgentCondition::Gone);
            found.expect(lives, "I4", || format!("{} lives on no agent", name()));
        }
        let unsettled = tombstone.is_none_or(|tombstone| tombstone.settled.is_none());
        found.expect(unsettled, "I4", || {
            format!("{} outlives its framework", name())
        });
        one_run(run, found);
        found.expect(
            state.past_run(run.framework, &run.id).is_none(),
            "I3",
            || format!("{} is live and in history", name()),
        );
    }
    for run in state.history() {
        found.expect(run.phase.is_terminal(), "I3", || {
            format!("{} is in history and {}", run.id, run.phase)
        });
        one_run(run, found);
    }
}

fn one_run(run: &Run, found: &mut Found) {
    let id = &run.id;
    found.expect(run.phase.is_terminal() == run.ended.is_some(), "I3", || {
        format!("{id} is {} and its end is {:?}", run.phase, run.ended)
    });
    let counted = run.acknowledged <= run.sequence
        && run
            .statuses
            .last()
            .is_none_or(|last| last.sequence <= run.sequence);
    found.expect(counted, "I3", || {
        format!("{id} has statuses beyond its last")
    });
    let pairs = run.statuses.windows(2);
    let forward = pairs.into_iter().all(|pair| {
        matches!(pair, [a, b] if a.sequence < b.sequence && !a.phase.is_terminal()
            && (b.phase.is_terminal() || a.phase <= b.phase))
    });
    found.expect(forward, "I3", || format!("{id} has statuses out of order"));
    let killed = run.kill.is_none() || run.phase >= TaskPhase::Finishing;
    found.expect(killed, "I3", || format!("{id} is killed and {}", run.phase));
}

fn claims(state: &State, found: &mut Found) {
    let mut launched: BTreeMap<(FrameworkId, &mete_model::ClaimId), u32> = BTreeMap::new();
    for run in state.all_runs().chain(state.history()) {
        let claim = run.claim.as_ref();
        let Some(record) = claim.and_then(|id| state.claim(run.framework, id)) else {
            continue;
        };
        if run.launched_at > record.declared {
            let sum = launched
                .entry((run.framework, &record.claim.id))
                .or_default();
            *sum = sum.saturating_add(1);
        }
    }
    for ((framework, id), known) in launched {
        let counted = state
            .claim(framework, id)
            .map_or(0, |record| record.launched);
        found.expect(counted >= known, "I5", || {
            format!("claim {id} of {framework} counts {counted} launches, {known} are known")
        });
    }
    for framework in state.frameworks() {
        let roles = &framework.settings.roles;
        for record in state.claims(framework.id) {
            found.expect(roles.contains(&record.claim.role), "I5", || {
                format!("claim {} is of a role that is not held", record.claim.id)
            });
        }
    }
}

fn indexes(state: &State, found: &mut Found) {
    let live = |agent: &&crate::record::Agent| agent.condition != AgentCondition::Gone;
    let names: BTreeMap<_, _> = state
        .agents()
        .filter(live)
        .map(|agent| (agent.node_name.clone(), agent.id))
        .collect();
    found.expect(names == state.by_node, "I6", || {
        "index of node names".to_owned()
    });
    let keys = state.agents().filter(live);
    let keyed = keys
        .into_iter()
        .all(|agent| state.by_key.get(&agent.node_key) == Some(&agent.id));
    found.expect(keyed, "I6", || "index of node keys".to_owned());
    let identities: BTreeMap<_, _> = state
        .frameworks()
        .map(|f| ((f.principal.clone(), f.name.clone()), f.id))
        .collect();
    let equal = identities == state.by_name;
    found.expect(equal, "I6", || "index of framework names".to_owned());
    let equal = state.rebuilt_lapses() == state.lapses;
    found.expect(equal, "I6", || "times at which things lapse".to_owned());
    let mut all: u64 = 0;
    for (framework, store) in &state.stores {
        let size = |(key, record): (&Vec<u8>, &crate::record::StoreRecord)| {
            crate::apply::store::size(key.len(), record.value.len())
        };
        let bytes = store.records.iter().map(size).fold(0, u64::saturating_add);
        found.expect(bytes == store.bytes, "I6", || {
            format!(
                "store of {framework} has {bytes} bytes and counts {}",
                store.bytes
            )
        });
        all = all.saturating_add(bytes);
    }
    found.expect(all == state.store_bytes, "I6", || {
        format!("stores have {all} bytes and count {}", state.store_bytes)
    });
    for (framework, calls) in &state.calls {
        let kept = crate::apply::calls::items_of(calls);
        found.expect(kept == calls.items, "I6", || {
            format!(
                "calls of {framework} keep {kept} items and count {}",
                calls.items
            )
        });
    }
}

fn grants(state: &State, found: &mut Found) {
    let mut seen: BTreeSet<GrantId> = BTreeSet::new();
    for run in state.all_runs().chain(state.history()) {
        found.expect(seen.insert(run.grant), "I7", || {
            format!("grant {} of {} is another run's too", run.grant, run.id)
        });
        found.expect(run.grant <= state.meta.last_grant, "I7", || {
            format!("grant {} of {} was never counted", run.grant, run.id)
        });
    }
}

fn bounds(state: &State, found: &mut Found) {
    let mut bound = |what: &str, count: usize, most: usize| {
        found.expect(count <= most, "I8", || {
            format!("{count} {what}, at most {most}")
        });
    };
    bound("runs in history", state.history().count(), HISTORY_IN_ALL);
    bound("ended runs", state.history.names().count(), ENDED_IN_ALL);
    let mut history: BTreeMap<FrameworkId, usize> = BTreeMap::new();
    for run in state.history() {
        let sum = history.entry(run.framework).or_default();
        *sum = sum.saturating_add(1);
    }
    for count in history.into_values() {
        bound(
            "runs of one framework in history",
            count,
            HISTORY_OF_A_FRAMEWORK,
        );
    }
    for claims in state.claims.values() {
        bound(
            "claims of one framework",
            claims.len(),
            CLAIMS_OF_A_FRAMEWORK,
        );
    }
    for run in state.all_runs() {
        bound("statuses of one run", run.statuses.len(), STATUSES_OF_A_RUN);
    }
    let store = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    bound(
        "bytes of all stores",
        store(state.store_bytes),
        store(STORE_BYTES_IN_ALL),
    );
    for framework in state.stores.values() {
        bound(
            "bytes of one store",
            store(framework.bytes),
            store(STORE_BYTES),
        );
    }
    let mut ids: BTreeSet<(FrameworkId, &RunId)> = BTreeSet::new();
    for ended in state.history.names() {
        let once = ids.insert((ended.framework, &ended.run));
        found.expect(once, "I8", || format!("{} ended twice", ended.run));
    }
}

#[cfg(test)]
mod tests;
