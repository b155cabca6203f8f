//! `mete bench replay`: a real GPU cluster in virtual time, through the real master, allocator and
//! SDK; the ledger's invariants are checked after every step.
//!
//! `fill`: all pods in file order, none ends; how much of the cluster is granted in the end.
//! `live`: pods come and go, on a sample of the nodes, with time compressed.

mod player;
mod trace;

use std::time::{Duration, Instant};

use mete_model::{Code, Span};
use mete_proto::admin::v1::admin_service_client::AdminServiceClient;
use mete_proto::admin::v1::object::Object as Row;
use mete_proto::admin::v1::{Filter, Kind, ListRequest, Object};
use mete_testing::TestBroker;
use tonic::transport::Channel;

use self::player::Player;
use self::trace::{Node, Pod};
use super::{Figures, decimal};
use crate::args::bench::{Replay, ReplayMode};
use crate::cli::support::error::{CliError, Outcome};

/// Pods declared together in `fill`: one step.
const STEP: usize = 16;

/// GPUs of the sample in `live`, when not said.
const SAMPLE: u32 = 80;

/// In `live` so many seconds of the trace are one millisecond of virtual time.
const SECONDS_PER_MS: u64 = 10;

/// In `live` no gap between two pods is longer than this.
const LONGEST_GAP: Duration = Duration::from_secs(5);

/// Looks at the cluster until it is still, at the most; each is 10 ms of virtual time.
const MOST_LOOKS: u32 = 3_000;

/// Runs a replay on a thread and a clock of its own.
///
/// # Errors
/// A file that cannot be read, or a promise that was not kept.
pub fn run(flags: &Replay) -> Outcome<Figures> {
    let flags = flags.clone();
    let played = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .map_err(|error| internal(format!("start a runtime: {error}")))?;
        runtime.block_on(play(&flags))
    });
    played
        .join()
        .unwrap_or_else(|_panic| Err(internal("the replay panicked")))
}

fn internal(what: impl Into<String>) -> CliError {
    CliError::new(Code::Internal, what)
}

async fn play(flags: &Replay) -> Outcome<Figures> {
    let mut nodes = trace::nodes(&flags.nodes)?;
    let mut pods = trace::pods(&flags.pods)?;
    if flags.mode == ReplayMode::Live {
        nodes = trace::sample(nodes, flags.sample.unwrap_or(SAMPLE), flags.seed);
        pods.sort_by_key(|pod| pod.created);
    }
    let began = Instant::now();
    let mut builder = TestBroker::builder().seed(flags.seed);
    for node in &nodes {
        builder = builder.node(&node.name, |built| node.describe(built));
    }
    let broker = builder.start().await;
    make_roles(&broker).await?;
    let stage = Stage {
        players: [
            Player::join(&broker, "service").await?,
            Player::join(&broker, "batch").await?,
        ],
        broker,
        steps: 0,
        violations: 0,
    };
    let stood = began.elapsed();
    let began = Instant::now();
    let stage = match flags.mode {
        ReplayMode::Fill => fill(stage, &pods).await?,
        ReplayMode::Live => live(stage, &pods).await?,
    };
    let seconds = began.elapsed().as_secs_f64();
    figures(&stage, flags, &nodes, &pods, (stood, seconds)).await
}

/// The cluster and its two frameworks.
struct Stage {
    broker: TestBroker,
    players: [Player; 2],
    steps: u32,
    violations: usize,
}

impl Stage {
    fn player(&self, pod: &Pod) -> &Player {
        if pod.best_effort {
            &self.players[1]
        } else {
            &self.players[0]
        }
    }

    /// Counts one step and checks the ledger.
    async fn check(&mut self) -> Outcome {
        self.steps += 1;
        let master = self
            .broker
            .master()
            .await
            .ok_or_else(|| internal("the master is gone"))?;
        let violations = mete_state::invariants::check(&master.state());
        for violation in violations.iter().take(3) {
            tracing::error!(
                ?violation,
                step = self.steps,
                "the ledger is not as it must be"
            );
        }
        self.violations += violations.len();
        Ok(())
    }

    fn placed(&self) -> usize {
        self.players.iter().map(Player::placed).sum()
    }

    /// Waits until nothing moves: nothing out on offer, nothing newly placed.
    async fn settle(&self) -> Outcome {
        let mut last = (usize::MAX, usize::MAX);
        let mut still = 0;
        for _ in 0..MOST_LOOKS {
            tokio::time::sleep(Duration::from_millis(10)).await;
            let running: usize = self.players.iter().map(Player::running).sum();
            let now = (self.placed(), running);
            still = if now == last && now.0 == now.1 {
                still + 1
            } else {
                0
            };
            if still >= 3 {
                return Ok(());
            }
            last = now;
        }
        Err(internal(format!(
            "nothing came to rest: {} placed, {} running",
            last.0, last.1
        )))
    }
}

async fn make_roles(broker: &TestBroker) -> Outcome {
    let mut admin = admin(broker).await?;
    for path in ["service", "batch"] {
        let request = mete_proto::admin::v1::SetRoleRequest {
            path: path.to_owned(),
            weight_milli: None,
            dry_run: false,
        };
        admin.set_role(request).await?;
    }
    Ok(())
}

async fn admin(broker: &TestBroker) -> Outcome<AdminServiceClient<Channel>> {
    let channel = broker
        .channel()
        .await
        .map_err(|error| internal(format!("reach the master: {error}")))?;
    Ok(AdminServiceClient::new(channel).max_decoding_message_size(4 << 20))
}

