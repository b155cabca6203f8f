//! Progressive filling: turn after turn the role with the smallest share gives its framework with
//! the smallest share a few tasks of its first claim.
//!
//! A turn goes on until a share passes the next step of the grid. So where a turn ends depends on
//! nobody else, and claims that cannot be served leave no trace in the order of the others.

use std::collections::{BTreeMap, BTreeSet, btree_set};

use mete_model::{AgentId, ClaimId, FrameworkId, RolePath, Shape};

use crate::order::Scale;
use crate::round::Limits;
use crate::scratch::{Hidden, Scratch, ShapeState};
use crate::share::Share;
use crate::view::kinds::{Amounts, Sums, add};
use crate::view::{ClaimView, Place, ShapeEntry, View};

/// Where a claim may be placed in this round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Domain {
    /// On every agent.
    All,
    /// On the agents that changed: elsewhere it did not fit before either.
    Dirty,
}

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

/// Claims in order, all of one domain.
struct Source<'a> {
    domain: Domain,
    /// Their shape, if they all have the same.
    shape: Option<usize>,
    places: btree_set::Iter<'a, Place>,
}

/// The claim whose turn it is.
#[derive(Clone, Copy)]
struct Head<'a> {
    place: &'a Place,
    domain: Domain,
    shape: usize,
    /// Its number once it had a turn.
    looked: Option<usize>,
}

/// A framework in one role.
struct Contender<'a> {
    role: usize,
    framework: FrameworkId,
    held: Amounts,
    hidden: Hidden<'a>,
    sources: Vec<Source<'a>>,
    /// The first claim of each source.
    heads: BTreeSet<(&'a Place, usize)>,
    head: Option<Head<'a>>,
    /// Shapes that fit nowhere for it, where refusals make that its own matter.
    failed: BTreeSet<usize>,
}

struct RoleState<'a> {
    path: &'a RolePath,
    weight_milli: u32,
    held: Amounts,
    queue: BTreeSet<(Share, FrameworkId, usize)>,
}

