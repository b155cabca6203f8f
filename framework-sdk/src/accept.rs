//! Accepts: launches on offers of one agent, in one call.
//!
//! Distinct specs are sent once; launches refer to them. A launch counts as live from here on, and
//! stops to count when it is refused.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use mete_model::{AgentId, ClaimId, Code, GrantId, OfferId, Resources, RolePath, RunId};
use mete_proto::convert::{write_offer_id, write_resources, write_run, write_spec};
use mete_proto::framework::v1 as fw;
use tokio::sync::oneshot;

use crate::calls::{room, start};
use crate::core::Core;
use crate::error::{Error, Reason, Result};
use crate::task::{Launch, RunInfo};
use crate::wire;

/// How the launches of an accept hang together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// One refused launch refuses all.
    All,
    /// Each launch stands alone.
    #[default]
    Each,
}

/// How long what was not taken stays hidden from this framework.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Refuse {
    /// Until the framework's demand changes.
    #[default]
    UntilDemandChanges,
    /// For so long, 7 days at the most.
    For(Duration),
}

impl Refuse {
    pub(crate) fn to_wire(self) -> fw::Refuse {
        let duration_ms = match self {
            Self::UntilDemandChanges => 0,
            // Nothing at all would read as "until demand changes".
            Self::For(duration) => wire::span(duration).0.max(1),
        };
        fw::Refuse { duration_ms }
    }
}

/// One launch of an accept: what, and on which resources of the offers.
#[derive(Clone, Debug)]
pub struct Placed {
    /// What is launched.
    pub launch: Launch,
    /// The claim it is counted against; `None` only on plain offers.
    pub claim: Option<ClaimId>,
    /// Exactly what it gets, by name.
    pub resources: Resources,
}

/// Launches on offers of one agent.
#[derive(Clone, Debug)]
pub struct Accept {
    /// Offers of one agent.
    pub offers: Vec<OfferId>,
    /// The launches.
    pub launches: Vec<Placed>,
    /// How they hang together.
    pub mode: Mode,
    /// Why what is not used is not used; shown by `mete why`.
    pub unused_reason: String,
    /// How long what is not used stays hidden; `None` = it may be offered at once.
    pub unused_refuse: Option<Refuse>,
    /// Where it is, for the session's own picture; not sent.
    pub place: Place,
}

/// Where an accept's offers are.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// The agent.
    pub agent: Option<AgentId>,
    /// Its node's name.
    pub node: String,
    /// Its node API.
    pub node_address: String,
    /// The role that is charged.
    pub role: Option<RolePath>,
}

/// What became of one launch of an accept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchVerdict {
    /// The run.
    pub run: RunId,
    /// The grant behind it, or why there is none.
    pub outcome: Result<GrantId, Reason>,
}

/// Verdicts that are on their way. Dropping it does not take the accept back.
#[derive(Debug)]
pub struct Accepting {
    runs: Vec<RunId>,
    answer: oneshot::Receiver<Result<Vec<LaunchVerdict>>>,
}

impl Accepting {
    /// What the accept launches, in its order.
    #[must_use]
    pub fn runs(&self) -> &[RunId] {
        &self.runs
    }

    /// Waits for a verdict on every launch. An accept of which nothing was evaluated has launched
    /// nothing: then each launch is refused with the error's code.
    pub async fn verdicts(self) -> Vec<LaunchVerdict> {
        let runs = self.runs.clone();
        self.await.unwrap_or_else(|error| {
            let code = error.code().unwrap_or(Code::Unknown);
            let reason = Reason::new(code, error.to_string());
            let refused = |run| LaunchVerdict {
                run,
                outcome: Err(reason.clone()),
            };
            runs.into_iter().map(refused).collect()
        })
    }
}

impl Future for Accepting {
    type Output = Result<Vec<LaunchVerdict>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.answer)
            .poll(cx)
            .map(|answer| answer.unwrap_or(Err(Error::Closed)))
    }
}

pub(crate) async fn begin(core: &Arc<Core>, accept: Accept) -> Result<Accepting> {
    let runs: Vec<RunId> = accept
        .launches
        .iter()
        .map(|placed| placed.launch.run.clone())
        .collect();
    let room = room(core).await?;
    // From here on nothing waits: a caller who gives up meanwhile leaves no launch half noted.
    core.view().launching(infos(&accept));
    let pending = start(core, room, to_wire(&accept));
    let (told, answer) = oneshot::channel();
    let accepting = Accepting {
        runs: runs.clone(),
        answer,
    };
    let core = Arc::clone(core);
    // On its own, so that the picture is right also when nobody waits for the verdicts.
    tokio::spawn(async move {
        let answer = pending
            .await
            .map(|answer| settle(&core, runs.clone(), answer));
        if answer.is_err() {
            settle_refused(&core, &runs);
        }
        let _ = told.send(answer);
    });
    Ok(accepting)
}

