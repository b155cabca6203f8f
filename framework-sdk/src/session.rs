//! Layer 1: a session with the broker. Cheap to clone; usable from any task.
//!
//! [`Session::open`] gives the handle and its [`Events`]. A task of the session's own keeps the
//! stream open; the handle numbers calls and sends them again until they are answered. What a call
//! promises is written at each of them; all of them fail at once when the session is over.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mete_model::{ClaimId, Code, OfferId, RolePath, RunId, TaskId};
use mete_proto::convert::{write_offer_id, write_run};
use mete_proto::framework::v1 as fw;
use tokio::sync::{mpsc, watch};

use crate::accept::{Accept, Accepting, LaunchVerdict, Refuse};
use crate::calls::ask;
use crate::claims::Claim;
use crate::client::{SharedDial, TcpDial};
use crate::core::{Core, locked};
use crate::demand::{Change, declare};
use crate::driver::Driver;
use crate::error::{Error, Reason, Result};
use crate::event::{Events, Snapshot};
use crate::node::{LogOptions, Logs, NodeClient};
use crate::store::Store;
use crate::task::{ClaimInfo, RunInfo};
use crate::wire;

/// Tasks of one claim, those launched included: the broker takes no more.
const MOST_OF_A_CLAIM: u32 = 100_000;

/// Kills in one call.
const KILLS_AT_ONCE: usize = 4_096;

/// How long a polite end may take.
const POLITE_END: Duration = Duration::from_secs(2);

/// How a framework presents itself, and where its masters are.
#[derive(Clone, Debug)]
pub struct SessionConfig {
    /// `host:port` of every master that is known; one is enough to find the others.
    pub masters: Vec<String>,
    /// The framework's name: with the principal it is its identity.
    pub name: String,
    /// Roles that may be charged; at least one.
    pub roles: Vec<String>,
    /// How long tasks live without their framework; `None` = 7 days.
    pub failover_timeout: Option<Duration>,
    /// Ends with its last stream.
    pub ephemeral: bool,
    /// Whole-node offers without claims.
    pub plain_offers: bool,
    /// Shown, never interpreted.
    pub labels: BTreeMap<String, String>,
    /// Where the framework serves an API of its own, `host:port`; empty = nowhere.
    pub service_address: String,
    /// A stream that says nothing for so long is dead.
    pub silence: Duration,
    /// How addresses are reached.
    pub dial: SharedDial,
}

impl SessionConfig {
    /// The configuration that a framework of this name in one role needs at least.
    #[must_use]
    pub fn new(masters: Vec<String>, name: &str, role: &str) -> Self {
        Self {
            masters,
            name: name.to_owned(),
            roles: vec![role.to_owned()],
            failover_timeout: None,
            ephemeral: false,
            plain_offers: false,
            labels: BTreeMap::new(),
            service_address: String::new(),
            silence: Duration::from_secs(10),
            dial: Arc::new(TcpDial::default()),
        }
    }
}

/// Whether the stream is open.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Connection {
    /// Looking for the leader.
    Connecting,
    /// The stream is open.
    Connected {
        /// The leader's address.
        address: String,
    },
    /// The session is over.
    Closed,
}

/// A session with the broker. See the module. It goes on until it is over or
/// [`Session::disconnect`], [`Session::sever`] or [`Session::teardown`] ends it, also when every
/// handle was dropped.
#[derive(Clone, Debug)]
pub struct Session {
    pub(crate) core: Arc<Core>,
}

impl Session {
    /// Opens a session. Returns at once; the first [`crate::Event::Connected`] says that it stands.
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is no master, no role, or a name that is not permitted.
    pub fn open(config: SessionConfig) -> Result<(Self, Events)> {
        if config.masters.is_empty() {
            return Err(Error::field("masters", "at least one address is needed"));
        }
        if config.name.is_empty() || config.name.chars().count() > 128 {
            return Err(Error::field("name", "1 to 128 characters are permitted"));
        }
        let roles = roles_of(&config.roles)?;
        let (bell, rung) = mpsc::channel(1);
        let core = Core::new(config, roles, bell);
        tokio::spawn(Driver::new(Arc::clone(&core)).run());
        let events = Events::new(Arc::clone(&core), rung);
        Ok((Self { core }, events))
    }

    /// Whether the stream is open, as something to wait on.
    #[must_use]
    pub fn connection(&self) -> watch::Receiver<Connection> {
        self.core.connection.subscribe()
    }

    /// Waits until the session stands.
    ///
    /// # Errors
    /// Why the session is over.
    pub async fn ready(&self) -> Result<()> {
        self.core.link_after(0).await.map(drop)
    }

    /// The framework's id, once the session has stood.
    #[must_use]
    pub fn framework_id(&self) -> Option<String> {
        self.identity().map(|identity| identity.framework_id)
    }

