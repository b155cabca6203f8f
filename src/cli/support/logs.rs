//! What tasks write, from their agents to this terminal: nothing lost, nothing twice, never a
//! silent end.

use std::sync::Arc;

use mete_model::{Code, RunId, TaskId};
use mete_proto::admin::v1::object::Object as Row;
use mete_proto::admin::v1::{Kind, Task};
use mete_proto::dial::TcpDial;
use mete_proto::types::v1 as types;
use mete_sdk::node::{LogChunk, LogEnd, LogLine, LogOptions, LogStream, Logs, NodeClient};
use serde_json::json;

use super::client::Cluster;
use super::error::{CliError, Outcome};
use super::print::{note, out_bytes, reader_is_gone};
use super::words;
use crate::args::batch::Reading;

/// One run whose log is read.
#[derive(Clone, Debug)]
pub struct Source {
    /// What people call it: "train-41/0".
    pub label: String,
    /// Its framework.
    pub framework_id: String,
    /// The run.
    pub run: RunId,
    /// The node API of its agent.
    pub node_address: String,
}

impl Source {
    /// A source from a message of the wire.
    ///
    /// # Errors
    /// `UNSUPPORTED` when its node serves no logs, `INTERNAL` for a run without a name.
    pub fn new(label: &str, run: Option<&types::RunRef>, node_address: &str) -> Outcome<Self> {
        if node_address.is_empty() {
            let sentence =
                format!("{label} writes nothing: its node is simulated or not known yet");
            return Err(CliError::new(Code::Unsupported, sentence));
        }
        let unnamed = || CliError::new(Code::Internal, format!("{label} has no run"));
        let reference = run.ok_or_else(unnamed)?;
        let run = reference.run.as_ref().ok_or_else(unnamed)?;
        let task = TaskId::new(&run.task).map_err(|_| unnamed())?;
        Ok(Self {
            label: label.to_owned(),
            framework_id: reference.framework_id.clone(),
            run: RunId::new(task, run.attempt),
            node_address: node_address.to_owned(),
        })
    }
}

/// Where the bytes go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Target {
    /// stdout to stdout, stderr to stderr.
    #[default]
    Own,
    /// Both to stderr: stdout is for something else.
    Stderr,
    /// One JSON object for each line, to stdout.
    Json,
}

/// How a log is copied.
#[derive(Clone, Debug, Default)]
pub struct Copying {
    /// What the flags say.
    pub reading: Reading,
    /// Where to.
    pub target: Target,
}

/// Copies a log to its end and gives back why it ended.
///
/// A node out of reach is asked again for as long as its task is alive, when following; one that
/// answers at another address by now is asked there.
///
/// # Errors
/// The agent's refusal, or `UNREACHABLE` when not following.
pub async fn copy(cluster: &Cluster, mut source: Source, how: Copying) -> Outcome<LogEnd> {
    let mut position = Vec::new();
    let since_ms = how
        .reading
        .since
        .map(|since| words::now().0.saturating_sub(since.0));
    let mut told = false;
    let mut middle = false;
    loop {
        let mut logs = open(&source, &how, since_ms, position.clone());
        let error = loop {
            match logs.next().await {
                Ok(Some(LogChunk::Lines(lines))) => {
                    told = false;
                    write(&source, &how, &lines, &mut middle)?;
                    if reader_is_gone() && how.target != Target::Own {
                        return Ok(end("nobody reads any more"));
                    }
                }
                Ok(Some(LogChunk::End(end))) => return Ok(end),
                Ok(None) => return Ok(end("the agent said no more")),
                Err(error) => break error,
            }
        };
        position = logs.position().to_vec();
        if !matches!(error, mete_sdk::Error::Unavailable(_)) {
            return Err(from_sdk(&source, &error));
        }
        let asked = source.node_address.clone();
        let over = look_again(cluster, &mut source).await;
        if source.node_address != asked {
            // Its agent listens somewhere else now, and has all of it, also of a task that is over.
            continue;
        }
        if !how.reading.follow {
            return Err(from_sdk(&source, &error));
        }
        if let Some(end) = over {
            return Ok(end);
        }
        if !told {
            note(&format!(
                "-- {}: its node is out of reach; still trying --",
                source.label
            ));
            told = true;
        }
    }
}

fn open(source: &Source, how: &Copying, since_ms: Option<u64>, resume: Vec<u8>) -> Logs {
    let reading = &how.reading;
    let options = LogOptions {
        stream: reading.stderr.then_some(LogStream::Stderr),
        follow: reading.follow,
        tail_lines: reading.tail,
        since_ms,
        resume,
    };
    let node = NodeClient::new(Arc::new(TcpDial::default()), &source.node_address);
    node.logs(&source.framework_id, &source.run, options)
}

fn end(reason: &str) -> LogEnd {
    LogEnd {
        reason: reason.to_owned(),
        phase: None,
        exit: None,
    }
}

