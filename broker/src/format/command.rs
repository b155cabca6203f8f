//! Commands to log entries and back.

use mete_model::{AgentId, FrameworkId, RunId, Status, Timestamp};
use mete_proto::convert::{
    At, Faults, read_claim, read_inventory, read_role, read_run, write_claim, write_inventory,
    write_phase, write_run,
};
use mete_proto::internal::v1 as stored;
use mete_proto::internal::v1::stored_command::Command as Stored;
use mete_proto::types::v1 as wire;
use mete_state::command::{
    AddMaster, AdmitAgent, HeldRun, SetMaster, StoreDelete, StorePut, Subscribe,
};
use mete_state::{Caller, Command, Stamped};
use prost::Message;
use prost::bytes::Bytes;

use super::launch::{put_launch, read_launch};
use super::read::{
    Positions, agent, at_position, caller, claims, condition, each, framework, given, node_key,
    phase, put_caller, put_condition, put_roles, put_seat, put_span, put_uuid, roles, seat, span,
};
use super::settings::{put_settings, read_settings};
use super::status::{put_status, read_status};
use super::{COMMAND_FORMAT, FormatError, check_format};

const WHAT: &str = "command";

/// Encodes a command as the content of a log entry.
///
/// Equal commands have equal bytes.
#[must_use]
pub fn encode_command(stamped: &Stamped) -> Vec<u8> {
    stored::StoredCommand {
        format: COMMAND_FORMAT,
        at_ms: stamped.at.0,
        command: Some(put(&stamped.command)),
    }
    .encode_to_vec()
}

/// Reads the content of a log entry.
///
/// # Errors
/// [`FormatError`] for bytes that are damaged, of a newer release, or make no sense.
pub fn decode_command(bytes: &[u8]) -> Result<Stamped, FormatError> {
    let message = stored::StoredCommand::decode(bytes).map_err(|source| FormatError::Damaged {
        what: WHAT,
        size: bytes.len(),
        source,
    })?;
    check_format(WHAT, message.format, COMMAND_FORMAT)?;
    let mut faults = Faults::new();
    let command = given(message.command, At::root("command"), &mut faults)
        .and_then(|command| read(command, &mut faults));
    let command = faults
        .finish(command)
        .map_err(|faults| FormatError::Meaningless { what: WHAT, faults })?;
    Ok(Stamped {
        at: Timestamp(message.at_ms),
        command,
    })
}

