//! Launches: an offer is a hint, this is the law.
//!
//! All tasks of a launch are checked together against the ledger, so that two of them never name
//! one core. All or nothing, unless each was asked to stand alone. A refusal leaves no record of
//! the task, and its verdict names exactly what is missing. Whether an offer was behind the launch
//! is not known here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use mete_model::resources::Shortage;
use mete_model::{AgentId, ClaimId, Code, FrameworkId, GrantId, Resources, RunId, TaskSpec};

use super::validate::{Faults, bytes_of};
use super::{Plan, Turn, calls, preview_of, replace};
use crate::command::{AgentCondition, Launch, LaunchTask};
use crate::cow_map::CowMap;
use crate::effect::{Change, Effect, LaunchVerdict, Verdict};
use crate::limits::{LABEL_BYTES, RUNS_OF_A_FRAMEWORK, SPEC_BYTES, TASKS_OF_A_LAUNCH};
use crate::record::{Places, Replacement, Run};
use crate::rejection::Rejection;
use crate::state::{Preview, State};
use crate::texts::Texts;

/// A launch with a verdict for each task; grants are numbered when it is written.
#[derive(Debug)]
pub(crate) struct Launching<'a> {
    launch: &'a Launch,
    verdicts: Vec<LaunchVerdict>,
    passes: bool,
}

pub(crate) fn launch<'a>(state: &State, launch: &'a Launch) -> Result<Launching<'a>, Rejection> {
    let framework = calls::find(state, launch.caller.framework)?;
    valid(launch)?;
    if framework
        .settings
        .roles
        .binary_search(&launch.role)
        .is_err()
    {
        return Err(Rejection::new(
            Code::Denied,
            format!(
                "framework '{}' does not hold role '{}'",
                framework.name, launch.role
            ),
        ));
    }
    let held = state.runs.get(&framework.id).map_or(0, CowMap::len);
    if held.saturating_add(launch.tasks.len()) > RUNS_OF_A_FRAMEWORK {
        return Err(Rejection::new(
            Code::Busy,
            format!(
                "{held} runs are live or not acknowledged, at most {RUNS_OF_A_FRAMEWORK} are \
                 permitted; acknowledge those that have ended"
            ),
        ));
    }
    let mut judge = Judge::new(state, launch);
    let mut verdicts: Vec<LaunchVerdict> = launch
        .tasks
        .iter()
        .map(|task| judge.verdict(task))
        .collect();
    let is_ok = |verdict: &LaunchVerdict| verdict.code == Code::Ok;
    if !launch.each_alone && !verdicts.iter().all(is_ok) {
        for verdict in verdicts.iter_mut().filter(|verdict| is_ok(verdict)) {
            let detail = "another task of the same launch was refused".to_owned();
            *verdict = refused(Code::NotAlone, detail);
        }
    }
    let passes = verdicts.iter().any(is_ok);
    Ok(Launching {
        launch,
        verdicts,
        passes,
    })
}

fn refused(code: Code, detail: String) -> LaunchVerdict {
    LaunchVerdict {
        code,
        detail,
        grant: None,
    }
}

/// What is wrong whatever the state is.
fn valid(launch: &Launch) -> Result<(), Rejection> {
    let mut faults = Faults::default();
    if launch.tasks.is_empty() {
        faults.add("launches", "at least one is needed");
    }
    faults.list("launches", launch.tasks.len(), TASKS_OF_A_LAUNCH);
    let mut runs: BTreeSet<&RunId> = BTreeSet::new();
    let mut last: Option<&Arc<TaskSpec>> = None;
    for (at, task) in launch.tasks.iter().enumerate() {
        let field = format!("launches[{at}]");
        if task.run.attempt == 0 {
            faults.add(format!("{field}.run.attempt"), "counts from 1");
        }
        if !runs.insert(&task.run) {
            let fault = format!("{} is launched twice", task.run);
            faults.add(format!("{field}.run"), fault);
        }
        faults.grant(&format!("{field}.resources"), &task.resources);
        // Tasks share their spec: look at each copy once.
        if !last.is_some_and(|last| Arc::ptr_eq(last, &task.spec)) {
            faults.spec(&format!("{field}.spec"), &task.spec);
            last = Some(&task.spec);
        }
        let labels = bytes_of(&task.labels).saturating_add(bytes_of(&task.spec.labels));
        if labels > LABEL_BYTES {
            let fault = format!("have {labels} bytes with the spec's, {LABEL_BYTES} are permitted");
            faults.add(format!("{field}.labels"), fault);
        }
        if bytes_of(&task.environment) > SPEC_BYTES {
            let fault = format!("at most {SPEC_BYTES} bytes are permitted");
            faults.add(format!("{field}.environment"), fault);
        }
    }
    faults.result()
}

