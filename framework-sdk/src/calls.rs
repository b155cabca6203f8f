//! Unary calls: numbered in order, sent again with the same number until they are answered.
//!
//! A call that has a number runs in a task of its own, so that a caller who gives up leaves no gap
//! behind. One that is refused for now is repeated at its place: those after it that have not been
//! sent wait for its answer. Reads and acknowledgements need neither order nor repeat protection
//! and have number 0.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use mete_model::Code;
use mete_proto::framework::v1::{self as fw, CallHeader};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;
use tonic::transport::Channel;

use crate::client::{Advice, FrameworkServiceClient, advise};
use crate::core::{Backoff, Core, Link};
use crate::error::{Error, Reason, Result};

/// An answer that takes longer is asked for again. The broker holds a call 2 s at the most.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// How long a call whose time is over has to say so.
const GIVE_UP_WITHIN: Duration = Duration::from_millis(50);

/// A request of the framework service that carries a header.
pub(crate) trait Call: Clone + Send + Sync + 'static {
    type Answer: Send + 'static;
    const NAME: &'static str;
    /// Takes part in the order of calls.
    const NUMBERED: bool;

    fn send(
        self,
        client: FrameworkServiceClient<Channel>,
        header: CallHeader,
    ) -> impl Future<Output = Result<Self::Answer, tonic::Status>> + Send;
}

macro_rules! calls {
    ($($request:ident => $answer:ident, $method:ident, $numbered:literal;)*) => {$(
        impl Call for fw::$request {
            type Answer = fw::$answer;
            const NAME: &'static str = stringify!($method);
            const NUMBERED: bool = $numbered;

            async fn send(
                mut self,
                mut client: FrameworkServiceClient<Channel>,
                header: CallHeader,
            ) -> Result<Self::Answer, tonic::Status> {
                self.header = Some(header);
                client.$method(self).await.map(tonic::Response::into_inner)
            }
        }
    )*};
}

calls! {
    UpdateDemandRequest => UpdateDemandResponse, update_demand, true;
    AcceptRequest => AcceptResponse, accept, true;
    DeclineRequest => DeclineResponse, decline, true;
    SuppressRequest => SuppressResponse, suppress, true;
    ReviveRequest => ReviveResponse, revive, true;
    UpdateFrameworkRequest => UpdateFrameworkResponse, update_framework, true;
    KillRequest => KillResponse, kill, true;
    StoreWriteRequest => StoreWriteResponse, store_write, true;
    TeardownRequest => TeardownResponse, teardown, true;
    AcknowledgeRequest => AcknowledgeResponse, acknowledge, false;
    ReconcileRequest => ReconcileResponse, reconcile, false;
    StoreGetRequest => StoreGetResponse, store_get, false;
    StoreListRequest => StoreListResponse, store_list, false;
}

/// An answer that is on its way. Dropping it does not take the call back.
#[derive(Debug)]
pub(crate) struct Pending<T>(oneshot::Receiver<Result<T>>);

impl<T> Future for Pending<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0)
            .poll(cx)
            .map(|answer| answer.unwrap_or(Err(Error::Closed)))
    }
}

/// Room in the window of unanswered calls.
#[derive(Debug)]
pub(crate) struct Room {
    _held: OwnedSemaphorePermit,
}

/// Waits while the window is full.
pub(crate) async fn room(core: &Core) -> Result<Room> {
    let permit = Arc::clone(&core.window).acquire_owned().await;
    permit
        .map(|_held| Room { _held })
        .map_err(|_| Error::Closed)
}

/// Gives the call its place in the order and starts it.
pub(crate) fn start<C: Call>(core: &Arc<Core>, room: Room, call: C) -> Pending<C::Answer> {
    start_until(core, room, call, None)
}

fn start_until<C: Call>(
    core: &Arc<Core>,
    room: Room,
    call: C,
    until: Option<Instant>,
) -> Pending<C::Answer> {
    let number = if C::NUMBERED {
        core.numbers().take()
    } else {
        0
    };
    let (answered, pending) = oneshot::channel();
    let core = Arc::clone(core);
    tokio::spawn(async move {
        let answer = until_answered(&core, call, number, until).await;
        core.close_number(number);
        drop(room);
        // Nobody waits any more: the call had its effect all the same.
        let _ = answered.send(answer);
    });
    Pending(pending)
}

/// Gives the call its place in the order. Waits only while the window is full.
pub(crate) async fn submit<C: Call>(core: &Arc<Core>, call: C) -> Result<Pending<C::Answer>> {
    Ok(start(core, room(core).await?, call))
}

