//! Progressive filling: turn after turn the role with the smallest share gives its framework with
//! the smallest share a few tasks of its first claim.
//!
//! A turn goes on until a share passes the next step of the grid. So where a turn ends depends on
//! nobody else, and claims that cannot be served leave no trace in the order of the others.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use mete_model::{AgentId, ClaimId, FrameworkId, RolePath};

use crate::contend::{Contender, Domain, Head, Out, Rank, RoleState, add_times};
use crate::order::Scale;
use crate::round::Limits;
use crate::scratch::{Found, Scratch, ShapeState};
use crate::share::Weight;
use crate::view::free::Free;
use crate::view::{ClaimView, Place, Queue, ShapeEntry, View};

/// A claim that was looked at.
#[derive(Debug)]
pub(crate) struct Looked<'a> {
    pub(crate) framework: FrameworkId,
    pub(crate) id: &'a ClaimId,
    pub(crate) claim: &'a ClaimView,
    pub(crate) shape: usize,
    domain: Domain,
    pub(crate) placed: u32,
    /// The cap left no room.
    pub(crate) capped: bool,
    /// The framework is disconnected or suppressed.
    pub(crate) away: bool,
    /// Nothing more can be done for it in this round.
    pub(crate) done: bool,
}

/// What a round wants to fill: touched claims everywhere, others on the dirty agents only.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    /// Every waiting claim on every agent.
    pub(crate) all: bool,
    /// By role and framework.
    pub(crate) touched: BTreeMap<(RolePath, FrameworkId), BTreeSet<Place>>,
    /// Schedulable ones.
    pub(crate) agents: Vec<AgentId>,
}

/// The state of one round.
pub(crate) struct Fill<'a> {
    pub(crate) view: &'a View,
    pub(crate) scratch: Scratch<'a>,
    pub(crate) scale: Scale,
    pub(crate) shapes: Vec<ShapeState<'a>>,
    /// By the view's number of a shape: its place in `shapes`.
    shape_numbers: Vec<Option<usize>>,
    /// The same, for shapes whose claims are all looked at.
    open: Vec<Option<usize>>,
    wanted: &'a Wanted,
    /// The agents that are wanted, as they were before the round.
    dirty: Vec<Found>,
    contenders: Vec<Contender<'a>>,
    roles: Vec<RoleState<'a>>,
    /// By the view's number of a role: its place in `roles`.
    role_numbers: Vec<Option<usize>>,
    order: BinaryHeap<Rank<'a>>,
    /// In the order of frameworks.
    pub(crate) out: Vec<Out<'a>>,
    pub(crate) looked: Vec<Looked<'a>>,
    limits: Limits,
    pub(crate) unfinished: bool,
}

impl<'a> Fill<'a> {
    pub(crate) fn new(view: &'a View, wanted: &'a Wanted, limits: Limits) -> Self {
        let scale = Scale {
            capacity: view.capacity.amounts(),
            grid: view.grid(),
        };
        let scratch = Scratch::new(view);
        let dirty = wanted.agents.iter();
        let dirty = dirty.filter_map(|agent| scratch.find(*agent)).collect();
        Self {
            view,
            scratch,
            scale,
            shapes: Vec::new(),
            shape_numbers: vec![None; view.shapes.end()],
            open: vec![None; view.shapes.end()],
            wanted,
            dirty,
            contenders: Vec::new(),
            roles: Vec::new(),
            role_numbers: vec![None; view.role_entries.end()],
            order: BinaryHeap::new(),
            out: Vec::new(),
            looked: Vec::new(),
            limits,
            unfinished: false,
        }
    }

    /// Places what is wanted.
    pub(crate) fn run(&mut self) {
        self.gather();
        for number in 0..self.contenders.len() {
            self.advance(number);
            self.enter(number);
        }
        let ranks: Vec<Rank<'a>> = (0..self.roles.len())
            .filter_map(|number| self.rank(number))
            .collect();
        self.order = ranks.into();
        while let Some(Reverse((_, _, _, role))) = self.order.pop() {
            if self.is_over() {
                self.unfinished = true;
                return;
            }
            if self.nothing_left() {
                self.finish_served();
                return;
            }
            let next = self
                .roles
                .get_mut(role)
                .and_then(|role| role.line.pop_first());
            if let Some((_, _, contender)) = next {
                self.turn(contender);
                self.enter(contender);
            }
            let rank = self.rank(role);
            self.order.extend(rank);
        }
    }

