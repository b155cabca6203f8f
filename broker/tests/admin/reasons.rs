//! Rows and reasons of what frameworks want and run.

use mete_proto::admin::v1 as admin;
use mete_proto::admin::v1::object::Object as Row;
use mete_proto::explain::v1 as explain;
use mete_proto::framework::v1 as framework;
use mete_proto::framework::v1::framework_service_client::FrameworkServiceClient;
use mete_proto::types::v1 as types;

use crate::world::{Master, claim, eventually, join, reason, subscribe};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn why_is_never_empty_and_carries_the_failing_number() {
    let master = Master::start().await;
    master.set_role("ml").await;
    let _agent = join(&master, "n07", 4000).await;
    let header = subscribe(&master, "batch", "ml").await;
    claim(&master, &header, "big", 9000).await;

    let why = eventually("INFEASIBLE", || async {
        let why = master
            .why(explain::Subject::Claim, "batch/big", true)
            .await
            .unwrap();
        (why.reasons[0].code == "INFEASIBLE").then_some(why)
    })
    .await;
    let amount = &why.reasons[0].amounts[0];
    assert_eq!(
        (amount.want, amount.have, amount.short_by),
        (9000, 4000, 5000)
    );
    assert!(
        why.reasons[0].detail.contains("9 cpu"),
        "{}",
        why.reasons[0].detail
    );
    assert_eq!(why.nodes_total, 1);
    assert_eq!(why.nodes[0].nodes, ["n07"]);
    assert!(
        why.helps
            .iter()
            .any(|help| help.who == "change" && !help.command.is_empty())
    );

    let job = master
        .why(explain::Subject::Job, "train-41", false)
        .await
        .unwrap();
    assert_eq!(job.reasons[0].code, "INFEASIBLE");
    assert!(job.title.contains("3 of 3 waiting"), "{}", job.title);
    for (subject, name) in [
        (explain::Subject::Framework, "batch"),
        (explain::Subject::Role, "ml"),
        (explain::Subject::Node, "n07"),
    ] {
        let why = master.why(subject, name, false).await.unwrap();
        assert!(
            !why.reasons.is_empty() && !why.reasons[0].detail.is_empty(),
            "{why:?}"
        );
        assert!(!why.title.is_empty(), "{why:?}");
    }
    let status = master
        .why(explain::Subject::Job, "nothing", false)
        .await
        .unwrap_err();
    assert_eq!(reason(&status), "NOT_FOUND");

    let rows = master
        .list(admin::Kind::Claim, admin::Filter::default())
        .await;
    let Some(Row::Claim(row)) = &rows[0].object else {
        panic!("not a claim: {rows:?}");
    };
    assert_eq!(
        (row.framework.as_str(), row.reason.as_str()),
        ("batch", "INFEASIBLE")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_launched_task_is_listed_watched_explained_and_killed_by_an_operator() {
    let master = Master::start().await;
    master.set_role("ml").await;
    let _agent = join(&master, "n07", 4000).await;
    let header = subscribe(&master, "batch", "ml").await;
    claim(&master, &header, "fits", 1000).await;
    let offer = eventually("an offer", || async {
        let rows = master
            .list(admin::Kind::Offer, admin::Filter::default())
            .await;
        rows.into_iter().find_map(|row| match row.object {
            Some(Row::Offer(offer)) => Some(offer),
            _ => None,
        })
    })
    .await;
    assert_eq!((offer.node.as_str(), offer.claim.as_str()), ("n07", "fits"));

    let id: mete_model::OfferId = offer.id.parse().unwrap();
    let accept = framework::AcceptRequest {
        header: Some(header.clone()),
        offers: vec![mete_proto::convert::write_offer_id(id)],
        launches: vec![framework::Launch {
            run: Some(types::Run {
                task: "t".to_owned(),
                attempt: 1,
            }),
            claim: "fits".to_owned(),
            resources: Some(types::Resources {
                cpu_milli: 1000,
                ..types::Resources::default()
            }),
            ..framework::Launch::default()
        }],
        specs: vec![types::TaskSpec {
            command: vec!["true".to_owned()],
            ..types::TaskSpec::default()
        }],
        ..framework::AcceptRequest::default()
    };
    let before = master.set_role("marker").await;
    let mut client = FrameworkServiceClient::new(master.channel.clone());
    let accepted = client.accept(accept).await.unwrap().into_inner();
    assert_eq!(accepted.launches[0].verdict.as_ref().unwrap().code, "OK");

    let filter = admin::Filter {
        name: "t".to_owned(),
        states: vec!["staging".to_owned()],
        node: "n07".to_owned(),
        ..admin::Filter::default()
    };
    let rows = master.list(admin::Kind::Task, filter).await;
    let Some(Row::Task(task)) = &rows[0].object else {
        panic!("not a task: {rows:?}");
    };
    assert_eq!(
        (rows.len(), task.claim.as_str(), task.role.as_str()),
        (1, "fits", "ml")
    );
    assert_eq!(rows[0].revision, accepted.revision);
    let none = admin::Filter {
        states: vec!["running".to_owned()],
        ..admin::Filter::default()
    };
    assert!(master.list(admin::Kind::Task, none).await.is_empty());

    let why = master
        .why(explain::Subject::Task, "batch/t", false)
        .await
        .unwrap();
    assert!(why.title.contains("batch/t#1  staging"), "{}", why.title);

    let kill = admin::KillTasksRequest {
        runs: vec![
            types::RunRef {
                framework_id: header.framework_id.clone(),
                run: task.run.clone(),
            },
            types::RunRef {
                framework_id: header.framework_id.clone(),
                run: Some(types::Run {
                    task: "unknown".to_owned(),
                    attempt: 1,
                }),
            },
        ],
        reason: "maintenance".to_owned(),
        ..admin::KillTasksRequest::default()
    };
    let killed = master.admin().kill_tasks(kill).await.unwrap().into_inner();
    let codes: Vec<&str> = killed
        .runs
        .iter()
        .map(|verdict| verdict.code.as_str())
        .collect();
    assert_eq!(codes, ["OK", "NOT_FOUND"]);

    let told = master.events(before).await;
    let kinds: Vec<&str> = told.iter().map(|event| event.kind.as_str()).collect();
    assert!(kinds.contains(&"task_launched"), "{kinds:?}");
    let kill = told
        .iter()
        .find(|event| event.kind == "task_kill_asked")
        .unwrap();
    assert!(kill.message.contains("maintenance"), "{}", kill.message);
    assert_eq!(kill.object, "batch/t#1");

    let status = master
        .admin()
        .get_status(admin::GetStatusRequest::default())
        .await
        .unwrap();
    let status = status.into_inner();
    assert_eq!((status.nodes["ready"], status.frameworks_connected), (1, 1));
    assert_eq!(status.tasks.values().sum::<u64>(), 1);
    assert_eq!(status.total.unwrap().cpu_milli, 4000);
    let raft = master
        .admin()
        .get_raft(admin::GetRaftRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(raft.masters[0].role, "leader");
}