/// Goes through the tasks in order and keeps what the earlier ones have taken.
struct Judge<'a> {
    state: &'a State,
    launch: &'a Launch,
    /// Why no task can pass at all.
    unavailable: Option<String>,
    total: Resources,
    left: Resources,
    claimed: BTreeMap<&'a ClaimId, u32>,
    /// Runs whose places earlier tasks take.
    replaced: BTreeSet<&'a RunId>,
    sums: Sums,
}

/// Sums of all grants in the cluster; they may not pass the largest number.
struct Sums {
    cpu: u64,
    memory: u64,
    disk: u64,
}

impl<'a> Judge<'a> {
    fn new(state: &'a State, launch: &'a Launch) -> Self {
        use mete_model::quota::Kind;
        let holdings = state.ledger.holdings(launch.agent);
        let all = state.ledger.all();
        Self {
            state,
            launch,
            unavailable: unavailable(state, launch.agent),
            total: holdings.map(|held| held.total.clone()).unwrap_or_default(),
            left: holdings.map(|held| held.free.clone()).unwrap_or_default(),
            claimed: BTreeMap::new(),
            replaced: BTreeSet::new(),
            sums: Sums {
                cpu: all.get(&Kind::Cpu),
                memory: all.get(&Kind::Memory),
                disk: all.get(&Kind::Disk),
            },
        }
    }

    fn verdict(&mut self, task: &'a LaunchTask) -> LaunchVerdict {
        if let Some(exists) = existing(self.state, self.launch.caller.framework, &task.run) {
            return exists;
        }
        #[cfg(feature = "broken")]
        if crate::broken::launches_are_unchecked() {
            return refused(Code::Ok, String::new());
        }
        if let Some(why) = &self.unavailable {
            return refused(Code::AgentUnavailable, why.clone());
        }
        if let Err(verdict) = self.place(task) {
            return verdict;
        }
        let remaining = match self.remaining(task) {
            Ok(remaining) => remaining,
            Err(verdict) => return verdict,
        };
        if let Err(verdict) = self.take(&task.resources) {
            return verdict;
        }
        if let (Some(claim), Some(remaining)) = (&task.claim, remaining) {
            self.claimed.insert(claim, remaining.saturating_sub(1));
        }
        self.replaced.extend(&task.replaces);
        LaunchVerdict {
            code: Code::Ok,
            detail: String::new(),
            grant: None,
        }
    }

    /// The run whose place the task takes may be replaced, and by this task alone.
    fn place(&self, task: &LaunchTask) -> Result<(), LaunchVerdict> {
        let Some(old) = &task.replaces else {
            return Ok(());
        };
        let why = if self.replaced.contains(old) {
            Some(format!(
                "another task of the same launch takes the place of {old}"
            ))
        } else {
            let framework = self.launch.caller.framework;
            self.state.not_replaceable(framework, old)
        };
        match why {
            Some(why) => Err(refused(Code::NotReplaceable, why)),
            None => Ok(()),
        }
    }