    /// Says whether only dirty agents count in this round, and nothing fits on them any more.
    fn nothing_left(&self) -> bool {
        !self.wanted.all
            && self.wanted.touched.is_empty()
            && self.shapes.iter().all(|shape| shape.dead_dirty)
    }

    /// Claims that got something and still want more will get no further turn.
    fn finish_served(&mut self) {
        for looked in &mut self.looked {
            looked.done |= looked.placed > 0;
        }
    }

    /// Shapes that no dirty agent has the numbers for any more.
    fn mark_dead(&mut self) {
        if self.wanted.all {
            return;
        }
        let now = |found: &Found| self.scratch.now(found).entry.free;
        let now: Vec<Free> = self.dirty.iter().map(now).collect();
        for shape in &mut self.shapes {
            let need = &shape.entry.need;
            shape.dead_dirty |= !now.iter().any(|free| free.covers(need));
        }
    }

    /// Says whether the limits are reached.
    pub(crate) fn is_over(&self) -> bool {
        self.scratch.drafts.len() >= self.limits.placements
            || self.scratch.examined >= self.limits.agents
    }

    /// Finds who contends, and for what.
    fn gather(&mut self) {
        let view = self.view;
        let wanted = self.wanted;
        if !wanted.all && wanted.agents.is_empty() {
            let mut touched: Vec<_> = wanted.touched.iter().collect();
            touched.sort_unstable_by_key(|((role, framework), _)| (*framework, role));
            for ((role, framework), places) in touched {
                let queue = view.queue_of(*framework, role);
                if let Some(queue) = queue {
                    self.add_contender(*framework, queue, Some(places));
                }
            }
            return;
        }
        for (_, number, entry) in view.shapes.iter() {
            if wanted.all || self.fits_dirty(entry) {
                let open = self.number(number);
                if let Some(place) = self.open.get_mut(number) {
                    *place = open;
                }
            }
        }
        for (framework, queues) in &view.queues {
            for queue in queues {
                let touched = if wanted.touched.is_empty() {
                    None
                } else {
                    wanted.touched.get(&(queue.path.clone(), *framework))
                };
                self.add_contender(*framework, queue, touched);
            }
        }
    }

    /// Says whether some dirty agent has the numbers for the shape.
    fn fits_dirty(&self, entry: &ShapeEntry) -> bool {
        let covers = |found: &Found| found.entry.free.covers(&entry.need);
        self.dirty.iter().any(covers)
    }

    /// The number of a shape in this round, a new one if it has none.
    fn number(&mut self, of_view: usize) -> Option<usize> {
        if let Some(number) = *self.shape_numbers.get(of_view)? {
            return Some(number);
        }
        let number = self.shapes.len();
        let view = self.view;
        let (shape, entry) = (view.shapes.key(of_view)?, view.shapes.at(of_view)?);
        let mut state = self.scratch.shape(shape, entry);
        // What fits nowhere from the start has no place in the order: its framework would wait
        // for the turn of a claim that cannot be served.
        state.dead = self.scratch.search(&state, None).is_none();
        state.dead_dirty = state.dead;
        self.shapes.push(state);
        *self.shape_numbers.get_mut(of_view)? = Some(number);
        Some(number)
    }

    /// The number of a claim's shape in this round.
    fn number_of(&mut self, claim: &ClaimView) -> Option<usize> {
        let (_, number) = self.view.shapes.find(&claim.shape)?;
        self.number(number)
    }

    fn add_contender(
        &mut self,
        framework: FrameworkId,
        queue: &'a Queue,
        touched: Option<&'a BTreeSet<Place>>,
    ) {
        let domain = if self.wanted.all {
            Domain::All
        } else {
            Domain::Dirty
        };
        let is_open = |shape: usize| self.open.get(shape).is_some_and(Option::is_some);
        let mut sources = queue.sources.iter();
        if touched.is_none() && !sources.any(|source| is_open(source.shape)) {
            return;
        }
        if !queue.served {
            let of_all = queue.sources.iter().filter(|_| self.wanted.all);
            let places = of_all.flat_map(|source| source.places.iter());
            let places = touched.into_iter().flatten().chain(places);
            for place in places.collect::<Vec<_>>() {
                self.note(framework, place, (Domain::All, None), true);
            }
            return;
        }
        let (Some(role), Some(out)) = (self.role(queue), self.out_of(framework)) else {
            return;
        };
        let contender = Contender::new((framework, queue), (role, out), touched, domain);
        self.contenders.push(contender);
    }

