//! Layer 2's offers: take slots made for a claim, pack plain offers, launch, give back the rest.
//!
//! [`Offers`] is a batch that stands at this moment. Launches are noted and sent when the handler
//! returns (or on [`Offers::submit`]): one accept for each agent, many on their way at once. What
//! was not used is declined, with the reason that the framework gave. Nothing here decides what
//! fits: that is `mete_model::fit`, the same function the allocator uses.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use mete_model::{AgentId, ClaimId, Code, Enforcement, OfferId, Resources, RolePath, RunId, Shape};
use mete_proto::framework::v1 as fw;
use serde::Serialize;
use tokio::time::Instant;

use crate::accept::{Accept, Accepting, LaunchVerdict, Mode, Place, Placed, Refuse, not_sent};
use crate::claims::Claim;
use crate::error::{Error, Result};
use crate::session::Session;
use crate::task::{Launch, TaskSpec};
use crate::wire;

/// Launches in one accept; the broker refuses more.
const MOST_LAUNCHES: usize = 10_000;

/// Resources of one agent, for one role, until it lapses. A hint, never a promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Of the leader's term.
    pub id: OfferId,
    /// Who is charged.
    pub role: RolePath,
    /// The claim it was carved for; `None` for a plain offer.
    pub claim: Option<ClaimId>,
    /// How many tasks of the claim's shape it carries; 0 for a plain offer.
    pub slots: u32,
    /// Where.
    pub agent: AgentId,
    /// The node's name.
    pub node: String,
    /// The node API of the agent, `host:port`; empty when there is none.
    pub node_address: String,
    /// The agent's topology when it was made.
    pub topology_epoch: u64,
    /// What, by name.
    pub resources: Resources,
    /// Labels of the node.
    pub labels: BTreeMap<String, String>,
    /// What the agent can enforce, by kind.
    pub enforcement: BTreeMap<String, Enforcement>,
    pub(crate) deadline: Instant,
}

impl Offer {
    pub(crate) fn from_wire(wire: fw::Offer, now: Instant) -> Result<Self> {
        Ok(Self {
            id: wire::offer_id_from(wire.id)?,
            role: RolePath::new(&wire.role)?,
            claim: match wire.claim.as_str() {
                "" => None,
                id => Some(ClaimId::new(id)?),
            },
            slots: wire.slots,
            agent: wire::agent_from(&wire.agent_id)
                .ok_or_else(|| Error::Protocol("an offer names no agent".to_owned()))?,
            node: wire.node,
            node_address: wire.node_address,
            topology_epoch: wire.topology_epoch,
            resources: wire::resources_from(wire.resources)?,
            labels: wire.labels,
            enforcement: wire::enforcement_from(&wire.enforcement),
            deadline: now + Duration::from_millis(wire.expires_in_ms),
        })
    }

    /// How long it still stands, on this process's own clock.
    #[must_use]
    pub fn expires_in(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}

/// Room for one task, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    at: usize,
    /// The claim it is for; `None` on plain offers.
    pub claim: Option<ClaimId>,
    /// Who is charged.
    pub role: RolePath,
    /// Where.
    pub agent: AgentId,
    /// The node's name.
    pub node: String,
    /// The node API of the agent; empty when there is none.
    pub node_address: String,
    /// Labels of the node.
    pub labels: BTreeMap<String, String>,
    /// Exactly what the task gets.
    pub resources: Resources,
}

/// Why a claim does not fit an offer: the first thing that is short.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Miss {
    /// The node.
    pub node: String,
    /// The stable code.
    pub reason: Code,
    /// What is short, for example `cpu_milli` or `dev/gpu`.
    pub kind: String,
    /// Asked for.
    pub want: u64,
    /// There.
    pub have: u64,
    /// The difference.
    pub short_by: u64,
}

/// Which of several plain offers a task goes to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Strategy {
    /// The first that fits.
    #[default]
    First,
    /// The one with the least left afterwards, so that large holes stay large.
    Best,
    /// The one whose value of this node label has got the fewest tasks so far.
    Spread(String),
}

#[derive(Debug)]
struct Open {
    offer: Offer,
    left: Resources,
    slots_left: u32,
    launches: Vec<Placed>,
}

