//! Is what came from outside within its limits? Every wrong field is named, with what is permitted.

use std::collections::{BTreeMap, BTreeSet};

use mete_model::quantity::LARGEST;
use mete_model::{Claim, Code, Inventory, Resources, Shape, TaskSpec, cpu_set, device};

use crate::limits::{
    CLASSES_OF_A_SHAPE, DEVICES_OF_AN_AGENT, LABEL_BYTES, SPEC_BYTES, TASKS_OF_A_CLAIM, TEXT_BYTES,
};
use crate::rejection::{FieldFault, Rejection};

/// Faults named in one rejection; the rest are only counted.
const MOST_FAULTS: usize = 20;

/// Gathers the fields at fault.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    fields: Vec<FieldFault>,
    more: usize,
}

impl Faults {
    pub(crate) fn add(&mut self, field: impl Into<String>, fault: impl Into<String>) {
        if self.fields.len() < MOST_FAULTS {
            let (field, fault) = (field.into(), fault.into());
            self.fields.push(FieldFault { field, fault });
        } else {
            self.more = self.more.saturating_add(1);
        }
    }

    /// `INVALID` if there was any fault.
    pub(crate) fn result(self) -> Result<(), Rejection> {
        let Some(first) = self.fields.first() else {
            return Ok(());
        };
        let others = self
            .fields
            .len()
            .saturating_sub(1)
            .saturating_add(self.more);
        let mut detail = format!("{}: {}", first.field, first.fault);
        if others > 0 {
            detail.push_str(&format!(" (and {others} more)"));
        }
        Err(Rejection {
            code: Code::Invalid,
            detail,
            fields: self.fields,
        })
    }

    pub(crate) fn text(&mut self, field: &str, text: &str, longest: usize) {
        if text.len() > longest {
            let fault = format!("has {} bytes, at most {longest} are permitted", text.len());
            self.add(field, fault);
        }
    }

    pub(crate) fn labels(&mut self, field: &str, labels: &BTreeMap<String, String>) {
        let bytes = bytes_of(labels);
        if bytes > LABEL_BYTES {
            self.add(
                field,
                format!("have {bytes} bytes together, at most {LABEL_BYTES} are permitted"),
            );
        }
        if labels.contains_key("") {
            self.add(field, "a name is empty");
        }
    }

    fn amount(&mut self, field: &str, amount: u64) {
        if amount > LARGEST {
            self.add(
                field,
                format!("is {amount}, at most {LARGEST} is permitted"),
            );
        }
    }

    pub(crate) fn list(&mut self, field: &str, length: usize, most: usize) {
        if length > most {
            self.add(
                field,
                format!("has {length} items, at most {most} are permitted"),
            );
        }
    }

    /// `field` is the path of the resources, for example `launches[0].resources`.
    pub(crate) fn resources(&mut self, field: &str, resources: &Resources) {
        self.amount(&format!("{field}.cpu_milli"), resources.cpu.0);
        self.amount(&format!("{field}.memory_bytes"), resources.memory.0);
        self.amount(&format!("{field}.disk_bytes"), resources.disk.0);
        let devices = &resources.devices;
        self.list(
            &format!("{field}.devices"),
            devices.len(),
            DEVICES_OF_AN_AGENT,
        );
        for (at, share) in devices.iter().enumerate() {
            if share.milli == 0 || share.milli > device::WHOLE {
                self.add(
                    format!("{field}.devices[{at}].milli"),
                    format!("is {}, 1 to {} is permitted", share.milli, device::WHOLE),
                );
            }
        }
        if let Some(at) = devices
            .windows(2)
            .position(|pair| matches!(pair, [a, b] if a.id >= b.id))
        {
            self.add(
                format!("{field}.devices[{}].id", at.saturating_add(1)),
                "each device once, in the order of their ids",
            );
        }
    }

    /// What a task holds: something, and CPU for each core it names.
    pub(crate) fn grant(&mut self, field: &str, resources: &Resources) {
        self.resources(field, resources);
        if resources.is_zero() {
            self.add(field, "nothing is asked for");
        }
        let least = u64::from(resources.cores.len()).saturating_mul(1000);
        if resources.cpu.0 < least {
            self.add(
                format!("{field}.cpu_milli"),
                format!(
                    "is {}, but cores {} are {least} of it",
                    resources.cpu.0, resources.cores
                ),
            );
        }
    }

