//! Why something waits: one dominant reason with its arithmetic, then all others by layer.
//!
//! Answered by the leader, from what it decided last ([`crate::leader::reasons`]) and what the
//! state says. Never empty: where nothing is known, that is the answer. A decision is an enum and
//! numbers; sentences are made here, when somebody asks.

mod claim;
mod others;
mod task;

use mete_allocator::Short;
use mete_model::{Bytes, Code, MilliCpu};
use mete_proto::convert::{At, whole};
use mete_proto::explain::v1 as wire;

use super::{Feed, Problem, find, views};
use crate::handle::Handle;
use crate::leader::reasons::Record;

/// Longest name that is looked up.
const LONGEST_NAME: usize = 600;

/// Explains one thing.
///
/// # Errors
/// `INVALID`, `NOT_FOUND`, `AMBIGUOUS`; `NOT_LEADER` with where to go.
pub async fn explain(
    handle: &Handle,
    feed: &Feed,
    request: wire::ExplainRequest,
) -> Result<wire::ExplainResponse, Problem> {
    let subject = read(&request)?;
    // Only the leader knows why: this also says who that is.
    views::at_present(handle).await?;
    let name = request.name.as_str();
    match subject {
        wire::Subject::Job => claim::job(handle, name, request.nodes).await,
        wire::Subject::Claim => {
            let (framework, id) = find::claim(&handle.state(), name)?;
            claim::one(handle, framework, id, request.nodes).await
        }
        wire::Subject::Task => {
            let (framework, run) = find::task(&handle.state(), name)?;
            task::run(handle, framework, &run).await
        }
        wire::Subject::Framework => {
            let id = find::framework(&handle.state(), name)?;
            others::framework(handle, id).await
        }
        wire::Subject::Role => {
            let path = find::role(&handle.state(), name)?;
            others::role(handle, path).await
        }
        wire::Subject::Node => {
            let id = find::node(&handle.state(), name)?;
            others::node(handle, feed, id).await
        }
        wire::Subject::Unspecified => Err(Problem::field("subject", "must be given")),
    }
}

fn read(request: &wire::ExplainRequest) -> Result<wire::Subject, Problem> {
    let read = whole(|faults| {
        let subject =
            wire::Subject::try_from(request.subject).unwrap_or(wire::Subject::Unspecified);
        if subject == wire::Subject::Unspecified {
            let fault = format_args!("{} is not a subject: 1 to 6 are", request.subject);
            faults.add(At::root("subject"), fault);
        }
        if request.name.is_empty() || request.name.len() > LONGEST_NAME {
            let fault = format_args!("must be 1 to {LONGEST_NAME} bytes");
            faults.add(At::root("name"), fault);
        }
        Some(subject)
    });
    Ok(read?)
}

/// One reason.
fn reason(code: &str, layer: &str, detail: impl Into<String>) -> wire::Reason {
    wire::Reason {
        code: code.to_owned(),
        layer: layer.to_owned(),
        detail: detail.into(),
        amounts: Vec::new(),
        since_ms: 0,
    }
}

/// One piece of advice.
fn help(who: &str, text: impl Into<String>, command: impl Into<String>) -> wire::Help {
    wire::Help {
        who: who.to_owned(),
        text: text.into(),
        command: command.into(),
    }
}

/// The layer that a waiting reason belongs to.
fn layer(code: Code) -> &'static str {
    const FRAMEWORK: [Code; 2] = [Code::FrameworkAway, Code::Declined];
    const OFFER: [Code; 2] = [Code::Offered, Code::NotDecided];
    if FRAMEWORK.contains(&code) {
        "framework"
    } else if OFFER.contains(&code) {
        "offer"
    } else if code == Code::Order {
        "role"
    } else if code == Code::NoAgents {
        "node"
    } else {
        "placement"
    }
}

/// An amount in the units of its kind.
fn amount(kind: &str, value: u64) -> String {
    match kind {
        "cpu" => format!("{} cpu", MilliCpu(value)),
        "mem" => format!("{} memory", Bytes(value)),
        "disk" => format!("{} disk", Bytes(value)),
        "cores" => format!("{value} exclusive cores"),
        other => format!("{value} {}", other.strip_prefix("dev/").unwrap_or(other)),
    }
}

/// What to ask for in place of what no node can hold.
fn less(short: &Short) -> String {
    if short.have == 0 {
        let none = short.kind.strip_prefix("dev/").unwrap_or(&short.kind);
        return format!("ask for something else: no node has {none}");
    }
    let most = amount(&short.kind, short.have);
    format!("ask for at most {most} per task")
}

fn amounts(short: &Short) -> Vec<wire::Amount> {
    vec![wire::Amount {
        kind: short.kind.clone(),
        want: short.want,
        have: short.have,
        short_by: short.want.saturating_sub(short.have),
    }]
}

/// The sentence of a decision, with its numbers.
#[must_use]
pub fn detail_of(record: &Record) -> String {
    let behind = record
        .behind
        .as_ref()
        .map(|(framework, claim)| format!("{framework}/{claim}"));
    sentence(record.reason, record.short.as_ref(), behind.as_deref())
}

