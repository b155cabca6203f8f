//! `mete demo`: a dev cluster and two frameworks that share it; tells the story, checks it, ends.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use mete_model::{Code, Span};
use mete_proto::admin::v1::object::Object as Row;
use mete_proto::admin::v1::{Filter, KillTasksRequest, Kind, Task};
use mete_proto::batch::v1::{GetRequest, JobSpec, JobState, SubmitRequest, WatchRequest};
use mete_proto::explain::v1::{ExplainRequest, Subject};
use mete_proto::node::v1::{LogsRequest, log_chunk};
use mete_proto::types::v1::{RunRef, Shape, TaskPhase};
use mete_sdk::{Claim, PoolHandle, TaskSpec};
use mete_service::{Config, Service};

use super::dev::{DevCluster, Settings};
use super::{batch, leftovers, stop_signal};
use crate::cli::support::client::{Cluster, admin, explain, node};
use crate::cli::support::error::{CliError, Outcome};
use crate::cli::support::print::{note, out};
use crate::cli::support::words;

/// Long-running tasks of the service framework, at first and after it grows.
const SERVICES: (u32, u32) = (3, 5);

/// Elements of the batch array.
const ELEMENTS: u32 = 12;

/// Longest time of the whole story.
const LONGEST: Duration = Duration::from_secs(120);

/// A call of the demo.
const CALL: Duration = Duration::from_secs(20);

/// How the demo is played.
#[derive(Clone, Debug)]
pub struct Story {
    /// Real agents.
    pub nodes: u32,
    /// How long both go on side by side before the end is told; 0 = no longer than needed.
    pub seconds: u64,
    /// Keeps the state.
    pub state_directory: Option<PathBuf>,
}

/// Plays the story.
///
/// # Errors
/// A part that failed, or a promise that was not kept: exit 1.
pub async fn run(story: Story) -> Outcome {
    let settings = Settings {
        nodes: story.nodes,
        state_directory: story.state_directory,
        ..Settings::default()
    };
    if let Some(cleared) = leftovers::clear().await {
        note(&cleared);
    }
    say("A cluster: one master, agents on this machine, the batch framework.")?;
    let mut cluster = DevCluster::start(&settings).await?;
    let ready = cluster.ready_in.as_secs_f64();
    say(&format!(
        "  ready in {ready:.2}s, master at {}",
        cluster.address
    ))?;
    let (pool, serving) = services(cluster.address.clone())?;
    let asking = cluster.client(CALL);
    let longest = LONGEST + Duration::from_secs(story.seconds);
    let telling = tokio::time::timeout(longest, tell(&asking, &pool, story.seconds));
    let told = tokio::select! {
        told = telling => told.unwrap_or_else(|_late| {
            let sentence = format!("the story took more than {}s", longest.as_secs());
            Err(CliError::new(Code::TimedOut, sentence))
        }),
        error = cluster.failed() => Err(error),
        ended = serving => Err(match ended {
            Ok(()) => CliError::new(Code::Internal, "the service framework ended by itself"),
            Err(error) => batch::from_sdk(&error),
        }),
        () = stop_signal() => Err(CliError::new(Code::TimedOut, "stopped")),
    };
    cluster.stop().await?;
    told
}

fn say(text: &str) -> Outcome {
    out(&format!("{text}\n"))
}

fn wanted(count: u32) -> mete_sdk::Wanted {
    let command = ["sh", "-c", "while :; do sleep 1; done"];
    let claim = Claim::cpu_milli(200).memory_mib(32);
    mete_sdk::Wanted::new(count, claim, TaskSpec::command("web", command))
}

fn services(address: String) -> Outcome<(PoolHandle, impl Future<Output = mete_sdk::Result<()>>)> {
    let first = wanted(SERVICES.0);
    let config = Config {
        masters: vec![address],
        name: "service".to_owned(),
        role: "service".to_owned(),
        failover_timeout: Span::minutes(1),
        services: vec![Service {
            name: "web".to_owned(),
            count: first.count,
            claim: first.claim,
            task: first.task,
        }],
    };
    mete_service::prepare(config).map_err(|error| batch::from_sdk(&error))
}