fn infos(accept: &Accept) -> impl Iterator<Item = RunInfo> + '_ {
    accept.launches.iter().map(|placed| {
        let mut labels = placed.launch.spec.labels.clone();
        labels.extend(placed.launch.labels.clone());
        RunInfo {
            role: accept.place.role.clone(),
            claim: placed.claim.clone(),
            agent: accept.place.agent,
            node: accept.place.node.clone(),
            node_address: accept.place.node_address.clone(),
            resources: placed.resources.clone(),
            labels,
            replaces: placed.launch.replaces.clone(),
            ..RunInfo::unknown(placed.launch.run.clone())
        }
    })
}

fn settle(core: &Core, runs: Vec<RunId>, answer: fw::AcceptResponse) -> Vec<LaunchVerdict> {
    let mut view = core.view();
    let mut verdicts = answer.launches.into_iter();
    runs.into_iter()
        .map(|run| {
            let (verdict, grant) = match verdicts.next() {
                Some(verdict) => (verdict.verdict, GrantId(verdict.grant_id)),
                None => (None, GrantId::default()),
            };
            let outcome = wire::verdict_from(verdict).map(|()| grant);
            match &outcome {
                Ok(_) => view.launched(&run, answer.revision),
                Err(no) => {
                    let old = view.run(&run).and_then(|info| info.replaces.clone());
                    if let Some(old) = old
                        && no.code == Code::NotReplaceable.as_str()
                    {
                        view.not_replaceable(&old);
                    }
                    view.refused(&run);
                }
            }
            LaunchVerdict { run, outcome }
        })
        .collect()
}

fn settle_refused(core: &Core, runs: &[RunId]) {
    let mut view = core.view();
    for run in runs {
        view.refused(run);
    }
}

fn to_wire(accept: &Accept) -> fw::AcceptRequest {
    let mut specs = Specs::default();
    let launches = accept
        .launches
        .iter()
        .map(|placed| fw::Launch {
            run: Some(write_run(&placed.launch.run)),
            claim: placed
                .claim
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default(),
            resources: Some(write_resources(&placed.resources)),
            spec: specs.position(&placed.launch.spec),
            environment: placed.launch.environment.clone(),
            labels: placed.launch.labels.clone(),
            replaces: placed.launch.replaces.as_ref().map(write_run),
        })
        .collect();
    fw::AcceptRequest {
        header: None,
        offers: accept.offers.iter().copied().map(write_offer_id).collect(),
        launches,
        mode: match accept.mode {
            Mode::All => fw::AcceptMode::All.into(),
            Mode::Each => fw::AcceptMode::Each.into(),
        },
        specs: specs.list,
        unused_reason: accept.unused_reason.clone(),
        unused_refuse: accept.unused_refuse.map(Refuse::to_wire),
    }
}

/// Each distinct spec once.
#[derive(Default)]
struct Specs {
    list: Vec<mete_proto::types::v1::TaskSpec>,
    by_pointer: HashMap<*const mete_model::TaskSpec, u32>,
    by_value: HashMap<Arc<mete_model::TaskSpec>, u32>,
}

impl Specs {
    fn position(&mut self, spec: &Arc<mete_model::TaskSpec>) -> u32 {
        // The launches hold their specs, so an address means one spec throughout.
        if let Some(at) = self.by_pointer.get(&Arc::as_ptr(spec)) {
            return *at;
        }
        let next = u32::try_from(self.list.len()).unwrap_or(u32::MAX);
        let at = *self.by_value.entry(Arc::clone(spec)).or_insert(next);
        if at == next {
            self.list.push(write_spec(spec));
        }
        self.by_pointer.insert(Arc::as_ptr(spec), at);
        at
    }
}

/// The verdict of a launch that was not sent.
pub(crate) fn not_sent(run: RunId, code: Code, detail: &str) -> LaunchVerdict {
    LaunchVerdict {
        run,
        outcome: Err(Reason::new(code, detail)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_shared_by_many_launches_is_sent_once() {
        let spec = |word: &str| mete_model::TaskSpec {
            command: vec![word.to_owned()],
            ..mete_model::TaskSpec::default()
        };
        let (one, same, other) = (
            Arc::new(spec("a")),
            Arc::new(spec("a")),
            Arc::new(spec("b")),
        );
        let mut specs = Specs::default();
        let positions: Vec<u32> = [&one, &one, &same, &other, &one]
            .into_iter()
            .map(|spec| specs.position(spec))
            .collect();
        assert_eq!(positions, [0, 0, 0, 1, 0]);
        assert_eq!(specs.list.len(), 2);
    }

    #[test]
    fn refusing_for_no_time_is_not_refusing_for_ever() {
        assert_eq!(Refuse::For(Duration::ZERO).to_wire().duration_ms, 1);
        assert_eq!(Refuse::UntilDemandChanges.to_wire().duration_ms, 0);
    }
}
