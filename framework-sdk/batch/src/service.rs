//! `mete.batch.v1`: what users call. Reads come from the queue, changes go through the loop.

use std::pin::Pin;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use mete_proto::batch::v1 as wire;
use mete_proto::batch::v1::batch_service_server::BatchService;
use mete_proto::types::v1::Verdict;
use mete_sdk::{Code, Error, Session};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::demand;
use crate::job::Job;
use crate::queue::{Queue, Refused};

/// Largest message.
pub(crate) const MOST_BYTES: usize = 4 << 20;

/// How long a call waits for the loop. A turn of it takes less, unless many calls wait.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// Calls that wait for the loop at the most.
const MOST_CALLS: usize = 1024;

/// Rows of a page when the caller does not say, and at the most.
const PAGE: (u32, u32) = (1_000, 10_000);

/// A change asked for.
pub(crate) enum Command {
    Submit {
        spec: Box<wire::JobSpec>,
        key: String,
        reply: oneshot::Sender<Result<(String, usize), Refused>>,
    },
    Cancel {
        jobs: Vec<String>,
        dry_run: bool,
        reply: oneshot::Sender<Vec<Result<(), Refused>>>,
    },
}

/// What loop and calls share.
#[derive(Debug)]
pub(crate) struct Shared {
    queue: RwLock<Queue>,
    commands: mpsc::Sender<Command>,
    changed: watch::Sender<u64>,
    framework: OnceLock<String>,
    ready: watch::Sender<bool>,
    roles: Vec<String>,
    session: Session,
}

impl std::fmt::Debug for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Submit { .. } => "Submit",
            Self::Cancel { .. } => "Cancel",
        })
    }
}

impl Shared {
    pub(crate) fn new(
        session: Session,
        roles: Vec<String>,
    ) -> (Arc<Self>, mpsc::Receiver<Command>) {
        let (commands, receiver) = mpsc::channel(MOST_CALLS);
        let shared = Self {
            queue: RwLock::new(Queue::new()),
            commands,
            changed: watch::Sender::new(0),
            framework: OnceLock::new(),
            ready: watch::Sender::new(false),
            roles,
            session,
        };
        (Arc::new(shared), receiver)
    }

