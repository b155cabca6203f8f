//! `mete why`: the broker's own reasons, one of them first.

use mete_model::Code;
use mete_proto::explain::v1::{ExplainRequest, ExplainResponse, Subject};
use serde_json::{Value, json};

use super::batch;
use super::support::client::{Client, explain};
use super::support::error::Outcome;
use super::support::print::print_checked;
use super::support::words;
use crate::args::objects::{Subject as Kind, Why};

/// Nodes named in one group at the most.
const MOST_NAMED: usize = 8;

/// Explains it.
///
/// # Errors
/// The refusal.
pub async fn run(client: &Client, why: Why) -> Outcome {
    let answer = answered(client, &why).await?;
    let text = text(&answer, why.nodes);
    print_checked(
        &client.style,
        "Why",
        Some(answer.revision),
        facts(&why.name, &answer),
        &text,
        &amiss(&answer),
    )
}

/// The answer as people read it, for a view that shows it in its own way.
///
/// # Errors
/// The refusal.
pub async fn told(client: &Client, why: &Why) -> Outcome<String> {
    Ok(text(&answered(client, why).await?, why.nodes))
}

async fn answered(client: &Client, why: &Why) -> Outcome<ExplainResponse> {
    let subject = match why.subject {
        Kind::Job => Subject::Job,
        Kind::Task => Subject::Task,
        Kind::Framework => Subject::Framework,
        Kind::Node => Subject::Node,
        Kind::Role => Subject::Role,
        Kind::Claim => Subject::Claim,
    };
    match ask(client, subject, &why.name, why.nodes).await {
        // The master knows whole names only; the batch framework knows what a prefix means.
        Err(error) if subject == Subject::Job && error.is(Code::NotFound) => {
            let (row, _, _) = batch::show::get(client, &why.name).await?;
            ask(client, subject, &row.job, why.nodes)
                .await
                .map_err(|_| error)
        }
        answer => answer,
    }
}

/// States in which something is not as one wants it.
const AMISS: [&str; 8] = [
    "waiting",
    "no_offers",
    "unreachable",
    "recovering",
    "disconnected",
    "gone",
    "failed",
    "lost",
];

fn amiss(answer: &ExplainResponse) -> String {
    let first = answer.reasons.first();
    let said = first.map_or_else(String::new, |first| {
        format!(": {} {}", first.code, first.detail)
    });
    if AMISS.contains(&answer.state.as_str()) {
        format!("is {}{said}", answer.state.replace('_', " "))
    } else {
        String::new()
    }
}

/// Asks the leader.
///
/// # Errors
/// The refusal.
pub async fn ask(
    client: &Client,
    subject: Subject,
    name: &str,
    nodes: bool,
) -> Outcome<ExplainResponse> {
    let request = ExplainRequest {
        subject: subject.into(),
        name: name.to_owned(),
        nodes,
    };
    client
        .cluster
        .read(|channel| {
            let request = request.clone();
            async move { explain(channel).explain(request).await }
        })
        .await
}

fn text(answer: &ExplainResponse, nodes: bool) -> String {
    let mut title = answer.title.clone();
    if answer.decided_ms_ago > 0 {
        title = format!(
            "{title}   decided {} ago",
            words::span(answer.decided_ms_ago)
        );
    }
    let mut text = title + "\n";
    if let Some(first) = answer.reasons.first() {
        text += &format!("\n{}  {}\n", first.code, first.detail);
    }
    text += &reasons(answer);
    // Only of a claim is it looked which nodes serve it.
    if nodes && answer.nodes_total > 0 {
        text += &funnel(answer);
    }
    if !answer.helps.is_empty() {
        text += "\nhelps\n";
        for help in &answer.helps {
            let line = format!("  {:<7}  {:<50}  {}", help.who, help.text, help.command);
            text = text + line.trim_end() + "\n";
        }
    }
    text
}

fn reasons(answer: &ExplainResponse) -> String {
    if answer.reasons.is_empty() {
        return String::new();
    }
    let mut text = format!("\n{:<10} {:<16} DETAIL\n", "LAYER", "REASON");
    for reason in &answer.reasons {
        let amounts: Vec<String> = reason
            .amounts
            .iter()
            .map(|amount| {
                let short = if amount.short_by > 0 {
                    format!(", short by {}", shown(&amount.kind, amount.short_by))
                } else {
                    String::new()
                };
                let want = shown(&amount.kind, amount.want);
                let have = shown(&amount.kind, amount.have);
                format!("{} want {want}, have {have}{short}", amount.kind)
            })
            .collect();
        let since = match reason.since_ms {
            0 => String::new(),
            since => format!("   since {}", words::ago(since)),
        };
        let detail = if amounts.is_empty() {
            reason.detail.clone()
        } else {
            amounts.join("; ")
        };
        text += &format!("{:<10} {:<16} {detail}{since}\n", reason.layer, reason.code);
    }
    text
}