/// Offers that stand at this moment. Dropping it gives back what was not used.
#[derive(Debug)]
pub struct Offers {
    session: Session,
    open: Vec<Open>,
    by_claim: HashMap<ClaimId, VecDeque<usize>>,
    shapes: HashMap<ClaimId, Option<Shape>>,
    spread: HashMap<String, u32>,
    specs: Vec<(TaskSpec, Arc<mete_model::TaskSpec>)>,
    reason: String,
    refuse: Refuse,
    unsent: Vec<LaunchVerdict>,
    submitted: bool,
}

impl Offers {
    /// A batch to pack; what comes with [`crate::Event::Offers`].
    #[must_use]
    pub fn new(session: &Session, offers: Vec<Offer>) -> Self {
        let mut by_claim: HashMap<ClaimId, VecDeque<usize>> = HashMap::new();
        for (at, offer) in offers.iter().enumerate() {
            if let Some(claim) = &offer.claim {
                by_claim.entry(claim.clone()).or_default().push_back(at);
            }
        }
        Self {
            session: session.clone(),
            open: offers.into_iter().map(Open::new).collect(),
            by_claim,
            shapes: HashMap::new(),
            spread: HashMap::new(),
            specs: Vec::new(),
            reason: String::new(),
            refuse: Refuse::default(),
            unsent: Vec::new(),
            submitted: false,
        }
    }

    /// The offers as they came.
    pub fn iter(&self) -> impl Iterator<Item = &Offer> {
        self.open.iter().map(|open| &open.offer)
    }

    /// Claims that have a slot left.
    #[must_use]
    pub fn claims(&self) -> Vec<ClaimId> {
        let mut claims: Vec<ClaimId> = self
            .by_claim
            .iter()
            .filter(|(_, offers)| offers.iter().any(|at| self.has_slots(*at)))
            .map(|(claim, _)| claim.clone())
            .collect();
        claims.sort();
        claims
    }

    fn has_slots(&self, at: usize) -> bool {
        self.open.get(at).is_some_and(|open| open.slots_left > 0)
    }

    /// The next slot made for this claim; it names node, cores and devices already.
    pub fn take(&mut self, claim: &str) -> Option<Slot> {
        let claim = ClaimId::new(claim).ok()?;
        let session = &self.session;
        let shape = self
            .shapes
            .entry(claim.clone())
            .or_insert_with(|| {
                let view = session.core.view();
                view.claim(&claim).map(|info| info.claim.shape.clone())
            })
            .clone()?;
        let now = Instant::now();
        loop {
            let at = *self.by_claim.get(&claim)?.front()?;
            let slot = self
                .open
                .get_mut(at)
                .filter(|open| open.slots_left > 0 && open.offer.deadline > now)
                .and_then(|open| open.take(at, &shape));
            match slot {
                Some(slot) => return Some(slot),
                None => {
                    self.by_claim.get_mut(&claim)?.pop_front();
                }
            }
        }
    }

    /// Packs a task of this claim's shape into the first plain offer that has room.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a claim that is not permitted.
    pub fn fit(&mut self, claim: &Claim) -> Result<Option<Slot>> {
        self.fit_by(claim, &Strategy::First)
    }

    /// Packs a task of this claim's shape into a plain offer, chosen by `strategy`.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a claim that is not permitted.
    pub fn fit_by(&mut self, claim: &Claim, strategy: &Strategy) -> Result<Option<Slot>> {
        let shape = claim.shape()?;
        let now = Instant::now();
        let candidates = self.open.iter().enumerate().filter(|(_, open)| {
            open.offer.claim.is_none()
                && open.offer.deadline > now
                && mete_model::fit(&shape, &open.left).is_ok()
        });
        let chosen = match strategy {
            Strategy::First => candidates.map(|(at, _)| at).next(),
            Strategy::Best => candidates
                .min_by_key(|(_, open)| (open.left.cpu, open.left.memory, open.left.disk))
                .map(|(at, _)| at),
            Strategy::Spread(label) => candidates
                .min_by_key(|(_, open)| self.spread.get(&spread_key(label, open)).copied())
                .map(|(at, _)| at),
        };
        let Some(at) = chosen else { return Ok(None) };
        let Some(open) = self.open.get_mut(at) else {
            return Ok(None);
        };
        if let Strategy::Spread(label) = strategy {
            *self.spread.entry(spread_key(label, open)).or_default() += 1;
        }
        Ok(open.take(at, &shape))
    }