fn put(command: &Command) -> Stored {
    match command {
        Command::AdmitAgent(admit) => Stored::AdmitAgent(put_admit(admit)),
        Command::SetAgentCondition { agent, condition } => {
            Stored::SetAgentCondition(stored::StoredSetAgentCondition {
                agent: put_uuid(agent.0),
                condition: put_condition(*condition),
            })
        }
        Command::MarkReplaceable { agent } => {
            Stored::MarkReplaceable(stored::StoredMarkReplaceable {
                agent: put_uuid(agent.0),
            })
        }
        Command::RemoveAgent { agent, actor } => Stored::RemoveAgent(stored::StoredRemoveAgent {
            agent: put_uuid(agent.0),
            actor: actor.clone(),
        }),
        Command::Subscribe(subscribe) => Stored::Subscribe(put_subscribe(subscribe)),
        Command::Disconnect {
            framework,
            incarnation,
        } => Stored::Disconnect(stored::StoredDisconnect {
            framework: put_uuid(framework.0),
            incarnation: *incarnation,
        }),
        Command::UpdateFramework { caller, settings } => {
            Stored::UpdateFramework(stored::StoredUpdateFramework {
                caller: put_caller(caller),
                settings: put_settings(settings),
            })
        }
        Command::UpdateDemand {
            caller,
            version,
            upsert,
            remove,
        } => Stored::UpdateDemand(stored::StoredUpdateDemand {
            caller: put_caller(caller),
            version: *version,
            upsert: upsert.iter().map(write_claim).collect(),
            remove: remove
                .iter()
                .map(|claim| claim.as_str().to_owned())
                .collect(),
        }),
        Command::Suppress {
            caller,
            roles,
            suppressed,
        } => Stored::Suppress(stored::StoredSuppress {
            caller: put_caller(caller),
            roles: put_roles(roles),
            suppressed: *suppressed,
        }),
        Command::SuppressByOperator {
            framework,
            suppress,
            revive,
            actor,
        } => Stored::SuppressByOperator(stored::StoredSuppressByOperator {
            framework: put_uuid(framework.0),
            suppress: put_roles(suppress),
            revive: put_roles(revive),
            actor: actor.clone(),
        }),
        Command::Launch(launch) => Stored::Launch(put_launch(launch)),
        Command::Kill {
            caller,
            runs,
            grace,
            reason,
        } => Stored::Kill(stored::StoredKill {
            caller: put_caller(caller),
            runs: runs.iter().map(write_run).collect(),
            grace_ms: put_span(*grace),
            reason: reason.clone(),
        }),
        Command::KillByOperator {
            runs,
            grace,
            reason,
            actor,
        } => Stored::KillByOperator(stored::StoredKillByOperator {
            runs: runs.iter().map(put_run_ref).collect(),
            grace_ms: put_span(*grace),
            reason: reason.clone(),
            actor: actor.clone(),
        }),
        Command::RecordStatuses { agent, statuses } => {
            Stored::RecordStatuses(put_statuses(*agent, statuses))
        }
        Command::Acknowledge { caller, items } => {
            Stored::Acknowledge(put_acknowledge(caller, items))
        }
        Command::WriteStore {
            caller,
            puts,
            deletes,
        } => Stored::WriteStore(put_store(caller, puts, deletes)),
        Command::Teardown { caller } => Stored::Teardown(stored::StoredTeardown {
            caller: put_caller(caller),
        }),
        Command::RemoveFramework { framework, actor } => {
            Stored::RemoveFramework(stored::StoredRemoveFramework {
                framework: put_uuid(framework.0),
                actor: actor.clone(),
            })
        }
        Command::SetRole {
            path,
            weight_milli,
            actor,
        } => Stored::SetRole(stored::StoredSetRole {
            path: path.as_str().to_owned(),
            weight_milli: *weight_milli,
            actor: actor.clone(),
        }),
        Command::RemoveRole { path, actor } => Stored::RemoveRole(stored::StoredRemoveRole {
            path: path.as_str().to_owned(),
            actor: actor.clone(),
        }),
        Command::AddMaster(add) => Stored::AddMaster(put_add_master(add)),
        Command::SetMaster(set) => Stored::SetMaster(put_set_master(set)),
        Command::RemoveMaster { node, actor } => Stored::RemoveMaster(stored::StoredRemoveMaster {
            node: *node,
            actor: actor.clone(),
        }),
        Command::RaiseLevel { level } => {
            Stored::RaiseLevel(stored::StoredRaiseLevel { level: *level })
        }
        Command::Tick => Stored::Tick(stored::StoredTick {}),
    }
}

fn put_add_master(add: &AddMaster) -> stored::StoredAddMaster {
    stored::StoredAddMaster {
        address: add.address.clone(),
        seat: put_seat(add.seat),
        replaces: add.replaces,
        above: add.above,
        actor: add.actor.clone(),
    }
}

fn put_set_master(set: &SetMaster) -> stored::StoredSetMaster {
    stored::StoredSetMaster {
        node: set.node,
        address: set.address.clone(),
        seat: set.seat.map(put_seat),
        replaces: set.replaces,
        actor: set.actor.clone(),
    }
}

fn put_admit(admit: &AdmitAgent) -> stored::StoredAdmitAgent {
    stored::StoredAdmitAgent {
        agent: put_uuid(admit.agent.0),
        node_key: put_uuid(admit.node_key.0),
        node_name: admit.node_name.clone(),
        inventory: Some(write_inventory(&admit.inventory)),
        held: admit
            .held
            .iter()
            .map(|held| stored::StoredHeldRun {
                framework: put_uuid(held.framework.0),
                run: Some(write_run(&held.run)),
                phase: write_phase(held.phase).into(),
                last_sequence: held.last_sequence,
            })
            .collect(),
    }
}

fn put_subscribe(subscribe: &Subscribe) -> stored::StoredSubscribe {
    stored::StoredSubscribe {
        framework: put_uuid(subscribe.framework.0),
        principal: subscribe.principal.clone(),
        name: subscribe.name.clone(),
        incarnation: subscribe.incarnation,
        settings: put_settings(&subscribe.settings),
    }
}

pub(super) fn put_run_ref((framework, run): &(FrameworkId, RunId)) -> stored::StoredRunRef {
    stored::StoredRunRef {
        framework: put_uuid(framework.0),
        run: Some(write_run(run)),
    }
}

fn put_statuses(
    agent: AgentId,
    statuses: &[(FrameworkId, Status)],
) -> stored::StoredRecordStatuses {
    let mut message = stored::StoredRecordStatuses {
        agent: put_uuid(agent.0),
        ..stored::StoredRecordStatuses::default()
    };
    let mut frameworks = Positions::default();
    for (framework, status) in statuses {
        let (place, new) = frameworks.of(*framework);
        if new {
            message.frameworks.push(put_uuid(framework.0));
        }
        message.statuses.push(put_status(status, place, true));
    }
    message
}

