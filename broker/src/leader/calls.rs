//! Calls of frameworks and operators: in order, through preflight, into the log or straight back.

use std::collections::{BTreeMap, BTreeSet};

use mete_model::{AgentId, Code, FrameworkId, OfferId, Resources};
use mete_state::command::Launch;
use mete_state::{Caller, Command, ItemVerdict, Preview, State, Verdict};

use super::accept::{self, Judged, OFFERS_OF_AN_ACCEPT};
use super::applied::{AcceptOnTheWay, Call, Kind, Unlogged, Waiting};
use super::declines::GivenBack;
use super::offer_book::Why;
use super::order::{Arrived, Held, Order, WINDOW};
use super::preflight::{framework_command, operator_command};
use super::{LeaderTerm, Now};
use crate::event::{Monotonic, ReplyTo};
use crate::output::Output;
use crate::request::{Accept, FrameworkAction, OperatorAction, Refusal, Refuse, Reply, Request};

/// The orders of all frameworks, each for its present incarnation.
#[derive(Debug, Default)]
pub(super) struct Orders {
    by_framework: BTreeMap<FrameworkId, (u64, Order)>,
    /// Frameworks with calls that wait for others.
    holding: BTreeSet<FrameworkId>,
}

/// What became of a call that was judged.
enum Done {
    /// It is answered or on its way.
    Yes,
    /// It cannot be judged before those ahead of it have applied.
    NotYet(FrameworkAction, Vec<ReplyTo>),
}

impl LeaderTerm {
    pub(super) fn call(&mut self, request: Request, reply: ReplyTo, state: &State, now: Now) {
        self.counters.calls = self.counters.calls.saturating_add(1);
        match request {
            Request::Framework { caller, action } => {
                self.framework_call(caller, action, reply, state, now);
            }
            Request::Operator {
                actor,
                action,
                dry_run,
            } => self.operator_call(actor, action, dry_run, reply, state, now),
            Request::ReadPoint => self.read_point(reply),
        }
    }

    fn framework_call(
        &mut self,
        caller: Caller,
        action: FrameworkAction,
        reply: ReplyTo,
        state: &State,
        now: Now,
    ) {
        let present = state
            .framework(caller.framework)
            .map(|record| record.incarnation);
        if caller.call == 0 || present != Some(caller.incarnation) {
            // Without order, or to be refused by the fence.
            if let Done::NotYet(_, replies) = self.judge(caller, action, vec![reply], state, now) {
                self.refuse_all(replies, &Refusal::unknown());
            }
            return;
        }
        self.end_order(caller.framework, caller.incarnation);
        let order = self.orders.of(caller);
        match order.arrive(caller.call, caller.answered, action, reply, now.monotonic) {
            Arrived::Now(action, reply) => {
                self.judge_in_order(caller, action, vec![reply], state, now);
                self.advance(caller.framework, state, now);
            }
            Arrived::Waits => {
                self.orders.holding.insert(caller.framework);
                self.advance(caller.framework, state, now);
            }
            Arrived::WindowFull(reply) => {
                let detail = format!(
                    "call {} is more than {WINDOW} above the last answered one ({}); wait for \
                     answers",
                    caller.call, caller.answered
                );
                self.refuse_all(vec![reply], &Refusal::new(Code::Busy, detail));
            }
        }
    }

    /// Does every call of a framework whose turn has come.
    pub(super) fn advance(&mut self, framework: FrameworkId, state: &State, now: Now) {
        while let Some((incarnation, call, held)) = self.orders.take_next(framework) {
            let caller = Caller {
                framework,
                incarnation,
                call,
                answered: held.answered,
            };
            if !self.judge_in_order(caller, held.action, held.replies, state, now) {
                return;
            }
        }
        let is_holding = self
            .orders
            .by_framework
            .get(&framework)
            .is_some_and(|(_, order)| order.is_holding());
        if !is_holding {
            self.orders.holding.remove(&framework);
        }
    }

