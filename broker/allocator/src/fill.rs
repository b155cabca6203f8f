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
use crate::view::kinds::{Amounts, add};
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
    places: btree_set::Iter<'a, Place>,
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
    /// The claim whose turn it is.
    head: Option<usize>,
    /// Shapes that fit nowhere for it, where refusals make that its own matter.
    failed: BTreeSet<usize>,
}

struct RoleState<'a> {
    path: &'a RolePath,
    weight_milli: u32,
    held: Amounts,
    queue: BTreeSet<(Share, FrameworkId, usize)>,
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

    /// Says whether the limits are reached.
    pub(crate) fn is_over(&self) -> bool {
        self.scratch.drafts.len() >= self.limits.placements
            || self.scratch.examined >= self.limits.agents
    }

    /// Finds who contends, and for what.
    fn gather(&mut self) {
        let mut sources: BTreeMap<(&'a RolePath, FrameworkId), Vec<Source<'a>>> = BTreeMap::new();
        for ((role, framework), places) in &self.wanted.touched {
            sources.entry((role, *framework)).or_default().push(Source {
                domain: Domain::All,
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
                self.number(shape, entry);
                for ((role, framework), places) in &entry.queues {
                    sources.entry((role, *framework)).or_default().push(Source {
                        domain,
                        places: places.iter(),
                    });
                }
            }
        }
        for ((role, framework), sources) in sources {
            self.add_contender(role, framework, sources);
        }
    }

    /// Says whether some dirty agent has the numbers for the shape.
    fn fits_dirty(&self, entry: &ShapeEntry) -> bool {
        self.wanted.agents.iter().any(|agent| {
            let view = self.scratch.numbers(*agent);
            view.is_some_and(|(_, free)| free.covers(&entry.need))
        })
    }

    fn number(&mut self, shape: &'a Shape, entry: &'a ShapeEntry) -> usize {
        if let Some(number) = self.shape_numbers.get(shape) {
            return *number;
        }
        let number = self.shapes.len();
        self.shapes.push(self.scratch.shape(shape, entry));
        self.shape_numbers.insert(shape, number);
        number
    }

    fn add_contender(
        &mut self,
        path: &'a RolePath,
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
        let role = match self.roles.last() {
            Some(last) if last.path == path => self.roles.len().saturating_sub(1),
            _ => {
                let held = self.view.role_held.get(path);
                self.roles.push(RoleState {
                    path,
                    weight_milli: self.view.weight_milli(path),
                    held: held
                        .map(super::view::kinds::Sums::amounts)
                        .unwrap_or_default(),
                    queue: BTreeSet::new(),
                });
                self.roles.len().saturating_sub(1)
            }
        };
        let mut held = Amounts::new();
        if let Some(entry) = self.view.frameworks.get(&framework) {
            for (kind, amount) in entry.held.get(path).into_iter().flatten() {
                add(&mut held, *kind, *amount);
            }
            self.offered
                .entry(framework)
                .or_insert_with(|| entry.offered.clone());
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
        loop {
            let Some(contender) = self.contenders.get_mut(number) else {
                return;
            };
            contender.head = None;
            let Some((place, at)) = contender.heads.pop_first() else {
                return;
            };
            let Some(source) = contender.sources.get_mut(at) else {
                return;
            };
            let (framework, domain, role) = (contender.framework, source.domain, contender.role);
            let next = source.places.next();
            contender.heads.extend(next.map(|place| (place, at)));
            if domain == Domain::Dirty && self.is_touched(role, framework, place) {
                continue;
            }
            if domain == Domain::Dirty && self.is_dead_on_dirty(framework, place) {
                // All that follows in this source has the same shape: what was said of it stands.
                if let Some(contender) = self.contenders.get_mut(number) {
                    contender.heads.retain(|(_, source)| *source != at);
                }
                continue;
            }
            let Some(looked) = self.note(framework, place, domain, false) else {
                continue;
            };
            if self.is_dead(number, looked) {
                self.finish(looked);
                continue;
            }
            if let Some(contender) = self.contenders.get_mut(number) {
                contender.head = Some(looked);
            }
            return;
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

    fn is_dead_on_dirty(&self, framework: FrameworkId, place: &Place) -> bool {
        self.view
            .claim(framework, &place.claim)
            .and_then(|claim| self.shape_numbers.get(&claim.shape))
            .and_then(|shape| self.shapes.get(*shape))
            .is_some_and(|shape| shape.dead_dirty)
    }

    fn is_dead(&self, contender: usize, looked: usize) -> bool {
        let Some(looked) = self.looked.get(looked) else {
            return true;
        };
        let failed = self
            .contenders
            .get(contender)
            .is_some_and(|contender| contender.failed.contains(&looked.shape));
        let shape = self.shapes.get(looked.shape);
        let dead = |shape: &ShapeState<'_>| match looked.domain {
            Domain::All => shape.dead,
            Domain::Dirty => shape.dead_dirty,
        };
        failed || shape.is_none_or(dead)
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
        let looked = self.looked.get(contender.head?)?;
        self.shapes.get(looked.shape).map(|shape| shape.entry)
    }

    /// One turn of a contender: tasks of its head up to the next step, the cap, or what fits.
    fn turn(&mut self, number: usize) {
        let Some((head, mut most)) = self.most_of_turn(number) else {
            return;
        };
        while most > 0 && !self.is_over() {
            let booked = self.place_some(number, head, most);
            if booked == 0 {
                self.finish(head);
                self.advance(number);
                return;
            }
            most = most.saturating_sub(booked);
        }
        let full = self
            .looked
            .get(head)
            .is_none_or(|looked| looked.placed >= looked.claim.remaining || looked.capped);
        if full {
            self.finish(head);
            self.advance(number);
        }
    }

    /// The head and how many tasks its turn may give.
    fn most_of_turn(&mut self, number: usize) -> Option<(usize, u32)> {
        let contender = self.contenders.get(number)?;
        let head = contender.head?;
        let role = self.roles.get(contender.role)?;
        let looked = self.looked.get_mut(head)?;
        let entry = self.shapes.get(looked.shape)?.entry;
        let halvings = self
            .view
            .framework(contender.framework)
            .map_or(0, |view| view.cap_halvings);
        let out = self.offered.get(&contender.framework);
        let out = out.map(Vec::as_slice).unwrap_or_default();
        let room = self.scale.room(out, entry, halvings);
        looked.capped = room == 0;
        let step = self
            .scale
            .tasks_in_step(&role.held, &entry.charge, role.weight_milli)
            .min(
                self.scale
                    .tasks_in_step(&contender.held, &entry.charge, 1000),
            );
        let remaining = looked.claim.remaining.saturating_sub(looked.placed);
        Some((head, remaining.min(room).min(step)))
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
