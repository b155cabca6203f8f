//! Flags as settings: one function for each long-running command.

use std::collections::BTreeMap;

use mete_agent::check::{self, Check};
use mete_agent::discover::Roots;
use mete_agent::discover::cpu::parse_list;
use mete_agent::discover::part::Part;
use mete_model::{ClassPath, Code, Device, DeviceId, Partition};
use mete_sdk::Claim;
use serde_json::json;

use super::{agent, batch, demo, dev, master, service};
use crate::args::daemon as flags;
use crate::cli::support::error::{CliError, Outcome, exit};
use crate::cli::support::print::{Listing, Row, Style};

/// `mete dev`.
///
/// # Errors
/// Why a part could not start.
pub async fn dev(flags: flags::Dev) -> Outcome {
    let settings = dev::Settings {
        nodes: flags.nodes,
        fake: flags.fake,
        state_directory: flags.state_dir,
        listen: flags.listen,
        insecure: flags.insecure,
        roles: flags.roles,
        ..dev::Settings::default()
    };
    dev::run(settings, flags.headless, flags.ready_json).await
}

/// `mete demo`.
///
/// # Errors
/// A part that failed, or a promise that was not kept.
pub async fn demo(flags: flags::Demo) -> Outcome {
    let story = demo::Story {
        nodes: flags.nodes.unwrap_or(2),
        seconds: flags.seconds.unwrap_or(0),
        state_directory: flags.state_dir,
    };
    // A whole cluster in one future: too much for the caller's.
    Box::pin(demo::run(story)).await
}

fn beginning(flags: flags::MasterInit) -> Outcome<master::Beginning> {
    let needs = |what: &str, why: &str| {
        CliError::new(Code::Usage, format!("{what} must be given {why}"))
            .next("mete master init --help", "the ways to begin")
    };
    if let Some(at) = flags.join {
        let missing = || needs("--advertise", "so that the others find this master");
        return Ok(master::Beginning::Joins {
            at,
            advertise: flags.advertise.ok_or_else(missing)?,
            learner: flags.learner,
            replaces: flags.replaces,
        });
    }
    if !flags.founders.is_empty() {
        let missing = || needs("--node", "beside --masters");
        return Ok(master::Beginning::Founder {
            masters: flags.founders,
            node: flags.node.ok_or_else(missing)?,
            cluster: flags.cluster,
        });
    }
    match (flags.node, flags.cluster) {
        (None, None) => Ok(master::Beginning::Alone),
        (Some(node), Some(cluster)) => Ok(master::Beginning::TakenIn { node, cluster }),
        (Some(_), None) => Err(needs("--cluster", "beside --node, or --masters")),
        (None, Some(_)) => Err(needs("--node", "beside --cluster")),
    }
}

fn master_settings(flags: flags::MasterFlags) -> master::Settings {
    master::Settings {
        state_directory: flags.state_dir,
        listen: flags.listen,
        advertise: flags.advertise.unwrap_or_default(),
        admissions_per_second: flags.admissions_per_second,
        insecure: flags.insecure,
    }
}

/// `mete master …`.
///
/// # Errors
/// Why it cannot start.
pub async fn master(flags: flags::Master, style: &Style) -> Outcome {
    match flags {
        flags::Master::Init(flags) => {
            let directory = flags.state_dir.clone();
            master::init(&directory, beginning(flags)?, style).await
        }
        flags::Master::Start(flags) => master::start(master_settings(flags)).await,
    }
}

/// `mete agent start`.
///
/// # Errors
/// Why it cannot start.
pub async fn agent_start(flags: flags::AgentStart, masters: Vec<String>) -> Outcome {
    let part = part(&flags.agent)?;
    agent::start(agent::Settings {
        masters,
        state_directory: flags.agent.state_dir,
        name: flags.agent.name,
        listen: flags.listen,
        part,
        labels: BTreeMap::from_iter(flags.agent.labels),
        devices: devices(&flags.agent.devices)?,
        cgroup_root: flags.agent.cgroup_root,
        run_directory: flags.agent.run_dir,
        insecure: flags.agent.insecure,
    })
    .await
}

