//! A look as text: for a pipe in full, for a terminal cut to its size. ASCII only.

use mete_model::{Bytes, MilliCpu};
use mete_proto::admin::v1::{GetStatusResponse, Node, Role};

use super::{Frame, Waiting};
use crate::cli::support::words;

/// Cells of a strip in a line when nobody says how wide it may be.
const STRIP: usize = 60;

/// From nothing granted to everything.
const SHADES: [char; 6] = ['.', ':', '-', '=', '+', '#'];

/// The parts of the view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pane {
    /// Who shares the cluster.
    #[default]
    Roles,
    /// One cell for each node, and the nodes below.
    Nodes,
    /// What waits, by reason.
    Waiting,
}

/// What a line of a pane can be asked about: kind and name, as `mete why` takes them.
pub(super) type Subject = (&'static str, String);

/// A line of a pane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) text: String,
    pub(super) subject: Option<Subject>,
}

/// Everything, for a pipe or a test.
pub(super) fn plain(frame: &Frame, wide: bool) -> String {
    let mut text = head(&frame.status).join("\n") + "\n";
    let mut part = |lines: Vec<Line>| {
        text.push('\n');
        for line in lines {
            text.push_str(line.text.trim_end());
            text.push('\n');
        }
    };
    part(roles(&frame.roles));
    part(strip(frame, STRIP));
    if wide {
        part(nodes(&frame.nodes));
    }
    part(waiting(frame));
    text
}

/// The first lines: what there is and what is granted of it.
pub(super) fn head(status: &GetStatusResponse) -> Vec<String> {
    let total = status.total.clone().unwrap_or_default();
    let granted = status.granted.clone().unwrap_or_default();
    let counts = |counts: Vec<(&String, u64)>| {
        let words: Vec<String> = counts
            .into_iter()
            .filter(|(_, count)| *count > 0)
            .map(|(word, count)| format!("{count} {word}"))
            .collect();
        if words.is_empty() {
            "none".to_owned()
        } else {
            words.join(", ")
        }
    };
    let mut nodes: Vec<(&String, u64)> = status
        .nodes
        .iter()
        .map(|(state, count)| (state, u64::from(*count)))
        .collect();
    nodes.sort();
    let mut tasks: Vec<(&String, u64)> = status.tasks.iter().map(|(p, c)| (p, *c)).collect();
    tasks.sort();
    let bar = |name: &str, used: u64, all: u64, shown: String| {
        format!("{name:<8} {}  {shown} granted", words::bar(used, all))
    };
    let mut lines = vec![
        format!(
            "mete {}   revision {}   leader {} (term {})   {} offers open",
            status.version, status.revision, status.leader_address, status.term, status.offers_open
        ),
        format!("nodes    {}   tasks {}", counts(nodes), counts(tasks)),
        bar(
            "cpu",
            granted.cpu_milli,
            total.cpu_milli,
            words::cpu_of(granted.cpu_milli, total.cpu_milli),
        ),
        bar(
            "memory",
            granted.memory_bytes,
            total.memory_bytes,
            words::memory_of(granted.memory_bytes, total.memory_bytes),
        ),
    ];
    let used = words::by_class(&granted);
    for (class, all) in words::by_class(&total) {
        let used = used.get(&class).copied().unwrap_or(0);
        lines.push(bar(&class, used, all, words::cpu_of(used, all)));
    }
    lines
}

/// The roles, those that hold most first: where they stand does not change with their names.
pub(super) fn roles(roles: &[Role]) -> Vec<Line> {
    let cpu = |role: &Role| role.used.as_ref().map_or(0, |used| used.cpu_milli);
    let most = roles.iter().map(cpu).max().unwrap_or(0);
    let mut lines = vec![Line {
        text: format!(
            "{:<20} {:<20} {:>8} {:>10}  {:>8}  DEVICES",
            "ROLE", "CPU", "", "MEMORY", "WAITING"
        ),
        subject: None,
    }];
    lines.extend(roles.iter().map(|role| {
        let used = role.used.clone().unwrap_or_default();
        let text = format!(
            "{:<20} {} {:>8} {:>10}  {:>8}  {}",
            role.path,
            words::bar(cpu(role), most),
            MilliCpu(used.cpu_milli).to_string(),
            Bytes(used.memory_bytes).to_string(),
            role.waiting,
            words::devices(&role.used)
        );
        Line {
            text,
            subject: Some(("role", role.path.clone())),
        }
    }));
    lines
}

/// How much of a node is granted: of what is scarcest on it, in percent.
pub(super) fn granted_percent(node: &Node) -> u64 {
    let total = node.total.clone().unwrap_or_default();
    let granted = node.granted.clone().unwrap_or_default();
    let percent = |used: u64, all: u64| used.saturating_mul(100).checked_div(all).unwrap_or(0);
    percent(granted.cpu_milli, total.cpu_milli)
        .max(percent(granted.memory_bytes, total.memory_bytes))
        .min(100)
}

