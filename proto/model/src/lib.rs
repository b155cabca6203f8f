//! The words mete speaks, and their arithmetic.
//!
//! Every crate knows this one; it knows none. Values only: no clock, no randomness, no I/O, no
//! floating point, no decisions beyond "does this shape fit these resources" ([`mod@fit`]), which
//! has to be one answer everywhere: allocator, SDK packing and `mete why` call the same function.

#![deny(clippy::arithmetic_side_effects, clippy::float_arithmetic)]
#![forbid(unsafe_code)]

pub mod cpu_set;
pub mod demand;
pub mod device;
pub mod fit;
pub mod fraction;
pub mod ids;
pub mod offer;
pub mod partition;
pub mod quantity;
pub mod quota;
pub mod reason;
pub mod resources;
pub mod task;
pub mod text;
pub mod time;

pub use cpu_set::CpuSet;
pub use demand::{Claim, Demand, DeviceWant, Shape};
pub use device::{ClassPath, Device, DeviceId, DeviceShare};
pub use fit::{Miss, fit};
pub use ids::{
    AgentId, ClaimId, ClusterId, FrameworkId, GrantId, NodeKey, OfferId, RolePath, RunId, TaskId,
};
pub use offer::Offer;
pub use partition::{Keep, Partition};
pub use quantity::{Bytes, DeviceMilli, MilliCpu};
pub use reason::Code;
pub use resources::{Enforcement, Inventory, Resources};
pub use task::{Exit, Status, StatusSource, TaskPhase, TaskSpec, Usage};
pub use time::{Span, Timestamp};
