//! Why a claim still waits: worked out at the end of the round, from what is free then.

use std::ops::ControlFlow;

use mete_model::{Code, Miss, Resources, Shape, fit};

use crate::fill::{Fill, Looked};
use crate::round::{Short, Waiting};
use crate::scratch::{Hidden, Scratch, ShapeState, nearest};
use crate::view::View;

/// What holds for a shape whoever asks for it; worked out once.
#[derive(Clone, Debug, Default)]
struct Verdict {
    /// It still fits somewhere.
    fits: bool,
    /// No agent has it even when empty.
    infeasible: Option<Short>,
    /// Claims that were booked where this shape fitted before the round, two at the most.
    bookers: Vec<usize>,
    /// Too little free, or nowhere together.
    short: Option<(Code, Short)>,
}

impl<'a> Fill<'a> {
    /// A reason for each looked-at claim that still waits.
    pub(crate) fn reasons(&mut self) -> Vec<Waiting> {
        let mut verdicts: Vec<Option<Verdict>> = vec![None; self.shapes.len()];
        let mut waiting = Vec::new();
        for number in 0..self.looked.len() {
            let Some(looked) = self.looked.get(number) else {
                continue;
            };
            if !looked.done || looked.placed >= looked.claim.remaining {
                continue;
            }
            let Some(shape) = self.shapes.get(looked.shape) else {
                continue;
            };
            let Some(verdict) = verdicts.get_mut(looked.shape) else {
                continue;
            };
            let verdict =
                &*verdict.get_or_insert_with(|| judge(self.view, &mut self.scratch, shape));
            let hidden = self.view.refusals_of(looked.framework, &looked.claim.role);
            let mut entry = Waiting {
                framework: looked.framework,
                claim: looked.id.clone(),
                remaining: looked.claim.remaining.saturating_sub(looked.placed),
                reason: Code::NotDecided,
                short: None,
                behind: None,
            };
            let behind = decide(
                &self.scratch,
                looked,
                (number, shape, verdict),
                hidden,
                &mut entry,
            );
            entry.behind = behind
                .and_then(|behind| self.looked.get(behind))
                .map(|behind| (behind.framework, behind.id.clone()));
            waiting.push(entry);
        }
        waiting
    }
}

