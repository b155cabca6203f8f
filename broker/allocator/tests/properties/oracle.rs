//! What must hold of a round, checked the slow way against the view that it came from.

use std::collections::BTreeMap;

use mete_allocator::{ClaimView, FrameworkView, Round, View, Waiting};
use mete_model::fit::carve;
use mete_model::quota::{Charge, Kind};
use mete_model::{AgentId, ClaimId, Code, FrameworkId, Resources, fit};

/// Free resources of schedulable agents after a round; panics if it placed too much.
pub(crate) fn free_after(view: &View, round: &Round) -> BTreeMap<AgentId, Resources> {
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

pub(crate) fn cap(view: &View, framework: &FrameworkView, kind: &Kind) -> u64 {
    (view.capacity().get(kind) / 4) >> framework.cap_halvings
}

/// What is out to a framework after a round.
pub(crate) fn out_after(view: &View, round: &Round, id: FrameworkId) -> Charge {
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
pub(crate) fn is_capped(view: &View, round: &Round, id: FrameworkId, claim: &ClaimView) -> bool {
    let out = out_after(view, round, id);
    let framework = view.framework(id).unwrap();
    Charge::of_shape(&claim.shape)
        .iter()
        .any(|(kind, want)| out.get(kind) + want > cap(view, framework, kind).max(want))
}

/// The reason by a search over everything, for a claim that waits and is not held by the cap.
pub(crate) fn true_reason(
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
            view.is_refused((framework, &claim.role), *agent, Some(&claim.shape), free),
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
        let hidden = view.is_refused(
            (framework, &claim.role),
            placement.agent,
            Some(&claim.shape),
            free,
        );
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

pub(crate) fn check_placements(view: &View, round: &Round) {
    let mut slots: BTreeMap<(FrameworkId, ClaimId), u32> = BTreeMap::new();
    free_after(view, round);
    for placement in &round.placements {
        let (framework, role) = (placement.framework, &placement.role);
        assert!(view.is_served(framework, role), "P6: {placement:?}");
        let free = &view.agent(placement.agent).unwrap().free;
        let claim = placement.claim.as_ref();
        let shape = claim
            .and_then(|id| view.claim(framework, id))
            .map(|claim| &claim.shape);
        let hidden = view.is_refused((framework, role), placement.agent, shape, free);
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

pub(crate) fn check_cap(view: &View, round: &Round) {
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

pub(crate) fn check_reasons(view: &View, round: &Round) {
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