    /// Judges the next call of an order; false if it had to be put back.
    fn judge_in_order(
        &mut self,
        caller: Caller,
        action: FrameworkAction,
        replies: Vec<ReplyTo>,
        state: &State,
        now: Now,
    ) -> bool {
        let Done::NotYet(action, replies) = self.judge(caller, action, replies, state, now) else {
            return true;
        };
        let held = Held {
            action,
            answered: caller.answered,
            replies,
            until: now.monotonic.after(super::order::GAP),
        };
        self.orders.of(caller).put_back(caller.call, held);
        self.orders.holding.insert(caller.framework);
        false
    }

    fn judge(
        &mut self,
        caller: Caller,
        action: FrameworkAction,
        replies: Vec<ReplyTo>,
        state: &State,
        now: Now,
    ) -> Done {
        match action {
            FrameworkAction::Accept(accept) => self.accept(caller, accept, replies, state, now),
            FrameworkAction::Decline {
                offers,
                reason,
                refuse,
            } => {
                let answer = self.fence_of(state, caller, now).map(|_| {
                    let verdicts = self.decline(caller, &offers, (refuse, &reason), state, now);
                    Reply::Offers { verdicts }
                });
                match answer {
                    // Declined is what this leader had on offer, and nothing else.
                    Ok(_) => self.answer_all(replies, &answer),
                    Err(refusal) => self.refuse_confirmed(replies, refusal),
                }
                Done::Yes
            }
            FrameworkAction::Read => {
                match self.fence_of(state, caller, now) {
                    Ok(_) => replies.into_iter().for_each(|reply| self.read_point(reply)),
                    Err(refusal) => self.refuse_confirmed(replies, refusal),
                }
                Done::Yes
            }
            FrameworkAction::UpdateDemand { .. }
            | FrameworkAction::Suppress { .. }
            | FrameworkAction::UpdateFramework { .. }
            | FrameworkAction::Kill { .. }
            | FrameworkAction::Acknowledge { .. }
            | FrameworkAction::WriteStore { .. }
            | FrameworkAction::Teardown => self.plain(caller, action, replies, state, now),
        }
    }

    /// A call that is one command.
    fn plain(
        &mut self,
        caller: Caller,
        action: FrameworkAction,
        replies: Vec<ReplyTo>,
        state: &State,
        now: Now,
    ) -> Done {
        let kind = Kind::of(&action);
        let is_busy = caller.call != 0 && self.orders.is_busy(caller);
        let kept = is_busy.then(|| action.clone());
        let Some(command) = framework_command(caller, action) else {
            return Done::Yes;
        };
        let (command, checked) = self.check(state, command, now);
        match checked {
            // What is ahead of it and not applied yet may be what it lacks.
            Err(refusal) => match kept {
                Some(action) => return Done::NotYet(action, replies),
                None => self.refuse_call(caller, replies, refusal),
            },
            Ok(Preview::Repeat { revision, verdict }) => {
                self.answer_confirmed(replies, Ok(Reply::Applied { revision, verdict }));
            }
            // A numbered call is logged though nothing changes: a copy of it that arrives late must
            // find this verdict, and not a world in which it would do something.
            Ok(Preview::NoChange(verdict)) if !is_busy && !is_remembered(&command) => {
                let revision = state.revision();
                self.nothing_changed(caller, &kind, now);
                self.answer_confirmed(replies, Ok(Reply::Applied { revision, verdict }));
            }
            Ok(Preview::NoChange(_) | Preview::Change) => {
                self.send_call(caller, command, replies, kind, now);
            }
        }
        Done::Yes
    }

    /// A revive that finds nothing suppressed still lifts declines.
    fn nothing_changed(&mut self, caller: Caller, kind: &Kind, now: Now) {
        if let Kind::Revive { roles } = kind {
            self.revived(caller.framework, roles, now);
        }
    }

