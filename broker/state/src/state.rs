//! The state: private fields, one way to change it, one way to ask whether a change would pass,
//! and reads in a stable order. `apply` and `check` are one match each; the rules live in
//! `apply/*`, each in a half that only reads and may refuse, and a half that only writes and
//! cannot fail.

use std::collections::BTreeMap;
use std::sync::Arc;

use mete_model::quota::Charge;
use mete_model::{
    AgentId, ClaimId, FrameworkId, Inventory, NodeKey, Resources, RolePath, RunId, Status,
    Timestamp,
};

use crate::apply::{
    Plan, Turn, acknowledge, agents, calls, demand, frameworks, kill, launch, masters, replace,
    roles, status, store, teardown, tick,
};
use crate::command::{AdmitAgent, Command, Stamped};
use crate::cow_map::CowMap;
use crate::due::Lapses;
use crate::effect::{Outcome, Verdict};
use crate::history::History;
use crate::ledger::Ledger;
use crate::record::{
    Agent, ClaimRecord, EndedRun, Framework, Master, Meta, Role, Run, Seat, StoreRecord,
    StoredVerdict, Tombstone,
};
use crate::rejection::Rejection;
use crate::specs::Specs;

/// What applying a command would do, as far as can be said without doing it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Preview {
    /// The call was answered before: this is the answer, and where it applied. Logging it again
    /// is harmless and useless.
    Repeat {
        /// Log index of the first one.
        revision: u64,
        /// The first answer.
        verdict: Verdict,
    },
    /// Nothing would change: this is the answer. It need not be logged.
    NoChange(Verdict),
    /// It passes and changes the state.
    Change,
}

/// Answers kept for one framework's calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Calls {
    pub(crate) verdicts: CowMap<u64, StoredVerdict>,
    /// Items of the verdicts together.
    pub(crate) items: usize,
}

/// One framework's store.
#[derive(Clone, Debug, Default)]
pub(crate) struct Store {
    pub(crate) records: CowMap<Vec<u8>, StoreRecord>,
    /// Keys and values together.
    pub(crate) bytes: u64,
}

/// The replicated truth of a cluster.
#[derive(Clone, Debug, Default)]
pub struct State {
    pub(crate) meta: Meta,
    pub(crate) masters: BTreeMap<u64, Master>,
    pub(crate) roles: CowMap<RolePath, Role>,
    pub(crate) agents: CowMap<AgentId, Agent>,
    pub(crate) frameworks: CowMap<FrameworkId, Framework>,
    pub(crate) tombstones: CowMap<FrameworkId, Tombstone>,
    pub(crate) claims: BTreeMap<FrameworkId, CowMap<ClaimId, ClaimRecord>>,
    /// Live, or over and not acknowledged.
    pub(crate) runs: BTreeMap<FrameworkId, CowMap<RunId, Arc<Run>>>,
    pub(crate) history: History,
    pub(crate) stores: BTreeMap<FrameworkId, Store>,
    pub(crate) calls: BTreeMap<FrameworkId, Calls>,

    // Derived from the above.
    pub(crate) ledger: Ledger,
    pub(crate) store_bytes: u64,
    pub(crate) by_key: BTreeMap<NodeKey, AgentId>,
    pub(crate) by_node: BTreeMap<String, AgentId>,
    pub(crate) by_name: BTreeMap<(String, String), FrameworkId>,
    pub(crate) lapses: Lapses,
    pub(crate) specs: Specs,
}