    /// The place of a queue's role in this round, a new one if it has none.
    fn role(&mut self, queue: &'a Queue) -> Option<usize> {
        let known = self.role_numbers.get_mut(queue.role)?;
        if known.is_none() {
            *known = Some(self.roles.len());
            let entry = self.view.role_entries.at(queue.role)?;
            self.roles.push(RoleState::new(&queue.path, entry));
        }
        *known
    }

    /// The place of what is out to a framework; they are asked for in the order of frameworks.
    fn out_of(&mut self, framework: FrameworkId) -> Option<usize> {
        let last = self.out.last();
        if last.is_none_or(|last| last.framework != framework) {
            self.out.push(out_of(self.view, framework)?);
        }
        self.out.len().checked_sub(1)
    }

    /// Notes a claim as looked at.
    fn note(
        &mut self,
        framework: FrameworkId,
        place: &'a Place,
        (domain, shape): (Domain, Option<usize>),
        away: bool,
    ) -> Option<usize> {
        let view = self.view;
        let claim = view.claim(framework, &place.claim)?;
        let shape = shape.or_else(|| self.number_of(claim))?;
        self.looked.push(Looked {
            framework,
            id: &place.claim,
            claim,
            shape,
            domain,
            placed: 0,
            capped: false,
            away,
            done: away,
        });
        Some(self.looked.len().saturating_sub(1))
    }

    /// Sets the contender's head to its next claim that may still fit somewhere.
    fn advance(&mut self, number: usize) {
        while let Some((head, source)) = self.next(number) {
            let dead = self.is_dead(number, &head);
            let Some(contender) = self.contenders.get_mut(number) else {
                return;
            };
            if !dead {
                contender.head = Some(head);
                return;
            }
            let framework = contender.framework;
            match head.domain {
                Domain::All => {
                    let shape = (Domain::All, Some(head.shape));
                    if let Some(looked) = self.note(framework, head.place, shape, false) {
                        self.finish(looked);
                    }
                }
                // All that follows in this source has the same shape: what was said of it stands.
                Domain::Dirty => contender.close(source, &self.open),
            }
        }
    }

    /// Takes the next claim of a contender, and says from which source.
    fn next(&mut self, number: usize) -> Option<(Head<'a>, usize)> {
        loop {
            let contender = self.contenders.get_mut(number)?;
            contender.head = None;
            let next = contender.take(&self.open)?;
            let is_touched = |places: &BTreeSet<Place>| places.contains(next.place);
            if next.domain == Domain::Dirty && contender.touched.is_some_and(is_touched) {
                continue;
            }
            let framework = contender.framework;
            let shape = match next.shape {
                Some(shape) => shape,
                None => self.number_of(self.view.claim(framework, &next.place.claim)?)?,
            };
            let head = Head {
                place: next.place,
                domain: next.domain,
                shape,
                looked: None,
            };
            return Some((head, next.source));
        }
    }