/// Sends the call and waits for its answer.
pub(crate) async fn ask<C: Call>(core: &Arc<Core>, call: C) -> Result<C::Answer> {
    if C::NUMBERED {
        submit(core, call).await?.await
    } else {
        until_answered(core, call, 0, None).await
    }
}

/// As [`ask`] for a numbered call, but no longer than said. A call that has surely not been done by
/// then is given up and never will be. One of which nobody can tell goes on being asked.
pub(crate) async fn ask_within<C: Call>(
    core: &Arc<Core>,
    call: C,
    longest: Duration,
) -> Result<C::Answer> {
    let until = Instant::now() + longest;
    let Ok(room) = tokio::time::timeout_at(until, room(core)).await else {
        let detail = "more calls wait for their answers than may be on their way at once";
        return Err(Error::Unavailable(Reason::new(Code::Busy, detail)));
    };
    let mut pending = start_until(core, room?, call, Some(until));
    // The call itself is the first to know that its time is over; a little later nobody will.
    match tokio::time::timeout_at(until + GIVE_UP_WITHIN, &mut pending).await {
        Ok(answer) => answer,
        Err(_late) => {
            let detail =
                format!("no answer within {longest:?}; it may have been done, or be done later");
            Err(Error::Unavailable(Reason::new(Code::Unknown, detail)))
        }
    }
}

/// What an unanswered call waits for, and what it was told last.
struct Attempts {
    until: Option<Instant>,
    /// An attempt may have had its effect although its answer is lost.
    maybe_done: bool,
    last: Reason,
}

impl Attempts {
    /// Waits for what the next attempt needs; an error when the time is over and nothing was done.
    async fn wait<T>(&self, what: impl Future<Output = T>) -> Result<T> {
        match self.until.filter(|_| !self.maybe_done) {
            None => Ok(what.await),
            Some(until) => tokio::time::timeout_at(until, what)
                .await
                .map_err(|_late| Error::Unavailable(self.last.clone())),
        }
    }
}

async fn until_answered<C: Call>(
    core: &Core,
    call: C,
    number: u64,
    until: Option<Instant>,
) -> Result<C::Answer> {
    let mut backoff = Backoff::default();
    let mut newer_than = 0;
    let mut attempts = Attempts {
        until,
        maybe_done: false,
        last: Reason::new(Code::NoLeader, "no master that leads could be reached"),
    };
    loop {
        if attempts.wait(core.turn_of(number)).await.is_err() {
            // It was never sent: what holds it up is what there is to say.
            let why = core.why_refused().unwrap_or(attempts.last);
            return Err(Error::Unavailable(why));
        }
        let link = attempts.wait(core.link_after(newer_than)).await??;
        let status = tokio::select! {
            answer = call.clone().send(link.client.clone(), header(core, &link, number)) => {
                match answer {
                    Ok(answer) => return Ok(answer),
                    Err(status) => status,
                }
            }
            () = core.link_lost(link.generation) => {
                attempts.maybe_done = true;
                newer_than = link.generation;
                continue;
            }
            () = tokio::time::sleep(ANSWER_WITHIN) => {
                tonic::Status::deadline_exceeded("no answer in time")
            }
        };
        match advise(&status) {
            Advice::Elsewhere(leader) => {
                core.redirect(link.generation, leader);
                newer_than = link.generation;
            }
            Advice::Later { after, reason } => {
                tracing::debug!(call = C::NAME, number, %reason, "call will be sent again");
                attempts.maybe_done |= !is_surely_undone(&reason);
                core.refuse_number(number, &reason);
                core.doubt(link.generation, &reason);
                attempts.last = reason;
                let pause = backoff.next().max(after);
                attempts
                    .wait(async {
                        tokio::select! {
                            () = tokio::time::sleep(pause) => {}
                            () = core.link_lost(link.generation) => backoff.reset(),
                        }
                    })
                    .await?;
            }
            Advice::No(error) => {
                if error.is_final() {
                    core.close(error.clone());
                }
                return Err(error);
            }
        }
    }
}

/// Says whether a refusal for now means that nothing was done.
fn is_surely_undone(reason: &Reason) -> bool {
    matches!(
        reason.known_code(),
        Some(Code::Busy | Code::CallGap | Code::NoLeader | Code::NotLeader)
    )
}

/// Made anew for each attempt: `answered` may have moved, and with it a gap may have closed.
fn header(core: &Core, link: &Link, number: u64) -> CallHeader {
    CallHeader {
        framework_id: link.identity.framework_id.clone(),
        incarnation: link.identity.incarnation,
        call: number,
        answered: core.numbers().answered(),
    }
}
