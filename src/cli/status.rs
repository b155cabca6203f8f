//! `mete status`: the cluster on one screen.

use std::collections::BTreeMap;
use std::time::Duration;

use mete_model::Code;
use mete_proto::admin::v1::object::Object as Content;
use mete_proto::admin::v1::{Filter, GetStatusRequest, GetStatusResponse, Kind};
use mete_proto::types::v1 as types;
use serde_json::{Value, json};

use super::support::client::{Client, Cluster, admin};
use super::support::error::Outcome;
use super::support::print::print_checked;
use super::support::words;

/// How long a leader is waited for before what any master has is shown.
const LEADER_WITHIN: Duration = Duration::from_secs(5);

/// Nodes named below the figures at the most.
const MOST_NAMED: usize = 5;

/// Shows it.
///
/// # Errors
/// The refusal.
pub async fn run(client: &Client) -> Outcome {
    let status = match ask(&client.cluster.within(LEADER_WITHIN), false).await {
        // Without a leader any master shows what it has, and warns that nobody leads.
        Err(error) if error.is(Code::NoLeader) => ask(&client.cluster, true).await?,
        status => status?,
    };
    let mut away = Vec::new();
    let nodes = &status.nodes;
    if !status.leader_address.is_empty()
        && nodes
            .iter()
            .any(|(state, count)| state != "ready" && *count > 0)
    {
        let states = vec!["unreachable".to_owned(), "recovering".to_owned()];
        let filter = Filter {
            states,
            ..Filter::default()
        };
        let (_, objects) = client.cluster.list(Kind::Node, filter).await?;
        away.extend(objects.into_iter().filter_map(|object| {
            let Content::Node(node) = object.object? else {
                return None;
            };
            Some((node.name, node.state, node.state_since_ms))
        }));
    }
    let text = text(&status, &away);
    print_checked(
        &client.style,
        "Status",
        Some(status.revision),
        facts(&status),
        &text,
        &amiss(&status),
    )
}

async fn ask(cluster: &Cluster, local: bool) -> Outcome<GetStatusResponse> {
    let call = |channel| async move {
        let request = GetStatusRequest { local };
        admin(channel).get_status(request).await
    };
    cluster.read(call).await
}

/// Wanted is a leader, every node ready (those given up apart), and nothing to warn of.
fn amiss(status: &GetStatusResponse) -> String {
    if let Some(warning) = status.warnings.first() {
        return warning.clone();
    }
    let states = status.nodes.iter();
    let away: Vec<String> = states
        .filter(|(state, count)| !matches!(state.as_str(), "ready" | "gone") && **count > 0)
        .map(|(state, count)| format!("{count} {state}"))
        .collect();
    if away.is_empty() {
        String::new()
    } else {
        format!("has nodes that are not ready: {}", away.join(", "))
    }
}

fn text(status: &GetStatusResponse, away: &[(String, String, u64)]) -> String {
    let mut lines = cluster(status);
    lines.extend(resources(status));
    lines.extend(activity(status));
    for (index, (name, state, since)) in away.iter().take(MOST_NAMED).enumerate() {
        let head = if index == 0 { "look at" } else { " " };
        let text = format!(
            "node {name} is {state} for {}   mete why node {name}",
            words::ago(*since)
        );
        lines.push((head.to_owned(), text));
    }
    let warnings = status.warnings.iter();
    lines.extend(warnings.map(|warning| ("warning".to_owned(), warning.clone())));
    let lines: Vec<(&str, String)> = lines
        .iter()
        .map(|(head, text)| (head.as_str(), text.clone()))
        .collect();
    words::sheet(&lines)
}

/// One line of the sheet: what it is about, and what is so.
type Line = (String, String);

fn cluster(status: &GetStatusResponse) -> Vec<Line> {
    let cluster = format!(
        "{}   mete {}   revision {}",
        status.cluster_id, status.version, status.revision
    );
    let masters = if status.leader_address.is_empty() {
        format!("{}   no leader (term {})", status.masters, status.term)
    } else {
        format!(
            "{}   leader {} (term {}, {})",
            status.masters,
            status.leader_address,
            status.term,
            words::ago(status.leader_since_ms)
        )
    };
    let nodes = status.nodes.iter();
    let nodes = counts(nodes.map(|(state, count)| (state, u64::from(*count))));
    vec![
        ("cluster".to_owned(), cluster),
        ("masters".to_owned(), masters),
        ("nodes".to_owned(), nodes),
    ]
}

