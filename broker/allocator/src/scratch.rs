//! The round's own copy of what is free: found on, booked on, thrown away.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

use mete_model::quota::Charge;
use mete_model::{AgentId, ClassPath, Resources, Shape, fit};

use crate::view::free::Free;
use crate::view::kinds::Sums;
use crate::view::tree::Tree;
use crate::view::{RefusalView, ShapeEntry, View};

/// Agents that fit and are compared before the best of them is taken. The order of the trees is
/// best fit already; comparing a few more balances CPU against memory.
const COMPARED: usize = 8;
/// The same for shapes with devices.
const COMPARED_DEVICES: usize = 16;

/// What a framework refused in a role.
pub(crate) type Hidden<'a> = Option<&'a BTreeMap<AgentId, RefusalView>>;

/// A shape as a round sees it.
#[derive(Clone, Debug)]
pub(crate) struct ShapeState<'a> {
    pub(crate) shape: &'a Shape,
    pub(crate) entry: &'a ShapeEntry,
    /// Groups with devices of every wanted class; all groups when none is wanted.
    pub(crate) groups: Vec<usize>,
    /// Fits nowhere any more.
    pub(crate) dead: bool,
    /// Fits on none of the dirty agents any more.
    pub(crate) dead_dirty: bool,
}

impl ShapeState<'_> {
    fn has_names(&self) -> bool {
        self.shape.cores > 0 || !self.shape.devices.is_empty()
    }
}

/// An agent that was booked on.
#[derive(Debug)]
pub(crate) struct Touched {
    group: usize,
    free: Free,
    /// Set once names were taken; its amounts are in `free`.
    names: Option<Resources>,
    /// Who took what: the claim's number and the draft's.
    bookers: Vec<(usize, usize)>,
}

/// A placement in the making.
#[derive(Debug)]
pub(crate) struct Draft {
    /// The number of the looked-at claim, or of the plain contender.
    pub(crate) to: usize,
    pub(crate) agent: AgentId,
    /// 0 for a plain offer.
    pub(crate) slots: u32,
    /// What was taken by name; shapes without names are multiplied at the end.
    pub(crate) resources: Option<Resources>,
}

/// An agent that fits, and its group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) agent: AgentId,
    pub(crate) group: usize,
}

/// Lower is better: device thousandths left unused, then CPU and memory left over.
type Score = (u64, u64);

/// The copy.
#[derive(Debug)]
pub(crate) struct Scratch<'a> {
    pub(crate) view: &'a View,
    groups: Vec<(&'a [ClassPath], Cow<'a, Tree>)>,
    touched: BTreeMap<AgentId, Touched>,
    pub(crate) drafts: Vec<Draft>,
    pub(crate) taken: Sums,
    pub(crate) taken_cores: u64,
    pub(crate) examined: usize,
    usual_cpu: u64,
    usual_memory: u64,
}

impl<'a> Scratch<'a> {
    pub(crate) fn new(view: &'a View) -> Self {
        let groups = view
            .groups
            .iter()
            .map(|(classes, group)| (classes.as_slice(), Cow::Borrowed(&group.free)))
            .collect();
        let agents = u64::try_from(view.agents.len()).unwrap_or(u64::MAX);
        let usual = |kind| {
            let sum = view
                .number(&kind)
                .map_or(0, |number| view.capacity.get(number));
            sum.checked_div(agents).unwrap_or(0).max(1)
        };
        Self {
            view,
            groups,
            touched: BTreeMap::new(),
            drafts: Vec::new(),
            taken: Sums::default(),
            taken_cores: 0,
            examined: 0,
            usual_cpu: usual(mete_model::quota::Kind::Cpu),
            usual_memory: usual(mete_model::quota::Kind::Memory),
        }
    }

