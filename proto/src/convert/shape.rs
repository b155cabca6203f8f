//! What one task of a claim needs.

use mete_model::cpu_set::LARGEST_CPU;
use mete_model::{DeviceWant, Shape};

use super::device::{read_want, write_want};
use super::faults::{At, Faults};
use super::quantity::{read_bytes, read_count, read_cpu};
use crate::types::v1 as wire;

/// Classes of devices that one shape may name.
pub const MOST_CLASSES: usize = 64;

/// Reads a shape: something must be asked for; shared CPU and exclusive cores exclude each other.
pub fn read_shape(shape: Option<wire::Shape>, at: At<'_>, faults: &mut Faults) -> Option<Shape> {
    let Some(shape) = shape else {
        faults.add(at, "must be given");
        return None;
    };
    let cpu = read_cpu(shape.cpu_milli, at.field("cpu_milli"), faults);
    let memory = read_bytes(shape.memory_bytes, at.field("memory_bytes"), faults);
    let disk = read_bytes(shape.disk_bytes, at.field("disk_bytes"), faults);
    let cores = read_count(shape.cores, 0, LARGEST_CPU + 1, at.field("cores"), faults);
    let devices = read_wants(&shape.devices, at.field("devices"), faults);
    if shape.cores > 0 && shape.cpu_milli > 0 {
        faults.add(
            at.field("cores"),
            "exclusive cores and shared cpu_milli exclude each other: set one of them to 0",
        );
        return None;
    }
    let read = Shape {
        cpu: cpu?,
        memory: memory?,
        disk: disk?,
        cores: cores?,
        devices: devices?,
    };
    if read.is_zero() {
        faults.add(
            at,
            "asks for nothing: cpu, cores, memory, disk or devices must be above 0",
        );
        return None;
    }
    Some(read)
}

fn read_wants(
    wants: &[wire::DeviceWant],
    at: At<'_>,
    faults: &mut Faults,
) -> Option<Vec<DeviceWant>> {
    if wants.len() > MOST_CLASSES {
        faults.add(
            at,
            format_args!(
                "{} classes are more than the {MOST_CLASSES} permitted",
                wants.len()
            ),
        );
        return None;
    }
    let mut read: Vec<DeviceWant> = Vec::with_capacity(wants.len());
    for (index, want) in wants.iter().enumerate() {
        let Some(want) = read_want(want, at.index(index), faults) else {
            continue;
        };
        match read.binary_search_by(|known| known.class.cmp(&want.class)) {
            Ok(_) => faults.add(
                at.index(index).field("class"),
                format_args!("{} is named twice: add the counts", want.class),
            ),
            Err(place) => read.insert(place, want),
        }
    }
    (read.len() == wants.len()).then_some(read)
}

/// Writes a shape.
#[must_use]
pub fn write_shape(shape: &Shape) -> wire::Shape {
    wire::Shape {
        cpu_milli: shape.cpu.0,
        memory_bytes: shape.memory.0,
        disk_bytes: shape.disk.0,
        cores: shape.cores,
        devices: shape.devices.iter().map(write_want).collect(),
    }
}
