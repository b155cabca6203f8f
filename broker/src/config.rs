//! The settings of one master process, checked once.

use std::collections::BTreeMap;
use std::path::PathBuf;

use mete_model::Span;

use crate::leader::presence;
use crate::replica;
use crate::request::Refusal;

/// Everything that a master is told at its start.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where its log and snapshots live.
    pub storage: Storage,
    /// This master's number among the founders; 1 for a single master.
    pub node: u64,
    /// All founders of the cluster, this one included. Used only when the store is new; empty for
    /// one that was founded before, or joins.
    pub founders: Vec<u64>,
    /// Where each founder is dialled; empty for a cluster of one, which says so itself.
    pub masters: BTreeMap<u64, String>,
    /// The highest level of commands that this master may agree to.
    pub level: u32,
    /// What clients are told to dial, `host:port`; empty = the address of the first listener.
    pub advertise: String,
    /// Permits listeners that are not loopback although nothing is encrypted yet.
    pub insecure: bool,
    /// Times and rates.
    pub timing: Timing,
    /// Events that may wait for the loop; beyond it calls are refused with `BUSY`.
    pub queue: usize,
    /// Settings of the replica.
    pub replica: replica::Config,
}

/// Where a master keeps what must survive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Storage {
    /// In this directory, which is made when it is missing and `found` is set.
    Directory {
        /// The path.
        path: PathBuf,
        /// Found a new cluster when the directory holds none.
        found: bool,
    },
    /// In memory: gone with the process. For tests and benches.
    Memory,
}

/// Times and rates. Defaults are those of the design's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long an offer stands: 1 to 30 s.
    pub offer_lifetime: Span,
    /// Between two heartbeats of a framework's stream.
    pub heartbeat: Span,
    /// Between two beacons, in both directions of an agent's stream.
    pub beacon: Span,
    /// Without a beacon for so long an agent is unreachable; also how long agents and frameworks
    /// have to come back to a new leader.
    pub silence: Span,
    /// Streams of agents admitted per second.
    pub admissions_per_second: u64,
    /// How long a call or a stream is held while there is no leader.
    pub hold: Span,
    /// Between two full rounds of the allocator while something waits.
    pub full_round: Span,
    /// Between two looks at what time makes necessary.
    pub due_turn: Span,
    /// Between two looks at who is missing.
    pub slow_turn: Span,
    /// One tick of the replica.
    pub tick: Span,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            offer_lifetime: Span::seconds(10),
            heartbeat: Span::seconds(3),
            beacon: Span::seconds(3),
            silence: Span::seconds(15),
            admissions_per_second: 20_000,
            hold: Span::seconds(2),
            full_round: Span::seconds(1),
            due_turn: Span(500),
            slow_turn: Span(250),
            tick: Span(20),
        }
    }
}

impl Timing {
    /// The part that presence goes by.
    #[must_use]
    pub fn presence(&self) -> presence::Timing {
        presence::Timing {
            silence: self.silence.0,
            admissions_per_second: self.admissions_per_second,
        }
    }
}

impl Config {
    /// A single master that keeps its state in `storage`.
    #[must_use]
    pub fn single(storage: Storage) -> Self {
        Self {
            storage,
            node: 1,
            founders: vec![1],
            masters: BTreeMap::new(),
            level: mete_state::LEVEL,
            advertise: String::new(),
            insecure: false,
            timing: Timing::default(),
            queue: 16_384,
            replica: replica::Config::shipped(vec![1]),
        }
    }

    /// Checks every setting.
    ///
    /// # Errors
    /// An `INVALID` that names the setting and what is permitted.
    pub fn check(&self) -> Result<(), Refusal> {
        let timing = &self.timing;
        let within = [
            (
                "offer_lifetime",
                timing.offer_lifetime,
                Span::seconds(1),
                Span::seconds(30),
            ),
            ("heartbeat", timing.heartbeat, Span(100), Span::seconds(9)),
            ("beacon", timing.beacon, Span(100), Span::seconds(60)),
            ("silence", timing.silence, Span(500), Span::minutes(60)),
            ("hold", timing.hold, Span::ZERO, Span::seconds(30)),
            ("full_round", timing.full_round, Span(100), Span::minutes(1)),
            ("due_turn", timing.due_turn, Span(20), Span::seconds(10)),
            ("slow_turn", timing.slow_turn, Span(20), Span::seconds(10)),
            ("tick", timing.tick, Span(5), Span(200)),
        ];
        for (name, value, least, most) in within {
            if value < least || value > most {
                let fault = format!("{value} is not within {least} to {most}");
                return Err(Refusal::field(name, fault));
            }
        }
        if timing.silence <= timing.beacon {
            let fault = format!(
                "{} must be longer than beacon ({})",
                timing.silence, timing.beacon
            );
            return Err(Refusal::field("silence", fault));
        }
        if timing.admissions_per_second == 0 {
            return Err(Refusal::field(
                "admissions_per_second",
                "0 admits no agent; give 1 or more",
            ));
        }
        if self.queue == 0 || self.queue > 1 << 20 {
            return Err(Refusal::field("queue", "is not within 1 to 1048576"));
        }
        // None at all: the store says who this is.
        if !self.founders.is_empty() && (self.node == 0 || !self.founders.contains(&self.node)) {
            let fault = format!(
                "{} is not among the founders {:?}",
                self.node, self.founders
            );
            return Err(Refusal::field("node", fault));
        }
        let unnamed = |founder: &&u64| !self.masters.contains_key(founder);
        if self.founders.len() > 1
            && let Some(founder) = self.founders.iter().find(unnamed)
        {
            let fault = format!("founder {founder} has no address, and the others must find it");
            return Err(Refusal::field("masters", fault));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_pass_and_each_bad_setting_is_named() {
        let good = Config::single(Storage::Memory);
        assert_eq!(good.check(), Ok(()));

        let mut bad = good.clone();
        bad.timing.offer_lifetime = Span::seconds(31);
        let refusal = bad.check().expect_err("too long");
        assert!(refusal.to_string().contains("offer_lifetime"), "{refusal}");
        assert!(refusal.to_string().contains("1s to 30s"), "{refusal}");

        let mut bad = good.clone();
        bad.timing.beacon = Span::seconds(15);
        assert!(bad.check().is_err());
        let mut bad = good;
        bad.node = 2;
        assert!(bad.check().is_err());
    }
}
