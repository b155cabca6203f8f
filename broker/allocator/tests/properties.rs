//! The promises of the crate's documentation, P1 to P9, on clusters made up by proptest.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use mete_allocator::reference::{accept_all, agent_id, book, framework_id, naive};
use mete_allocator::{
    AgentView, Change, ClaimView, Dirty, FrameworkView, Limits, Placement, RefusalView, RoleView,
    Round, View, Waiting, allocate, explain,
};
use mete_model::fit::carve;
use mete_model::quota::{Charge, Kind};
use mete_model::{
    AgentId, Bytes, ClaimId, ClassPath, Code, CpuSet, DeviceId, DeviceShare, DeviceWant,
    FrameworkId, MilliCpu, Resources, RolePath, Shape, fit,
};
use proptest::prelude::*;

const GIB: u64 = 1 << 30;

fn everything() -> Dirty {
    Dirty {
        all: true,
        ..Dirty::default()
    }
}

fn whole_round(view: &View) -> Round {
    allocate(view, &everything(), Limits::NONE)
}

fn role(byte: u8) -> RolePath {
    RolePath::new(["a", "b", "b/c"][usize::from(byte % 3)]).unwrap()
}

fn claim_id(byte: u8) -> ClaimId {
    ClaimId::new(&format!("c{}", byte % 4)).unwrap()
}

