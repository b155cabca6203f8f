//! Three masters of one site, each a process, and what each of them says when it is asked directly.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use mete_proto::admin::v1 as admin;
use mete_proto::admin::v1::admin_service_client::AdminServiceClient;
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};

use super::framework::runtime;
use super::relay::Relay;
use super::{Site, free_port, holds, until};

/// The masters that found the cluster.
pub(crate) const MASTERS: [u64; 3] = [1, 2, 3];

/// How long one master may take to say something.
const ANSWER: Duration = Duration::from_millis(2_500);

/// A site with three masters.
#[derive(Debug)]
pub(crate) struct Trio {
    /// Everything else of it.
    pub(crate) site: Site,
    /// The way to the masters, if there is one in between.
    pub(crate) relay: Option<Relay>,
    /// Where each listens.
    pub(crate) listens: BTreeMap<u64, String>,
    /// Where each is dialled.
    pub(crate) dialled: BTreeMap<u64, String>,
    /// The cluster's id.
    pub(crate) cluster: String,
    asking: Runtime,
}

/// What is asked of one master, past any relay.
pub(crate) fn ask<T>(
    asking: &Runtime,
    address: &str,
    call: impl AsyncFnOnce(Admin) -> Result<tonic::Response<T>, tonic::Status>,
) -> Result<T, tonic::Status> {
    asking.block_on(async {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).expect("an address");
        let channel = endpoint.connect_timeout(ANSWER).connect_lazy();
        let answer = tokio::time::timeout(ANSWER, call(AdminServiceClient::new(channel))).await;
        let answer = answer.map_err(|_| tonic::Status::deadline_exceeded("no answer in time"))?;
        Ok(answer?.into_inner())
    })
}

impl Trio {
    /// Founds a cluster of three and starts it; with a relay in between if wanted.
    pub(crate) fn start(with_relay: bool) -> Self {
        let mut trio = Self::found(with_relay);
        for master in MASTERS {
            trio.start_master(master);
        }
        trio.wait_for_leader();
        for role in ["batch", "service", "dev"] {
            trio.site.mete(&["quota", "set", role]).done();
        }
        trio
    }

    /// Founds it; nothing runs.
    pub(crate) fn found(with_relay: bool) -> Self {
        let mut site = Site::new();
        let relay = with_relay.then(|| Relay::new(site.root()));
        let listens: BTreeMap<u64, String> = MASTERS
            .map(|master| (master, format!("127.0.0.1:{}", free_port())))
            .into();
        let dialled: BTreeMap<u64, String> = listens
            .iter()
            .map(|(master, listens)| {
                let dialled = match &relay {
                    Some(relay) => relay.carry(&format!("m{master}"), free_port(), listens),
                    None => listens.clone(),
                };
                (*master, dialled)
            })
            .collect();
        let all = dialled.values().cloned().collect::<Vec<_>>().join(",");
        let mut cluster = String::new();
        for master in MASTERS {
            let (state, node) = (site.arg(&format!("m{master}")), master.to_string());
            let mut flags = vec!["master", "init", "--state-dir", &state, "--masters", &all];
            flags.extend(["--node", &node]);
            if !cluster.is_empty() {
                flags.extend(["--cluster", &cluster]);
            }
            let founded = site.json(&flags);
            founded.one()["cluster_id"]
                .as_str()
                .expect("an id")
                .clone_into(&mut cluster);
        }
        site.set_address(&all);
        Self {
            site,
            relay,
            listens,
            dialled,
            cluster,
            asking: runtime(),
        }
    }

    /// The way in between.
    pub(crate) fn relay(&self) -> &Relay {
        self.relay.as_ref().expect("this site has a relay")
    }

