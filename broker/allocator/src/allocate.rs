//! One round, from the view to the result.

use mete_model::{Bytes, MilliCpu, Resources, Shape};

use crate::fill::{Fill, Wanted};
use crate::plain::Takers;
use crate::round::{Dirty, Limits, Placement, Round};
use crate::view::{Place, View};

/// With more dirty agents than this, looking at all agents is quicker than at each of them.
const FEW_AGENTS: usize = 64;

/// Decides who gets what next. See the crate's documentation for what it promises.
///
/// Nothing is remembered: whatever of the round is made an offer has to be patched into the view
/// before the next round.
#[must_use]
pub fn allocate(view: &View, dirty: &Dirty, limits: Limits) -> Round {
    let wanted = wanted(view, dirty);
    let mut fill = Fill::new(view, &wanted, limits);
    fill.run();
    let mut takers = Takers::default();
    let base = fill.looked.len();
    if !fill.unfinished {
        takers = Takers::of(view, dirty);
        fill.give_plain(&mut takers, dirty, base);
    }
    let waiting = fill.reasons();
    let placements = placements(&mut fill, &takers, base);
    Round {
        placements,
        waiting,
        unfinished: fill.unfinished,
        agents_examined: fill.scratch.examined,
    }
}

/// What there is to fill.
fn wanted(view: &View, dirty: &Dirty) -> Wanted {
    let mut wanted = Wanted {
        all: dirty.all,
        ..Wanted::default()
    };
    if dirty.all {
        return wanted;
    }
    for agent in &dirty.agents {
        if view.agent(*agent).is_some_and(|agent| agent.schedulable) {
            wanted.agents.push(*agent);
        }
    }
    wanted.agents.sort_unstable();
    wanted.agents.dedup();
    if wanted.agents.len() > FEW_AGENTS {
        wanted.all = true;
        return wanted;
    }
    let of_frameworks = dirty.frameworks.iter().filter_map(|framework| {
        let claims = view.claims.get(framework)?;
        Some(claims.keys().map(|claim| (*framework, claim)))
    });
    let of_claims = dirty
        .claims
        .iter()
        .map(|(framework, claim)| (*framework, claim));
    for (framework, id) in of_frameworks.flatten().chain(of_claims) {
        let Some(claim) = view
            .claim(framework, id)
            .filter(|claim| claim.remaining > 0)
        else {
            continue;
        };
        wanted
            .touched
            .entry((claim.role.clone(), framework))
            .or_default()
            .insert(Place::of(id, claim));
    }
    wanted
}

fn placements(fill: &mut Fill<'_>, takers: &Takers<'_>, base: usize) -> Vec<Placement> {
    let drafts = std::mem::take(&mut fill.scratch.drafts);
    let mut placements = Vec::with_capacity(drafts.len());
    for draft in drafts {
        if let Some(looked) = fill.looked.get(draft.to).filter(|_| draft.to < base) {
            placements.push(Placement {
                framework: looked.framework,
                role: looked.claim.role.clone(),
                claim: Some(looked.id.clone()),
                agent: draft.agent,
                resources: draft
                    .resources
                    .map(|resources| *resources)
                    .unwrap_or_else(|| times(&looked.claim.shape, draft.slots)),
                slots: draft.slots,
            });
        } else if let Some(taker) = draft
            .to
            .checked_sub(base)
            .and_then(|at| takers.list.get(at))
        {
            placements.push(Placement {
                framework: taker.framework,
                role: taker.role.clone(),
                claim: None,
                agent: draft.agent,
                resources: draft
                    .resources
                    .map(|resources| *resources)
                    .unwrap_or_default(),
                slots: 0,
            });
        }
    }
    placements
}

/// Several tasks of a shape without names.
fn times(shape: &Shape, slots: u32) -> Resources {
    let times = |amount: u64| amount.saturating_mul(u64::from(slots));
    Resources {
        cpu: MilliCpu(times(shape.cpu.0)),
        memory: Bytes(times(shape.memory.0)),
        disk: Bytes(times(shape.disk.0)),
        ..Resources::default()
    }
}
