//! Layer 2: the trait that a framework implements.
//!
//! The runner calls one method at a time, so that no locks are needed. Only `offers` and `update`
//! must be written. An error or a panic never ends tasks: a failed update comes again, failed
//! offers go back, and after a panic `connected` is called anew.

use std::future::Future;

use crate::accept::LaunchVerdict;
use crate::error::Result;
use crate::event::{AgentChanged, Connected, Replaceable, Rescinded};
use crate::offers::Offers;
use crate::session::Session;
use crate::task::TaskUpdate;

/// A framework, as the runner drives it.
pub trait Framework: Send + 'static {
    /// The stream is open, first or again, and this is where things stand. Declare claims here:
    /// those that stand already cost nothing. Also called after a panic.
    fn connected(
        &mut self,
        session: &Session,
        connected: Connected,
    ) -> impl Future<Output = Result<()>> + Send {
        let _ = (session, connected);
        std::future::ready(Ok(()))
    }

    /// Offers that stand now. What is launched is sent when it returns, what is not used goes back.
    /// On an error the launches noted so far are sent all the same; after a panic none is.
    fn offers(
        &mut self,
        session: &Session,
        offers: &mut Offers,
    ) -> impl Future<Output = Result<()>> + Send;

    /// One status. Acknowledged after `Ok`; after an error it comes again, with growing pauses,
    /// while other runs go on.
    fn update(
        &mut self,
        session: &Session,
        update: TaskUpdate,
    ) -> impl Future<Output = Result<()>> + Send;

    /// Statuses that are there at the same time, in order. Override it to deal with many at once:
    /// after `Ok` all are acknowledged, after an error all come again that
    /// [`Session::acknowledge`] was not called for.
    fn updates(
        &mut self,
        session: &Session,
        updates: Vec<TaskUpdate>,
    ) -> impl Future<Output = Result<()>> + Send {
        async move {
            let mut failed: Vec<(mete_model::RunId, crate::Error)> = Vec::new();
            for update in updates {
                let (run, sequence) = (update.run(), update.sequence);
                // What comes after a failed status of the same run waits for it.
                if failed.iter().any(|(other, _)| *other == run) {
                    continue;
                }
                match self.update(session, update).await {
                    Ok(()) => session.acknowledge(&run, sequence),
                    Err(error) => failed.push((run, error)),
                }
            }
            match failed.into_iter().next() {
                Some((_, error)) => Err(error),
                None => Ok(()),
            }
        }
    }

    /// Launches that were not granted. Nothing was counted against their tasks or claims; what is
    /// still wanted is offered again.
    fn refused(
        &mut self,
        session: &Session,
        launches: Vec<LaunchVerdict>,
    ) -> impl Future<Output = Result<()>> + Send {
        let _ = (session, launches);
        std::future::ready(Ok(()))
    }

    /// Offers that no longer stand.
    fn rescinded(
        &mut self,
        session: &Session,
        rescinded: Rescinded,
    ) -> impl Future<Output = Result<()>> + Send {
        let _ = (session, rescinded);
        std::future::ready(Ok(()))
    }

    /// An agent that holds tasks of this framework is unreachable, back, or gone.
    fn agent_changed(
        &mut self,
        session: &Session,
        change: AgentChanged,
    ) -> impl Future<Output = Result<()>> + Send {
        let _ = (session, change);
        std::future::ready(Ok(()))
    }

    /// Runs of this framework may be replaced: a launch may name each in
    /// [`crate::Launch::replaces`]. Those that the snapshot of `connected` shows as replaceable are
    /// not told again here.
    fn replaceable(
        &mut self,
        session: &Session,
        replaceable: Replaceable,
    ) -> impl Future<Output = Result<()>> + Send {
        let _ = (session, replaceable);
        std::future::ready(Ok(()))
    }

    /// The stream is lost; the session is opening another one. Tasks go on.
    fn disconnected(
        &mut self,
        session: &Session,
        why: String,
    ) -> impl Future<Output = Result<()>> + Send {
        let _ = (session, why);
        std::future::ready(Ok(()))
    }

    /// Called in the runner's rhythm, and soon after [`Session::wake`]; never before `connected`
    /// has returned `Ok` once.
    fn tick(&mut self, session: &Session) -> impl Future<Output = Result<()>> + Send {
        let _ = session;
        std::future::ready(Ok(()))
    }
}
