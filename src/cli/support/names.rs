//! Names that the shell completes: asked of the cluster, quickly or not at all.
//!
//! A completion must never stand in the way of typing: whatever fails, there are no candidates.

use std::future::Future;
use std::time::Duration;

use clap_complete::CompletionCandidate;
use clap_complete::engine::ArgValueCandidates;
use mete_model::Code;
use mete_proto::admin::v1::object::Object as Row;
use mete_proto::admin::v1::{Filter, Kind, Object};
use mete_proto::batch::v1 as batch;

use super::client::Cluster;
use super::context::{self, ClientConfig, config_path};

/// Longest time that a completion may take.
const PATIENCE: Duration = Duration::from_millis(500);

/// Candidates at the most: nobody reads more.
const MOST: usize = 200;

/// Names of nodes.
#[must_use]
pub fn nodes() -> ArgValueCandidates {
    ArgValueCandidates::new(|| listed(&[Kind::Node]))
}

/// Names of frameworks.
#[must_use]
pub fn frameworks() -> ArgValueCandidates {
    ArgValueCandidates::new(|| listed(&[Kind::Framework]))
}

/// Paths of roles.
#[must_use]
pub fn roles() -> ArgValueCandidates {
    ArgValueCandidates::new(|| listed(&[Kind::Role]))
}

/// Ids of jobs.
#[must_use]
pub fn jobs() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        candidates(asked(|cluster| async move { job_names(&cluster).await }))
    })
}

/// What `why` explains: names of nodes, frameworks, roles and jobs.
#[must_use]
pub fn anything() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let mut all = listed(&[Kind::Node, Kind::Framework, Kind::Role]);
        all.extend(candidates(asked(|cluster| async move {
            job_names(&cluster).await
        })));
        all
    })
}

/// Names of contexts.
#[must_use]
pub fn contexts() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let config = ClientConfig::load(&config_path()).unwrap_or_default();
        candidates(config.contexts.into_keys().collect())
    })
}

/// Reason codes.
#[must_use]
pub fn codes() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        Code::ALL
            .iter()
            .map(|code| CompletionCandidate::new(code.as_str()))
            .collect()
    })
}

fn candidates(names: Vec<String>) -> Vec<CompletionCandidate> {
    names
        .into_iter()
        .take(MOST)
        .map(CompletionCandidate::new)
        .collect()
}

fn listed(kinds: &'static [Kind]) -> Vec<CompletionCandidate> {
    candidates(asked(|cluster| async move {
        let mut names = Vec::new();
        for kind in kinds {
            let listed = cluster.list(*kind, Filter::default()).await;
            names.extend(listed.unwrap_or_default().1.into_iter().filter_map(name_of));
        }
        names
    }))
}

async fn job_names(cluster: &Cluster) -> Vec<String> {
    let request = batch::ListRequest {
        page_size: 200,
        ..batch::ListRequest::default()
    };
    let answer = cluster
        .ask_batch(|mut batch| async move { batch.list(request).await })
        .await;
    answer
        .map(|page| page.jobs.into_iter().map(|row| row.job).collect())
        .unwrap_or_default()
}

fn asked<F>(ask: impl FnOnce(Cluster) -> F) -> Vec<String>
where
    F: Future<Output = Vec<String>>,
{
    let flags: Vec<String> = std::env::var("METE_MASTER")
        .map(|masters| masters.split(',').map(str::to_owned).collect())
        .unwrap_or_default();
    let context = std::env::var("METE_CONTEXT").ok();
    let Ok(masters) = context::masters(&flags, context.as_deref()) else {
        return Vec::new();
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let Ok(runtime) = runtime else {
        return Vec::new();
    };
    let cluster = Cluster::new(masters, PATIENCE);
    runtime.block_on(async {
        tokio::time::timeout(PATIENCE, ask(cluster))
            .await
            .unwrap_or_default()
    })
}

/// The name that commands take for a row.
fn name_of(object: Object) -> Option<String> {
    match object.object? {
        Row::Node(node) => Some(node.name),
        Row::Framework(framework) => Some(framework.name),
        Row::Role(role) => Some(role.path),
        Row::Claim(claim) => claim.status?.claim.map(|claim| claim.id),
        Row::Task(task) => task.run.map(|run| run.task),
        Row::Offer(offer) => Some(offer.id),
    }
}
