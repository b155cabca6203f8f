//! What the kernel counted for one run.

/// What the kernel counted for a run; 0 = none or unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Facts {
    /// CPU time of all its processes, nanoseconds.
    pub cpu_ns: u64,
    /// Most memory at one time, bytes.
    pub memory_peak_bytes: u64,
    /// Time kept waiting by its CPU limit, nanoseconds.
    pub throttled_ns: u64,
    /// Processes killed for want of memory.
    pub oom_kills: u64,
    /// Times its own memory limit was reached.
    pub memory_limit_hits: u64,
    /// Times its group's memory limit was reached.
    pub group_limit_hits: u64,
    /// Forks refused by its process limit.
    pub pids_limit_hits: u64,
}

impl Facts {
    /// Why processes were killed for want of memory, if any were.
    #[must_use]
    pub fn out_of_memory(&self) -> Option<OutOfMemory> {
        if self.oom_kills == 0 {
            None
        } else if self.memory_limit_hits > 0 {
            Some(OutOfMemory::OwnLimit)
        } else if self.group_limit_hits > 0 {
            Some(OutOfMemory::GroupLimit)
        } else {
            Some(OutOfMemory::Node)
        }
    }
}

/// Whose memory ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutOfMemory {
    /// The run's own limit; code `OUT_OF_MEMORY`.
    OwnLimit,
    /// Its group's limit; code `OUT_OF_MEMORY`.
    GroupLimit,
    /// The node's; code `NODE_OUT_OF_MEMORY`.
    Node,
}
