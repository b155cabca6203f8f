//! One call to a cluster of several masters, of which some may be gone: which one is asked next,
//! what is asked again, and when that ends.
//!
//! A failover is a pause, not an error: whoever is gone is passed over, whoever does not lead is
//! asked where to go, and an election is waited for. What may have had its effect is sent again
//! only where that does no harm.

use std::future::Future;
use std::time::Duration;

use mete_model::Code;
use mete_proto::admin::v1::GetRaftRequest;
use mete_proto::dial::{Dial, TcpDial};
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Response, Status};
use tonic_types::StatusExt as _;

use super::client::{Cluster, admin, root_cause};
use super::error::{CliError, Outcome};

/// Redirects followed in a row before pausing: two masters may point at each other.
const REDIRECTS_AT_ONCE: u32 = 3;

/// Between two attempts where nobody leads.
const PAUSE: Duration = Duration::from_millis(100);

/// How long an election is waited for: many times the longest.
const PATIENCE: Duration = Duration::from_secs(15);

/// How long one of several masters may take to answer a read before another one is asked; doubled
/// each time. Above the 2 s that a master holds a call while nobody leads.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// How long one of several masters may take to show that it lives.
const SIGN_WITHIN: Duration = Duration::from_secs(2);

/// Longest time to connect.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);

/// What may be done with a call whose answer is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nature {
    /// It changes nothing: ask again.
    Read,
    /// Nobody can tell whether it had its effect: say so.
    Change,
}

/// What became of one attempt.
enum Attempt<T> {
    Done(T),
    /// The leader is there.
    Elsewhere(String),
    /// Nobody there.
    Absent(String),
    /// Somebody is there, and the call had no effect, or needs none.
    Passing(CliError),
    /// The answer.
    Over(CliError),
}

/// One call, from master to master.
pub(super) struct Reaching<'a> {
    cluster: &'a Cluster,
    nature: Nature,
    begun: Instant,
    /// The place of the master that is asked; `None` if it was found otherwise.
    turn: Option<usize>,
    hint: Option<String>,
    redirects: u32,
    answer_within: Duration,
    /// Masters in a row that were not there, with why.
    absent: Vec<String>,
    /// Why it is not done yet, if somebody has said so.
    pub(super) last: Option<CliError>,
    /// The call is on its way, and nobody can tell what becomes of it.
    pub(super) is_sent: bool,
}

impl<'a> Reaching<'a> {
    pub(super) fn new(cluster: &'a Cluster, nature: Nature) -> Self {
        Self {
            cluster,
            nature,
            begun: Instant::now(),
            turn: None,
            hint: None,
            redirects: 0,
            answer_within: ANSWER_WITHIN,
            absent: Vec::new(),
            last: None,
            is_sent: false,
        }
    }

