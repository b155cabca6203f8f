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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
