//! Claims: a shape, how many of it, and its place in the role's order.

use std::collections::BTreeSet;

use mete_model::Claim;

use super::faults::{At, Faults};
use super::ids::{read_claim_id, read_role};
use super::quantity::{read_count, read_span, write_span};
use super::shape::{read_shape, write_shape};
use super::text::read_labels;
use crate::types::v1 as wire;

/// Claims of one framework, and so of one call.
pub const MOST_CLAIMS: usize = 10_000;

/// Tasks of one claim.
pub const MOST_MEMBERS: u32 = 100_000;

/// Reads a claim.
pub fn read_claim(claim: wire::Claim, at: At<'_>, faults: &mut Faults) -> Option<Claim> {
    let id = read_claim_id(&claim.id, at.field("id"), faults);
    let role = read_role(&claim.role, at.field("role"), faults);
    let shape = read_shape(claim.shape, at.field("shape"), faults);
    let count = read_count(claim.count, 1, MOST_MEMBERS, at.field("count"), faults);
    let labels = read_labels(claim.labels, at.field("labels"), faults);
    let runtime = at.field("expected_runtime_ms");
    let expected_runtime = read_span(claim.expected_runtime_ms, runtime, faults);
    Some(Claim {
        id: id?,
        role: role?,
        shape: shape?,
        count: count?,
        priority: claim.priority,
        labels: labels?,
        expected_runtime: expected_runtime?,
    })
}

/// Reads the claims of one call: each id at most once, at most [`MOST_CLAIMS`].
pub fn read_claims(
    claims: Vec<wire::Claim>,
    at: At<'_>,
    faults: &mut Faults,
) -> Option<Vec<Claim>> {
    let count = claims.len();
    if count > MOST_CLAIMS {
        faults.add(
            at,
            format_args!("{count} claims are more than the {MOST_CLAIMS} permitted"),
        );
        return None;
    }
    let mut read = Vec::with_capacity(count);
    let mut seen = BTreeSet::new();
    for (index, claim) in claims.into_iter().enumerate() {
        let here = at.index(index);
        let Some(claim) = read_claim(claim, here, faults) else {
            continue;
        };
        if seen.insert(claim.id.clone()) {
            read.push(claim);
        } else {
            faults.add(
                here.field("id"),
                format_args!("claim {} is put twice", claim.id),
            );
        }
    }
    (read.len() == count).then_some(read)
}

/// Writes a claim.
#[must_use]
pub fn write_claim(claim: &Claim) -> wire::Claim {
    wire::Claim {
        id: claim.id.as_str().to_owned(),
        role: claim.role.as_str().to_owned(),
        shape: Some(write_shape(&claim.shape)),
        count: claim.count,
        priority: claim.priority,
        labels: claim.labels.clone(),
        expected_runtime_ms: write_span(claim.expected_runtime),
    }
}
