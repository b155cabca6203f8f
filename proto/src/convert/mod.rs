//! Wire to model and back.
//!
//! Called by everything that speaks gRPC, in both directions. To the wire (`write_…`) nothing can
//! fail. From the wire (`read_…`) a conversion either succeeds or has noted **every** wrong field
//! in [`Faults`], with its path and what is permitted: nothing is silently dropped, rounded or cut.
//! An unknown enum value that would decide something is a fault; where it decides nothing it is
//! tolerated.
//!
//! Readers have the shape `read_claim(wire, at, faults) -> Option<Claim>`; [`whole`] turns one into
//! a `Result`. They do not ask whether a thing exists or who may do what: others decide that.

pub mod claim;
pub mod device;
pub mod faults;
pub mod ids;
pub mod inventory;
pub mod offer;
pub mod quantity;
pub mod resources;
pub mod shape;
pub mod status;
pub mod task;
pub mod text;

pub use claim::{read_claim, read_claims, write_claim};
pub use device::{read_device, read_share, read_want, write_device, write_share, write_want};
pub use faults::{At, Fault, Faults, MOST_FAULTS, whole};
pub use ids::{
    read_agent, read_claim_id, read_framework, read_offer_id, read_role, read_roles, read_run,
    read_run_ref, write_offer_id, write_run, write_run_ref,
};
pub use inventory::{read_enforcement, read_inventory, write_enforcement, write_inventory};
pub use offer::write_offer;
pub use quantity::{read_amount, read_count, read_span};
pub use resources::{read_resources, write_resources};
pub use shape::{read_shape, write_shape};
pub use status::{
    read_exit, read_phase, read_source, read_status, read_usage, write_exit, write_phase,
    write_status, write_usage,
};
pub use task::{read_spec, write_spec};
pub use text::{read_labels, read_text};