/// An amount in the unit that its kind implies: thousandths of a core, bytes, or a number.
fn shown(kind: &str, amount: u64) -> String {
    match kind {
        "cpu" => mete_model::MilliCpu(amount).to_string(),
        "mem" | "disk" => mete_model::Bytes(amount).to_string(),
        _ => amount.to_string(),
    }
}

fn funnel(answer: &ExplainResponse) -> String {
    let mut text = format!("\n{} nodes\n", answer.nodes_total);
    for group in &answer.nodes {
        let sign = if group.code == "FIT" { "=" } else { "-" };
        let named: Vec<&str> = group
            .nodes
            .iter()
            .take(MOST_NAMED)
            .map(String::as_str)
            .collect();
        let more = usize::try_from(group.count)
            .unwrap_or(usize::MAX)
            .saturating_sub(named.len());
        let more = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        let count = format!("{sign}{}", group.count);
        let names = format!("{}{more}", named.join(" "));
        text += &format!(
            "{count:>5}  {:<16} {}   {names}\n",
            group.code, group.detail
        );
    }
    text
}

fn facts(name: &str, answer: &ExplainResponse) -> Value {
    let reasons: Vec<Value> = answer
        .reasons
        .iter()
        .map(|reason| {
            let amounts: Vec<Value> = reason
                .amounts
                .iter()
                .map(|amount| {
                    json!({
                        "kind": amount.kind,
                        "want": amount.want,
                        "have": amount.have,
                        "short_by": amount.short_by,
                    })
                })
                .collect();
            json!({
                "code": reason.code,
                "layer": reason.layer,
                "detail": reason.detail,
                "amounts": amounts,
                "since": words::time(reason.since_ms),
            })
        })
        .collect();
    let nodes: Vec<Value> = answer
        .nodes
        .iter()
        .map(|group| {
            json!({
                "code": group.code,
                "detail": group.detail,
                "count": group.count,
                "nodes": group.nodes,
            })
        })
        .collect();
    let helps: Vec<Value> = answer
        .helps
        .iter()
        .map(|help| {
            json!({
                "who": help.who,
                "text": help.text,
                "command": words::known(&help.command),
            })
        })
        .collect();
    json!({
        "name": name,
        "title": answer.title,
        "state": answer.state,
        "reasons": reasons,
        "nodes": nodes,
        "nodes_total": answer.nodes_total,
        "helps": helps,
        "decided_ms_ago": answer.decided_ms_ago,
    })
}

#[cfg(test)]
mod tests {
    use mete_proto::explain::v1::{Amount, Help, NodeGroup, Reason};

    use super::*;

    fn answer() -> ExplainResponse {
        ExplainResponse {
            title: "train-41  PENDING 14m   role ml".to_owned(),
            reasons: vec![Reason {
                code: "NO_CAPACITY".to_owned(),
                layer: "placement".to_owned(),
                detail: "wants 8 cpu, 2 are free".to_owned(),
                amounts: vec![Amount {
                    kind: "cpu".to_owned(),
                    want: 8000,
                    have: 2000,
                    short_by: 6000,
                }],
                since_ms: 0,
            }],
            nodes: vec![NodeGroup {
                code: "CPU_SHORT".to_owned(),
                detail: "too little CPU free".to_owned(),
                count: 3,
                nodes: vec!["n1".to_owned()],
            }],
            nodes_total: 3,
            helps: vec![Help {
                who: "wait".to_owned(),
                text: "until tasks end".to_owned(),
                command: "mete task list".to_owned(),
            }],
            ..ExplainResponse::default()
        }
    }

    #[test]
    fn the_dominant_reason_stands_first_with_its_arithmetic() {
        let text = text(&answer(), true);
        let at = |part: &str| {
            text.find(part)
                .unwrap_or_else(|| panic!("{part} in {text}"))
        };
        assert!(at("NO_CAPACITY  wants 8 cpu") < at("LAYER"));
        at("cpu want 8, have 2, short by 6");
        at("-3  CPU_SHORT");
        at("n1 and 2 more");
        at("mete task list");
    }

    #[test]
    fn amounts_are_shown_in_the_unit_of_their_kind() {
        let shown = ["cpu", "mem", "disk", "cores", "dev/gpu/a100"].map(|kind| shown(kind, 2048));
        assert_eq!(shown, ["2.048", "2 KiB", "2 KiB", "2048", "2048"]);
    }

    #[test]
    fn facts_carry_the_same_numbers() {
        assert_eq!(
            facts("train", &answer())["reasons"][0]["amounts"][0]["short_by"],
            6000
        );
    }
}