    /// Why a task of this claim's shape does not fit: one line for each offer that it misses.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a claim that is not permitted.
    pub fn explain(&self, claim: &Claim) -> Result<Vec<Miss>> {
        let shape = claim.shape()?;
        let misses = self.open.iter().filter_map(|open| {
            let miss = mete_model::fit(&shape, &open.left).err()?;
            let (kind, want, have) = miss.amounts();
            Some(Miss {
                node: open.offer.node.clone(),
                reason: miss.code(),
                kind,
                want,
                have,
                short_by: want.saturating_sub(have),
            })
        });
        Ok(misses.collect())
    }

    /// Gives a slot back to its offer, to be taken again.
    pub fn put_back(&mut self, slot: Slot) {
        if let Some(open) = self.open.get_mut(slot.at) {
            open.left.add(&slot.resources);
            open.slots_left = open.slots_left.saturating_add(1);
            if let Some(claim) = slot.claim {
                self.by_claim.entry(claim).or_default().push_front(slot.at);
            }
        }
    }

    /// Launches a task in this slot under an id that the SDK makes: `name-incarnation-number`.
    /// Whether it was granted is heard with its statuses, or with `refused`.
    pub fn launch(&mut self, slot: Slot, spec: TaskSpec) -> Option<RunId> {
        let run = match self.session.new_run(&spec.name) {
            Ok(run) => run,
            Err(error) => {
                tracing::error!(%error, name = spec.name, "a task cannot have this name");
                self.put_back(slot);
                return None;
            }
        };
        let spec = self.shared(spec);
        self.launch_as(slot, Launch::new(run.clone(), spec));
        Some(run)
    }

    /// One copy of equal specs: hundreds of slots usually get the same one.
    fn shared(&mut self, spec: TaskSpec) -> Arc<mete_model::TaskSpec> {
        if let Some((_, shared)) = self
            .specs
            .iter()
            .rev()
            .take(8)
            .find(|(known, _)| *known == spec)
        {
            return Arc::clone(shared);
        }
        let shared = Arc::new(spec.run.clone());
        self.specs.push((spec, Arc::clone(&shared)));
        shared
    }

    /// Launches under a run id of the framework's own, unique for ever.
    pub fn launch_as(&mut self, slot: Slot, launch: Launch) {
        if let Some(open) = self.open.get_mut(slot.at) {
            open.launches.push(Placed {
                launch,
                claim: slot.claim,
                resources: slot.resources,
            });
        }
    }

    /// Says why what is left is not used, and for how long it need not be offered again. Shown by
    /// `mete why`.
    pub fn decline(&mut self, reason: &str, refuse: Refuse) {
        reason.clone_into(&mut self.reason);
        self.refuse = refuse;
    }

    /// Takes back every launch noted so far; everything will be declined.
    pub(crate) fn forget_launches(&mut self) {
        for open in &mut self.open {
            open.launches.clear();
        }
    }

    /// How much of the shortest life among these offers is over, in percent.
    pub(crate) fn first_deadline(&self) -> Option<Instant> {
        self.open.iter().map(|open| open.offer.deadline).min()
    }

    /// Sends the accepts and declines the rest. The verdicts come later, one set for each agent.
    ///
    /// # Errors
    /// Why the session is over.
    pub async fn submit(mut self) -> Result<Submitted> {
        let session = self.session.clone();
        let plan = self.plan();
        let mut accepting = Vec::with_capacity(plan.accepts.len());
        for accept in plan.accepts {
            accepting.push(session.begin_accept(accept).await?);
        }
        session
            .begin_decline(&plan.declined, &plan.reason, plan.refuse)
            .await?;
        Ok(Submitted {
            accepting,
            unsent: plan.unsent,
        })
    }