    /// Which process of this framework it is, from 1, once the session has stood.
    #[must_use]
    pub fn incarnation(&self) -> Option<u64> {
        self.identity().map(|identity| identity.incarnation)
    }

    fn identity(&self) -> Option<crate::core::Identity> {
        locked(&self.core.identity).clone()
    }

    /// The framework's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.core.config.name
    }

    /// Tasks that are not over, launches on their way included.
    #[must_use]
    pub fn live_tasks(&self) -> usize {
        self.core.view().live()
    }

    /// Tasks that the claims still want, launches on their way left out.
    #[must_use]
    pub fn wanted(&self) -> u64 {
        self.core.view().wanted()
    }

    /// Runs and claims as this process knows them at this moment.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.core.view().snapshot()
    }

    /// A run that is not over.
    #[must_use]
    pub fn run(&self, run: &RunId) -> Option<RunInfo> {
        self.core.view().run(run).cloned()
    }

    /// A claim as the broker has it.
    #[must_use]
    pub fn claim(&self, id: &str) -> Option<ClaimInfo> {
        let id = ClaimId::new(id).ok()?;
        self.core.view().claim(&id).cloned()
    }

    /// Declares a claim, or changes it. Harmless when it stands already, also after a restart:
    /// what was launched for it counts against it for ever. Raise the count to ask for more.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::Denied`], or why the session is over.
    pub async fn want(&self, id: &str, claim: Claim) -> Result<()> {
        self.want_all([(id, claim)]).await
    }

    /// Declares many claims in one step.
    ///
    /// # Errors
    /// As [`Session::want`]; nothing is declared then.
    pub async fn want_all<'a>(
        &self,
        claims: impl IntoIterator<Item = (&'a str, Claim)>,
    ) -> Result<()> {
        let upsert = {
            let roles = locked(&self.core.roles);
            let built: Result<Vec<_>> = claims
                .into_iter()
                .map(|(id, claim)| claim.build(id, &roles))
                .collect();
            built?
        };
        self.change_demand(upsert, Vec::new()).await
    }

    /// Asks for `more` tasks of a claim that stands.
    ///
    /// # Errors
    /// [`Error::Refused`] with `NOT_FOUND` when there is no such claim, else as [`Session::want`].
    pub async fn want_more(&self, id: &str, more: u32) -> Result<()> {
        self.ready().await?;
        let Some(mut info) = self.claim(id) else {
            let reason = Reason::new(Code::NotFound, format!("no claim '{id}'"));
            return Err(Error::Refused(reason));
        };
        info.claim.count = info.claim.count.saturating_add(more);
        self.change_demand(vec![info.claim], Vec::new()).await
    }

    /// Declares a claim so that `remaining` tasks are wanted beyond those launched for it already,
    /// launches on their way included. The claim's own count does not matter.
    ///
    /// Nothing wanted and nothing launched is no claim. A claim whose launches come near the
    /// largest count is made anew.
    ///
    /// # Errors
    /// As [`Session::want`].
    pub async fn want_remaining(&self, id: &str, claim: Claim, remaining: u32) -> Result<()> {
        self.ready().await?;
        let launched = self.core.view().launched_for(&ClaimId::new(id)?);
        let count = launched.saturating_add(remaining);
        if (1..=MOST_OF_A_CLAIM).contains(&count) {
            return self.want(id, claim.count(count)).await;
        }
        if self.claim(id).is_some() {
            self.withdraw([id]).await?;
        }
        if remaining == 0 {
            return Ok(());
        }
        self.want(id, claim.count(remaining.min(MOST_OF_A_CLAIM)))
            .await
    }

    /// Withdraws claims; their offers are taken back, their tasks go on.
    ///
    /// # Errors
    /// As [`Session::want`].
    pub async fn withdraw<'a>(&self, ids: impl IntoIterator<Item = &'a str>) -> Result<()> {
        let remove: Result<Vec<_>, _> = ids.into_iter().map(ClaimId::new).collect();
        self.change_demand(Vec::new(), remove?).await
    }

    /// Puts and withdraws claims in one committed step. Changes that wait go out together.
    /// Dropping the future takes a change back that was not sent yet.
    ///
    /// # Errors
    /// As [`Session::want`].
    pub async fn change_demand(
        &self,
        upsert: Vec<mete_model::Claim>,
        remove: Vec<ClaimId>,
    ) -> Result<()> {
        declare(&self.core, Change { upsert, remove }).await
    }

    /// Launches on offers of one agent and waits for the verdicts.
    ///
    /// # Errors
    /// When nothing was evaluated: wrong fields, not permitted, or why the session is over.
    pub async fn accept(&self, accept: Accept) -> Result<Vec<LaunchVerdict>> {
        self.begin_accept(accept).await?.await
    }

    /// Gives an accept its place in the order of calls; its verdicts come later. Many may be on
    /// their way at once.
    ///
    /// # Errors
    /// As [`Session::accept`].
    pub async fn begin_accept(&self, accept: Accept) -> Result<Accepting> {
        crate::accept::begin(&self.core, accept).await
    }

    /// Gives offers back. `refuse` hides what they carried, until demand changes if not said
    /// otherwise; the reason is shown by `mete why`.
    ///
    /// # Errors
    /// As [`Session::accept`]. Offers that lapsed meanwhile are no error.
    pub async fn decline(&self, offers: &[OfferId], reason: &str, refuse: Refuse) -> Result<()> {
        if offers.is_empty() {
            return Ok(());
        }
        ask(&self.core, decline_request(offers, reason, refuse))
            .await
            .map(drop)
    }

    /// Gives a decline its place in the order of calls, and does not wait for its answer.
    pub(crate) async fn begin_decline(
        &self,
        offers: &[OfferId],
        reason: &str,
        refuse: Refuse,
    ) -> Result<()> {
        if offers.is_empty() {
            return Ok(());
        }
        let request = decline_request(offers, reason, refuse);
        crate::calls::submit(&self.core, request).await.map(drop)
    }

    /// No more offers for these roles (all if none is named) until [`Session::revive`].
    ///
    /// # Errors
    /// As [`Session::accept`].
    pub async fn suppress(&self, roles: &[&str]) -> Result<()> {
        let request = fw::SuppressRequest {
            header: None,
            roles: roles.iter().map(|role| (*role).to_owned()).collect(),
        };
        ask(&self.core, request).await?;
        let all: Vec<String> = locked(&self.core.roles)
            .iter()
            .map(ToString::to_string)
            .collect();
        let mut view = self.core.view();
        for role in all {
            let named = roles.is_empty() || roles.contains(&role.as_str());
            if named && !view.suppressed.contains(&role) {
                view.suppressed.push(role);
            }
        }
        Ok(())
    }

    /// Offers again for these roles (all if none is named); clears their refusals.
    ///
    /// # Errors
    /// As [`Session::accept`].
    pub async fn revive(&self, roles: &[&str]) -> Result<()> {
        let request = fw::ReviveRequest {
            header: None,
            roles: roles.iter().map(|role| (*role).to_owned()).collect(),
        };
        ask(&self.core, request).await?;
        let mut view = self.core.view();
        view.suppressed
            .retain(|role| !roles.is_empty() && !roles.contains(&role.as_str()));
        Ok(())
    }

    /// Asks for runs to be ended; the broker owes it until they are. `grace` is the time from
    /// SIGTERM to SIGKILL, the spec's if not said. A verdict for each run, in order.
    ///
    /// # Errors
    /// As [`Session::accept`].
    pub async fn kill(
        &self,
        runs: &[RunId],
        grace: Option<Duration>,
        reason: &str,
    ) -> Result<Vec<Result<(), Reason>>> {
        let mut verdicts = Vec::with_capacity(runs.len());
        for part in runs.chunks(KILLS_AT_ONCE) {
            let request = fw::KillRequest {
                header: None,
                runs: part.iter().map(write_run).collect(),
                grace_ms: grace.map(|grace| wire::span(grace).0),
                reason: reason.to_owned(),
            };
            let answer = ask(&self.core, request).await?;
            let read = answer
                .runs
                .into_iter()
                .map(Some)
                .chain(std::iter::repeat(None));
            verdicts.extend(read.map(wire::verdict_from).take(part.len()));
        }
        Ok(verdicts)
    }

    /// Says that a status is dealt with, and all before it of the same run. Sent soon, together
    /// with others; the runner does it by itself after the handler returned `Ok`.
    pub fn acknowledge(&self, run: &RunId, sequence: u64) {
        self.acknowledge_all([(run.clone(), sequence)]);
    }

    /// Says that many statuses are dealt with.
    pub fn acknowledge_all(&self, items: impl IntoIterator<Item = (RunId, u64)>) {
        let mut known_here = Vec::new();
        {
            let mut view = self.core.view();
            for (run, sequence) in items {
                if sequence == 0 {
                    // Found out by the session itself: the broker has nothing to forget.
                    view.forget(&run);
                } else {
                    view.handled(&run, sequence);
                    known_here.push((run, sequence));
                }
            }
        }
        crate::acknowledge::acknowledge(&self.core, known_here);
    }

    /// Follows what a run writes, from its agent. A run that has ended and was acknowledged is
    /// known no more: keep its node address for later, with [`crate::node::NodeClient`].
    ///
    /// # Errors
    /// [`Error::Refused`] with `NOT_FOUND` when nobody knows the run or where it is.
    pub async fn logs(&self, run: &RunId, options: LogOptions) -> Result<Logs> {
        let known = self.core.view().node_address(run);
        let address = match known.filter(|address| !address.is_empty()) {
            Some(address) => address,
            None => self.node_address(run).await?,
        };
        let framework_id = self.framework_id().ok_or(Error::Closed)?;
        let node = NodeClient::new(Arc::clone(self.core.dial()), &address);
        Ok(node.logs(&framework_id, run, options))
    }

    /// Asks the broker for the node API of the agent that holds a run.
    async fn node_address(&self, run: &RunId) -> Result<String> {
        let request = fw::ReconcileRequest {
            header: None,
            runs: vec![write_run(run)],
            ..fw::ReconcileRequest::default()
        };
        let answer = ask(&self.core, request).await?;
        let found = answer.runs.into_iter().map(|status| status.node_address);
        let mut found = found.filter(|address| !address.is_empty());
        found.next().ok_or_else(|| {
            let miss = answer.misses.into_iter().next();
            let why = miss.and_then(|miss| wire::verdict_from(miss.verdict).err());
            let detail = format!("the node that runs {run} is not known");
            Error::Refused(why.unwrap_or_else(|| Reason::new(Code::NotFound, detail)))
        })
    }

    /// Waits until everything acknowledged so far has been committed, not longer than said.
    pub async fn acknowledged(&self, longest: Duration) {
        crate::acknowledge::flush(&self.core, longest).await;
    }

    /// The framework's own records in the broker.
    #[must_use]
    pub fn store(&self) -> Store {
        Store::new(Arc::clone(&self.core))
    }

    /// Changes the roles that may be charged. Leaving one takes its offers back; tasks stay.
    ///
    /// # Errors
    /// As [`Session::accept`].
    pub async fn update_roles(&self, roles: &[&str]) -> Result<()> {
        let named: Vec<String> = roles.iter().map(|role| (*role).to_owned()).collect();
        let checked = roles_of(&named)?;
        let config = &self.core.config;
        let suppressed = self.core.view().suppressed.clone();
        let request = fw::UpdateFrameworkRequest {
            header: None,
            suppressed_roles: suppressed
                .into_iter()
                .filter(|role| named.contains(role))
                .collect(),
            roles: named,
            failover_timeout_ms: config.failover_timeout.map(|span| wire::span(span).0),
            plain_offers: config.plain_offers,
            labels: config.labels.clone(),
            service_address: config.service_address.clone(),
        };
        ask(&self.core, request).await?;
        *locked(&self.core.roles) = checked;
        Ok(())
    }

    /// Makes a run id that no process of this framework has used or will use.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `name` cannot begin a task id; or why the session is over.
    pub(crate) fn new_run(&self, name: &str) -> Result<RunId> {
        let incarnation = self.incarnation().unwrap_or(0);
        let number = self.core.next_run_number();
        let task = TaskId::new(&format!("{name}-{incarnation}-{number}"))?;
        Ok(RunId::new(task, 1))
    }

    /// Makes the runner call `tick` soon; for other tasks of the framework that changed something.
    pub fn wake(&self) {
        self.core.wake.notify_one();
    }

    /// Ends the framework on purpose: its runs are killed, its store is deleted, its name is free.
    ///
    /// # Errors
    /// As [`Session::accept`]. That it is torn down already is no error.
    pub async fn teardown(&self) -> Result<()> {
        self.core.ask_teardown();
        match ask(&self.core, fw::TeardownRequest { header: None }).await {
            Ok(_) | Err(Error::TornDown) => {
                self.core.close(Error::TornDown);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Ends the session politely: what was handled is acknowledged, tasks are left alone. The
    /// framework goes on when a process of its name opens a session within the failover timeout.
    pub async fn disconnect(&self) {
        crate::acknowledge::flush(&self.core, POLITE_END).await;
        self.core.close(Error::Closed);
    }

    /// Ends the session on the spot, as a crash of the process would: nothing more is sent.
    pub fn sever(&self) {
        self.core.close(Error::Closed);
    }

    /// Why the session is over, if it is.
    #[must_use]
    pub fn closed(&self) -> Option<Error> {
        self.core.closed()
    }
}

fn decline_request(offers: &[OfferId], reason: &str, refuse: Refuse) -> fw::DeclineRequest {
    fw::DeclineRequest {
        header: None,
        offers: offers.iter().copied().map(write_offer_id).collect(),
        reason: reason.to_owned(),
        refuse: Some(refuse.to_wire()),
    }
}

fn roles_of(roles: &[String]) -> Result<Vec<RolePath>> {
    if roles.is_empty() {
        return Err(Error::field("roles", "at least one is needed"));
    }
    let checked: Result<Vec<_>, _> = roles.iter().map(|role| RolePath::new(role)).collect();
    Ok(checked?)
}
