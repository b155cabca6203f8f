//! Deliberately broken clusters: each must be caught, or the checkers check nothing.
//!
//! Almost all are broken at a boundary that the simulator holds anyway: what a store keeps, what a
//! link carries, what a process does after its start. One needs a defect inside the state, which is
//! compiled in only with the feature `broken`. Nothing here can be asked for from the command line.

use std::fmt;

/// One way to be wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Variant {
    /// Votes and append responses leave before what they promise is written.
    SendBeforePersist,
    /// Flushes say yes and make nothing durable until much later.
    AcknowledgeBeforeDurable,
    /// Neither the term nor the vote is kept over a restart.
    HardStateForgotten,
    /// A master with an empty disk starts again under its old node id.
    NodeIdReused,
    /// Nobody tells the leader that the sending of a snapshot has failed.
    SnapshotReportForgotten,
    /// Ticks that were missed in a pause are made up for all at once.
    TickBurst,
    /// The membership is saved with another index than the one it holds at.
    MembershipApart,
    /// What is owed to an agent or a framework is not sent again on a new stream.
    OwedForgotten,
    /// A launch is not compared with the ledger again.
    GrantUnchecked,
    /// A snapshot says that it holds less than it does, so commands after it apply twice.
    DoubleApply,
    /// Whoever believes to lead answers reads at once.
    StaleReads,
    /// Calls of an older process are let through under the newer one's incarnation.
    FenceSkipped,
    /// Store writes are sent again without the number that makes them one call.
    CallsWithoutNumber,
    /// An agent forgets a status as soon as it is sent.
    StatusForgotten,
    /// An agent that restarts prepares runs again that are alive.
    StartedTwice,
    /// An agent acts before its record of it is durable.
    ActsBeforeRecord,
    /// The log is cut beyond what the snapshot holds.
    TrimmedTooFar,
    /// Statuses reach a framework out of their order.
    StreamReordered,
}

impl Variant {
    /// All of them.
    pub const ALL: [Self; 18] = [
        Self::SendBeforePersist,
        Self::AcknowledgeBeforeDurable,
        Self::HardStateForgotten,
        Self::NodeIdReused,
        Self::SnapshotReportForgotten,
        Self::TickBurst,
        Self::MembershipApart,
        Self::OwedForgotten,
        Self::GrantUnchecked,
        Self::DoubleApply,
        Self::StaleReads,
        Self::FenceSkipped,
        Self::CallsWithoutNumber,
        Self::StatusForgotten,
        Self::StartedTwice,
        Self::ActsBeforeRecord,
        Self::TrimmedTooFar,
        Self::StreamReordered,
    ];

    /// Needs the feature `broken`.
    #[must_use]
    pub fn needs_feature(self) -> bool {
        self == Self::GrantUnchecked
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}
