//! Several masters on real directories and ports: they elect, replicate, hand over, grow, shrink.
#![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mete_broker::config::{Config, Storage};
use mete_broker::error::RunError;
use mete_broker::server::{self, Listeners, run};
use mete_model::Code;
use mete_proto::admin::v1 as admin;
use mete_proto::admin::v1::admin_service_client::AdminServiceClient;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};
use tonic_types::StatusExt;
use uuid::Uuid;

/// Longest time that anything here may take.
const DEADLINE: Duration = Duration::from_secs(60);

type Admin = AdminServiceClient<Channel>;

/// A master's process, as far as it can be had inside one.
struct Running {
    address: String,
    admin: Admin,
    end: oneshot::Sender<()>,
    ended: JoinHandle<Result<(), RunError>>,
}

struct World {
    dir: tempfile::TempDir,
    running: BTreeMap<u64, Running>,
    addresses: BTreeMap<u64, String>,
    cluster: Uuid,
}

/// Small limits, so that a few hundred commands see snapshots and trims.
fn config(path: PathBuf) -> Config {
    let mut config = Config::single(Storage::Directory { path, found: false });
    config.founders = Vec::new();
    config.replica.snapshot_entries = 60;
    config.replica.tail_entries = 10;
    config.replica.trim_entries = 10;
    config
}

async fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

impl World {
    /// Founds a cluster of `nodes` and starts all of them.
    async fn found(nodes: &[u64]) -> Self {
        let mut world = Self {
            dir: tempfile::tempdir().unwrap(),
            running: BTreeMap::new(),
            addresses: BTreeMap::new(),
            cluster: Uuid::from_u128(7),
        };
        let mut listeners = Vec::new();
        for node in nodes {
            let (bound, address) = listener().await;
            world.addresses.insert(*node, address);
            listeners.push((*node, bound));
        }
        for node in nodes {
            let mut config = config(world.path(*node));
            config.node = *node;
            config.founders = nodes.to_vec();
            config.masters = world.addresses.clone();
            server::found(&config, Some(world.cluster)).unwrap();
        }
        for (node, bound) in listeners {
            world.start_on(node, bound).await;
        }
        world
    }

    fn path(&self, node: u64) -> PathBuf {
        self.dir.path().join(format!("m{node}"))
    }

    async fn start_on(&mut self, node: u64, listener: TcpListener) {
        let address = listener.local_addr().unwrap().to_string();
        let (end, stop) = oneshot::channel::<()>();
        let listeners = Listeners {
            grpc: vec![listener],
        };
        let ended = tokio::spawn(run(config(self.path(node)), listeners, async {
            let _ = stop.await;
        }));
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        let admin = Admin::new(endpoint.connect_lazy());
        self.addresses.insert(node, address.clone());
        let running = Running {
            address,
            admin,
            end,
            ended,
        };
        self.running.insert(node, running);
    }

    /// Starts a master again where it was.
    async fn start(&mut self, node: u64) {
        let address = self.addresses[&node].clone();
        let listener = until("the port is free again", || async {
            TcpListener::bind(&address).await.ok()
        });
        self.start_on(node, listener.await).await;
    }

    async fn stop(&mut self, node: u64) -> Result<(), RunError> {
        let running = self.running.remove(&node).unwrap();
        let _ = running.end.send(());
        let ended = tokio::time::timeout(DEADLINE, running.ended).await;
        ended.unwrap().unwrap()
    }

    async fn raft(&self, node: u64) -> Option<admin::GetRaftResponse> {
        let mut admin = self.running.get(&node)?.admin.clone();
        let answer = admin.get_raft(admin::GetRaftRequest {}).await.ok()?;
        Some(answer.into_inner())
    }

    /// The node that leads, as it says itself.
    async fn leader(&self) -> u64 {
        until("a leader", || async {
            for node in self.running.keys() {
                let raft = self.raft(*node).await;
                if raft.is_some_and(|raft| raft.leader == *node) {
                    return Some(*node);
                }
            }
            None
        })
        .await
    }

    async fn set_role(&self, path: &str) {
        until("the role is set", || async {
            let leader = self.leader().await;
            let request = admin::SetRoleRequest {
                path: path.to_owned(),
                ..admin::SetRoleRequest::default()
            };
            let mut admin = self.running[&leader].admin.clone();
            admin.set_role(request).await.ok()
        })
        .await;
    }

