//! The round's own copy of what is free: found on, booked on, thrown away.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

use mete_model::device::WHOLE;
use mete_model::quota::Charge;
use mete_model::{AgentId, ClassPath, Resources, Shape, fit};

use crate::view::free::Free;
use crate::view::kinds::Sums;
use crate::view::tree::{Entry, Tree};
use crate::view::{AgentEntry, RefusalView, ShapeEntry, View};

/// Agents that fit and are compared before the best of them is taken. The order of the trees is
/// best fit already; comparing a few more balances CPU against memory.
const COMPARED: usize = 6;
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

    /// Says whether an agent with devices of these classes, one of which is wanted, fits as soon as
    /// its numbers cover the need: there is only one want, of one device or of untouched ones, and
    /// only one class that may serve it.
    fn is_simple(&self, classes: &[ClassPath]) -> bool {
        match self.shape.devices.as_slice() {
            [want] => classes.len() == 1 && (want.milli == WHOLE || want.count == 1),
            _ => false,
        }
    }
}

/// An agent that was booked on.
#[derive(Debug)]
pub(crate) struct Touched {
    group: usize,
    free: Free,
    /// All that is free, by name; `None` where nothing has a name.
    names: Option<Box<Resources>>,
    /// The last draft on it.
    last: Option<usize>,
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
    pub(crate) resources: Option<Box<Resources>>,
    /// The draft before it on the same agent.
    before: Option<usize>,
}

/// An agent, its group, and its numbers now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) entry: Entry,
    pub(crate) group: usize,
}

/// Lower is better: device thousandths left unused, then CPU and memory left over.
type Score = (u64, u64);

/// The copy.
#[derive(Debug)]
pub(crate) struct Scratch<'a> {
    pub(crate) view: &'a View,
    groups: Vec<(&'a [ClassPath], Cow<'a, Tree>)>,
    touched: Vec<Touched>,
    notes: Notes,
    pub(crate) drafts: Vec<Draft>,
    pub(crate) taken: Sums,
    pub(crate) taken_cores: u64,
    pub(crate) examined: usize,
    /// Numbers from here on are plain contenders, not claims.
    pub(crate) plain_from: usize,
    /// 2^52 divided by what an agent has on average.
    scale_cpu: u64,
    scale_memory: u64,
}