/// How much there is of each kind, and who has it.
fn resources(status: &GetStatusResponse) -> Vec<Line> {
    let total = status.total.clone().unwrap_or_default();
    let granted = status.granted.clone().unwrap_or_default();
    let offered = status.offered.clone().unwrap_or_default();
    let line = |used: u64, all: u64, shown: String, offered: String| {
        format!(
            "{}  {shown} granted   {offered} offered",
            words::bar(used, all)
        )
    };
    let cpu = line(
        granted.cpu_milli,
        total.cpu_milli,
        words::cpu_of(granted.cpu_milli, total.cpu_milli),
        mete_model::MilliCpu(offered.cpu_milli).to_string(),
    );
    let memory = line(
        granted.memory_bytes,
        total.memory_bytes,
        words::memory_of(granted.memory_bytes, total.memory_bytes),
        mete_model::Bytes(offered.memory_bytes).to_string(),
    );
    let mut lines = vec![("cpu".to_owned(), cpu), ("memory".to_owned(), memory)];
    lines.extend(devices(&total, &granted, &offered));
    lines
}

fn activity(status: &GetStatusResponse) -> Vec<Line> {
    let tasks = counts(status.tasks.iter().map(|(phase, count)| (phase, *count)));
    let waiting = match status.claims_waiting {
        0 => "nothing".to_owned(),
        1 => "1 claim   mete framework list".to_owned(),
        count => format!("{count} claims   mete framework list"),
    };
    let frameworks = format!(
        "{}/{} connected   {} open offers",
        status.frameworks_connected, status.frameworks, status.offers_open
    );
    vec![
        ("tasks".to_owned(), tasks),
        ("waiting".to_owned(), waiting),
        ("frameworks".to_owned(), frameworks),
    ]
}

fn counts<'a>(counts: impl Iterator<Item = (&'a String, u64)>) -> String {
    let words: Vec<String> = counts
        .filter(|(_, count)| *count > 0)
        .map(|(word, count)| format!("{count} {word}"))
        .collect();
    if words.is_empty() {
        "none".to_owned()
    } else {
        words.join("   ")
    }
}

fn devices(
    total: &types::Resources,
    granted: &types::Resources,
    offered: &types::Resources,
) -> BTreeMap<String, String> {
    let (granted, offered) = (words::by_class(granted), words::by_class(offered));
    let line = |class: &str, all: u64| {
        let used = granted.get(class).copied().unwrap_or(0);
        let offered = offered.get(class).copied().unwrap_or(0);
        let shown = words::cpu_of(used, all);
        let offered = mete_model::MilliCpu(offered);
        format!(
            "{}  {shown} granted   {offered} offered",
            words::bar(used, all)
        )
    };
    let classes = words::by_class(total).into_iter();
    classes
        .map(|(class, all)| (class.clone(), line(&class, all)))
        .collect()
}

/// The figures as facts.
pub fn facts(status: &GetStatusResponse) -> Value {
    json!({
        "name": status.cluster_id,
        "cluster_id": status.cluster_id,
        "version": status.version,
        "masters": status.masters,
        "leader_address": words::known(&status.leader_address),
        "term": status.term,
        "leader_since": words::time(status.leader_since_ms),
        "nodes": status.nodes,
        "total": words::resources(&status.total),
        "granted": words::resources(&status.granted),
        "offered": words::resources(&status.offered),
        "tasks": status.tasks,
        "claims_waiting": status.claims_waiting,
        "frameworks_connected": status.frameworks_connected,
        "frameworks": status.frameworks,
        "offers_open": status.offers_open,
        "counters": status.counters,
        "warnings": status.warnings,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_screen_has_one_line_for_each_kind_and_names_nodes_that_are_away() {
        let status = GetStatusResponse {
            revision: 88_213,
            version: "0.1.0".to_owned(),
            cluster_id: "c1".to_owned(),
            masters: 1,
            leader_address: "127.0.0.1:7443".to_owned(),
            term: 2,
            nodes: [("ready".to_owned(), 2), ("unreachable".to_owned(), 1)].into(),
            total: Some(types::Resources {
                cpu_milli: 4000,
                ..types::Resources::default()
            }),
            granted: Some(types::Resources {
                cpu_milli: 1000,
                ..types::Resources::default()
            }),
            ..GetStatusResponse::default()
        };
        let text = text(&status, &[("n31".to_owned(), "unreachable".to_owned(), 0)]);
        assert!(
            text.contains("nodes       2 ready   1 unreachable\n"),
            "{text}"
        );
        assert!(
            text.contains("#####---------------  1/4 granted   0 offered"),
            "{text}"
        );
        assert!(text.contains("mete why node n31"), "{text}");
        assert_eq!(facts(&status)["leader_since"], Value::Null);
    }
}
