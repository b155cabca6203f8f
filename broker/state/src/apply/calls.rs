//! The fence and the memory of calls: who may act, and what was answered before.
//!
//! Compared when a command applies, so an old process behind a slow link cannot act. A repeated
//! call gets its first verdict until the framework says that it has it.

use std::ops::Bound;

use mete_model::{Code, FrameworkId};

use crate::command::{Caller, Command};
use crate::effect::Verdict;
use crate::limits::{UNANSWERED_CALLS, UNANSWERED_ITEMS};
use crate::record::{Framework, StoredVerdict, Tombstone};
use crate::rejection::Rejection;
use crate::state::{Calls, State};

/// The first verdict, if the command repeats a call; else `None` for one that may go on.
///
/// # Errors
/// `STALE_INCARNATION`, `TORN_DOWN`, `NOT_FOUND`, `BUSY`, or `INVALID` for an impossible header.
pub(crate) fn answered(
    state: &State,
    command: &Command,
) -> Result<Option<StoredVerdict>, Rejection> {
    let Some(caller) = command.caller() else {
        return Ok(None);
    };
    if let Some(tombstone) = state.tombstones.get(&caller.framework) {
        return repeated_teardown(state, command, caller, tombstone).map(Some);
    }
    let framework = fence(state, caller)?;
    if caller.call == 0 || is_acknowledgement(command) {
        return Ok(None);
    }
    if caller.answered >= caller.call {
        let fault = format!("is {}, must be below call {}", caller.answered, caller.call);
        return Err(Rejection::field("header.answered", fault));
    }
    if caller.call <= framework.answered {
        let fault = format!(
            "call {} was said to be answered (up to {}); use a new number",
            caller.call, framework.answered
        );
        return Err(Rejection::field("header.call", fault));
    }
    let calls = state.calls.get(&caller.framework);
    if let Some(first) = calls.and_then(|calls| calls.verdicts.get(&caller.call)) {
        return Ok(Some(first.clone()));
    }
    let answered = framework.answered.max(caller.answered);
    if caller.call.saturating_sub(answered) > UNANSWERED_CALLS {
        return Err(Rejection::new(
            Code::Busy,
            format!(
                "call {} is more than {UNANSWERED_CALLS} above the last answered one ({answered}); \
                 wait for answers",
                caller.call
            ),
        ));
    }
    match calls {
        Some(calls) if items_above(calls, answered) > UNANSWERED_ITEMS => Err(Rejection::new(
            Code::Busy,
            format!(
                "verdicts of more than {UNANSWERED_ITEMS} tasks are kept for calls after \
                 {answered}; say in 'answered' which have arrived"
            ),
        )),
        Some(_) | None => Ok(None),
    }
}

/// The caller's framework, if the caller is its present process.
fn fence<'a>(state: &'a State, caller: &Caller) -> Result<&'a Framework, Rejection> {
    let framework = find(state, caller.framework)?;
    let present = framework.incarnation;
    if caller.incarnation < present {
        return Err(stale(caller.incarnation, present));
    }
    if caller.incarnation > present {
        let fault = format!("is {}, the latest is {present}", caller.incarnation);
        return Err(Rejection::field("header.incarnation", fault));
    }
    Ok(framework)
}

/// A framework that is not torn down.
pub(crate) fn find(state: &State, id: FrameworkId) -> Result<&Framework, Rejection> {
    if let Some(framework) = state.frameworks.get(&id) {
        return Ok(framework);
    }
    if let Some(tombstone) = state.tombstones.get(&id) {
        return Err(torn_down(tombstone));
    }
    Err(Rejection::new(
        Code::NotFound,
        format!("no framework {id} is known"),
    ))
}

pub(crate) fn stale(given: u64, present: u64) -> Rejection {
    Rejection::new(
        Code::StaleIncarnation,
        format!("incarnation {given} is superseded by {present}; stop this process"),
    )
}

pub(crate) fn torn_down(tombstone: &Tombstone) -> Rejection {
    Rejection::new(
        Code::TornDown,
        format!(
            "framework '{}' ({}) was ended by {}; subscribe anew with incarnation 0",
            tombstone.name, tombstone.framework, tombstone.actor
        ),
    )
}

/// The call that ended the framework may be repeated like any other.
fn repeated_teardown(
    state: &State,
    command: &Command,
    caller: &Caller,
    tombstone: &Tombstone,
) -> Result<StoredVerdict, Rejection> {
    let same = matches!(command, Command::Teardown { .. })
        && caller.call != 0
        && caller.call == tombstone.call
        && caller.incarnation == tombstone.incarnation;
    if !same {
        return Err(torn_down(tombstone));
    }
    Ok(StoredVerdict {
        framework: caller.framework,
        call: caller.call,
        revision: tombstone.revision,
        verdict: Verdict::TornDown(super::teardown::still_ending(state, caller.framework)),
    })
}

/// Acknowledging is idempotent by itself and never refused for being too much.
fn is_acknowledgement(command: &Command) -> bool {
    matches!(command, Command::Acknowledge { .. })
}

fn items_above(calls: &Calls, answered: u64) -> usize {
    if calls.items <= UNANSWERED_ITEMS {
        return calls.items;
    }
    let above = calls.verdicts.range_from(Bound::Excluded(&answered));
    above.map(|(_, kept)| items(&kept.verdict)).sum()
}

/// Counted anew, for the invariants.
pub(crate) fn items_of(calls: &Calls) -> usize {
    calls
        .verdicts
        .values()
        .map(|kept| items(&kept.verdict))
        .sum()
}

fn items(verdict: &Verdict) -> usize {
    match verdict {
        Verdict::Launched(list) => list.len(),
        Verdict::Killed(list) | Verdict::Acknowledged(list) => list.len(),
        Verdict::Done
        | Verdict::Admitted { .. }
        | Verdict::Subscribed { .. }
        | Verdict::StoreWritten(_)
        | Verdict::TornDown(_)
        | Verdict::MasterAdded { .. }
        | Verdict::RoleSet { .. } => 1,
    }
}

/// Keeps the verdict for a repeat and drops those that have arrived.
pub(crate) fn remember(state: &mut State, command: &Command, revision: u64, verdict: &Verdict) {
    let Some(caller) = command.caller() else {
        return;
    };
    // A teardown has just removed it.
    let Some(framework) = state.frameworks.get_mut(&caller.framework) else {
        return;
    };
    if caller.call == 0 {
        return;
    }
    framework.answered = framework.answered.max(caller.answered);
    let calls = state.calls.entry(caller.framework).or_default();
    drop_answered(calls, framework.answered);
    if !is_acknowledgement(command) {
        put(
            calls,
            StoredVerdict {
                framework: caller.framework,
                call: caller.call,
                revision,
                verdict: verdict.clone(),
            },
        );
    }
    if calls.verdicts.is_empty() {
        state.calls.remove(&caller.framework);
    }
}

pub(crate) fn put(calls: &mut Calls, kept: StoredVerdict) {
    calls.items = calls.items.saturating_add(items(&kept.verdict));
    calls.verdicts.insert(kept.call, kept);
}

fn drop_answered(calls: &mut Calls, answered: u64) {
    while let Some(first) = calls.verdicts.first().map(|(call, _)| *call)
        && first <= answered
        && let Some(kept) = calls.verdicts.remove(&first)
    {
        calls.items = calls.items.saturating_sub(items(&kept.verdict));
    }
}