    /// Starts a master for the first time.
    pub(crate) fn start_master(&mut self, master: u64) {
        let name = format!("m{master}");
        let state = self.site.arg(&name);
        let (listen, advertise) = (self.listens[&master].clone(), self.dialled[&master].clone());
        let flags = [
            "master",
            "start",
            "--state-dir",
            &state,
            "--listen",
            &listen,
        ];
        let rest = ["--advertise", &advertise];
        self.site.spawn(&name, &[&flags[..], &rest].concat());
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self, master: u64) {
        self.site.kill(&format!("m{master}"));
    }

    /// Starts a killed master again.
    pub(crate) fn restart(&mut self, master: u64) {
        self.site.restart(&format!("m{master}"));
    }

    /// What a master says of the log.
    pub(crate) fn raft(&self, master: u64) -> Option<admin::GetRaftResponse> {
        let call = async |mut admin: AdminServiceClient<Channel>| {
            admin.get_raft(admin::GetRaftRequest {}).await
        };
        ask(&self.asking, self.listens.get(&master)?, call).ok()
    }

    /// The state of the cluster as a master says it: the present, or what it has.
    pub(crate) fn status(
        &self,
        master: u64,
        local: bool,
    ) -> Result<admin::GetStatusResponse, tonic::Status> {
        let request = admin::GetStatusRequest { local };
        let call = async |mut admin: AdminServiceClient<Channel>| admin.get_status(request).await;
        ask(&self.asking, &self.listens[&master], call)
    }

    /// The roles as a master lists them.
    pub(crate) fn roles(&self, master: u64, local: bool) -> Result<Vec<String>, tonic::Status> {
        let request = admin::ListRequest {
            kind: admin::Kind::Role.into(),
            local,
            ..admin::ListRequest::default()
        };
        let call = async |mut admin: AdminServiceClient<Channel>| admin.list(request).await;
        let listed = ask(&self.asking, &self.listens[&master], call)?;
        let rows = listed.objects.into_iter().filter_map(|row| row.object);
        Ok(rows
            .filter_map(|row| {
                let admin::object::Object::Role(role) = row else {
                    return None;
                };
                Some(role.path)
            })
            .collect())
    }

    /// Sets a role at this master; true when that was acknowledged.
    pub(crate) fn set_role(&self, master: u64, path: &str) -> Result<(), tonic::Status> {
        let request = admin::SetRoleRequest {
            path: path.to_owned(),
            ..admin::SetRoleRequest::default()
        };
        let call = async |mut admin: AdminServiceClient<Channel>| admin.set_role(request).await;
        ask(&self.asking, &self.listens[&master], call).map(|_| ())
    }

    /// Asks this master to take one out.
    pub(crate) fn remove(&self, master: u64, id: u64) -> Result<(), tonic::Status> {
        let request = admin::RemoveMasterRequest { id, dry_run: false };
        let call =
            async |mut admin: AdminServiceClient<Channel>| admin.remove_master(request).await;
        ask(&self.asking, &self.listens[&master], call).map(|_| ())
    }

    /// Asks this master to give the leadership to another one.
    pub(crate) fn transfer(&self, master: u64, to: u64) -> Result<(), tonic::Status> {
        let request = admin::TransferLeadershipRequest {
            to,
            ..admin::TransferLeadershipRequest::default()
        };
        let call =
            async |mut admin: AdminServiceClient<Channel>| admin.transfer_leadership(request).await;
        ask(&self.asking, &self.listens[&master], call).map(|_| ())
    }

