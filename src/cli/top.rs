//! `mete top`: roles, nodes and what waits, live; the master's own sums, never its whole state.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::time::Duration;

use mete_proto::admin::v1::object::Object as Content;
use mete_proto::admin::v1::{
    ClaimRow, Filter, GetStatusRequest, GetStatusResponse, Kind, ListRequest, Node, Role,
};
use serde_json::{Value, json};

use super::support::client::{Client, admin};
use super::support::error::Outcome;
use super::support::print::{Format, out, print_one};
use super::{quota, status};
use crate::args::objects::Top;

mod draw;
mod screen;

/// Nodes that are drawn one by one at the most; of more there are only sums, so that looking costs
/// the master no more in a large cluster than in a small one.
const MOST_NODES: u32 = 1_000;

/// Claims that are grouped by reason at the most: one page.
const MOST_CLAIMS: u32 = 1_000;

/// Between two looks when nothing is said.
const USUAL_PAUSE: Duration = Duration::from_secs(2);

/// What one look has found.
#[derive(Clone, Debug, Default)]
struct Frame {
    status: GetStatusResponse,
    roles: Vec<Role>,
    nodes: Vec<Node>,
    /// Nodes that are in the sums only.
    nodes_not_listed: u32,
    waiting: Vec<Waiting>,
    /// There were more claims than are read at a time.
    claims_not_read: bool,
}

/// Claims that wait for the same reason.
#[derive(Clone, Debug, Default)]
struct Waiting {
    reason: String,
    claims: u32,
    tasks: u64,
    /// One of them, as `mete why claim` takes it.
    example: String,
    detail: String,
}

/// Shows it: on a terminal until a key ends it, else one plain frame.
///
/// # Errors
/// The refusal; on a terminal what passes is shown and asked again.
pub async fn run(client: &Client, flags: &Top) -> Outcome {
    let pause = client.globals.watch.filter(|pause| pause.0 > 0);
    let pause = pause.map_or(USUAL_PAUSE, Duration::from);
    let machine = client.style.format.is_machine();
    let terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    if terminal && !machine && !flags.once {
        return screen::run(client, pause).await;
    }
    loop {
        let frame = look(client).await?;
        print(client, &frame)?;
        if client.globals.watch.is_none() || super::support::print::reader_is_gone() {
            return Ok(());
        }
        tokio::time::sleep(pause).await;
    }
}

/// Asks the leader: four calls at the most, each of one page.
async fn look(client: &Client) -> Outcome<Frame> {
    let call =
        |channel| async move { admin(channel).get_status(GetStatusRequest::default()).await };
    let status = client.cluster.read(call).await?;
    let (_, roles) = client.cluster.list(Kind::Role, Filter::default()).await?;
    let roles = roles.into_iter().filter_map(|object| {
        let Content::Role(role) = object.object? else {
            return None;
        };
        Some(role)
    });
    let mut frame = Frame {
        roles: roles.collect(),
        ..Frame::default()
    };
    let nodes: u32 = status.nodes.values().sum();
    if nodes <= MOST_NODES {
        let (_, nodes) = client.cluster.list(Kind::Node, Filter::default()).await?;
        let nodes = nodes.into_iter().filter_map(|object| {
            let Content::Node(node) = object.object? else {
                return None;
            };
            Some(node)
        });
        frame.nodes.extend(nodes);
        frame.nodes.sort_by(|one, other| one.name.cmp(&other.name));
    } else {
        frame.nodes_not_listed = nodes;
    }
    if status.claims_waiting > 0 {
        waiting(client, &mut frame).await?;
    }
    frame.status = status;
    Ok(frame)
}

async fn waiting(client: &Client, frame: &mut Frame) -> Outcome {
    let request = ListRequest {
        kind: Kind::Claim.into(),
        page_size: MOST_CLAIMS,
        ..ListRequest::default()
    };
    let page = client
        .cluster
        .read(|channel| {
            let request = request.clone();
            async move { admin(channel).list(request).await }
        })
        .await?;
    frame.claims_not_read = !page.next_page_token.is_empty();
    let claims = page.objects.into_iter().filter_map(|object| {
        let Content::Claim(claim) = object.object? else {
            return None;
        };
        Some(claim)
    });
    frame.waiting = by_reason(claims);
    Ok(())
}

