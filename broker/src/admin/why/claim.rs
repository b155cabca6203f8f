//! Why a claim waits, and a job: all claims with one label.

use mete_allocator::explain::{Explanation, explain};
use mete_model::{AgentId, ClaimId, Code, FrameworkId, Span, Timestamp};
use mete_proto::explain::v1 as wire;
use mete_state::{ClaimRecord, Run, State};

use super::{amounts, detail_of, help, helps, layer, reason, response, sentence};
use crate::admin::Problem;
use crate::admin::rows::framework_name;
use crate::admin::views::each_run;
use crate::handle::Handle;
use crate::leader::reasons::Record;

/// The label that says which job a claim or task belongs to.
const JOB: &str = "job";

/// Claims of one job that are explained.
const CLAIMS: usize = 50;

/// Earlier reasons that are told.
const EARLIER: usize = 3;

/// What the leader knows of a claim.
struct Known {
    record: Option<Record>,
    earlier: Vec<Record>,
    offered: u32,
    explanation: Option<Explanation>,
    connected: bool,
}

async fn known(
    handle: &Handle,
    framework: FrameworkId,
    claim: ClaimId,
    nodes: bool,
) -> Result<Option<Known>, Problem> {
    let known = handle.read(move |master| {
        let leader = master.leader()?;
        let record = leader.reasons().get(framework, &claim).cloned();
        // Looks at every agent: only when asked for, or when nothing was decided yet.
        let explanation = (nodes || record.is_none())
            .then(|| explain(leader.view(), framework, &claim))
            .flatten();
        Some(Known {
            earlier: leader
                .reasons()
                .earlier(framework, &claim)
                .take(EARLIER)
                .cloned()
                .collect(),
            offered: leader.book().slots_of(framework, &claim),
            connected: leader.framework_is_here(framework),
            record,
            explanation,
        })
    });
    Ok(known.await?)
}

/// Explains one claim.
pub(super) async fn one(
    handle: &Handle,
    framework: FrameworkId,
    claim: ClaimId,
    nodes: bool,
) -> Result<wire::ExplainResponse, Problem> {
    let known = known(handle, framework, claim.clone(), nodes).await?;
    let state = handle.state();
    let Some(record) = state.claim(framework, &claim) else {
        return Err(Problem::not_found("claim", claim.as_str()));
    };
    let name = framework_name(&state, framework);
    let title = title(&format!("{name}/{claim}"), record, state.clock());
    Ok(told(&state, record, title, known))
}

fn title(name: &str, record: &ClaimRecord, now: Timestamp) -> String {
    let age = now.since(record.submitted).rough();
    let (waiting, all) = (record.remaining(), record.claim.count);
    format!(
        "{name}  {waiting} of {all} waiting  {age}  role {}",
        record.claim.role
    )
}

/// The answer for one claim.
fn told(
    state: &State,
    record: &ClaimRecord,
    title: String,
    known: Option<Known>,
) -> wire::ExplainResponse {
    let role = record.claim.role.as_str();
    let name = framework_name(state, record.framework);
    if record.remaining() == 0 {
        let text = format!("all {} tasks have been launched", record.claim.count);
        let reasons = vec![reason(Code::NothingWaits.as_str(), "placement", text)];
        return response(state.revision(), title, "running", reasons);
    }
    let Some(known) = known else {
        return response(state.revision(), title, "waiting", Vec::new());
    };
    let explanation = known.explanation.as_ref();
    let (code, short) = match (&known.record, explanation) {
        (Some(record), _) => (record.reason, record.short.clone()),
        (None, Some(explanation)) => (explanation.reason, explanation.short.clone()),
        (None, None) => (Code::NotDecided, None),
    };
    let mut first = match &known.record {
        Some(record) => reason(code.as_str(), layer(code), detail_of(record)),
        None => reason(
            code.as_str(),
            layer(code),
            sentence(code, short.as_ref(), None),
        ),
    };
    first.amounts = short.as_ref().map(amounts).unwrap_or_default();
    first.since_ms = known.record.as_ref().map_or(0, |record| record.since.0);
    let mut reasons = vec![first];
    reasons.extend(others(state, record, &known, &name));
    let mut answer = response(state.revision(), title, "waiting", reasons);
    answer.helps = helps(code, short.as_ref(), &name, role);
    let claim_name = format!("{name}/{}", record.claim.id);
    if explanation.is_none() {
        let command = format!("mete why claim {claim_name} --nodes");
        answer
            .helps
            .push(help("change", "see what each node lacks", command));
    }
    answer.decided_ms_ago = known
        .record
        .as_ref()
        .map_or(0, |record| state.clock().since(record.decided).0);
    if let Some(explanation) = explanation {
        add_nodes(&mut answer, explanation, state);
    }
    answer
}

