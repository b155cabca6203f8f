//! What golden scripts and property tests share: small machines, small commands, and one step that
//! checks everything that must hold whatever the command is.

#![allow(
    dead_code,
    clippy::arithmetic_side_effects,
    reason = "each test binary uses its part; numbers in tests are small"
)]

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use mete_model::{
    AgentId, Bytes, Claim, ClaimId, ClassPath, Code, DeviceId, DeviceShare, DeviceWant,
    FrameworkId, Inventory, MilliCpu, NodeKey, Resources, RolePath, RunId, Shape, Status,
    StatusSource, TaskPhase, TaskSpec, Timestamp,
};
use mete_state::command::{AdmitAgent, FrameworkSettings, LaunchTask};
use mete_state::{
    Change, Command, Outcome, Preview, Records, Rejection, Stamped, State, invariants,
};
use uuid::Uuid;

/// Ids in tests: a letter for the kind, a number.
pub(crate) fn agent_id(number: u128) -> AgentId {
    AgentId(Uuid::from_u128(0xa000_0000 + number))
}

pub(crate) fn framework_id(number: u128) -> FrameworkId {
    FrameworkId(Uuid::from_u128(0xf000_0000 + number))
}

pub(crate) fn node_key(number: u128) -> NodeKey {
    NodeKey(Uuid::from_u128(0xe000_0000 + number))
}

pub(crate) fn role(path: &str) -> RolePath {
    RolePath::new(path).expect("a role path")
}

pub(crate) fn claim_id(id: &str) -> ClaimId {
    ClaimId::new(id).expect("a claim id")
}

pub(crate) fn run_id(text: &str) -> RunId {
    text.parse().expect("a run")
}

pub(crate) fn device(id: &str, milli: u32) -> DeviceShare {
    DeviceShare {
        id: DeviceId::new(id).expect("a device id"),
        class: ClassPath::new("gpu/t4").expect("a class"),
        milli,
    }
}

pub(crate) fn resources(
    cpu: u64,
    memory: u64,
    cores: &str,
    devices: Vec<DeviceShare>,
) -> Resources {
    Resources {
        cpu: MilliCpu(cpu),
        memory: Bytes(memory),
        disk: Bytes(0),
        cores: cores.parse().expect("cores"),
        devices,
    }
}

/// Four cores, 1000 bytes, two GPUs.
pub(crate) fn machine(boot: &str) -> Inventory {
    Inventory {
        total: resources(
            4000,
            1000,
            "0-3",
            vec![device("g1", 1000), device("g2", 1000)],
        ),
        topology_epoch: 1,
        boot_id: boot.to_owned(),
        ..Inventory::default()
    }
}

pub(crate) fn admit(number: u128, inventory: Inventory) -> AdmitAgent {
    AdmitAgent {
        agent: agent_id(number),
        node_key: node_key(number),
        node_name: format!("n{number}"),
        inventory,
        held: Vec::new(),
    }
}

pub(crate) fn settings(roles: &[&str]) -> FrameworkSettings {
    FrameworkSettings {
        roles: roles.iter().map(|path| role(path)).collect(),
        ..FrameworkSettings::default()
    }
}

pub(crate) fn claim(id: &str, role_path: &str, cpu: u64, count: u32) -> Claim {
    Claim {
        id: claim_id(id),
        role: role(role_path),
        shape: Shape {
            cpu: MilliCpu(cpu),
            ..Shape::default()
        },
        count,
        priority: 0,
        labels: BTreeMap::new(),
        expected_runtime: None,
    }
}

pub(crate) fn want(class: &str, count: u32, milli: u32) -> DeviceWant {
    DeviceWant {
        class: ClassPath::new(class).expect("a class"),
        count,
        milli,
    }
}

pub(crate) fn task(run: RunId, claim: Option<ClaimId>, resources: Resources) -> LaunchTask {
    LaunchTask {
        run,
        claim,
        resources,
        spec: Arc::new(TaskSpec {
            command: vec!["true".to_owned()],
            ..TaskSpec::default()
        }),
        environment: BTreeMap::new(),
        labels: BTreeMap::new(),
        replaces: None,
    }
}

pub(crate) fn status(run: RunId, sequence: u64, phase: TaskPhase, reason: Option<Code>) -> Status {
    Status {
        run,
        sequence,
        phase,
        reason,
        message: String::new(),
        source: StatusSource::Agent,
        at: Timestamp(0),
        exit: None,
        usage: None,
        coalesced: false,
    }
}

/// A replica pair and the log index; every step checks what must hold after any command.
#[derive(Default)]
pub(crate) struct Cluster {
    pub(crate) state: State,
    replica: State,
    pub(crate) revision: u64,
    pub(crate) clock: Timestamp,
    /// Records taken some commands ago, each with the state's digest at that moment.
    taken: VecDeque<(Records, u64)>,
}

/// Commands that go by before records are looked at again.
const GO_BY: usize = 20;