impl<'a> RoleState<'a> {
    fn new(view: &View, path: &'a RolePath) -> Self {
        let held = view.role_held.get(path).map(Sums::amounts);
        Self {
            path,
            weight_milli: view.weight_milli(path),
            held: held.unwrap_or_default(),
            queue: BTreeSet::new(),
        }
    }
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
    shape_numbers: BTreeMap<&'a Shape, usize>,
    wanted: &'a Wanted,
    contenders: Vec<Contender<'a>>,
    roles: Vec<RoleState<'a>>,
    /// Roles by weight zero, share, path.
    order: BTreeSet<(bool, Share, usize)>,
    /// By framework: what is out to it, this round included.
    pub(crate) offered: BTreeMap<FrameworkId, Amounts>,
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
        Self {
            view,
            scratch: Scratch::new(view),
            scale,
            shapes: Vec::new(),
            shape_numbers: BTreeMap::new(),
            wanted,
            contenders: Vec::new(),
            roles: Vec::new(),
            order: BTreeSet::new(),
            offered: BTreeMap::new(),
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
        for number in 0..self.roles.len() {
            self.enter_role(number);
        }
        while let Some((_, _, role)) = self.order.pop_first() {
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
                .and_then(|role| role.queue.pop_first());
            if let Some((_, _, contender)) = next {
                self.turn(contender);
                self.enter(contender);
            }
            self.enter_role(role);
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
        for number in 0..self.shapes.len() {
            let entry = self.shapes.get(number).map(|shape| shape.entry);
            if entry.is_some_and(|entry| !self.fits_dirty(entry))
                && let Some(shape) = self.shapes.get_mut(number)
            {
                shape.dead_dirty = true;
            }
        }
    }

    /// Says whether the limits are reached.
    pub(crate) fn is_over(&self) -> bool {
        self.scratch.drafts.len() >= self.limits.placements
            || self.scratch.examined >= self.limits.agents
    }

    /// Finds who contends, and for what.
    fn gather(&mut self) {
        // By framework first: comparing paths is slower.
        let mut sources: BTreeMap<(FrameworkId, &'a RolePath), Vec<Source<'a>>> = BTreeMap::new();
        for ((role, framework), places) in &self.wanted.touched {
            sources.entry((*framework, role)).or_default().push(Source {
                domain: Domain::All,
                shape: None,
                places: places.iter(),
            });
        }
        let domain = if self.wanted.all {
            Domain::All
        } else {
            Domain::Dirty
        };
        if self.wanted.all || !self.wanted.agents.is_empty() {
            for (shape, entry) in &self.view.shapes {
                if !self.wanted.all && !self.fits_dirty(entry) {
                    continue;
                }
                let shape = Some(self.number(shape, entry));
                for ((role, framework), places) in &entry.queues {
                    sources.entry((*framework, role)).or_default().push(Source {
                        domain,
                        shape,
                        places: places.iter(),
                    });
                }
            }
        }
        let mut paths: Vec<&'a RolePath> = sources.keys().map(|(_, role)| *role).collect();
        paths.sort_unstable();
        paths.dedup();
        self.roles = paths
            .iter()
            .map(|path| RoleState::new(self.view, path))
            .collect();
        for ((framework, path), sources) in sources {
            if let Ok(role) = paths.binary_search(&path) {
                self.add_contender((role, path), framework, sources);
            }
        }
    }

    /// Says whether some dirty agent has the numbers for the shape.
    fn fits_dirty(&self, entry: &ShapeEntry) -> bool {
        self.wanted.agents.iter().any(|agent| {
            let found = self.scratch.find(*agent);
            found.is_some_and(|found| found.entry.free.covers(&entry.need))
        })
    }

    fn number(&mut self, shape: &'a Shape, entry: &'a ShapeEntry) -> usize {
        if let Some(number) = self.shape_numbers.get(shape) {
            return *number;
        }
        let number = self.shapes.len();
        let mut state = self.scratch.shape(shape, entry);
        // What fits nowhere from the start has no place in the order: its framework would wait
        // for the turn of a claim that cannot be served.
        state.dead = self.scratch.search(&state, None).is_none();
        state.dead_dirty = state.dead;
        self.shapes.push(state);
        self.shape_numbers.insert(shape, number);
        number
    }

    fn add_contender(
        &mut self,
        (role, path): (usize, &'a RolePath),
        framework: FrameworkId,
        mut sources: Vec<Source<'a>>,
    ) {
        if !self.view.is_served(framework, path) {
            for source in &mut sources {
                if source.domain == Domain::All {
                    for place in source.places.by_ref() {
                        self.note(framework, place, Domain::All, true);
                    }
                }
            }
            return;
        }
        let mut held = Amounts::new();
        if let Some(entry) = self.view.frameworks.get(&framework) {
            for (kind, amount) in entry.held.get(path).into_iter().flatten() {
                add(&mut held, *kind, *amount);
            }
        }
        let mut heads = BTreeSet::new();
        for (at, source) in sources.iter_mut().enumerate() {
            heads.extend(source.places.next().map(|place| (place, at)));
        }
        self.contenders.push(Contender {
            role,
            framework,
            held,
            hidden: self.view.refusals_of(framework, path),
            sources,
            heads,
            head: None,
            failed: BTreeSet::new(),
        });
    }

    /// Notes a claim as looked at.
    fn note(
        &mut self,
        framework: FrameworkId,
        place: &'a Place,
        domain: Domain,
        away: bool,
    ) -> Option<usize> {
        let view = self.view;
        let claim = view.claim(framework, &place.claim)?;
        let (shape, entry) = view.shapes.get_key_value(&claim.shape)?;
        let shape = self.number(shape, entry);
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
                    if let Some(looked) = self.note(framework, head.place, Domain::All, false) {
                        self.finish(looked);
                    }
                }
                // All that follows in this source has the same shape: what was said of it stands.
                Domain::Dirty => contender.heads.retain(|(_, at)| *at != source),
            }
        }
    }

