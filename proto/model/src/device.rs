//! Devices by stable id, their classes as a tree, and shares of one device.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::text::{BadText, is_printable, is_word};

/// Thousandths of one whole device.
pub const WHOLE: u32 = 1000;

/// A device's stable name on its agent: a uuid or serial, never a device number.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct DeviceId(Arc<str>);

impl DeviceId {
    /// Checks the text and makes the id.
    ///
    /// # Errors
    /// [`BadText`] unless it is 1 to 128 printable bytes.
    pub fn new(text: &str) -> Result<Self, BadText> {
        if is_printable(text, 128) {
            Ok(Self(Arc::from(text)))
        } else {
            Err(BadText::new(
                "device id",
                text,
                "1 to 128 bytes without white space",
            ))
        }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A class of devices as a path, for example `gpu/a100`; a device counts in every ancestor.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct ClassPath(Arc<str>);

impl ClassPath {
    /// Checks the text and makes the path.
    ///
    /// # Errors
    /// [`BadText`] unless it is 1 to 4 words joined by `/`.
    pub fn new(text: &str) -> Result<Self, BadText> {
        if text.split('/').count() <= 4 && text.split('/').all(|word| is_word(word, 63)) {
            Ok(Self(Arc::from(text)))
        } else {
            let rule = "1 to 4 segments joined by '/', each of letters, digits, '-', '_' and '.'";
            Err(BadText::new("device class", text, rule))
        }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Says whether this class is `other` or lies below it.
    #[must_use]
    pub fn is_within(&self, other: &Self) -> bool {
        self.0
            .strip_prefix(other.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

macro_rules! text_impls {
    ($($name:ident)*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl std::str::FromStr for $name {
            type Err = BadText;

            fn from_str(text: &str) -> Result<Self, BadText> {
                Self::new(text)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Self::new(&text).map_err(serde::de::Error::custom)
            }
        }
    )*};
}

text_impls! { DeviceId ClassPath }

/// A part of one device, or all of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DeviceShare {
    /// The device.
    pub id: DeviceId,
    /// Its class, carried along so that a share can be charged without asking the agent.
    pub class: ClassPath,
    /// Thousandths, 1 to 1000.
    pub milli: u32,
}

/// A device as its agent describes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Device {
    /// Its stable name.
    pub id: DeviceId,
    /// Its class.
    pub class: ClassPath,
    /// What is known of it, for example `memory_mib`.
    pub attributes: BTreeMap<String, String>,
    /// An unhealthy device is never offered.
    pub healthy: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_lies_within_its_ancestors_only() {
        let class = |text| ClassPath::new(text).expect("a class");
        assert!(class("gpu/a100").is_within(&class("gpu")));
        assert!(class("gpu").is_within(&class("gpu")));
        assert!(!class("gpu2").is_within(&class("gpu")));
        assert!(!class("gpu").is_within(&class("gpu/a100")));
    }
}
