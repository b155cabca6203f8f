//! Frameworks: subscribing with a fence, settings, suppression, and the time without a stream.
//!
//! Identity is (principal, name). A process that ends keeps everything of its framework; only a
//! teardown (`teardown.rs`) or the end of the failover timeout takes it away.

use mete_model::{ClaimId, Code, FrameworkId, RolePath};

use super::validate::Faults;
use super::{Plan, Turn, calls, preview_of};
use crate::command::{FrameworkSettings, Subscribe};
use crate::due::Lapse;
use crate::effect::{Change, Effect, Verdict};
use crate::limits::{
    FRAMEWORKS, LONGEST_FRAMEWORK_NAME, LONGEST_NAME, NEVER, ROLES_OF_A_FRAMEWORK,
};
use crate::record::{ClaimRecord, Framework};
use crate::rejection::Rejection;
use crate::state::{Preview, State};

/// A process that may subscribe.
#[derive(Debug)]
pub(crate) struct Subscription<'a> {
    subscribe: &'a Subscribe,
    settings: FrameworkSettings,
    framework: FrameworkId,
    incarnation: u64,
    known: bool,
    changes: bool,
}

pub(crate) fn subscribe<'a>(
    state: &State,
    subscribe: &'a Subscribe,
) -> Result<Subscription<'a>, Rejection> {
    let mut faults = Faults::default();
    name(&mut faults, &subscribe.name);
    if subscribe.principal.is_empty() || subscribe.principal.len() > LONGEST_NAME {
        faults.add("principal", format!("1 to {LONGEST_NAME} bytes"));
    }
    let settings = settings(state, faults, &subscribe.settings)?;
    let key = (subscribe.principal.clone(), subscribe.name.clone());
    let present = state
        .by_name
        .get(&key)
        .and_then(|id| state.frameworks.get(id));
    let Some(present) = present else {
        return first_subscription(state, subscribe, settings);
    };
    let given = subscribe.incarnation;
    if given != 0 && given < present.incarnation {
        return Err(calls::stale(given, present.incarnation));
    }
    if given > present.incarnation {
        let fault = format!("is {given}, the latest is {}", present.incarnation);
        return Err(Rejection::field("incarnation", fault));
    }
    let incarnation = if given == 0 {
        present.incarnation.saturating_add(1)
    } else {
        given
    };
    Ok(Subscription {
        subscribe,
        framework: present.id,
        incarnation,
        known: true,
        changes: incarnation != present.incarnation
            || present.away.is_some()
            || present.settings != settings,
        settings,
    })
}

/// The name is free. After a teardown its incarnations go on above the old ones, so that a
/// forgotten process of the old framework cannot pass for the new one's.
fn first_subscription<'a>(
    state: &State,
    subscribe: &'a Subscribe,
    settings: FrameworkSettings,
) -> Result<Subscription<'a>, Rejection> {
    let before = state
        .tombstones
        .values()
        .filter(|old| old.principal == subscribe.principal && old.name == subscribe.name)
        .max_by_key(|old| old.incarnation);
    if subscribe.incarnation != 0 {
        return Err(before.map_or_else(
            || {
                Rejection::new(
                    Code::NotFound,
                    format!(
                        "no framework '{}' of principal '{}' is known; subscribe with \
                         incarnation 0",
                        subscribe.name, subscribe.principal
                    ),
                )
            },
            calls::torn_down,
        ));
    }
    let id = subscribe.framework;
    if state.frameworks.contains_key(&id) || state.tombstones.contains_key(&id) {
        return Err(Rejection::field("framework", format!("id {id} is in use")));
    }
    if state.frameworks.len() >= FRAMEWORKS {
        return Err(Rejection::new(
            Code::Busy,
            format!("there are {FRAMEWORKS} frameworks, no more are permitted; tear some down"),
        ));
    }
    Ok(Subscription {
        subscribe,
        settings,
        framework: id,
        incarnation: before.map_or(0, |old| old.incarnation).saturating_add(1),
        known: false,
        changes: true,
    })
}

impl Subscription<'_> {
    fn verdict(&self) -> Verdict {
        Verdict::Subscribed {
            framework: self.framework,
            incarnation: self.incarnation,
            known: self.known,
        }
    }
}

