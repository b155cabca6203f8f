//! The fault scripts: what goes wrong, and when.

use std::time::Duration;

use mete_sdk::Code;

use super::{Failures, Trial};
use crate::faults::{Method, Resumes};

/// Calls that change something.
const LOGGED: [Method; 6] = [
    Method::UpdateDemand,
    Method::Accept,
    Method::Decline,
    Method::Kill,
    Method::StoreWrite,
    Method::Acknowledge,
];

macro_rules! scripts {
    ($($(#[$doc:meta])* $name:ident $text:literal;)*) => {
        /// One thing that goes wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Script {$($(#[$doc])* $name,)*}

        /// All of them.
        pub const SCRIPTS: &[Script] = &[$(Script::$name,)*];

        impl Script {
            /// What goes wrong, in words.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {$(Self::$name => $text,)*}
            }
        }
    };
}

scripts! {
    /// The plain case, so that a failure elsewhere means something.
    Nothing "nothing goes wrong";
    /// Power cut before any offer.
    LeaderDiesEarly "the leader dies before the first offer";
    /// Power cut while tasks run.
    LeaderDiesRunning "the leader dies while tasks run";
    /// Power cuts one after the other.
    LeaderDiesThrice "the leader dies three times";
    /// Power cut with statuses that nobody acknowledged.
    LeaderDiesUnacknowledged "the leader dies before ends are acknowledged";
    /// No master for longer than an agent may be silent.
    NoLeaderForLong "there is no leader for a minute";
    /// The stream ends before any offer.
    StreamDropsEarly "the stream drops before the first offer";
    /// The stream ends while tasks run.
    StreamDropsRunning "the stream drops while tasks run";
    /// The stream ends again and again.
    StreamDropsOften "the stream drops ten times";
    /// Case 55.
    Silence "the network is silent for half a minute";
    /// Case 45.
    DemandRequestLost "the request of a demand is lost";
    /// Case 45.
    DemandReplyLost "the reply to a demand is lost";
    /// Case 37.
    AcceptRequestLost "the request of an accept is lost";
    /// Case 37.
    AcceptReplyLost "the reply to an accept is lost";
    /// Case 37.
    AcceptTwice "every accept arrives twice";
    /// The reply to an accept is lost together with the leader.
    AcceptReplyLostWithLeader "the leader dies after an accept whose reply is lost";
    /// The broker knows, the framework does not.
    AcknowledgeReplyLost "the reply to an acknowledgement is lost";
    /// The broker does not know.
    AcknowledgeRequestLost "the request of an acknowledgement is lost";
    /// Statuses are sent again meanwhile.
    AcknowledgeSlow "acknowledgements take five seconds";
    /// At least once means also twice.
    UpdatesTwice "every status comes twice";
    /// Of runs that are over and forgotten, too.
    UpdatesReplayed "every status that ever came comes again, late and out of place";
    /// Offers, rescinds and a leader's death may overtake what a task says.
    UpdatesLate "statuses come ten seconds late";
    /// Twice, and in the snapshot as well.
    UpdatesTwiceAndDrops "every status comes twice and the stream drops";
    /// What was handled is kept, whatever the broker says meanwhile.
    AcknowledgeRefused "acknowledgements are refused, with and without hope";
    /// `BUSY` means nothing was done: come again.
    Busy "the broker is too busy for one call of each kind after the other";
    /// Every call of a kind for a while: later ones must not pass.
    BusyForLong "the broker is too busy for accepts and demands for long";
    /// Nothing can be logged.
    DiskFullEarly "the disk of the master is full at the start";
    /// Nothing can be logged, ends included.
    DiskFullRunning "the disk of the master is full while tasks run";
    /// The leader tells what changed.
    Resumed "the stream drops ten times and is resumed with changes only";
    /// Sometimes this, sometimes that.
    ResumedAndNot "the stream drops and is resumed with changes and with everything in turn";
    /// Case 33.
    OffersRescinded "all offers are rescinded again and again";
    /// A process that has declared and not launched.
    ProcessDiesEarly "the framework's process dies after it declared";
    /// A process that has launched.
    ProcessDiesRunning "the framework's process dies while its tasks run";
    /// Both at once.
    ProcessAndLeaderDie "process and leader die together";
    /// Two processes of one framework: only the newer one counts.
    NewerProcess "a newer process takes over while the older one lives";
    /// The one that is behind the times must do no harm.
    NewerProcessUnheard "a newer process takes over and the older one does not hear of it";
    /// All of it.
    Everything "the process restarts in the middle of everything";
    /// `Err` means delivery again.
    UpdateFails "the update handler fails three times";
    /// A panic keeps tasks.
    UpdatePanics "the update handler panics";
    /// Offers of a failed handler come again.
    OffersFail "the offers handler fails";
    /// What it chose must not be launched.
    OffersPanic "the offers handler panics after it chose";
    /// Nothing else may be told before.
    ConnectedFails "the connected handler fails three times";
    /// Tasks end `Lost`, and are told so.
    NodeLost "a node loses everything and comes back empty";
    /// The end itself is repeated.
    TeardownReplyLost "the reply to a teardown is lost";
}

impl Script {
    /// Handlers that fail in this script.
    pub(super) fn failures(self) -> Failures {
        let mut failures = Failures::default();
        if self == Self::UpdateFails {
            failures.update_errors = 3;
        } else if self == Self::UpdatePanics {
            failures.update_panics = 1;
        } else if self == Self::OffersFail {
            failures.offers_errors = 1;
        } else if self == Self::OffersPanic {
            failures.offers_panics = 1;
        } else if self == Self::ConnectedFails {
            failures.connected_errors = 3;
        }
        failures
    }

    /// Makes everything go wrong that the script says.
    #[expect(
        clippy::too_many_lines,
        reason = "a flat table: one short arm for each script"
    )]
    pub(super) async fn play(self, trial: &mut Trial<'_>) -> Result<(), String> {
        let faults = trial.broker.faults().clone();
        match self {
            Self::Nothing
            | Self::UpdateFails
            | Self::UpdatePanics
            | Self::OffersFail
            | Self::OffersPanic
            | Self::ConnectedFails => {}
            Self::LeaderDiesEarly => trial.broker.kill_leader().await,
            Self::LeaderDiesRunning => {
                running(trial).await?;
                trial.broker.kill_leader().await;
            }
            Self::LeaderDiesThrice => {
                for _ in 0..3 {
                    trial.broker.kill_leader().await;
                    trial.broker.advance(Duration::from_millis(700)).await;
                }
            }
            Self::LeaderDiesUnacknowledged => {
                faults.lose_requests(Method::Acknowledge, u32::MAX);
                running(trial).await?;
                trial.broker.advance(Duration::from_secs(5)).await;
                trial.broker.kill_leader().await;
            }
            Self::NoLeaderForLong => {
                running(trial).await?;
                trial.broker.stop_leader().await;
                trial.broker.advance(Duration::from_secs(60)).await;
                trial.broker.start_leader().await;
            }
            Self::StreamDropsEarly => trial.broker.drop_stream(),
            Self::StreamDropsRunning => {
                running(trial).await?;
                trial.broker.drop_stream();
            }
            Self::StreamDropsOften => {
                for _ in 0..10 {
                    trial.broker.drop_stream();
                    trial.broker.advance(Duration::from_millis(300)).await;
                }
            }
            Self::Silence => {
                running(trial).await?;
                faults.silence();
                trial.broker.advance(Duration::from_secs(30)).await;
            }
            Self::DemandRequestLost => faults.lose_requests(Method::UpdateDemand, 2),
            Self::DemandReplyLost => faults.lose_replies(Method::UpdateDemand, 2),
            Self::AcceptRequestLost => faults.lose_requests(Method::Accept, 2),
            Self::AcceptReplyLost => faults.lose_replies(Method::Accept, 2),
            Self::AcceptTwice => faults.send_twice(Method::Accept, u32::MAX),
            Self::AcceptReplyLostWithLeader => {
                faults.lose_replies(Method::Accept, u32::MAX);
                let seen = faults.clone();
                let accepted = move || seen.calls(Method::Accept) > 0;
                trial.until("an accept", accepted).await?;
                trial.broker.kill_leader().await;
            }
            Self::AcknowledgeReplyLost => faults.lose_replies(Method::Acknowledge, 3),
            Self::AcknowledgeRequestLost => faults.lose_requests(Method::Acknowledge, 3),
            Self::AcknowledgeSlow => trial.broker.delay_acks(Duration::from_secs(5)),
            Self::UpdatesTwice => faults.duplicate_updates(),
            Self::UpdatesReplayed => {
                for _ in 0..6 {
                    trial.broker.advance(Duration::from_millis(700)).await;
                    faults.replay_updates();
                }
            }
            Self::UpdatesLate => {
                faults.delay_updates(Duration::from_secs(10));
                running(trial).await?;
                trial.broker.kill_leader().await;
                trial.broker.advance(Duration::from_secs(15)).await;
            }
            Self::UpdatesTwiceAndDrops => {
                faults.duplicate_updates();
                running(trial).await?;
                trial.broker.drop_stream();
            }
            Self::AcknowledgeRefused => {
                for code in [Code::Internal, Code::DiskFull, Code::Busy, Code::Unknown] {
                    faults.refuse(Method::Acknowledge, code, 3);
                    trial.broker.advance(Duration::from_secs(5)).await;
                }
            }
            Self::Busy => {
                for method in LOGGED {
                    faults.refuse(method, Code::Busy, 3);
                }
                trial.broker.advance(Duration::from_secs(10)).await;
            }
            Self::BusyForLong => {
                faults.refuse(Method::Accept, Code::Busy, u32::MAX);
                trial.broker.advance(Duration::from_secs(15)).await;
                faults.refuse(Method::UpdateDemand, Code::Busy, u32::MAX);
                trial.broker.advance(Duration::from_secs(15)).await;
            }
            Self::DiskFullEarly => {
                trial.broker.fill_disk();
                trial.broker.advance(Duration::from_secs(20)).await;
            }
            Self::DiskFullRunning => {
                running(trial).await?;
                trial.broker.fill_disk();
                trial.broker.advance(Duration::from_secs(20)).await;
            }
            Self::Resumed => {
                faults.answer_resumes(Resumes::WithChanges);
                for _ in 0..10 {
                    trial.broker.drop_stream();
                    trial.broker.advance(Duration::from_millis(700)).await;
                }
            }
            Self::ResumedAndNot => {
                for how in [Resumes::WithChanges, Resumes::WithEverything].repeat(4) {
                    faults.answer_resumes(how);
                    trial.broker.drop_stream();
                    trial.broker.advance(Duration::from_millis(900)).await;
                    trial.broker.kill_leader().await;
                }
            }
            Self::OffersRescinded => {
                for _ in 0..20 {
                    trial.broker.rescind_all().await;
                    trial.broker.advance(Duration::from_millis(20)).await;
                }
            }
            Self::ProcessDiesEarly => {
                let seen = faults.clone();
                let declared = move || seen.calls(Method::UpdateDemand) > 0;
                trial.until("a demand", declared).await?;
                trial.restart();
            }
            Self::ProcessDiesRunning => {
                running(trial).await?;
                trial.restart();
            }
            Self::ProcessAndLeaderDie => {
                running(trial).await?;
                trial.broker.stop_leader().await;
                trial.restart();
                trial.broker.start_leader().await;
            }
            Self::NewerProcess => {
                running(trial).await?;
                trial.take_over().await?;
            }
            Self::NewerProcessUnheard => {
                running(trial).await?;
                faults.silence();
                let older = trial.next_process();
                trial.broker.advance(Duration::from_secs(3)).await;
                trial.broker.heal();
                trial
                    .until("the older process to stop", || older.is_over())
                    .await?;
            }
            Self::Everything => {
                faults.duplicate_updates();
                faults.lose_replies(Method::Accept, 2);
                faults.refuse(Method::UpdateDemand, Code::Busy, 2);
                trial.broker.delay_acks(Duration::from_secs(2));
                running(trial).await?;
                trial.broker.rescind_all().await;
                faults.replay_updates();
                trial.restart();
                trial.broker.kill_leader().await;
                faults.lose_replies(Method::StoreWrite, 2);
                faults.answer_resumes(Resumes::WithChanges);
                trial.broker.advance(Duration::from_millis(300)).await;
                trial.broker.drop_stream();
                trial.broker.fill_disk();
                trial.broker.advance(Duration::from_secs(3)).await;
                trial.restart();
                faults.replay_updates();
                trial.broker.advance(Duration::from_secs(3)).await;
            }
            Self::NodeLost => {
                running(trial).await?;
                for node in ["n1", "n2"] {
                    trial.broker.lose_node(node).await;
                    trial.broker.return_node(node).await;
                }
            }
            Self::TeardownReplyLost => faults.lose_replies(Method::Teardown, 2),
        }
        Ok(())
    }
}

/// Waits until a task runs.
async fn running(trial: &Trial<'_>) -> Result<(), String> {
    let faults = trial.broker.faults().clone();
    trial
        .until("a task to run", || faults.tasks().running() > 0)
        .await
}