impl<'a> Scratch<'a> {
    pub(crate) fn new(view: &'a View) -> Self {
        let groups = view
            .groups
            .iter()
            .map(|(classes, group)| (classes.as_slice(), Cow::Borrowed(&group.free)))
            .collect();
        let agents = u64::try_from(view.agents.len()).unwrap_or(u64::MAX);
        let scale = |kind| {
            let sum = view
                .number(&kind)
                .map_or(0, |number| view.capacity.get(number));
            let usual = sum.checked_div(agents).unwrap_or(0).max(1);
            (1_u64 << 52).checked_div(usual).unwrap_or(0)
        };
        Self {
            view,
            groups,
            touched: Vec::new(),
            notes: Notes::new(view.slots_end()),
            drafts: Vec::new(),
            taken: Sums::default(),
            taken_cores: 0,
            examined: 0,
            plain_from: usize::MAX,
            scale_cpu: scale(mete_model::quota::Kind::Cpu),
            scale_memory: scale(mete_model::quota::Kind::Memory),
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
        let mut picker = Picker::new(shape, hidden);
        for at in &shape.groups {
            let Some((classes, tree)) = self.groups.get(*at) else {
                continue;
            };
            picker.compared = 0;
            let scanned = tree.scan(&shape.entry.need, |entry| {
                picker.show(self, (*at, classes), entry)
            });
            picker.examined = picker.examined.saturating_add(scanned);
            if picker.is_content(classes) {
                break;
            }
        }
        self.examined = self.examined.saturating_add(picker.examined);
        picker.best.map(|(_, found)| found)
    }

    /// The best of a few agents: the one that [`Scratch::search`] would find if nothing else fits.
    pub(crate) fn search_among(
        &mut self,
        agents: &[Found],
        shape: &ShapeState<'_>,
        hidden: Hidden<'_>,
    ) -> Option<Found> {
        let mut fitting: Vec<Found> = agents
            .iter()
            .map(|found| self.now(found))
            .filter(|found| found.entry.free.covers(&shape.entry.need))
            .collect();
        fitting.sort_by_key(|found| (found.group, found.entry.key()));
        let mut picker = Picker::new(shape, hidden);
        for at in &shape.groups {
            let Some((classes, _)) = self.groups.get(*at) else {
                continue;
            };
            picker.compared = 0;
            for found in fitting.iter().filter(|found| found.group == *at) {
                if picker.show(self, (*at, classes), &found.entry).is_break() {
                    break;
                }
            }
            if picker.is_content(classes) {
                break;
            }
        }
        self.examined = self.examined.saturating_add(agents.len());
        picker.best.map(|(_, found)| found)
    }

    /// How well an agent whose numbers cover the need fits; `None` if it does not, or is hidden.
    fn score(
        &self,
        (shape, classes): (&ShapeState<'_>, &[ClassPath]),
        entry: &Entry,
        hidden: Hidden<'_>,
    ) -> Option<Score> {
        let free = &entry.free;
        if let Some(refusal) = hidden.and_then(|hidden| hidden.get(&entry.agent))
            && refusal.hides(Some(shape.shape), self.resources(entry)?.as_ref())
        {
            return None;
        }
        let need = &shape.entry.need;
        // In parts of what an agent usually has, so that CPU and memory can be added.
        let part = |have: u64, want: u64, scale: u64| {
            let left = u128::from(have.saturating_sub(want));
            u64::try_from(left.saturating_mul(u128::from(scale)) >> 40).unwrap_or(u64::MAX)
        };
        let left = part(free.cpu, need.cpu, self.scale_cpu).saturating_add(part(
            free.memory,
            need.memory,
            self.scale_memory,
        ));
        if shape.shape.devices.is_empty() {
            return Some((free.devices, left));
        }
        if need.whole > 0 && shape.is_simple(classes) {
            return Some((free.devices.saturating_sub(need.devices), left));
        }
        let now = self.resources(entry)?;
        if let [want] = shape.shape.devices.as_slice()
            && shape.is_simple(classes)
        {
            // As `fit` picks: the fullest device that still has room.
            let has_room = now.devices.iter().map(|device| device.milli);
            let fullest = has_room.filter(|milli| *milli >= want.milli).min()?;
            return Some((u64::from(fullest.saturating_sub(want.milli)), left));
        }
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

    fn touched(&self, slot: usize) -> Option<&Touched> {
        self.touched.get(self.notes.get(slot)?)
    }

    /// An agent that was found before, with its numbers now.
    pub(crate) fn now(&self, found: &Found) -> Found {
        let mut now = *found;
        if let Some(touched) = self.touched(found.entry.slot) {
            now.entry.free = touched.free;
        }
        now
    }

    /// What is free on an agent now, by name.
    pub(crate) fn resources(&self, entry: &Entry) -> Option<Cow<'_, Resources>> {
        let Some(touched) = self.touched(entry.slot) else {
            let base = &self.view.agents.get(&entry.agent)?.view.free;
            return Some(Cow::Borrowed(base));
        };
        if let Some(names) = touched.names.as_deref() {
            return Some(Cow::Borrowed(names));
        }
        let mut now = Resources::default();
        set_amounts(&mut now, &touched.free);
        Some(Cow::Owned(now))
    }

    /// A schedulable agent with its group and its numbers now.
    pub(crate) fn find(&self, agent: AgentId) -> Option<Found> {
        let AgentEntry { slot, view } = self.view.agents.get(&agent)?;
        let slot = *slot;
        if let Some(touched) = self.touched(slot) {
            let free = touched.free;
            let entry = Entry { agent, slot, free };
            return Some(Found {
                entry,
                group: touched.group,
            });
        }
        if !view.schedulable {
            return None;
        }
        let classes = crate::view::classes_of(&view.total);
        let group = self
            .groups
            .binary_search_by(|(group, _)| (*group).cmp(classes.as_slice()))
            .ok()?;
        let free = Free::of(&view.free);
        let entry = Entry { agent, slot, free };
        Some(Found { entry, group })
    }

    /// Books up to `most` tasks for the claim with number `to`: how many, and what they count where
    /// that is not so many times the shape.
    pub(crate) fn book(
        &mut self,
        found: Found,
        shape: &ShapeState<'_>,
        to: usize,
        most: u32,
    ) -> (u32, Option<Vec<(usize, u64)>>) {
        if !shape.has_names() {
            let mut after = found.entry.free;
            let count = after.how_many(&shape.entry.need, most);
            after.take(&shape.entry.need, count);
            self.settle(found, after, None, (to, count, None));
            self.taken.add_times(&shape.entry.charge, count);
            return (count, None);
        }
        let Some(now) = self.resources(&found.entry) else {
            return (0, None);
        };
        let (sum, count) = fit::carve(shape.shape, &now, most);
        let mut left = now.into_owned();
        if count == 0 || left.subtract(&sum).is_err() {
            return (0, None);
        }
        let charge = self.take_named(found, left, (to, count, sum));
        (count, Some(charge))
    }

    /// Books resources by name, with `left` free after it.
    pub(crate) fn take_named(
        &mut self,
        found: Found,
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
        let sum = Some(Box::new(sum));
        self.settle(found, after, Some(Box::new(left)), (to, count, sum));
        charge
    }

    /// Moves the agent in its tree and notes the draft.
    fn settle(
        &mut self,
        found: Found,
        after: Free,
        names: Option<Box<Resources>>,
        (to, slots, resources): (usize, u32, Option<Box<Resources>>),
    ) {
        let entry = found.entry;
        if let Some((_, tree)) = self.groups.get_mut(found.group) {
            let tree = tree.to_mut();
            tree.remove(entry.agent, &entry.free);
            tree.insert(Entry {
                free: after,
                ..entry
            });
        }
        let next = self.drafts.len();
        let Some(touched) = self.touch(&found) else {
            return;
        };
        touched.free = after;
        if names.is_some() {
            touched.names = names;
        } else if let Some(names) = &mut touched.names {
            set_amounts(names, &after);
        }
        let last = touched.last;
        if let Some(draft) = self.draft_of(last, to) {
            draft.slots = draft.slots.saturating_add(slots);
            match (&mut draft.resources, resources) {
                (Some(sum), Some(more)) => sum.add(&more),
                (sum @ None, more) => *sum = more,
                (Some(_), None) => {}
            }
            return;
        }
        if let Some(touched) = self.touch(&found) {
            touched.last = Some(next);
        }
        self.drafts.push(Draft {
            to,
            agent: entry.agent,
            slots,
            resources,
            before: last,
        });
    }

    /// The round's notes on an agent, new ones if it has none.
    fn touch(&mut self, found: &Found) -> Option<&mut Touched> {
        let slot = found.entry.slot;
        if let Some(place) = self.notes.get(slot) {
            return self.touched.get_mut(place);
        }
        let free = &found.entry.free;
        let group = self.groups.get(found.group);
        let has_devices = group.is_some_and(|(classes, _)| !classes.is_empty());
        let names = if has_devices || free.devices > 0 || free.cores > 0 {
            let agent = self.view.agents.get(&found.entry.agent)?;
            Some(Box::new(agent.view.free.clone()))
        } else {
            None
        };
        self.notes.set(slot, self.touched.len());
        self.touched.push(Touched {
            group: found.group,
            free: found.entry.free,
            names,
            last: None,
        });
        self.touched.last_mut()
    }

    /// The draft for a claim on the agent whose last draft is `last`.
    fn draft_of(&mut self, mut last: Option<usize>, to: usize) -> Option<&mut Draft> {
        while let Some(at) = last {
            let draft = self.drafts.get(at)?;
            if draft.to == to {
                return self.drafts.get_mut(at);
            }
            last = draft.before;
        }
        None
    }

    /// Claims that were booked on an agent in this round, by their numbers, last first.
    pub(crate) fn bookers(&self, slot: usize) -> impl Iterator<Item = usize> {
        let last = self.touched(slot).and_then(|touched| touched.last);
        let draft = |at: usize| self.drafts.get(at);
        std::iter::successors(last.and_then(draft), move |last| {
            last.before.and_then(draft)
        })
        .map(|draft| draft.to)
        .filter(|to| *to < self.plain_from)
    }

    /// The agent that now comes closest to fitting the shape.
    pub(crate) fn nearest(&self, shape: &ShapeState<'_>) -> Option<Entry> {
        let trees = self.groups.iter().map(|(_, tree)| tree.as_ref());
        nearest(trees, shape)
    }
}

/// Takes over what is free by amount.
fn set_amounts(names: &mut Resources, free: &Free) {
    names.cpu.0 = free.cpu;
    names.memory.0 = free.memory;
    names.disk.0 = free.disk;
}

/// Notes of one page.
const PAGE: usize = 256;

/// By the agent's number in the view: its place in `touched`. In pages, so that a round which
/// books on a few agents does not prepare notes on all of them.
#[derive(Debug)]
struct Notes(Vec<Option<Box<[u32; PAGE]>>>);

impl Notes {
    /// For numbers below `end`.
    fn new(end: usize) -> Self {
        let mut pages = Vec::new();
        pages.resize_with(end.div_ceil(PAGE), || None);
        Self(pages)
    }

    fn get(&self, slot: usize) -> Option<usize> {
        let page = self.0.get(slot / PAGE)?.as_ref()?;
        let note = *page.get(slot % PAGE)?;
        // 0 says that there is no note.
        usize::try_from(note.checked_sub(1)?).ok()
    }

    fn set(&mut self, slot: usize, place: usize) {
        if let Some(page) = self.0.get_mut(slot / PAGE) {
            let page = page.get_or_insert_with(|| Box::new([0; PAGE]));
            if let Some(note) = page.get_mut(slot % PAGE) {
                *note = u32::try_from(place.saturating_add(1)).unwrap_or(u32::MAX);
            }
        }
    }
}

/// The agent closest to fitting a shape, of trees in the order of groups.
pub(crate) fn nearest<'a>(
    trees: impl Iterator<Item = &'a Tree>,
    shape: &ShapeState<'_>,
) -> Option<Entry> {
    let wants_devices = !shape.shape.devices.is_empty();
    trees
        .enumerate()
        .filter_map(|(at, tree)| {
            let no_devices = wants_devices && !shape.groups.contains(&at);
            tree.nearest(&shape.entry.need, no_devices)
        })
        // The first of equals, as `max_by` would give the last.
        .reduce(|best, next| if next.0 > best.0 { next } else { best })
        .map(|(_, entry)| entry)
}

/// Says whether a group's classes hold one for every device that the shape wants.
fn has_classes(classes: &[ClassPath], shape: &Shape) -> bool {
    shape
        .devices
        .iter()
        .all(|want| classes.iter().any(|class| class.is_within(&want.class)))
}

/// Compares the first few agents of each group that are shown to it.
struct Picker<'a> {
    shape: &'a ShapeState<'a>,
    hidden: Hidden<'a>,
    without_devices: bool,
    compared: usize,
    examined: usize,
    last: Option<Free>,
    best: Option<(Score, Found)>,
}

