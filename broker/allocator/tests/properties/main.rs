//! The promises of the crate's documentation, P1 to P9, on clusters made up by proptest.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod made_up;
mod oracle;

use std::collections::BTreeMap;

use mete_allocator::reference::{accept_all, agent_id, book, framework_id, naive};
use mete_allocator::{
    AgentView, Change, ClaimView, Dirty, Limits, Placement, RoleView, Round, View, Waiting,
    allocate, explain,
};
use mete_model::quota::{Charge, Kind};
use mete_model::{Bytes, ClaimId, Code, FrameworkId, MilliCpu, Resources, Shape};
use proptest::prelude::*;

use crate::made_up::{
    GIB, Model, change, changes, claim_id, everything, framework, role, view_of, whole_round,
};
use crate::oracle::{check_cap, check_placements, check_reasons};

/// Failures are shrunk and printed; nothing is written beside the tests.
fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
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

/// What a round after a change has to look at.
fn dirtied(change: &Change) -> Dirty {
    let mut dirty = Dirty::default();
    match change {
        Change::Agent(agent, _) => dirty.agents.push(*agent),
        Change::Claim(framework, claim, _) => dirty.claims.push((*framework, claim.clone())),
        Change::Framework(framework, _) | Change::Refusal(framework, _, _, _) => {
            dirty.frameworks.push(*framework);
        }
        Change::Role(..) => dirty.all = true,
    }
    dirty
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
    // Each looks at a dozen views.
    #![proptest_config(cases(60))]

    #[test]
    fn p1_and_p9_hold_after_every_change_and_every_round(
        before in changes(),
        after in proptest::collection::vec(any::<[u8; 8]>(), 1..12),
    ) {
        // Patched on and on, as the leader does it, rounds and their bookings in between.
        let mut kept = Model::of(&before);
        let mut view = view_of(&before);
        for bytes in &after {
            let dirty = dirtied(&change(bytes));
            kept.apply(change(bytes));
            view.patch(change(bytes));
            let built = kept.view();
            prop_assert_eq!(view.audit(), built.audit());
            let round = allocate(&view, &dirty, Limits::NONE);
            prop_assert_eq!(&round, &allocate(&built, &dirty, Limits::NONE));
            check_placements(&view, &round);
            book(&mut view, &round);
            kept.take_over(&view);
        }
        prop_assert_eq!(whole_round(&view), whole_round(&kept.view()));
    }
}

proptest! {
    #![proptest_config(cases(400))]

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
            let open = round.waiting.iter().any(|entry| entry.reason == Code::NotDecided);
            prop_assert!(round.unfinished || !open);
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
    #![proptest_config(cases(200))]

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