    /// Waits until what a master shows of its own replica is as `wanted` says.
    async fn see(&self, node: u64, what: &str, wanted: impl Fn(&admin::GetRaftResponse) -> bool) {
        until(what, || async {
            let raft = self.raft(node).await?;
            wanted(&raft).then_some(())
        })
        .await;
    }

    async fn roles(&self, node: u64) -> Vec<String> {
        let mut admin = self.running[&node].admin.clone();
        let request = admin::ListRequest {
            kind: admin::Kind::Role.into(),
            local: true,
            ..admin::ListRequest::default()
        };
        let listed = admin.list(request).await.unwrap().into_inner();
        let objects = listed.objects.into_iter().filter_map(|row| row.object);
        let mut roles = Vec::new();
        for object in objects {
            if let admin::object::Object::Role(role) = object {
                roles.push(role.path);
            }
        }
        roles
    }

    async fn end(mut self) {
        for node in self.running.keys().copied().collect::<Vec<_>>() {
            self.stop(node).await.unwrap();
        }
    }
}

async fn until<T, F: Future<Output = Option<T>>>(what: &str, look: impl Fn() -> F) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(begun.elapsed() < DEADLINE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn voters(raft: &admin::GetRaftResponse) -> Vec<u64> {
    let voters = raft.masters.iter().filter(|master| master.voter);
    voters.map(|master| master.id).collect()
}

fn join(world: &World, node: u64) -> PathBuf {
    let path = world.path(node);
    server::join(Path::new(&path), world.cluster, node).unwrap();
    path
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_masters_elect_replicate_redirect_and_hand_over_when_one_ends() {
    let mut world = World::found(&[1, 2, 3]).await;
    let first = world.leader().await;
    world.set_role("eng/one").await;
    let follower = *world.running.keys().find(|node| **node != first).unwrap();

    // A follower names the leader, and has what was written.
    let mut admin = world.running[&follower].admin.clone();
    let request = admin::SetRoleRequest {
        path: "eng/never".to_owned(),
        ..admin::SetRoleRequest::default()
    };
    let refused = admin.set_role(request).await.unwrap_err();
    let info = refused.get_details_error_info().unwrap();
    assert_eq!(info.reason, "NOT_LEADER");
    let leader_address = &world.running[&first].address;
    assert_eq!(&info.metadata["leader_address"], leader_address);
    until("the follower has it", || async {
        let roles = world.roles(follower).await;
        roles.contains(&"eng/one".to_owned()).then_some(())
    })
    .await;
    world
        .see(first, "all answer", |raft| {
            raft.answering == 3 && raft.masters.iter().all(|master| master.lag == 0)
        })
        .await;

    // A leader that ends gives the office away first: nobody waits for an election.
    world.stop(first).await.unwrap();
    let second = world.leader().await;
    assert_ne!(second, first);
    world.set_role("eng/two").await;
    world.start(first).await;
    until("the old leader has caught up", || async {
        let roles = world.roles(first).await;
        roles.contains(&"eng/two".to_owned()).then_some(())
    })
    .await;
    let mut admin = world.running[&second].admin.clone();
    let moved = admin::TransferLeadershipRequest {
        to: first,
        dry_run: false,
    };
    until("it may lead again", || async {
        admin.clone().transfer_leadership(moved).await.ok()
    })
    .await;
    world
        .see(first, "it leads", |raft| raft.leader == first)
        .await;
    let unknown = admin::TransferLeadershipRequest {
        to: 77,
        dry_run: false,
    };
    admin = world.running[&first].admin.clone();
    let refused = until("a leader refuses", || async {
        let refused = admin.clone().transfer_leadership(unknown).await.err()?;
        let reason = refused.get_details_error_info()?.reason;
        (reason != "NOT_LEADER").then_some(reason)
    });
    assert_eq!(refused.await, "NOT_FOUND");
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_grows_from_one_to_three_by_snapshots_and_lets_its_first_master_go() {
    let mut world = World::found(&[1]).await;
    for number in 0..200 {
        world.set_role(&format!("eng/r{number}")).await;
    }
    for node in [2, 3] {
        let (bound, address) = listener().await;
        let request = admin::AddMasterRequest {
            address: address.clone(),
            ..admin::AddMasterRequest::default()
        };
        let mut admin = world.running[&1].admin.clone();
        let added = admin
            .add_master(request.clone())
            .await
            .unwrap()
            .into_inner();
        assert_eq!(added.id, node);
        assert_eq!(added.cluster_id, world.cluster.to_string());
        // The same once more is the same master.
        let again = admin.add_master(request).await.unwrap().into_inner();
        assert_eq!(again.id, node);
        join(&world, node);
        world.start_on(node, bound).await;
        world
            .see(1, "it has its vote", |raft| voters(raft).contains(&node))
            .await;
    }
    assert_eq!(world.roles(3).await.len(), 200);

    // The first one leads, and goes: it hands over, is taken out, and ends by itself.
    let request = admin::RemoveMasterRequest {
        id: 1,
        dry_run: false,
    };
    let mut admin = world.running[&1].admin.clone();
    admin.remove_master(request).await.unwrap();
    let gone = world.running.remove(&1).unwrap();
    let ended = tokio::time::timeout(DEADLINE, gone.ended).await.unwrap();
    let error = ended.unwrap().unwrap_err();
    assert_eq!(error.code, Code::MasterRemoved, "{error}");
    world.set_role("eng/after").await;
    let leader = world.leader().await;
    world
        .see(leader, "two are left", |raft| {
            voters(raft) == [2, 3] && raft.masters.len() == 2
        })
        .await;

    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_whose_disk_is_lost_is_replaced_in_one_step_under_a_new_id() {
    let mut world = World::found(&[1, 2, 3]).await;
    let leader = world.leader().await;
    let lost = *world.running.keys().find(|node| **node != leader).unwrap();
    world.stop(lost).await.unwrap();
    for number in 0..100 {
        world.set_role(&format!("eng/r{number}")).await;
    }

    // With one of three silent neither of the others may go.
    let leader = world.leader().await;
    let admin = world.running[&leader].admin.clone();
    let request = admin::RemoveMasterRequest {
        id: leader,
        dry_run: true,
    };
    let reason = until("it is missed", || async {
        let refused = admin.clone().remove_master(request).await.err()?;
        Some(refused.get_details_error_info()?.reason)
    });
    assert_eq!(reason.await, "QUORUM_LOSS");
    // Nor is its number given to whoever comes with its address and an empty disk.
    let request = admin::AddMasterRequest {
        address: world.addresses[&lost].clone(),
        ..admin::AddMasterRequest::default()
    };
    let refused = admin.clone().add_master(request).await.unwrap_err();
    assert_eq!(refused.get_details_error_info().unwrap().reason, "IN_USE");
    let (bound, address) = listener().await;
    let request = admin::AddMasterRequest {
        address,
        replaces: lost,
        ..admin::AddMasterRequest::default()
    };
    let mut admin = world.running[&leader].admin.clone();
    let added = admin.add_master(request).await.unwrap().into_inner();
    join(&world, added.id);
    world.start_on(added.id, bound).await;
    world
        .see(
            leader,
            "the new one votes and the lost one is gone",
            |raft| {
                let voters = voters(raft);
                let gone = raft.masters.iter().all(|master| master.id != lost);
                voters.contains(&added.id) && voters.len() == 3 && gone
            },
        )
        .await;

    // The lost one comes back after all: it is told, and ends.
    world.start(lost).await;
    let back = world.running.remove(&lost).unwrap();
    let ended = tokio::time::timeout(DEADLINE, back.ended).await.unwrap();
    assert_eq!(ended.unwrap().unwrap_err().code, Code::MasterRemoved);
    world.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_has_moved_is_found_without_a_leader() {
    let mut world = World::found(&[1, 2, 3]).await;
    let leader = world.leader().await;
    world.set_role("eng/one").await;
    let moved = *world.running.keys().find(|node| **node != leader).unwrap();

    // Two are left, one of them elsewhere: nobody leads who could record where.
    world.stop(moved).await.unwrap();
    world.stop(leader).await.unwrap();
    let (bound, _) = listener().await;
    world.start_on(moved, bound).await;
    let heir = world.leader().await;
    world.set_role("eng/two").await;
    world
        .see(heir, "both are heard", |raft| raft.answering == 2)
        .await;
    world.end().await;
}
