//! Every gRPC server of a cluster, as a tool meets it that knows nothing of mete.

#![expect(
    clippy::indexing_slicing,
    reason = "a missing field must fail the story"
)]

mod support;

use serde_json::Value;
use support::Site;

/// Names of the services that a server lists to a tool which asks for reflection.
async fn reflected(channel: tonic::transport::Channel) -> Vec<String> {
    use tonic_reflection::pb::v1::ServerReflectionRequest;
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut client = ServerReflectionClient::new(channel);
    let answers = client
        .server_reflection_info(tokio_stream::iter([request]))
        .await;
    let answer = answers.expect("reflection").into_inner().message().await;
    let answer = answer.expect("an answer").expect("one answer");
    match answer.message_response {
        Some(MessageResponse::ListServicesResponse(list)) => list
            .service
            .into_iter()
            .map(|service| service.name)
            .collect(),
        other => panic!("no list of services: {other:?}"),
    }
}

#[tokio::test]
async fn every_server_tells_any_tool_what_it_serves_and_that_it_does() {
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_client::HealthClient;
    let site = tokio::task::spawn_blocking(|| Site::dev(&[])).await;
    let site = site.expect("a cluster");
    let node = site.json(&["node", "show", "n1"]).one()["node_address"].clone();
    let batch = site.json(&["framework", "list"]).items()[0]["service_address"].clone();
    let text = |value: &Value| value.as_str().expect("an address").to_owned();
    for (address, service) in [
        (site.address().to_owned(), "mete.admin.v1.AdminService"),
        (text(&node), "mete.node.v1.NodeService"),
        (text(&batch), "mete.batch.v1.BatchService"),
    ] {
        let channel = tonic::transport::Endpoint::from_shared(format!("http://{address}"));
        let channel = channel.expect("an address").connect().await;
        let channel = channel.expect("a connection");
        let health = HealthClient::new(channel.clone())
            .check(HealthCheckRequest::default())
            .await;
        assert_eq!(health.expect("health").into_inner().status, 1, "{service}");
        let services = reflected(channel).await;
        for wanted in [service, "grpc.health.v1.Health"] {
            assert!(services.iter().any(|name| name == wanted), "{services:?}");
        }
        // What it does not serve it does not list.
        let foreign = match service {
            "mete.node.v1.NodeService" => "mete.admin.v1.AdminService",
            _ => "mete.node.v1.NodeService",
        };
        assert!(!services.iter().any(|name| name == foreign), "{services:?}");
    }
    refusals_of_the_node_api(&text(&node)).await;
}

async fn refusals_of_the_node_api(address: &str) {
    use mete_proto::node::v1::LogsRequest;
    use mete_proto::node::v1::node_service_client::NodeServiceClient;
    use mete_proto::types::v1::{Run, RunRef};
    use tonic_types::StatusExt;
    let node = NodeServiceClient::connect(format!("http://{address}")).await;
    let mut node = node.expect("a connection");
    let known = LogsRequest {
        run: Some(RunRef {
            framework_id: "00000000-0000-0000-0000-000000000001".to_owned(),
            run: Some(Run {
                task: "nobody".to_owned(),
                attempt: 1,
            }),
        }),
        ..LogsRequest::default()
    };
    let refused = [
        (LogsRequest::default(), "INVALID", "run"),
        (
            LogsRequest {
                stream: 9,
                ..known.clone()
            },
            "INVALID",
            "stream",
        ),
        (
            LogsRequest {
                resume: vec![1, 2, 3].into(),
                ..known.clone()
            },
            "INVALID",
            "resume",
        ),
        (known, "NOT_FOUND", ""),
    ];
    for (request, code, field) in refused {
        let status = node.logs(request).await.expect_err("refused");
        let info = status.get_details_error_info().expect("a reason");
        assert_eq!(info.reason, code, "{status:?}");
        let fields = status
            .get_details_bad_request()
            .map(|request| request.field_violations)
            .unwrap_or_default();
        let named = fields
            .iter()
            .any(|violation| violation.field.starts_with(field));
        assert!(field.is_empty() || named, "{field} in {fields:?}");
    }
}
