//! What is owed to agents and frameworks, worked out from the state alone.
//!
//! Every effect may be lost: a new leader, a returned agent, a framework that subscribes again get
//! theirs from here. All receivers are idempotent, so owing twice is harmless.

use mete_model::{AgentId, FrameworkId, TaskPhase};

use crate::command::AgentCondition;
use crate::effect::Effect;
use crate::record::Run;
use crate::state::State;

impl State {
    /// Everything owed to anybody: first to agents, then to frameworks. It takes a walk over all
    /// runs; a leader with many asks for each agent and framework as it comes back.
    pub fn owed(&self) -> impl Iterator<Item = Effect> {
        let live = self.all_runs().filter(|run| !run.phase.is_terminal());
        let frameworks = self.frameworks.keys();
        live.filter_map(owed_of_run)
            .chain(frameworks.flat_map(|framework| self.owed_to_framework(*framework)))
    }

    /// Starts of runs that the agent has never reported, and kills that are not done.
    #[must_use]
    pub fn owed_to_agent(&self, agent: AgentId) -> Vec<Effect> {
        self.runs_on(agent).filter_map(owed_of_run).collect()
    }

    /// Statuses that the framework has not acknowledged, in order per run, then agents with runs
    /// of it that are not ready, then runs that may be replaced and were not.
    #[must_use]
    pub fn owed_to_framework(&self, framework: FrameworkId) -> Vec<Effect> {
        let mut owed = Vec::new();
        let mut agents: Vec<AgentId> = Vec::new();
        for run in self.runs(framework) {
            owed.extend(run.unacknowledged().map(|status| Effect::TellStatus {
                framework,
                run: run.id.clone(),
                sequence: status.sequence,
            }));
            if !run.phase.is_terminal() {
                agents.push(run.agent);
            }
        }
        agents.sort_unstable();
        agents.dedup();
        let lost = agents.into_iter().filter_map(|id| self.agent(id));
        owed.extend(
            lost.filter(|agent| agent.condition != AgentCondition::Ready)
                .map(|agent| Effect::TellAgent {
                    framework,
                    agent: agent.id,
                    condition: agent.condition,
                }),
        );
        let replaceable = self.runs(framework).filter(|run| self.is_replaceable(run));
        owed.extend(replaceable.map(|run| Effect::TellReplaceable {
            framework,
            agent: run.agent,
            run: run.id.clone(),
        }));
        owed
    }

    /// Frameworks with live runs on the agent, torn-down ones left out.
    pub(crate) fn frameworks_on(&self, agent: AgentId) -> Vec<FrameworkId> {
        let mut frameworks: Vec<FrameworkId> = self
            .runs_on(agent)
            .map(|run| run.framework)
            .filter(|framework| self.frameworks.contains_key(framework))
            .collect();
        // Runs come by framework, so equal ones stand together.
        frameworks.dedup();
        frameworks
    }
}

fn owed_of_run(run: &Run) -> Option<Effect> {
    let (agent, framework, id) = (run.agent, run.framework, run.id.clone());
    if run.kill.is_some() {
        return Some(Effect::KillTask {
            agent,
            framework,
            run: id,
        });
    }
    let unseen = run.phase == TaskPhase::Staging && run.sequence == 0;
    unseen.then_some(Effect::StartTask {
        agent,
        framework,
        run: id,
    })
}