fn put_acknowledge(caller: &Caller, items: &[(RunId, u64)]) -> stored::StoredAcknowledge {
    stored::StoredAcknowledge {
        caller: put_caller(caller),
        items: items
            .iter()
            .map(|(run, sequence)| stored::StoredRunSequence {
                run: Some(write_run(run)),
                sequence: *sequence,
            })
            .collect(),
    }
}

fn put_store(
    caller: &Caller,
    puts: &[StorePut],
    deletes: &[StoreDelete],
) -> stored::StoredWriteStore {
    stored::StoredWriteStore {
        caller: put_caller(caller),
        puts: puts
            .iter()
            .map(|put| stored::StoredPut {
                key: Bytes::copy_from_slice(&put.key),
                value: Bytes::copy_from_slice(&put.value),
                expected: put.expected,
            })
            .collect(),
        deletes: deletes
            .iter()
            .map(|delete| stored::StoredDelete {
                key: Bytes::copy_from_slice(&delete.key),
                expected: delete.expected,
            })
            .collect(),
    }
}

fn read(command: Stored, faults: &mut Faults) -> Option<Command> {
    let root = At::root;
    Some(match command {
        Stored::AdmitAgent(admit) => Command::AdmitAgent(read_admit(admit, faults)?),
        Stored::SetAgentCondition(set) => Command::SetAgentCondition {
            agent: agent(&set.agent, root("agent"), faults)?,
            condition: condition(set.condition, root("condition"), faults)?,
        },
        Stored::MarkReplaceable(mark) => Command::MarkReplaceable {
            agent: agent(&mark.agent, root("agent"), faults)?,
        },
        Stored::RemoveAgent(remove) => Command::RemoveAgent {
            agent: agent(&remove.agent, root("agent"), faults)?,
            actor: remove.actor,
        },
        Stored::Subscribe(subscribe) => Command::Subscribe(Subscribe {
            framework: framework(&subscribe.framework, root("framework"), faults)?,
            principal: subscribe.principal,
            name: subscribe.name,
            incarnation: subscribe.incarnation,
            settings: read_settings(subscribe.settings, root("settings"), faults)?,
        }),
        Stored::Disconnect(disconnect) => Command::Disconnect {
            framework: framework(&disconnect.framework, root("framework"), faults)?,
            incarnation: disconnect.incarnation,
        },
        Stored::UpdateFramework(update) => Command::UpdateFramework {
            caller: caller(update.caller, faults)?,
            settings: read_settings(update.settings, root("settings"), faults)?,
        },
        Stored::UpdateDemand(demand) => Command::UpdateDemand {
            caller: caller(demand.caller, faults)?,
            version: demand.version,
            upsert: each(demand.upsert, root("upsert"), faults, read_claim)?,
            remove: claims(demand.remove, root("remove"), faults)?,
        },
        Stored::Suppress(suppress) => Command::Suppress {
            caller: caller(suppress.caller, faults)?,
            roles: roles(suppress.roles, root("roles"), faults)?,
            suppressed: suppress.suppressed,
        },
        Stored::SuppressByOperator(suppress) => Command::SuppressByOperator {
            framework: framework(&suppress.framework, root("framework"), faults)?,
            suppress: roles(suppress.suppress, root("suppress"), faults)?,
            revive: roles(suppress.revive, root("revive"), faults)?,
            actor: suppress.actor,
        },
        Stored::Launch(launch) => Command::Launch(read_launch(launch, faults)?),
        Stored::Kill(kill) => Command::Kill {
            caller: caller(kill.caller, faults)?,
            runs: runs(kill.runs, root("runs"), faults)?,
            grace: span(kill.grace_ms),
            reason: kill.reason,
        },
        Stored::KillByOperator(kill) => Command::KillByOperator {
            runs: each(kill.runs, root("runs"), faults, read_run_ref)?,
            grace: span(kill.grace_ms),
            reason: kill.reason,
            actor: kill.actor,
        },
        Stored::RecordStatuses(record) => read_statuses(record, faults)?,
        Stored::Acknowledge(acknowledge) => read_acknowledge(acknowledge, faults)?,
        Stored::WriteStore(write) => read_store(write, faults)?,
        Stored::Teardown(teardown) => Command::Teardown {
            caller: caller(teardown.caller, faults)?,
        },
        Stored::RemoveFramework(remove) => Command::RemoveFramework {
            framework: framework(&remove.framework, root("framework"), faults)?,
            actor: remove.actor,
        },
        Stored::SetRole(set) => Command::SetRole {
            path: read_role(&set.path, root("path"), faults)?,
            weight_milli: set.weight_milli,
            actor: set.actor,
        },
        Stored::RemoveRole(remove) => Command::RemoveRole {
            path: read_role(&remove.path, root("path"), faults)?,
            actor: remove.actor,
        },
        Stored::AddMaster(add) => Command::AddMaster(read_add_master(add, faults)?),
        Stored::SetMaster(set) => Command::SetMaster(read_set_master(set, faults)?),
        Stored::RemoveMaster(remove) => Command::RemoveMaster {
            node: remove.node,
            actor: remove.actor,
        },
        Stored::RaiseLevel(raise) => Command::RaiseLevel { level: raise.level },
        Stored::Tick(stored::StoredTick {}) => Command::Tick,
    })
}

