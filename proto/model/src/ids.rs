//! Ids: one type for each thing that has a name, so that a wrong one does not compile.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::text::{BadText, is_printable, is_word};

macro_rules! uuid_ids {
    ($($(#[$doc:meta])* $name:ident $what:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }

        impl FromStr for $name {
            type Err = BadText;

            fn from_str(text: &str) -> Result<Self, BadText> {
                Uuid::try_parse(text)
                    .map(Self)
                    .map_err(|_| BadText::new($what, text, "a uuid in its usual form"))
            }
        }
    )*};
}

uuid_ids! {
    /// An agent, minted by the leader at its first admission, kept for ever.
    AgentId "agent id";
    /// A framework, minted by the leader for a (principal, name).
    FrameworkId "framework id";
    /// A cluster of masters; messages with another one are refused.
    ClusterId "cluster id";
    /// What an agent is known by before it has an id: made at its first start, kept in its
    /// state directory.
    NodeKey "node key";
}

macro_rules! text_ids {
    ($($(#[$doc:meta])* $name:ident $what:literal $check:expr, $rule:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks the text and makes the id.
            ///
            /// # Errors
            /// [`BadText`] with the rule that the text breaks.
            pub fn new(text: &str) -> Result<Self, BadText> {
                let check: fn(&str) -> bool = $check;
                if check(text) {
                    Ok(Self(Arc::from(text)))
                } else {
                    Err(BadText::new($what, text, $rule))
                }
            }

            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

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

        impl FromStr for $name {
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

text_ids! {
    /// A role's place in the tree, for example `ml/vision`.
    RolePath "role path" is_role_path,
        "1 to 8 segments joined by '/', each 1 to 63 of letters, digits, '-', '_' and '.'";
    /// A framework's name for one of its claims.
    ClaimId "claim id" |text| is_printable(text, 253),
        "1 to 253 bytes without white space or control characters";
    /// A framework's name for one of its tasks.
    TaskId "task id" |text| is_printable(text, 253) && !text.contains('#'),
        "1 to 253 bytes without white space, control characters or '#'";
}

fn is_role_path(text: &str) -> bool {
    let segments = text.split('/').count();
    segments <= 8 && text.split('/').all(|segment| is_word(segment, 63))
}

impl RolePath {
    /// The role and its ancestors, from the top: `a`, `a/b`, `a/b/c`.
    pub fn with_ancestors(&self) -> impl Iterator<Item = &str> {
        let text = self.as_str();
        text.match_indices('/')
            .map(|(at, _)| &text[..at])
            .chain(std::iter::once(text))
    }
}

/// One launch of a task; unique for ever within its framework. Written `task#attempt`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RunId {
    /// The task.
    pub task: TaskId,
    /// Counts from 1.
    pub attempt: u32,
}

impl RunId {
    /// Makes a run id.
    #[must_use]
    pub fn new(task: TaskId, attempt: u32) -> Self {
        Self { task, attempt }
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.task, self.attempt)
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for RunId {
    type Err = BadText;

    fn from_str(text: &str) -> Result<Self, BadText> {
        let rule = "a task id, '#', and an attempt from 1";
        let bad = || BadText::new("run", text, rule);
        let (task, attempt) = text.rsplit_once('#').ok_or_else(bad)?;
        let attempt: u32 = attempt.parse().map_err(|_| bad())?;
        if attempt == 0 {
            return Err(bad());
        }
        Ok(Self {
            task: TaskId::new(task)?,
            attempt,
        })
    }
}

/// A grant, counted by the state machine.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct GrantId(pub u64);

impl fmt::Display for GrantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "g-{}", self.0)
    }
}

/// An offer of one leader's term. Written `o-term-number`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct OfferId {
    /// The term of the leader that made it; the offer dies with it.
    pub term: u64,
    /// Counts from 1 in each term.
    pub number: u64,
}

impl fmt::Display for OfferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "o-{}-{}", self.term, self.number)
    }
}

impl fmt::Debug for OfferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for OfferId {
    type Err = BadText;

    fn from_str(text: &str) -> Result<Self, BadText> {
        let bad = || BadText::new("offer id", text, "o-TERM-NUMBER");
        let (term, number) = text
            .strip_prefix("o-")
            .and_then(|rest| rest.split_once('-'))
            .ok_or_else(bad)?;
        Ok(Self {
            term: term.parse().map_err(|_| bad())?,
            number: number.parse().map_err(|_| bad())?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_path_lists_its_ancestors_from_the_top() {
        let role = RolePath::new("ml/vision/train").expect("a good path");
        let list: Vec<&str> = role.with_ancestors().collect();
        assert_eq!(list, ["ml", "ml/vision", "ml/vision/train"]);
    }

    #[test]
    fn bad_role_paths_are_refused_with_the_rule() {
        for bad in ["", "/", "a//b", "a/", "a b", "ä"] {
            let error = RolePath::new(bad).expect_err("must be refused");
            assert!(error.to_string().contains("segments"), "{error}");
        }
    }

    #[test]
    fn runs_and_offers_survive_their_text_form() {
        let run: RunId = "train-41/7#3".parse().expect("a run");
        assert_eq!((run.task.as_str(), run.attempt), ("train-41/7", 3));
        assert_eq!(run.to_string(), "train-41/7#3");
        let offer: OfferId = "o-4-17".parse().expect("an offer");
        assert_eq!(offer.to_string(), "o-4-17");
        assert!("x#0".parse::<RunId>().is_err());
    }
}
