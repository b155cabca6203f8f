//! Stable codes: one list for API, command line, SDK and page. Additions only.
//!
//! Each code has a page `docs/errors/<CODE>.md`, which is also `mete help CODE`. Whether a call may
//! be repeated is a property of the code, never of a text.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::text::BadText;

/// Where a code belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Answers to calls.
    Answer,
    /// Why a run ended.
    End,
    /// Why a claim waits.
    Waiting,
    /// Why a node does not serve a claim.
    Node,
    /// Said by the command line or a daemon itself.
    Local,
}

macro_rules! codes {
    ($($part:ident { $($(#[$doc:meta])* $name:ident $text:literal;)* })*) => {
        /// A stable reason code.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {$($(
            $(#[$doc])*
            $name,
        )*)*}

        impl Code {
            /// Every code there is.
            pub const ALL: &[Self] = &[$($(Self::$name,)*)*];

            /// The code as it stands on the wire, in tables and in documents.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {$($(Self::$name => $text,)*)*}
            }

            /// Where it belongs.
            #[must_use]
            pub fn part(self) -> Part {
                match self {$($(Self::$name => Part::$part,)*)*}
            }
        }
    };
}

codes! {
    Answer {
        /// Done.
        Ok "OK";
        /// This master does not lead; carries the leader's address and term.
        NotLeader "NOT_LEADER";
        /// No leader within the time a call is held.
        NoLeader "NO_LEADER";
        /// Superseded by a newer process: stop.
        StaleIncarnation "STALE_INCARNATION";
        /// The framework was ended on purpose.
        TornDown "TORN_DOWN";
        /// Not permitted; names principal, action, object.
        Denied "DENIED";
        /// Fields at fault, with the permitted range.
        Invalid "INVALID";
        /// Too much at once; carries when to come again.
        Busy "BUSY";
        /// An earlier call of this framework has not arrived.
        CallGap "CALL_GAP";
        /// Demand of an older version.
        StaleDemand "STALE_DEMAND";
        /// Changes from that revision on are no longer held.
        Compacted "COMPACTED";
        /// The offer's time has passed.
        OfferExpired "OFFER_EXPIRED";
        /// The offer was taken back; says why.
        OfferRescinded "OFFER_RESCINDED";
        /// Names that are granted meanwhile.
        NamesTaken "NAMES_TAKEN";
        /// Amounts that are granted meanwhile.
        NotEnough "NOT_ENOUGH";
        /// Names that a topology change removed.
        StaleEpoch "STALE_EPOCH";
        /// More than the offer or the claim carries.
        NotOffered "NOT_OFFERED";
        /// The agent is unreachable, recovering or gone.
        AgentUnavailable "AGENT_UNAVAILABLE";
        /// This run exists; says its phase and place.
        AlreadyExists "ALREADY_EXISTS";
        /// Offers of several agents in one accept.
        BundleSplit "BUNDLE_SPLIT";
        /// Refused because another operation of the same accept was.
        NotAlone "NOT_ALONE";
        /// A store key has another revision than expected.
        Conflict "CONFLICT";
        /// The framework's store would pass its limit.
        StoreFull "STORE_FULL";
        /// The run is over; says how.
        AlreadyTerminal "ALREADY_TERMINAL";
        /// Nothing of this name is known.
        NotFound "NOT_FOUND";
        /// A name or prefix that means several things.
        Ambiguous "AMBIGUOUS";
        /// A role that frameworks still hold.
        InUse "IN_USE";
        /// It would leave fewer answering masters than a majority; carries the arithmetic.
        QuorumLoss "QUORUM_LOSS";
        /// This master was taken out of its cluster.
        MasterRemoved "MASTER_REMOVED";
        /// Outcome unknown: ask again with the same call number.
        Unknown "UNKNOWN";
        /// This release does not have it.
        Unsupported "UNSUPPORTED";
    }
    End {
        /// Ended with an exit code other than 0.
        ExitCode "EXIT_CODE";
        /// Ended by a signal nobody of ours sent.
        Signal "SIGNAL";
        /// The command could not be executed.
        ExecFailed "EXEC_FAILED";
        /// It ended, but nobody saw how.
        ExitUnknown "EXIT_UNKNOWN";
        /// Directory, limits or files could not be made.
        PrepareFailed "PREPARE_FAILED";
        /// Not running in time.
        LaunchTimeout "LAUNCH_TIMEOUT";
        /// Ran longer than it may.
        TimeLimit "TIME_LIMIT";
        /// Passed its memory limit.
        OutOfMemory "OUT_OF_MEMORY";
        /// The machine ran out of memory.
        NodeOutOfMemory "NODE_OUT_OF_MEMORY";
        /// The process that watched over it died.
        SupervisorLost "SUPERVISOR_LOST";
        /// Its framework asked for it.
        KilledByFramework "KILLED_BY_FRAMEWORK";
        /// An operator asked for it.
        KilledByOperator "KILLED_BY_OPERATOR";
        /// Its framework was torn down, and so are all its runs.
        KilledByTeardown "KILLED_BY_TEARDOWN";
        /// Its agent is gone.
        AgentGone "AGENT_GONE";
        /// An operator said that its node never comes back.
        GoneByOperator "GONE_BY_OPERATOR";
        /// Its node was started anew.
        NodeRebooted "NODE_REBOOTED";
        /// Its node came back with an empty state directory.
        AgentWiped "AGENT_WIPED";
        /// Its agent came back without it.
        NotOnNode "NOT_ON_NODE";
        /// Its agent never got it.
        NeverStarted "NEVER_STARTED";
        /// The agent has no room on its disk.
        DiskPressure "DISK_PRESSURE";
        /// A device of the grant is gone.
        DeviceGone "DEVICE_GONE";
    }
    Waiting {
        /// Can never fit this cluster; carries the failing number.
        Infeasible "INFEASIBLE";
        /// An offer is out.
        Offered "OFFERED";
        /// The sum is free, no single place has the shape.
        NoShape "NO_SHAPE";
        /// Not enough is free.
        NoCapacity "NO_CAPACITY";
        /// Another claim goes first.
        Order "ORDER";
        /// The framework is disconnected or suppressed.
        FrameworkAway "FRAMEWORK_AWAY";
        /// Everything that fits was declined.
        Declined "DECLINED";
        /// No agent is ready.
        NoAgents "NO_AGENTS";
        /// Not looked at yet.
        NotDecided "NOT_DECIDED";
        /// Nothing waits.
        NothingWaits "NOTHING_WAITS";
    }
    Node {
        /// Too little CPU free.
        CpuShort "CPU_SHORT";
        /// Too little memory free.
        MemoryShort "MEMORY_SHORT";
        /// Too little disk free.
        DiskShort "DISK_SHORT";
        /// Too few exclusive cores free.
        CoresShort "CORES_SHORT";
        /// Too few devices free.
        DeviceShort "DEVICE_SHORT";
        /// No such device on the node at all.
        NoDevice "NO_DEVICE";
        /// Too small even when empty.
        TooSmall "TOO_SMALL";
        /// Unreachable, recovering or gone.
        NotReady "NOT_READY";
        /// The framework declined it.
        NodeDeclined "NODE_DECLINED";
    }
    Local {
        /// No cluster is configured.
        NoContext "NO_CONTEXT";
        /// No master could be reached.
        Unreachable "UNREACHABLE";
        /// Wrong flags, keys or values.
        Usage "USAGE";
        /// A port is in use.
        AddressInUse "ADDRESS_IN_USE";
        /// An address that is not loopback, without `--insecure`.
        NotLoopback "NOT_LOOPBACK";
        /// The state directory belongs to something else, or is missing.
        StateDirectory "STATE_DIRECTORY";
        /// Another process uses the state directory.
        StateLocked "STATE_LOCKED";
        /// A store file is damaged.
        StoreDamaged "STORE_DAMAGED";
        /// No space left where state is kept.
        DiskFull "DISK_FULL";
        /// Agents on this machine were given more than it has.
        PartTaken "PART_TAKEN";
        /// `--check`: what is shown is not as one wants it.
        CheckFailed "CHECK_FAILED";
        /// Waited as long as asked; the work goes on.
        TimedOut "TIMED_OUT";
        /// A file could not be read or written.
        File "FILE";
        /// Something that must not happen: a defect of mete.
        Internal "INTERNAL";
    }
    // Behind all others, whatever their part: a code's place is in the digests of old snapshots.
    Answer {
        /// The run that a launch is to replace may not be replaced now.
        NotReplaceable "NOT_REPLACEABLE";
    }
    End {
        /// Another run of its task took its place while its agent was unreachable.
        Replaced "REPLACED";
        /// Its node had not heard from a leader for too long.
        OutOfContact "OUT_OF_CONTACT";
    }
}

impl Code {
    /// Says whether the same call may be sent again later, unchanged.
    #[must_use]
    pub fn is_retryable(self) -> bool {
        matches!(
            self,
            Self::NotLeader | Self::NoLeader | Self::Busy | Self::CallGap | Self::Unknown
        )
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Code {
    type Err = BadText;

    fn from_str(text: &str) -> Result<Self, BadText> {
        Self::ALL
            .iter()
            .copied()
            .find(|code| code.as_str() == text)
            .ok_or_else(|| BadText::new("code", text, "one of the codes in docs/errors"))
    }
}

impl Serialize for Code {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_found_by_its_own_text_and_by_no_other() {
        let mut texts: Vec<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
        for code in Code::ALL {
            assert_eq!(code.as_str().parse(), Ok(*code));
        }
        texts.sort_unstable();
        let before = texts.len();
        texts.dedup();
        assert_eq!(texts.len(), before, "two codes share a text");
    }
}
