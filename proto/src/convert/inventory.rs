//! What an agent has, as it says itself.

use std::collections::BTreeMap;

use mete_model::{Device, DeviceId, Enforcement, Inventory, Resources};

use super::device::{read_device, too_many, write_device};
use super::faults::{At, Faults};
use super::resources::{read_resources, write_resources};
use super::text::{read_address, read_labels, read_text};
use crate::types::v1 as wire;

/// Kinds of enforcement that one agent may name.
const MOST_KINDS: usize = 64;

/// Reads an inventory. Every device of the total must be described, with the same class.
pub fn read_inventory(
    inventory: Option<wire::Inventory>,
    at: At<'_>,
    faults: &mut Faults,
) -> Option<Inventory> {
    let Some(inventory) = inventory else {
        faults.add(at, "must be given");
        return None;
    };
    let total = read_resources(inventory.total, at.field("total"), faults);
    let devices = read_devices(inventory.devices, at.field("devices"), faults);
    if let (Some(total), Some(devices)) = (&total, &devices) {
        check_described(total, devices, at.field("total"), faults);
    }
    let labels = read_labels(inventory.labels, at.field("labels"), faults);
    let boot_id = read_text(inventory.boot_id, 128, at.field("boot_id"), faults);
    let enforcement = read_enforcement(&inventory.enforcement, at.field("enforcement"), faults);
    let version = read_text(inventory.version, 128, at.field("version"), faults);
    let node_address = read_address(inventory.node_address, at.field("node_address"), faults);
    Some(Inventory {
        total: total?,
        devices: devices?,
        labels: labels?,
        topology_epoch: inventory.topology_epoch,
        boot_id: boot_id?,
        enforcement: enforcement?,
        version: version?,
        fake: inventory.fake,
        node_address: node_address?,
    })
}

fn read_devices(
    devices: Vec<wire::Device>,
    at: At<'_>,
    faults: &mut Faults,
) -> Option<Vec<Device>> {
    let count = devices.len();
    if too_many(count, at, faults) {
        return None;
    }
    let mut read: BTreeMap<DeviceId, Device> = BTreeMap::new();
    let mut in_order = Vec::with_capacity(count);
    for (index, device) in devices.into_iter().enumerate() {
        let here = at.index(index);
        let Some(device) = read_device(device, here, faults) else {
            continue;
        };
        let id = device.id.clone();
        if read.insert(id.clone(), device.clone()).is_some() {
            faults.add(
                here.field("id"),
                format_args!("device {id} is described twice"),
            );
        } else {
            in_order.push(device);
        }
    }
    (in_order.len() == count).then_some(in_order)
}

fn check_described(total: &Resources, devices: &[Device], at: At<'_>, faults: &mut Faults) {
    let classes: BTreeMap<_, _> = devices
        .iter()
        .map(|device| (&device.id, &device.class))
        .collect();
    let list = at.field("devices");
    for share in &total.devices {
        match classes.get(&share.id) {
            Some(class) if **class == share.class => {}
            Some(class) => faults.add(
                list,
                format_args!(
                    "{} is {} here, but described as {class}",
                    share.id, share.class
                ),
            ),
            None => faults.add(list, format_args!("{} is not described", share.id)),
        }
    }
}

/// Reads enforcement by kind; a promise that this release does not know reads as the weakest.
pub fn read_enforcement(
    enforcement: &BTreeMap<String, i32>,
    at: At<'_>,
    faults: &mut Faults,
) -> Option<BTreeMap<String, Enforcement>> {
    if enforcement.len() > MOST_KINDS {
        faults.add(
            at,
            format_args!(
                "{} kinds are more than the {MOST_KINDS} permitted",
                enforcement.len()
            ),
        );
        return None;
    }
    let read = enforcement.iter().map(|(kind, value)| {
        let known = wire::Enforcement::try_from(*value).unwrap_or(wire::Enforcement::Unspecified);
        let read = match known {
            wire::Enforcement::Enforced => Enforcement::Enforced,
            wire::Enforcement::AffinityOnly => Enforcement::AffinityOnly,
            wire::Enforcement::AccountedOnly | wire::Enforcement::Unspecified => {
                Enforcement::AccountedOnly
            }
        };
        (kind.clone(), read)
    });
    Some(read.collect())
}

/// Writes enforcement by kind.
#[must_use]
pub fn write_enforcement(enforcement: &BTreeMap<String, Enforcement>) -> BTreeMap<String, i32> {
    let write = |value: &Enforcement| match value {
        Enforcement::Enforced => wire::Enforcement::Enforced,
        Enforcement::AffinityOnly => wire::Enforcement::AffinityOnly,
        Enforcement::AccountedOnly => wire::Enforcement::AccountedOnly,
    };
    enforcement
        .iter()
        .map(|(kind, value)| (kind.clone(), write(value).into()))
        .collect()
}

/// Writes an inventory.
#[must_use]
pub fn write_inventory(inventory: &Inventory) -> wire::Inventory {
    wire::Inventory {
        total: Some(write_resources(&inventory.total)),
        devices: inventory.devices.iter().map(write_device).collect(),
        labels: inventory.labels.clone(),
        topology_epoch: inventory.topology_epoch,
        boot_id: inventory.boot_id.clone(),
        enforcement: write_enforcement(&inventory.enforcement),
        version: inventory.version.clone(),
        fake: inventory.fake,
        node_address: inventory.node_address.clone(),
    }
}
