//! One object by its name, key or a prefix that only it has.

use std::ops::Bound;

use mete_model::{AgentId, ClaimId, FrameworkId, RolePath, RunId, TaskId};
use mete_proto::admin::v1 as wire;
use mete_state::{Change, State};

use super::Problem;
use super::rows::{claim_key, framework_name};

/// Candidates named in an `AMBIGUOUS`.
const CANDIDATES: usize = 10;

/// What a kind is called in sentences.
#[must_use]
pub fn word(kind: wire::Kind) -> &'static str {
    match kind {
        wire::Kind::Node => "node",
        wire::Kind::Framework => "framework",
        wire::Kind::Role => "role",
        wire::Kind::Claim => "claim",
        wire::Kind::Task => "task",
        wire::Kind::Offer => "offer",
        wire::Kind::Unspecified => "object",
    }
}

/// Finds the object of `kind` that `name` means.
///
/// # Errors
/// `NOT_FOUND`, or `AMBIGUOUS` with candidates.
pub fn find(state: &State, kind: wire::Kind, name: &str) -> Result<Change, Problem> {
    match kind {
        wire::Kind::Node => node(state, name).map(Change::Agent),
        wire::Kind::Framework => framework(state, name).map(Change::Framework),
        wire::Kind::Role => role(state, name).map(Change::Role),
        wire::Kind::Claim => claim(state, name).map(|(id, claim)| Change::Claim(id, claim)),
        wire::Kind::Task => task(state, name).map(|(id, run)| Change::Run(id, run)),
        wire::Kind::Offer | wire::Kind::Unspecified => Err(Problem::not_found(word(kind), name)),
    }
}

/// One of the exact ones, else the only one with the prefix.
fn only<T: Clone>(
    kind: wire::Kind,
    name: &str,
    exact: Vec<(String, T)>,
    prefixed: impl FnOnce() -> Vec<(String, T)>,
) -> Result<T, Problem> {
    let found = if exact.is_empty() && !name.is_empty() {
        prefixed()
    } else {
        exact
    };
    match found.as_slice() {
        [] => Err(Problem::not_found(word(kind), name)),
        [(_, one)] => Ok(one.clone()),
        many => Err(Problem::Ambiguous {
            name: name.to_owned(),
            candidates: many
                .iter()
                .take(CANDIDATES)
                .map(|(name, _)| name.clone())
                .collect(),
        }),
    }
}

/// The agent of a node: by name, by id, or by a prefix of either.
///
/// # Errors
/// `NOT_FOUND`, or `AMBIGUOUS` with candidates.
pub fn node(state: &State, name: &str) -> Result<AgentId, Problem> {
    let exact = state
        .agent_of_node(name)
        .or_else(|| state.agent(name.parse().ok()?));
    let exact = exact.map(|agent| (agent.node_name.clone(), agent.id));
    only(wire::Kind::Node, name, exact.into_iter().collect(), || {
        state
            .agents()
            .filter(|agent| {
                agent.node_name.starts_with(name) || agent.id.to_string().starts_with(name)
            })
            .take(CANDIDATES)
            .map(|agent| (agent.node_name.clone(), agent.id))
            .collect()
    })
}

/// A framework by name, by id, or by a prefix of either. Several principals may use one name.
///
/// # Errors
/// `NOT_FOUND`, or `AMBIGUOUS` with candidates.
pub fn framework(state: &State, name: &str) -> Result<FrameworkId, Problem> {
    let by = |wanted: &dyn Fn(&str, &str) -> bool| -> Vec<(String, FrameworkId)> {
        state
            .frameworks()
            .map(|framework| (framework.name.as_str(), framework.id))
            .filter(|(name, id)| wanted(name, &id.to_string()))
            .take(CANDIDATES)
            .map(|(name, id)| (format!("{name} ({id})"), id))
            .collect()
    };
    let exact = by(&|known, id| known == name || id == name);
    only(wire::Kind::Framework, name, exact, || {
        by(&|known, id| known.starts_with(name) || id.starts_with(name))
    })
}

/// A role by its path, or by a prefix of it.
///
/// # Errors
/// `NOT_FOUND`, or `AMBIGUOUS` with candidates.
pub fn role(state: &State, name: &str) -> Result<RolePath, Problem> {
    let exact = RolePath::new(name)
        .ok()
        .and_then(|path| state.role(&path).map(|role| role.path.clone()))
        .map(|path| (path.to_string(), path));
    only(wire::Kind::Role, name, exact.into_iter().collect(), || {
        state
            .roles()
            .filter(|role| role.path.as_str().starts_with(name))
            .take(CANDIDATES)
            .map(|role| (role.path.to_string(), role.path.clone()))
            .collect()
    })
}