/// The one match: from each command to the room that has its rules. `$then` gets the plan.
macro_rules! plan {
    ($state:expr, $at:expr, $command:expr, $plan:ident => $then:expr) => {
        match $command {
            Command::AdmitAgent(admit) => {
                let $plan = agents::admit($state, admit)?;
                $then
            }
            Command::SetAgentCondition { agent, condition } => {
                let $plan = agents::set_condition($state, *agent, *condition)?;
                $then
            }
            Command::MarkReplaceable { agent } => {
                let $plan = replace::mark($state, $at, *agent)?;
                $then
            }
            Command::RemoveAgent { agent, actor } => {
                let $plan = agents::remove($state, *agent, actor)?;
                $then
            }
            Command::Subscribe(subscribe) => {
                let $plan = frameworks::subscribe($state, subscribe)?;
                $then
            }
            Command::Disconnect {
                framework,
                incarnation,
            } => {
                let $plan = frameworks::disconnect($state, *framework, *incarnation)?;
                $then
            }
            Command::UpdateFramework { caller, settings } => {
                let $plan = frameworks::update($state, caller.framework, settings)?;
                $then
            }
            Command::UpdateDemand {
                caller,
                version,
                upsert,
                remove,
            } => {
                let $plan = demand::update($state, caller.framework, *version, upsert, remove)?;
                $then
            }
            Command::Suppress {
                caller,
                roles,
                suppressed,
            } => {
                let $plan = frameworks::suppress($state, caller.framework, roles, *suppressed)?;
                $then
            }
            Command::SuppressByOperator {
                framework,
                suppress,
                revive,
                actor,
            } => {
                let $plan =
                    frameworks::suppress_by_operator($state, *framework, suppress, revive, actor)?;
                $then
            }
            Command::Launch(launch) => {
                let $plan = launch::launch($state, launch)?;
                $then
            }
            Command::Kill {
                caller,
                runs,
                grace,
                reason,
            } => {
                let $plan = kill::by_framework($state, caller.framework, runs, *grace, reason)?;
                $then
            }
            Command::KillByOperator {
                runs,
                grace,
                reason,
                actor,
            } => {
                let $plan = kill::by_operator($state, runs, *grace, reason, actor)?;
                $then
            }
            Command::RecordStatuses { agent, statuses } => {
                let $plan = status::record($state, *agent, statuses)?;
                $then
            }
            Command::Acknowledge { caller, items } => {
                let $plan = acknowledge::acknowledge($state, caller.framework, items)?;
                $then
            }
            Command::WriteStore {
                caller,
                puts,
                deletes,
            } => {
                let $plan = store::write($state, caller.framework, puts, deletes)?;
                $then
            }
            Command::Teardown { caller } => {
                let $plan = teardown::by_framework($state, caller)?;
                $then
            }
            Command::RemoveFramework { framework, actor } => {
                let $plan = teardown::by_operator($state, *framework, actor)?;
                $then
            }
            Command::SetRole {
                path,
                weight_milli,
                actor,
            } => {
                let $plan = roles::set($state, path, *weight_milli, actor)?;
                $then
            }
            Command::RemoveRole { path, actor } => {
                let $plan = roles::remove($state, path, actor)?;
                $then
            }
            Command::AddMaster(add) => {
                let $plan = masters::add($state, add)?;
                $then
            }
            Command::SetMaster(set) => {
                let $plan = masters::set($state, set)?;
                $then
            }
            Command::RemoveMaster { node, actor } => {
                let $plan = masters::remove($state, *node, actor)?;
                $then
            }
            Command::RaiseLevel { level } => {
                let $plan = masters::raise_level($state, *level);
                $then
            }
            Command::Tick => {
                let $plan = tick::tick($state, $at);
                $then
            }
        }
    };
}

impl State {
    /// The empty state of a new cluster.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Applies the command at log index `revision`.
    ///
    /// # Errors
    /// The [`Rejection`]: nothing at all has changed, here and on every other replica.
    pub fn apply(&mut self, revision: u64, stamped: &Stamped) -> Result<Outcome, Rejection> {
        let command = &stamped.command;
        if let Some(first) = calls::answered(self, command)? {
            return Ok(Outcome {
                verdict: first.verdict,
                revision: first.revision,
                ..Outcome::default()
            });
        }
        let at = self.meta.clock.max(stamped.at);
        let mut turn = Turn::new(revision, at);
        let verdict = plan!(self, at, command, plan => {
            // Nothing below can fail.
            self.meta.revision = revision;
            self.meta.clock = at;
            plan.write(self, &mut turn)
        });
        calls::remember(self, command, revision, &verdict);
        Ok(turn.into_outcome(verdict))
    }

    /// Says what [`State::apply`] would do now; changes nothing.
    ///
    /// # Errors
    /// The [`Rejection`] that applying would give.
    pub fn check(&self, stamped: &Stamped) -> Result<Preview, Rejection> {
        let command = &stamped.command;
        if let Some(first) = calls::answered(self, command)? {
            return Ok(Preview::Repeat {
                revision: first.revision,
                verdict: first.verdict,
            });
        }
        let at = self.meta.clock.max(stamped.at);
        Ok(plan!(self, at, command, plan => plan.preview()))
    }

    /// Says whether admitting this agent changes nothing and owes it nothing new, so that its
    /// return need not be logged.
    #[must_use]
    pub fn admit_is_noop(&self, admit: &AdmitAgent) -> bool {
        agents::admit(self, admit).is_ok_and(|plan| matches!(plan.preview(), Preview::NoChange(_)))
    }

