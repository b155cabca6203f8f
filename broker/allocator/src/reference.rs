//! The allocator written the plain way, a made-up cluster, and the booking of a round: what tests
//! and `mete bench allocator` compare with and work on. The broker itself uses none of it.
//!
//! [`naive`] decides task by task and looks at every claim and every agent for each: the same fair
//! order, no index, no chunk. It does only claims, no plain offers and no reasons.

use std::collections::BTreeMap;

use mete_model::quota::Charge;
use mete_model::{
    AgentId, Bytes, ClaimId, ClassPath, DeviceId, DeviceShare, DeviceWant, FrameworkId, MilliCpu,
    Resources, RolePath, Shape, fit,
};

use crate::round::{Dirty, Limits, Placement, Round};
use crate::share::Share;
use crate::view::{AgentView, Change, ClaimView, FrameworkView, RoleView, View};

/// A round by brute force over everything, one placement for each task; `limits.placements` is
/// obeyed, the number of agents is not.
#[must_use]
pub fn naive(view: &View, limits: Limits) -> Round {
    let capacity = view.capacity();
    let mut free: BTreeMap<AgentId, Resources> = view
        .agents()
        .filter(|(_, agent)| agent.schedulable)
        .map(|(id, agent)| (id, agent.free.clone()))
        .collect();
    let mut claims: Vec<Open<'_>> = view
        .claims()
        .filter(|(framework, _, claim)| {
            claim.remaining > 0 && view.is_served(*framework, &claim.role)
        })
        // What fits nowhere from the start has no place in the order.
        .filter(|(_, _, claim)| free.values().any(|free| fit(&claim.shape, free).is_ok()))
        .map(|(framework, id, claim)| Open::new(framework, id, claim))
        .collect();
    let mut roles: BTreeMap<RolePath, Charge> = BTreeMap::new();
    let mut held: BTreeMap<(RolePath, FrameworkId), Charge> = BTreeMap::new();
    let mut offered: BTreeMap<FrameworkId, Charge> = BTreeMap::new();
    for claim in &claims {
        let role = &claim.claim.role;
        roles.insert(role.clone(), view.held(role));
        if let Some(framework) = view.framework(claim.framework) {
            let own = framework.held.get(role).cloned().unwrap_or_default();
            held.insert((role.clone(), claim.framework), own);
            offered.insert(claim.framework, framework.offered.clone());
        }
    }
    let mut round = Round::default();
    while round.placements.len() < limits.placements {
        let Some(at) = first(view, &claims, (&roles, &held, &capacity)) else {
            return round;
        };
        let Some(open) = claims.get_mut(at) else {
            return round;
        };
        let key = (open.claim.role.clone(), open.framework);
        let out = offered.entry(open.framework).or_default();
        let chosen = best(view, &free, open).filter(|_| has_room(view, &capacity, out, open));
        round.agents_examined = round.agents_examined.saturating_add(free.len());
        let Some((agent, task)) = chosen else {
            open.remaining = 0;
            continue;
        };
        if let Some(free) = free.get_mut(&agent) {
            free.saturating_subtract(&task);
        }
        let charge = Charge::of(&task);
        out.add(&charge);
        held.entry(key.clone()).or_default().add(&charge);
        roles.entry(key.0.clone()).or_default().add(&charge);
        open.remaining = open.remaining.saturating_sub(1);
        round.placements.push(Placement {
            framework: open.framework,
            role: key.0,
            claim: Some(open.id.clone()),
            agent,
            resources: task,
            slots: 1,
        });
    }
    round.unfinished = true;
    round
}

struct Open<'a> {
    framework: FrameworkId,
    id: &'a ClaimId,
    claim: &'a ClaimView,
    charge: Charge,
    remaining: u32,
}

impl<'a> Open<'a> {
    fn new(framework: FrameworkId, id: &'a ClaimId, claim: &'a ClaimView) -> Self {
        Self {
            framework,
            id,
            claim,
            charge: Charge::of_shape(&claim.shape),
            remaining: claim.remaining,
        }
    }
}

type Held<'a> = (
    &'a BTreeMap<RolePath, Charge>,
    &'a BTreeMap<(RolePath, FrameworkId), Charge>,
    &'a Charge,
);

