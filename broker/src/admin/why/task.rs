//! Why a run is where it is.

use mete_model::{Code, Exit, FrameworkId, RunId, Span, TaskPhase};
use mete_proto::explain::v1 as wire;
use mete_state::{Agent, AgentCondition, Run, State};

use super::{help, reason, response};
use crate::admin::rows::{condition, framework_name};
use crate::admin::{Problem, soft};
use crate::handle::Handle;

pub(super) async fn run(
    handle: &Handle,
    framework: FrameworkId,
    id: &RunId,
) -> Result<wire::ExplainResponse, Problem> {
    let place = {
        let state = handle.state();
        find(&state, framework, id)?.agent
    };
    let recovering = soft::recovering(handle, vec![place])
        .await?
        .contains(&place);
    let state = handle.state();
    let run = find(&state, framework, id)?;
    let agent = state.agent(run.agent);
    let node = agent.map_or_else(|| run.agent.to_string(), |agent| agent.node_name.clone());
    let name = framework_name(&state, framework);
    let age = state.clock().since(run.launched).rough();
    let title = format!("{name}/{id}  {}  {age}  on {node}", run.phase);
    let mut reasons = vec![if run.phase.is_terminal() {
        ended(run)
    } else {
        live(&state, run, agent, recovering)
    }];
    if run.phase.is_terminal() && run.sequence > run.acknowledged {
        let text = format!("{name} has not acknowledged its end yet");
        reasons.push(reason("OK", "framework", text));
    }
    if !run.phase.is_terminal() {
        reasons.push(reason("OK", "node", on_node(agent, &node, recovering)));
    }
    let word = if run.phase.is_terminal() {
        "ended"
    } else {
        run.phase.word()
    };
    let mut answer = response(state.revision(), title, word, reasons);
    let logs = format!("mete task logs {name}/{id}");
    answer.helps.push(help("wait", "see what it printed", logs));
    if agent.is_some_and(|agent| agent.condition == AgentCondition::Unreachable) {
        let text = "if the machine never comes back, say so: its tasks end lost";
        answer
            .helps
            .push(help("admin", text, format!("mete node rm {node}")));
    }
    Ok(answer)
}

fn find<'a>(state: &'a State, framework: FrameworkId, id: &RunId) -> Result<&'a Run, Problem> {
    state
        .run(framework, id)
        .or_else(|| state.past_run(framework, id))
        .ok_or_else(|| Problem::not_found("task", &id.to_string()))
}

fn ended(run: &Run) -> wire::Reason {
    let end = run.end();
    let code = end.and_then(|status| status.reason);
    let how = match end.and_then(|status| status.exit) {
        Some(Exit::Code(code)) => format!(" with exit code {code}"),
        Some(Exit::Signal(signal)) => format!(" by signal {signal}"),
        None => String::new(),
    };
    let message = end
        .map(|status| status.message.as_str())
        .filter(|message| !message.is_empty())
        .map_or(String::new(), |message| format!(": {message}"));
    let mut told = reason(
        code.map_or("OK", Code::as_str),
        "launch",
        format!("{}{how}{message}", run.phase),
    );
    told.since_ms = run.ended.map_or(0, |at| at.0);
    told
}

fn live(state: &State, run: &Run, agent: Option<&Agent>, recovering: bool) -> wire::Reason {
    let away = agent.is_none_or(|agent| agent.condition != AgentCondition::Ready) || recovering;
    let since = |span: Span| format!("for {}", span.rough());
    if away {
        let text = "its node is not heard from: it may run, nobody can tell";
        return reason(Code::AgentUnavailable.as_str(), "node", text);
    }
    if let Some(kill) = &run.kill {
        let by = if kill.actor.is_empty() {
            "its framework"
        } else {
            &kill.actor
        };
        let text = format!(
            "to be ended by {by} {}, grace {}",
            since(state.clock().since(kill.since)),
            run.kill_grace()
        );
        return reason(kill.by.as_str(), "launch", text);
    }
    let waited = since(state.clock().since(run.launched));
    let text = match run.phase {
        TaskPhase::Staging => format!("committed {waited}, its agent has not said that it began"),
        TaskPhase::Starting => format!("being prepared on its node {waited}"),
        TaskPhase::Running => {
            let started = run.started.unwrap_or(run.launched);
            format!("its command runs {}", since(state.clock().since(started)))
        }
        TaskPhase::Finishing => format!("was told to stop and has not ended yet {waited}"),
        TaskPhase::Finished
        | TaskPhase::Failed
        | TaskPhase::Killed
        | TaskPhase::Lost
        | TaskPhase::Refused => "has ended".to_owned(),
    };
    reason("OK", "launch", text)
}

fn on_node(agent: Option<&Agent>, node: &str, recovering: bool) -> String {
    match agent {
        None => format!("node {node} is not known any more"),
        Some(_) if recovering => format!("node {node} has not come back to this leader yet"),
        Some(agent) => format!("node {node} is {}", condition(agent.condition)),
    }
}