impl Cluster {
    /// Checks, applies, and compares: `check` told the truth, a refusal changed nothing, the
    /// invariants hold, the replica is equal, and a snapshot gives the same state again.
    pub(crate) fn step(&mut self, command: Command) -> Result<Outcome, Rejection> {
        let stamped = Stamped {
            at: self.clock,
            command,
        };
        let digest = self.state.digest();
        let revision = self.state.revision();
        let before = self.state.clone();
        let preview = self.state.check(&stamped);
        self.revision += 1;
        let result = self.state.apply(self.revision, &stamped);
        let replicas = self.replica.apply(self.revision, &stamped);
        assert_eq!(result, replicas, "replicas answer alike");

        match (&preview, &result) {
            (Err(said), Err(got)) => {
                assert_eq!(said, got, "check and apply refuse alike");
                assert_eq!(self.state.digest(), digest, "a refusal changes nothing");
            }
            (Ok(Preview::Repeat { revision, verdict }), Ok(got)) => {
                assert_eq!((revision, verdict), (&got.revision, &got.verdict));
                assert!(got.effects.is_empty() && got.changes.is_empty(), "{got:?}");
                assert_eq!(self.state.digest(), digest, "a repeat changes nothing");
            }
            (Ok(Preview::NoChange(verdict)), Ok(got)) => {
                assert_eq!(verdict, &got.verdict);
                assert!(got.effects.is_empty() && got.changes.is_empty(), "{got:?}");
            }
            (Ok(Preview::Change), Ok(got)) => {
                assert_eq!(got.revision, self.revision);
                assert!(self.state.revision() > revision);
            }
            (Ok(_), Err(_)) | (Err(_), Ok(_)) => {
                panic!("check said {preview:?}, apply {result:?}");
            }
        }
        if let Ok(outcome) = &result {
            no_change_is_untold(&before, &self.state, outcome);
        }
        self.verify();
        self.take_records();
        result
    }

    /// What was taken stays as it was, whatever the state does meanwhile.
    fn take_records(&mut self) {
        let digest = self.state.digest();
        self.taken.push_back((self.state.records(), digest));
        if self.taken.len() > GO_BY
            && let Some((records, digest)) = self.taken.pop_front()
        {
            assert_eq!(records.digest(), digest, "records that were taken");
            let again = State::from_parts(records.to_parts()).expect("records of a state");
            assert_eq!(again.digest(), digest, "the state they make");
        }
    }

    fn verify(&self) {
        let violations = invariants::check(&self.state);
        assert!(violations.is_empty(), "{violations:#?}");
        let digest = self.state.digest();
        assert_eq!(digest, self.replica.digest(), "replicas are equal");
        let again = State::from_parts(self.state.to_parts()).expect("its own parts");
        assert_eq!(digest, again.digest(), "a snapshot gives the same state");
        let violations = invariants::check(&again);
        assert!(violations.is_empty(), "after a snapshot: {violations:#?}");
        assert_eq!(
            self.state.owed().collect::<Vec<_>>(),
            again.owed().collect::<Vec<_>>()
        );
        assert_eq!(self.state.next_due(), again.next_due());
        for agent in self.state.agents() {
            assert_eq!(self.state.free(agent.id), again.free(agent.id));
        }
    }
}

/// Rows and views are patched by what an outcome names: whatever differs must be named.
fn no_change_is_untold(before: &State, after: &State, outcome: &Outcome) {
    let (before, after) = (objects(before), objects(after));
    for change in before.keys().chain(after.keys()) {
        if before.get(change) != after.get(change) {
            let told = outcome.changes.contains(change);
            assert!(
                told,
                "{change:?} has changed and is not named in {outcome:?}"
            );
        }
    }
}

/// Every object that a change can name, as it is shown.
fn objects(state: &State) -> BTreeMap<Change, String> {
    let mut objects = BTreeMap::new();
    for agent in state.agents() {
        let shown = format!("{agent:?} {:?}", state.free(agent.id));
        objects.insert(Change::Agent(agent.id), shown);
    }
    for framework in state.frameworks() {
        let used: Vec<_> = state.used_by_framework(framework.id).collect();
        // What calls were answered is seen by nobody.
        let shown = (
            &framework.settings,
            framework.incarnation,
            framework.away,
            framework.demand_version,
            state.store_bytes(framework.id),
        );
        objects.insert(
            Change::Framework(framework.id),
            format!("{shown:?} {used:?}"),
        );
    }
    for tombstone in state.tombstones() {
        let shown = (tombstone.framework, tombstone.torn_down);
        objects.insert(Change::Framework(tombstone.framework), format!("{shown:?}"));
    }
    for role in state.roles() {
        let shown = format!("{role:?} {:?}", state.used_by_role(&role.path));
        objects.insert(Change::Role(role.path.clone()), shown);
    }
    for framework in state.frameworks() {
        for record in state.claims(framework.id) {
            let change = Change::Claim(framework.id, record.claim.id.clone());
            objects.insert(change, format!("{record:?}"));
        }
    }
    for run in state.all_runs().chain(state.history()) {
        let change = Change::Run(run.framework, run.id.clone());
        objects.insert(change, format!("{run:?}"));
    }
    objects
}