fn resources(bytes: [u8; 4]) -> Resources {
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

fn agent(bytes: &[u8; 8]) -> AgentView {
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

fn shape(bytes: &[u8; 8]) -> Shape {
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

fn framework(bytes: &[u8; 8]) -> FrameworkView {
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
fn change(bytes: &[u8; 8]) -> Change {
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
            let refusal = (!removes).then_some(RefusalView { resources });
            Change::Refusal(framework_id, role(bytes[2]), agent_id, refusal)
        }
    }
}

fn changes() -> impl Strategy<Value = Vec<[u8; 8]>> {
    proptest::collection::vec(any::<[u8; 8]>(), 10..90)
}

fn view_of(changes: &[[u8; 8]]) -> View {
    let mut view = View::new();
    for bytes in changes {
        view.patch(change(bytes));
    }
    view
}

/// What a view holds after some changes, kept the plain way.
#[derive(Default)]
struct Model {
    agents: BTreeMap<AgentId, AgentView>,
    frameworks: BTreeMap<FrameworkId, FrameworkView>,
    roles: BTreeMap<RolePath, RoleView>,
    claims: BTreeMap<(FrameworkId, ClaimId), ClaimView>,
    refusals: BTreeMap<(FrameworkId, RolePath, AgentId), RefusalView>,
}

fn put<K: Ord, V>(map: &mut BTreeMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    };
}

impl Model {
    fn of(changes: &[[u8; 8]]) -> Self {
        let mut model = Self::default();
        for bytes in changes {
            match change(bytes) {
                Change::Agent(id, agent) => {
                    if agent.is_none() {
                        model.refusals.retain(|key, _| key.2 != id);
                    }
                    put(&mut model.agents, id, agent);
                }
                Change::Framework(id, framework) => {
                    if framework.is_none() {
                        model.claims.retain(|key, _| key.0 != id);
                        model.refusals.retain(|key, _| key.0 != id);
                    }
                    put(&mut model.frameworks, id, framework);
                }
                Change::Role(path, role) => put(&mut model.roles, path, role),
                Change::Claim(framework, id, claim) => {
                    put(&mut model.claims, (framework, id), claim);
                }
                Change::Refusal(framework, role, agent, refusal) => {
                    put(&mut model.refusals, (framework, role, agent), refusal);
                }
            }
        }
        model
    }

    /// A view of it, put together in another order than the changes came in.
    fn view(&self) -> View {
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

/// Free resources of schedulable agents after a round; panics if it placed too much.
fn free_after(view: &View, round: &Round) -> BTreeMap<AgentId, Resources> {
    let mut free: BTreeMap<AgentId, Resources> = view
        .agents()
        .filter(|(_, agent)| agent.schedulable)
        .map(|(id, agent)| (id, agent.free.clone()))
        .collect();
    for placement in &round.placements {
        let left = free
            .get_mut(&placement.agent)
            .expect("only schedulable agents");
        left.subtract(&placement.resources)
            .expect("never more than is free");
    }
    free
}

fn cap(view: &View, framework: &FrameworkView, kind: &Kind) -> u64 {
    (view.capacity().get(kind) / 4) >> framework.cap_halvings
}

/// What is out to a framework after a round.
fn out_after(view: &View, round: &Round, id: FrameworkId) -> Charge {
    let mut out = view.framework(id).unwrap().offered.clone();
    for placement in round
        .placements
        .iter()
        .filter(|placement| placement.framework == id)
    {
        out.add(&Charge::of(&placement.resources));
    }
    out
}

/// Says whether the cap leaves no room for one more task of the claim.
fn is_capped(view: &View, round: &Round, id: FrameworkId, claim: &ClaimView) -> bool {
    let out = out_after(view, round, id);
    let framework = view.framework(id).unwrap();
    Charge::of_shape(&claim.shape)
        .iter()
        .any(|(kind, want)| out.get(kind) + want > cap(view, framework, kind).max(want))
}

/// The reason by a search over everything, for a claim that waits and is not held by the cap.
fn true_reason(
    view: &View,
    round: &Round,
    (framework, id, claim): (FrameworkId, &ClaimId, &ClaimView),
) -> Code {
    let fits = |resources: &Resources| fit(&claim.shape, resources).is_ok();
    if !view.is_served(framework, &claim.role) {
        return Code::FrameworkAway;
    }
    let after = free_after(view, round);
    if after.is_empty() {
        return Code::NoAgents;
    }
    if !view.agents().any(|(_, agent)| fits(&agent.total)) {
        return Code::Infeasible;
    }
    let mut declined = false;
    for (agent, free) in after.iter().filter(|(_, free)| fits(free)) {
        assert!(
            view.is_refused(framework, &claim.role, *agent, free),
            "P3: {id} of {framework} waits and fits {agent}"
        );
        declined = true;
    }
    if declined {
        return Code::Declined;
    }
    let others = round.placements.iter().any(|placement| {
        let other = placement
            .claim
            .as_ref()
            .is_some_and(|claim| (placement.framework, claim) != (framework, id));
        let free = &view.agent(placement.agent).unwrap().free;
        let hidden = view.is_refused(framework, &claim.role, placement.agent, free);
        other && !hidden && fits(free)
    });
    if others {
        return Code::Order;
    }
    let mut sum = Charge::default();
    for free in after.values() {
        sum.add(&Charge::of(free));
    }
    let cores: u32 = after.values().map(|free| free.cores.len()).sum();
    let want = Charge::of_shape(&claim.shape);
    if cores < claim.shape.cores || want.iter().any(|(kind, want)| sum.get(kind) < want) {
        Code::NoCapacity
    } else {
        Code::NoShape
    }
}

fn check_placements(view: &View, round: &Round) {
    let mut slots: BTreeMap<(FrameworkId, ClaimId), u32> = BTreeMap::new();
    free_after(view, round);
    for placement in &round.placements {
        let (framework, role) = (placement.framework, &placement.role);
        assert!(view.is_served(framework, role), "P6: {placement:?}");
        let free = &view.agent(placement.agent).unwrap().free;
        let hidden = view.is_refused(framework, role, placement.agent, free);
        assert!(!hidden, "P6: {placement:?}");
        let Some(id) = &placement.claim else {
            assert!(
                view.framework(framework).unwrap().plain_offers,
                "P6: {placement:?}"
            );
            assert_eq!(placement.slots, 0);
            continue;
        };
        let claim = view.claim(framework, id).unwrap();
        assert_eq!(&claim.role, role);
        assert!(placement.slots > 0, "P2: {placement:?}");
        let (all, count) = carve(&claim.shape, &placement.resources, placement.slots);
        assert_eq!(
            count, placement.slots,
            "P2: {placement:?} {:?}",
            claim.shape
        );
        assert_eq!(all, placement.resources, "P2: no more than the tasks need");
        *slots.entry((framework, id.clone())).or_default() += placement.slots;
    }
    for ((framework, id), slots) in slots {
        assert!(
            slots <= view.claim(framework, &id).unwrap().remaining,
            "P2: {id}"
        );
    }
}

fn check_cap(view: &View, round: &Round) {
    for (id, framework) in view.frameworks() {
        let mine = || {
            round
                .placements
                .iter()
                .filter(|placement| placement.framework == id)
        };
        if mine().next().is_none() {
            continue;
        }
        let out = out_after(view, round, id);
        for kind in [Kind::Cpu, Kind::Memory] {
            let one = mine()
                .filter_map(|placement| view.claim(id, placement.claim.as_ref()?))
                .map(|claim| Charge::of_shape(&claim.shape).get(&kind))
                .max()
                .unwrap_or(0);
            let before = framework.offered.get(&kind);
            let most = cap(view, framework, &kind).max(one).max(before);
            assert!(
                out.get(&kind) <= most,
                "P5: {kind} {} above {most}",
                out.get(&kind)
            );
        }
    }
}

fn check_reasons(view: &View, round: &Round) {
    let mut waiting: BTreeMap<(FrameworkId, &ClaimId), &Waiting> = BTreeMap::new();
    for entry in &round.waiting {
        let twice = waiting.insert((entry.framework, &entry.claim), entry);
        assert!(twice.is_none(), "P4: two reasons for {entry:?}");
    }
    for (framework, id, claim) in view.claims() {
        let placed: u32 = round
            .placements
            .iter()
            .filter(|placement| {
                (placement.framework, placement.claim.as_ref()) == (framework, Some(id))
            })
            .map(|placement| placement.slots)
            .sum();
        let Some(entry) = waiting.remove(&(framework, id)) else {
            assert_eq!(
                placed, claim.remaining,
                "P4: no reason for {id} of {framework}"
            );
            continue;
        };
        assert_eq!(entry.remaining, claim.remaining - placed);
        assert!(entry.remaining > 0, "P4: nothing of {entry:?} waits");
        if entry.reason == Code::Offered {
            assert!(is_capped(view, round, framework, claim), "P4: {entry:?}");
        } else {
            assert_eq!(
                entry.reason,
                true_reason(view, round, (framework, id, claim)),
                "{entry:?}"
            );
        }
        let has_short = matches!(
            entry.reason,
            Code::Infeasible | Code::NoCapacity | Code::NoShape
        );
        assert_eq!(entry.short.is_some(), has_short, "P4: {entry:?}");
        if let Some(short) = &entry.short {
            assert!(short.have < short.want, "P4: {entry:?}");
        }
        assert_eq!(
            entry.behind.is_some(),
            entry.reason == Code::Order,
            "P4: {entry:?}"
        );
    }
    assert!(waiting.is_empty(), "P4: reasons for unknown claims");
}

fn sorted(mut placements: Vec<Placement>) -> Vec<Placement> {
    let key = |placement: &Placement| {
        let framework = (placement.framework, placement.role.clone());
        (framework, placement.claim.clone(), placement.agent)
    };
    placements.sort_by_key(key);
    placements
}

/// Rounds until nothing more is placed; `None` if that takes longer than it may.
fn settle(view: &mut View) -> Option<()> {
    for _ in 0..50 {
        let round = whole_round(view);
        if round.placements.is_empty() {
            return Some(());
        }
        book(view, &round);
    }
    None
}

/// Puts more room on an agent, or a claim, or gives a framework its cap back, and says so.
fn improve(view: &mut View, bytes: &[u8; 8]) -> Dirty {
    let mut dirty = Dirty::default();
    match bytes[0] % 3 {
        0 => {
            for at in 0..=u32::from(bytes[2] % 2) {
                let id = agent_id(u32::from(bytes[1] % 6) + at);
                if let Some(mut agent) = view.agent(id).cloned() {
                    agent.free = agent.total.clone();
                    agent.schedulable = true;
                    view.patch(Change::Agent(id, Some(agent)));
                    dirty.agents.push(id);
                }
            }
        }
        1 => {
            let framework = framework_id(u32::from(bytes[1] % 4));
            let mut claim = bytes.to_owned();
            claim[0] = 7;
            claim[7] = 8 * 3;
            claim[1] = bytes[1] % 4 * 6;
            if let Change::Claim(_, id, Some(view_of_claim)) = change(&claim) {
                view.patch(Change::Claim(framework, id.clone(), Some(view_of_claim)));
                dirty.claims.push((framework, id));
            }
        }
        _ => {
            let id = framework_id(u32::from(bytes[1] % 4));
            if let Some(mut framework) = view.framework(id).cloned() {
                framework.offered = Charge::default();
                framework.connected = true;
                view.patch(Change::Framework(id, Some(framework)));
                dirty.frameworks.push(id);
            }
        }
    }
    dirty
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn p1_a_patched_view_equals_a_rebuilt_one(changes in changes()) {
        let model = Model::of(&changes);
        prop_assert_eq!(view_of(&changes).audit(), model.view().audit());
    }

    #[test]
    fn p2_to_p6_a_round_is_sound_and_every_reason_is_true(changes in changes()) {
        let view = view_of(&changes);
        let round = whole_round(&view);
        prop_assert!(!round.unfinished);
        check_placements(&view, &round);
        check_cap(&view, &round);
        check_reasons(&view, &round);
    }

    #[test]
    fn p8_an_incremental_round_places_what_a_whole_one_would(
        changes in changes(),
        better in any::<[u8; 8]>(),
    ) {
        let mut view = view_of(&changes);
        prop_assume!(settle(&mut view).is_some());
        let dirty = improve(&mut view, &better);
        let part = allocate(&view, &dirty, Limits::NONE);
        let whole = whole_round(&view);
        prop_assert_eq!(sorted(part.placements.clone()), sorted(whole.placements));
        check_placements(&view, &part);
        for entry in &part.waiting {
            prop_assert_ne!(entry.reason, Code::NotDecided, "{:?}", entry);
        }
        for (framework, id) in &dirty.claims {
            let mine = |entry: &&Waiting| (entry.framework, &entry.claim) == (*framework, id);
            let of_part: Vec<_> = part.waiting.iter().filter(mine).collect();
            let of_whole: Vec<_> = whole.waiting.iter().filter(mine).collect();
            prop_assert_eq!(of_part.len(), of_whole.len());
        }
    }

    #[test]
    fn p9_the_same_view_gives_the_same_round_whatever_led_there(changes in changes()) {
        let model = Model::of(&changes);
        prop_assert_eq!(whole_round(&view_of(&changes)), whole_round(&model.view()));
    }

    #[test]
    fn a_round_in_pieces_places_as_much_as_it_may_and_says_that_it_is_not_over(
        changes in changes(),
        most in 1_usize..4,
    ) {
        let mut view = view_of(&changes);
        let limits = Limits { placements: most, agents: usize::MAX };
        for _ in 0..200 {
            let round = allocate(&view, &everything(), limits);
            check_placements(&view, &round);
            prop_assert!(round.placements.len() <= most);
            prop_assert!(round.unfinished || !round.waiting.iter().any(|entry| entry.reason == Code::NotDecided));
            if round.placements.is_empty() && !round.unfinished {
                return Ok(());
            }
            book(&mut view, &round);
        }
        prop_assert!(false, "two hundred rounds and no end");
    }

    #[test]
    fn explaining_counts_each_agent_once_and_agrees_with_the_round(changes in changes()) {
        let mut view = view_of(&changes);
        prop_assume!(settle(&mut view).is_some());
        let round = whole_round(&view);
        for entry in &round.waiting {
            let why = explain(&view, entry.framework, &entry.claim).unwrap();
            let count: usize = why.groups.iter().map(|group| group.count).sum();
            prop_assert_eq!(count, view.agents().count());
            if entry.reason != Code::Offered {
                prop_assert_eq!(why.reason, entry.reason, "{:?}", why);
            }
        }
    }
}

/// One agent of 64 cpu and 64 GiB, and frameworks of three roles that want all of it.
fn contest(claims: &[(u8, u8, u8, u8)], weights: [u8; 3], frameworks: u8) -> View {
    let mut view = View::new();
    let total = Resources {
        cpu: MilliCpu(64_000),
        memory: Bytes(64 * GIB),
        ..Resources::default()
    };
    let agent = AgentView {
        free: total.clone(),
        total,
        schedulable: true,
    };
    view.patch(Change::Agent(agent_id(0), Some(agent)));
    for (at, weight) in (0..).zip(weights) {
        let weight_milli = [0, 1000, 2000, 4000][usize::from(weight % 4)];
        view.patch(Change::Role(role(at), Some(RoleView { weight_milli })));
    }
    for at in 0..frameworks {
        let mut view_of_framework = framework(&[0; 8]);
        view_of_framework.plain_offers = false;
        view.patch(Change::Framework(
            framework_id(u32::from(at)),
            Some(view_of_framework),
        ));
    }
    for (at, (owner, cpu, memory, count)) in (0_u32..).zip(claims) {
        let claim = ClaimView {
            role: role(owner / frameworks),
            shape: Shape {
                cpu: MilliCpu(u64::from(cpu % 4 + 1) * 1000),
                memory: Bytes(u64::from(memory % 4) * GIB),
                ..Shape::default()
            },
            remaining: u32::from(*count),
            priority: i32::from(memory / 4 % 2),
            submitted: u64::from(at),
        };
        let id = ClaimId::new(&format!("c{at}")).unwrap();
        view.patch(Change::Claim(
            framework_id(u32::from(owner % frameworks)),
            id,
            Some(claim),
        ));
    }
    view
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn p7_on_one_agent_a_round_equals_the_plain_allocator(
        claims in proptest::collection::vec((0_u8..18, any::<u8>(), any::<u8>(), 1_u8..40), 1..12),
        weights in any::<[u8; 3]>(),
    ) {
        let view = contest(&claims, weights, 6);
        let tasks = |round: &Round| {
            let mut tasks: BTreeMap<(FrameworkId, Option<ClaimId>), u32> = BTreeMap::new();
            for placement in &round.placements {
                let key = (placement.framework, placement.claim.clone());
                *tasks.entry(key).or_default() += placement.slots;
            }
            tasks
        };
        let round = whole_round(&view);
        prop_assert_eq!(tasks(&round), tasks(&naive(&view, Limits::NONE)));
    }

    #[test]
    fn p7_the_shares_of_competing_roles_are_level_by_weight(
        sizes in proptest::collection::vec(1_u64..900, 3),
        weights in any::<[u8; 3]>(),
    ) {
        let mut view = contest(&[], weights.map(|weight| weight % 3 + 1), 18);
        for at in 0..18_u8 {
            let claim = ClaimView {
                role: role(at),
                shape: Shape { cpu: MilliCpu(sizes[usize::from(at % 3)]), ..Shape::default() },
                remaining: 100_000,
                priority: 0,
                submitted: 0,
            };
            view.patch(Change::Claim(framework_id(u32::from(at)), claim_id(0), Some(claim)));
        }
        let before = whole_round(&view);
        book(&mut view, &before);
        accept_all(&mut view);
        let held = |at: u8| u128::from(view.held(&role(at)).get(&Kind::Cpu));
        let weight = |at: u8| u128::from(view.weight_milli(&role(at)));
        for (one, other) in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)] {
            // held / weight <= (held + task) / weight + capacity / grid; what is less than the
            // other's task was left over at the end, and no loss to it.
            let task = u128::from(sizes[usize::from(other)]);
            let left = held(one).saturating_sub(task) * 4096 * weight(other);
            let right = (held(other) + task) * 4096 * weight(one)
                + 64 * weight(one) * weight(other);
            prop_assert!(left <= right, "role {one} has {}, {other} {}", held(one), held(other));
        }
    }
}
