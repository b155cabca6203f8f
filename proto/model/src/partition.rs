//! The partition policy of a task: what happens to a run while nobody hears of its node.
//!
//! Two halves that fit together. The broker's: after how long the run may be replaced, and which
//! of the two stays when the old one comes back. The node's: after how long without word from a
//! leader the run ends by itself, so that a replacement is safe although nobody can reach the old.

use std::hash::{Hash, Hasher};

use serde::{Deserialize, Serialize};

use crate::time::Span;

/// Less silence than this is an ordinary change of the leader, and no reason to end anything.
pub const LEAST_SILENCE: Span = Span::seconds(10);

/// No policy waits longer.
pub const MOST_PATIENCE: Span = Span::days(365);

/// The longest grace of a run that ends itself out of contact: it has to be over before anybody
/// may take its place.
pub const SILENT_GRACE: Span = Span::seconds(10);

/// Which run stays when a replaced one comes back.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum Keep {
    /// The one that was launched last.
    #[default]
    Newest,
    /// The one that was replaced.
    Oldest,
}

impl Keep {
    /// The lower-case word that tables print.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Newest => "newest",
            Self::Oldest => "oldest",
        }
    }
}

impl std::str::FromStr for Keep {
    type Err = crate::text::BadText;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "newest" => Ok(Self::Newest),
            "oldest" => Ok(Self::Oldest),
            _ => Err(crate::text::BadText::new(
                "run to keep",
                text,
                "newest or oldest",
            )),
        }
    }
}

/// The policy; the default waits until the agent is back or gone, and keeps the run running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partition {
    /// The run may be replaced when its agent has been unreachable for so long; `None` = it is not
    /// replaced until the agent is back or gone.
    pub replace_after: Option<Span>,
    /// Which run stays when the old one comes back.
    pub keep: Keep,
    /// The run ends by itself when its node has not heard from a leader for so long; `None` = it
    /// goes on.
    pub stop_if_silent: Option<Span>,
}

impl Hash for Partition {
    /// Counts only when something is asked for: specs of before the policy keep their hash.
    fn hash<H: Hasher>(&self, hash: &mut H) {
        if *self != Self::default() {
            (self.replace_after, self.keep, self.stop_if_silent).hash(hash);
        }
    }
}

/// A part of the policy that is not permitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadPartition {
    /// `replace_after` or `stop_if_silent`.
    pub part: &'static str,
    /// What is wrong, and what is permitted.
    pub fault: String,
}

impl std::fmt::Display for BadPartition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.part, self.fault)
    }
}

impl Partition {
    /// Everything that is not permitted in it.
    #[must_use]
    pub fn faults(&self) -> Vec<BadPartition> {
        let mut faults = Vec::new();
        let mut bound = |part, span: Option<Span>, least: Span| {
            if let Some(span) = span.filter(|span| *span < least || *span > MOST_PATIENCE) {
                let fault = format!("is {span}, {least} to {MOST_PATIENCE} is permitted");
                faults.push(BadPartition { part, fault });
            }
        };
        bound("replace_after", self.replace_after, Span::seconds(1));
        bound("stop_if_silent", self.stop_if_silent, LEAST_SILENCE);
        if let (Some(replace), Some(silent)) = (self.replace_after, self.stop_if_silent)
            && replace < silent
        {
            let fault = format!(
                "is {replace}, shorter than stop_if_silent of {silent}: the run could be replaced \
                 while it still works"
            );
            faults.push(BadPartition {
                part: "replace_after",
                fault,
            });
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(replace: Option<u64>, silent: Option<u64>) -> Vec<&'static str> {
        let partition = Partition {
            replace_after: replace.map(Span::seconds),
            keep: Keep::Newest,
            stop_if_silent: silent.map(Span::seconds),
        };
        let faults = partition.faults();
        faults.into_iter().map(|fault| fault.part).collect()
    }

    #[test]
    fn a_run_is_never_replaced_before_it_has_ended_itself() {
        assert!(faults(None, None).is_empty());
        assert!(faults(Some(60), Some(60)).is_empty());
        assert!(faults(Some(1), None).is_empty());
        assert!(faults(None, Some(10)).is_empty());
        assert_eq!(faults(Some(59), Some(60)), ["replace_after"]);
        assert_eq!(faults(None, Some(9)), ["stop_if_silent"]);
        assert_eq!(faults(Some(0), None), ["replace_after"]);
        let year = 365 * 86_400;
        assert_eq!(
            faults(Some(year + 1), Some(year + 1)),
            ["replace_after", "stop_if_silent"]
        );
    }
}
