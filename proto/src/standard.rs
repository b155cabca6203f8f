//! What every gRPC server of mete serves beside its own services: health, and reflection in the two
//! forms that clients ask for.

use tonic::service::RoutesBuilder;

/// Name of the health service.
const HEALTH: &str = "grpc.health.v1.Health";

/// Adds both. `services` are the full names of the server's own ones
/// (`mete.node.v1.NodeService`): reflection lists what is served here and nothing else.
///
/// # Errors
/// The descriptors, built with the program, cannot be read; health is served all the same.
pub fn add(routes: &mut RoutesBuilder, services: &[&str]) -> Result<(), String> {
    let (_, health) = tonic_health::server::health_reporter();
    routes.add_service(health);
    let builder = || {
        let mut builder = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(crate::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .with_service_name(HEALTH);
        for service in services {
            builder = builder.with_service_name(*service);
        }
        builder
    };
    let v1 = builder().build_v1().map_err(|error| error.to_string())?;
    let v1alpha = builder()
        .build_v1alpha()
        .map_err(|error| error.to_string())?;
    routes.add_service(v1).add_service(v1alpha);
    Ok(())
}