/// The other layers, in order.
fn others(state: &State, record: &ClaimRecord, known: &Known, name: &str) -> Vec<wire::Reason> {
    let mut list = Vec::new();
    let age = state.clock().since(record.submitted).rough();
    list.push(reason(
        "OK",
        "admission",
        format!("declared {age} ago, priority {}", record.claim.priority),
    ));
    let framework = state.framework(record.framework);
    let suppressed = framework
        .is_some_and(|framework| framework.settings.suppressed.contains(&record.claim.role));
    let (code, text) = if suppressed {
        let text = format!("{name} has suppressed role {}", record.claim.role);
        (Code::FrameworkAway.as_str(), text)
    } else if known.connected {
        ("OK", format!("{name} is connected, not suppressed"))
    } else {
        (
            Code::FrameworkAway.as_str(),
            format!("{name} has no open stream"),
        )
    };
    list.push(reason(code, "framework", text));
    if known.offered > 0 {
        let text = format!("{} tasks of it are offered at this moment", known.offered);
        list.push(reason(Code::Offered.as_str(), "offer", text));
    }
    if record.launched > 0 {
        let text = format!("{} of {} launched", record.launched, record.claim.count);
        list.push(reason("OK", "launch", text));
    }
    for earlier in &known.earlier {
        let mut told = reason(
            earlier.reason.as_str(),
            layer(earlier.reason),
            format!("earlier: {}", detail_of(earlier)),
        );
        told.since_ms = earlier.since.0;
        list.push(told);
    }
    list
}

fn add_nodes(answer: &mut wire::ExplainResponse, explanation: &Explanation, state: &State) {
    let name = |id: AgentId| {
        state
            .agent(id)
            .map_or_else(|| id.to_string(), |agent| agent.node_name.clone())
    };
    let mut total: usize = 0;
    for group in &explanation.groups {
        total = total.saturating_add(group.count);
        let code = group.code.map_or("FIT", Code::as_str);
        let detail = match (&group.nearest, group.code) {
            (Some((agent, short)), _) => format!(
                "closest is {}: wants {}, has {}",
                name(*agent),
                super::amount(&short.kind, short.want),
                super::amount(&short.kind, short.have)
            ),
            (None, None) => "has room for one task now".to_owned(),
            (None, Some(code)) => node_word(code).to_owned(),
        };
        answer.nodes.push(wire::NodeGroup {
            code: code.to_owned(),
            detail,
            count: u32::try_from(group.count).unwrap_or(u32::MAX),
            nodes: group.samples.iter().copied().map(name).collect(),
        });
    }
    answer.nodes_total = u32::try_from(total).unwrap_or(u32::MAX);
}

fn node_word(code: Code) -> &'static str {
    if code == Code::NotReady {
        "unreachable, not back yet, or gone"
    } else if code == Code::NodeDeclined {
        "its framework declined what is free there"
    } else if code == Code::NoDevice {
        "has no such device"
    } else if code == Code::TooSmall {
        "too small even when empty"
    } else {
        "too little is free"
    }
}

