//! What frameworks want: shapes, claims, and the versioned set of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::device::ClassPath;
use crate::ids::{ClaimId, RolePath};
use crate::quantity::{Bytes, MilliCpu};
use crate::time::Span;

/// What a claim asks of one class of devices.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DeviceWant {
    /// A class, or an ancestor of the classes that will do.
    pub class: ClassPath,
    /// How many devices, at least 1.
    pub count: u32,
    /// Thousandths of each, 1 to 1000; below 1000 only with count 1.
    pub milli: u32,
}

/// What one task of a claim needs.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Shape {
    /// Shared CPU; zero when `cores` is set.
    pub cpu: MilliCpu,
    /// Memory.
    pub memory: Bytes,
    /// Disk.
    pub disk: Bytes,
    /// Exclusive logical CPUs.
    pub cores: u32,
    /// Devices, sorted by class, each class once.
    pub devices: Vec<DeviceWant>,
}

impl Shape {
    /// All CPU that the shape withdraws: shared, and 1000 for each exclusive core.
    #[must_use]
    pub fn cpu_in_all(&self) -> MilliCpu {
        MilliCpu(u64::from(self.cores).saturating_mul(1000)).saturating_add(self.cpu)
    }

    /// Asks for nothing at all.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}

/// Waiting demand: a shape, how many of it, and its place in the role's order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Claim {
    /// The framework's own name for it.
    pub id: ClaimId,
    /// The role that is charged.
    pub role: RolePath,
    /// What one task needs.
    pub shape: Shape,
    /// Tasks in all; launches count against it for ever.
    pub count: u32,
    /// Order inside the role, higher first.
    pub priority: i32,
    /// Shown and searched, never interpreted.
    pub labels: BTreeMap<String, String>,
    /// How long one task is expected to run.
    pub expected_runtime: Option<Span>,
}

/// A change of a framework's set of claims.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Demand {
    /// Rises with each change.
    pub version: u64,
    /// Claims put or changed.
    pub upsert: Vec<Claim>,
    /// Claims withdrawn.
    pub remove: Vec<ClaimId>,
}

/// A hash of a set of claims as declared: equal sets give equal hashes, in whatever order they
/// come. Broker and SDK compare theirs in each heartbeat, so it is fixed for ever: the wrapping
/// sum of one FNV-1a (64 bits) for each claim over its fields in the order of the struct, numbers
/// as little-endian, texts and lists with their length in front, an absent span as its maximum.
#[must_use]
pub fn hash_of<'a>(claims: impl IntoIterator<Item = &'a Claim>) -> u64 {
    claims
        .into_iter()
        .map(hash_of_claim)
        .fold(0, u64::wrapping_add)
}

fn hash_of_claim(claim: &Claim) -> u64 {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut bytes = |bytes: &[u8]| {
        for byte in bytes {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    let mut text = |text: &str| {
        bytes(&length(text.len()));
        bytes(text.as_bytes());
    };
    text(claim.id.as_str());
    text(claim.role.as_str());
    let shape = &claim.shape;
    bytes(&shape.cpu.0.to_le_bytes());
    bytes(&shape.memory.0.to_le_bytes());
    bytes(&shape.disk.0.to_le_bytes());
    bytes(&shape.cores.to_le_bytes());
    bytes(&length(shape.devices.len()));
    for want in &shape.devices {
        bytes(&length(want.class.as_str().len()));
        bytes(want.class.as_str().as_bytes());
        bytes(&want.count.to_le_bytes());
        bytes(&want.milli.to_le_bytes());
    }
    bytes(&claim.count.to_le_bytes());
    bytes(&claim.priority.to_le_bytes());
    bytes(&length(claim.labels.len()));
    for part in claim.labels.iter().flat_map(|(name, value)| [name, value]) {
        bytes(&length(part.len()));
        bytes(part.as_bytes());
    }
    let runtime = claim.expected_runtime.map_or(u64::MAX, |span| span.0);
    bytes(&runtime.to_le_bytes());
    hash
}

fn length(length: usize) -> [u8; 8] {
    u64::try_from(length).unwrap_or(u64::MAX).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(id: &str, count: u32) -> Claim {
        Claim {
            id: ClaimId::new(id).expect("an id"),
            role: RolePath::new("batch").expect("a role"),
            shape: Shape {
                cpu: MilliCpu(500),
                ..Shape::default()
            },
            count,
            priority: -1,
            labels: BTreeMap::new(),
            expected_runtime: None,
        }
    }

    #[test]
    fn the_hash_of_claims_knows_content_and_not_order() {
        let (a, b) = (claim("a", 1), claim("b", 2));
        assert_eq!(hash_of([&a, &b]), hash_of([&b, &a]));
        assert_ne!(hash_of([&a, &b]), hash_of([&a]));
        assert_ne!(hash_of([&claim("a", 1)]), hash_of([&claim("a", 2)]));
        assert_eq!(hash_of([]), 0);
        // Fixed for ever: an SDK of another release computes it too.
        assert_eq!(hash_of([&a]), 5_643_407_497_798_175_184);
    }
}