    fn is_dead(&self, contender: usize, head: &Head<'_>) -> bool {
        let failed = self
            .contenders
            .get(contender)
            .is_some_and(|contender| contender.failed.contains(&head.shape));
        let dead = |shape: &ShapeState<'_>| match head.domain {
            Domain::All => shape.dead,
            Domain::Dirty => shape.dead_dirty,
        };
        failed || self.shapes.get(head.shape).is_none_or(dead)
    }

    fn finish(&mut self, looked: usize) {
        if let Some(looked) = self.looked.get_mut(looked) {
            looked.done = true;
        }
    }

    /// Puts a contender with a head into its role's line.
    fn enter(&mut self, number: usize) {
        let Some(contender) = self.contenders.get_mut(number) else {
            return;
        };
        let shape = contender.head.and_then(|head| self.shapes.get(head.shape));
        let Some(shape) = shape else {
            return;
        };
        let (held, task) = (&contender.held, &shape.entry.charge);
        contender.share = self.scale.share(held, task, Weight::ONE);
        if let Some(role) = self.roles.get_mut(contender.role) {
            role.line
                .insert((contender.share, contender.framework, number));
        }
    }

    /// The place in the order of a role with contenders.
    fn rank(&mut self, number: usize) -> Option<Rank<'a>> {
        let role = self.roles.get_mut(number)?;
        let (_, _, first) = role.line.first()?;
        let head = self.contenders.get(*first)?.head?;
        let shape = self.shapes.get(head.shape)?;
        let task = &shape.entry.charge;
        let share = self.scale.share(&role.held, task, role.weight);
        Some(role.rank(share, number))
    }

    /// One turn of a contender: tasks of its head up to the next step, the cap, or what fits.
    fn turn(&mut self, number: usize) {
        let head = self
            .contenders
            .get(number)
            .and_then(|contender| contender.head);
        let Some(head) = head else {
            return;
        };
        let dead = self.is_dead(number, &head);
        if dead && head.domain == Domain::Dirty && head.looked.is_none() {
            // Others of this shape took what had changed: what was said of this claim stands.
            self.advance(number);
            return;
        }
        let Some(looked) = self.look(number, head) else {
            self.advance(number);
            return;
        };
        let mut most = if dead {
            0
        } else {
            self.most_of_turn(number, looked)
        };
        let mut over = dead;
        while most > 0 && !self.is_over() {
            let booked = self.place_some(number, looked, most);
            if booked == 0 {
                over = true;
                break;
            }
            most = most.saturating_sub(booked);
        }
        let full = |looked: &Looked<'_>| looked.placed >= looked.claim.remaining || looked.capped;
        if head.domain == Domain::Dirty {
            self.mark_dead();
        }
        if over || self.looked.get(looked).is_none_or(full) {
            self.finish(looked);
            self.advance(number);
        }
    }

    /// The number of a contender's head among the looked-at claims, a new one the first time.
    fn look(&mut self, number: usize, head: Head<'a>) -> Option<usize> {
        if head.looked.is_some() {
            return head.looked;
        }
        let framework = self.contenders.get(number)?.framework;
        let shape = (head.domain, Some(head.shape));
        let looked = self.note(framework, head.place, shape, false)?;
        let contender = self.contenders.get_mut(number)?;
        contender.head = Some(Head {
            looked: Some(looked),
            ..head
        });
        Some(looked)
    }

    /// How many tasks a turn may give to a claim.
    fn most_of_turn(&mut self, number: usize, looked: usize) -> u32 {
        let (Some(contender), Some(looked)) =
            (self.contenders.get(number), self.looked.get_mut(looked))
        else {
            return 0;
        };
        let (Some(role), Some(shape), Some(out)) = (
            self.roles.get(contender.role),
            self.shapes.get(looked.shape),
            self.out.get(contender.out),
        ) else {
            return 0;
        };
        let task = &shape.entry.charge;
        let room = self.scale.room(&out.amounts, shape.entry, out.halvings);
        looked.capped = room == 0;
        let of_role = self
            .scale
            .tasks_in_step(role.share, &role.held, task, role.weight.milli);
        let of_own = self
            .scale
            .tasks_in_step(contender.share, &contender.held, task, 1000);
        let remaining = looked.claim.remaining.saturating_sub(looked.placed);
        remaining.min(room).min(of_role).min(of_own)
    }

    /// Books up to `most` tasks on the best agent; 0 if there is none.
    fn place_some(&mut self, number: usize, head: usize, most: u32) -> u32 {
        let (Some(contender), Some(looked)) =
            (self.contenders.get_mut(number), self.looked.get_mut(head))
        else {
            return 0;
        };
        let Some(shape) = self.shapes.get_mut(looked.shape) else {
            return 0;
        };
        let hidden = self
            .view
            .refusals_of(contender.framework, &contender.queue.path);
        let found = match looked.domain {
            Domain::All => self.scratch.search(shape, hidden),
            Domain::Dirty => self.scratch.search_among(&self.dirty, shape, hidden),
        };
        let Some(found) = found else {
            match (hidden, looked.domain) {
                (Some(_), _) => {
                    contender.failed.insert(looked.shape);
                }
                (None, Domain::All) => {
                    shape.dead = true;
                    shape.dead_dirty = true;
                }
                (None, Domain::Dirty) => shape.dead_dirty = true,
            }
            return 0;
        };
        let (count, named) = self.scratch.book(found, shape, head, most);
        looked.placed = looked.placed.saturating_add(count);
        let (charge, times) = match &named {
            Some(named) => (named.as_slice(), 1),
            None => (shape.entry.charge.as_slice(), count),
        };
        add_times(&mut contender.held, charge, times);
        if let Some(out) = self.out.get_mut(contender.out) {
            add_times(&mut out.amounts, charge, times);
        }
        if let Some(role) = self.roles.get_mut(contender.role) {
            add_times(&mut role.held, charge, times);
        }
        count
    }
}

/// What is out to a framework before the round.
pub(crate) fn out_of(view: &View, framework: FrameworkId) -> Option<Out<'_>> {
    let entry = view.frameworks.get(&framework)?;
    Some(Out {
        framework,
        amounts: Cow::Borrowed(&entry.offered),
        halvings: entry.view.cap_halvings,
    })
}
