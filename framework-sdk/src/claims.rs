//! Claims: what a framework wants, built up in words.
//!
//! A claim is plain data until it is declared with [`crate::Session::want`]; only then are texts
//! checked and is a role filled in. Integers only: thousandths of a CPU, bytes, counts.

use std::collections::BTreeMap;
use std::time::Duration;

use mete_model::device::WHOLE;
use mete_model::{Bytes, ClaimId, ClassPath, DeviceWant, MilliCpu, RolePath, Shape, Span};

use crate::error::{Error, Result};

/// What one task needs, and how many of it.
///
/// ```
/// use mete_sdk::Claim;
/// let claim = Claim::cpus(8).memory_gib(32).gpus(1).model("a100").count(10);
/// assert!(claim.shape().is_ok());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    role: Option<String>,
    shape: Shape,
    devices: Vec<(String, u32, u32)>,
    count: u32,
    priority: i32,
    labels: BTreeMap<String, String>,
    expected_runtime: Option<Duration>,
}

impl Default for Claim {
    fn default() -> Self {
        Self::new()
    }
}

impl Claim {
    /// One task that needs nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            role: None,
            shape: Shape::default(),
            devices: Vec::new(),
            count: 1,
            priority: 0,
            labels: BTreeMap::new(),
            expected_runtime: None,
        }
    }

    /// A task that needs so many CPUs, shared with others.
    #[must_use]
    pub fn cpus(count: u32) -> Self {
        Self::cpu_milli(u64::from(count).saturating_mul(1000))
    }

    /// A task that needs so many thousandths of a CPU.
    #[must_use]
    pub fn cpu_milli(milli: u64) -> Self {
        let mut claim = Self::new();
        claim.shape.cpu = MilliCpu(milli);
        claim
    }

    /// A task of this shape.
    #[must_use]
    pub fn from_shape(shape: Shape) -> Self {
        Self {
            shape,
            ..Self::new()
        }
    }

    /// Bytes of memory for each task.
    #[must_use]
    pub fn memory(mut self, bytes: Bytes) -> Self {
        self.shape.memory = bytes;
        self
    }

    /// MiB of memory for each task.
    #[must_use]
    pub fn memory_mib(self, mib: u64) -> Self {
        self.memory(Bytes(mib.saturating_mul(1 << 20)))
    }

    /// GiB of memory for each task.
    #[must_use]
    pub fn memory_gib(self, gib: u64) -> Self {
        self.memory(Bytes(gib.saturating_mul(1 << 30)))
    }

    /// Bytes of disk for each task.
    #[must_use]
    pub fn disk(mut self, bytes: Bytes) -> Self {
        self.shape.disk = bytes;
        self
    }

    /// Exclusive logical CPUs for each task, by name in the offer; shared CPU is left out.
    #[must_use]
    pub fn cores(mut self, count: u32) -> Self {
        self.shape.cores = count;
        self.shape.cpu = MilliCpu::ZERO;
        self
    }

    /// Makes the CPUs asked for exclusive; a part of a CPU counts as a whole one.
    #[must_use]
    pub fn pinned(self) -> Self {
        let cores = u32::try_from(self.shape.cpu.0.div_ceil(1000)).unwrap_or(u32::MAX);
        self.cores(cores)
    }

    /// So many whole devices of a class, or of any class below it.
    #[must_use]
    pub fn device(mut self, class: &str, count: u32) -> Self {
        self.devices.push((class.to_owned(), count, WHOLE));
        self
    }

    /// Thousandths of one device of a class.
    #[must_use]
    pub fn device_milli(mut self, class: &str, milli: u32) -> Self {
        self.devices.push((class.to_owned(), 1, milli));
        self
    }

    /// So many whole GPUs of any model.
    #[must_use]
    pub fn gpus(self, count: u32) -> Self {
        self.device("gpu", count)
    }

    /// Narrows the class named last: `gpus(1).model("a100")` asks for `gpu/a100`.
    #[must_use]
    pub fn model(mut self, model: &str) -> Self {
        if let Some((class, ..)) = self.devices.last_mut() {
            *class = format!("{class}/{model}");
        }
        self
    }

    /// How many tasks in all. Launches count against it for ever: raise it to ask for more.
    #[must_use]
    pub fn count(mut self, count: u32) -> Self {
        self.count = count;
        self
    }

    /// The role that is charged; needed only where the framework holds several.
    #[must_use]
    pub fn role(mut self, role: &str) -> Self {
        self.role = Some(role.to_owned());
        self
    }

    /// Order inside the role, higher first.
    #[must_use]
    pub fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// A label that is shown and searched, never interpreted.
    #[must_use]
    pub fn label(mut self, name: &str, value: &str) -> Self {
        self.labels.insert(name.to_owned(), value.to_owned());
        self
    }

    /// How long one task is expected to run.
    #[must_use]
    pub fn expected_runtime(mut self, expected: Duration) -> Self {
        self.expected_runtime = Some(expected);
        self
    }

    /// The shape of one task.
    ///
    /// # Errors
    /// [`Error::Invalid`] with every device class or share that is not permitted.
    pub fn shape(&self) -> Result<Shape> {
        let mut shape = self.shape.clone();
        for (class, count, milli) in &self.devices {
            let permitted = *count >= 1 && (1..=WHOLE).contains(milli);
            if !permitted || (*milli < WHOLE && *count != 1) {
                return Err(Error::field(
                    format!("devices[{class}]"),
                    format!(
                        "{count} × {milli} thousandths; permitted: 1 or more whole devices, or 1 \
                         to 999 thousandths of one"
                    ),
                ));
            }
            shape.devices.push(DeviceWant {
                class: ClassPath::new(class)?,
                count: *count,
                milli: *milli,
            });
        }
        shape.devices.sort();
        if let Some(pair) = shape
            .devices
            .windows(2)
            .find(|pair| pair[0].class == pair[1].class)
        {
            let field = format!("devices[{}]", pair[0].class);
            return Err(Error::field(field, "is asked for twice; each class once"));
        }
        Ok(shape)
    }

    /// The claim as the broker knows it.
    ///
    /// # Errors
    /// [`Error::Invalid`] for texts that are not permitted, or when the role is neither said nor
    /// clear.
    pub(crate) fn build(&self, id: &str, roles: &[RolePath]) -> Result<mete_model::Claim> {
        let role = match (&self.role, roles) {
            (Some(role), _) => RolePath::new(role)?,
            (None, [only]) => only.clone(),
            (None, _) => {
                let fault = format!(
                    "must be said: the framework holds {} roles, not one",
                    roles.len()
                );
                return Err(Error::field(format!("claim {id}: role"), fault));
            }
        };
        Ok(mete_model::Claim {
            id: ClaimId::new(id)?,
            role,
            shape: self.shape()?,
            count: self.count,
            priority: self.priority,
            labels: self.labels.clone(),
            expected_runtime: self.expected_runtime.map(crate::wire::span),
        })
    }
}