    /// Refuses a call that was not logged. One that may be sent again keeps its place.
    fn refuse_call(&mut self, caller: Caller, replies: Vec<ReplyTo>, refusal: Refusal) {
        if refusal.code().is_retryable() {
            self.orders.comes_again(caller);
        }
        self.refuse_confirmed(replies, refusal);
    }

    fn send_call(
        &mut self,
        caller: Caller,
        command: Command,
        replies: Vec<ReplyTo>,
        kind: Kind,
        now: Now,
    ) {
        if caller.call != 0 {
            self.orders.of(caller).sent(caller.call);
        }
        let waiting = Waiting::Call(Box::new(Call {
            caller,
            replies,
            kind,
        }));
        self.log(command, now, waiting);
    }

    fn accept(
        &mut self,
        caller: Caller,
        accept: Accept,
        replies: Vec<ReplyTo>,
        state: &State,
        now: Now,
    ) -> Done {
        match self.fence_of(state, caller, now) {
            Err(refusal) => {
                self.refuse_confirmed(replies, refusal);
                return Done::Yes;
            }
            Ok(Some((revision, Verdict::Launched(first)))) => {
                let grant_of = |run: &mete_model::RunId| {
                    state
                        .run(caller.framework, run)
                        .or_else(|| state.past_run(caller.framework, run))
                        .map(|run| run.grant)
                };
                let verdict = Verdict::Launched(accept::recall(&accept.launches, first, &grant_of));
                self.answer_confirmed(replies, Ok(Reply::Applied { revision, verdict }));
                return Done::Yes;
            }
            Ok(Some((revision, verdict))) => {
                self.answer_confirmed(replies, Ok(Reply::Applied { revision, verdict }));
                return Done::Yes;
            }
            Ok(None) => {}
        }
        if accept.offers.is_empty() || accept.offers.len() > OFFERS_OF_AN_ACCEPT {
            let fault = format!(
                "{} offers are not within 1 to {OFFERS_OF_AN_ACCEPT}",
                accept.offers.len()
            );
            self.refuse_all(replies, &Refusal::field("offers", fault));
            return Done::Yes;
        }
        let presence = &self.presence;
        let is_here = |agent| presence.link(agent).is_some();
        match accept::judge(&self.book, caller.framework, &accept, &is_here) {
            Judged::Refused(verdicts) => {
                self.count_refused(verdicts.len());
                let reply = Reply::Applied {
                    revision: state.revision(),
                    verdict: Verdict::Launched(verdicts),
                };
                self.answer_confirmed(replies, Ok(reply));
                Done::Yes
            }
            Judged::Passed(passed) => self.launch(caller, accept, passed, replies, state, now),
        }
    }

    fn launch(
        &mut self,
        caller: Caller,
        accept: Accept,
        passed: accept::Passed,
        replies: Vec<ReplyTo>,
        state: &State,
        now: Now,
    ) -> Done {
        let on_the_way = AcceptOnTheWay {
            offers: accept.offers.clone(),
            agent: passed.agent,
            role: passed.role.clone(),
            offered: passed.offered,
            asked: passed
                .tasks
                .iter()
                .map(|task| task.resources.clone())
                .collect(),
            refused: passed.refused,
            unused_reason: accept.unused_reason.clone(),
            unused_refuse: accept.unused_refuse,
        };
        if passed.tasks.is_empty() {
            // Nothing to launch: the offers are given back.
            let verdicts = self.settle(caller, on_the_way, Vec::new(), state, now);
            let reply = Reply::Applied {
                revision: state.revision(),
                verdict: Verdict::Launched(verdicts),
            };
            self.answer_confirmed(replies, Ok(reply));
            return Done::Yes;
        }
        let command = Command::Launch(Launch {
            caller,
            role: passed.role,
            agent: passed.agent,
            topology_epoch: passed.topology_epoch,
            tasks: passed.tasks,
            each_alone: accept.each_alone,
        });
        let is_busy = caller.call != 0 && self.orders.is_busy(caller);
        let (command, checked) = self.check(state, command, now);
        match checked {
            Err(_) if is_busy => return Done::NotYet(FrameworkAction::Accept(accept), replies),
            Err(refusal) => self.refuse_call(caller, replies, refusal),
            Ok(Preview::NoChange(Verdict::Launched(verdicts))) if !is_busy => {
                // Every launch is refused by the ledger: nothing to log, the offers go back.
                let verdicts = self.settle(caller, on_the_way, verdicts, state, now);
                let reply = Reply::Applied {
                    revision: state.revision(),
                    verdict: Verdict::Launched(verdicts),
                };
                self.answer_confirmed(replies, Ok(reply));
            }
            Ok(Preview::NoChange(_) | Preview::Change | Preview::Repeat { .. }) => {
                for offer in &on_the_way.offers {
                    self.book.accept(*offer);
                }
                let kind = Kind::Accept(Box::new(on_the_way));
                self.send_call(caller, command, replies, kind, now);
            }
        }
        Done::Yes
    }

