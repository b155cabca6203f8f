//! What operators read and change, through real gRPC on a port of its own.
#![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod reasons;
mod watches;
mod world;

use mete_proto::admin::v1 as admin;
use mete_proto::events::v1 as events;
use mete_proto::explain::v1 as explain;
use mete_proto::types::v1 as types;
use tonic::Request;

use world::{Master, fields, reason, role_of};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_together_are_the_whole_list_and_a_token_belongs_to_its_list() {
    let master = Master::start().await;
    for number in 0..25 {
        master.set_role(&format!("team-{number:02}")).await;
    }
    let mut found = Vec::new();
    let mut request = admin::ListRequest {
        kind: admin::Kind::Role.into(),
        filter: Some(admin::Filter {
            name: "team-".to_owned(),
            ..admin::Filter::default()
        }),
        page_size: 10,
        ..admin::ListRequest::default()
    };
    let mut pages = 0;
    loop {
        let page = master
            .admin()
            .list(request.clone())
            .await
            .unwrap()
            .into_inner();
        assert!(page.objects.len() <= 10);
        found.extend(page.objects.iter().map(role_of));
        pages += 1;
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            break;
        }
        let elsewhere = admin::ListRequest {
            kind: admin::Kind::Node.into(),
            ..request.clone()
        };
        let status = master.admin().list(elsewhere).await.unwrap_err();
        assert_eq!(fields(&status), ["page_token"]);
    }
    assert_eq!(pages, 3);
    let wanted: Vec<String> = (0..25).map(|number| format!("team-{number:02}")).collect();
    assert_eq!(found, wanted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_requests_name_every_wrong_field() {
    let master = Master::start().await;
    let request = admin::ListRequest {
        kind: 99,
        page_token: "zz".to_owned(),
        page_size: 10_001,
        ..admin::ListRequest::default()
    };
    let status = master.admin().list(request).await.unwrap_err();
    assert_eq!(reason(&status), "INVALID");
    assert_eq!(fields(&status), ["kind", "page_token", "page_size"]);

    let request = admin::WatchRequest {
        kinds: vec![1, 6, 0],
        ..admin::WatchRequest::default()
    };
    let status = master.admin().watch(request).await.unwrap_err();
    assert_eq!(fields(&status), ["kinds[1]", "kinds[2]"]);

    let request = admin::KillTasksRequest {
        runs: vec![types::RunRef {
            framework_id: "x".to_owned(),
            run: Some(types::Run {
                task: String::new(),
                attempt: 0,
            }),
        }],
        grace_ms: Some(u64::MAX),
        ..admin::KillTasksRequest::default()
    };
    let status = master.admin().kill_tasks(request).await.unwrap_err();
    let wanted = [
        "runs[0].framework_id",
        "runs[0].run.task",
        "runs[0].run.attempt",
        "grace_ms",
    ];
    assert_eq!(fields(&status), wanted);

    let status = master
        .why(explain::Subject::Unspecified, "", false)
        .await
        .unwrap_err();
    assert_eq!(fields(&status), ["subject", "name"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prefix_finds_the_only_one_and_several_are_listed() {
    let master = Master::start().await;
    master.set_role("alpha").await;
    master.set_role("beta-1").await;
    master.set_role("beta-2").await;
    let get = |name: &str| {
        let request = admin::GetRequest {
            kind: admin::Kind::Role.into(),
            name: name.to_owned(),
        };
        let mut client = master.admin();
        async move { client.get(request).await }
    };
    let found = get("al").await.unwrap().into_inner().object.unwrap();
    assert_eq!(role_of(&found), "alpha");
    let status = get("beta").await.unwrap_err();
    assert_eq!(reason(&status), "AMBIGUOUS");
    assert!(
        status.message().contains("beta-1, beta-2"),
        "{}",
        status.message()
    );
    let status = get("gamma").await.unwrap_err();
    assert_eq!(
        (reason(&status).as_str(), status.code()),
        ("NOT_FOUND", tonic::Code::NotFound)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_say_what_happened_and_who_did_it_after_a_revision_only() {
    let master = Master::start().await;
    let first = master.set_role("one").await;
    let mut request = Request::new(admin::SetRoleRequest {
        path: "two".to_owned(),
        weight_milli: Some(2500),
        dry_run: false,
    });
    request
        .metadata_mut()
        .insert("mete-actor", "ada".parse().unwrap());
    master.admin().set_role(request).await.unwrap();
    let rehearsed = admin::SetRoleRequest {
        path: "three".to_owned(),
        dry_run: true,
        ..admin::SetRoleRequest::default()
    };
    master.admin().set_role(rehearsed).await.unwrap();

    let told = master.events(first).await;
    let told: Vec<&events::Event> = told
        .iter()
        .filter(|event| event.kind == "role_set")
        .collect();
    assert_eq!(
        told.len(),
        1,
        "not before the revision, not of a dry run: {told:?}"
    );
    assert_eq!(
        (told[0].object.as_str(), told[0].actor.as_str()),
        ("two", "ada")
    );
    assert_eq!(told[0].facts["weight_milli"], "2500");
    assert!(
        told[0].message.contains("weight 2.5"),
        "{}",
        told[0].message
    );
}
