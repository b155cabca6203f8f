//! Offers, as frameworks get them.

use mete_model::{Inventory, Offer, Timestamp};

use super::ids::write_offer_id;
use super::inventory::write_enforcement;
use super::resources::write_resources;
use crate::framework::v1 as wire;

/// Writes an offer; `node` and `inventory` are those of its agent, `now` is what is left of its
/// life counted from.
#[must_use]
pub fn write_offer(
    offer: &Offer,
    node: &str,
    inventory: &Inventory,
    now: Timestamp,
) -> wire::Offer {
    wire::Offer {
        id: Some(write_offer_id(offer.id)),
        role: offer.role.as_str().to_owned(),
        claim: offer
            .claim
            .as_ref()
            .map(|claim| claim.as_str().to_owned())
            .unwrap_or_default(),
        slots: offer.slots,
        agent_id: offer.agent.to_string(),
        node: node.to_owned(),
        topology_epoch: offer.topology_epoch,
        resources: Some(write_resources(&offer.resources)),
        labels: inventory.labels.clone(),
        expires_in_ms: offer.expires.since(now).0,
        enforcement: write_enforcement(&inventory.enforcement),
        node_address: inventory.node_address.clone(),
    }
}
