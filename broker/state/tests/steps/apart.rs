//! Steps around agents that are lost and found, and runs that are replaced meanwhile.

use std::sync::Arc;

use mete_model::{ClaimId, FrameworkId, Keep, Partition, RunId, Span};
use mete_state::command::{Launch, LaunchTask};
use mete_state::{AgentCondition, Caller, Command, State};
use proptest::prelude::*;

use super::{Step, Task, boot, run, step};
use crate::support::{device, resources, task};

/// Steps around agents that are lost and found, and runs that are replaced meanwhile.
pub(crate) fn step_apart() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..4_u8, Just(0_u8), boot(), 0..4_u8, prop_oneof![Just(0_u8), any::<u8>()]).prop_map(
            |(agent, key, boot, cpu, held)| Step::Admit { agent, key, boot, cpu, held }
        ),
        4 => (0..4_u8, 0..3_u8).prop_map(|(agent, lost)| Step::Condition { agent, lost }),
        3 => (1..4_u8).prop_map(Step::Wait),
        8 => (0..3_u8).prop_map(Step::MarkReplaceable),
        8 => (0..4_u8).prop_map(Step::Replace),
        6 => step(),
    ]
}

/// A launch that takes the place of the first run of which that is permitted.
pub(super) fn replacement(state: &State, number: u8) -> Option<Command> {
    let mut open = state.all_runs().filter(|run| state.is_replaceable(run));
    let old = open.next()?;
    let known = state.framework(old.framework)?;
    let mut ready = state
        .agents()
        .filter(|agent| agent.condition == AgentCondition::Ready);
    let mut one = task(
        RunId::new(old.id.task.clone(), old.id.attempt + 1),
        None,
        resources(1, 0, "", Vec::new()),
    );
    one.spec = Arc::clone(&old.spec);
    one.replaces = Some(old.id.clone());
    Some(Command::Launch(Launch {
        caller: Caller {
            framework: old.framework,
            incarnation: known.incarnation,
            call: 0,
            answered: 0,
        },
        role: known.settings.roles.first()?.clone(),
        agent: ready.nth(usize::from(number / 2))?.id,
        topology_epoch: 1,
        tasks: vec![one],
        each_alone: false,
    }))
}

fn policy(number: u8) -> Partition {
    let minutes = [0, 0, 1, 1, 60, 600];
    let after = minutes[usize::from(number)];
    Partition {
        replace_after: (after > 0).then(|| Span::minutes(after)),
        keep: if number.is_multiple_of(3) {
            Keep::Newest
        } else {
            Keep::Oldest
        },
        stop_if_silent: None,
    }
}

/// Mostly one that may be replaced, where there is one.
fn replaced(state: &State, framework: FrameworkId, task: Task) -> Option<RunId> {
    let runs = state.runs(framework);
    let mut open = runs.filter(|run| state.is_replaceable(run));
    match task.replaces {
        0 => Some(run(task.run / 2)).filter(|_| task.cpu == 0),
        1 => None,
        _ => open.next().map(|run| run.id.clone()),
    }
}

/// One task of a launch.
pub(super) fn launched(
    state: &State,
    framework: FrameworkId,
    one: Task,
    claim: Option<ClaimId>,
) -> LaunchTask {
    let mut task = task(run(one.run), claim, held_by(one));
    Arc::make_mut(&mut task.spec).partition = policy(one.policy);
    task.replaces = replaced(state, framework, one);
    task
}

fn held_by(task: Task) -> mete_model::Resources {
    let cores: Vec<String> = (0..4_u8)
        .filter(|core| task.cores < 8 && task.cores & (1 << core) != 0)
        .map(|core| core.to_string())
        .collect();
    let named = u64::try_from(cores.len()).expect("few") * 1000;
    let devices = match task.device {
        0 => vec![device("g1", 1000)],
        1 => vec![device("g1", 400)],
        2 => vec![device("g2", 700)],
        3 => vec![device("g1", 300), device("g2", 300)],
        _ => Vec::new(),
    };
    resources(
        named + u64::from(task.cpu) * 100,
        task.cpu.into(),
        &cores.join(","),
        devices,
    )
}