/// Groups claims by their dominant reason, the one with most tasks first.
fn by_reason(claims: impl Iterator<Item = ClaimRow>) -> Vec<Waiting> {
    let mut groups: BTreeMap<String, Waiting> = BTreeMap::new();
    for row in claims.filter(|row| !row.reason.is_empty()) {
        let Some(status) = row.status else { continue };
        let Some(claim) = status.claim else { continue };
        let left = u64::from(claim.count.saturating_sub(status.launched));
        let group = groups.entry(row.reason.clone()).or_insert_with(|| Waiting {
            reason: row.reason,
            example: format!("{}/{}", row.framework, claim.id),
            detail: row.reason_detail,
            ..Waiting::default()
        });
        group.claims = group.claims.saturating_add(1);
        group.tasks = group.tasks.saturating_add(left);
    }
    let mut groups: Vec<Waiting> = groups.into_values().collect();
    groups.sort_by_key(|group| (std::cmp::Reverse(group.tasks), group.reason.clone()));
    groups
}

fn print(client: &Client, frame: &Frame) -> Outcome {
    if client.style.format.is_machine() || !client.style.fields.is_empty() {
        let revision = Some(frame.status.revision);
        return print_one(&client.style, "Top", revision, facts(frame), "");
    }
    let text = draw::plain(frame, client.style.format == Format::Wide);
    out(&text)
}

fn facts(frame: &Frame) -> Value {
    let mut item = status::facts(&frame.status);
    let roles = frame.roles.iter();
    item["roles"] = roles
        .map(|role| Value::Object(quota::row(role, &frame.roles).facts))
        .collect();
    item["node_list"] = frame
        .nodes
        .iter()
        .map(|node| {
            json!({
                "name": node.name,
                "state": node.state,
                "granted_percent": draw::granted_percent(node),
            })
        })
        .collect();
    item["nodes_not_listed"] = json!(frame.nodes_not_listed);
    item["waiting"] = frame
        .waiting
        .iter()
        .map(|group| {
            json!({
                "reason": group.reason,
                "claims": group.claims,
                "tasks": group.tasks,
                "example": group.example,
                "detail": super::support::words::known(&group.detail),
            })
        })
        .collect();
    item["claims_not_read"] = json!(frame.claims_not_read);
    item
}

#[cfg(test)]
mod tests {
    use mete_proto::types::v1 as types;

    use super::*;

    fn claim(id: &str, count: u32, reason: &str) -> ClaimRow {
        ClaimRow {
            framework: "batch".to_owned(),
            reason: reason.to_owned(),
            status: Some(types::ClaimStatus {
                claim: Some(types::Claim {
                    id: id.to_owned(),
                    count,
                    ..types::Claim::default()
                }),
                launched: 1,
                submitted_ms: 0,
            }),
            ..ClaimRow::default()
        }
    }

    #[test]
    fn claims_are_grouped_by_reason_and_what_waits_for_nothing_is_left_out() {
        let claims = vec![
            claim("a", 3, "NO_CAPACITY"),
            claim("b", 11, "ORDER"),
            claim("c", 2, "NO_CAPACITY"),
            claim("d", 2, ""),
        ];
        let groups = by_reason(claims.into_iter());
        let read: Vec<(&str, u32, u64, &str)> = groups
            .iter()
            .map(|group| {
                let (reason, example) = (group.reason.as_str(), group.example.as_str());
                (reason, group.claims, group.tasks, example)
            })
            .collect();
        assert_eq!(
            read,
            [
                ("ORDER", 1, 10, "batch/b"),
                ("NO_CAPACITY", 2, 3, "batch/a")
            ]
        );
    }
}