    /// Log index of the last command that was applied and not rejected.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.meta.revision
    }

    /// The latest stamp; a leader's stamps go on from here, so that no deadline gets shorter.
    #[must_use]
    pub fn clock(&self) -> Timestamp {
        self.meta.clock
    }

    // Masters.

    /// The state of a new cluster whose founders are known by address: the same on all of them.
    #[must_use]
    pub fn founded(founders: &BTreeMap<u64, String>) -> Self {
        let mut state = Self::default();
        for (node, address) in founders {
            state.masters.insert(
                *node,
                Master {
                    node: *node,
                    address: address.clone(),
                    seat: Seat::Voter,
                    replaces: 0,
                    added: Timestamp::default(),
                    revision: 0,
                },
            );
            state.meta.last_master = state.meta.last_master.max(*node);
        }
        state
    }

    /// All masters that are named, by node id.
    pub fn masters(&self) -> impl Iterator<Item = &Master> {
        self.masters.values()
    }

    /// One master.
    #[must_use]
    pub fn master(&self, node: u64) -> Option<&Master> {
        self.masters.get(&node)
    }

    /// This node was a master once and has left: nothing of it counts any more.
    #[must_use]
    pub fn has_left(&self, node: u64) -> bool {
        node <= self.meta.last_master && !self.masters.contains_key(&node)
    }

    /// The highest node id any master ever had.
    #[must_use]
    pub fn last_master(&self) -> u64 {
        self.meta.last_master
    }

    /// Which behaviour the commands have.
    #[must_use]
    pub fn level(&self) -> u32 {
        self.meta.level
    }

    // Agents.

    /// All agents, gone ones included, by id.
    pub fn agents(&self) -> impl Iterator<Item = &Agent> {
        self.agents.values()
    }

    /// One agent.
    #[must_use]
    pub fn agent(&self, id: AgentId) -> Option<&Agent> {
        self.agents.get(&id)
    }

    /// The agent of this name that is not gone.
    #[must_use]
    pub fn agent_of_node(&self, node_name: &str) -> Option<&Agent> {
        self.agents.get(self.by_node.get(node_name)?)
    }

    /// The agent with this key.
    #[must_use]
    pub fn agent_of_key(&self, key: NodeKey) -> Option<&Agent> {
        self.agents.get(self.by_key.get(&key)?)
    }

    /// What is free on an agent: its total less its grants, nothing below zero.
    #[must_use]
    pub fn free(&self, agent: AgentId) -> Option<&Resources> {
        Some(&self.ledger.holdings(agent)?.free)
    }

    /// What is granted on an agent; may pass its total after it shrank.
    #[must_use]
    pub fn granted(&self, agent: AgentId) -> Option<&Resources> {
        Some(&self.ledger.holdings(agent)?.granted)
    }

    /// Runs on an agent whose phase is not terminal, by framework and run.
    pub fn runs_on(&self, agent: AgentId) -> impl Iterator<Item = &Run> {
        let keys = self.ledger.holdings(agent).map(|holdings| &holdings.runs);
        keys.into_iter()
            .flatten()
            .filter_map(|(framework, run)| self.run(*framework, run))
    }

    // Frameworks and roles.

    /// All frameworks that are not torn down, by id.
    pub fn frameworks(&self) -> impl Iterator<Item = &Framework> {
        self.frameworks.values()
    }

    /// One framework.
    #[must_use]
    pub fn framework(&self, id: FrameworkId) -> Option<&Framework> {
        self.frameworks.get(&id)
    }

    /// The framework that subscribed by this principal and name.
    #[must_use]
    pub fn framework_of_name(&self, principal: &str, name: &str) -> Option<&Framework> {
        let key = (principal.to_owned(), name.to_owned());
        self.frameworks.get(self.by_name.get(&key)?)
    }

    /// Frameworks that were torn down, by id.
    pub fn tombstones(&self) -> impl Iterator<Item = &Tombstone> {
        self.tombstones.values()
    }

    /// One torn-down framework.
    #[must_use]
    pub fn tombstone(&self, id: FrameworkId) -> Option<&Tombstone> {
        self.tombstones.get(&id)
    }

    /// All roles, by path.
    pub fn roles(&self) -> impl Iterator<Item = &Role> {
        self.roles.values()
    }

    /// One role.
    #[must_use]
    pub fn role(&self, path: &RolePath) -> Option<&Role> {
        self.roles.get(path)
    }

    /// What a role and all roles below it hold.
    #[must_use]
    pub fn used_by_role(&self, path: &RolePath) -> Charge {
        self.ledger.role(path.as_str()).cloned().unwrap_or_default()
    }

    /// What a framework holds, by role; roles in which it holds nothing are not listed. Also of a
    /// torn-down one as long as its runs are being killed.
    pub fn used_by_framework(&self, id: FrameworkId) -> impl Iterator<Item = (&RolePath, &Charge)> {
        self.ledger.framework(id).into_iter().flatten()
    }

    /// All grants together.
    #[must_use]
    pub fn used_in_all(&self) -> &Charge {
        self.ledger.all()
    }

    // Claims.

    /// Claims of one framework, by id.
    pub fn claims(&self, framework: FrameworkId) -> impl Iterator<Item = &ClaimRecord> {
        self.claims
            .get(&framework)
            .into_iter()
            .flat_map(CowMap::values)
    }

    /// One claim.
    #[must_use]
    pub fn claim(&self, framework: FrameworkId, id: &ClaimId) -> Option<&ClaimRecord> {
        self.claims.get(&framework)?.get(id)
    }

    /// A hash of a framework's claims as declared, for heartbeats: equal sets, equal hashes.
    /// See [`mete_model::demand::hash_of`].
    #[must_use]
    pub fn demand_hash(&self, framework: FrameworkId) -> u64 {
        mete_model::demand::hash_of(self.claims(framework).map(|record| &record.claim))
    }

    // Runs.

    /// All runs that are live, or over and not acknowledged, by framework and run.
    pub fn all_runs(&self) -> impl Iterator<Item = &Run> {
        self.runs
            .values()
            .flat_map(|runs| runs.values().map(|run| &**run))
    }

    /// Those of one framework.
    pub fn runs(&self, framework: FrameworkId) -> impl Iterator<Item = &Run> {
        let runs = self.runs.get(&framework).into_iter();
        runs.flat_map(|runs| runs.values().map(|run| &**run))
    }

    /// How many those are.
    #[must_use]
    pub fn run_count(&self, framework: FrameworkId) -> usize {
        self.runs.get(&framework).map_or(0, CowMap::len)
    }

    /// Those of one framework, from `from` on: a page need not walk over what came before it.
    pub fn runs_from(
        &self,
        framework: FrameworkId,
        from: std::ops::Bound<RunId>,
    ) -> impl Iterator<Item = &Run> {
        let runs = self.runs.get(&framework).into_iter();
        runs.flat_map(move |runs| runs.range_from(from.as_ref()))
            .map(|(_, run)| &**run)
    }

    /// One run that is live, or over and not acknowledged.
    #[must_use]
    pub fn run(&self, framework: FrameworkId, run: &RunId) -> Option<&Run> {
        self.runs.get(&framework)?.get(run).map(|run| &**run)
    }

    /// One status of a run, as long as it is kept.
    #[must_use]
    pub fn status(&self, framework: FrameworkId, run: &RunId, sequence: u64) -> Option<&Status> {
        let statuses = &self.run(framework, run)?.statuses;
        statuses.iter().find(|status| status.sequence == sequence)
    }

    /// Frameworks that have runs, here or in history, torn-down ones included; by id.
    #[must_use]
    pub fn frameworks_with_runs(&self) -> std::collections::BTreeSet<FrameworkId> {
        let live = self.runs.keys().copied();
        live.chain(self.history.frameworks()).collect()
    }

    /// Runs in history, oldest first.
    pub fn history(&self) -> impl Iterator<Item = &Run> {
        self.history.iter()
    }

    /// Those of one framework, oldest first.
    pub fn history_of(&self, framework: FrameworkId) -> impl Iterator<Item = &Run> {
        self.history.of(framework)
    }

    /// One run in history.
    #[must_use]
    pub fn past_run(&self, framework: FrameworkId, run: &RunId) -> Option<&Run> {
        self.history.get(framework, run)
    }

    /// What is left of a run that history dropped.
    #[must_use]
    pub fn ended_run(&self, framework: FrameworkId, run: &RunId) -> Option<&EndedRun> {
        self.history.name(framework, run)
    }

    // Stores.

    /// One record of a framework's store.
    #[must_use]
    pub fn store_get(&self, framework: FrameworkId, key: &[u8]) -> Option<&StoreRecord> {
        self.stores.get(&framework)?.records.get(key)
    }

    /// Records under a prefix, in byte order, from the first one after `after`.
    pub fn store_list<'a>(
        &'a self,
        framework: FrameworkId,
        prefix: &'a [u8],
        after: Option<&[u8]>,
    ) -> impl Iterator<Item = &'a StoreRecord> {
        use std::ops::Bound;
        let from = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            Some(_) | None => Bound::Included(prefix),
        };
        let store = self.stores.get(&framework);
        let records = store.map(|store| store.records.range_from(from));
        records
            .into_iter()
            .flatten()
            .map(|(_, record)| record)
            .take_while(move |record| record.key.starts_with(prefix))
    }

    /// Bytes of a framework's store, keys and values together.
    #[must_use]
    pub fn store_bytes(&self, framework: FrameworkId) -> u64 {
        self.stores.get(&framework).map_or(0, |store| store.bytes)
    }

    /// Bytes of all stores.
    #[must_use]
    pub fn store_bytes_in_all(&self) -> u64 {
        self.store_bytes
    }

    pub(crate) fn inventory(&self, agent: AgentId) -> Option<&Inventory> {
        Some(&self.agents.get(&agent)?.inventory)
    }
}