async fn fill(mut stage: Stage, pods: &[Pod]) -> Outcome<Stage> {
    for step in pods.chunks(STEP) {
        for (best_effort, player) in [(false, 0), (true, 1)] {
            let part: Vec<&Pod> = step
                .iter()
                .filter(|pod| pod.best_effort == best_effort)
                .collect();
            stage.players[player].declare(&part, None).await?;
        }
        stage.settle().await?;
        stage.check().await?;
    }
    Ok(stage)
}

async fn live(mut stage: Stage, pods: &[Pod]) -> Outcome<Stage> {
    let mut last = pods.first().map_or(0, |pod| pod.created);
    for pod in pods {
        let gap = Duration::from_millis(pod.created.saturating_sub(last) / SECONDS_PER_MS);
        last = pod.created;
        if !gap.is_zero() {
            tokio::time::sleep(gap.min(LONGEST_GAP)).await;
            stage.check().await?;
        }
        let life = Span((pod.ended.saturating_sub(pod.created) / SECONDS_PER_MS).max(1));
        stage.player(pod).declare(&[pod], Some(life)).await?;
    }
    // What still runs may be days of the trace from its end; what waits is looked at below.
    tokio::time::sleep(Duration::from_secs(30)).await;
    stage.check().await?;
    Ok(stage)
}

async fn all(broker: &TestBroker, kind: Kind) -> Outcome<Vec<Object>> {
    let mut admin = admin(broker).await?;
    let mut objects = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = ListRequest {
            kind: kind.into(),
            filter: Some(Filter::default()),
            page_token,
            page_size: 0,
            min_revision: 0,
            local: false,
        };
        let page = admin.list(request).await?.into_inner();
        objects.extend(page.objects);
        if page.next_page_token.is_empty() {
            return Ok(objects);
        }
        page_token = page.next_page_token;
    }
}

/// What waits in the end: with a reason, without one, and by reason.
#[derive(Default)]
struct Waiting {
    with: u64,
    without: u64,
    by_reason: std::collections::BTreeMap<String, u64>,
}

async fn waiting(broker: &TestBroker) -> Outcome<Waiting> {
    let mut waiting = Waiting::default();
    for object in all(broker, Kind::Claim).await? {
        let Some(Row::Claim(row)) = object.object else {
            continue;
        };
        let status = row.status.unwrap_or_default();
        let count = status.claim.map_or(0, |claim| claim.count);
        if status.launched >= count {
            continue;
        }
        if row.reason.is_empty() {
            waiting.without += 1;
        } else {
            waiting.with += 1;
            *waiting.by_reason.entry(row.reason).or_default() += 1;
        }
    }
    Ok(waiting)
}

async fn figures(
    stage: &Stage,
    flags: &Replay,
    nodes: &[Node],
    pods: &[Pod],
    (stood, seconds): (Duration, f64),
) -> Outcome<Figures> {
    let mut granted = [0_u64; 3];
    let mut total = [0_u64; 3];
    for object in all(&stage.broker, Kind::Node).await? {
        let Some(Row::Node(node)) = object.object else {
            continue;
        };
        for (sums, resources) in [(&mut granted, node.granted), (&mut total, node.total)] {
            let resources = resources.unwrap_or_default();
            let gpus: u64 = resources
                .devices
                .iter()
                .map(|share| u64::from(share.milli))
                .sum();
            let amounts = [resources.cpu_milli, resources.memory_bytes, gpus];
            for (sum, amount) in sums.iter_mut().zip(amounts) {
                *sum = sum.saturating_add(amount);
            }
        }
    }
    let waiting = waiting(&stage.broker).await?;
    let placed = stage.placed();
    let mut figures = Figures::default();
    figures.put(
        "mode",
        if flags.mode == ReplayMode::Fill {
            "fill"
        } else {
            "live"
        },
    );
    figures.put("nodes", nodes.len());
    figures.put("tasks", pods.len());
    figures.put("placed", placed);
    figures.put("waiting_with_reason", waiting.with);
    figures.put("waiting_without_reason", waiting.without);
    figures.put("waiting_by_reason", serde_json::json!(waiting.by_reason));
    figures.put("invariant_violations", stage.violations);
    figures.put("steps_checked", stage.steps);
    for (name, (granted, total)) in ["cpu_rate", "memory_rate", "gpu_rate"]
        .into_iter()
        .zip(granted.into_iter().zip(total))
    {
        figures.put(name, rate(granted, total));
    }
    figures.put(
        "launches_per_s",
        decimal(to_float(placed) / seconds.max(f64::MIN_POSITIVE)),
    );
    figures.put("stood_ms", decimal(stood.as_secs_f64() * 1000.0));
    figures.put("wall_s", decimal(seconds));
    let accounted = placed as u64 + waiting.with + waiting.without;
    if stage.violations > 0 || waiting.without > 0 || accounted != pods.len() as u64 {
        let text = format!(
            "{} violations, {} without a reason, {accounted} of {} pods accounted for",
            stage.violations,
            waiting.without,
            pods.len()
        );
        return Err(internal(format!("the replay broke a promise: {text}")));
    }
    Ok(figures)
}

#[expect(clippy::cast_precision_loss, reason = "a figure of a bench")]
fn to_float(number: usize) -> f64 {
    number as f64
}

#[expect(clippy::cast_precision_loss, reason = "a figure of a bench")]
fn rate(part: u64, whole: u64) -> serde_json::Value {
    let rate = part as f64 / (whole as f64).max(1.0);
    serde_json::Value::from((rate * 10_000.0).round() / 10_000.0)
}