    /// Gives offers back and notes what is refused with them.
    fn decline(
        &mut self,
        caller: Caller,
        offers: &[OfferId],
        (refuse, reason): (Refuse, &str),
        state: &State,
        now: Now,
    ) -> Vec<ItemVerdict> {
        let mut given_back: BTreeMap<super::declines::Key, Resources> = BTreeMap::new();
        let made = self.book.last_made(offers);
        let mut verdicts = Vec::with_capacity(offers.len());
        for id in offers {
            let is_ours = self
                .book
                .get(*id)
                .is_some_and(|booked| booked.offer.framework == caller.framework);
            let declined = if is_ours {
                self.book.decline(*id, reason, now.at)
            } else {
                None
            };
            let (code, detail) = match declined {
                Some(offer) => {
                    let key = (offer.framework, offer.role, offer.agent);
                    given_back.entry(key).or_default().add(&offer.resources);
                    (Code::Ok, String::new())
                }
                None => self.why_not_declined(caller, *id),
            };
            verdicts.push(ItemVerdict { code, detail });
        }
        for (key, resources) in given_back {
            let given_back = self.given_back(state, key.2, resources, made);
            self.declines
                .note(key, given_back, refuse, reason, now.monotonic);
        }
        verdicts
    }

    /// What was given back on an agent, with all that is free there now that it is back.
    pub(super) fn given_back(
        &self,
        state: &State,
        agent: AgentId,
        resources: Resources,
        made: Monotonic,
    ) -> GivenBack {
        let mut free = state.free(agent).cloned().unwrap_or_default();
        if let Some(offered) = self.book.offered_of_agent(agent) {
            free.saturating_subtract(offered);
        }
        GivenBack {
            resources,
            free,
            made,
        }
    }

    fn why_not_declined(&self, caller: Caller, id: OfferId) -> (Code, String) {
        use super::offer_book::How;
        let ended = self.book.ended(id);
        let declined_before = ended.is_some_and(|ended| {
            ended.offer.framework == caller.framework && matches!(ended.how, How::Declined(_))
        });
        if declined_before {
            return (Code::Ok, String::new());
        }
        match self.book.get(id) {
            Some(booked) if booked.offer.framework == caller.framework => (
                Code::OfferRescinded,
                format!("offer {id} is used by an accept before this one"),
            ),
            Some(_) => (
                Code::NotFound,
                format!("offer {id} was made to another framework"),
            ),
            // To decline, it does not matter that an agent is away.
            None => accept::why_gone(&self.book, id, caller.framework, &|_| true),
        }
    }

