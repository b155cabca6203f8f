//! Refused reads as gRPC statuses.

use mete_model::Code;
use tonic::Status;

use super::refusal::to_status;
use super::status;
use crate::admin::Problem;

/// The status of a refused read.
#[must_use]
pub fn from_problem(problem: &Problem) -> Status {
    match problem {
        Problem::Refused(refusal) => to_status(refusal),
        Problem::Compacted { asked, oldest } => status::with_facts(
            Code::Compacted,
            format!(
                "changes after revision {asked} are no longer held, the oldest that can be watched \
                 from is {oldest}; list again and watch from the list's revision"
            ),
            &[("oldest_revision", oldest.to_string())],
        ),
        Problem::Slow { resume } => status::with_facts(
            Code::Busy,
            format!("this watch did not keep up and is closed; go on from revision {resume}"),
            &[("resume_revision", resume.to_string())],
        ),
        Problem::Ambiguous { name, candidates } => {
            let list = candidates.join(", ");
            status::with_facts(
                Code::Ambiguous,
                format!("'{name}' may mean {list}; give more of the name"),
                &[("candidates", list.clone())],
            )
        }
    }
}
