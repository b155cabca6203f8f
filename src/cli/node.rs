//! `mete node`: list, show, rm.

use mete_model::Code;
use mete_proto::admin::v1::object::Object as Content;
use mete_proto::admin::v1::{Filter, Kind, Node, Object, RemoveNodeRequest};
use mete_proto::types::v1 as types;
use serde_json::{Map, Value, json};

use super::support::client::{Client, admin};
use super::support::confirm::confirm;
use super::support::error::{CliError, Outcome};
use super::support::print::{Listing, Row, print_checked, print_one};
use super::support::{watch, words};
use super::task;
use crate::args::objects::{Node as Command, NodeList};

/// Does what was asked.
///
/// # Errors
/// The refusal.
pub async fn run(client: &Client, command: Command) -> Outcome {
    match command {
        Command::List(flags) => list(client, flags).await,
        Command::Show { node } => show(client, &node).await,
        Command::Rm { node } => remove(client, &node).await,
    }
}

async fn list(client: &Client, flags: NodeList) -> Outcome {
    let filter = Filter {
        states: flags.states,
        labels: flags.labels.into_iter().collect(),
        ..Filter::default()
    };
    watch::show(client, Kind::Node, filter, listing).await
}

/// Nodes as a listing.
pub fn listing(revision: u64, objects: Vec<Object>) -> Listing {
    let nodes: Vec<Node> = objects.into_iter().filter_map(of).collect();
    Listing {
        kind: "NodeList",
        revision: Some(revision),
        columns: vec![
            "NAME", "STATE", "CPU", "PINNED", "MEMORY", "DEVICES", "TASKS", "AGE", "OFFERED",
            "LABELS", "VERSION", "ADDRESS",
        ],
        narrow: 8,
        footer: footer(&nodes),
        rows: nodes.iter().map(row).collect(),
        warnings: Vec::new(),
    }
}

fn of(object: Object) -> Option<Node> {
    let Content::Node(node) = object.object? else {
        return None;
    };
    Some(node)
}

fn footer(nodes: &[Node]) -> String {
    let mut states: std::collections::BTreeMap<&str, usize> = std::collections::BTreeMap::new();
    for node in nodes {
        *states.entry(&node.state).or_default() += 1;
    }
    let noun = if nodes.len() == 1 { "node" } else { "nodes" };
    let counts: Vec<String> = states
        .iter()
        .map(|(state, count)| format!("   {count} {state}"))
        .collect();
    format!("{} {noun}{}", nodes.len(), counts.concat())
}

/// One node as a row.
pub fn row(node: &Node) -> Row {
    let total = node.total.clone().unwrap_or_default();
    let granted = node.granted.clone().unwrap_or_default();
    let pinned = words::core_count(&granted.cores);
    let state = match node.state.as_str() {
        "ready" => node.state.clone(),
        state => format!("{state} {}", words::ago(node.state_since_ms)),
    };
    Row::new(
        node.name.clone(),
        vec![
            node.name.clone(),
            state.trim_end().to_owned(),
            words::cpu_of(granted.cpu_milli, total.cpu_milli),
            if pinned == 0 {
                String::new()
            } else {
                pinned.to_string()
            },
            words::memory_of(granted.memory_bytes, total.memory_bytes),
            words::devices_of(&node.granted, &node.total),
            node.tasks.to_string(),
            words::ago(node.admitted_ms),
            words::amounts(&node.offered),
            words::labels(&node.labels),
            node.version.clone(),
            node.node_address.clone(),
        ],
        facts(node),
    )
    .amiss(match node.state.as_str() {
        // A node that an operator has given up is as it shall be.
        "ready" | "gone" => String::new(),
        state => format!("is {state} for {}", words::ago(node.state_since_ms)),
    })
}

fn facts(node: &Node) -> Value {
    let enforcement: Map<String, Value> = node
        .enforcement
        .iter()
        .map(|(kind, level)| {
            let level = types::Enforcement::try_from(*level).unwrap_or_default();
            (
                kind.clone(),
                json!(words::bare(level.as_str_name(), "ENFORCEMENT_")),
            )
        })
        .collect();
    let devices: Vec<Value> = node
        .devices
        .iter()
        .map(|device| {
            json!({
                "id": device.id,
                "class": device.class,
                "healthy": device.healthy,
                "attributes": device.attributes,
            })
        })
        .collect();
    json!({
        "name": node.name,
        "agent_id": node.agent_id,
        "state": node.state,
        "state_since": words::time(node.state_since_ms),
        "total": words::resources(&node.total),
        "granted": words::resources(&node.granted),
        "offered": words::resources(&node.offered),
        "tasks": node.tasks,
        "labels": node.labels,
        "topology_epoch": node.topology_epoch,
        "boot_id": words::known(&node.boot_id),
        "version": words::known(&node.version),
        "node_address": words::known(&node.node_address),
        "fake": node.fake,
        "admitted": words::time(node.admitted_ms),
        "enforcement": enforcement,
        "devices": devices,
    })
}

