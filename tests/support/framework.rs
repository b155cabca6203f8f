//! A framework that does exactly what a story says, on the SDK's session and nothing above it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mete_sdk::{
    Accept, Event, Events, Launch, LaunchVerdict, Mode, Offer, Place, Placed, RunId, Session,
    SessionConfig, TaskSpec, TaskUpdate,
};

use super::{DEADLINE, Site};

/// A session with everything that came on it so far.
#[derive(Debug)]
pub(crate) struct Raw {
    /// The session.
    pub(crate) session: Session,
    events: Events,
    /// Every update, in order.
    pub(crate) updates: Vec<TaskUpdate>,
    /// Offers that came and were not asked for yet.
    pub(crate) offers: Vec<Offer>,
    /// How often the stream stood.
    pub(crate) connected: u32,
    /// Offers that were taken back.
    pub(crate) rescinded: Vec<mete_sdk::model::OfferId>,
}

impl Raw {
    /// Opens a session and waits until it stands.
    pub(crate) async fn open(site: &Site, name: &str, role: &str) -> Self {
        let config = SessionConfig::new(masters_of(site), name, role);
        Self::open_with(config).await
    }

    /// The same with more said.
    pub(crate) async fn open_with(config: SessionConfig) -> Self {
        let (session, events) = Session::open(config).expect("a good configuration");
        let mut raw = Self {
            session,
            events,
            updates: Vec::new(),
            offers: Vec::new(),
            connected: 0,
            rescinded: Vec::new(),
        };
        raw.until("the session to stand", |raw| {
            (raw.connected > 0).then_some(())
        })
        .await;
        raw
    }

    /// Takes events in until the story's condition holds. Updates are acknowledged.
    pub(crate) async fn until<T>(
        &mut self,
        what: &str,
        mut look: impl FnMut(&mut Self) -> Option<T>,
    ) -> T {
        let deadline = tokio::time::Instant::now() + DEADLINE;
        loop {
            if let Some(found) = look(self) {
                return found;
            }
            match tokio::time::timeout_at(deadline, self.events.next()).await {
                Ok(Some(event)) => self.take(event),
                Ok(None) => panic!("the session ended while waiting for {what}"),
                Err(_) => panic!(
                    "waited {DEADLINE:?} for {what}; updates: {:#?}",
                    self.updates
                ),
            }
        }
    }

    /// Takes in what comes for so long.
    pub(crate) async fn listen(&mut self, time: Duration) {
        let deadline = tokio::time::Instant::now() + time;
        while let Ok(Some(event)) = tokio::time::timeout_at(deadline, self.events.next()).await {
            self.take(event);
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Connected(_) => self.connected += 1,
            Event::Offers(offers) => self.offers.extend(offers),
            Event::Rescinded(rescinded) => {
                self.offers
                    .retain(|offer| !rescinded.offers.contains(&offer.id));
                self.rescinded.extend(rescinded.offers);
            }
            Event::Update(update) => {
                self.session.acknowledge(&update.run(), update.sequence);
                self.updates.push(update);
            }
            Event::Closed(error) => panic!("the session is over: {error}"),
            // Others say nothing that a story asks for.
            Event::AgentChanged(_) | Event::Disconnected(_) | _ => {}
        }
    }

    /// Waits for an offer made for this claim.
    pub(crate) async fn offer(&mut self, claim: &str) -> Offer {
        let what = format!("an offer for {claim}");
        self.until(&what, |raw| {
            let at = raw
                .offers
                .iter()
                .position(|offer| offer.claim.as_ref().is_some_and(|id| id.as_str() == claim))?;
            Some(raw.offers.remove(at))
        })
        .await
    }

    /// Waits until a run's update is of this kind.
    pub(crate) async fn update(
        &mut self,
        run: &RunId,
        what: &str,
        is: impl Fn(&TaskUpdate) -> bool,
    ) -> TaskUpdate {
        let what = format!("{run} to be {what}");
        self.until(&what, |raw| {
            raw.updates
                .iter()
                .find(|update| update.run() == *run && is(update))
                .cloned()
        })
        .await
    }

    /// Launches one run on one slot of the offer; what else it carries is given back.
    pub(crate) async fn launch_one(
        &mut self,
        offer: &Offer,
        run: &RunId,
        spec: &TaskSpec,
    ) -> LaunchVerdict {
        let accept = accept(offer, vec![placed(offer, run, spec)]);
        let verdicts = self
            .session
            .accept(accept)
            .await
            .expect("the call is answered");
        assert_eq!(verdicts.len(), 1, "one verdict for one launch");
        verdicts.into_iter().next().expect("just counted")
    }
}

/// The masters of a site.
fn masters_of(site: &Site) -> Vec<String> {
    site.address().split(',').map(str::to_owned).collect()
}

/// A run of this task.
pub(crate) fn run(task: &str, attempt: u32) -> RunId {
    RunId::new(task.parse().expect("a task's name"), attempt)
}

/// One launch on one slot of the offer: an equal part of its amounts.
pub(crate) fn placed(offer: &Offer, run: &RunId, spec: &TaskSpec) -> Placed {
    let slots = u64::from(offer.slots.max(1));
    let mut resources = offer.resources.clone();
    resources.cpu.0 /= slots;
    resources.memory.0 /= slots;
    resources.disk.0 /= slots;
    Placed {
        launch: Launch {
            run: run.clone(),
            spec: Arc::new(spec.run.clone()),
            environment: BTreeMap::new(),
            labels: BTreeMap::new(),
            replaces: None,
        },
        claim: offer.claim.clone(),
        resources,
    }
}

/// An accept of one offer.
pub(crate) fn accept(offer: &Offer, launches: Vec<Placed>) -> Accept {
    Accept {
        offers: vec![offer.id],
        launches,
        mode: Mode::Each,
        unused_reason: String::new(),
        unused_refuse: None,
        place: Place {
            agent: Some(offer.agent),
            node: offer.node.clone(),
            node_address: offer.node_address.clone(),
            role: Some(offer.role.clone()),
        },
    }
}

/// A runtime for a story's own side; the cluster's side are processes.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime")
}