    fn operator_call(
        &mut self,
        actor: String,
        action: OperatorAction,
        dry_run: bool,
        reply: ReplyTo,
        state: &State,
        now: Now,
    ) {
        if let OperatorAction::RescindOffers { offers } = &action {
            let verdicts = self.rescind_by_operator(offers, dry_run, now);
            self.answer_confirmed(vec![reply], Ok(Reply::Offers { verdicts }));
            return;
        }
        let command = match operator_command(state, actor, action) {
            Ok(Some(command)) => command,
            Ok(None) => {
                let detail = "this call is answered before it comes here";
                let refusal = Refusal::new(mete_model::Code::Internal, detail);
                return self.refuse_all(vec![reply], &refusal);
            }
            Err(refusal) => return self.refuse_confirmed(vec![reply], refusal),
        };
        let revision = state.revision();
        let (command, checked) = self.check(state, command, now);
        match checked {
            Err(refusal) => self.refuse_confirmed(vec![reply], refusal),
            Ok(Preview::NoChange(verdict) | Preview::Repeat { verdict, .. }) => {
                self.answer_confirmed(vec![reply], Ok(Reply::Applied { revision, verdict }));
            }
            Ok(Preview::Change) if dry_run => {
                let verdict = Verdict::Done;
                self.answer_confirmed(vec![reply], Ok(Reply::Applied { revision, verdict }));
            }
            Ok(Preview::Change) => {
                self.log(command, now, Waiting::Operator { reply });
            }
        }
    }

    fn rescind_by_operator(
        &mut self,
        offers: &[OfferId],
        dry_run: bool,
        now: Now,
    ) -> Vec<ItemVerdict> {
        let verdicts = offers
            .iter()
            .map(|id| match self.book.get(*id) {
                Some(booked) if booked.accepted => ItemVerdict {
                    code: Code::OfferRescinded,
                    detail: format!("offer {id} is accepted; it cannot be taken back"),
                },
                Some(_) => ItemVerdict {
                    code: Code::Ok,
                    detail: String::new(),
                },
                None => ItemVerdict {
                    code: Code::NotFound,
                    detail: format!("no offer {id} is out"),
                },
            })
            .collect();
        if !dry_run {
            self.rescind(offers, Why::Operator, now);
        }
        verdicts
    }

    fn read_point(&mut self, reply: ReplyTo) {
        let token = self.next_token();
        self.waiting.insert(token, Waiting::Read { reply });
        self.work.reads.push(token);
    }

    /// Refuses the calls whose gap was waited for long enough.
    pub(super) fn refuse_gaps(&mut self, state: &State, now: Now) {
        let holding: Vec<FrameworkId> = self.orders.holding.iter().copied().collect();
        for framework in holding {
            self.advance(framework, state, now);
            let Some((_, order)) = self.orders.by_framework.get_mut(&framework) else {
                self.orders.holding.remove(&framework);
                continue;
            };
            let missing = order.next();
            for (call, held) in order.take_overdue(now.monotonic) {
                let detail = format!(
                    "call {missing} has not arrived, so call {call} was not done; send both again"
                );
                self.refuse_all(held.replies, &Refusal::new(Code::CallGap, detail));
            }
        }
    }

    /// An older incarnation is over, and so are its calls.
    pub(super) fn end_order(&mut self, framework: FrameworkId, present: u64) {
        let is_older = self
            .orders
            .by_framework
            .get(&framework)
            .is_some_and(|(incarnation, _)| *incarnation < present);
        if is_older && let Some((_, order)) = self.orders.by_framework.remove(&framework) {
            let detail = format!("superseded by incarnation {present}; stop this process");
            let refusal = Refusal::new(Code::StaleIncarnation, detail);
            self.refuse_all(order.into_replies().collect(), &refusal);
        }
    }

    pub(super) fn end_orders(&mut self) {
        for (_, (_, order)) in std::mem::take(&mut self.orders.by_framework) {
            self.refuse_all(order.into_replies().collect(), &Refusal::unknown());
        }
    }

