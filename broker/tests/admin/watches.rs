//! Watches: nothing missed, nothing repeated.

use std::collections::{BTreeMap, BTreeSet};

use mete_proto::admin::v1 as admin;
use mete_proto::admin::v1::object::Object as Row;
use mete_proto::framework::v1 as framework;
use mete_proto::framework::v1::framework_service_client::FrameworkServiceClient;
use tokio_stream::StreamExt;

use crate::world::{DEADLINE, Master, role_of};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_and_a_watch_from_its_revision_miss_nothing_and_repeat_nothing() {
    let master = Master::start().await;
    master.set_role("a").await;
    let request = admin::ListRequest {
        kind: admin::Kind::Role.into(),
        ..admin::ListRequest::default()
    };
    let list = master.admin().list(request).await.unwrap().into_inner();
    assert!(list.objects.iter().any(|object| role_of(object) == "a"));
    let request = admin::WatchRequest {
        kinds: vec![admin::Kind::Role.into()],
        from_revision: Some(list.revision),
        ..admin::WatchRequest::default()
    };
    let mut watch = master.admin().watch(request).await.unwrap().into_inner();

    let mut wanted = BTreeSet::new();
    for number in 0..20 {
        wanted.insert(format!("b/{number}"));
        master.set_role(&format!("b/{number}")).await;
    }
    let remove = admin::RemoveRoleRequest {
        path: "a".to_owned(),
        dry_run: false,
    };
    master.admin().remove_role(remove).await.unwrap();

    let mut put = Vec::new();
    let mut removed = Vec::new();
    let mut revision = list.revision;
    while removed.is_empty() {
        let next = tokio::time::timeout(DEADLINE, watch.next()).await;
        let message = next.expect("in time").unwrap().unwrap();
        assert!(message.revision >= revision, "revisions never fall");
        revision = message.revision;
        put.extend(message.put.iter().map(role_of).filter(|path| path != "b"));
        removed.extend(message.removed.into_iter().map(|key| key.key));
    }
    assert_eq!(removed, ["a"]);
    assert_eq!(put.len(), wanted.len(), "each once: {put:?}");
    assert_eq!(put.into_iter().collect::<BTreeSet<_>>(), wanted);
}

/// What a reader that lists once and then only watches knows.
#[derive(Default)]
struct Mirror {
    rows: BTreeMap<String, admin::Object>,
    seen: BTreeSet<(String, u64)>,
}

impl Mirror {
    fn take(&mut self, message: admin::WatchResponse) {
        for row in message.put {
            let path = role_of(&row);
            let new = self.seen.insert((path.clone(), row.revision));
            assert!(new, "role {path} came twice at revision {}", row.revision);
            self.rows.insert(path, row);
        }
        for key in message.removed {
            self.rows.remove(&key.key);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mirror_kept_by_a_watch_equals_the_list_after_many_concurrent_changes() {
    let master = Master::start().await;
    let request = admin::WatchRequest {
        kinds: vec![admin::Kind::Role.into()],
        from_revision: Some(0),
        ..admin::WatchRequest::default()
    };
    let mut watch = master.admin().watch(request).await.unwrap().into_inner();
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..4_u32 {
        let mut client = master.admin();
        writers.spawn(async move {
            let mut last = 0;
            for number in 0..60_u32 {
                let path = format!("w{writer}-{}", number % 7);
                let revision = if number % 5 == 4 {
                    let request = admin::RemoveRoleRequest {
                        path,
                        dry_run: false,
                    };
                    client
                        .remove_role(request)
                        .await
                        .map(|answer| answer.into_inner().revision)
                } else {
                    let request = admin::SetRoleRequest {
                        path,
                        weight_milli: Some(number + 1),
                        dry_run: false,
                    };
                    client
                        .set_role(request)
                        .await
                        .map(|answer| answer.into_inner().revision)
                };
                last = last.max(revision.unwrap_or(0));
            }
            last
        });
    }
    let mut mirror = Mirror::default();
    let mut revision = 0;
    let mut wanted = None;
    let mut open = 4;
    let mut last = 0;
    let deadline = tokio::time::sleep(DEADLINE);
    tokio::pin!(deadline);
    while wanted.is_none_or(|wanted| revision < wanted) {
        tokio::select! {
            message = watch.next() => {
                let message = message.unwrap().unwrap();
                revision = message.revision;
                mirror.take(message);
            }
            Some(done) = writers.join_next(), if open > 0 => {
                last = last.max(done.unwrap());
                open -= 1;
                if open == 0 {
                    wanted = Some(last);
                }
            }
            () = &mut deadline => panic!("revision {last} has not come, {revision} has"),
        }
    }
    let list = master
        .list(admin::Kind::Role, admin::Filter::default())
        .await;
    let list: BTreeMap<String, admin::Object> = list
        .into_iter()
        .map(|row| (role_of(&row), without_offered(row)))
        .collect();
    assert!(list.len() > 10, "{list:?}");
    assert_eq!(mirror.rows, list);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_no_longer_matches_a_watch_is_sent_as_removed() {
    let master = Master::start().await;
    master.set_role("ml").await;
    let request = admin::WatchRequest {
        kinds: vec![admin::Kind::Framework.into()],
        filter: Some(admin::Filter {
            states: vec!["connected".to_owned()],
            ..admin::Filter::default()
        }),
        from_revision: Some(0),
    };
    let mut watch = master.admin().watch(request).await.unwrap().into_inner();
    let subscribe = framework::SubscribeRequest {
        name: "batch".to_owned(),
        roles: vec!["ml".to_owned()],
        ..framework::SubscribeRequest::default()
    };
    let mut client = FrameworkServiceClient::new(master.channel.clone());
    let stream = client.subscribe(subscribe).await.unwrap().into_inner();
    let put = tokio::time::timeout(DEADLINE, watch.next())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    let Some(Row::Framework(row)) = &put.put[0].object else {
        panic!("not a framework: {put:?}");
    };
    assert_eq!(row.state, "connected");

    drop(stream);

    let gone = tokio::time::timeout(DEADLINE, async {
        loop {
            let message = watch.next().await.unwrap().unwrap();
            if let Some(key) = message.removed.first() {
                return key.key.clone();
            }
        }
    });
    assert_eq!(gone.await.unwrap(), row.id);
}

/// What is offered is the leader's to know: lists show it, watches do not.
fn without_offered(mut object: admin::Object) -> admin::Object {
    if let Some(Row::Role(role)) = &mut object.object {
        role.offered = None;
    }
    object
}