/// Explains a job: the claims labelled with it, the one that waits longest first.
pub(super) async fn job(
    handle: &Handle,
    name: &str,
    nodes: bool,
) -> Result<wire::ExplainResponse, Problem> {
    let claims = claims_of(&handle.state(), name);
    let tasks = tasks_of(handle, name).await;
    let Some((framework, first)) = claims.first().cloned() else {
        return without_claims(handle, name, &tasks);
    };
    let mut answer = one(handle, framework, first, nodes).await?;
    let state = handle.state();
    let known: Vec<&ClaimRecord> = claims
        .iter()
        .filter_map(|(framework, claim)| state.claim(*framework, claim))
        .collect();
    let waiting: u64 = known
        .iter()
        .map(|record| u64::from(record.remaining()))
        .sum();
    let all: u64 = known
        .iter()
        .map(|record| u64::from(record.claim.count))
        .sum();
    let oldest = known.iter().map(|record| record.submitted).min();
    let age = oldest.map_or(Span::ZERO, |oldest| state.clock().since(oldest));
    let age = age.rough();
    let role = known
        .first()
        .map_or("", |record| record.claim.role.as_str());
    answer.title = format!("{name}  {waiting} of {all} waiting  {age}  role {role}");
    if claims.len() > 1 {
        let text = format!(
            "{} claims carry this job's label; this is the oldest that waits",
            claims.len()
        );
        answer.reasons.push(reason("OK", "admission", text));
    }
    if !tasks.is_empty() {
        answer.reasons.push(reason("OK", "launch", counted(&tasks)));
    }
    Ok(answer)
}

/// Claims of a job: those that wait first, then the oldest.
fn claims_of(state: &State, job: &str) -> Vec<(FrameworkId, ClaimId)> {
    let mut found: Vec<(bool, Timestamp, FrameworkId, ClaimId)> = Vec::new();
    for framework in state.frameworks() {
        for record in state.claims(framework.id) {
            if record
                .claim
                .labels
                .get(JOB)
                .is_some_and(|label| label == job)
            {
                let served = record.remaining() == 0;
                found.push((
                    served,
                    record.submitted,
                    framework.id,
                    record.claim.id.clone(),
                ));
            }
        }
    }
    found.sort();
    found.truncate(CLAIMS);
    found
        .into_iter()
        .map(|(_, _, framework, claim)| (framework, claim))
        .collect()
}

type Counts = std::collections::BTreeMap<&'static str, u64>;

/// Tasks of a job by phase, live and in history.
async fn tasks_of(handle: &Handle, job: &str) -> Counts {
    let mut counts = Counts::new();
    let see = |run: &Run| {
        let label = run.labels.get(JOB);
        let label = label.or_else(|| run.spec.labels.get(JOB).map(String::as_str));
        if label == Some(job) {
            let count = counts.entry(run.phase.word()).or_default();
            *count = count.saturating_add(1);
        }
    };
    each_run(handle, see).await;
    counts
}

fn counted(tasks: &Counts) -> String {
    let parts: Vec<String> = tasks
        .iter()
        .map(|(word, count)| format!("{count} {word}"))
        .collect();
    format!("tasks: {}", parts.join(", "))
}

fn without_claims(
    handle: &Handle,
    name: &str,
    tasks: &Counts,
) -> Result<wire::ExplainResponse, Problem> {
    if tasks.is_empty() {
        return Err(Problem::not_found("job with claims or tasks", name));
    }
    let live = ["staging", "starting", "running", "finishing"];
    let state = if live.iter().any(|word| tasks.contains_key(word)) {
        "running"
    } else {
        "ended"
    };
    let reasons = vec![
        reason(
            Code::NothingWaits.as_str(),
            "placement",
            "no claim of it waits",
        ),
        reason("OK", "launch", counted(tasks)),
    ];
    let title = format!("{name}  {state}");
    let mut answer = response(handle.state().revision(), title, state, reasons);
    let command = format!("mete task list --label job={name}");
    answer.helps.push(help("wait", "see its tasks", command));
    Ok(answer)
}