    /// Kills the leader and asks both others at once, with their number and that of the dead one.
    /// Gives their answers, once none of them sends on to the dead one: that may be named until the
    /// end of its connection is seen.
    pub(crate) fn ask_during_an_election<T: Send>(
        &mut self,
        call: impl Fn(&Self, u64, u64) -> Result<T, tonic::Status> + Sync,
    ) -> (u64, Vec<Result<T, tonic::Status>>) {
        let dead = self.wait_for_leader();
        self.kill(dead);
        let (trio, named) = (&*self, &self.listens[&dead]);
        let ask = |follower: u64| {
            until("the dead one to be named no more", || {
                let answer = call(trio, follower, dead);
                let said = answer
                    .as_ref()
                    .err()
                    .map_or("", |refused| refused.message());
                if said.contains(named.as_str()) {
                    return Err(said.to_owned());
                }
                Ok(answer)
            })
        };
        let answers = std::thread::scope(|scope| {
            let others = MASTERS.into_iter().filter(|master| *master != dead);
            let asked: Vec<_> = others
                .map(|follower| scope.spawn(move || ask(follower)))
                .collect();
            let answers = asked.into_iter().map(|asked| asked.join());
            answers.map(|answer| answer.expect("an answer")).collect()
        });
        (dead, answers)
    }

    /// Who leads, by its own word; a master that came for another one goes by that one's place.
    pub(crate) fn leader(&self) -> Option<u64> {
        let said = MASTERS
            .into_iter()
            .filter_map(|master| Some((master, self.raft(master)?)));
        let leads = said.filter(|(_, raft)| raft.leader == raft.answered_by && raft.leader != 0);
        leads
            .max_by_key(|(_, raft)| raft.term)
            .map(|(master, _)| master)
    }

    /// Waits until one of them leads.
    pub(crate) fn wait_for_leader(&self) -> u64 {
        self.wait_for_leader_but(0)
    }

    /// Waits until another one than this leads.
    pub(crate) fn wait_for_leader_but(&self, old: u64) -> u64 {
        until(&format!("a leader other than m{old}"), || {
            let leader = self.leader();
            let leader = leader.filter(|leader| *leader != old);
            leader.ok_or_else(|| "nobody leads".to_owned())
        })
    }

    /// Waits until a master has applied what the leader has now.
    pub(crate) fn wait_until_caught_up(&self, master: u64) {
        let leader = self.wait_for_leader();
        let wanted = until("the leader's word", || {
            self.raft(leader).ok_or_else(|| "no answer".to_owned())
        });
        let wanted = wanted.applied_index;
        until(&format!("m{master} to have entry {wanted}"), || {
            let has = self.raft(master).map(|raft| raft.applied_index);
            holds(has >= Some(wanted), || format!("{has:?}"))
        });
    }
}

/// Looks at all masters from outside, again and again, and ends the story at the first thing that
/// must not be.
#[derive(Debug)]
pub(crate) struct Checker {
    over: Arc<AtomicBool>,
    looks: JoinHandle<Result<Looked, String>>,
}

/// How often what was looked at.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Looked {
    /// Answers of masters that lead.
    pub(crate) present: u64,
    /// Answers of any master from what it had.
    pub(crate) local: u64,
    /// Lists of tasks beside lists of nodes.
    pub(crate) ledgers: u64,
}

#[derive(Debug, Default)]
struct Seen {
    /// The newest revision that any leader has answered with: later answers must not be older.
    present: u64,
    /// What each master has answered with from its own state, in one life.
    local: BTreeMap<u64, u64>,
}