fn cell(node: &Node) -> char {
    match node.state.as_str() {
        "ready" => {
            let steps = u64::try_from(SHADES.len() - 1).unwrap_or(1);
            let at = granted_percent(node).saturating_mul(steps).div_ceil(100);
            SHADES
                .get(usize::try_from(at).unwrap_or(0))
                .copied()
                .unwrap_or('#')
        }
        "gone" => ' ',
        "recovering" => 'r',
        _ => '!',
    }
}

/// One cell for each node: shade for what is granted, a letter for what is not ready.
pub(super) fn strip(frame: &Frame, width: usize) -> Vec<Line> {
    let line = |text: String| Line {
        text,
        subject: None,
    };
    if frame.nodes.is_empty() {
        let text = match frame.nodes_not_listed {
            0 => "NODES  none".to_owned(),
            count => format!("NODES  {count}: too many to draw each; their sums are above"),
        };
        return vec![line(text)];
    }
    let mut lines = vec![line(
        "NODES  one cell each: . free to # full, r recovering, ! unreachable".to_owned(),
    )];
    let cells: Vec<char> = frame.nodes.iter().map(cell).collect();
    let rows = cells.chunks(width.max(1));
    lines.extend(rows.map(|row| line(row.iter().collect())));
    lines
}

/// The nodes, one in a line.
pub(super) fn nodes(nodes: &[Node]) -> Vec<Line> {
    let mut lines = vec![Line {
        text: format!(
            "{:<24} {:<14} {:<20} {:>14} {:>16} {:>6}",
            "NODE", "STATE", "GRANTED", "CPU", "MEMORY", "TASKS"
        ),
        subject: None,
    }];
    lines.extend(nodes.iter().map(|node| {
        let total = node.total.clone().unwrap_or_default();
        let granted = node.granted.clone().unwrap_or_default();
        let text = format!(
            "{:<24} {:<14} {} {:>14} {:>16} {:>6}",
            node.name,
            node.state,
            words::bar(granted_percent(node), 100),
            words::cpu_of(granted.cpu_milli, total.cpu_milli),
            words::memory_of(granted.memory_bytes, total.memory_bytes),
            node.tasks
        );
        Line {
            text,
            subject: Some(("node", node.name.clone())),
        }
    }));
    lines
}

/// What waits, by reason.
pub(super) fn waiting(frame: &Frame) -> Vec<Line> {
    if frame.waiting.is_empty() {
        return vec![Line {
            text: "WAITING  nothing".to_owned(),
            subject: None,
        }];
    }
    let mut lines = vec![Line {
        text: format!(
            "{:<20} {:>8} {:>10}  {:<28} DETAIL OF IT",
            "WAITING FOR", "CLAIMS", "TASKS", "ONE OF THEM"
        ),
        subject: None,
    }];
    lines.extend(frame.waiting.iter().map(|group: &Waiting| Line {
        text: format!(
            "{:<20} {:>8} {:>10}  {:<28} {}",
            group.reason, group.claims, group.tasks, group.example, group.detail
        ),
        subject: Some(("claim", group.example.clone())),
    }));
    if frame.claims_not_read {
        lines.push(Line {
            text: "of the first claims only; all of them: mete framework show NAME".to_owned(),
            subject: None,
        });
    }
    lines
}

#[cfg(test)]
mod tests {
    use mete_proto::types::v1 as types;

    use super::*;

    fn node(name: &str, state: &str, granted: u64) -> Node {
        let resources = |cpu_milli| {
            Some(types::Resources {
                cpu_milli,
                ..types::Resources::default()
            })
        };
        Node {
            name: name.to_owned(),
            state: state.to_owned(),
            total: resources(1000),
            granted: resources(granted),
            ..Node::default()
        }
    }

    #[test]
    fn each_node_is_a_cell_whose_shade_says_how_full_it_is() {
        let frame = Frame {
            nodes: vec![
                node("a", "ready", 0),
                node("b", "ready", 500),
                node("c", "ready", 1000),
                node("d", "unreachable", 0),
            ],
            ..Frame::default()
        };
        let lines = strip(&frame, 3);
        let rows: Vec<&str> = lines.iter().map(|line| line.text.as_str()).collect();
        assert_eq!(rows[1..], [".=#", "!"]);
    }

    #[test]
    fn a_plain_frame_has_all_parts_and_no_escape_codes() {
        let frame = Frame {
            nodes: vec![node("a", "ready", 0)],
            waiting: vec![Waiting {
                reason: "NO_CAPACITY".to_owned(),
                claims: 2,
                tasks: 30,
                example: "batch/train-1".to_owned(),
                detail: "wants 8 cpu".to_owned(),
            }],
            ..Frame::default()
        };
        let text = plain(&frame, true);
        for part in ["ROLE", "NODES", "NODE ", "NO_CAPACITY", "batch/train-1"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!text.contains('\u{1b}'), "{text}");
    }
}
