//! What a master says when it turns an agent away, and whether the agent ends by it.

use std::time::Duration;

use mete_model::Code;
use tokio::time::Instant;
use tonic_types::StatusExt as _;

/// How long an agent that was never registered waits for a name that another one has. A master
/// takes some seconds to see that an agent is gone: one whose disk was wiped and that comes back at
/// once must not end by its own shadow.
const NAME_PATIENCE: Duration = Duration::from_secs(12);

/// A refusal that no other master and no waiting changes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("register node '{node}' with the master at {master}: {detail}; {advice}")]
pub struct TurnedAway {
    /// Stable code.
    pub code: Code,
    /// The node's name.
    pub node: String,
    /// Who said so.
    pub master: String,
    /// In the master's words.
    pub detail: String,
    /// What to do.
    pub advice: &'static str,
}

/// Refusals heard so far.
#[derive(Debug)]
pub(super) struct Refusals {
    registered: bool,
    name_taken_since: Option<Instant>,
}

impl Refusals {
    /// `registered`: a master has welcomed this agent in an earlier life.
    pub(super) fn new(registered: bool) -> Self {
        Self {
            registered,
            name_taken_since: None,
        }
    }

    /// A master has welcomed it.
    pub(super) fn welcomed(&mut self) {
        self.registered = true;
        self.name_taken_since = None;
    }

    /// Takes a refusal in and says it. True if the agent is to end: it was never registered, so
    /// nothing of it runs, and nothing changes by asking again. One that was registered keeps on:
    /// its tasks run, and somebody may mend what is wrong.
    pub(super) fn heard(&mut self, refused: &TurnedAway, now: Instant) -> bool {
        let code = refused.code;
        if self.registered {
            tracing::error!(
                %code,
                %refused,
                "the master turns this agent away; it is asked again, and what runs goes on"
            );
            return false;
        }
        if code != Code::InUse {
            return true;
        }
        let first = self.name_taken_since.is_none();
        let since = *self.name_taken_since.get_or_insert(now);
        if first {
            tracing::error!(
                %code,
                %refused,
                "the master turns this agent away; it is asked again for some seconds, then this \
                 agent ends"
            );
        }
        now.saturating_duration_since(since) >= NAME_PATIENCE
    }
}

/// The refusal in a master's last message of a stream, or in its answer to the first one.
pub(super) fn read(node: &str, master: &str, code: &str, detail: &str) -> Option<TurnedAway> {
    let code: Code = code.parse().ok()?;
    let (detail, advice) = if code == Code::InUse {
        // The master's own advice is part of the one here.
        let facts = detail.split_once("; ").map_or(detail, |(facts, _)| facts);
        let advice = "give this node another name with --name, or stop the other agent and start \
                      this one again";
        (facts, advice)
    } else if code == Code::Invalid {
        (
            detail,
            "change what this agent is started with, and start it again",
        )
    } else {
        return None;
    };
    Some(TurnedAway {
        code,
        node: node.to_owned(),
        master: master.to_owned(),
        detail: detail.to_owned(),
        advice,
    })
}

/// As [`read`], of a call that was refused.
pub(super) fn of_status(node: &str, master: &str, status: &tonic::Status) -> Option<TurnedAway> {
    let info = status.get_details_error_info()?;
    read(node, master, &info.reason, status.message())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(code: &str) -> TurnedAway {
        read("n1", "m1:7443", code, "node name n1 belongs to agent A").expect("a final word")
    }

    #[test]
    fn a_name_that_is_taken_ends_an_agent_that_was_never_registered_after_some_patience() {
        let begin = Instant::now();
        let mut refusals = Refusals::new(false);
        assert!(!refusals.heard(&refused("IN_USE"), begin));
        assert!(!refusals.heard(&refused("IN_USE"), begin + NAME_PATIENCE / 2));
        assert!(refusals.heard(&refused("IN_USE"), begin + NAME_PATIENCE));

        let mut refusals = Refusals::new(false);
        assert!(
            refusals.heard(&refused("INVALID"), begin),
            "nothing to wait for"
        );
    }

    #[test]
    fn an_agent_that_was_ever_registered_keeps_on() {
        let begin = Instant::now();
        let mut refusals = Refusals::new(true);
        let mut welcomed = Refusals::new(false);
        welcomed.welcomed();
        for refusals in [&mut refusals, &mut welcomed] {
            for code in ["IN_USE", "INVALID"] {
                assert!(!refusals.heard(&refused(code), begin));
                assert!(!refusals.heard(&refused(code), begin + NAME_PATIENCE * 9));
            }
        }
    }

    #[test]
    fn only_final_words_are_refusals_and_they_say_what_to_do() {
        for passing in ["NO_LEADER", "BUSY", "OF_TOMORROW", ""] {
            assert_eq!(read("n1", "m1:7443", passing, "later"), None);
        }
        let said = refused("IN_USE").to_string();
        assert!(said.contains("'n1'") && said.contains("--name"), "{said}");
    }
}