fn part(flags: &flags::AgentFlags) -> Outcome<Part> {
    if let Some(share) = &flags.share {
        let (cpu_milli, memory_bytes) = (share.cpu.0, share.memory.0);
        return Ok(Part::Share {
            cpu_milli,
            memory_bytes,
        });
    }
    let (Some(cpus), Some(memory)) = (&flags.cpus, flags.memory) else {
        return Ok(Part::Whole);
    };
    let cpus = parse_list(cpus).map_err(|error| {
        CliError::new(
            Code::Usage,
            format!("--cpus '{cpus}' is no set of CPUs: {error}"),
        )
    })?;
    Ok(Part::Set {
        cpus,
        memory_bytes: memory.0,
    })
}

fn devices(list: &[(String, String)]) -> Outcome<Vec<Device>> {
    let bad = |error: mete_model::text::BadText| CliError::new(Code::Usage, error.to_string());
    for (at, (_, id)) in list.iter().enumerate() {
        if list.iter().skip(at + 1).any(|(_, other)| other == id) {
            let sentence = format!("--device names '{id}' twice; each device has its own id");
            return Err(CliError::new(Code::Usage, sentence));
        }
    }
    list.iter()
        .map(|(class, id)| {
            Ok(Device {
                id: DeviceId::new(id).map_err(bad)?,
                class: ClassPath::new(class).map_err(bad)?,
                attributes: BTreeMap::new(),
                healthy: true,
            })
        })
        .collect()
}

/// `mete agent check`: exit 0 when an agent would start here.
///
/// # Errors
/// stdout cannot be written.
pub fn agent_check(flags: &flags::AgentFlags, style: &Style) -> Outcome<u8> {
    let roots = Roots::default();
    let rows = check::run(&Check {
        roots: &roots,
        state_directory: &flags.state_dir,
        cgroup_root: flags.cgroup_root.as_deref(),
    });
    let failed = rows.iter().any(|row| row.outcome == check::Outcome::Fail);
    let word = |outcome| match outcome {
        check::Outcome::Ok => "ok",
        check::Outcome::Warn => "warn",
        check::Outcome::Fail => "fail",
    };
    let listing = Listing {
        kind: "AgentCheck",
        revision: None,
        columns: vec!["CHECK", "RESULT", "FOUND", "FIX"],
        narrow: 4,
        rows: rows
            .iter()
            .map(|row| {
                let (name, result) = (row.name.clone(), word(row.outcome).to_owned());
                let facts = json!({
                    "name": name, "result": result.to_uppercase(), "fact": row.fact, "fix": row.fix,
                });
                let cells = vec![name.clone(), result, row.fact.clone(), row.fix.clone()];
                Row::new(name, cells, facts)
            })
            .collect(),
        footer: String::new(),
        warnings: Vec::new(),
    };
    listing.print(style)?;
    Ok(if failed { exit::FAILED } else { 0 })
}

/// `mete batch start`.
///
/// # Errors
/// Why its session is over.
pub async fn batch_start(flags: flags::BatchStart, masters: Vec<String>) -> Outcome {
    batch::start(batch::Settings {
        masters,
        name: flags.name,
        roles: flags.roles,
        listen: flags.listen,
        insecure: flags.insecure,
    })
    .await
}

/// `mete service start`.
///
/// # Errors
/// Why its session is over.
pub async fn service_start(flags: flags::ServiceStart, masters: Vec<String>) -> Outcome {
    service::start(service::Settings {
        masters,
        name: flags.name,
        role: flags.role,
        count: flags.count,
        claim: Claim::cpu_milli(flags.cpus.0).memory(flags.memory),
        command: flags.command,
        partition: Partition {
            replace_after: flags.replace_after,
            keep: flags.keep,
            stop_if_silent: flags.stop_if_silent,
        },
    })
    .await
}