    /// Asks until there is an answer, or nobody left to ask.
    pub(super) async fn run<T, F>(&mut self, call: impl Fn(Channel) -> F) -> Outcome<T>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        loop {
            match self.attempt(&call).await {
                Attempt::Done(answer) => return Ok(answer),
                Attempt::Over(error) => {
                    self.cluster.keep(None);
                    return Err(error);
                }
                Attempt::Elsewhere(leader) => {
                    self.absent.clear();
                    self.cluster.keep(None);
                    self.hint = Some(leader);
                    self.redirects = self.redirects.saturating_add(1);
                    if self.redirects <= REDIRECTS_AT_ONCE {
                        continue;
                    }
                    let sentence = "masters send each other's way; ask again later";
                    self.last = Some(CliError::new(Code::NoLeader, sentence));
                }
                Attempt::Absent(why) => {
                    self.absent.push(why);
                    self.pass_over();
                    if self.absent.len() >= self.cluster.masters().len() {
                        return Err(self.nobody());
                    }
                    continue;
                }
                Attempt::Passing(error) => {
                    self.absent.clear();
                    self.pass_over();
                    self.last = Some(error);
                }
            }
            if self.begun.elapsed() > PATIENCE
                && let Some(error) = self.last.take()
            {
                return Err(error);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn attempt<T, F>(&mut self, call: impl Fn(Channel) -> F) -> Attempt<T>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let channel = match self.channel().await {
            Ok(channel) => channel,
            Err(attempt) => return attempt,
        };
        let (several, nature) = (self.has_several(), self.nature);
        if several
            && nature == Nature::Change
            && let Err(why) = sign_of_life(channel.clone()).await
        {
            return Attempt::Passing(why);
        }
        let answer = if several && nature == Nature::Read {
            let within = self.answer_within;
            self.answer_within = within.saturating_mul(2);
            match tokio::time::timeout(within, call(channel.clone())).await {
                Ok(answer) => answer,
                Err(_late) => return Attempt::Passing(silent(within)),
            }
        } else {
            self.is_sent = true;
            call(channel.clone()).await
        };
        self.is_sent = false;
        let status = match answer {
            Ok(response) => {
                self.cluster.keep(Some(channel));
                return Attempt::Done(response.into_inner());
            }
            Err(status) => status,
        };
        if let Some(leader) = leader_of(&status) {
            return Attempt::Elsewhere(leader);
        }
        let error = CliError::from_status(&status);
        if error.is(Code::NoLeader) || error.is(Code::NotLeader) {
            return Attempt::Passing(error);
        }
        if !is_broken(&status) {
            return Attempt::Over(error);
        }
        match nature {
            Nature::Read if several => Attempt::Passing(error),
            Nature::Read => Attempt::Over(error),
            Nature::Change => {
                let fact = "the call may have taken effect; look before asking again";
                Attempt::Over(error.fact(fact))
            }
        }
    }

    /// Whoever was just asked is of no use at the moment.
    fn pass_over(&mut self) {
        self.cluster.keep(None);
        if let Some(turn) = self.turn.take() {
            self.cluster.pass_over(turn);
        }
    }

    fn has_several(&self) -> bool {
        self.cluster.masters().len() > 1
    }

    /// To where the leader was said to be, where an answer came from before, or the next in turn.
    async fn channel<T>(&mut self) -> Result<Channel, Attempt<T>> {
        if let Some(leader) = self.hint.take() {
            return dial(&leader).await.map_err(|why| {
                let sentence = format!("the leader at {leader} cannot be reached");
                // Whoever has sent us there does not know yet that it is gone.
                Attempt::Passing(CliError::new(Code::Unreachable, sentence).fact(why))
            });
        }
        self.turn = None;
        if let Some(kept) = self.cluster.kept() {
            return Ok(kept);
        }
        let (masters, turn) = (self.cluster.masters(), self.cluster.first());
        let at = turn.checked_rem(masters.len()).unwrap_or(0);
        let Some(master) = masters.get(at) else {
            return Err(Attempt::Over(self.nobody()));
        };
        self.turn = Some(turn);
        dial(master)
            .await
            .map_err(|why| Attempt::Absent(format!("{master} {why}")))
    }

    fn nobody(&self) -> CliError {
        let count = self.cluster.masters().len();
        let masters = if count == 1 { "master" } else { "masters" };
        let mut error = CliError::new(Code::Unreachable, format!("reached 0 of {count} {masters}"));
        for one in &self.absent {
            error = error.fact(one);
        }
        error
            .next("mete dev", "start a local cluster")
            .next("mete context list", "see which clusters are known")
    }
}

async fn dial(address: &str) -> Result<Channel, String> {
    let dial = TcpDial {
        connect_timeout: CONNECT_WITHIN,
    };
    let dialled = dial.dial(address).await;
    dialled.map_err(|error| root_cause(&error))
}

/// A process that is stopped still accepts connections, and swallows what is sent: one that is to
/// change something shows first that it lives.
async fn sign_of_life(channel: Channel) -> Result<(), CliError> {
    let mut admin = admin(channel);
    match tokio::time::timeout(SIGN_WITHIN, admin.get_raft(GetRaftRequest {})).await {
        Ok(Ok(_)) => Ok(()),
        // Something else than a broken connection: the call itself brings what there is to say.
        Ok(Err(status)) if !is_broken(&status) => Ok(()),
        Ok(Err(status)) => Err(CliError::from_status(&status)),
        Err(_late) => Err(silent(SIGN_WITHIN)),
    }
}

fn silent(within: Duration) -> CliError {
    CliError::new(
        Code::TimedOut,
        format!("a master has not answered within {within:?}"),
    )
}

fn leader_of(status: &Status) -> Option<String> {
    let leader = status.metadata().get("leader-addr")?;
    let leader = leader.to_str().ok().filter(|leader| !leader.is_empty())?;
    Some(leader.to_owned())
}

/// The connection broke, or what answered is no master: not an answer of ours.
fn is_broken(status: &Status) -> bool {
    let info = status.get_details_error_info();
    info.is_none_or(|info| info.reason.is_empty())
        && matches!(
            status.code(),
            tonic::Code::Unavailable
                | tonic::Code::Unknown
                | tonic::Code::Internal
                | tonic::Code::Cancelled
        )
}