impl<'a> Picker<'a> {
    fn new(shape: &'a ShapeState<'a>, hidden: Hidden<'a>) -> Self {
        Self {
            shape,
            hidden,
            without_devices: shape.shape.devices.is_empty(),
            compared: 0,
            examined: 0,
            last: None,
            best: None,
        }
    }

    /// Looks at an agent whose numbers cover the need; stops when enough were compared.
    fn show(
        &mut self,
        scratch: &Scratch<'_>,
        (group, classes): (usize, &[ClassPath]),
        entry: &Entry,
    ) -> ControlFlow<()> {
        let most = if self.without_devices {
            COMPARED
        } else {
            COMPARED_DEVICES
        };
        // The same numbers as the one before: no better.
        let same = self.without_devices && self.hidden.is_none() && self.last == Some(entry.free);
        if same {
            self.compared = self.compared.saturating_add(1);
        } else if let Some(score) = scratch.score((self.shape, classes), entry, self.hidden) {
            self.compared = self.compared.saturating_add(1);
            if self.best.is_none_or(|(before, _)| score < before) {
                let entry = *entry;
                self.best = Some((score, Found { entry, group }));
            }
        }
        self.last = Some(entry.free);
        if self.compared >= most {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    /// Agents without devices are the first group: work without devices goes to the others only
    /// when nothing fits there.
    fn is_content(&self, classes: &[ClassPath]) -> bool {
        self.without_devices && classes.is_empty() && self.best.is_some()
    }
}
