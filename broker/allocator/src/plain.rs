//! Plain offers: what the claims left free goes, agent by agent, to frameworks that opted in.

use std::collections::BTreeSet;

use mete_model::quota::{Charge, Kind};
use mete_model::{AgentId, Bytes, FrameworkId, MilliCpu, Resources, RolePath};

use crate::fill::Fill;
use crate::order::Scale;
use crate::round::Dirty;
use crate::share::Share;
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
    weight_milli: u32,
    /// Its takers by share.
    queue: BTreeSet<(Share, usize)>,
}

impl<'a> Takers<'a> {
    /// Who takes plain offers in this round.
    pub(crate) fn of(view: &'a View, dirty: &Dirty) -> Self {
        let mut pairs: Vec<(&'a RolePath, FrameworkId)> = Vec::new();
        for (id, entry) in &view.frameworks {
            if entry.view.connected && entry.view.plain_offers {
                let open = entry
                    .view
                    .roles
                    .iter()
                    .filter(|(_, suppressed)| !**suppressed);
                pairs.extend(open.map(|(role, _)| (role, *id)));
            }
        }
        pairs.sort_unstable();
        let mut takers = Self::default();
        for (role, framework) in pairs {
            takers.add(view, role, framework, dirty);
        }
        takers
    }

    fn add(&mut self, view: &'a View, role: &'a RolePath, framework: FrameworkId, dirty: &Dirty) {
        if self.roles.last().is_none_or(|last| last.path != role) {
            let held = view.role_held.get(role);
            let held = held.map(crate::view::kinds::Sums::amounts);
            self.roles.push(TakerRole {
                path: role,
                held: held.unwrap_or_default(),
                weight_milli: view.weight_milli(role),
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
            .insert((scale.share(&taker.held, &[], 1000), number));
        let share = scale.share(&role.held, &[], role.weight_milli);
        self.order.insert((role.weight_milli == 0, share, at));
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
            .remove(&(scale.share(&taker.held, &[], 1000), number));
        let share = scale.share(&role.held, &[], role.weight_milli);
        self.order.remove(&(role.weight_milli == 0, share, at));
        if !role.queue.is_empty() {
            self.order.insert((role.weight_milli == 0, share, at));
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
        for number in 0..takers.list.len() {
            if let Some(taker) = takers.list.get(number)
                && let Some(entry) = self.view.frameworks.get(&taker.framework)
            {
                self.offered
                    .entry(taker.framework)
                    .or_insert_with(|| entry.offered.clone());
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
            let part = self.cut(taker.framework, &now);
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
            let share = scale.share(&role.held, &[], role.weight_milli);
            (role.weight_milli == 0, share, at)
        };
        takers.order.remove(&place(role, &self.scale));
        let out = self.offered.entry(taker.framework).or_default();
        for sums in [&mut taker.held, out, &mut role.held] {
            for (kind, more) in charge {
                add(sums, *kind, *more);
            }
        }
        if !role.queue.is_empty() {
            takers.order.insert(place(role, &self.scale));
        }
    }

    /// As much of an agent as the framework's cap leaves room for; `None` if that is too little.
    fn cut(&self, framework: FrameworkId, now: &Resources) -> Option<Resources> {
        let halvings = self.view.framework(framework)?.cap_halvings;
        let out = self.offered.get(&framework)?;
        let room = |kind: &Kind| {
            let number = self.view.number(kind)?;
            let cap = self.scale.cap(number, halvings);
            Some(cap.saturating_sub(amount(out, number)))
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
