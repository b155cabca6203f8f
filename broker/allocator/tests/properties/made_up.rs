//! Clusters made up from bytes: whatever may happen to a view, and the same kept the plain way.

use std::collections::BTreeMap;

use mete_allocator::reference::{agent_id, framework_id};
use mete_allocator::{
    AgentView, Change, ClaimView, Dirty, FrameworkView, Limits, RefusalView, RoleView, Round, View,
    allocate,
};
use mete_model::quota::Charge;
use mete_model::{
    AgentId, Bytes, ClaimId, ClassPath, CpuSet, DeviceId, DeviceShare, DeviceWant, FrameworkId,
    MilliCpu, Resources, RolePath, Shape,
};
use proptest::prelude::*;

pub(crate) const GIB: u64 = 1 << 30;

pub(crate) fn everything() -> Dirty {
    Dirty {
        all: true,
        ..Dirty::default()
    }
}

pub(crate) fn whole_round(view: &View) -> Round {
    allocate(view, &everything(), Limits::NONE)
}

pub(crate) fn role(byte: u8) -> RolePath {
    RolePath::new(["a", "b", "b/c"][usize::from(byte % 3)]).unwrap()
}

pub(crate) fn claim_id(byte: u8) -> ClaimId {
    ClaimId::new(&format!("c{}", byte % 4)).unwrap()
}

pub(crate) fn resources(bytes: [u8; 4]) -> Resources {
    let class = if bytes[3] & 4 == 0 { "gpu/a" } else { "gpu/b" };
    let mut cores = CpuSet::new();
    for core in 0..u32::from(bytes[0] % 9) {
        if bytes[2] & 1 == 0 {
            cores.insert(core);
        }
    }
    let device = |at: u8| DeviceShare {
        id: DeviceId::new(&format!("d{at}")).unwrap(),
        class: ClassPath::new(if at == 2 { "gpu/b" } else { class }).unwrap(),
        milli: 1000,
    };
    Resources {
        cpu: MilliCpu(u64::from(bytes[0] % 9) * 1000),
        memory: Bytes(u64::from(bytes[1] % 9) * GIB),
        disk: Bytes(u64::from(bytes[2] % 3)),
        cores,
        devices: (0..bytes[3] % 4).map(device).collect(),
    }
}

pub(crate) fn agent(bytes: &[u8; 8]) -> AgentView {
    let total = resources([bytes[2], bytes[3], bytes[4], bytes[5]]);
    let mut free = total.clone();
    free.saturating_subtract(&Resources {
        cpu: MilliCpu(u64::from(bytes[6] % 4) * 1000),
        memory: Bytes(u64::from(bytes[6] / 4 % 4) * GIB),
        devices: total
            .devices
            .first()
            .map(|device| DeviceShare {
                milli: u32::from(bytes[6] / 16 % 3) * 500,
                ..device.clone()
            })
            .into_iter()
            .collect(),
        ..Resources::default()
    });
    AgentView {
        total,
        free,
        schedulable: !bytes[7].is_multiple_of(8),
    }
}

pub(crate) fn shape(bytes: &[u8; 8]) -> Shape {
    let mut shape = Shape {
        memory: Bytes(u64::from(bytes[4] % 4) * GIB),
        disk: Bytes(u64::from(bytes[4] / 4 % 16 / 15)),
        ..Shape::default()
    };
    if bytes[5].is_multiple_of(5) {
        shape.cores = u32::from(bytes[3] % 3) + 1;
    } else {
        shape.cpu = MilliCpu(u64::from(bytes[3] % 6) * 500 + 500);
    }
    if bytes[5].is_multiple_of(3) {
        let class = ["gpu", "gpu/a", "gpu/b", "gpu/none"][usize::from(bytes[5] / 4 % 4)];
        let milli = if bytes[6] & 1 == 0 { 1000 } else { 400 };
        shape.devices.push(DeviceWant {
            class: ClassPath::new(class).unwrap(),
            count: if milli == 1000 {
                u32::from(bytes[6] / 2 % 2) + 1
            } else {
                1
            },
            milli,
        });
    }
    shape
}

pub(crate) fn framework(bytes: &[u8; 8]) -> FrameworkView {
    let charge = |cpu: u8| {
        Charge::of(&Resources {
            cpu: MilliCpu(u64::from(cpu % 8) * 500),
            ..Resources::default()
        })
    };
    let roles = (0..3).map(|at| (role(at), bytes[2] >> at & 1 == 1 && bytes[3] & 1 == 1));
    FrameworkView {
        connected: bytes[3] % 8 != 7,
        plain_offers: bytes[4].is_multiple_of(4),
        roles: roles.collect(),
        held: BTreeMap::from([(role(bytes[5]), charge(bytes[6]))]),
        offered: charge(bytes[6] / 2 % 4),
        cap_halvings: u32::from(bytes[7] % 3),
    }
}