impl From<&mete_model::Claim> for Claim {
    fn from(claim: &mete_model::Claim) -> Self {
        Self {
            role: Some(claim.role.to_string()),
            shape: claim.shape.clone(),
            devices: Vec::new(),
            count: claim.count,
            priority: claim.priority,
            labels: claim.labels.clone(),
            expected_runtime: claim
                .expected_runtime
                .map(|Span(ms)| Duration::from_millis(ms)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_reads_as_it_is_spoken() {
        let claim = Claim::cpus(8).pinned().gpus(1).model("a100").memory_gib(32);
        let roles = [RolePath::new("dev").expect("a role")];
        let built = claim.build("train", &roles).expect("a good claim");
        assert_eq!(built.shape.cores, 8);
        assert_eq!(built.shape.cpu, MilliCpu::ZERO);
        assert_eq!(built.shape.devices[0].class.as_str(), "gpu/a100");
        assert_eq!(built.shape.memory, Bytes(32 << 30));
        assert_eq!(
            Claim::from(&built).build("train", &[]).expect("same"),
            built
        );
    }

    #[test]
    fn what_cannot_be_meant_is_refused_before_it_is_sent() {
        let refused = |claim: Claim| claim.shape().expect_err("must be refused").to_string();
        assert!(refused(Claim::new().device("g p u", 1)).contains("device class"));
        assert!(refused(Claim::new().device("gpu", 0)).contains("permitted"));
        assert!(refused(Claim::new().device_milli("gpu", 1001)).contains("permitted"));
        assert!(refused(Claim::new().gpus(1).gpus(2)).contains("twice"));
        let error = Claim::cpus(1).build("a", &[]).expect_err("no role");
        assert!(error.to_string().contains("role"), "{error}");
    }
}
