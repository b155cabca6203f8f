//! From what was applied to answers, messages and what follows for the offers that are out.

use std::collections::BTreeSet;

use mete_model::{AgentId, ClaimId, Code, FrameworkId, OfferId, Resources, RolePath};
use mete_proto::convert::write_offer_id;
use mete_proto::framework::v1::Rescinded;
use mete_state::{
    AgentCondition, Caller, Change, Command, LaunchVerdict, Rejection, State, Verdict,
};

use super::dispatch::Dispatched;
use super::offer_book::Why;
use super::streams::Opening;
use super::{LeaderTerm, Now, Token, accept};
use crate::event::{LinkId, Monotonic, ReplyTo};
use crate::machine::Done;
use crate::request::{FrameworkAction, Refusal, Refuse, Reply};

/// Who waits for something on its way through the log.
#[derive(Debug)]
pub(super) enum Waiting {
    /// A framework's call.
    Call(Box<Call>),
    /// An operator's call.
    Operator { reply: ReplyTo },
    /// A read that wants a linearizable point.
    Read { reply: ReplyTo },
    /// An answer for which nothing was logged, until a majority has confirmed who gives it.
    Answer(Box<Unlogged>),
    /// The same for a framework that may not subscribe.
    NoStream(Box<(Opening, Refusal)>),
    /// An agent that said hello.
    Admit { link: LinkId },
    /// A framework that subscribes.
    Subscribe(Opening),
    /// An agent's statuses.
    Statuses { link: LinkId, count: u64 },
    /// Something that time made necessary.
    Due,
    /// Something that the loop itself wants.
    Own,
    /// Nobody.
    Nobody,
}

/// What was judged by the state alone.
#[derive(Debug)]
pub(super) struct Unlogged {
    pub(super) replies: Vec<ReplyTo>,
    pub(super) answer: Result<Reply, Refusal>,
}

/// A framework's call on its way.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) caller: Caller,
    pub(super) replies: Vec<ReplyTo>,
    pub(super) kind: Kind,
}

/// What must be done beside the answer.
#[derive(Debug)]
pub(super) enum Kind {
    Accept(Box<AcceptOnTheWay>),
    /// Claims of these roles were put.
    Demand {
        roles: BTreeSet<RolePath>,
    },
    /// These roles were revived; empty = all.
    Revive {
        roles: Vec<RolePath>,
    },
    Acknowledge {
        items: u64,
    },
    Other,
}

/// What of an accept is needed when it has applied.
#[derive(Debug)]
pub(super) struct AcceptOnTheWay {
    pub(super) offers: Vec<OfferId>,
    pub(super) agent: AgentId,
    pub(super) role: RolePath,
    pub(super) offered: Resources,
    /// What each logged task asks for.
    pub(super) asked: Vec<Resources>,
    pub(super) refused: Vec<Option<LaunchVerdict>>,
    pub(super) unused_reason: String,
    pub(super) unused_refuse: Option<Refuse>,
}

impl Kind {
    pub(super) fn of(action: &FrameworkAction) -> Self {
        match action {
            FrameworkAction::UpdateDemand { upsert, .. } => Self::Demand {
                roles: upsert.iter().map(|claim| claim.role.clone()).collect(),
            },
            FrameworkAction::Suppress {
                roles,
                suppressed: false,
            } => Self::Revive {
                roles: roles.clone(),
            },
            FrameworkAction::Acknowledge { items } => Self::Acknowledge {
                items: u64::try_from(items.len()).unwrap_or(u64::MAX),
            },
            FrameworkAction::Suppress { .. }
            | FrameworkAction::UpdateFramework { .. }
            | FrameworkAction::Kill { .. }
            | FrameworkAction::WriteStore { .. }
            | FrameworkAction::Teardown
            | FrameworkAction::Accept(_)
            | FrameworkAction::Decline { .. }
            | FrameworkAction::Read => Self::Other,
        }
    }
}