    /// How many of the task's claim may still be launched, at least one; `None` without a claim.
    fn remaining(&self, task: &LaunchTask) -> Result<Option<u32>, LaunchVerdict> {
        let Some(id) = &task.claim else {
            return Ok(None);
        };
        let framework = self.launch.caller.framework;
        let no = |detail: String| Err(refused(Code::NotOffered, detail));
        let Some(record) = self.state.claim(framework, id) else {
            return no(format!("claim '{id}' is not declared, or was withdrawn"));
        };
        if record.claim.role != self.launch.role {
            let (has, says) = (&record.claim.role, &self.launch.role);
            return no(format!(
                "claim '{id}' is of role '{has}', the launch says '{says}'"
            ));
        }
        let left = self.claimed.get(id).copied();
        match left.unwrap_or_else(|| record.remaining()) {
            0 => no(format!(
                "claim '{id}' has count {}, and so many are launched; raise its count",
                record.claim.count
            )),
            left => Ok(Some(left)),
        }
    }

    /// Takes the resources out of what is left, or says what is missing.
    fn take(&mut self, wanted: &Resources) -> Result<(), LaunchVerdict> {
        self.gone(wanted)?;
        let sums = self.sums.with(wanted).ok_or_else(|| {
            let detail = "the sum of all grants would pass the largest number".to_owned();
            refused(Code::NotEnough, detail)
        })?;
        // Names first: they are what another offer would change.
        let cores = wanted.cores.difference(&self.left.cores);
        if !cores.is_empty() {
            return Err(self.refuse(Code::NamesTaken, &Shortage::Cores(cores)));
        }
        let only_devices = Resources {
            devices: wanted.devices.clone(),
            ..Resources::default()
        };
        if let Some(shortage) = self.left.shortage(&only_devices) {
            return Err(self.refuse(Code::NamesTaken, &shortage));
        }
        match self.left.subtract(wanted) {
            Ok(()) => {
                self.sums = sums;
                Ok(())
            }
            Err(shortage) => Err(self.refuse(Code::NotEnough, &shortage)),
        }
    }

    /// Names that the agent does not have at its present epoch.
    fn gone(&self, wanted: &Resources) -> Result<(), LaunchVerdict> {
        let cores = wanted.cores.difference(&self.total.cores);
        let device = wanted.devices.iter().find(|want| {
            let mut has = self.total.devices.iter();
            !has.any(|has| has.id == want.id && has.class == want.class)
        });
        let what = match device {
            _ if !cores.is_empty() => format!("cores {cores}"),
            Some(device) => format!("device {} of class {}", device.id, device.class),
            None => return Ok(()),
        };
        let present = self.state.inventory(self.launch.agent);
        let present = present.map_or(0, |inventory| inventory.topology_epoch);
        let detail = format!(
            "agent '{}' has no {what} at its epoch {present}, the launch was planned at {}; wait \
             for the next offer",
            self.node(),
            self.launch.topology_epoch
        );
        Err(refused(Code::StaleEpoch, detail))
    }

    fn refuse(&self, code: Code, shortage: &Shortage) -> LaunchVerdict {
        let detail = format!(
            "agent '{}': {shortage}; wait for the next offer",
            self.node()
        );
        refused(code, detail)
    }

    fn node(&self) -> &str {
        let agent = self.state.agents.get(&self.launch.agent);
        agent.map_or("", |agent| agent.node_name.as_str())
    }
}

impl Sums {
    fn with(&self, wanted: &Resources) -> Option<Self> {
        Some(Self {
            cpu: self.cpu.checked_add(wanted.cpu.0)?,
            memory: self.memory.checked_add(wanted.memory.0)?,
            disk: self.disk.checked_add(wanted.disk.0)?,
        })
    }
}

/// Why nothing may be launched on the agent; `None` if it may.
fn unavailable(state: &State, agent: AgentId) -> Option<String> {
    let Some(agent) = state.agents.get(&agent) else {
        return Some(format!("no agent {agent} is known"));
    };
    let how = match agent.condition {
        AgentCondition::Ready => return None,
        AgentCondition::Unreachable => "unreachable",
        AgentCondition::Gone => "gone",
    };
    Some(format!("agent '{}' is {how}", agent.node_name))
}

