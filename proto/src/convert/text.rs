//! Free texts and labels: how long they may be.

use std::collections::BTreeMap;

use super::faults::{At, Faults};

/// Labels of one object, keys and values together, in bytes.
pub const LONGEST_LABELS: usize = 16 * 1024;

/// One key of a map of labels, in bytes.
pub const LONGEST_KEY: usize = 253;

/// A sentence for people, such as the reason of a kill, in bytes.
pub const LONGEST_SENTENCE: usize = 1024;

/// A `host:port`, in bytes.
pub const LONGEST_ADDRESS: usize = 261;

/// Checks that a text for people is not longer than `longest` bytes.
pub fn read_text(text: String, longest: usize, at: At<'_>, faults: &mut Faults) -> Option<String> {
    if text.len() > longest {
        faults.add(
            at,
            format_args!("{} bytes are more than the {longest} permitted", text.len()),
        );
        return None;
    }
    Some(text)
}

/// Checks a name that is shown in tables: 1 to `longest` bytes, no control characters.
pub fn read_name(name: String, longest: usize, at: At<'_>, faults: &mut Faults) -> Option<String> {
    if name.is_empty() || name.len() > longest || name.chars().any(char::is_control) {
        faults.add(
            at,
            format_args!(
                "must be 1 to {longest} bytes without control characters, not {} bytes",
                name.len()
            ),
        );
        return None;
    }
    Some(name)
}

/// Checks labels: at most [`LONGEST_LABELS`] in all, keys of 1 to [`LONGEST_KEY`] bytes without
/// control characters.
pub fn read_labels(
    labels: BTreeMap<String, String>,
    at: At<'_>,
    faults: &mut Faults,
) -> Option<BTreeMap<String, String>> {
    let mut good = true;
    let size: usize = labels
        .iter()
        .map(|(key, value)| key.len() + value.len())
        .sum();
    if size > LONGEST_LABELS {
        faults.add(
            at,
            format_args!("{size} bytes of labels are more than the {LONGEST_LABELS} permitted"),
        );
        good = false;
    }
    for key in labels.keys() {
        if key.is_empty() || key.len() > LONGEST_KEY || key.chars().any(char::is_control) {
            faults.add(
                at.key(key),
                format_args!("a key must be 1 to {LONGEST_KEY} bytes without control characters"),
            );
            good = false;
        }
    }
    good.then_some(labels)
}

/// Checks an address: empty, or `host:port` with a port from 1.
pub fn read_address(address: String, at: At<'_>, faults: &mut Faults) -> Option<String> {
    let good = address.is_empty()
        || address.len() <= LONGEST_ADDRESS
            && address.rsplit_once(':').is_some_and(|(host, port)| {
                !host.is_empty()
                    && !host.chars().any(|c| c.is_whitespace() || c.is_control())
                    && port.parse::<u16>().is_ok_and(|port| port > 0)
            });
    if !good {
        faults.add(at, "must be empty or host:port with a port from 1 to 65535");
    }
    good.then_some(address)
}