async fn show(client: &Client, name: &str) -> Outcome {
    let (revision, object) = client.cluster.get(Kind::Node, name).await?;
    let missing = || CliError::new(Code::NotFound, format!("no node '{name}'"));
    let node = of(object).ok_or_else(missing)?;
    let filter = Filter {
        node: node.name.clone(),
        ..Filter::default()
    };
    let (_, tasks) = client.cluster.list(Kind::Task, filter).await?;
    let tasks = task::listing(revision, tasks);
    let mut item = facts(&node);
    item["runs"] = tasks
        .rows
        .iter()
        .map(|row| Value::Object(row.facts.clone()))
        .collect();
    let mut text = sheet(&node);
    if !tasks.rows.is_empty() {
        text = format!("{text}\n{}", tasks.text(&client.style.as_table())?);
    }
    let amiss = match node.state.as_str() {
        "ready" => String::new(),
        state => format!("is {state} for {}", words::ago(node.state_since_ms)),
    };
    print_checked(&client.style, "Node", Some(revision), item, &text, &amiss)
}

fn sheet(node: &Node) -> String {
    let total = node.total.clone().unwrap_or_default();
    let granted = node.granted.clone().unwrap_or_default();
    let enforcement: Vec<String> = node
        .enforcement
        .iter()
        .map(|(kind, level)| {
            let level = types::Enforcement::try_from(*level).unwrap_or_default();
            let level = words::bare(level.as_str_name(), "ENFORCEMENT_").to_lowercase();
            format!("{kind} {}", level.replace('_', " "))
        })
        .collect();
    let kind = if node.fake {
        "simulated, no process is ever started"
    } else {
        ""
    };
    words::sheet(&[
        ("node", node.name.clone()),
        (
            "state",
            format!("{} for {}", node.state, words::ago(node.state_since_ms)),
        ),
        ("kind", kind.to_owned()),
        (
            "cpu",
            format!(
                "{} granted",
                words::cpu_of(granted.cpu_milli, total.cpu_milli)
            ),
        ),
        ("pinned", granted.cores.clone()),
        (
            "memory",
            format!(
                "{} granted",
                words::memory_of(granted.memory_bytes, total.memory_bytes)
            ),
        ),
        (
            "disk",
            format!(
                "{} granted",
                words::memory_of(granted.disk_bytes, total.disk_bytes)
            ),
        ),
        ("devices", words::devices_of(&node.granted, &node.total)),
        ("offered", words::amounts(&node.offered)),
        ("enforced", enforcement.join(", ")),
        ("labels", words::labels(&node.labels)),
        (
            "agent",
            format!(
                "{} {} at {}",
                node.agent_id, node.version, node.node_address
            ),
        ),
        ("admitted", format!("{} ago", words::ago(node.admitted_ms))),
        ("epoch", node.topology_epoch.to_string()),
    ])
}

async fn remove(client: &Client, name: &str) -> Outcome {
    let (_, object) = client.cluster.get(Kind::Node, name).await?;
    let missing = || CliError::new(Code::NotFound, format!("no node '{name}'"));
    let node = of(object).ok_or_else(missing)?;
    let what = format!(
        "node {} ({}) is said never to come back: {} tasks on it end as lost",
        node.name, node.state, node.tasks
    );
    confirm(client, &[what])?;
    let request = RemoveNodeRequest {
        node: node.name.clone(),
        dry_run: client.globals.dry_run,
    };
    let answer = client
        .cluster
        .call(|channel| {
            let request = request.clone();
            async move { admin(channel).remove_node(request).await }
        })
        .await?;
    let word = if client.globals.dry_run {
        "would be"
    } else {
        "is"
    };
    let text = format!(
        "node {} {word} gone, {} runs lost",
        node.name, answer.runs_lost
    );
    let item = json!({
        "name": node.name,
        "runs_lost": answer.runs_lost,
        "dry_run": client.globals.dry_run,
    });
    print_one(
        &client.style,
        "NodeRemoved",
        Some(answer.revision),
        item,
        &text,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::support::print::Style;

    fn node(name: &str, state: &str) -> Object {
        let resources = |cpu_milli, memory_bytes, cores: &str| {
            Some(types::Resources {
                cpu_milli,
                memory_bytes,
                cores: cores.to_owned(),
                ..types::Resources::default()
            })
        };
        let node = Node {
            name: name.to_owned(),
            state: state.to_owned(),
            total: resources(64_000, 248 << 30, "0-63"),
            granted: resources(38_500, 96 << 30, "2-15"),
            tasks: 11,
            ..Node::default()
        };
        Object {
            revision: 3,
            object: Some(Content::Node(node)),
        }
    }

    #[test]
    fn the_table_shows_what_is_granted_of_what_there_is() {
        let listing = listing(9, vec![node("n07", "ready"), node("n31", "unreachable")]);
        let text = listing.text(&Style::default()).expect("a table");
        assert_eq!(
            text,
            "NAME  STATE        CPU      PINNED  MEMORY      DEVICES  TASKS  AGE\n\
             n07   ready        38.5/64  14      96/248 GiB  -        11     -\n\
             n31   unreachable  38.5/64  14      96/248 GiB  -        11     -\n\
             2 nodes   1 ready   1 unreachable\n"
        );
    }

    #[test]
    fn facts_have_whole_numbers_and_null_for_what_is_not_known() {
        let row = row(&of(node("n07", "ready")).expect("a node"));
        assert_eq!(row.facts["total"]["memory_bytes"], 248_u64 << 30);
        assert_eq!(row.facts["admitted"], Value::Null);
        assert_eq!(row.facts["node_address"], Value::Null);
    }
}