impl Checker {
    /// Begins to look.
    pub(crate) fn start(trio: &Trio) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let (listens, ends) = (trio.listens.clone(), Arc::clone(&over));
        let looks = std::thread::spawn(move || {
            let asking = runtime();
            let (mut seen, mut looked) = (Seen::default(), Looked::default());
            while !ends.load(Ordering::SeqCst) {
                for (master, address) in &listens {
                    look(&asking, *master, address, &mut seen, &mut looked)?;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            Ok(looked)
        });
        Self { over, looks }
    }

    /// Ends it; what it saw must have been right, and it must have seen something.
    pub(crate) fn end(self) -> Looked {
        self.over.store(true, Ordering::SeqCst);
        let looked = self.looks.join().expect("it does not panic");
        let looked = looked.unwrap_or_else(|wrong| panic!("seen from outside: {wrong}"));
        eprintln!("checked from outside: {looked:?}");
        assert!(looked.present > 0 && looked.local > 0 && looked.ledgers > 0);
        looked
    }
}

type Admin = AdminServiceClient<Channel>;

fn look(
    asking: &Runtime,
    master: u64,
    address: &str,
    seen: &mut Seen,
    looked: &mut Looked,
) -> Result<(), String> {
    let status = |local| {
        let request = admin::GetStatusRequest { local };
        ask(asking, address, async move |mut admin: Admin| {
            admin.get_status(request).await
        })
    };
    match status(true) {
        Ok(status) => {
            looked.local += 1;
            let last = seen.local.entry(master).or_default();
            if status.revision < *last {
                let now = status.revision;
                return Err(format!("m{master} went back from revision {last} to {now}"));
            }
            *last = status.revision;
        }
        // It may be a process that has been started again, and then begins with what it has flushed
        // and knows to be agreed upon.
        Err(_gone) => drop(seen.local.remove(&master)),
    }
    if let Ok(status) = status(false) {
        looked.present += 1;
        if status.revision < seen.present {
            return Err(format!(
                "m{master} answered with revision {} after {} had been answered",
                status.revision, seen.present
            ));
        }
        seen.present = status.revision;
        look_at_ledger(asking, address, looked)?;
    }
    Ok(())
}

/// Tasks that are not over hold what no other holds, and no more than their nodes have.
fn look_at_ledger(asking: &Runtime, address: &str, looked: &mut Looked) -> Result<(), String> {
    let list = |kind: admin::Kind, states: &[&str]| {
        let states = states.iter().map(|state| (*state).to_owned()).collect();
        let request = admin::ListRequest {
            kind: kind.into(),
            filter: Some(admin::Filter {
                states,
                ..admin::Filter::default()
            }),
            ..admin::ListRequest::default()
        };
        ask(asking, address, async move |mut admin: Admin| {
            admin.list(request).await
        })
    };
    // One page is read at one revision; more than one page would mix several.
    let (Ok(nodes), Ok(tasks)) = (
        list(admin::Kind::Node, &[]),
        list(
            admin::Kind::Task,
            &["staging", "starting", "running", "finishing"],
        ),
    ) else {
        return Ok(());
    };
    if !tasks.next_page_token.is_empty() {
        return Ok(());
    }
    looked.ledgers += 1;
    let mut whole: BTreeMap<String, u64> = BTreeMap::new();
    for row in nodes.objects {
        if let Some(admin::object::Object::Node(node)) = row.object {
            let total = node.total.map_or(0, |total| total.cpu_milli);
            whole.insert(node.agent_id, total);
        }
    }
    let mut held: BTreeMap<String, u64> = BTreeMap::new();
    let mut cores: BTreeMap<(String, u32), String> = BTreeMap::new();
    for row in tasks.objects {
        let Some(admin::object::Object::Task(task)) = row.object else {
            continue;
        };
        let Some(resources) = task.resources else {
            continue;
        };
        let name = format!("{:?}", task.run);
        *held.entry(task.agent_id.clone()).or_default() += resources.cpu_milli;
        for core in named(&resources.cores) {
            let place = (task.agent_id.clone(), core);
            if let Some(other) = cores.insert(place.clone(), name.clone()) {
                return Err(format!("{place:?} is held by {other} and by {name}"));
            }
        }
    }
    for (agent, held) in held {
        let whole = whole.get(&agent).copied().unwrap_or(0);
        if held > whole {
            return Err(format!("tasks hold {held} milli-CPU of {whole} of {agent}"));
        }
    }
    Ok(())
}

/// The logical CPUs of a text such as `0-3,8`.
fn named(cores: &str) -> Vec<u32> {
    let number = |text: &str| text.parse::<u32>().expect("a core's number");
    let parts = cores.split(',').filter(|part| !part.is_empty());
    parts
        .flat_map(|part| match part.split_once('-') {
            Some((first, last)) => number(first)..=number(last),
            None => number(part)..=number(part),
        })
        .collect()
}