/// The claim that goes first: its framework's first claim, the framework its role's first, the
/// role the first of all.
fn first(view: &View, claims: &[Open<'_>], (roles, held, capacity): Held<'_>) -> Option<usize> {
    let with = |held: Option<&Charge>, claim: &Open<'_>, weight: u32| {
        let mut sum = held.cloned().unwrap_or_default();
        sum.add(&claim.charge);
        weighted(&sum, capacity, weight)
    };
    let mut heads: BTreeMap<(&RolePath, FrameworkId), usize> = BTreeMap::new();
    for (at, claim) in claims
        .iter()
        .enumerate()
        .filter(|(_, claim)| claim.remaining > 0)
    {
        let head = heads
            .entry((&claim.claim.role, claim.framework))
            .or_insert(at);
        let place = |claim: &Open<'_>| {
            let priority = std::cmp::Reverse(claim.claim.priority);
            (priority, claim.claim.submitted, claim.id.clone())
        };
        if claims
            .get(*head)
            .is_some_and(|best| place(claim) < place(best))
        {
            *head = at;
        }
    }
    let mut of_roles: BTreeMap<&RolePath, (Share, usize)> = BTreeMap::new();
    for ((role, framework), at) in heads {
        let Some(claim) = claims.get(at) else {
            continue;
        };
        let share = with(held.get(&(role.clone(), framework)), claim, 1000);
        let best = of_roles.entry(role).or_insert((share, at));
        if share < best.0 {
            *best = (share, at);
        }
    }
    of_roles
        .into_iter()
        .filter_map(|(role, (_, at))| {
            let weight = view.weight_milli(role);
            let share = with(roles.get(role), claims.get(at)?, weight);
            Some(((weight == 0, share, role), at))
        })
        .min_by(|(left, _), (right, _)| left.cmp(right))
        .map(|(_, at)| at)
}

fn weighted(charge: &Charge, capacity: &Charge, weight_milli: u32) -> Share {
    charge
        .iter()
        .map(|(kind, amount)| Share::new(amount, capacity.get(kind), weight_milli))
        .max()
        .unwrap_or(Share::ZERO)
}

fn best(
    view: &View,
    free: &BTreeMap<AgentId, Resources>,
    open: &Open<'_>,
) -> Option<(AgentId, Resources)> {
    let role = &open.claim.role;
    free.iter()
        .filter_map(|(agent, free)| Some((*agent, free, fit(&open.claim.shape, free).ok()?)))
        .filter(|(agent, free, _)| {
            let shape = Some(&open.claim.shape);
            !view.is_refused((open.framework, role), *agent, shape, free)
        })
        .min_by_key(|(_, free, _)| {
            let devices = free.devices.iter().map(|device| u64::from(device.milli));
            (devices.sum::<u64>(), free.cpu, free.memory)
        })
        .map(|(agent, _, task)| (agent, task))
}

fn has_room(view: &View, capacity: &Charge, out: &Charge, open: &Open<'_>) -> bool {
    let halvings = view
        .framework(open.framework)
        .map_or(0, |framework| framework.cap_halvings);
    open.charge.iter().all(|(kind, want)| {
        let quarter = (capacity.get(kind) >> 2).checked_shr(halvings).unwrap_or(0);
        out.get(kind).saturating_add(want) <= quarter.max(want)
    })
}

/// Patches the view with what a round placed, as offers that are out.
pub fn book(view: &mut View, round: &Round) {
    for placement in &round.placements {
        if let Some(mut agent) = view.agent(placement.agent).cloned() {
            agent.free.saturating_subtract(&placement.resources);
            view.patch(Change::Agent(placement.agent, Some(agent)));
        }
        if let Some(mut framework) = view.framework(placement.framework).cloned() {
            let charge = Charge::of(&placement.resources);
            framework.offered.add(&charge);
            framework
                .held
                .entry(placement.role.clone())
                .or_default()
                .add(&charge);
            view.patch(Change::Framework(placement.framework, Some(framework)));
        }
        let Some(id) = &placement.claim else {
            continue;
        };
        if let Some(mut claim) = view.claim(placement.framework, id).cloned() {
            claim.remaining = claim.remaining.saturating_sub(placement.slots);
            view.patch(Change::Claim(placement.framework, id.clone(), Some(claim)));
        }
    }
}

/// Patches the view as if everything that is out had been accepted: held, and no longer offered.
pub fn accept_all(view: &mut View) {
    let frameworks: Vec<(FrameworkId, FrameworkView)> = view
        .frameworks()
        .map(|(id, framework)| (id, framework.clone()))
        .collect();
    for (id, mut framework) in frameworks {
        framework.offered = Charge::default();
        view.patch(Change::Framework(id, Some(framework)));
    }
}

/// A small generator of numbers (xorshift): the same seed, the same cluster, everywhere.
#[derive(Clone, Copy, Debug)]
struct Numbers(u64);

impl Numbers {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11).checked_rem(limit).unwrap_or(0)
    }
}

const GIB: u64 = 1 << 30;

/// The id of the scenario's agent with this number.
#[must_use]
pub fn agent_id(number: u32) -> AgentId {
    let text = format!("00000000-0000-4000-a000-{number:012x}");
    text.parse().expect("the text has the form of a uuid")
}

/// The id of the scenario's framework with this number.
#[must_use]
pub fn framework_id(number: u32) -> FrameworkId {
    let text = format!("00000000-0000-4000-f000-{number:012x}");
    text.parse().expect("the text has the form of a uuid")
}

