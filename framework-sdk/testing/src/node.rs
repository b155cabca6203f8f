//! A node of a test, described in words.

use std::time::Duration;

use mete_model::device::DeviceId;
use mete_model::task::FakeTask;
use mete_model::{Bytes, ClassPath, CpuSet, Device, DeviceShare, Inventory, MilliCpu};

/// Describes one fake node: 4 CPUs, 8 GiB of memory and 100 GiB of disk unless said otherwise.
#[derive(Clone, Debug)]
pub struct NodeBuilder {
    cpus: u32,
    memory: Bytes,
    disk: Bytes,
    devices: Vec<(String, u32)>,
    labels: Vec<(String, String)>,
    pub(crate) start_delay: Duration,
    pub(crate) unsaid: FakeTask,
}

impl Default for NodeBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl NodeBuilder {
    pub(crate) fn new() -> Self {
        Self {
            cpus: 4,
            memory: Bytes(8 << 30),
            disk: Bytes(100 << 30),
            devices: Vec::new(),
            labels: Vec::new(),
            start_delay: Duration::from_millis(5),
            unsaid: FakeTask {
                run: mete_model::Span::seconds(2),
                exit_code: 0,
            },
        }
    }

    /// So many logical CPUs, named from 0.
    #[must_use]
    pub fn cpus(mut self, count: u32) -> Self {
        self.cpus = count;
        self
    }

    /// So much memory.
    #[must_use]
    pub fn memory(mut self, memory: Bytes) -> Self {
        self.memory = memory;
        self
    }

    /// So many GiB of memory.
    #[must_use]
    pub fn memory_gib(mut self, gib: u64) -> Self {
        self.memory = Bytes(gib.saturating_mul(1 << 30));
        self
    }

    /// So many GiB of disk.
    #[must_use]
    pub fn disk_gib(mut self, gib: u64) -> Self {
        self.disk = Bytes(gib.saturating_mul(1 << 30));
        self
    }

    /// So many GPUs of a model, class `gpu/MODEL`.
    #[must_use]
    pub fn gpus(self, count: u32, model: &str) -> Self {
        self.devices(count, &format!("gpu/{model}"))
    }

    /// So many devices of a class.
    #[must_use]
    pub fn devices(mut self, count: u32, class: &str) -> Self {
        self.devices.push((class.to_owned(), count));
        self
    }

    /// A label of the node.
    #[must_use]
    pub fn label(mut self, name: &str, value: &str) -> Self {
        self.labels.push((name.to_owned(), value.to_owned()));
        self
    }

    /// From start to running.
    #[must_use]
    pub fn start_delay(mut self, delay: Duration) -> Self {
        self.start_delay = delay;
        self
    }

    /// How long a task runs whose spec does not say it for fakes, and its exit code. Two seconds
    /// and 0 if not said; no time at all = until killed.
    #[must_use]
    pub fn tasks_run(mut self, run: Duration, exit_code: u8) -> Self {
        let run = u64::try_from(run.as_millis()).unwrap_or(u64::MAX);
        self.unsaid = FakeTask {
            run: mete_model::Span(run),
            exit_code,
        };
        self
    }

    /// # Panics
    /// For a device class that is not permitted: a defect of the test.
    pub(crate) fn inventory(&self) -> Inventory {
        let mut devices = Vec::new();
        for (class, count) in &self.devices {
            let class = ClassPath::new(class).expect("the test names a permitted device class");
            for number in 0..*count {
                let name = format!("{class}-{number}").replace('/', "-");
                let id = DeviceId::new(&name).expect("made of permitted characters");
                devices.push(Device {
                    id,
                    class: class.clone(),
                    attributes: std::collections::BTreeMap::new(),
                    healthy: true,
                });
            }
        }
        devices.sort_by(|a, b| a.id.cmp(&b.id));
        let shares = devices.iter().map(|device| DeviceShare {
            id: device.id.clone(),
            class: device.class.clone(),
            milli: mete_model::device::WHOLE,
        });
        Inventory {
            total: mete_model::Resources {
                cpu: MilliCpu(u64::from(self.cpus).saturating_mul(1_000)),
                memory: self.memory,
                disk: self.disk,
                cores: (0..self.cpus).collect::<CpuSet>(),
                devices: shares.collect(),
            },
            devices,
            labels: self.labels.iter().cloned().collect(),
            topology_epoch: 1,
            boot_id: "test".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            fake: true,
            ..Inventory::default()
        }
    }
}