/// Asks the masters what became of a task whose node is silent; `Some` when it is over. Its agent
/// may meanwhile listen somewhere else.
async fn look_again(cluster: &Cluster, source: &mut Source) -> Option<LogEnd> {
    let name = format!("{}/{}", source.framework_id, source.run);
    let task = match cluster.get(Kind::Task, &name).await {
        Ok((_, object)) => match object.object {
            Some(Row::Task(task)) => task,
            _ => return None,
        },
        Err(error) if error.is(Code::NotFound) => return Some(end("its task is no longer known")),
        Err(_) => return None,
    };
    if !task.node_address.is_empty() {
        source.node_address.clone_from(&task.node_address);
    }
    (task.ended_ms != 0).then(|| lost_end(&task))
}

fn lost_end(task: &Task) -> LogEnd {
    let phase = words::phase(task.phase());
    let reason = if task.reason.is_empty() {
        String::new()
    } else {
        format!(" ({})", task.reason)
    };
    end(&format!(
        "{phase}{reason}; its node {} is out of reach, the rest is not here",
        task.node
    ))
}

/// Writes lines in their order; `middle` says that the last one did not end.
fn write(source: &Source, how: &Copying, lines: &[LogLine], middle: &mut bool) -> Outcome {
    let mut bytes = Vec::new();
    let mut to_stderr = false;
    for line in lines {
        let stderr = match (how.target, line.stream) {
            (Target::Own, LogStream::Stderr) | (Target::Stderr, _) => true,
            (Target::Own, LogStream::Stdout) | (Target::Json, _) => false,
        };
        if stderr != to_stderr {
            flush(&bytes, to_stderr)?;
            bytes.clear();
            to_stderr = stderr;
        }
        if how.target == Target::Json {
            bytes.extend_from_slice(as_json(source, line).as_bytes());
            continue;
        }
        if how.reading.prefix && !*middle {
            bytes.extend_from_slice(format!("{}: ", source.label).as_bytes());
        }
        bytes.extend_from_slice(&line.text);
        if !line.partial {
            bytes.push(b'\n');
        }
        *middle = line.partial;
    }
    flush(&bytes, to_stderr)
}

fn flush(bytes: &[u8], to_stderr: bool) -> Outcome {
    if bytes.is_empty() {
        return Ok(());
    }
    if !to_stderr {
        return out_bytes(bytes);
    }
    use std::io::Write;
    // Nobody to tell is no reason to fail.
    let _ = std::io::stderr().lock().write_all(bytes);
    Ok(())
}

fn as_json(source: &Source, line: &LogLine) -> String {
    let stream = match line.stream {
        LogStream::Stdout => "STDOUT",
        LogStream::Stderr => "STDERR",
    };
    let item = json!({
        "source": source.label,
        "at": words::time(line.at_ns / 1_000_000),
        "stream": stream,
        "text": String::from_utf8_lossy(&line.text),
        "partial": line.partial,
    });
    item.to_string() + "\n"
}

/// An error of the SDK about this source.
fn from_sdk(source: &Source, error: &mete_sdk::Error) -> CliError {
    let code = error.code().unwrap_or(Code::Internal);
    let what = if matches!(error, mete_sdk::Error::Unavailable(_)) {
        "the agent of its node does not answer".to_owned()
    } else {
        error.to_string()
    };
    let sentence = format!("the log of {}: {what}", source.label);
    CliError::new(code, sentence).fact(format!("asked the agent at {}", source.node_address))
}

/// The last word of a log, on stderr.
pub fn say_end(label: &str, end: &LogEnd) {
    note(&format!("-- {label} {} --", last_word(end)));
}

/// `finished, exit 0`: the phase first, unless the agent's reason says it already.
fn last_word(end: &LogEnd) -> String {
    let phase = end
        .phase
        .map(|phase| phase.to_string().to_lowercase())
        .unwrap_or_default();
    if phase.is_empty() || end.reason.contains(&phase) {
        end.reason.clone()
    } else {
        format!("{phase}, {}", end.reason)
    }
}

#[cfg(test)]
mod tests {
    use mete_model::TaskPhase;

    use super::*;

    #[test]
    fn a_log_ends_with_the_phase_and_the_reason() {
        let end = |reason: &str, phase| LogEnd {
            reason: reason.to_owned(),
            phase,
            exit: None,
        };
        assert_eq!(
            last_word(&end("exit 7", Some(TaskPhase::Failed))),
            "failed, exit 7"
        );
        assert_eq!(
            last_word(&end("finished, exit 0", Some(TaskPhase::Finished))),
            "finished, exit 0"
        );
        assert_eq!(
            last_word(&end("log removed by retention", None)),
            "log removed by retention"
        );
    }

    #[test]
    fn a_task_that_was_lost_says_that_the_rest_of_its_log_is_out_of_reach() {
        let task = Task {
            phase: types::TaskPhase::Lost.into(),
            reason: "AGENT_GONE".to_owned(),
            node: "n1".to_owned(),
            ..Task::default()
        };
        assert!(
            lost_end(&task)
                .reason
                .starts_with("lost (AGENT_GONE); its node n1")
        );
    }
}
