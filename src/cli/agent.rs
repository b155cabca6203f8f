//! `mete agent show`: what an agent says it holds, asked of itself.

use mete_model::Code;
use mete_proto::admin::v1::Kind;
use mete_proto::admin::v1::object::Object as Content;
use mete_proto::node::v1::{LedgerRequest, LedgerResponse, LedgerRun};
use mete_proto::types::v1::TaskPhase;
use serde_json::{Value, json};

use super::support::client::{Client, node};
use super::support::error::{CliError, Outcome};
use super::support::print::{Listing, Row, Style, print_checked};
use super::support::words;
use crate::args::Globals;
use crate::args::daemon::AgentShow;

/// Asks the agent.
///
/// # Errors
/// `UNREACHABLE`, or the agent's refusal.
pub async fn show(globals: &Globals, flags: AgentShow) -> Outcome {
    let address = match &flags.node {
        Some(name) => address_of(&Client::new(globals)?, name).await?,
        None => flags.address,
    };
    let style = Style::of(globals);
    let ledger = node(&address)
        .await?
        .ledger(LedgerRequest {})
        .await?
        .into_inner();
    let text = text(&ledger, &style)?;
    let odd = ledger.runs.iter().find(|run| !run.quarantined.is_empty());
    let amiss = odd.map_or_else(String::new, |run| {
        format!("has a run in quarantine: {}", run.quarantined)
    });
    print_checked(&style, "Ledger", None, facts(&ledger), &text, &amiss)
}

async fn address_of(client: &Client, name: &str) -> Outcome<String> {
    let (_, object) = client.cluster.get(Kind::Node, name).await?;
    match object.object {
        Some(Content::Node(node)) => Ok(node.node_address),
        _ => Err(CliError::new(Code::NotFound, format!("no node '{name}'"))),
    }
}

fn text(ledger: &LedgerResponse, style: &Style) -> Outcome<String> {
    let inventory = ledger.inventory.clone().unwrap_or_default();
    let total = inventory.total.clone().unwrap_or_default();
    let free = ledger.free.clone().unwrap_or_default();
    let used = total.cpu_milli.saturating_sub(free.cpu_milli);
    let memory = total.memory_bytes.saturating_sub(free.memory_bytes);
    let sheet = words::sheet(&[
        ("node", ledger.node.clone()),
        (
            "agent",
            format!("{} {}", ledger.agent_id, inventory.version),
        ),
        (
            "cpu",
            format!("{} held", words::cpu_of(used, total.cpu_milli)),
        ),
        (
            "memory",
            format!("{} held", words::memory_of(memory, total.memory_bytes)),
        ),
        ("free", words::amounts(&ledger.free)),
        ("labels", words::labels(&inventory.labels)),
        ("epoch", inventory.topology_epoch.to_string()),
    ]);
    let runs = Listing {
        kind: "LedgerRunList",
        revision: None,
        columns: vec![
            "RUN",
            "PHASE",
            "PID",
            "HOLDS",
            "UNCONFIRMED",
            "QUARANTINED",
            "FRAMEWORK",
        ],
        narrow: 6,
        rows: ledger.runs.iter().map(row).collect(),
        footer: String::new(),
        warnings: Vec::new(),
    };
    Ok(format!("{sheet}\n{}", runs.text(&style.as_table())?))
}

fn row(run: &LedgerRun) -> Row {
    let reference = run.run.clone().unwrap_or_default();
    let named = reference.run.unwrap_or_default();
    let name = format!("{}#{}", named.task, named.attempt);
    let phase = TaskPhase::try_from(run.phase).unwrap_or_default();
    Row::new(
        name.clone(),
        vec![
            name,
            words::phase(phase),
            if run.pid == 0 {
                String::new()
            } else {
                run.pid.to_string()
            },
            words::amounts(&run.resources),
            run.unconfirmed_statuses.to_string(),
            run.quarantined.clone(),
            reference.framework_id.clone(),
        ],
        json!({
            "task": named.task,
            "attempt": named.attempt,
            "framework_id": reference.framework_id,
            "phase": words::bare(phase.as_str_name(), "TASK_PHASE_"),
            "pid": words::known_number(u64::from(run.pid)),
            "resources": words::resources(&run.resources),
            "unconfirmed_statuses": run.unconfirmed_statuses,
            "quarantined": words::known(&run.quarantined),
        }),
    )
}

fn facts(ledger: &LedgerResponse) -> Value {
    let inventory = ledger.inventory.clone().unwrap_or_default();
    let runs: Vec<Value> = ledger
        .runs
        .iter()
        .map(|run| Value::Object(row(run).facts))
        .collect();
    json!({
        "name": ledger.node,
        "agent_id": ledger.agent_id,
        "total": words::resources(&inventory.total),
        "free": words::resources(&ledger.free),
        "labels": inventory.labels,
        "topology_epoch": inventory.topology_epoch,
        "boot_id": words::known(&inventory.boot_id),
        "version": words::known(&inventory.version),
        "runs": runs,
    })
}
