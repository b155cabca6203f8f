//! An offer: resources of one agent for one role, until it expires. A hint, never a promise.

use serde::{Deserialize, Serialize};

use crate::ids::{AgentId, ClaimId, FrameworkId, OfferId, RolePath};
use crate::resources::Resources;
use crate::time::Timestamp;

/// An outstanding offer, as the leader's book and the SDK have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Of the leader's term.
    pub id: OfferId,
    /// Who may accept it.
    pub framework: FrameworkId,
    /// Who is charged.
    pub role: RolePath,
    /// The claim it was carved for; `None` for a plain offer.
    pub claim: Option<ClaimId>,
    /// How many tasks of the claim's shape it carries; 0 for a plain offer.
    pub slots: u32,
    /// Where.
    pub agent: AgentId,
    /// The agent's topology when it was made.
    pub topology_epoch: u64,
    /// What, by name.
    pub resources: Resources,
    /// When it was made.
    pub made: Timestamp,
    /// When it lapses.
    pub expires: Timestamp,
}
