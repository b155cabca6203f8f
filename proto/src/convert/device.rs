//! Devices, shares of them, and wants for them.

use mete_model::device::WHOLE;
use mete_model::{ClassPath, Device, DeviceId, DeviceShare, DeviceWant};

use super::faults::{At, Faults};
use super::quantity::read_count;
use super::text::read_labels;
use crate::types::v1 as wire;

/// Devices of one agent, and names of devices in one grant.
pub const MOST_DEVICES: usize = 4096;

/// Devices that one task may want of one class.
pub const MOST_WANTED: u32 = 4096;

fn read_class(text: &str, at: At<'_>, faults: &mut Faults) -> Option<ClassPath> {
    ClassPath::new(text)
        .map_err(|error| faults.add(at, error))
        .ok()
}

fn read_id(text: &str, at: At<'_>, faults: &mut Faults) -> Option<DeviceId> {
    DeviceId::new(text)
        .map_err(|error| faults.add(at, error))
        .ok()
}

/// Reads a share of one device: 1 to 1000 thousandths.
pub fn read_share(
    share: &wire::DeviceShare,
    at: At<'_>,
    faults: &mut Faults,
) -> Option<DeviceShare> {
    let id = read_id(&share.id, at.field("id"), faults);
    let class = read_class(&share.class, at.field("class"), faults);
    let milli = read_count(share.milli, 1, WHOLE, at.field("milli"), faults);
    Some(DeviceShare {
        id: id?,
        class: class?,
        milli: milli?,
    })
}

/// Writes a share of one device.
#[must_use]
pub fn write_share(share: &DeviceShare) -> wire::DeviceShare {
    wire::DeviceShare {
        id: share.id.as_str().to_owned(),
        class: share.class.as_str().to_owned(),
        milli: share.milli,
    }
}

/// Reads shares, sorted by id; a device named twice is a fault.
pub(super) fn read_shares(
    shares: &[wire::DeviceShare],
    at: At<'_>,
    faults: &mut Faults,
) -> Option<Vec<DeviceShare>> {
    if too_many(shares.len(), at, faults) {
        return None;
    }
    let mut read: Vec<DeviceShare> = Vec::with_capacity(shares.len());
    for (index, share) in shares.iter().enumerate() {
        read.extend(read_share(share, at.index(index), faults));
    }
    read.sort();
    let twice = read.windows(2).find(|pair| pair[0].id == pair[1].id);
    if let Some(pair) = twice {
        faults.add(at, format_args!("device {} is named twice", pair[0].id));
        return None;
    }
    (read.len() == shares.len()).then_some(read)
}

/// Reads what a claim wants of one class. 0 thousandths read as 1000, the whole device.
pub fn read_want(want: &wire::DeviceWant, at: At<'_>, faults: &mut Faults) -> Option<DeviceWant> {
    let class = read_class(&want.class, at.field("class"), faults);
    let count = read_count(want.count, 1, MOST_WANTED, at.field("count"), faults);
    let milli = if want.milli == 0 { WHOLE } else { want.milli };
    if milli > WHOLE {
        faults.add(
            at.field("milli"),
            format_args!("{milli} is not within 1 to {WHOLE} (0 reads as {WHOLE})"),
        );
        return None;
    }
    if milli < WHOLE && count.is_some_and(|count| count != 1) {
        faults.add(
            at.field("milli"),
            format_args!("a part ({milli} thousandths) is permitted of one device, not of several"),
        );
        return None;
    }
    Some(DeviceWant {
        class: class?,
        count: count?,
        milli,
    })
}

/// Writes what a claim wants of one class.
#[must_use]
pub fn write_want(want: &DeviceWant) -> wire::DeviceWant {
    wire::DeviceWant {
        class: want.class.as_str().to_owned(),
        count: want.count,
        milli: want.milli,
    }
}

/// Reads a device as its agent describes it.
pub fn read_device(device: wire::Device, at: At<'_>, faults: &mut Faults) -> Option<Device> {
    let id = read_id(&device.id, at.field("id"), faults);
    let class = read_class(&device.class, at.field("class"), faults);
    let attributes = read_labels(device.attributes, at.field("attributes"), faults);
    Some(Device {
        id: id?,
        class: class?,
        attributes: attributes?,
        healthy: device.healthy,
    })
}

/// Writes a device.
#[must_use]
pub fn write_device(device: &Device) -> wire::Device {
    wire::Device {
        id: device.id.as_str().to_owned(),
        class: device.class.as_str().to_owned(),
        attributes: device.attributes.clone(),
        healthy: device.healthy,
    }
}

pub(super) fn too_many(count: usize, at: At<'_>, faults: &mut Faults) -> bool {
    let flood = count > MOST_DEVICES;
    if flood {
        faults.add(
            at,
            format_args!("{count} devices are more than the {MOST_DEVICES} permitted"),
        );
    }
    flood
}
