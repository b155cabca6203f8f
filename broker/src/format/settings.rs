//! What a framework says about itself, as stored.

use mete_proto::convert::{At, Faults};
use mete_proto::internal::v1 as stored;
use mete_state::command::FrameworkSettings;

use super::read::{given, put_roles, put_span, roles, span};

pub(super) fn put_settings(settings: &FrameworkSettings) -> Option<stored::StoredSettings> {
    Some(stored::StoredSettings {
        roles: put_roles(&settings.roles),
        suppressed: put_roles(&settings.suppressed),
        failover_timeout_ms: put_span(settings.failover_timeout),
        plain_offers: settings.plain_offers,
        labels: settings.labels.clone(),
        service_address: settings.service_address.clone(),
    })
}

pub(super) fn read_settings(
    settings: Option<stored::StoredSettings>,
    at: At<'_>,
    faults: &mut Faults,
) -> Option<FrameworkSettings> {
    let settings = given(settings, at, faults)?;
    Some(FrameworkSettings {
        roles: roles(settings.roles, at.field("roles"), faults)?,
        suppressed: roles(settings.suppressed, at.field("suppressed"), faults)?,
        failover_timeout: span(settings.failover_timeout_ms),
        plain_offers: settings.plain_offers,
        labels: settings.labels,
        service_address: settings.service_address,
    })
}