    /// Takes the next claim of a contender, and says from which source.
    fn next(&mut self, number: usize) -> Option<(Head<'a>, usize)> {
        loop {
            let contender = self.contenders.get_mut(number)?;
            contender.head = None;
            let (place, at) = contender.heads.pop_first()?;
            let source = contender.sources.get_mut(at)?;
            contender
                .heads
                .extend(source.places.next().map(|place| (place, at)));
            let (framework, domain, role) = (contender.framework, source.domain, contender.role);
            let known = source.shape;
            if domain == Domain::Dirty && self.is_touched(role, framework, place) {
                continue;
            }
            let view = self.view;
            let shape = known.or_else(|| {
                let claim = view.claim(framework, &place.claim)?;
                let (shape, entry) = view.shapes.get_key_value(&claim.shape)?;
                Some(self.number(shape, entry))
            });
            let head = Head {
                place,
                domain,
                shape: shape?,
                looked: None,
            };
            return Some((head, at));
        }
    }

    fn is_touched(&self, role: usize, framework: FrameworkId, place: &Place) -> bool {
        if self.wanted.touched.is_empty() {
            return false;
        }
        let Some(role) = self.roles.get(role) else {
            return false;
        };
        self.wanted
            .touched
            .get(&(role.path.clone(), framework))
            .is_some_and(|places| places.contains(place))
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

    /// Puts a contender with a head into its role's order.
    fn enter(&mut self, number: usize) {
        let Some(contender) = self.contenders.get(number) else {
            return;
        };
        let Some(shape) = self.head_shape(contender) else {
            return;
        };
        let share = self.scale.share(&contender.held, &shape.charge, 1000);
        let place = (share, contender.framework, number);
        if let Some(role) = self.roles.get_mut(contender.role) {
            role.queue.insert(place);
        }
    }

    /// Puts a role with contenders into the order.
    fn enter_role(&mut self, number: usize) {
        let Some(role) = self.roles.get(number) else {
            return;
        };
        let Some((_, _, first)) = role.queue.first() else {
            return;
        };
        let Some(shape) = self
            .contenders
            .get(*first)
            .and_then(|first| self.head_shape(first))
        else {
            return;
        };
        let share = self
            .scale
            .share(&role.held, &shape.charge, role.weight_milli);
        self.order.insert((role.weight_milli == 0, share, number));
    }

    fn head_shape(&self, contender: &Contender<'a>) -> Option<&'a ShapeEntry> {
        let head = contender.head.as_ref()?;
        self.shapes.get(head.shape).map(|shape| shape.entry)
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
        let looked = self.note(framework, head.place, head.domain, false)?;
        if let Some(entry) = self.view.frameworks.get(&framework) {
            self.offered
                .entry(framework)
                .or_insert_with(|| entry.offered.clone());
        }
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
        let (Some(role), Some(shape)) = (
            self.roles.get(contender.role),
            self.shapes.get(looked.shape),
        ) else {
            return 0;
        };
        let task = &shape.entry.charge;
        let framework = self.view.framework(contender.framework);
        let halvings = framework.map_or(0, |view| view.cap_halvings);
        let out = self.offered.get(&contender.framework);
        let out = out.map(Vec::as_slice).unwrap_or_default();
        let room = self.scale.room(out, shape.entry, halvings);
        looked.capped = room == 0;
        let of_role = self
            .scale
            .tasks_in_step(&role.held, task, role.weight_milli);
        let of_own = self.scale.tasks_in_step(&contender.held, task, 1000);
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
        let hidden = contender.hidden;
        let found = match looked.domain {
            Domain::All => self.scratch.search(shape, hidden),
            Domain::Dirty => {
                let agents = &self.wanted.agents;
                self.scratch.search_among(agents, shape, hidden)
            }
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
        let (count, charge) = self.scratch.book(found, shape, head, most);
        looked.placed = looked.placed.saturating_add(count);
        let out = self.offered.entry(contender.framework).or_default();
        let role = self
            .roles
            .get_mut(contender.role)
            .map(|role| &mut role.held);
        for sums in [Some(&mut contender.held), Some(out), role]
            .into_iter()
            .flatten()
        {
            for (kind, amount) in &charge {
                add(sums, *kind, *amount);
            }
        }
        count
    }
}
