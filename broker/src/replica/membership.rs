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
        let node = match change {
            Change::AddLearner(node) | Change::Promote(node) | Change::Remove(node) => node,
        };
        let (voter, learner) = (self.voters.contains(&node), self.learners.contains(&node));
        match change {
            _ if self.changing => Err("another change is not finished"),
            Change::AddLearner(0) => Err("node id 0 is nobody"),
            Change::AddLearner(_) if voter || learner => Err("that node is a member already"),
            Change::Promote(_) if !learner => Err("only a learner can be given a vote"),
            Change::Remove(_) if !voter && !learner => Err("that node is no member"),
            Change::Remove(_) if voter && self.voters.len() == 1 => {
                Err("the last voter cannot be removed")
            }
            Change::AddLearner(_) | Change::Promote(_) | Change::Remove(_) => Ok(()),
        }
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
    }
}