    fn shape(&mut self, field: &str, shape: &Shape) {
        if shape.is_zero() {
            self.add(field, "nothing is asked for");
        }
        self.amount(&format!("{field}.cpu_milli"), shape.cpu.0);
        self.amount(&format!("{field}.memory_bytes"), shape.memory.0);
        self.amount(&format!("{field}.disk_bytes"), shape.disk.0);
        let cores = cpu_set::LARGEST_CPU.saturating_add(1);
        if shape.cores > cores {
            self.add(
                format!("{field}.cores"),
                format!("is {}, at most {cores} is permitted", shape.cores),
            );
        }
        if shape.cores > 0 && !shape.cpu.is_zero() {
            self.add(
                format!("{field}.cpu_milli"),
                "must be 0 when exclusive cores are asked for",
            );
        }
        let devices = &shape.devices;
        self.list(
            &format!("{field}.devices"),
            devices.len(),
            CLASSES_OF_A_SHAPE,
        );
        let mut classes = BTreeSet::new();
        for (at, want) in devices.iter().enumerate() {
            let field = format!("{field}.devices[{at}]");
            if !classes.insert(&want.class) {
                self.add(format!("{field}.class"), "each class once");
            }
            let most = u32::try_from(DEVICES_OF_AN_AGENT).unwrap_or(u32::MAX);
            if want.count == 0 || want.count > most {
                self.add(
                    format!("{field}.count"),
                    format!("is {}, 1 to {most} is permitted", want.count),
                );
            }
            if want.milli == 0 || want.milli > device::WHOLE {
                self.add(
                    format!("{field}.milli"),
                    format!("is {}, 1 to {} is permitted", want.milli, device::WHOLE),
                );
            } else if want.milli < device::WHOLE && want.count != 1 {
                self.add(
                    format!("{field}.milli"),
                    format!(
                        "is {} with count {}; a share is of one device only",
                        want.milli, want.count
                    ),
                );
            }
        }
    }

    pub(crate) fn claim(&mut self, field: &str, claim: &Claim) {
        self.shape(&format!("{field}.shape"), &claim.shape);
        self.labels(&format!("{field}.labels"), &claim.labels);
        if claim.count > TASKS_OF_A_CLAIM {
            self.add(
                format!("{field}.count"),
                format!(
                    "is {}, at most {TASKS_OF_A_CLAIM} is permitted",
                    claim.count
                ),
            );
        }
    }

    pub(crate) fn spec(&mut self, field: &str, spec: &TaskSpec) {
        self.labels(&format!("{field}.labels"), &spec.labels);
        for bad in spec.partition.faults() {
            let part = match bad.part {
                "replace_after" => "on_unreachable.replace_after_ms",
                _ => "stop_if_silent_ms",
            };
            self.add(format!("{field}.{part}"), bad.fault);
        }
        let bytes = spec
            .command
            .iter()
            .map(String::len)
            .fold(0, usize::saturating_add)
            .saturating_add(bytes_of(&spec.environment))
            .saturating_add(bytes_of(&spec.labels))
            .saturating_add(spec.working_directory.len())
            .saturating_add(spec.user.len());
        if bytes > SPEC_BYTES {
            self.add(
                field,
                format!("has {bytes} bytes, at most {SPEC_BYTES} are permitted"),
            );
        }
    }

    pub(crate) fn inventory(&mut self, inventory: &Inventory) {
        self.resources("inventory.total", &inventory.total);
        self.list(
            "inventory.devices",
            inventory.devices.len(),
            DEVICES_OF_AN_AGENT,
        );
        self.labels("inventory.labels", &inventory.labels);
        self.text("inventory.boot_id", &inventory.boot_id, 253);
        self.text("inventory.version", &inventory.version, 253);
        self.text("inventory.node_address", &inventory.node_address, 512);
        self.list("inventory.enforcement", inventory.enforcement.len(), 64);
    }

    /// Who did it, and why, for people.
    pub(crate) fn words(&mut self, field: &str, text: &str) {
        self.text(field, text, TEXT_BYTES);
    }
}

pub(crate) fn bytes_of(texts: &BTreeMap<String, String>) -> usize {
    texts
        .iter()
        .map(|(name, value)| name.len().saturating_add(value.len()))
        .fold(0, usize::saturating_add)
}