impl LeaderTerm {
    /// Takes in what was applied, in order of the log.
    pub fn applied(&mut self, done: Vec<(Option<Token>, Done)>, state: &State, now: Now) {
        let mut dispatched = Dispatched::default();
        let mut openings: Vec<(Opening, Verdict)> = Vec::new();
        let mut claims: BTreeSet<(FrameworkId, ClaimId)> = BTreeSet::new();
        for (token, done) in done {
            if let Ok(outcome) = &done.result {
                for effect in &outcome.effects {
                    dispatched.add(state, done.revision, effect);
                }
                for change in &outcome.changes {
                    self.stale.changed(change);
                    if let Change::Claim(framework, claim) = change {
                        claims.insert((*framework, claim.clone()));
                    }
                }
                self.follow(&done.command, state, now);
            }
            if let Some(waiting) = token.and_then(|token| self.waiting.remove(&token)) {
                self.answer(waiting, done, &mut openings, state, now);
            }
        }
        for (framework, claim) in &claims {
            self.rescind_surplus(*framework, claim, state, now);
        }
        self.send_to_agents(dispatched.agents);
        for (framework, events) in dispatched.frameworks {
            self.send_to_framework(framework, events, now);
        }
        // Last, so that a snapshot holds all that was applied and no event repeats any of it.
        for (opening, verdict) in openings {
            self.open_stream(opening, &verdict, state, now);
        }
        for framework in self.orders.holding() {
            self.advance(framework, state, now);
        }
    }

    /// Nothing of this was logged.
    pub fn refused(&mut self, token: Token, refusal: &Refusal, state: &State, now: Now) {
        let Some(waiting) = self.waiting.remove(&token) else {
            return;
        };
        match waiting {
            Waiting::Call(call) => {
                if let Kind::Accept(accept) = &call.kind {
                    for offer in &accept.offers {
                        self.book.reopen(*offer);
                    }
                }
                let again = self.orders.done(call.caller);
                if refusal.code().is_retryable() {
                    self.orders.comes_again(call.caller);
                }
                self.refuse_all(call.replies.into_iter().chain(again).collect(), refusal);
                self.advance(call.caller.framework, state, now);
            }
            Waiting::Operator { reply } | Waiting::Read { reply } => {
                self.refuse_all(vec![reply], refusal);
            }
            Waiting::Answer(unlogged) => self.refuse_all(unlogged.replies, refusal),
            Waiting::NoStream(refused) => self.refuse_stream(refused.0, refusal.clone()),
            Waiting::Admit { link } => self.admission_refused(link, refusal),
            Waiting::Subscribe(opening) => self.refuse_stream(opening, refusal.clone()),
            // The agent keeps them, and sends them again on a new stream.
            Waiting::Statuses { link, .. } => self.admission_refused(link, refusal),
            Waiting::Due => self.due_on_the_way = self.due_on_the_way.saturating_sub(1),
            Waiting::Own => self.own_on_the_way = self.own_on_the_way.saturating_sub(1),
            Waiting::Nobody => {}
        }
    }

    /// A read may be answered from the state as it is now: a majority has confirmed this leader.
    pub fn read_at(&mut self, token: Token, revision: u64) {
        match self.waiting.remove(&token) {
            Some(Waiting::Read { reply }) => self.read_of(reply, revision),
            Some(Waiting::Answer(unlogged)) => self.answer_all(unlogged.replies, &unlogged.answer),
            Some(Waiting::NoStream(refused)) => self.refuse_stream(refused.0, refused.1),
            Some(other) => drop(self.waiting.insert(token, other)),
            None => {}
        }
    }

    /// The term is over, and nobody can tell what became of this.
    pub(super) fn answer_unknown(&mut self, waiting: Waiting, why: &Refusal) {
        match waiting {
            Waiting::Call(call) => {
                let again = self.orders.done(call.caller);
                let all = call.replies.into_iter().chain(again);
                self.answer_all(all, &Err(Refusal::unknown()));
            }
            Waiting::Operator { reply } => {
                self.answer_all([reply], &Err(Refusal::unknown()));
            }
            // A read changes nothing: it may be asked of the next leader.
            Waiting::Read { reply } => self.answer_all([reply], &Err(why.clone())),
            Waiting::Answer(unlogged) => self.answer_all(unlogged.replies, &Err(why.clone())),
            Waiting::NoStream(refused) => self.refuse_stream(refused.0, why.clone()),
            Waiting::Subscribe(opening) => self.refuse_stream(opening, why.clone()),
            Waiting::Admit { .. }
            | Waiting::Statuses { .. }
            | Waiting::Due
            | Waiting::Own
            | Waiting::Nobody => {}
        }
    }

