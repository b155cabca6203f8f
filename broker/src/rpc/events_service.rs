//! `mete.events.v1`: decode, ask, encode.

use std::sync::Arc;

use mete_model::{AgentId, FrameworkId, Span};
use mete_proto::convert::{At, read_amount, whole};
use mete_proto::events::v1 as wire;
use mete_proto::events::v1::event_service_server::EventService;
use mete_state::State;
use tonic::{Request, Response, Status};

use super::feed_stream::{Answers, NotTaken, Sink, stream};
use super::problem::from_problem;
use super::status;
use crate::admin::feed::Place;
use crate::admin::happened::Names;
use crate::admin::rows::framework_name;
use crate::admin::{Feed, Problem};
use crate::handle::Handle;

/// Events written out under one lock.
const EVENTS: usize = 500;

/// The service.
#[derive(Clone, Debug)]
pub struct Events {
    handle: Handle,
    feed: Arc<Feed>,
}

impl Events {
    /// A service behind this door.
    #[must_use]
    pub fn new(handle: Handle, feed: Arc<Feed>) -> Self {
        Self { handle, feed }
    }

    fn begin(&self, request: &wire::WatchRequest) -> Result<(u64, Place), Problem> {
        whole(|faults| {
            if let Some(ago) = request.since_ms_ago {
                read_amount(ago, At::root("since_ms_ago"), faults)?;
                if request.from_revision.is_some() {
                    let fault = "a revision is given already: one of the two only";
                    faults.add(At::root("since_ms_ago"), fault);
                }
            }
            Some(())
        })?;
        if let Some(ago) = request.since_ms_ago {
            return Ok((0, self.feed.events_since(Span(ago))));
        }
        let from = request
            .from_revision
            .unwrap_or_else(|| self.feed.revision());
        let place = self.feed.events_after(from);
        let place = place.map_err(|compacted| Problem::compacted(from, compacted))?;
        Ok((from, place))
    }
}

#[tonic::async_trait]
impl EventService for Events {
    type WatchStream = Answers<wire::Event>;

    async fn watch(
        &self,
        request: Request<wire::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let request = request.into_inner();
        let (from, place) = self
            .begin(&request)
            .map_err(|problem| from_problem(&problem))?;
        let reading = Reading {
            handle: self.handle.clone(),
            feed: Arc::clone(&self.feed),
            place,
            sent: from,
            follow: request.follow,
        };
        Ok(Response::new(stream(move |sink| reading.run(sink))))
    }
}

/// One reader of events.
struct Reading {
    handle: Handle,
    feed: Arc<Feed>,
    place: Place,
    sent: u64,
    follow: bool,
}

impl Reading {
    async fn run(mut self, sink: Sink<wire::Event>) -> Result<(), Status> {
        let mut latest = self.feed.latest();
        loop {
            latest.mark_unchanged();
            let batch = self
                .feed
                .events(self.place, EVENTS)
                .map_err(|compacted| from_problem(&Problem::compacted(self.sent, compacted)))?;
            let events: Vec<wire::Event> = {
                let state = self.handle.state();
                let names = Known {
                    state: &state,
                    feed: &self.feed,
                };
                let entries = batch.entries.iter();
                entries
                    .map(|(revision, what)| what.write(*revision, &names))
                    .collect()
            };
            for event in events {
                let revision = event.revision;
                match sink.send(event).await {
                    Ok(()) => {}
                    Err(NotTaken::Gone) => return Ok(()),
                    Err(NotTaken::Slow) => {
                        // Of this revision some may be missing: it is told again.
                        let resume = revision.saturating_sub(1);
                        return Err(from_problem(&Problem::Slow { resume }));
                    }
                }
            }
            self.place = batch.next;
            self.sent = self.sent.max(batch.complete);
            if !batch.at_end {
                continue;
            }
            if !self.follow {
                return Ok(());
            }
            tokio::select! {
                changed = latest.changed() => if changed.is_err() {
                    return Err(status::refuse(
                        mete_model::Code::NoLeader,
                        "this master is ending; watch another one from the last revision",
                    ));
                },
                () = sink.closed() => return Ok(()),
            }
        }
    }
}

/// Names as they are now, or were last.
struct Known<'a> {
    state: &'a State,
    feed: &'a Feed,
}

impl Names for Known<'_> {
    fn node(&self, id: AgentId) -> String {
        if let Some(agent) = self.state.agent(id) {
            return agent.node_name.clone();
        }
        let known = self.feed.node_name(id);
        known.map_or_else(|| id.to_string(), |name| name.to_string())
    }

    fn framework(&self, id: FrameworkId) -> String {
        framework_name(self.state, id)
    }
}