    /// Answers what was judged by the state alone, once a majority has confirmed that this is still
    /// the leader: one that was deposed and does not know it has an old state, and what it finds
    /// wrong, or done already, may be right, or undone, by now.
    pub(crate) fn answer_confirmed(
        &mut self,
        replies: Vec<ReplyTo>,
        answer: Result<Reply, Refusal>,
    ) {
        // Whoever is to come again loses nothing.
        if matches!(&answer, Err(refusal) if refusal.code().is_retryable()) {
            return self.answer_all(replies, &answer);
        }
        let token = self.next_token();
        let unlogged = Box::new(Unlogged { replies, answer });
        self.waiting.insert(token, Waiting::Answer(unlogged));
        self.work.reads.push(token);
    }

    fn refuse_confirmed(&mut self, replies: Vec<ReplyTo>, refusal: Refusal) {
        self.counters.calls_refused = self.counters.calls_refused.saturating_add(1);
        self.answer_confirmed(replies, Err(refusal));
    }

    pub(super) fn answer_all(
        &mut self,
        replies: impl IntoIterator<Item = ReplyTo>,
        answer: &Result<Reply, Refusal>,
    ) {
        for to in replies {
            let answer = answer.clone();
            self.outputs.push(Output::Reply { to, answer });
        }
    }

    pub(super) fn refuse_all(&mut self, replies: Vec<ReplyTo>, refusal: &Refusal) {
        self.counters.calls_refused = self.counters.calls_refused.saturating_add(1);
        self.answer_all(replies, &Err(refusal.clone()));
    }

    pub(super) fn count_refused(&mut self, launches: usize) {
        let launches = u64::try_from(launches).unwrap_or(u64::MAX);
        self.counters.launches_refused = self.counters.launches_refused.saturating_add(launches);
    }
}

/// The verdict of this call is kept until its framework says that it has it.
fn is_remembered(command: &Command) -> bool {
    let is_numbered = command.caller().is_some_and(|caller| caller.call != 0);
    is_numbered && !matches!(command, Command::Acknowledge { .. })
}

impl Orders {
    /// The order of the caller's incarnation, begun if it is new.
    fn of(&mut self, caller: Caller) -> &mut Order {
        let entry = self
            .by_framework
            .entry(caller.framework)
            .or_insert_with(|| (caller.incarnation, Order::new()));
        &mut entry.1
    }

    /// The next call of a framework, if it is here, and its incarnation.
    fn take_next(&mut self, framework: FrameworkId) -> Option<(u64, u64, Held)> {
        let (incarnation, order) = self.by_framework.get_mut(&framework)?;
        let (call, held) = order.take_next()?;
        Some((*incarnation, call, held))
    }

    fn is_busy(&self, caller: Caller) -> bool {
        self.by_framework
            .get(&caller.framework)
            .is_some_and(|(_, order)| order.is_busy())
    }

    /// The call was not logged and comes again: those after it wait for it.
    pub(super) fn comes_again(&mut self, caller: Caller) {
        if let Some((incarnation, order)) = self.by_framework.get_mut(&caller.framework)
            && *incarnation == caller.incarnation
        {
            order.comes_again(caller.call);
        }
    }

    /// The call has applied, or never will: everyone who sent it again meanwhile.
    pub(super) fn done(&mut self, caller: Caller) -> Vec<ReplyTo> {
        match self.by_framework.get_mut(&caller.framework) {
            Some((incarnation, order)) if *incarnation == caller.incarnation => {
                order.done(caller.call)
            }
            Some(_) | None => Vec::new(),
        }
    }

    /// Frameworks with calls that wait for others.
    pub(super) fn holding(&self) -> Vec<FrameworkId> {
        self.holding.iter().copied().collect()
    }

    /// The framework is no more: everyone who still waits.
    pub(super) fn forget(&mut self, framework: FrameworkId) -> Vec<ReplyTo> {
        self.holding.remove(&framework);
        let order = self.by_framework.remove(&framework);
        order
            .into_iter()
            .flat_map(|(_, order)| order.into_replies())
            .collect()
    }
}