    fn answer(
        &mut self,
        waiting: Waiting,
        done: Done,
        openings: &mut Vec<(Opening, Verdict)>,
        state: &State,
        now: Now,
    ) {
        let Done {
            revision, result, ..
        } = done;
        match waiting {
            Waiting::Call(call) => self.answer_call(*call, result, state, now),
            Waiting::Operator { reply } => {
                let answer = match result {
                    Ok(outcome) => Ok(Reply::Applied {
                        revision: outcome.revision,
                        verdict: outcome.verdict,
                    }),
                    Err(rejection) => Err(Refusal::from(rejection)),
                };
                self.answer_all([reply], &answer);
            }
            Waiting::Admit { link } => match result {
                Ok(outcome) => {
                    if let Verdict::Admitted { agent, discard } = outcome.verdict {
                        self.welcome(link, agent, &discard, state, now);
                    }
                }
                Err(rejection) => self.admission_refused(link, &Refusal::from(rejection)),
            },
            Waiting::Subscribe(opening) => match result {
                Ok(outcome) => openings.push((opening, outcome.verdict)),
                Err(rejection) => self.refuse_stream(opening, Refusal::from(rejection)),
            },
            Waiting::Statuses { count, .. } => match result {
                Ok(_) => self.counters.statuses = self.counters.statuses.saturating_add(count),
                Err(rejection) => {
                    tracing::warn!(%rejection, revision, "statuses of an agent were refused");
                }
            },
            Waiting::Read { reply } => self.read_of(reply, revision),
            Waiting::Answer(unlogged) => self.answer_all(unlogged.replies, &unlogged.answer),
            Waiting::NoStream(refused) => self.refuse_stream(refused.0, refused.1),
            Waiting::Due => self.due_on_the_way = self.due_on_the_way.saturating_sub(1),
            Waiting::Own => self.own_on_the_way = self.own_on_the_way.saturating_sub(1),
            Waiting::Nobody => {}
        }
    }

    fn read_of(&mut self, reply: ReplyTo, revision: u64) {
        self.answer_all([reply], &Ok(Reply::ReadAt { revision }));
    }

    fn answer_call(
        &mut self,
        call: Call,
        result: Result<mete_state::Outcome, Rejection>,
        state: &State,
        now: Now,
    ) {
        let Call {
            caller,
            replies,
            kind,
        } = call;
        let again = self.orders.done(caller);
        let replies: Vec<ReplyTo> = replies.into_iter().chain(again).collect();
        let answer = match result {
            Ok(outcome) => {
                let changed_claims = outcome
                    .changes
                    .iter()
                    .any(|change| matches!(change, Change::Claim(..)));
                let verdict =
                    self.follow_call((caller, kind), outcome.verdict, changed_claims, state, now);
                Ok(Reply::Applied {
                    revision: outcome.revision,
                    verdict,
                })
            }
            Err(rejection) => {
                if let Kind::Accept(accept) = kind {
                    // The commit said no: nothing of the offers is used, all of it is free.
                    self.count_refused(accept.refused.len());
                    self.settle(caller, *accept, Vec::new(), state, now);
                }
                self.counters.calls_refused = self.counters.calls_refused.saturating_add(1);
                Err(Refusal::from(rejection))
            }
        };
        self.answer_all(replies, &answer);
    }

    /// What a call that applied means for offers and refusals; gives the verdict for the caller.
    fn follow_call(
        &mut self,
        (caller, kind): (Caller, Kind),
        verdict: Verdict,
        changed_claims: bool,
        state: &State,
        now: Now,
    ) -> Verdict {
        match (kind, verdict) {
            (Kind::Accept(accept), Verdict::Launched(verdicts)) => {
                Verdict::Launched(self.settle(caller, *accept, verdicts, state, now))
            }
            (Kind::Demand { roles }, verdict) => {
                if changed_claims {
                    for role in &roles {
                        self.declines.demand_changed(caller.framework, role);
                    }
                }
                verdict
            }
            (Kind::Revive { roles }, verdict) => {
                self.revived(caller.framework, &roles, now);
                verdict
            }
            (Kind::Acknowledge { items }, verdict) => {
                self.counters.acknowledged = self.counters.acknowledged.saturating_add(items);
                verdict
            }
            (Kind::Other | Kind::Accept(_), verdict) => verdict,
        }
    }

    pub(super) fn revived(&mut self, framework: FrameworkId, roles: &[RolePath], _now: Now) {
        if roles.is_empty() {
            self.declines.forget_framework(framework);
        }
        for role in roles {
            self.declines.revived(framework, role);
        }
        self.stale.framework(framework);
    }

