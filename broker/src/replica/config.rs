//! The replica's settings: timers by rank, limits, when to take snapshots.

/// Ranks that are told apart; whoever comes after them stands with the last.
const RANKS: usize = 16;

/// Ticks of the protocol. One tick is 20 ms in the shipped profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timers {
    /// Ticks without a word from the leader before (pre-)votes are listened to.
    pub election_ticks: usize,
    /// Ticks between the leader's heartbeats.
    pub heartbeat_ticks: usize,
    /// The first rank stands after this many ticks, or one more.
    pub first_stand_ticks: usize,
    /// Each further rank waits this much longer, so that two never stand at once.
    pub stand_step_ticks: usize,
    /// How many different waits one rank draws from. The protocol's library draws by itself, so a
    /// simulator, where everything must repeat, says 1; then `first_stand_ticks` decides alone.
    pub stand_draws: usize,
}

impl Timers {
    /// Tick 20 ms: heartbeat 100 ms, elections at 540, 640, 740 ms by rank.
    #[must_use]
    pub const fn shipped() -> Self {
        Self {
            election_ticks: 25,
            heartbeat_ticks: 5,
            first_stand_ticks: 27,
            stand_step_ticks: 5,
            stand_draws: 2,
        }
    }

    /// Tick 10 ms, for quiet machines: heartbeat 40 ms, elections at 220, 270, 320 ms by rank.
    #[must_use]
    pub const fn fast() -> Self {
        Self {
            election_ticks: 20,
            heartbeat_ticks: 4,
            first_stand_ticks: 22,
            stand_step_ticks: 5,
            stand_draws: 2,
        }
    }

    /// From how many ticks on (inclusive) to how many (exclusive) a node of this rank stands.
    #[must_use]
    pub const fn stand_range(&self, rank: usize) -> (usize, usize) {
        let from = self.first_stand_ticks + rank * self.stand_step_ticks;
        (from, from + self.stand_draws)
    }

    /// The same, where the protocol's library has drawn `drawn` out of the ranges of all ranks.
    pub(super) const fn stand_after(&self, rank: usize, drawn: usize) -> usize {
        let rank = if rank < RANKS { rank } else { RANKS - 1 };
        let (from, to) = self.stand_range(rank);
        if from <= drawn && drawn < to {
            drawn
        } else {
            from + drawn % self.stand_draws
        }
    }
}

/// Where a snapshot is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// On a thread of its own, so that the loop never waits for it.
    Thread,
    /// In the turn that decides it: for simulators, where everything must repeat.
    Inline,
}

/// The replica's settings.
#[derive(Debug, Clone)]
pub struct Config {
    /// Timers.
    pub timers: Timers,
    /// Founders of a new cluster, this node among them; all founders must name the same ones. Used
    /// only when the store is empty. Empty for a node that joins an existing cluster.
    pub founders: Vec<u64>,
    /// The longest command that is taken, in bytes.
    pub command_bytes: usize,
    /// The most bytes that may wait for a majority; above it proposals are refused as busy.
    pub uncommitted_bytes: u64,
    /// A snapshot is taken when this many entries were applied since the last one…
    pub snapshot_entries: u64,
    /// …or this many bytes.
    pub snapshot_bytes: u64,
    /// Entries kept below a snapshot for slow followers…
    pub tail_entries: u64,
    /// …as long as they have no more bytes than this.
    pub tail_bytes: usize,
    /// A trim waits until it is worth at least this many entries.
    pub trim_entries: u64,
    /// Where snapshots are encoded.
    pub encoding: Encoding,
}

impl Config {
    /// The shipped settings.
    #[must_use]
    pub fn shipped(founders: Vec<u64>) -> Self {
        Self {
            timers: Timers::shipped(),
            founders,
            command_bytes: (4 << 20) + (64 << 10),
            uncommitted_bytes: 64 << 20,
            snapshot_entries: 100_000,
            snapshot_bytes: 64 << 20,
            tail_entries: 20_000,
            tail_bytes: 32 << 20,
            trim_entries: 10_000,
            encoding: Encoding::Thread,
        }
    }

    /// The raft crate's own settings for node `id`. The ranges of all ranks: a node's rank changes
    /// with the members.
    pub(super) fn raft(&self, id: u64, applied: u64) -> raft::Config {
        let (min_election_tick, _) = self.timers.stand_range(0);
        let (_, max_election_tick) = self.timers.stand_range(RANKS - 1);
        raft::Config {
            id,
            election_tick: self.timers.election_ticks,
            heartbeat_tick: self.timers.heartbeat_ticks,
            min_election_tick,
            max_election_tick,
            applied,
            // The crate's default is one entry per message.
            max_size_per_msg: 1 << 20,
            max_inflight_msgs: 256,
            check_quorum: true,
            pre_vote: true,
            read_only_option: raft::ReadOnlyOption::Safe,
            max_uncommitted_size: self.uncommitted_bytes.max(1 << 20),
            max_committed_size_per_ready: 4 << 20,
            ..raft::Config::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ranges_of_two_ranks_never_touch_and_begin_above_the_vote_lease() {
        for timers in [Timers::shipped(), Timers::fast()] {
            for rank in 0..5 {
                let (from, to) = timers.stand_range(rank);
                assert!(from >= timers.election_ticks + 2);
                assert!(to < timers.stand_range(rank + 1).0);
            }
        }
    }

    #[test]
    fn whatever_the_raft_crate_has_drawn_a_node_stands_within_the_range_of_its_rank() {
        for timers in [Timers::shipped(), Timers::fast()] {
            let config = Config {
                timers,
                ..Config::shipped(vec![1])
            };
            let raft = config.raft(1, 0);
            assert!(raft.validate().is_ok());
            for rank in 0..RANKS + 2 {
                let (from, to) = timers.stand_range(rank.min(RANKS - 1));
                for drawn in raft.min_election_tick..raft.max_election_tick {
                    let after = timers.stand_after(rank, drawn);
                    assert!((from..to).contains(&after), "rank {rank}, drawn {drawn}");
                    assert_eq!(timers.stand_after(rank, after), after);
                }
            }
        }
    }
}
