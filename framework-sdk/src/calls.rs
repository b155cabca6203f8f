//! Unary calls: numbered in order, sent again with the same number until they are answered.
//!
//! A call that has a number runs in a task of its own, so that a caller who gives up leaves no gap
//! behind. Reads and acknowledgements need neither order nor repeat protection and have number 0.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use mete_proto::framework::v1::{self as fw, CallHeader};
use tokio::sync::oneshot;
use tonic::transport::Channel;

use crate::client::{Advice, FrameworkServiceClient, advise};
use crate::core::{Backoff, Core, Link};
use crate::error::{Error, Result};

/// An answer that takes longer is asked for again. The broker holds a call 2 s at the most.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

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

/// Gives the call its place in the order and starts it. Waits only while the window is full.
pub(crate) async fn submit<C: Call>(core: &Arc<Core>, call: C) -> Result<Pending<C::Answer>> {
    let permit = Arc::clone(&core.window)
        .acquire_owned()
        .await
        .map_err(|_| Error::Closed)?;
    let number = if C::NUMBERED {
        core.numbers().take()
    } else {
        0
    };
    let (answered, pending) = oneshot::channel();
    let core = Arc::clone(core);
    tokio::spawn(async move {
        let answer = until_answered(&core, call, number).await;
        core.numbers().close(number);
        drop(permit);
        // Nobody waits any more: the call had its effect all the same.
        let _ = answered.send(answer);
    });
    Ok(Pending(pending))
}

/// Sends the call and waits for its answer.
pub(crate) async fn ask<C: Call>(core: &Arc<Core>, call: C) -> Result<C::Answer> {
    if C::NUMBERED {
        submit(core, call).await?.await
    } else {
        until_answered(core, call, 0).await
    }
}

async fn until_answered<C: Call>(core: &Core, call: C, number: u64) -> Result<C::Answer> {
    let mut backoff = Backoff::default();
    let mut newer_than = 0;
    loop {
        let link = core.link_after(newer_than).await?;
        let status = tokio::select! {
            answer = call.clone().send(link.client.clone(), header(core, &link, number)) => {
                match answer {
                    Ok(answer) => return Ok(answer),
                    Err(status) => status,
                }
            }
            () = core.link_lost(link.generation) => {
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
                let pause = backoff.next().max(after);
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = core.link_lost(link.generation) => backoff.reset(),
                }
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

/// Made anew for each attempt: `answered` may have moved, and with it a gap may have closed.
fn header(core: &Core, link: &Link, number: u64) -> CallHeader {
    CallHeader {
        framework_id: link.identity.framework_id.clone(),
        incarnation: link.identity.incarnation,
        call: number,
        answered: core.numbers().answered(),
    }
}
