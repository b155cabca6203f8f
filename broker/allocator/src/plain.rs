//! Plain offers: what the claims left free goes, agent by agent, to frameworks that opted in.

use std::collections::{BTreeMap, BTreeSet};

use mete_model::quota::{Charge, Kind};
use mete_model::{AgentId, Bytes, FrameworkId, MilliCpu, Resources, RolePath};

use crate::contend::add_times;
use crate::fill::{Fill, out_of};
use crate::order::Scale;
use crate::round::Dirty;
use crate::share::{Share, Weight};
use crate::view::View;
use crate::view::kinds::{Amounts, add, amount};

/// Less than this is nothing that a framework could start a task on.
const LEAST_CPU: MilliCpu = MilliCpu(100);
/// The same for memory.
const LEAST_MEMORY: Bytes = Bytes(32 << 20);

/// A framework that takes plain offers in one role.
pub(crate) struct Taker<'a> {
    pub(crate) framework: FrameworkId,
    pub(crate) role: &'a RolePath,
    role_number: usize,
    held: Amounts,
    /// The place of what is out to it.
    out: usize,
    /// Every agent, not only the dirty ones.
    everywhere: bool,
}

/// All of them, and what their roles hold.
#[derive(Default)]
pub(crate) struct Takers<'a> {
    pub(crate) list: Vec<Taker<'a>>,
    roles: Vec<TakerRole<'a>>,
    /// Roles with takers by weight zero, share, path.
    order: BTreeSet<(bool, Share, usize)>,
}

struct TakerRole<'a> {
    path: &'a RolePath,
    held: Amounts,
    weight: Weight,
    /// Its takers by share.
    queue: BTreeSet<(Share, usize)>,
}

impl<'a> Takers<'a> {
    /// Who takes plain offers in this round.
    pub(crate) fn of(view: &'a View, dirty: &Dirty) -> Self {
        let mut takers = Self::default();
        for (role, framework) in &view.takers {
            takers.add(view, role, *framework, dirty);
        }
        takers
    }

    fn add(&mut self, view: &'a View, role: &'a RolePath, framework: FrameworkId, dirty: &Dirty) {
        if self.roles.last().is_none_or(|last| last.path != role) {
            let held = view.role_entries.get(role);
            self.roles.push(TakerRole {
                path: role,
                held: held.map(|entry| entry.held.clone()).unwrap_or_default(),
                weight: Weight::new(view.weight_milli(role)),
                queue: BTreeSet::new(),
            });
        }
        let mut held = Amounts::new();
        let entry = view.frameworks.get(&framework);
        for (kind, more) in entry
            .and_then(|entry| entry.held.get(role))
            .into_iter()
            .flatten()
        {
            add(&mut held, *kind, *more);
        }
        self.list.push(Taker {
            framework,
            role,
            role_number: self.roles.len().saturating_sub(1),
            held,
            out: 0,
            everywhere: dirty.all || dirty.frameworks.contains(&framework),
        });
    }

    /// Puts a taker, and its role anew, into the order.
    fn enter(&mut self, scale: &Scale, number: usize) {
        let Some(taker) = self.list.get(number) else {
            return;
        };
        let at = taker.role_number;
        let Some(role) = self.roles.get_mut(at) else {
            return;
        };
        role.queue
            .insert((scale.share(&taker.held, &[], Weight::ONE), number));
        let share = scale.share(&role.held, &[], role.weight);
        self.order.insert((role.weight.milli == 0, share, at));
    }

    /// Takes a taker, and its role with the share that it has now, out of the order.
    fn leave(&mut self, scale: &Scale, number: usize) {
        let Some(taker) = self.list.get(number) else {
            return;
        };
        let at = taker.role_number;
        let Some(role) = self.roles.get_mut(at) else {
            return;
        };
        role.queue
            .remove(&(scale.share(&taker.held, &[], Weight::ONE), number));
        let share = scale.share(&role.held, &[], role.weight);
        self.order.remove(&(role.weight.milli == 0, share, at));
        if !role.queue.is_empty() {
            self.order.insert((role.weight.milli == 0, share, at));
        }
    }

    /// Takers in the fair order.
    fn in_order(&self) -> impl Iterator<Item = usize> {
        self.order
            .iter()
            .filter_map(|(_, _, role)| self.roles.get(*role))
            .flat_map(|role| role.queue.iter().map(|(_, number)| *number))
    }

    /// Says whether somebody takes agents that did not change.
    pub(crate) fn anywhere(&self) -> bool {
        self.list.iter().any(|taker| taker.everywhere)
    }
}