/// Anything that may happen to a view, from eight bytes.
pub(crate) fn change(bytes: &[u8; 8]) -> Change {
    let (agent_id, framework_id) = (
        agent_id(u32::from(bytes[1] % 6)),
        framework_id(u32::from(bytes[1] / 6 % 4)),
    );
    let removes = bytes[7] % 6 == 5;
    match bytes[0] % 12 {
        0..=3 => Change::Agent(agent_id, (!removes).then(|| agent(bytes))),
        4..=5 => Change::Framework(framework_id, (!removes).then(|| framework(bytes))),
        6 => {
            let weight_milli = [0, 1000, 2000, 3500][usize::from(bytes[3] % 4)];
            Change::Role(
                role(bytes[2]),
                (!removes).then_some(RoleView { weight_milli }),
            )
        }
        7..=10 => {
            let claim = ClaimView {
                role: role(bytes[2]),
                shape: shape(bytes),
                remaining: u32::from(bytes[7] / 8 % 6),
                priority: i32::from(bytes[2] / 4 % 3),
                submitted: u64::from(bytes[2] / 16),
            };
            Change::Claim(
                framework_id,
                claim_id(bytes[2] / 3),
                (!removes).then_some(claim),
            )
        }
        _ => {
            let resources = resources([bytes[3], bytes[4], bytes[5], bytes[6]]);
            // Of one part or of all that was free: what hides is the smaller of the two.
            let free = if bytes[7].is_multiple_of(2) {
                resources.clone()
            } else {
                crate::made_up::resources([bytes[4], bytes[5], bytes[6], bytes[3]])
            };
            let refusal = (!removes).then_some(RefusalView {
                resources,
                free,
                others: Vec::new(),
            });
            Change::Refusal(framework_id, role(bytes[2]), agent_id, refusal)
        }
    }
}

pub(crate) fn changes() -> impl Strategy<Value = Vec<[u8; 8]>> {
    proptest::collection::vec(any::<[u8; 8]>(), 10..90)
}

pub(crate) fn view_of(changes: &[[u8; 8]]) -> View {
    let mut view = View::new();
    for bytes in changes {
        view.patch(change(bytes));
    }
    view
}

/// What a view holds after some changes, kept the plain way.
#[derive(Default)]
pub(crate) struct Model {
    agents: BTreeMap<AgentId, AgentView>,
    frameworks: BTreeMap<FrameworkId, FrameworkView>,
    roles: BTreeMap<RolePath, RoleView>,
    claims: BTreeMap<(FrameworkId, ClaimId), ClaimView>,
    refusals: BTreeMap<(FrameworkId, RolePath, AgentId), RefusalView>,
}

pub(crate) fn put<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    };
}

impl Model {
    pub(crate) fn of(changes: &[[u8; 8]]) -> Self {
        let mut model = Self::default();
        for bytes in changes {
            model.apply(change(bytes));
        }
        model
    }

    pub(crate) fn apply(&mut self, change: Change) {
        match change {
            Change::Agent(id, agent) => {
                if agent.is_none() {
                    self.refusals.retain(|key, _| key.2 != id);
                }
                put(&mut self.agents, id, agent);
            }
            Change::Framework(id, framework) => {
                if framework.is_none() {
                    self.claims.retain(|key, _| key.0 != id);
                    self.refusals.retain(|key, _| key.0 != id);
                }
                put(&mut self.frameworks, id, framework);
            }
            Change::Role(path, role) => put(&mut self.roles, path, role),
            Change::Claim(framework, id, claim) => {
                put(&mut self.claims, (framework, id), claim);
            }
            Change::Refusal(framework, role, agent, refusal) => {
                put(&mut self.refusals, (framework, role, agent), refusal);
            }
        }
    }

    /// Takes over what the booking of a round has changed in a view: agents, frameworks, claims.
    pub(crate) fn take_over(&mut self, view: &View) {
        let agents = view.agents().map(|(id, agent)| (id, agent.clone()));
        self.agents = agents.collect();
        let frameworks = view.frameworks();
        self.frameworks = frameworks.map(|(id, view)| (id, view.clone())).collect();
        let claims = view.claims();
        self.claims = claims
            .map(|(framework, id, claim)| ((framework, id.clone()), claim.clone()))
            .collect();
    }

    /// A view of it, put together in another order than the changes came in.
    pub(crate) fn view(&self) -> View {
        let mut changes = Vec::new();
        for ((framework, id), claim) in self.claims.iter().rev() {
            changes.push(Change::Claim(*framework, id.clone(), Some(claim.clone())));
        }
        for ((framework, role, agent), refusal) in &self.refusals {
            let refusal = Some(refusal.clone());
            changes.push(Change::Refusal(*framework, role.clone(), *agent, refusal));
        }
        for (id, framework) in self.frameworks.iter().rev() {
            changes.push(Change::Framework(*id, Some(framework.clone())));
        }
        for (id, agent) in self.agents.iter().rev() {
            changes.push(Change::Agent(*id, Some(agent.clone())));
        }
        for (path, role) in &self.roles {
            changes.push(Change::Role(path.clone(), Some(*role)));
        }
        let mut view = View::new();
        for change in changes {
            view.patch(change);
        }
        view
    }
}
