//! What a seed decides about its world before it begins: how large it is, and what goes wrong.
//!
//! Each seed leaves some kinds of faults out, so that the others come in combinations which a
//! constant mixture would drown.

use crate::agenda::{SECOND, Time};
use crate::random::Dice;

/// A kind of thing that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    MasterDies,
    MasterDiesAtWrite,
    MasterStandsStill,
    MasterCutOff,
    OneWayCut,
    Split,
    BadWeather,
    SlowDisk,
    DiskFull,
    ClockJumps,
    NewRelease,
    DiskLost,
    SeatsChange,
    HandOver,
    AgentDies,
    AgentDiesAtRecord,
    AgentStandsStill,
    AgentCutOff,
    MachineReboots,
    MachineWiped,
    MachineChanges,
    ClientReplaced,
    ClientStandsStill,
    ClientCutOff,
    OperatorKills,
}

const ALL: [(Wrong, u64); 25] = [
    (Wrong::MasterDies, 10),
    (Wrong::MasterDiesAtWrite, 14),
    (Wrong::MasterStandsStill, 8),
    (Wrong::MasterCutOff, 7),
    (Wrong::OneWayCut, 6),
    (Wrong::Split, 5),
    (Wrong::BadWeather, 8),
    (Wrong::SlowDisk, 5),
    (Wrong::DiskFull, 3),
    (Wrong::ClockJumps, 4),
    (Wrong::NewRelease, 3),
    (Wrong::DiskLost, 5),
    (Wrong::SeatsChange, 8),
    (Wrong::HandOver, 5),
    (Wrong::AgentDies, 6),
    (Wrong::AgentDiesAtRecord, 6),
    (Wrong::AgentStandsStill, 3),
    (Wrong::AgentCutOff, 5),
    (Wrong::MachineReboots, 2),
    (Wrong::MachineWiped, 1),
    (Wrong::MachineChanges, 6),
    (Wrong::ClientReplaced, 4),
    (Wrong::ClientStandsStill, 3),
    (Wrong::ClientCutOff, 5),
    (Wrong::OperatorKills, 2),
];

/// The plan of one world.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) masters: u64,
    pub(crate) agents: usize,
    pub(crate) frameworks: usize,
    /// How long things go wrong.
    pub(crate) troubled: Time,
    /// Of a thousand masters so many begin with an older release.
    pub(crate) old_release: u64,
    /// Of a thousand transfers of snapshots so many break.
    pub(crate) transfers_break: u64,
    /// Between two things that go wrong, at the most.
    pub(crate) pace: Time,
    /// Ticks between the moments at which two masters stand for election.
    pub(crate) stand_step: usize,
    wrong: Vec<(Wrong, u64)>,
}

impl Plan {
    pub(crate) fn new(dice: &mut Dice) -> Self {
        let masters = if dice.chance(700) { 3 } else { 5 };
        let agents = 2 + dice.index(3);
        let frameworks = 1 + dice.index(2);
        let troubled = dice.between(8, 25) * SECOND;
        let old_release = dice.pick(&[0, 0, 500]).unwrap_or(0);
        let transfers_break = dice.pick(&[0, 200, 600]).unwrap_or(0);
        let pace = dice.between(400, 3_000) * 1_000;
        let stand_step = dice.pick(&[5, 5, 1]).unwrap_or(5);
        let mut wrong: Vec<(Wrong, u64)> = ALL.to_vec();
        wrong.retain(|_| dice.chance(650));
        Self {
            masters,
            agents,
            frameworks,
            troubled,
            old_release,
            transfers_break,
            pace,
            stand_step,
            wrong,
        }
    }

    /// What goes wrong next; nothing in a world where nothing does.
    pub(crate) fn choose(&self, dice: &mut Dice) -> Option<Wrong> {
        let sum = self.wrong.iter().map(|(_, weight)| weight).sum();
        let mut draw = dice.below(sum);
        for (wrong, weight) in &self.wrong {
            if draw < *weight {
                return Some(*wrong);
            }
            draw -= weight;
        }
        None
    }
}