    /// Looks at a shape for the first time.
    pub(crate) fn shape(&self, shape: &'a Shape, entry: &'a ShapeEntry) -> ShapeState<'a> {
        let groups = self
            .groups
            .iter()
            .enumerate()
            .filter(|(_, (classes, _))| has_classes(classes, shape))
            .map(|(at, _)| at)
            .collect();
        ShapeState {
            shape,
            entry,
            groups,
            dead: false,
            dead_dirty: false,
        }
    }

    /// The best agent for one task of the shape, out of all.
    pub(crate) fn search(&mut self, shape: &ShapeState<'_>, hidden: Hidden<'_>) -> Option<Found> {
        let plain_work = shape.shape.devices.is_empty();
        let mut best: Option<(Score, Found)> = None;
        let mut looked = 0_usize;
        for at in &shape.groups {
            let Some((classes, tree)) = self.groups.get(*at) else {
                continue;
            };
            let mut compared = 0_usize;
            let most = if plain_work {
                COMPARED
            } else {
                COMPARED_DEVICES
            };
            let mut last = None;
            let scanned = tree.scan(&shape.entry.need, |agent, free| {
                if last == Some(*free) && plain_work && hidden.is_none() {
                    // The same numbers as the one before: no better.
                    compared = compared.saturating_add(1);
                    return stop_at(compared, most);
                }
                last = Some(*free);
                if let Some(score) = self.score(shape, agent, free, hidden) {
                    compared = compared.saturating_add(1);
                    if best.is_none_or(|(before, _)| score < before) {
                        best = Some((score, Found { agent, group: *at }));
                    }
                }
                stop_at(compared, most)
            });
            looked = looked.saturating_add(scanned);
            // Agents without devices are the first group: work without devices goes to the others
            // only when nothing fits there.
            if plain_work && classes.is_empty() && best.is_some() {
                break;
            }
        }
        self.examined = self.examined.saturating_add(looked);
        best.map(|(_, found)| found)
    }

    /// The best of a few agents.
    pub(crate) fn search_among(
        &mut self,
        agents: &[AgentId],
        shape: &ShapeState<'_>,
        hidden: Hidden<'_>,
    ) -> Option<Found> {
        let mut best: Option<(bool, Score, Found)> = None;
        for agent in agents {
            let Some((group, free)) = self.numbers(*agent) else {
                continue;
            };
            if !free.covers(&shape.entry.need) || !shape.groups.contains(&group) {
                continue;
            }
            let Some(score) = self.score(shape, *agent, &free, hidden) else {
                continue;
            };
            let with_devices = shape.shape.devices.is_empty()
                && self
                    .groups
                    .get(group)
                    .is_some_and(|(classes, _)| !classes.is_empty());
            let better = |(devices, before, _): (bool, Score, Found)| {
                (with_devices, score) < (devices, before)
            };
            if best.is_none_or(better) {
                let found = Found {
                    agent: *agent,
                    group,
                };
                best = Some((with_devices, score, found));
            }
        }
        self.examined = self.examined.saturating_add(agents.len());
        best.map(|(_, _, found)| found)
    }

    /// How well an agent whose numbers cover the need fits; `None` if it does not, or is hidden.
    fn score(
        &self,
        shape: &ShapeState<'_>,
        agent: AgentId,
        free: &Free,
        hidden: Hidden<'_>,
    ) -> Option<Score> {
        if let Some(refusal) = hidden.and_then(|hidden| hidden.get(&agent))
            && refusal.resources.contains(self.resources(agent)?.as_ref())
        {
            return None;
        }
        let need = &shape.entry.need;
        let part = |have: u64, want: u64, usual: u64| {
            let left = have.saturating_sub(want).saturating_mul(1024);
            left.checked_div(usual).unwrap_or(left)
        };
        let left = part(free.cpu, need.cpu, self.usual_cpu).saturating_add(part(
            free.memory,
            need.memory,
            self.usual_memory,
        ));
        if shape.shape.devices.is_empty() {
            return Some((free.devices, left));
        }
        let now = self.resources(agent)?;
        let task = fit(shape.shape, &now).ok()?;
        if need.whole > 0 {
            return Some((free.devices.saturating_sub(need.devices), left));
        }
        let unused = task.devices.iter().fold(0_u64, |sum, share| {
            let device = now.devices.iter().find(|device| device.id == share.id);
            let have = device.map_or(0, |device| device.milli);
            sum.saturating_add(u64::from(have.saturating_sub(share.milli)))
        });
        Some((unused, left))
    }

    /// What is free on an agent now, by name.
    pub(crate) fn resources(&self, agent: AgentId) -> Option<Cow<'a, Resources>> {
        let base = &self.view.agents.get(&agent)?.free;
        let Some(touched) = self.touched.get(&agent) else {
            return Some(Cow::Borrowed(base));
        };
        let mut now = touched.names.clone().unwrap_or_else(|| base.clone());
        now.cpu.0 = touched.free.cpu;
        now.memory.0 = touched.free.memory;
        now.disk.0 = touched.free.disk;
        Some(Cow::Owned(now))
    }

    /// The group of a schedulable agent and its numbers now.
    pub(crate) fn numbers(&self, agent: AgentId) -> Option<(usize, Free)> {
        if let Some(touched) = self.touched.get(&agent) {
            return Some((touched.group, touched.free));
        }
        let view = self.view.agents.get(&agent)?;
        if !view.schedulable {
            return None;
        }
        let classes = crate::view::classes_of(&view.total);
        let group = self
            .groups
            .binary_search_by(|(group, _)| (*group).cmp(classes.as_slice()))
            .ok()?;
        Some((group, Free::of(&view.free)))
    }

    /// Books up to `most` tasks for the claim with number `to`: how many, and what they count.
    pub(crate) fn book(
        &mut self,
        found: Found,
        shape: &ShapeState<'_>,
        to: usize,
        most: u32,
    ) -> (u32, Vec<(usize, u64)>) {
        let Some((_, before)) = self.numbers(found.agent) else {
            return (0, Vec::new());
        };
        if !shape.has_names() {
            let count = before.how_many(&shape.entry.need, most);
            let mut after = before;
            after.take(&shape.entry.need, count);
            let draft = (to, count, None);
            self.settle(found, (before, after), None, draft);
            let times =
                |(kind, amount): &(usize, u64)| (*kind, amount.saturating_mul(u64::from(count)));
            let charge: Vec<_> = shape.entry.charge.iter().map(times).collect();
            self.taken.add(&charge);
            return (count, charge);
        }
        let Some(now) = self.resources(found.agent) else {
            return (0, Vec::new());
        };
        let (sum, count) = fit::carve(shape.shape, &now, most);
        let mut left = now.into_owned();
        if count == 0 || left.subtract(&sum).is_err() {
            return (0, Vec::new());
        }
        let charge = self.take_named(found, before, left, (to, count, sum));
        (count, charge)
    }

    /// Books resources by name, with `left` free after it.
    pub(crate) fn take_named(
        &mut self,
        found: Found,
        before: Free,
        left: Resources,
        (to, count, sum): (usize, u32, Resources),
    ) -> Vec<(usize, u64)> {
        let charge: Vec<(usize, u64)> = Charge::of(&sum)
            .iter()
            .filter_map(|(kind, amount)| Some((self.view.number(kind)?, amount)))
            .collect();
        self.taken.add(&charge);
        self.taken_cores = self.taken_cores.saturating_add(u64::from(sum.cores.len()));
        let after = Free::of(&left);
        self.settle(found, (before, after), Some(left), (to, count, Some(sum)));
        charge
    }

    /// Moves the agent in its tree and notes the draft.
    fn settle(
        &mut self,
        found: Found,
        (before, after): (Free, Free),
        names: Option<Resources>,
        (to, slots, resources): (usize, u32, Option<Resources>),
    ) {
        if let Some((_, tree)) = self.groups.get_mut(found.group) {
            let tree = tree.to_mut();
            tree.remove(found.agent, &before);
            tree.insert(found.agent, after);
        }
        let touched = self.touched.entry(found.agent).or_insert_with(|| Touched {
            group: found.group,
            free: before,
            names: None,
            bookers: Vec::new(),
        });
        touched.free = after;
        if names.is_some() {
            touched.names = names;
        }
        let known = touched.bookers.iter().find(|(claim, _)| *claim == to);
        if let Some(draft) = known.and_then(|(_, at)| self.drafts.get_mut(*at)) {
            draft.slots = draft.slots.saturating_add(slots);
            match (&mut draft.resources, resources) {
                (Some(sum), Some(more)) => sum.add(&more),
                (sum @ None, more) => *sum = more,
                (Some(_), None) => {}
            }
            return;
        }
        touched.bookers.push((to, self.drafts.len()));
        self.drafts.push(Draft {
            to,
            agent: found.agent,
            slots,
            resources,
        });
    }

    /// Claims that were booked on an agent in this round, by their numbers.
    pub(crate) fn bookers(&self, agent: AgentId) -> impl Iterator<Item = usize> {
        let touched = self.touched.get(&agent);
        touched
            .into_iter()
            .flat_map(|touched| touched.bookers.iter().map(|(claim, _)| *claim))
    }

    /// The agent that now comes closest to fitting the shape.
    pub(crate) fn nearest(&self, shape: &ShapeState<'_>) -> Option<AgentId> {
        let trees = self.groups.iter().map(|(_, tree)| tree.as_ref());
        nearest(trees, shape)
    }
}

/// The agent closest to fitting a shape, of trees in the order of groups.
pub(crate) fn nearest<'a>(
    trees: impl Iterator<Item = &'a Tree>,
    shape: &ShapeState<'_>,
) -> Option<AgentId> {
    let wants_devices = !shape.shape.devices.is_empty();
    trees
        .enumerate()
        .filter_map(|(at, tree)| {
            let no_devices = wants_devices && !shape.groups.contains(&at);
            tree.nearest(&shape.entry.need, no_devices)
        })
        // The first of equals, as `max_by` would give the last.
        .reduce(|best, next| if next.0 > best.0 { next } else { best })
        .map(|(_, agent)| agent)
}

/// Says whether a group's classes hold one for every device that the shape wants.
fn has_classes(classes: &[ClassPath], shape: &Shape) -> bool {
    shape
        .devices
        .iter()
        .all(|want| classes.iter().any(|class| class.is_within(&want.class)))
}

fn stop_at(compared: usize, most: usize) -> ControlFlow<()> {
    if compared >= most {
        ControlFlow::Break(())
    } else {
        ControlFlow::Continue(())
    }
}