impl<'a> Fill<'a> {
    /// Gives away what is left. Placements carry `base` + the taker's number.
    pub(crate) fn give_plain(&mut self, takers: &mut Takers<'a>, dirty: &Dirty, base: usize) {
        if takers.list.is_empty() {
            return;
        }
        self.scratch.plain_from = base;
        let changed: BTreeSet<AgentId> = dirty.agents.iter().copied().collect();
        let agents: Vec<AgentId> = if takers.anywhere() {
            self.view.agents.keys().copied().collect()
        } else {
            changed.iter().copied().collect()
        };
        let known = self.out.iter().enumerate();
        let mut known: BTreeMap<FrameworkId, usize> =
            known.map(|(at, out)| (out.framework, at)).collect();
        for number in 0..takers.list.len() {
            if let Some(taker) = takers.list.get_mut(number) {
                let framework = taker.framework;
                taker.out = *known.entry(framework).or_insert(self.out.len());
                if taker.out == self.out.len() {
                    self.out.extend(out_of(self.view, framework));
                }
            }
            takers.enter(&self.scale, number);
        }
        for agent in agents {
            if self.is_over() {
                self.unfinished = true;
                return;
            }
            if takers.order.is_empty() {
                return;
            }
            self.scratch.examined = self.scratch.examined.saturating_add(1);
            self.give_agent(takers, agent, (&changed, base));
        }
    }

    fn give_agent(
        &mut self,
        takers: &mut Takers<'a>,
        agent: AgentId,
        (changed, base): (&BTreeSet<AgentId>, usize),
    ) {
        let Some(found) = self.scratch.find(agent) else {
            return;
        };
        let Some(now) = self.scratch.resources(&found.entry) else {
            return;
        };
        if now.cpu < LEAST_CPU || now.memory < LEAST_MEMORY {
            return;
        }
        // Those whose cap is reached leave the order: what is out only grows within a round.
        let mut full = Vec::new();
        let chosen = takers.in_order().find_map(|number| {
            let taker = takers.list.get(number)?;
            let may = taker.everywhere || changed.contains(&agent);
            if !may
                || self
                    .view
                    .is_refused((taker.framework, taker.role), agent, None, &now)
            {
                return None;
            }
            let part = self.cut(taker, &now);
            if part.is_none() {
                full.push(number);
            }
            part.map(|part| (number, part))
        });
        for number in full {
            takers.leave(&self.scale, number);
        }
        let Some((number, part)) = chosen else {
            return;
        };
        let mut left = now.into_owned();
        if left.subtract(&part).is_err() {
            return;
        }
        takers.leave(&self.scale, number);
        let to = base.saturating_add(number);
        let charge = self.scratch.take_named(found, left, (to, 0, part));
        self.charge_taker(takers, number, &charge);
        takers.enter(&self.scale, number);
    }

    fn charge_taker(&mut self, takers: &mut Takers<'a>, number: usize, charge: &[(usize, u64)]) {
        let Some(taker) = takers.list.get_mut(number) else {
            return;
        };
        let at = taker.role_number;
        let Some(role) = takers.roles.get_mut(at) else {
            return;
        };
        let place = |role: &TakerRole<'_>, scale: &Scale| {
            let share = scale.share(&role.held, &[], role.weight);
            (role.weight.milli == 0, share, at)
        };
        takers.order.remove(&place(role, &self.scale));
        for sums in [&mut taker.held, &mut role.held] {
            for (kind, more) in charge {
                add(sums, *kind, *more);
            }
        }
        if let Some(out) = self.out.get_mut(taker.out) {
            add_times(&mut out.amounts, charge, 1);
        }
        if !role.queue.is_empty() {
            takers.order.insert(place(role, &self.scale));
        }
    }

    /// As much of an agent as the framework's cap leaves room for; `None` if that is too little.
    fn cut(&self, taker: &Taker<'_>, now: &Resources) -> Option<Resources> {
        let out = self.out.get(taker.out)?;
        let room = |kind: &Kind| {
            let number = self.view.number(kind)?;
            let cap = self.scale.cap(number, out.halvings);
            Some(cap.saturating_sub(amount(&out.amounts, number)))
        };
        let cpu = now.cpu.min(MilliCpu(room(&Kind::Cpu)?));
        let memory = now.memory.min(Bytes(room(&Kind::Memory)?));
        if cpu < LEAST_CPU || memory < LEAST_MEMORY {
            return None;
        }
        let disk = now.disk.min(Bytes(room(&Kind::Disk).unwrap_or(0)));
        // Names lie within the cpu amount.
        let names = u32::try_from(cpu.0.checked_div(1000).unwrap_or(0)).unwrap_or(u32::MAX);
        let cores = now.cores.lowest(names.min(now.cores.len()));
        let mut part = Resources {
            cpu,
            memory,
            disk,
            cores: cores.unwrap_or_default(),
            devices: Vec::new(),
        };
        for device in &now.devices {
            part.devices.push(device.clone());
            let charge = Charge::of(&part);
            let over = charge
                .iter()
                .any(|(kind, sum)| room(kind).is_none_or(|room| sum > room));
            if over {
                part.devices.pop();
            }
        }
        Some(part)
    }
}