    /// An accept is over: its offers are out no longer, and what was not used may be refused.
    pub(super) fn settle(
        &mut self,
        caller: Caller,
        accept: AcceptOnTheWay,
        verdicts: Vec<LaunchVerdict>,
        state: &State,
        now: Now,
    ) -> Vec<LaunchVerdict> {
        let mut unused = accept.offered;
        let mut granted: u64 = 0;
        for (verdict, asked) in verdicts.iter().zip(&accept.asked) {
            if verdict.code == Code::Ok {
                granted = granted.saturating_add(1);
                unused.saturating_subtract(asked);
            }
        }
        let made = self.book.last_made(&accept.offers);
        for offer in &accept.offers {
            if granted == 0 && verdicts.is_empty() && self.book.decline_accepted(*offer) {
                self.book.decline(*offer, &accept.unused_reason, now.at);
            } else {
                self.book.settle(*offer, granted > 0, now.at);
            }
        }
        if let Some(refuse) = accept.unused_refuse
            && !unused.is_zero()
        {
            let key = (caller.framework, accept.role, accept.agent);
            let reason = &accept.unused_reason;
            let given_back = self.given_back(state, accept.agent, unused, made);
            self.declines
                .note(key, given_back, refuse, reason, now.monotonic);
        }
        let all = accept::merge(accept.refused, verdicts);
        let refused = all
            .len()
            .saturating_sub(usize::try_from(granted).unwrap_or(usize::MAX));
        self.counters.launches = self.counters.launches.saturating_add(granted);
        self.count_refused(refused);
        all
    }

    /// What a command means for streams and for the offers that are out.
    fn follow(&mut self, command: &Command, state: &State, now: Now) {
        match command {
            Command::AdmitAgent(admit) => {
                if let Some(agent) = state.agent_of_key(admit.node_key) {
                    self.replacements.found(agent.id);
                    self.agent_changed(agent.id, state, now);
                }
            }
            Command::SetAgentCondition { agent, condition } => match condition {
                AgentCondition::Ready => {}
                AgentCondition::Unreachable => {
                    self.replacements.lost(*agent, now);
                    self.agent_changed(*agent, state, now);
                    self.admit_again(*agent, state, now);
                }
                AgentCondition::Gone => {
                    self.replacements.found(*agent);
                    self.agent_changed(*agent, state, now);
                }
            },
            Command::RemoveAgent { agent, .. } => {
                self.replacements.found(*agent);
                self.agent_removed(*agent, now);
            }
            Command::Subscribe(subscribe) => {
                let framework = state.framework_of_name(&subscribe.principal, &subscribe.name);
                if let Some(framework) = framework {
                    self.settings_changed(framework.id, state, now);
                }
            }
            Command::UpdateFramework { caller, .. } | Command::Suppress { caller, .. } => {
                self.settings_changed(caller.framework, state, now);
            }
            Command::SuppressByOperator {
                framework, revive, ..
            } => {
                self.settings_changed(*framework, state, now);
                for role in revive {
                    self.declines.revived(*framework, role);
                }
            }
            Command::Teardown { caller } => self.framework_removed(caller.framework, now),
            Command::RemoveFramework { framework, .. } => self.framework_removed(*framework, now),
            Command::Disconnect { .. }
            | Command::MarkReplaceable { .. }
            | Command::UpdateDemand { .. }
            | Command::Launch(_)
            | Command::Kill { .. }
            | Command::KillByOperator { .. }
            | Command::RecordStatuses { .. }
            | Command::Acknowledge { .. }
            | Command::WriteStore { .. }
            | Command::SetRole { .. }
            | Command::RemoveRole { .. }
            | Command::AddMaster(_)
            | Command::SetMaster(_)
            | Command::RemoveMaster { .. }
            | Command::RaiseLevel { .. }
            | Command::Tick => {}
        }
    }

    /// Offers of an agent that is not ready, or made at an older topology, are taken back.
    fn agent_changed(&mut self, agent: AgentId, state: &State, now: Now) {
        let record = state.agent(agent);
        let epoch = record
            .filter(|record| record.condition == AgentCondition::Ready)
            .map(|record| record.inventory.topology_epoch);
        let outdated = |id: &OfferId| {
            let booked = self.book.get(*id);
            booked.is_some_and(|booked| Some(booked.offer.topology_epoch) != epoch)
        };
        let outdated: Vec<OfferId> = self
            .book
            .open_of_agent(agent)
            .into_iter()
            .filter(outdated)
            .collect();
        self.rescind(&outdated, Why::Agent, now);
    }

    /// Offers for roles that the framework has left or suppressed are taken back.
    fn settings_changed(&mut self, framework: FrameworkId, state: &State, now: Now) {
        let Some(record) = state.framework(framework) else {
            return;
        };
        let settings = &record.settings;
        self.stale.framework(framework);
        let left = self
            .book
            .open_of_framework(framework, |offer| !settings.roles.contains(&offer.role));
        self.rescind(&left, Why::RoleLeft, now);
        let suppressed = self
            .book
            .open_of_framework(framework, |offer| settings.suppressed.contains(&offer.role));
        self.rescind(&suppressed, Why::Suppressed, now);
        let plain = settings.plain_offers;
        let unwanted = self
            .book
            .open_of_framework(framework, |offer| offer.claim.is_none() && !plain);
        self.rescind(&unwanted, Why::ClaimWithdrawn, now);
    }