/// A made-up cluster in use, of the given sizes: machines of four kinds (one in sixteen with eight
/// devices), partly taken; roles with weights of 1 to 4; frameworks, dealt to the roles, that all
/// want more than is free, in a dozen shapes. At least one role is made.
#[must_use]
pub fn scenario(agents: u32, roles: u32, frameworks: u32, seed: u64) -> View {
    let mut numbers = Numbers::new(seed);
    let mut view = View::new();
    for number in 0..agents {
        let agent = machine(&mut numbers);
        view.patch(Change::Agent(agent_id(number), Some(agent)));
    }
    let role = |number: u32| {
        let number = number.checked_rem(roles.max(1)).unwrap_or(0);
        RolePath::new(&format!("role-{number}")).expect("a word is a role path")
    };
    for number in 0..roles.max(1) {
        let weight_milli = u32::try_from(numbers.below(4)).unwrap_or(0);
        let weight_milli = weight_milli.saturating_add(1).saturating_mul(1000);
        let weight = RoleView { weight_milli };
        view.patch(Change::Role(role(number), Some(weight)));
    }
    let tasks = u64::from(agents).saturating_mul(4);
    let each = tasks.checked_div(u64::from(frameworks.max(1))).unwrap_or(0);
    let each = u32::try_from(each).unwrap_or(u32::MAX).max(2);
    for number in 0..frameworks {
        let id = framework_id(number);
        let role = role(number);
        let framework = FrameworkView {
            connected: true,
            plain_offers: false,
            roles: BTreeMap::from([(role.clone(), false)]),
            held: BTreeMap::new(),
            offered: Charge::default(),
            cap_halvings: 0,
        };
        view.patch(Change::Framework(id, Some(framework)));
        for (name, part) in [("main", 2), ("side", 1)] {
            let claim = ClaimView {
                role: role.clone(),
                shape: a_shape(&mut numbers),
                remaining: each.saturating_mul(part),
                priority: i32::try_from(numbers.below(3)).unwrap_or(0),
                submitted: numbers.below(1_000_000),
            };
            let name = ClaimId::new(name).expect("a word is a claim id");
            view.patch(Change::Claim(id, name, Some(claim)));
        }
    }
    view
}

fn machine(numbers: &mut Numbers) -> AgentView {
    let sizes: [(u64, u64); 4] = [(16, 64), (32, 128), (64, 256), (96, 384)];
    let pick = usize::try_from(numbers.below(4)).unwrap_or(0);
    let (cores, memory) = sizes.get(pick).copied().unwrap_or((16, 64));
    let devices = if numbers.below(16) == 0 { 8 } else { 0 };
    let total = Resources {
        cpu: MilliCpu(cores.saturating_mul(1000)),
        memory: Bytes(memory.saturating_mul(GIB)),
        disk: Bytes(GIB.saturating_mul(500)),
        devices: (0..devices).map(device).collect(),
        ..Resources::default()
    };
    let mut free = total.clone();
    let part = numbers.below(8);
    let share = |amount: u64| amount.saturating_mul(part) >> 3;
    free.cpu.0 = share(total.cpu.0).saturating_add(numbers.below(8).saturating_mul(125));
    free.memory.0 = share(total.memory.0).saturating_add(numbers.below(64) << 24);
    AgentView {
        total,
        free,
        schedulable: true,
    }
}

fn device(number: u32) -> DeviceShare {
    DeviceShare {
        id: DeviceId::new(&format!("GPU-{number}")).expect("a word is a device id"),
        class: ClassPath::new("gpu/a100").expect("a class"),
        milli: 1000,
    }
}

fn a_shape(numbers: &mut Numbers) -> Shape {
    let cpu = [500, 1000, 2000, 4000, 8000];
    let pick = usize::try_from(numbers.below(5)).unwrap_or(0);
    let cpu = cpu.get(pick).copied().unwrap_or(500);
    let memory = if numbers.below(2) == 0 { 2 } else { 4 };
    let mut shape = Shape {
        cpu: MilliCpu(cpu),
        memory: Bytes(GIB.saturating_mul(memory).saturating_mul(cpu) >> 10),
        ..Shape::default()
    };
    if numbers.below(16) == 0 {
        let milli = if numbers.below(2) == 0 { 1000 } else { 250 };
        shape.devices.push(DeviceWant {
            class: ClassPath::new("gpu").expect("a class"),
            count: 1,
            milli,
        });
    }
    shape
}

/// One change of a scenario: a task of half a machine ends on some agent. Patched, and said.
pub fn one_change(view: &mut View, seed: u64) -> Dirty {
    let agents = u64::try_from(view.agents.len()).unwrap_or(0);
    let number = u32::try_from(Numbers::new(seed).below(agents)).unwrap_or(0);
    let id = agent_id(number);
    let Some(mut agent) = view.agent(id).cloned() else {
        return Dirty::default();
    };
    let half = |amount: u64| amount >> 1;
    agent.free.cpu.0 = agent.free.cpu.0.max(half(agent.total.cpu.0));
    agent.free.memory.0 = agent.free.memory.0.max(half(agent.total.memory.0));
    view.patch(Change::Agent(id, Some(agent)));
    Dirty {
        agents: vec![id],
        ..Dirty::default()
    }
}
