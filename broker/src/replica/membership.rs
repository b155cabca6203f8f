//! Who belongs to the cluster: the changes that may be proposed and how they apply.
//!
//! One change at a time, always a learner first: an empty voter would count for the majority at
//! once. Whether a change makes sense is decided before it is proposed; at apply every replica does
//! the same with it.

/// One change of the membership.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Let this node receive the log without a vote.
    AddLearner(u64),
    /// Give a learner its vote. Only when it has caught up.
    Promote(u64),
    /// Take the node out. Its id is never used again.
    Remove(u64),
    /// Give a learner its vote and take a voter out, in one step that needs both majorities.
    Replace {
        /// The learner that has caught up.
        enters: u64,
        /// The voter that goes.
        leaves: u64,
    },
    /// End a step that needs two majorities and was left open by a leader that is gone.
    Settle,
}

/// The members at one index of the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Members {
    /// Those whose votes count, in order of their ids.
    pub voters: Vec<u64>,
    /// Those who only listen.
    pub learners: Vec<u64>,
    /// True in the middle of a change that needs two majorities.
    pub changing: bool,
}

impl Members {
    /// Which voter this node is, from 0 by order of ids; those who are none come after all voters.
    #[must_use]
    pub fn rank(&self, node: u64) -> usize {
        self.voters
            .iter()
            .position(|voter| *voter == node)
            .unwrap_or(self.voters.len())
    }

    /// True if this node alone is the majority.
    #[must_use]
    pub fn is_alone(&self, node: u64) -> bool {
        self.voters == [node] && !self.changing
    }

    /// Why a change would be refused, before it is proposed.
    ///
    /// # Errors
    /// A fragment for the operator.
    pub fn check(&self, change: Change) -> Result<(), &'static str> {
        let voter = |node: u64| self.voters.contains(&node);
        let learner = |node: u64| self.learners.contains(&node);
        let refuse = |refused: bool, why: &'static str| if refused { Err(why) } else { Ok(()) };
        if change == Change::Settle {
            return refuse(!self.changing, "no change is open");
        }
        refuse(self.changing, "another change is not finished")?;
        match change {
            Change::AddLearner(node) => {
                refuse(node == 0, "node id 0 is nobody")?;
                let member = voter(node) || learner(node);
                refuse(member, "that node is a member already")
            }
            Change::Promote(node) => refuse(!learner(node), "only a learner can be given a vote"),
            Change::Remove(node) => {
                refuse(!voter(node) && !learner(node), "that node is no member")?;
                let last = voter(node) && self.voters.len() == 1;
                refuse(last, "the last voter cannot be removed")
            }
            Change::Replace { enters, leaves } => {
                refuse(!learner(enters), "only a learner can be given a vote")?;
                refuse(!voter(leaves), "only a voter can be replaced")
            }
            Change::Settle => Ok(()),
        }
    }

    /// True if the node has a vote or receives the log.
    #[must_use]
    pub fn has(&self, node: u64) -> bool {
        self.voters.contains(&node) || self.learners.contains(&node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> Members {
        Members {
            voters: vec![3, 5, 9],
            learners: vec![12],
            changing: false,
        }
    }

    #[test]
    fn rank_follows_the_order_of_node_ids() {
        assert_eq!([3, 5, 9, 12].map(|node| three().rank(node)), [0, 1, 2, 3]);
    }

    #[test]
    fn a_voter_comes_only_out_of_a_learner_and_the_last_one_stays() {
        let alone = Members {
            voters: vec![3],
            ..Members::default()
        };

        assert!(three().check(Change::Promote(12)).is_ok());
        assert!(three().check(Change::Promote(77)).is_err());
        assert!(three().check(Change::AddLearner(5)).is_err());
        assert!(alone.check(Change::Remove(3)).is_err());
        assert!(three().check(Change::Remove(3)).is_ok());
        let replace = |enters, leaves| three().check(Change::Replace { enters, leaves });
        assert!(replace(12, 3).is_ok());
        assert!(replace(5, 3).is_err());
        assert!(replace(12, 77).is_err());
    }

    #[test]
    fn in_the_middle_of_a_change_only_its_end_may_be_asked_for() {
        let open = Members {
            changing: true,
            ..three()
        };

        assert!(open.check(Change::Settle).is_ok());
        assert!(open.check(Change::Remove(3)).is_err());
        assert!(three().check(Change::Settle).is_err());
    }
}