    fn framework_removed(&mut self, framework: FrameworkId, now: Now) {
        let open = self.book.open_of_framework(framework, |_| true);
        self.rescind(&open, Why::FrameworkAway, now);
        self.declines.forget_framework(framework);
        let waiting = self.orders.forget(framework);
        let detail = "the framework was ended on purpose";
        if !waiting.is_empty() {
            self.refuse_all(waiting, &Refusal::new(Code::TornDown, detail));
        }
    }

    /// Offers for more tasks than a claim still wants are taken back, the newest first.
    fn rescind_surplus(
        &mut self,
        framework: FrameworkId,
        claim: &ClaimId,
        state: &State,
        now: Now,
    ) {
        let slots = self.book.slots_of(framework, claim);
        if slots == 0 {
            return;
        }
        let wanted = state
            .claim(framework, claim)
            .map_or(0, mete_state::ClaimRecord::remaining);
        let mut surplus = slots.saturating_sub(wanted);
        if surplus == 0 {
            return;
        }
        let mut open = self
            .book
            .open_of_framework(framework, |offer| offer.claim.as_ref() == Some(claim));
        open.sort_unstable();
        let mut taken = Vec::new();
        while let Some(id) = open.pop()
            && surplus > 0
        {
            let carries = self.book.get(id).map_or(0, |booked| booked.offer.slots);
            // An offer that is needed in part stays whole.
            if carries <= surplus || wanted == 0 {
                surplus = surplus.saturating_sub(carries);
                taken.push(id);
            }
        }
        self.rescind(&taken, Why::ClaimWithdrawn, now);
    }

    /// Takes open offers back and tells their frameworks.
    pub(super) fn rescind(&mut self, ids: &[OfferId], why: Why, now: Now) {
        let taken = self.book.rescind(ids, why, now.at);
        let mut by_framework: std::collections::BTreeMap<FrameworkId, Vec<OfferId>> =
            std::collections::BTreeMap::new();
        for offer in taken {
            by_framework
                .entry(offer.framework)
                .or_default()
                .push(offer.id);
        }
        for (framework, offers) in by_framework {
            self.tell_rescinded(framework, &offers, why.as_str());
        }
    }

    /// Takes open offers back that their framework has never seen, or has no stream to hear of.
    pub(super) fn rescind_quietly(&mut self, ids: &[OfferId], why: Why, now: Now) {
        self.book.rescind(ids, why, now.at);
    }

    pub(super) fn expire_offers(&mut self, state: &State, now: Now) {
        let mut by_framework: std::collections::BTreeMap<FrameworkId, Vec<OfferId>> =
            std::collections::BTreeMap::new();
        for offer in self.book.expire(now.at, now.monotonic) {
            // Whoever lets an offer lapse is passed over there for as long, or a silent framework
            // would be offered the same again and again while others wait.
            let key = (offer.framework, offer.role.clone(), offer.agent);
            let mut hidden = offer.resources.clone();
            // With what it has declined there already: together they may be as much as a task.
            let mut before = Resources::default();
            for decline in self.declines.get(&key) {
                let mut more = decline.resources.clone();
                more.saturating_subtract(&before);
                before.add(&more);
            }
            hidden.add(&before);
            let refuse = Refuse::For(self.timing.offer_lifetime);
            let reason = "an offer expired without an answer";
            let made = now.monotonic.0.saturating_sub(self.timing.offer_lifetime.0);
            let given_back = self.given_back(state, offer.agent, hidden, Monotonic(made));
            self.declines
                .note(key, given_back, refuse, reason, now.monotonic);
            by_framework
                .entry(offer.framework)
                .or_default()
                .push(offer.id);
        }
        for (framework, offers) in by_framework {
            self.tell_rescinded(framework, &offers, "EXPIRED");
        }
    }

    fn tell_rescinded(&self, framework: FrameworkId, offers: &[OfferId], reason: &str) {
        if let Some(outbox) = self.outbox_of(framework) {
            let rescinded = Rescinded {
                offers: offers.iter().map(|id| write_offer_id(*id)).collect(),
                reason: reason.to_owned(),
            };
            outbox.put(|queue| queue.push_rescinded(rescinded));
        }
    }
}
