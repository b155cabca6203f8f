//! Fencing: once a newer process of a framework has its answer, nothing that an older one begins
//! succeeds.

use std::collections::BTreeMap;

use crate::agenda::Time;

/// When each incarnation of each framework was first answered.
#[derive(Debug, Default)]
pub(crate) struct Fencing {
    answered: BTreeMap<(usize, u64), Time>,
}

impl Fencing {
    pub(crate) fn subscribed(&mut self, framework: usize, incarnation: u64, at: Time) {
        self.answered.entry((framework, incarnation)).or_insert(at);
    }

    /// A call of this incarnation succeeded that was begun at `began`.
    pub(crate) fn succeeded(
        &self,
        framework: usize,
        incarnation: u64,
        began: Time,
        now: Time,
    ) -> Option<String> {
        let newer = (framework, incarnation + 1)..=(framework, u64::MAX);
        let mut newer = self.answered.range(newer);
        let ((_, by), at) = newer.find(|(_, at)| **at < began)?;
        Some(format!(
            "a call of incarnation {incarnation} of framework {framework}, begun at {began}, \
             succeeded at {now}, though incarnation {by} was answered at {at}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_an_older_process_begins_after_the_newer_ones_answer_is_wrong() {
        let mut fencing = Fencing::default();
        fencing.subscribed(0, 1, 10);
        fencing.subscribed(0, 2, 100);

        assert_eq!(
            fencing.succeeded(0, 1, 90, 120),
            None,
            "it was begun before"
        );
        assert_eq!(fencing.succeeded(0, 2, 110, 120), None, "it is the newest");
        assert_eq!(fencing.succeeded(1, 1, 110, 120), None, "another framework");
        assert!(fencing.succeeded(0, 1, 110, 120).is_some());
    }
}