/// Sets reason and arithmetic; gives the number of the claim that went first, for `ORDER`.
fn decide(
    scratch: &Scratch<'_>,
    looked: &Looked<'_>,
    (number, shape, verdict): (usize, &ShapeState<'_>, &Verdict),
    hidden: Hidden<'_>,
    entry: &mut Waiting,
) -> Option<usize> {
    let view = scratch.view;
    if looked.away {
        entry.reason = Code::FrameworkAway;
    } else if view.schedulable == 0 {
        entry.reason = Code::NoAgents;
    } else if let Some(short) = &verdict.infeasible {
        entry.reason = Code::Infeasible;
        entry.short = Some(short.clone());
    } else if looked.capped {
        // Its framework has as much out as it may: it waits for the answer to an offer.
        entry.reason = Code::Offered;
    } else if verdict.fits {
        // It fits, but it was passed: every such agent is hidden from it.
        entry.reason = Code::Declined;
    } else if let Some(behind) = behind(scratch, number, shape, verdict, hidden) {
        entry.reason = Code::Order;
        return Some(behind);
    } else if let Some((code, short)) = &verdict.short {
        entry.reason = *code;
        entry.short = Some(short.clone());
    }
    None
}

/// A claim, other than this one, that was booked where this one fitted before the round.
fn behind(
    scratch: &Scratch<'_>,
    number: usize,
    shape: &ShapeState<'_>,
    verdict: &Verdict,
    hidden: Hidden<'_>,
) -> Option<usize> {
    match hidden {
        None => verdict
            .bookers
            .iter()
            .copied()
            .find(|booker| *booker != number),
        Some(_) => {
            let mut found = None;
            each_fit_before(scratch, shape, hidden, |booker| {
                if booker == number {
                    return ControlFlow::Continue(());
                }
                found = Some(booker);
                ControlFlow::Break(())
            });
            found
        }
    }
}

/// Shows who was booked on the agents that fitted the shape before the round and were not hidden.
fn each_fit_before(
    scratch: &Scratch<'_>,
    shape: &ShapeState<'_>,
    hidden: Hidden<'_>,
    mut each: impl FnMut(usize) -> ControlFlow<()>,
) {
    if scratch.drafts.is_empty() {
        return;
    }
    let view = scratch.view;
    for at in &shape.groups {
        let Some(group) = view.groups.values().nth(*at) else {
            continue;
        };
        let mut over = false;
        group.free.scan(&shape.entry.need, |entry| {
            let agent = entry.agent;
            let mut bookers = scratch.bookers(entry.slot).peekable();
            if bookers.peek().is_none() {
                return ControlFlow::Continue(());
            }
            let Some(free) = view.agent(agent).map(|agent| &agent.free) else {
                return ControlFlow::Continue(());
            };
            if !fits(shape.shape, free) {
                return ControlFlow::Continue(());
            }
            let refused = hidden.and_then(|hidden| hidden.get(&agent));
            if refused.is_some_and(|refused| refused.hides(Some(shape.shape), free)) {
                return ControlFlow::Continue(());
            }
            for booker in bookers {
                if each(booker).is_break() {
                    over = true;
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        });
        if over {
            return;
        }
    }
}

/// The numbers cover it already: only devices need names to be sure.
fn fits(shape: &Shape, free: &Resources) -> bool {
    shape.devices.is_empty() || fit(shape, free).is_ok()
}

fn judge(view: &View, scratch: &mut Scratch<'_>, shape: &ShapeState<'_>) -> Verdict {
    let fits = !shape.dead && scratch.search(shape, None).is_some();
    let mut bookers = Vec::new();
    each_fit_before(scratch, shape, None, |booker| {
        if !bookers.contains(&booker) {
            bookers.push(booker);
        }
        if bookers.len() < 2 {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    });
    Verdict {
        fits,
        infeasible: infeasible(view, shape),
        bookers,
        short: short(view, scratch, shape),
    }
}

/// The failing number, if no agent could run the shape when empty.
pub(crate) fn infeasible(view: &View, shape: &ShapeState<'_>) -> Option<Short> {
    for at in &shape.groups {
        let mut found = false;
        if let Some(group) = view.groups.values().nth(*at) {
            group.total.scan(&shape.entry.need, |entry| {
                let total = view.agent(entry.agent).map(|agent| &agent.total);
                found = total.is_some_and(|total| fits(shape.shape, total));
                if found {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            });
        }
        if found {
            return None;
        }
    }
    let trees = view.groups.values().map(|group| &group.total);
    let closest = nearest(trees, shape).and_then(|entry| view.agent(entry.agent));
    let empty = Resources::default();
    let total = closest.map_or(&empty, |agent| &agent.total);
    fit(shape.shape, total).err().map(|miss| short_of(&miss))
}

/// `NO_CAPACITY` or `NO_SHAPE`, with the failing number.
pub(crate) fn short(
    view: &View,
    scratch: &Scratch<'_>,
    shape: &ShapeState<'_>,
) -> Option<(Code, Short)> {
    if let Some((kind, want, have)) =
        view.short_sum(shape.entry, &scratch.taken, scratch.taken_cores)
    {
        return Some((Code::NoCapacity, Short { kind, want, have }));
    }
    let closest = scratch.nearest(shape)?;
    let now = scratch.resources(&closest)?;
    let miss = fit(shape.shape, &now).err()?;
    Some((Code::NoShape, short_of(&miss)))
}

/// The arithmetic of a miss.
pub(crate) fn short_of(miss: &Miss) -> Short {
    let (_, want, have) = miss.amounts();
    let kind = match miss {
        Miss::Cpu { .. } => "cpu".to_owned(),
        Miss::Memory { .. } => "mem".to_owned(),
        Miss::Disk { .. } => "disk".to_owned(),
        Miss::Cores { .. } => "cores".to_owned(),
        Miss::Devices { class, .. } => format!("dev/{class}"),
    };
    Short { kind, want, have }
}