async fn tell(cluster: &Cluster, pool: &PoolHandle, seconds: u64) -> Outcome {
    say(&format!(
        "\nThe service framework keeps {} tasks 'web' alive.",
        SERVICES.0
    ))?;
    wait_for_services(cluster, SERVICES.0).await?;
    show_roles(cluster).await?;

    say(&format!(
        "\nA user submits an array of {ELEMENTS} real processes to batch."
    ))?;
    let began = Instant::now();
    let job = submit(cluster).await?;
    say(&format!(
        "  $ mete submit --array 0-{} --cpus 0.4 -- sh -c ...   {job}",
        ELEMENTS - 1
    ))?;
    until(|| async { Ok((!running(cluster, "batch").await?.is_empty()).then_some(())) }).await?;
    show_roles(cluster).await?;
    why(cluster, &job).await?;

    say(&format!(
        "\nThe service framework grows to {} tasks: both compete.",
        SERVICES.1
    ))?;
    pool.set("web", wanted(SERVICES.1))
        .map_err(|error| batch::from_sdk(&error))?;
    wait_for_services(cluster, SERVICES.1).await?;
    show_roles(cluster).await?;

    say("\nAn operator kills one of its tasks; the framework starts another.")?;
    let killed = kill_one(cluster).await?;
    say(&format!("  $ mete task kill {killed}"))?;
    wait_for_replacement(cluster, &killed).await?;
    say("  5 of 5 'web' run again")?;

    say("\nMeanwhile the array goes on to its end.")?;
    let completed = wait_for_job(cluster, &job).await?;
    let took = began.elapsed().as_secs_f64();
    for _ in 0..seconds {
        tokio::time::sleep(Duration::from_secs(1)).await;
        show_roles(cluster).await?;
    }
    let line = first_line_of(cluster, &job).await?;
    say(&format!("  $ mete logs {job}/0\n  {line}"))?;
    show_roles(cluster).await?;
    summary(cluster, &job, completed, took).await
}

async fn tasks(cluster: &Cluster, role: &str) -> Outcome<Vec<Task>> {
    let filter = Filter {
        role: role.to_owned(),
        ..Filter::default()
    };
    let (_, objects) = cluster.list(Kind::Task, filter).await?;
    let tasks = objects
        .into_iter()
        .filter_map(|object| match object.object {
            Some(Row::Task(task)) => Some(task),
            _ => None,
        });
    Ok(tasks.collect())
}

async fn running(cluster: &Cluster, role: &str) -> Outcome<Vec<Task>> {
    let mut tasks = tasks(cluster, role).await?;
    tasks.retain(|task| task.phase() == TaskPhase::Running);
    Ok(tasks)
}