/// The facts of an earlier launch of this run, if there was one.
fn existing(state: &State, framework: FrameworkId, id: &RunId) -> Option<LaunchVerdict> {
    let found = |phase, agent: AgentId, grant: GrantId| LaunchVerdict {
        code: Code::AlreadyExists,
        detail: format!("{id} is {phase} on agent {agent} with grant {grant}"),
        grant: Some(grant),
    };
    if let Some(run) = state.run(framework, id) {
        return Some(found(run.phase, run.agent, run.grant));
    }
    if let Some(past) = state.past_run(framework, id) {
        return Some(found(past.phase, past.agent, past.grant));
    }
    let ended = state.ended_run(framework, id)?;
    Some(found(ended.phase, ended.agent, ended.grant))
}

impl Plan for Launching<'_> {
    fn preview(&self) -> Preview {
        preview_of(self.passes, &Verdict::Launched(self.verdicts.clone()))
    }

    fn write(mut self, state: &mut State, turn: &mut Turn) -> Verdict {
        let launch = self.launch;
        for (task, verdict) in launch.tasks.iter().zip(&mut self.verdicts) {
            if verdict.code == Code::Ok {
                verdict.grant = Some(book(state, turn, launch, task));
            }
        }
        Verdict::Launched(self.verdicts)
    }
}

/// Grants the task what it names, counts its claim down, and stages it.
fn book(state: &mut State, turn: &mut Turn, launch: &Launch, task: &LaunchTask) -> GrantId {
    let framework = launch.caller.framework;
    let grant = GrantId(state.meta.last_grant.0.saturating_add(1));
    state.meta.last_grant = grant;
    let run = Run {
        framework,
        id: task.run.clone(),
        agent: launch.agent,
        role: launch.role.clone(),
        claim: task.claim.clone(),
        grant,
        resources: task.resources.clone(),
        spec: Arc::clone(&task.spec),
        environment: Texts::from(&task.environment),
        labels: Texts::from(&task.labels),
        phase: mete_model::TaskPhase::Staging,
        launched: turn.at,
        launched_at: turn.revision,
        started: None,
        ended: None,
        sequence: 0,
        acknowledged: 0,
        statuses: Vec::new(),
        kill: None,
        replacement: Replacement::from(Places {
            replaces: task.replaces.clone(),
            ..Places::default()
        }),
        revision: turn.revision,
    };
    let claims = state.claims.get_mut(&framework);
    if let Some(id) = &run.claim
        && let Some(record) = claims.and_then(|claims| claims.get_mut(id))
    {
        record.launched = record.launched.saturating_add(1);
        record.revision = turn.revision;
        turn.changed(Change::Claim(framework, id.clone()));
    }
    turn.holdings_changed(&run);
    turn.changed(Change::Run(framework, run.id.clone()));
    turn.owe(Effect::StartTask {
        agent: run.agent,
        framework,
        run: run.id.clone(),
    });
    state.put_run(run);
    if let Some(old) = &task.replaces {
        replace::replaced(state, turn, framework, old, &task.run);
    }
    grant
}

impl State {
    /// Puts a run, sharing the texts it has in common with others, and books what it holds.
    pub(crate) fn put_run(&mut self, mut run: Run) {
        run.spec = self.specs.share(&run.spec);
        let framework = self.frameworks.get(&run.framework);
        let roles = framework.map(|framework| &framework.settings.roles);
        if let Some(roles) = roles
            && let Ok(at) = roles.binary_search(&run.role)
            && let Some(role) = roles.get(at)
        {
            run.role = role.clone();
        }
        let claim = run.claim.as_ref();
        if let Some(record) = claim.and_then(|id| self.claim(run.framework, id)) {
            run.claim = Some(record.claim.id.clone());
        }
        if let Some(inventory) = self.inventory(run.agent) {
            for share in &mut run.resources.devices {
                let known = &inventory.total.devices;
                if let Ok(at) = known.binary_search_by(|device| device.id.cmp(&share.id))
                    && let Some(device) = known.get(at)
                    && device.class == share.class
                {
                    (share.id, share.class) = (device.id.clone(), device.class.clone());
                }
            }
        }
        run.resources.devices.shrink_to_fit();
        if !run.phase.is_terminal() {
            self.ledger.book(&run);
        }
        let runs = self.runs.entry(run.framework).or_default();
        runs.insert(run.id.clone(), Arc::new(run));
    }
}