    // A panic in a closure ends the loop, and with it the process; readers may go on until then.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Queue) -> T) -> T {
        change(&mut self.queue.write().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn read<T>(&self, read: impl FnOnce(&Queue) -> T) -> T {
        read(&self.queue.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn ready(&self, framework: String) {
        let _only_once = self.framework.set(framework);
        self.ready.send_replace(true);
    }

    /// Tells those who watch that something has changed.
    pub(crate) fn tell(&self) {
        let revision = self.read(Queue::revision);
        self.changed
            .send_if_modified(|seen| std::mem::replace(seen, revision) != revision);
    }

    fn framework(&self) -> &str {
        self.framework.get().map_or("", String::as_str)
    }
}

/// The answer when the broker's store did not take a change.
pub(crate) fn not_stored(error: &Error) -> Refused {
    let (code, detail) = match error {
        Error::Unavailable(reason) | Error::Refused(reason) => {
            let code = reason.exact_code().unwrap_or(Code::Busy);
            (code, reason.detail.as_str())
        }
        Error::NotLeader { .. }
        | Error::Denied(_)
        | Error::Invalid(_)
        | Error::Conflict { .. }
        | Error::Superseded
        | Error::TornDown
        | Error::Closed
        | Error::Protocol(_)
        | Error::Handler(_)
        | _ => (error.code().unwrap_or(Code::Internal), ""),
    };
    let named = format!("{code}: ");
    let why = match detail.strip_prefix(&named).unwrap_or(detail) {
        "" => error.to_string(),
        why => why.to_owned(),
    };
    let detail = if code == Code::Unknown {
        format!(
            "nobody can tell yet whether this was taken: {why}; a submit with the same key is the \
             same job, and `mete batch list` shows whether it is there"
        )
    } else if code == Code::DiskFull {
        format!("nothing was taken, the queue cannot be stored: {why}, then submit again")
    } else if code == Code::StoreFull {
        format!(
            "nothing was taken, the queue has no room: {why}; the records of ended jobs make room \
             by themselves, else wait for jobs to end or cancel some"
        )
    } else {
        format!("nothing was taken, the queue could not be stored: {why}")
    };
    Refused {
        code,
        detail,
        field: "",
    }
}

/// Waits for the loop, not for ever.
async fn in_time<T>(what: impl Future<Output = T>) -> Result<T, Status> {
    tokio::time::timeout(ANSWER_WITHIN, what)
        .await
        .map_err(|_late| {
            let detail = format!(
                "the batch framework has not dealt with this within {ANSWER_WITHIN:?} and may do \
                 so later; a submit with the same key is the same job"
            );
            let code = Code::Unknown;
            let field = "";
            status(&Refused {
                code,
                detail,
                field,
            })
        })
}

/// Bytes of a refusal's text.
const LONGEST_TEXT: usize = 1_000;

/// The service.
#[derive(Clone, Debug)]
pub(crate) struct Api {
    shared: Arc<Shared>,
}

fn status(refused: &Refused) -> Status {
    const GRPC: [(Code, tonic::Code); 9] = [
        (Code::NotFound, tonic::Code::NotFound),
        (Code::Invalid, tonic::Code::InvalidArgument),
        (Code::Ambiguous, tonic::Code::InvalidArgument),
        (Code::Busy, tonic::Code::ResourceExhausted),
        (Code::StoreFull, tonic::Code::ResourceExhausted),
        (Code::DiskFull, tonic::Code::ResourceExhausted),
        (Code::NoLeader, tonic::Code::Unavailable),
        (Code::Unknown, tonic::Code::Unknown),
        (Code::AlreadyTerminal, tonic::Code::FailedPrecondition),
    ];
    let known = GRPC.iter().find(|(code, _)| *code == refused.code);
    let grpc = known.map_or(tonic::Code::Internal, |(_, grpc)| *grpc);
    let mut details = ErrorDetails::new();
    details.set_error_info(
        refused.code.as_str(),
        "mete",
        std::collections::HashMap::new(),
    );
    let detail = cut(&refused.detail);
    if !refused.field.is_empty() {
        details.add_bad_request_violation(refused.field, detail);
    }
    if refused.code == Code::Busy {
        details.set_retry_info(Some(Duration::from_secs(1)));
    }
    Status::with_error_details(grpc, detail, details)
}

/// A refusal travels in headers, and clients take none that are large: a name that is quoted in it
/// may be of any length.
fn cut(text: &str) -> &str {
    text.get(..text.floor_char_boundary(LONGEST_TEXT))
        .unwrap_or(text)
}

fn stopping() -> Status {
    let mut details = ErrorDetails::new();
    details.set_error_info(
        Code::FrameworkAway.as_str(),
        "mete",
        std::collections::HashMap::new(),
    );
    let detail = "the batch framework is stopping; ask again";
    Status::with_error_details(tonic::Code::Unavailable, detail, details)
}

impl Api {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Waits, not for ever, until the queue has been read from the store.
    async fn loaded(&self) -> Result<(), Status> {
        let mut ready = self.shared.ready.subscribe();
        let loaded = tokio::time::timeout(Duration::from_secs(5), ready.wait_for(|is| *is)).await;
        match loaded {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(stopping()),
            Err(_late) => {
                let refused = Refused {
                    code: Code::Busy,
                    detail: format!(
                        "the batch framework has no session with a master yet ({:?})",
                        *self.shared.session.connection().borrow()
                    ),
                    field: "",
                };
                Err(status(&refused))
            }
        }
    }

    /// Fills what is not said and checks what only this framework knows.
    fn complete(&self, mut spec: wire::JobSpec) -> Result<wire::JobSpec, Refused> {
        if spec.role.is_empty() {
            spec.role = self.shared.roles.first().cloned().unwrap_or_default();
        }
        if !self.shared.roles.contains(&spec.role) {
            return Err(Refused::field(
                "spec.role",
                format!(
                    "this framework does not serve role '{}'; it serves {}",
                    spec.role,
                    self.shared.roles.join(", ")
                ),
            ));
        }
        demand::shape(&spec).map_err(|faults| {
            let fault = faults.list().first();
            Refused {
                code: Code::Invalid,
                detail: fault.map_or_else(|| faults.to_string(), |fault| fault.fault.clone()),
                field: "spec.shape",
            }
        })?;
        // What the broker would refuse at the launch must not be taken in: it would never run.
        let job = Queue::check(
            spec.clone(),
            String::new(),
            1,
            mete_sdk::model::Timestamp(0),
        )?;
        crate::shell::check_task(&job).map_err(|detail| Refused::field("spec", detail))?;
        Ok(spec)
    }
}

type Watching = Pin<Box<dyn Stream<Item = Result<wire::WatchResponse, Status>> + Send>>;

#[tonic::async_trait]
impl BatchService for Api {
    async fn submit(
        &self,
        request: Request<wire::SubmitRequest>,
    ) -> Result<Response<wire::SubmitResponse>, Status> {
        self.loaded().await?;
        let request = request.into_inner();
        let Some(spec) = request.spec else {
            return Err(status(&Refused::field("spec", "must be given")));
        };
        let spec = self.complete(spec).map_err(|refused| status(&refused))?;
        if request.dry_run {
            let job = Queue::check(spec, request.key, 1, mete_sdk::model::Timestamp(0))
                .map_err(|refused| status(&refused))?;
            let elements = u32::try_from(job.elements.len()).unwrap_or(u32::MAX);
            return Ok(Response::new(wire::SubmitResponse {
                job: String::new(),
                elements,
            }));
        }
        let (reply, answer) = oneshot::channel();
        let command = Command::Submit {
            spec: Box::new(spec),
            key: request.key,
            reply,
        };
        let sent = in_time(self.shared.commands.send(command)).await?;
        sent.map_err(|_closed| stopping())?;
        let answer = in_time(answer).await?.map_err(|_closed| stopping())?;
        let (job, elements) = answer.map_err(|refused| status(&refused))?;
        let elements = u32::try_from(elements).unwrap_or(u32::MAX);
        Ok(Response::new(wire::SubmitResponse { job, elements }))
    }

    async fn list(
        &self,
        request: Request<wire::ListRequest>,
    ) -> Result<Response<wire::ListResponse>, Status> {
        self.loaded().await?;
        let request = request.into_inner();
        let below = read_token(&request.page_token)?.unwrap_or(u64::MAX);
        let most = page(request.page_size);
        let wanted = |job: &&Job| {
            (request.user.is_empty() || job.spec.user == request.user)
                && (request.states.is_empty() || request.states.contains(&job.state().into()))
        };
        let response = self.shared.read(|queue| {
            let mut jobs = queue
                .jobs()
                .rev()
                .filter(|job| job.number < below)
                .filter(wanted);
            let page: Vec<&Job> = jobs.by_ref().take(most).collect();
            let more = jobs.next().is_some();
            let last = page
                .last()
                .map(|job| job.number.to_string())
                .unwrap_or_default();
            wire::ListResponse {
                jobs: page.into_iter().map(Job::row).collect(),
                next_page_token: if more { last } else { String::new() },
            }
        });
        Ok(Response::new(response))
    }

    async fn get(
        &self,
        request: Request<wire::GetRequest>,
    ) -> Result<Response<wire::GetResponse>, Status> {
        self.loaded().await?;
        let request = request.into_inner();
        let from = usize::try_from(read_token(&request.page_token)?.unwrap_or(0))
            .map_err(|_| status(&Refused::field("page_token", "not one of ours")))?;
        let most = page(request.page_size);
        let (name, index) = match request.job.split_once('/') {
            Some((name, index)) => (name, Some(index)),
            None => (request.job.as_str(), None),
        };
        let response = self.shared.read(|queue| {
            let job = queue.find(name)?;
            let positions: Vec<usize> = match index {
                Some(index) => {
                    let index = index.parse().ok().and_then(|index| job.position(index));
                    let missing = || Refused {
                        code: Code::NotFound,
                        detail: format!("job '{}' has no element '{}'", job.name, request.job),
                        field: "",
                    };
                    vec![index.ok_or_else(missing)?]
                }
                None => (from..job.elements.len()).take(most).collect(),
            };
            let next = positions.last().map_or(0, |at| at.saturating_add(1));
            let more = index.is_none() && next > 0 && next < job.elements.len();
            let framework = self.shared.framework();
            Ok(wire::GetResponse {
                row: Some(job.row()),
                spec: Some(job.spec.clone()),
                elements: positions
                    .iter()
                    .filter_map(|at| job.element(*at, framework))
                    .collect(),
                next_page_token: if more {
                    next.to_string()
                } else {
                    String::new()
                },
            })
        });
        response
            .map(Response::new)
            .map_err(|refused: Refused| status(&refused))
    }

    type WatchStream = Watching;

    async fn watch(
        &self,
        request: Request<wire::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        self.loaded().await?;
        let request = request.into_inner();
        let name = self
            .shared
            .read(|queue| queue.find(&request.job).map(|job| job.name.clone()));
        let name = name.map_err(|refused| status(&refused))?;
        let (sender, receiver) = mpsc::channel(8);
        tokio::spawn(watch_job(
            Arc::clone(&self.shared),
            name,
            request.elements,
            sender,
        ));
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn cancel(
        &self,
        request: Request<wire::CancelRequest>,
    ) -> Result<Response<wire::CancelResponse>, Status> {
        self.loaded().await?;
        let request = request.into_inner();
        if request.jobs.is_empty() || request.jobs.len() > 10_000 {
            let fault = "1 to 10000 jobs or elements";
            return Err(status(&Refused::field("jobs", fault)));
        }
        let (reply, answer) = oneshot::channel();
        let command = Command::Cancel {
            jobs: request.jobs,
            dry_run: request.dry_run,
            reply,
        };
        let sent = in_time(self.shared.commands.send(command)).await?;
        sent.map_err(|_closed| stopping())?;
        let answers = in_time(answer).await?.map_err(|_closed| stopping())?;
        let jobs = answers
            .into_iter()
            .map(|answer| {
                let (code, detail) = match answer {
                    Ok(()) => (Code::Ok, String::new()),
                    Err(refused) => (refused.code, refused.detail),
                };
                let code = code.as_str().to_owned();
                Verdict {
                    code,
                    detail,
                    ..Verdict::default()
                }
            })
            .collect();
        Ok(Response::new(wire::CancelResponse { jobs }))
    }
}

fn page(asked: u32) -> usize {
    let size = if asked == 0 {
        PAGE.0
    } else {
        asked.min(PAGE.1)
    };
    usize::try_from(size).unwrap_or(usize::MAX)
}

fn read_token(token: &str) -> Result<Option<u64>, Status> {
    if token.is_empty() {
        return Ok(None);
    }
    let bad = |_| status(&Refused::field("page_token", "not one of ours"));
    token.parse().map(Some).map_err(bad)
}

/// Sends a job's row whenever it differs from the last one, until it is over.
async fn watch_job(
    shared: Arc<Shared>,
    name: String,
    with_elements: bool,
    sender: mpsc::Sender<Result<wire::WatchResponse, Status>>,
) {
    let mut changes = shared.changed.subscribe();
    let mut last_row = None;
    let mut sent: Vec<(usize, wire::Element)> = Vec::new();
    loop {
        changes.mark_unchanged();
        let found = shared.read(|queue| {
            let job = queue.find(&name).ok()?;
            let elements: Vec<(usize, wire::Element)> = if with_elements {
                (0..job.elements.len())
                    .filter_map(|at| Some((at, job.element(at, shared.framework())?)))
                    .filter(|(_, element)| element.run.is_some())
                    .collect()
            } else {
                Vec::new()
            };
            Some((job.row(), elements, job.is_over()))
        });
        let Some((row, elements, over)) = found else {
            return;
        };
        let fresh: Vec<wire::Element> = elements
            .iter()
            .filter(|(at, element)| {
                let known = sent.binary_search_by_key(at, |(at, _)| *at);
                known
                    .ok()
                    .and_then(|known| sent.get(known))
                    .is_none_or(|(_, old)| old != element)
            })
            .map(|(_, element)| element.clone())
            .collect();
        if last_row.as_ref() != Some(&row) || !fresh.is_empty() {
            let response = wire::WatchResponse {
                row: Some(row.clone()),
                elements: fresh,
            };
            if sender.send(Ok(response)).await.is_err() {
                return;
            }
            last_row = Some(row);
            sent = elements;
        }
        if over || changes.changed().await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_that_quotes_a_long_name_still_fits_in_its_headers() {
        let name = "ü".repeat(10_000);
        let refused = Refused {
            code: Code::Invalid,
            field: "role",
            detail: format!("no role {name}"),
        };
        let status = status(&refused);
        assert!(status.message().len() <= LONGEST_TEXT);
        // Once as the sentence, once at the field, and what is around them.
        assert!(status.details().len() <= 3 * LONGEST_TEXT);
        assert_eq!(status.code(), tonic::Code::InvalidArgument);
    }
}