impl Plan for Subscription<'_> {
    fn preview(&self) -> Preview {
        preview_of(self.changes, &self.verdict())
    }

    fn write(self, state: &mut State, turn: &mut Turn) -> Verdict {
        let verdict = self.verdict();
        if !self.changes {
            return verdict;
        }
        let subscribe = self.subscribe;
        if !state.frameworks.contains_key(&self.framework) {
            let new = Framework {
                id: self.framework,
                principal: subscribe.principal.clone(),
                name: subscribe.name.clone(),
                incarnation: self.incarnation,
                settings: FrameworkSettings::default(),
                subscribed: turn.at,
                away: None,
                demand_version: 0,
                answered: 0,
                revision: turn.revision,
            };
            state.frameworks.insert(self.framework, new);
        }
        let Some(framework) = state.frameworks.get_mut(&self.framework) else {
            return verdict;
        };
        framework.away = None;
        if framework.incarnation != self.incarnation {
            framework.incarnation = self.incarnation;
            framework.answered = 0;
            state.calls.remove(&self.framework);
            turn.owe(Effect::Fence {
                framework: self.framework,
                incarnation: self.incarnation,
            });
        }
        let key = (subscribe.principal.clone(), subscribe.name.clone());
        state.by_name.insert(key, self.framework);
        put_settings(state, turn, self.framework, self.settings);
        verdict
    }
}

/// New settings for a framework.
#[derive(Debug)]
pub(crate) struct Settle {
    framework: FrameworkId,
    settings: FrameworkSettings,
    changes: bool,
}

pub(crate) fn update(
    state: &State,
    framework: FrameworkId,
    given: &FrameworkSettings,
) -> Result<Settle, Rejection> {
    let present = calls::find(state, framework)?;
    let settings = settings(state, Faults::default(), given)?;
    Ok(Settle {
        framework,
        changes: present.settings != settings,
        settings,
    })
}

pub(crate) fn suppress(
    state: &State,
    framework: FrameworkId,
    roles: &[RolePath],
    suppressed: bool,
) -> Result<Settle, Rejection> {
    let (suppress, revive): (&[RolePath], &[RolePath]) = if suppressed {
        (roles, &[])
    } else {
        (&[], roles)
    };
    if !roles.is_empty() {
        return flag(state, framework, suppress, revive, ["roles", "roles"]);
    }
    let all = calls::find(state, framework)?.settings.roles.clone();
    if suppressed {
        flag(state, framework, &all, &[], ["roles", "roles"])
    } else {
        flag(state, framework, &[], &all, ["roles", "roles"])
    }
}

pub(crate) fn suppress_by_operator(
    state: &State,
    framework: FrameworkId,
    suppress: &[RolePath],
    revive: &[RolePath],
    actor: &str,
) -> Result<Settle, Rejection> {
    let mut faults = Faults::default();
    faults.words("actor", actor);
    if let Some(at) = revive.iter().position(|role| suppress.contains(role)) {
        faults.add(format!("revive[{at}]"), "is suppressed by the same call");
    }
    faults.result()?;
    flag(state, framework, suppress, revive, ["suppress", "revive"])
}

/// The same settings with some roles suppressed and some revived.
fn flag(
    state: &State,
    framework: FrameworkId,
    suppress: &[RolePath],
    revive: &[RolePath],
    fields: [&str; 2],
) -> Result<Settle, Rejection> {
    let present = calls::find(state, framework)?;
    let mut faults = Faults::default();
    for (field, roles) in fields.into_iter().zip([suppress, revive]) {
        for (at, role) in roles.iter().enumerate() {
            if !present.settings.roles.contains(role) {
                let fault = format!("framework '{}' does not hold '{role}'", present.name);
                faults.add(format!("{field}[{at}]"), fault);
            }
        }
    }
    faults.result()?;
    let mut settings = present.settings.clone();
    settings.suppressed.retain(|role| !revive.contains(role));
    settings.suppressed.extend(suppress.iter().cloned());
    settings.suppressed.sort();
    settings.suppressed.dedup();
    Ok(Settle {
        framework,
        changes: present.settings != settings,
        settings,
    })
}

