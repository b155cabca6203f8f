//! What a job wants, as a claim.

use mete_proto::batch::v1 as wire;
use mete_proto::convert::{At, Faults, read_shape, whole};
use mete_sdk::{Claim, Shape};

use crate::job::Job;

/// The shape of a job's elements.
pub(crate) fn shape(spec: &wire::JobSpec) -> Result<Shape, Faults> {
    whole(|faults| read_shape(spec.shape.clone(), At::root("spec").field("shape"), faults))
}

/// The claim of a job, for `count` tasks in all.
pub(crate) fn claim(job: &Job, count: u32) -> Result<Claim, Faults> {
    let mut claim = Claim::from_shape(shape(&job.spec)?)
        .role(&job.spec.role)
        .count(count)
        .priority(job.spec.priority)
        .label("job", &job.name);
    if job.spec.time_limit_ms > 0 {
        let limit = std::time::Duration::from_millis(job.spec.time_limit_ms);
        claim = claim.expected_runtime(limit);
    }
    Ok(claim)
}