/// Looks again and again, with the story's own limit around it.
async fn until<T, F>(mut look: impl FnMut() -> F) -> Outcome<T>
where
    F: Future<Output = Outcome<Option<T>>>,
{
    loop {
        if let Some(found) = look().await? {
            return Ok(found);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn wait_for_services(cluster: &Cluster, count: u32) -> Outcome {
    let wanted = usize::try_from(count).unwrap_or(usize::MAX);
    until(|| async { Ok((running(cluster, "service").await?.len() >= wanted).then_some(())) }).await
}

async fn show_roles(cluster: &Cluster) -> Outcome {
    let (_, objects) = cluster.list(Kind::Role, Filter::default()).await?;
    say("  ROLE     RUNNING  HOLDS                 WAITING")?;
    for object in objects {
        let Some(Row::Role(role)) = object.object else {
            continue;
        };
        if role.path == "dev" {
            continue;
        }
        let running = running(cluster, &role.path).await?.len();
        let holds = words::amounts(&role.used);
        say(&format!(
            "  {:<8} {running:>7}  {holds:<20}  {:>7}",
            role.path, role.waiting
        ))?;
    }
    Ok(())
}

async fn submit(cluster: &Cluster) -> Outcome<String> {
    let command = "echo \"hello from element $METE_INDEX\"; sleep 1";
    let spec = JobSpec {
        name: "render".to_owned(),
        command: ["sh", "-c", command].map(str::to_owned).to_vec(),
        shape: Some(Shape {
            cpu_milli: 400,
            memory_bytes: 32 << 20,
            ..Shape::default()
        }),
        array: format!("0-{}", ELEMENTS - 1),
        user: "demo".to_owned(),
        ..JobSpec::default()
    };
    let request = SubmitRequest {
        spec: Some(spec),
        key: String::new(),
        dry_run: false,
    };
    Ok(cluster
        .batch()
        .await?
        .submit(request)
        .await?
        .into_inner()
        .job)
}

async fn why(cluster: &Cluster, job: &str) -> Outcome {
    let request = ExplainRequest {
        subject: Subject::Job.into(),
        name: job.to_owned(),
        nodes: false,
    };
    let answer = cluster
        .read(|channel| {
            let request = request.clone();
            async move { explain(channel).explain(request).await }
        })
        .await?;
    say(&format!("  $ mete why job {job}"))?;
    match answer.reasons.first() {
        Some(reason) => say(&format!("  {}: {}", reason.code, reason.detail)),
        None => Err(CliError::new(Code::Internal, "mete why has no reason")),
    }
}

async fn kill_one(cluster: &Cluster) -> Outcome<String> {
    let tasks = running(cluster, "service").await?;
    let Some(task) = tasks.first() else {
        return Err(CliError::new(Code::Internal, "no service task runs"));
    };
    let run = RunRef {
        framework_id: task.framework_id.clone(),
        run: task.run.clone(),
    };
    let request = KillTasksRequest {
        runs: vec![run],
        grace_ms: Some(500),
        reason: "demo".to_owned(),
        dry_run: false,
    };
    cluster
        .call(|channel| {
            let request = request.clone();
            async move { admin(channel).kill_tasks(request).await }
        })
        .await?;
    Ok(task.run.clone().map(|run| run.task).unwrap_or_default())
}

async fn wait_for_replacement(cluster: &Cluster, killed: &str) -> Outcome {
    let wanted = usize::try_from(SERVICES.1).unwrap_or(usize::MAX);
    until(|| async {
        let running = running(cluster, "service").await?;
        let gone = !running
            .iter()
            .any(|task| task.run.as_ref().is_some_and(|run| run.task == killed));
        Ok((gone && running.len() >= wanted).then_some(()))
    })
    .await
}

async fn wait_for_job(cluster: &Cluster, job: &str) -> Outcome<u32> {
    let request = WatchRequest {
        job: job.to_owned(),
        elements: false,
    };
    let mut rows = cluster.batch().await?.watch(request).await?.into_inner();
    let mut last = None;
    while let Some(update) = rows.message().await? {
        last = update.row.or(last);
    }
    match last {
        Some(row) if row.state() == JobState::Completed => Ok(row.completed),
        Some(row) => {
            let sentence = format!("the array ended {}", row.state().as_str_name());
            Err(CliError::new(Code::Internal, sentence))
        }
        None => Err(CliError::new(
            Code::Internal,
            "the array's story ended early",
        )),
    }
}

async fn first_line_of(cluster: &Cluster, job: &str) -> Outcome<String> {
    let request = GetRequest {
        job: format!("{job}/0"),
        ..GetRequest::default()
    };
    let answer = cluster.batch().await?.get(request).await?.into_inner();
    let missing = || CliError::new(Code::NotFound, "element 0 is not there");
    let element = answer.elements.into_iter().next().ok_or_else(missing)?;
    let request = LogsRequest {
        run: element.run,
        ..LogsRequest::default()
    };
    let mut chunks = node(&element.node_address)
        .await?
        .logs(request)
        .await?
        .into_inner();
    while let Some(chunk) = chunks.message().await? {
        if let Some(log_chunk::Chunk::Lines(lines)) = chunk.chunk
            && let Some(line) = lines.lines.first()
        {
            return Ok(String::from_utf8_lossy(&line.text).into_owned());
        }
    }
    Err(CliError::new(Code::NotFound, "element 0 wrote nothing"))
}

async fn summary(cluster: &Cluster, job: &str, completed: u32, seconds: f64) -> Outcome {
    let services = running(cluster, "service").await?.len();
    let status = cluster
        .call(|channel| async move {
            admin(channel)
                .get_status(mete_proto::admin::v1::GetStatusRequest::default())
                .await
        })
        .await?;
    let count = |name: &str| status.counters.get(name).copied().unwrap_or(0);
    say("\nSummary")?;
    say(&format!(
        "  batch    {job}: {completed} of {ELEMENTS} completed in {seconds:.1}s"
    ))?;
    say(&format!(
        "  service  {services} of {} 'web' running",
        SERVICES.1
    ))?;
    say(&format!(
        "  offers   {} made, {} accepted, {} declined, {} expired; {} launches committed",
        count("offers_made"),
        count("offers_accepted"),
        count("offers_declined"),
        count("offers_expired"),
        count("launches")
    ))?;
    if completed != ELEMENTS || services != usize::try_from(SERVICES.1).unwrap_or(0) {
        return Err(CliError::new(
            Code::Internal,
            "the cluster did not keep its promises",
        ));
    }
    say("  everything as promised; bye")
}
