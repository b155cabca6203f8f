//! Demand: versioned claims. Declaring again is harmless; launches count against a claim for ever.

use std::collections::BTreeSet;

use mete_model::{Claim, ClaimId, Code, FrameworkId};

use super::validate::Faults;
use super::{Plan, Turn, calls, preview_of};
use crate::effect::{Change, Verdict};
use crate::limits::{CLAIMS_OF_A_FRAMEWORK, ITEMS_OF_A_CALL};
use crate::record::ClaimRecord;
use crate::rejection::Rejection;
use crate::state::{Preview, State};

/// A change of demand.
#[derive(Debug)]
pub(crate) struct Update<'a> {
    framework: FrameworkId,
    version: u64,
    /// Only those that differ from what is declared, in their one form.
    puts: Vec<Claim>,
    remove: &'a [ClaimId],
    changes: bool,
}

/// A version that was used before passes only if it would change nothing; with other content it
/// is `STALE_DEMAND` like a lower one, since the way out is the same: send a newer version.
pub(crate) fn update<'a>(
    state: &State,
    framework: FrameworkId,
    version: u64,
    upsert: &[Claim],
    remove: &'a [ClaimId],
) -> Result<Update<'a>, Rejection> {
    let known = calls::find(state, framework)?;
    let mut faults = Faults::default();
    faults.list("upsert", upsert.len(), CLAIMS_OF_A_FRAMEWORK);
    faults.list("remove", remove.len(), ITEMS_OF_A_CALL);
    let mut named: BTreeSet<&ClaimId> = BTreeSet::new();
    for (at, claim) in upsert.iter().enumerate() {
        let field = format!("upsert[{at}]");
        if !named.insert(&claim.id) {
            faults.add(format!("{field}.id"), "each claim once");
        }
        if known.settings.roles.binary_search(&claim.role).is_err() {
            let fault = format!("framework '{}' does not hold '{}'", known.name, claim.role);
            faults.add(format!("{field}.role"), fault);
        }
        faults.claim(&field, claim);
    }
    for (at, id) in remove.iter().enumerate() {
        if named.contains(id) {
            faults.add(format!("remove[{at}]"), "is put by the same call");
        }
    }
    faults.result()?;
    if version < known.demand_version {
        return Err(stale(version, known.demand_version, "is older than"));
    }
    let puts: Vec<Claim> = upsert
        .iter()
        .map(one_form)
        .filter(|claim| {
            let present = state.claim(framework, &claim.id);
            present.is_none_or(|present| present.claim != *claim)
        })
        .collect();
    let removes = remove.iter().any(|id| state.claim(framework, id).is_some());
    let differs = !puts.is_empty() || removes;
    if differs && version == known.demand_version {
        return Err(stale(
            version,
            known.demand_version,
            "has other content than",
        ));
    }
    limit(state, framework, &puts, remove)?;
    Ok(Update {
        framework,
        version,
        puts,
        remove,
        changes: version != known.demand_version,
    })
}

fn stale(version: u64, stored: u64, how: &str) -> Rejection {
    Rejection::new(
        Code::StaleDemand,
        format!("demand version {version} {how} the stored version {stored}; send a newer one"),
    )
}

fn limit(
    state: &State,
    framework: FrameworkId,
    puts: &[Claim],
    remove: &[ClaimId],
) -> Result<(), Rejection> {
    let present = state.claims.get(&framework);
    let known = |id: &ClaimId| present.is_some_and(|claims| claims.contains_key(id));
    let gone: BTreeSet<&ClaimId> = remove.iter().filter(|id| known(id)).collect();
    let new = puts.iter().filter(|claim| !known(&claim.id)).count();
    let after = present
        .map_or(0, crate::cow_map::CowMap::len)
        .saturating_add(new)
        .saturating_sub(gone.len());
    if after > CLAIMS_OF_A_FRAMEWORK {
        return Err(Rejection::field(
            "upsert",
            format!(
                "there would be {after} claims, at most {CLAIMS_OF_A_FRAMEWORK} are permitted; \
                 remove some, or put tasks of one shape into one claim"
            ),
        ));
    }
    Ok(())
}

/// Device wants in the order of their classes, so that equal claims are equal values.
fn one_form(claim: &Claim) -> Claim {
    let mut claim = claim.clone();
    claim.shape.devices.sort();
    claim
}

impl Plan for Update<'_> {
    fn preview(&self) -> Preview {
        preview_of(self.changes, &Verdict::Done)
    }

    fn write(self, state: &mut State, turn: &mut Turn) -> Verdict {
        let id = self.framework;
        let Some(framework) = state.frameworks.get_mut(&id).filter(|_| self.changes) else {
            return Verdict::Done;
        };
        framework.demand_version = self.version;
        framework.revision = turn.revision;
        turn.changed(Change::Framework(id));
        let roles = &framework.settings.roles;
        let claims = state.claims.entry(id).or_default();
        for gone in self.remove {
            if claims.remove(gone).is_some() {
                turn.changed(Change::Claim(id, gone.clone()));
            }
        }
        for mut claim in self.puts {
            turn.changed(Change::Claim(id, claim.id.clone()));
            // One copy of the role's text for all that name it.
            if let Ok(at) = roles.binary_search(&claim.role)
                && let Some(role) = roles.get(at)
            {
                claim.role = role.clone();
            }
            match claims.get_mut(&claim.id) {
                Some(record) => {
                    claim.id = record.claim.id.clone();
                    record.claim = claim;
                    record.revision = turn.revision;
                }
                None => {
                    claims.insert(
                        claim.id.clone(),
                        ClaimRecord {
                            framework: id,
                            claim,
                            launched: 0,
                            submitted: turn.at,
                            declared: turn.revision,
                            revision: turn.revision,
                        },
                    );
                }
            }
        }
        if claims.is_empty() {
            state.claims.remove(&id);
        }
        Verdict::Done
    }
}