/// Frameworks that the part of a name before the first `/` may mean, and the rest; all frameworks
/// with the whole name otherwise.
fn readings<'a>(state: &State, name: &'a str) -> Vec<(FrameworkId, &'a str)> {
    let mut all = state.frameworks_with_runs();
    all.extend(state.frameworks().map(|framework| framework.id));
    let known = || all.iter().copied();
    let mut readings: Vec<(FrameworkId, &str)> = Vec::new();
    if let Some((before, rest)) = name.split_once('/') {
        let meant =
            |id: &FrameworkId| id.to_string() == before || framework_name(state, *id) == before;
        readings.extend(known().filter(meant).map(|id| (id, rest)));
    }
    readings.extend(known().map(|id| (id, name)));
    readings
}

/// A claim by its id or a prefix, with or without the framework before a `/`.
///
/// # Errors
/// `NOT_FOUND`, or `AMBIGUOUS` with candidates.
pub fn claim(state: &State, name: &str) -> Result<(FrameworkId, ClaimId), Problem> {
    let readings = readings(state, name);
    let exact = readings.iter().filter_map(|(framework, rest)| {
        let record = state.claim(*framework, &ClaimId::new(rest).ok()?)?;
        let id = record.claim.id.clone();
        Some((shown(state, *framework, id.as_str()), (*framework, id)))
    });
    only(wire::Kind::Claim, name, exact.collect(), || {
        readings
            .iter()
            .flat_map(|(framework, rest)| {
                state
                    .claims(*framework)
                    .filter(move |record| record.claim.id.as_str().starts_with(rest))
            })
            .take(CANDIDATES)
            .map(|record| {
                let id = record.claim.id.clone();
                (claim_key(record.framework, &id), (record.framework, id))
            })
            .collect()
    })
}

fn shown(state: &State, framework: FrameworkId, rest: &str) -> String {
    format!("{}/{rest}", framework_name(state, framework))
}

/// A run by `task#attempt`; by its task, which means the newest attempt; or by a prefix. With or
/// without the framework before a `/`.
///
/// # Errors
/// `NOT_FOUND`, or `AMBIGUOUS` with candidates.
pub fn task(state: &State, name: &str) -> Result<(FrameworkId, RunId), Problem> {
    let readings = readings(state, name);
    let exact = readings.iter().filter_map(|(framework, rest)| {
        let run = match rest.parse::<RunId>() {
            Ok(run) => known_run(state, *framework, &run).then_some(run)?,
            Err(_) => newest(state, *framework, rest)?,
        };
        let name = shown(state, *framework, &run.to_string());
        Some((name, (*framework, run)))
    });
    only(wire::Kind::Task, name, exact.collect(), || {
        readings
            .iter()
            .flat_map(|(framework, rest)| {
                prefixed(state, *framework, rest).map(|run| (*framework, run))
            })
            .take(CANDIDATES)
            .map(|(framework, run)| (shown(state, framework, &run.to_string()), (framework, run)))
            .collect()
    })
}

fn known_run(state: &State, framework: FrameworkId, run: &RunId) -> bool {
    state.run(framework, run).is_some() || state.past_run(framework, run).is_some()
}

fn newest(state: &State, framework: FrameworkId, task: &str) -> Option<RunId> {
    let task = TaskId::new(task).ok()?;
    let from = Bound::Included(RunId::new(task.clone(), 0));
    let live = state
        .runs_from(framework, from)
        .map(|run| &run.id)
        .take_while(|run| run.task == task)
        .last();
    let past = state
        .history_of(framework)
        .map(|run| &run.id)
        .filter(|run| run.task == task)
        .max();
    live.max(past).cloned()
}

/// Runs whose text begins with `prefix`, live ones first.
fn prefixed<'a>(
    state: &'a State,
    framework: FrameworkId,
    prefix: &'a str,
) -> impl Iterator<Item = RunId> + 'a {
    let task = prefix.split('#').next().unwrap_or_default();
    let from = match TaskId::new(task) {
        Ok(task) => Bound::Included(RunId::new(task, 0)),
        Err(_) => Bound::Unbounded,
    };
    let live = state
        .runs_from(framework, from)
        .map(|run| run.id.clone())
        .take_while(move |run| run.task.as_str().starts_with(task));
    let past = state
        .history_of(framework)
        .map(|run| run.id.clone())
        .filter(move |run| run.task.as_str().starts_with(task));
    live.chain(past)
        .filter(move |run| run.to_string().starts_with(prefix))
}
