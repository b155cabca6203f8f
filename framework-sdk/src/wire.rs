//! Between wire messages and what frameworks see. The only file that names both.
//!
//! To the wire nothing can fail. From the wire a client is lenient where a broker is strict: an
//! enum value or a code of a newer release must not cost the framework its stream.

use std::collections::BTreeMap;
use std::time::Duration;

use mete_model::device::DeviceId;
use mete_model::{
    AgentId, Bytes, ClaimId, ClassPath, DeviceShare, DeviceWant, Enforcement, Exit, MilliCpu,
    OfferId, Resources, RolePath, RunId, Shape, Span, StatusSource, TaskId, TaskPhase, Timestamp,
    Usage,
};
use mete_proto::framework::v1 as fw;
use mete_proto::types::v1 as pb;

use crate::error::{Error, Reason, Result};
use crate::event::AgentChanged;
use crate::task::{AgentCondition, ClaimInfo, RunInfo, TaskUpdate};

/// A length of time in whole milliseconds.
pub(crate) fn span(duration: Duration) -> Span {
    Span(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
}

fn malformed(what: &str, why: impl std::fmt::Display) -> Error {
    Error::Protocol(format!("{what}: {why}"))
}

pub(crate) fn run_to(run: &RunId) -> pb::Run {
    pb::Run {
        task: run.task.to_string(),
        attempt: run.attempt,
    }
}

pub(crate) fn run_from(run: Option<pb::Run>) -> Result<RunId> {
    let run = run.ok_or_else(|| malformed("run", "is missing"))?;
    let task = TaskId::new(&run.task).map_err(|bad| malformed("run", bad))?;
    Ok(RunId::new(task, run.attempt))
}

pub(crate) fn offer_id_to(id: OfferId) -> pb::OfferId {
    pb::OfferId {
        term: id.term,
        number: id.number,
    }
}

pub(crate) fn offer_id_from(id: Option<pb::OfferId>) -> Result<OfferId> {
    let id = id.ok_or_else(|| malformed("offer id", "is missing"))?;
    Ok(OfferId {
        term: id.term,
        number: id.number,
    })
}

pub(crate) fn resources_to(resources: &Resources) -> pb::Resources {
    pb::Resources {
        cpu_milli: resources.cpu.0,
        memory_bytes: resources.memory.0,
        disk_bytes: resources.disk.0,
        cores: resources.cores.to_string(),
        devices: resources
            .devices
            .iter()
            .map(|share| pb::DeviceShare {
                id: share.id.to_string(),
                class: share.class.to_string(),
                milli: share.milli,
            })
            .collect(),
    }
}

pub(crate) fn resources_from(wire: Option<pb::Resources>) -> Result<Resources> {
    let wire = wire.unwrap_or_default();
    let mut devices = Vec::with_capacity(wire.devices.len());
    for share in wire.devices {
        devices.push(DeviceShare {
            id: DeviceId::new(&share.id).map_err(|bad| malformed("resources", bad))?,
            class: ClassPath::new(&share.class).map_err(|bad| malformed("resources", bad))?,
            milli: share.milli,
        });
    }
    devices.sort();
    Ok(Resources {
        cpu: MilliCpu(wire.cpu_milli),
        memory: Bytes(wire.memory_bytes),
        disk: Bytes(wire.disk_bytes),
        cores: cores_from(&wire.cores)?,
        devices,
    })
}

fn cores_from(text: &str) -> Result<mete_model::CpuSet> {
    if text.is_empty() {
        return Ok(mete_model::CpuSet::new());
    }
    text.parse().map_err(|bad| malformed("resources", bad))
}

fn shape_to(shape: &Shape) -> pb::Shape {
    pb::Shape {
        cpu_milli: shape.cpu.0,
        memory_bytes: shape.memory.0,
        disk_bytes: shape.disk.0,
        cores: shape.cores,
        devices: shape
            .devices
            .iter()
            .map(|want| pb::DeviceWant {
                class: want.class.to_string(),
                count: want.count,
                milli: want.milli,
            })
            .collect(),
    }
}

fn shape_from(wire: pb::Shape) -> Result<Shape> {
    let mut devices = Vec::with_capacity(wire.devices.len());
    for want in wire.devices {
        devices.push(DeviceWant {
            class: ClassPath::new(&want.class).map_err(|bad| malformed("shape", bad))?,
            count: want.count,
            milli: if want.milli == 0 { 1000 } else { want.milli },
        });
    }
    devices.sort();
    Ok(Shape {
        cpu: MilliCpu(wire.cpu_milli),
        memory: Bytes(wire.memory_bytes),
        disk: Bytes(wire.disk_bytes),
        cores: wire.cores,
        devices,
    })
}

pub(crate) fn claim_to(claim: &mete_model::Claim) -> pb::Claim {
    pb::Claim {
        id: claim.id.to_string(),
        role: claim.role.to_string(),
        shape: Some(shape_to(&claim.shape)),
        count: claim.count,
        priority: claim.priority,
        labels: to_map(&claim.labels),
        expected_runtime_ms: claim.expected_runtime.map_or(0, |span| span.0),
    }
}

pub(crate) fn claim_from(status: pb::ClaimStatus) -> Result<ClaimInfo> {
    let wire = status
        .claim
        .ok_or_else(|| malformed("claim", "is missing"))?;
    let expected = Some(Span(wire.expected_runtime_ms)).filter(|span| *span != Span::ZERO);
    Ok(ClaimInfo {
        claim: mete_model::Claim {
            id: ClaimId::new(&wire.id).map_err(|bad| malformed("claim", bad))?,
            role: RolePath::new(&wire.role).map_err(|bad| malformed("claim", bad))?,
            shape: shape_from(wire.shape.unwrap_or_default())?,
            count: wire.count,
            priority: wire.priority,
            labels: wire.labels.into_iter().collect(),
            expected_runtime: expected,
        },
        launched: status.launched,
    })
}

pub(crate) fn spec_to(spec: &mete_model::TaskSpec) -> pb::TaskSpec {
    let ms = |span: Option<Span>| span.map_or(0, |span| span.0);
    pb::TaskSpec {
        command: spec.command.clone(),
        environment: to_map(&spec.environment),
        working_directory: spec.working_directory.clone(),
        user: spec.user.clone(),
        kill_grace_ms: ms(spec.kill_grace),
        launch_timeout_ms: ms(spec.launch_timeout),
        time_limit_ms: ms(spec.time_limit),
        labels: to_map(&spec.labels),
        log_file_bytes: spec.log_file.map_or(0, |bytes| bytes.0),
        log_files: spec.log_files.unwrap_or(0),
        fake: Some(pb::FakeTask {
            run_ms: spec.fake.run.0,
            exit_code: i32::from(spec.fake.exit_code),
        }),
    }
}

pub(crate) fn to_map<M>(map: &BTreeMap<String, String>) -> M
where
    M: FromIterator<(String, String)>,
{
    map.iter()
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// `None` for a phase that this release does not know.
pub(crate) fn phase_from(wire: i32) -> Option<TaskPhase> {
    Some(match pb::TaskPhase::try_from(wire).ok()? {
        pb::TaskPhase::Unspecified => return None,
        pb::TaskPhase::Staging => TaskPhase::Staging,
        pb::TaskPhase::Starting => TaskPhase::Starting,
        pb::TaskPhase::Running => TaskPhase::Running,
        pb::TaskPhase::Finishing => TaskPhase::Finishing,
        pb::TaskPhase::Finished => TaskPhase::Finished,
        pb::TaskPhase::Failed => TaskPhase::Failed,
        pb::TaskPhase::Killed => TaskPhase::Killed,
        pb::TaskPhase::Lost => TaskPhase::Lost,
        pb::TaskPhase::Refused => TaskPhase::Refused,
    })
}

fn source_from(wire: i32) -> StatusSource {
    match pb::StatusSource::try_from(wire) {
        Ok(pb::StatusSource::Agent) => StatusSource::Agent,
        Ok(pb::StatusSource::Framework) => StatusSource::Framework,
        Ok(pb::StatusSource::Operator) => StatusSource::Operator,
        // Who said it decides nothing: what is not known is the broker's word.
        Ok(pb::StatusSource::Master | pb::StatusSource::Unspecified) | Err(_) => {
            StatusSource::Master
        }
    }
}

/// How a process ended; `None` for numbers that no process can end with.
pub(crate) fn exit_from(wire: Option<pb::Exit>) -> Option<Exit> {
    match wire?.how? {
        pb::exit::How::Code(code) => u8::try_from(code).ok().map(Exit::Code),
        pb::exit::How::Signal(signal) => u8::try_from(signal).ok().map(Exit::Signal),
    }
}

pub(crate) fn status_from(wire: pb::Status) -> Result<TaskUpdate> {
    let run = run_from(wire.run.and_then(|reference| reference.run))?;
    let phase = phase_from(wire.phase)
        .ok_or_else(|| malformed("status", format!("{run} is in an unknown phase")))?;
    let usage = wire.usage.map(|usage| Usage {
        cpu_ms: usage.cpu_ms,
        memory_peak: Bytes(usage.memory_peak_bytes),
        wall_ms: usage.wall_ms,
    });
    Ok(TaskUpdate {
        task: run.task,
        attempt: run.attempt,
        sequence: wire.sequence,
        phase,
        reason: wire.reason.parse().ok(),
        message: wire.message,
        source: source_from(wire.source),
        at: Timestamp(wire.at_ms),
        exit: exit_from(wire.exit),
        usage,
        coalesced: wire.coalesced,
        agent: agent_from(&wire.agent_id),
        claim: None,
    })
}

pub(crate) fn agent_from(text: &str) -> Option<AgentId> {
    text.parse().ok()
}

pub(crate) fn condition_from(wire: i32) -> AgentCondition {
    match fw::AgentCondition::try_from(wire) {
        Ok(fw::AgentCondition::Recovering) => AgentCondition::Recovering,
        Ok(fw::AgentCondition::Unreachable) => AgentCondition::Unreachable,
        Ok(fw::AgentCondition::Gone) => AgentCondition::Gone,
        // A condition of a newer release is none that this one could act on.
        Ok(fw::AgentCondition::Ready | fw::AgentCondition::Unspecified) | Err(_) => {
            AgentCondition::Ready
        }
    }
}

/// A run of a snapshot, how far it is acknowledged, and what is not.
pub(crate) struct SnapshotRun {
    pub info: RunInfo,
    pub acknowledged: u64,
    pub unacknowledged: Vec<TaskUpdate>,
}

pub(crate) fn run_status_from(wire: fw::RunStatus) -> Result<SnapshotRun> {
    let run = run_from(wire.run)?;
    let phase = phase_from(wire.phase)
        .ok_or_else(|| malformed("snapshot", format!("{run} is in an unknown phase")))?;
    let mut unacknowledged = Vec::with_capacity(wire.unacknowledged.len());
    for status in wire.unacknowledged {
        unacknowledged.push(status_from(status)?);
    }
    Ok(SnapshotRun {
        info: RunInfo {
            run,
            phase,
            role: RolePath::new(&wire.role).ok(),
            claim: ClaimId::new(&wire.claim).ok(),
            agent: agent_from(&wire.agent_id),
            node: wire.node,
            node_address: wire.node_address,
            resources: resources_from(wire.resources)?,
            labels: wire.labels.into_iter().collect(),
            agent_condition: condition_from(wire.agent_condition),
        },
        acknowledged: wire.acknowledged_sequence,
        unacknowledged,
    })
}

pub(crate) fn agent_changed_from(wire: fw::AgentChanged) -> Result<AgentChanged> {
    Ok(AgentChanged {
        agent: agent_from(&wire.agent_id)
            .ok_or_else(|| malformed("agent change", "has no agent id"))?,
        node: wire.node,
        condition: condition_from(wire.condition),
        since: Timestamp(wire.since_ms),
        topology_epoch: wire.topology_epoch,
    })
}

pub(crate) fn enforcement_from(wire: i32) -> Enforcement {
    match pb::Enforcement::try_from(wire) {
        Ok(pb::Enforcement::Enforced) => Enforcement::Enforced,
        Ok(pb::Enforcement::AffinityOnly) => Enforcement::AffinityOnly,
        // Never promise more than is known.
        Ok(pb::Enforcement::AccountedOnly | pb::Enforcement::Unspecified) | Err(_) => {
            Enforcement::AccountedOnly
        }
    }
}

/// `Ok` for a verdict that says OK, else why not.
pub(crate) fn verdict_from(wire: Option<pb::Verdict>) -> Result<(), Reason> {
    let Some(wire) = wire else {
        return Err(Reason::new(
            mete_model::Code::Internal,
            "the answer lacks a verdict",
        ));
    };
    if wire.code == mete_model::Code::Ok.as_str() {
        return Ok(());
    }
    Err(Reason {
        code: wire.code,
        detail: wire.detail,
        facts: wire.facts.into_iter().collect(),
    })
}