    fn plan(&mut self) -> Plan {
        self.submitted = true;
        let now = Instant::now();
        let mut unsent = std::mem::take(&mut self.unsent);
        let mut declined = Vec::new();
        // By agent: an accept may carry several offers of one agent, never of two. By role, since
        // the picture of a run names the role that is charged.
        let mut groups: BTreeMap<(AgentId, RolePath), Accept> = BTreeMap::new();
        for mut open in std::mem::take(&mut self.open) {
            if open.launches.is_empty() {
                declined.push(open.offer.id);
                continue;
            }
            if open.offer.deadline <= now {
                let late = std::mem::take(&mut open.launches).into_iter();
                unsent.extend(late.map(|placed| {
                    let why = "the offer lapsed before the handler returned";
                    not_sent(placed.launch.run, Code::OfferExpired, why)
                }));
                continue;
            }
            let partly = open.offer.claim.is_some() && open.slots_left > 0;
            let key = (open.offer.agent, open.offer.role.clone());
            let accept = groups.entry(key).or_insert_with(|| open.accept());
            accept.offers.push(open.offer.id);
            if partly {
                accept.unused_refuse = Some(self.refuse);
                self.reason.clone_into(&mut accept.unused_reason);
            }
            let room = MOST_LAUNCHES.saturating_sub(accept.launches.len());
            let excess = open.launches.split_off(room.min(open.launches.len()));
            accept.launches.append(&mut open.launches);
            unsent.extend(excess.into_iter().map(|placed| {
                let why = "one accept carries 10000 launches at the most";
                not_sent(placed.launch.run, Code::Busy, why)
            }));
        }
        Plan {
            accepts: groups.into_values().collect(),
            declined,
            reason: std::mem::take(&mut self.reason),
            refuse: self.refuse,
            unsent,
        }
    }
}

struct Plan {
    accepts: Vec<Accept>,
    declined: Vec<OfferId>,
    reason: String,
    refuse: Refuse,
    unsent: Vec<LaunchVerdict>,
}

/// What [`Offers::submit`] sent.
#[derive(Debug)]
pub struct Submitted {
    /// Verdicts that are on their way, one for each agent.
    pub accepting: Vec<Accepting>,
    /// Launches that were not sent, with the reason.
    pub unsent: Vec<LaunchVerdict>,
}

impl Drop for Offers {
    fn drop(&mut self) {
        if self.submitted || self.open.is_empty() {
            return;
        }
        self.forget_launches();
        let plan = self.plan();
        let session = self.session.clone();
        // Outside a runtime the offers lapse by themselves.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let refuse = plan.refuse;
                let given = session.decline(&plan.declined, &plan.reason, refuse).await;
                if let Err(error) = given {
                    tracing::debug!(%error, "offers not given back; they will expire");
                }
            });
        }
    }
}

impl Open {
    fn new(offer: Offer) -> Self {
        Self {
            left: offer.resources.clone(),
            // A plain offer holds whatever fits.
            slots_left: offer.slots,
            launches: Vec::new(),
            offer,
        }
    }

    fn take(&mut self, at: usize, shape: &Shape) -> Option<Slot> {
        let resources = mete_model::fit(shape, &self.left).ok()?;
        self.left.subtract(&resources).ok()?;
        self.slots_left = self.slots_left.saturating_sub(1);
        Some(Slot {
            at,
            claim: self.offer.claim.clone(),
            role: self.offer.role.clone(),
            agent: self.offer.agent,
            node: self.offer.node.clone(),
            node_address: self.offer.node_address.clone(),
            labels: self.offer.labels.clone(),
            resources,
        })
    }

    fn accept(&self) -> Accept {
        Accept {
            offers: Vec::new(),
            launches: Vec::new(),
            mode: Mode::Each,
            unused_reason: String::new(),
            unused_refuse: None,
            place: Place {
                agent: Some(self.offer.agent),
                node: self.offer.node.clone(),
                node_address: self.offer.node_address.clone(),
                role: Some(self.offer.role.clone()),
            },
        }
    }
}

fn spread_key(label: &str, open: &Open) -> String {
    match open.offer.labels.get(label) {
        Some(value) => value.clone(),
        None => format!("{label} is not set on {}", open.offer.node),
    }
}