impl Plan for Settle {
    fn preview(&self) -> Preview {
        preview_of(self.changes, &Verdict::Done)
    }

    fn write(self, state: &mut State, turn: &mut Turn) -> Verdict {
        if self.changes {
            put_settings(state, turn, self.framework, self.settings);
        }
        Verdict::Done
    }
}

/// A framework whose last stream has closed.
#[derive(Debug)]
pub(crate) struct Leave {
    framework: Option<FrameworkId>,
}

/// What is not known, older or away already is passed: nothing depends on it any more, and the
/// time away goes on from its beginning.
pub(crate) fn disconnect(
    state: &State,
    framework: FrameworkId,
    incarnation: u64,
) -> Result<Leave, Rejection> {
    let present = state.frameworks.get(&framework);
    let leaves =
        present.is_some_and(|known| known.incarnation == incarnation && known.away.is_none());
    Ok(Leave {
        framework: leaves.then_some(framework),
    })
}

impl Plan for Leave {
    fn preview(&self) -> Preview {
        preview_of(self.framework.is_some(), &Verdict::Done)
    }

    fn write(self, state: &mut State, turn: &mut Turn) -> Verdict {
        if let Some(id) = self.framework
            && let Some(framework) = state.frameworks.get_mut(&id)
        {
            framework.away = Some(turn.at);
            framework.revision = turn.revision;
            state.refresh_lapse(Lapse::Framework(id));
            turn.changed(Change::Framework(id));
        }
        Verdict::Done
    }
}

fn name(faults: &mut Faults, name: &str) {
    let length = name.chars().count();
    if length == 0 || length > LONGEST_FRAMEWORK_NAME || name.chars().any(char::is_control) {
        faults.add(
            "name",
            format!("1 to {LONGEST_FRAMEWORK_NAME} characters, no control characters"),
        );
    }
}

/// Checks settings and brings them into their one form: sorted, an endless timeout absent.
fn settings(
    state: &State,
    mut faults: Faults,
    given: &FrameworkSettings,
) -> Result<FrameworkSettings, Rejection> {
    faults.list("roles", given.roles.len(), ROLES_OF_A_FRAMEWORK);
    if given.roles.is_empty() {
        faults.add("roles", "at least one role is needed");
    }
    let mut settings = given.clone();
    settings.roles.sort();
    settings.roles.dedup();
    settings.suppressed.sort();
    settings.suppressed.dedup();
    for (at, role) in given.suppressed.iter().enumerate() {
        if settings.roles.binary_search(role).is_err() {
            let fault = format!("'{role}' is not among the roles");
            faults.add(format!("suppressed_roles[{at}]"), fault);
        }
    }
    faults.labels("labels", &given.labels);
    faults.text("service_address", &given.service_address, 512);
    faults.result()?;
    settings.failover_timeout = given.failover_timeout.filter(|timeout| *timeout <= NEVER);
    let unknown = settings
        .roles
        .iter()
        .find(|role| !state.roles.contains_key(*role));
    match unknown {
        Some(role) => Err(Rejection::new(
            Code::Denied,
            format!("role '{role}' does not exist; ask an operator to make it"),
        )),
        None => Ok(settings),
    }
}

/// Puts settings. Claims of roles that were left are withdrawn in the same commit; runs stay and
/// stay charged.
fn put_settings(state: &mut State, turn: &mut Turn, id: FrameworkId, settings: FrameworkSettings) {
    let Some(framework) = state.frameworks.get_mut(&id) else {
        return;
    };
    framework.settings = settings;
    framework.revision = turn.revision;
    turn.changed(Change::Framework(id));
    if let Some(claims) = state.claims.get_mut(&id) {
        let roles = &framework.settings.roles;
        let left = |record: &&ClaimRecord| roles.binary_search(&record.claim.role).is_err();
        let left = claims.values().filter(left);
        let left: Vec<ClaimId> = left.map(|record| record.claim.id.clone()).collect();
        for claim in left {
            claims.remove(&claim);
            turn.changed(Change::Claim(id, claim));
        }
        if claims.is_empty() {
            state.claims.remove(&id);
        }
    }
    state.refresh_lapse(Lapse::Framework(id));
}
