//! Values of the model made from a number: the same number makes the same values.
//!
//! Used by the round-trip and corpus tests of the wire here, and of stored formats in the broker.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::BTreeMap;

use mete_model::quantity::LARGEST;
use mete_model::task::FakeTask;
use mete_model::{
    AgentId, Bytes, Claim, ClaimId, ClassPath, Code, CpuSet, Device, DeviceId, DeviceShare,
    DeviceWant, Enforcement, Exit, FrameworkId, Inventory, Keep, MilliCpu, Partition, Resources,
    RolePath, RunId, Shape, Span, Status, StatusSource, TaskId, TaskPhase, TaskSpec, Timestamp,
    Usage,
};
use uuid::Uuid;

/// A source of choices.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed ^ 0x9e37_79b9_7f4a_7c15)
    }

    /// Any number (splitmix64).
    pub(crate) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 to `most`, often at one of the ends.
    pub(crate) fn upto(&mut self, most: u64) -> u64 {
        match self.roll() % 8 {
            0 => 0,
            1 => most,
            _ if most == u64::MAX => self.roll(),
            _ => self.roll() % (most + 1),
        }
    }

    pub(crate) fn small(&mut self, least: u32, most: u32) -> u32 {
        least + u32::try_from(self.upto(u64::from(most - least))).expect("within u32")
    }

    pub(crate) fn yes(&mut self) -> bool {
        self.roll().is_multiple_of(2)
    }

    pub(crate) fn of<T: Copy>(&mut self, list: &[T]) -> T {
        let index = usize::try_from(self.roll()).expect("64 bits") % list.len();
        list[index]
    }

    pub(crate) fn list<T>(&mut self, most: u32, mut make: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.small(0, most)).map(|_| make(self)).collect()
    }

    pub(crate) fn maybe<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        if self.yes() { Some(make(self)) } else { None }
    }

    pub(crate) fn uuid(&mut self) -> Uuid {
        Uuid::from_u64_pair(self.roll(), self.roll())
    }

    pub(crate) fn framework(&mut self) -> FrameworkId {
        FrameworkId(self.uuid())
    }

    pub(crate) fn agent(&mut self) -> AgentId {
        AgentId(self.uuid())
    }

    pub(crate) fn word(&mut self) -> String {
        let letters = "abcdefghijklmnopqrstuvwxyz0123456789-_.";
        (0..self.small(1, 20))
            .map(|_| char::from(self.of(letters.as_bytes())))
            .collect()
    }

    pub(crate) fn text(&mut self) -> String {
        let words = [
            "",
            "ready",
            "größer",
            "a b\tc",
            "✓ done",
            "x=1,y=2",
            "\"quoted\"",
        ];
        self.of(&words).to_owned()
    }

    pub(crate) fn role(&mut self) -> RolePath {
        let mut text = self.word();
        for _ in 0..self.small(0, 3) {
            text = format!("{text}/{}", self.word());
        }
        RolePath::new(&text).expect("words make a path")
    }

    pub(crate) fn claim_id(&mut self) -> ClaimId {
        ClaimId::new(&format!("{}/{}", self.word(), self.word())).expect("printable")
    }

    pub(crate) fn run(&mut self) -> RunId {
        let task = TaskId::new(&format!("{}[{}]", self.word(), self.small(0, 9))).expect("good");
        RunId::new(task, self.small(1, u32::MAX))
    }

    pub(crate) fn labels(&mut self) -> BTreeMap<String, String> {
        self.list(4, |dice| (dice.word(), dice.text()))
            .into_iter()
            .collect()
    }

    pub(crate) fn class(&mut self) -> ClassPath {
        let classes = ["gpu", "gpu/a100", "gpu/t4", "fpga", "nic/ib/hdr"];
        ClassPath::new(self.of(&classes)).expect("a class")
    }

    pub(crate) fn resources(&mut self) -> Resources {
        let cores: CpuSet = self
            .list(6, |dice| dice.small(0, 255))
            .into_iter()
            .collect();
        let named = u64::from(cores.len()) * 1000;
        let mut devices: Vec<DeviceShare> = Vec::new();
        for index in 0..self.small(0, 4) {
            devices.push(DeviceShare {
                id: DeviceId::new(&format!("dev-{index}")).expect("an id"),
                class: self.class(),
                milli: self.small(1, 1000),
            });
        }
        Resources {
            cpu: MilliCpu(named + self.upto(LARGEST - named)),
            memory: Bytes(self.upto(LARGEST)),
            disk: Bytes(self.upto(LARGEST)),
            cores,
            devices,
        }
    }

    pub(crate) fn shape(&mut self) -> Shape {
        let mut devices: Vec<DeviceWant> = Vec::new();
        for class in ["fpga", "gpu", "gpu/t4"] {
            if self.yes() {
                let whole = self.yes();
                devices.push(DeviceWant {
                    class: ClassPath::new(class).expect("a class"),
                    count: if whole { self.small(1, 4096) } else { 1 },
                    milli: if whole { 1000 } else { self.small(1, 1000) },
                });
            }
        }
        let cores = if self.yes() { self.small(0, 64) } else { 0 };
        Shape {
            cpu: MilliCpu(if cores == 0 { self.upto(LARGEST) } else { 0 }),
            memory: Bytes(1 + self.upto(LARGEST - 1)),
            disk: Bytes(self.upto(LARGEST)),
            cores,
            devices,
        }
    }

    pub(crate) fn claim(&mut self) -> Claim {
        Claim {
            id: self.claim_id(),
            role: self.role(),
            shape: self.shape(),
            count: self.small(1, 100_000),
            priority: self.of(&[0, 1, -1, i32::MAX, i32::MIN]),
            labels: self.labels(),
            expected_runtime: self.maybe(Self::long),
        }
    }

    /// A span above zero: on the wire zero means "not given".
    pub(crate) fn long(&mut self) -> Span {
        Span(1 + self.upto(LARGEST - 1))
    }

    pub(crate) fn spec(&mut self) -> TaskSpec {
        let mut command = vec!["/bin/true".to_owned()];
        command.extend(self.list(3, Self::text));
        let fake = FakeTask {
            run: Span(self.upto(LARGEST)),
            exit_code: self.of(&[0, 1, 255]),
        };
        TaskSpec {
            command: if self.yes() { command } else { Vec::new() },
            environment: self.labels(),
            working_directory: self.of(&["", "/", "/tmp/x y"]).to_owned(),
            user: self.of(&["", "nobody"]).to_owned(),
            kill_grace: self.maybe(Self::long),
            launch_timeout: self.maybe(Self::long),
            time_limit: self.maybe(Self::long),
            labels: self.labels(),
            log_file: self.maybe(|dice| Bytes(1 + dice.upto(LARGEST - 1))),
            log_files: self.maybe(|dice| dice.small(1, 1000)),
            fake: if self.yes() {
                fake
            } else {
                FakeTask::default()
            },
            partition: Partition {
                replace_after: self.maybe(Self::long),
                keep: self.of(&[Keep::Newest, Keep::Oldest]),
                stop_if_silent: self.maybe(Self::long),
            },
        }
    }

    pub(crate) fn phase(&mut self) -> TaskPhase {
        self.of(&TaskPhase::ALL)
    }

    pub(crate) fn exit(&mut self) -> Exit {
        if self.yes() {
            Exit::Code(self.of(&[0, 7, 255]))
        } else {
            Exit::Signal(self.of(&[1, 9, 127]))
        }
    }

    pub(crate) fn status(&mut self) -> Status {
        Status {
            run: self.run(),
            sequence: 1 + self.upto(1 << 40),
            phase: self.phase(),
            reason: self.maybe(|dice| dice.of(Code::ALL)),
            message: self.text(),
            source: self.of(&[
                StatusSource::Agent,
                StatusSource::Master,
                StatusSource::Framework,
                StatusSource::Operator,
            ]),
            at: Timestamp(self.upto(LARGEST)),
            exit: self.maybe(Self::exit),
            usage: self.maybe(|dice| Usage {
                cpu_ms: dice.upto(LARGEST),
                memory_peak: Bytes(dice.upto(LARGEST)),
                wall_ms: dice.upto(LARGEST),
            }),
            coalesced: self.yes(),
        }
    }

    pub(crate) fn inventory(&mut self) -> Inventory {
        let total = self.resources();
        let devices = total.devices.iter().map(|share| Device {
            id: share.id.clone(),
            class: share.class.clone(),
            attributes: BTreeMap::from([("memory_mib".to_owned(), "16384".to_owned())]),
            healthy: true,
        });
        let broken = Device {
            id: DeviceId::new("broken").expect("an id"),
            class: self.class(),
            attributes: BTreeMap::new(),
            healthy: false,
        };
        let kinds = ["cpu", "memory", "disk", "cores"];
        Inventory {
            devices: devices.chain([broken]).collect(),
            labels: self.labels(),
            topology_epoch: self.roll(),
            boot_id: self.text(),
            enforcement: kinds
                .iter()
                .map(|kind| {
                    let value = self.of(&[
                        Enforcement::Enforced,
                        Enforcement::AffinityOnly,
                        Enforcement::AccountedOnly,
                    ]);
                    ((*kind).to_owned(), value)
                })
                .collect(),
            version: self.text(),
            fake: self.yes(),
            node_address: self.of(&["", "127.0.0.1:7444", "[::1]:1"]).to_owned(),
            total,
        }
    }
}