/// The sentence of a reason of the part "waiting".
fn sentence(code: Code, short: Option<&Short>, behind: Option<&str>) -> String {
    let want = short.map(|short| amount(&short.kind, short.want));
    let have = short.map(|short| amount(&short.kind, short.have));
    let numbers = want.zip(have);
    if code == Code::Infeasible {
        return numbers.map_or_else(
            || "no node could run one task of it, even when empty".to_owned(),
            |(want, have)| {
                format!("one task wants {want}; the closest node has {have} even when empty")
            },
        );
    }
    if code == Code::NoShape {
        return numbers.map_or_else(
            || "the sum is free, but no single node has the shape".to_owned(),
            |(want, have)| {
                format!("the sum is free, but not on one node: wants {want}, at most {have} there")
            },
        );
    }
    if code == Code::NoCapacity {
        return numbers.map_or_else(
            || "not enough is free".to_owned(),
            |(want, have)| format!("one task wants {want}; {have} are free in all"),
        );
    }
    if code == Code::Order {
        return behind.map_or_else(
            || "another claim goes first".to_owned(),
            |behind| format!("what is free went to {behind}, which goes first"),
        );
    }
    let plain = [
        (
            Code::Offered,
            "an offer is out; its framework has not answered yet",
        ),
        (
            Code::FrameworkAway,
            "its framework is disconnected, or the role is suppressed",
        ),
        (
            Code::Declined,
            "everything that fits was declined and stays hidden for a while",
        ),
        (Code::NoAgents, "no agent is ready"),
        (
            Code::NotDecided,
            "not looked at yet; the next round comes within a second",
        ),
        (Code::NothingWaits, "nothing of it waits"),
    ];
    plain
        .into_iter()
        .find(|(listed, _)| *listed == code)
        .map_or_else(
            || format!("the last decision was {code}"),
            |(_, text)| text.to_owned(),
        )
}

/// What helps against a reason of the part "waiting".
fn helps(code: Code, short: Option<&Short>, framework: &str, role: &str) -> Vec<wire::Help> {
    let show = format!("mete framework show {framework}");
    let revive = format!("mete framework set {framework} --revive {role}");
    let free = || {
        help(
            "wait",
            "tasks that end make room",
            "mete task list --state running",
        )
    };
    if code == Code::Infeasible {
        let text = short.map_or_else(|| "ask for less per task".to_owned(), less);
        return vec![
            help("change", text, "mete node list"),
            help(
                "admin",
                "add a node that is large enough",
                "mete agent start --help",
            ),
        ];
    }
    if code == Code::NoCapacity || code == Code::NoShape {
        return vec![
            free(),
            help(
                "change",
                "a smaller shape fits into smaller gaps",
                "mete node list",
            ),
            help("admin", "add nodes", "mete agent start --help"),
        ];
    }
    if code == Code::Order {
        let weight = format!("mete quota set {role} --weight 2");
        return vec![
            free(),
            help("change", "raise the claim's priority inside its role", ""),
            help("admin", "give the role more weight", weight),
        ];
    }
    if code == Code::FrameworkAway {
        return vec![
            help(
                "wait",
                "a framework that comes back is served at once",
                show,
            ),
            help("admin", "revive the role if it was suppressed", revive),
        ];
    }
    if code == Code::Declined {
        return vec![
            help(
                "wait",
                "it is offered again when more frees up or the refusal lapses",
                show,
            ),
            help("admin", "clear the refusals now", revive),
        ];
    }
    if code == Code::NoAgents {
        return vec![help(
            "admin",
            "start an agent, or see why none is ready",
            "mete node list",
        )];
    }
    if code == Code::NothingWaits {
        return Vec::new();
    }
    vec![help(
        "wait",
        "the framework answers, or the offer expires",
        "mete offer list",
    )]
}

/// Puts the answer together: never without a reason.
fn response(
    revision: u64,
    title: String,
    state: &str,
    reasons: Vec<wire::Reason>,
) -> wire::ExplainResponse {
    let reasons = if reasons.is_empty() {
        let detail = "nothing is known about it beyond what its row shows";
        vec![reason(Code::Unknown.as_str(), "admission", detail)]
    } else {
        reasons
    };
    wire::ExplainResponse {
        revision,
        title,
        state: state.to_owned(),
        reasons,
        ..wire::ExplainResponse::default()
    }
}

#[cfg(test)]
mod tests {
    use mete_model::reason::Part;

    use super::*;

    #[test]
    fn every_waiting_reason_has_a_sentence_of_its_own_and_help() {
        let mut seen = std::collections::BTreeSet::new();
        for code in Code::ALL.iter().filter(|code| code.part() == Part::Waiting) {
            let text = sentence(*code, None, None);
            assert!(!text.contains(code.as_str()), "{code} has no words: {text}");
            assert!(seen.insert(text), "{code} shares its sentence");
            let helps = helps(*code, None, "batch", "ml");
            assert_eq!(helps.is_empty(), *code == Code::NothingWaits, "{code}");
        }
    }

    #[test]
    fn a_sentence_carries_its_numbers_in_their_units() {
        let short = |kind: &str, want, have| Short {
            kind: kind.to_owned(),
            want,
            have,
        };
        let text = sentence(
            Code::Infeasible,
            Some(&short("mem", 64 << 30, 32 << 30)),
            None,
        );
        assert!(
            text.contains("64 GiB memory") && text.contains("32 GiB"),
            "{text}"
        );
        let text = sentence(Code::NoCapacity, Some(&short("dev/gpu/a100", 8, 2)), None);
        assert!(
            text.contains("8 gpu/a100") && text.contains("2 gpu/a100"),
            "{text}"
        );
    }
}