fn read_add_master(add: stored::StoredAddMaster, faults: &mut Faults) -> Option<AddMaster> {
    Some(AddMaster {
        address: add.address,
        seat: seat(add.seat, At::root("seat"), faults)?,
        replaces: add.replaces,
        above: add.above,
        actor: add.actor,
    })
}

fn read_set_master(set: stored::StoredSetMaster, faults: &mut Faults) -> Option<SetMaster> {
    let seat = match set.seat {
        None => None,
        Some(given) => Some(seat(given, At::root("seat"), faults)?),
    };
    Some(SetMaster {
        node: set.node,
        address: set.address,
        seat,
        replaces: set.replaces,
        actor: set.actor,
    })
}

fn read_admit(admit: stored::StoredAdmitAgent, faults: &mut Faults) -> Option<AdmitAgent> {
    let held = each(admit.held, At::root("held"), faults, |held, at, faults| {
        Some(HeldRun {
            framework: framework(&held.framework, at.field("framework"), faults)?,
            run: read_run(held.run, at.field("run"), faults)?,
            phase: phase(held.phase, at.field("phase"), faults)?,
            last_sequence: held.last_sequence,
        })
    })?;
    Some(AdmitAgent {
        agent: agent(&admit.agent, At::root("agent"), faults)?,
        node_key: node_key(&admit.node_key, At::root("node_key"), faults)?,
        node_name: admit.node_name,
        inventory: read_inventory(admit.inventory, At::root("inventory"), faults)?,
        held,
    })
}

pub(super) fn runs(list: Vec<wire::Run>, at: At<'_>, faults: &mut Faults) -> Option<Vec<RunId>> {
    each(list, at, faults, |run, at, faults| {
        read_run(Some(run), at, faults)
    })
}

pub(super) fn read_run_ref(
    run: stored::StoredRunRef,
    at: At<'_>,
    faults: &mut Faults,
) -> Option<(FrameworkId, RunId)> {
    let framework = framework(&run.framework, at.field("framework"), faults)?;
    Some((framework, read_run(run.run, at.field("run"), faults)?))
}

fn read_statuses(record: stored::StoredRecordStatuses, faults: &mut Faults) -> Option<Command> {
    let list = At::root("frameworks");
    let frameworks = each(record.frameworks, list, faults, |id, at, faults| {
        framework(&id, at, faults)
    })?;
    let list = At::root("statuses");
    let statuses = each(record.statuses, list, faults, |status, at, faults| {
        let place = at.field("framework");
        let framework = *at_position(&frameworks, status.framework, place, faults)?;
        Some((framework, read_status(status, None, at, faults)?))
    })?;
    Some(Command::RecordStatuses {
        agent: agent(&record.agent, At::root("agent"), faults)?,
        statuses,
    })
}

fn read_acknowledge(message: stored::StoredAcknowledge, faults: &mut Faults) -> Option<Command> {
    let items = each(
        message.items,
        At::root("items"),
        faults,
        |item, at, faults| Some((read_run(item.run, at.field("run"), faults)?, item.sequence)),
    )?;
    Some(Command::Acknowledge {
        caller: caller(message.caller, faults)?,
        items,
    })
}

fn read_store(write: stored::StoredWriteStore, faults: &mut Faults) -> Option<Command> {
    Some(Command::WriteStore {
        caller: caller(write.caller, faults)?,
        puts: write
            .puts
            .into_iter()
            .map(|put| StorePut {
                key: put.key.to_vec(),
                value: put.value.to_vec(),
                expected: put.expected,
            })
            .collect(),
        deletes: write
            .deletes
            .into_iter()
            .map(|delete| StoreDelete {
                key: delete.key.to_vec(),
                expected: delete.expected,
            })
            .collect(),
    })
}
