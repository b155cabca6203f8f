//! From a request to a command: the dry run, and what a refusal looks like before the log.
//!
//! A command enters the log only after `State::check` said that it passes here and now. The dry run
//! is guarded: an input that makes it panic is refused and reported, and never logged, since a
//! panic at the commit would end every master, again and again.

use mete_model::{AgentId, Code};
use mete_state::command::{AddMaster, HeldRun, SetMaster};
use mete_state::{Caller, Command, Preview, Seat, Stamped, State, Verdict};

use super::{LeaderTerm, Now};
use crate::request::{FrameworkAction, OperatorAction, Refusal};
use crate::store::guard;

impl LeaderTerm {
    /// Says what the command would do; changes nothing, and gives the command back.
    pub(super) fn check(
        &mut self,
        state: &State,
        command: Command,
        now: Now,
    ) -> (Command, Result<Preview, Refusal>) {
        let stamped = Stamped {
            at: now.at,
            command,
        };
        let checked = self.check_stamped(state, &stamped);
        (stamped.command, checked)
    }

    /// The same for a command that is stamped already.
    fn check_stamped(&mut self, state: &State, stamped: &Stamped) -> Result<Preview, Refusal> {
        match guard::run_guarded_here(|| state.check(stamped)) {
            Ok(checked) => checked.map_err(Refusal::from),
            Err(panic) => {
                self.counters.quarantined = self.counters.quarantined.saturating_add(1);
                tracing::error!(%panic, ?stamped, "a command made its check panic; not logged");
                let detail = format!(
                    "a defect of mete: checking this call failed ({panic}); nothing was done, \
                     please report it with the call"
                );
                Err(Refusal::new(Code::Internal, detail))
            }
        }
    }

    /// Compares the fence of a call that has no command of its own, and finds its first answer if
    /// it was answered before.
    pub(super) fn fence_of(
        &mut self,
        state: &State,
        caller: Caller,
        now: Now,
    ) -> Result<Option<(u64, Verdict)>, Refusal> {
        // Reviving nothing in particular: the cheapest command that carries a caller.
        let probe = Command::Suppress {
            caller,
            roles: Vec::new(),
            suppressed: false,
        };
        match self.check(state, probe, now).1? {
            Preview::Repeat { revision, verdict } => Ok(Some((revision, verdict))),
            Preview::NoChange(_) | Preview::Change => Ok(None),
        }
    }
}

/// The command of a framework's action; `None` for those that have none of their own.
pub(super) fn framework_command(caller: Caller, action: FrameworkAction) -> Option<Command> {
    Some(match action {
        FrameworkAction::UpdateDemand {
            version,
            upsert,
            remove,
        } => Command::UpdateDemand {
            caller,
            version,
            upsert,
            remove,
        },
        FrameworkAction::Suppress { roles, suppressed } => Command::Suppress {
            caller,
            roles,
            suppressed,
        },
        FrameworkAction::UpdateFramework { settings } => {
            Command::UpdateFramework { caller, settings }
        }
        FrameworkAction::Kill {
            runs,
            grace,
            reason,
        } => Command::Kill {
            caller,
            runs,
            grace,
            reason,
        },
        FrameworkAction::Acknowledge { items } => Command::Acknowledge { caller, items },
        FrameworkAction::WriteStore { puts, deletes } => Command::WriteStore {
            caller,
            puts,
            deletes,
        },
        FrameworkAction::Teardown => Command::Teardown { caller },
        FrameworkAction::Accept(_) | FrameworkAction::Decline { .. } | FrameworkAction::Read => {
            return None;
        }
    })
}

/// The command of an operator's action; `None` for those that change no replicated thing.
///
/// # Errors
/// `NOT_FOUND` for a master that is not named.
pub(super) fn operator_command(
    state: &State,
    actor: String,
    action: OperatorAction,
) -> Result<Option<Command>, Refusal> {
    Ok(Some(match action {
        OperatorAction::SetRole { path, weight_milli } => Command::SetRole {
            path,
            weight_milli,
            actor,
        },
        OperatorAction::RemoveRole { path } => Command::RemoveRole { path, actor },
        OperatorAction::KillTasks {
            runs,
            grace,
            reason,
        } => Command::KillByOperator {
            runs,
            grace,
            reason,
            actor,
        },
        OperatorAction::SuppressFramework {
            framework,
            suppress,
            revive,
        } => Command::SuppressByOperator {
            framework,
            suppress,
            revive,
            actor,
        },
        OperatorAction::RemoveFramework { framework } => {
            Command::RemoveFramework { framework, actor }
        }
        OperatorAction::RemoveNode { agent } => Command::RemoveAgent { agent, actor },
        OperatorAction::AddMaster {
            address,
            learner,
            replaces,
            above,
        } => Command::AddMaster(AddMaster {
            address,
            seat: if learner { Seat::Learner } else { Seat::Voter },
            replaces: replaces.unwrap_or(0),
            above,
            actor,
        }),
        OperatorAction::PromoteMaster { node } => reseated(state, node, Seat::Voter, actor)?,
        OperatorAction::RemoveMaster { node } => reseated(state, node, Seat::Leaving, actor)?,
        // Judged by the loop, which knows the members.
        OperatorAction::HandOver { .. } | OperatorAction::RescindOffers { .. } => return Ok(None),
    }))
}

fn reseated(state: &State, node: u64, seat: Seat, actor: String) -> Result<Command, Refusal> {
    if state.master(node).is_none() {
        let known = state.masters().map(|known| known.node.to_string());
        let known: Vec<String> = known.collect();
        let known = known.join(", ");
        return Err(Refusal::new(
            Code::NotFound,
            format!("no master {node} is known; known are {known}"),
        ));
    }
    Ok(Command::SetMaster(SetMaster {
        node,
        address: None,
        seat: Some(seat),
        replaces: None,
        actor,
    }))
}

/// What the state says that an agent holds.
pub(super) fn held_by_state(state: &State, agent: AgentId) -> Vec<HeldRun> {
    let held = state.runs_on(agent).map(|run| HeldRun {
        framework: run.framework,
        run: run.id.clone(),
        phase: run.phase,
        last_sequence: run.sequence,
    });
    held.collect()
}
