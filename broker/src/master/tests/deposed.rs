//! A leader that another one has followed, and that does not know it yet: what it finds wrong may
//! be right by now, so it says so only when a majority has confirmed it.

use std::collections::BTreeMap;

use mete_model::{Code, FrameworkId, RunId, TaskId};
use mete_state::{Caller, State};
use tokio::sync::oneshot;
use uuid::Uuid;

use crate::config::Timing;
use crate::event::Event;
use crate::leader::{LeaderTerm, Now};
use crate::mint::Counted;
use crate::output::Output;
use crate::request::{FrameworkAction, Leader, OperatorAction, Refusal, Reply, Request};

type Answer = Result<Reply, Refusal>;

fn state() -> State {
    State::founded(&BTreeMap::from([(1, "a:1".to_owned())]))
}

fn term(state: &State) -> LeaderTerm {
    let mint = Box::new(Counted::new(7));
    let advertised = "a:1".to_owned();
    LeaderTerm::begin(
        3,
        Timing::default(),
        mint,
        advertised,
        state,
        Now::default(),
    )
}

/// A call of a framework that this state does not know, and one about a run that it does not know.
fn requests() -> [Request; 3] {
    let caller = |call| Caller {
        framework: FrameworkId(Uuid::from_u128(9)),
        incarnation: 2,
        call,
        answered: 0,
    };
    let run = RunId::new(TaskId::new("t").unwrap(), 1);
    let items = vec![(run.clone(), 1)];
    [
        Request::Framework {
            caller: caller(0),
            action: FrameworkAction::Acknowledge { items },
        },
        Request::Framework {
            caller: caller(4),
            action: FrameworkAction::Read,
        },
        Request::Operator {
            action: OperatorAction::KillTasks {
                runs: vec![(FrameworkId(Uuid::from_u128(9)), run)],
                grace: None,
                reason: String::new(),
            },
            dry_run: false,
            actor: "ann".to_owned(),
        },
    ]
}

fn asked(leader: &mut LeaderTerm, state: &State, request: Request) -> oneshot::Receiver<Answer> {
    let (reply, answer) = oneshot::channel();
    leader.take(Event::Call { request, reply }, state, Now::default());
    answer
}

fn carry_out(outputs: Vec<Output>) {
    for output in outputs {
        let Output::Reply { to, answer } = output else {
            panic!("{output:?} answers no call");
        };
        to.send(answer).unwrap();
    }
}

#[test]
fn what_is_judged_by_the_state_alone_is_answered_once_a_majority_has_confirmed_the_leader() {
    let state = state();
    for request in requests() {
        let mut leader = term(&state);
        let mut answer = asked(&mut leader, &state, request.clone());
        let work = leader.take_work();
        assert!(work.commands.is_empty(), "{request:?} is logged");
        assert_eq!(work.reads.len(), 1, "{request:?}");
        carry_out(leader.take_outputs());
        assert!(
            answer.try_recv().is_err(),
            "{request:?} is answered at once"
        );

        leader.read_at(work.reads[0], state.revision());

        carry_out(leader.take_outputs());
        let answer = answer.try_recv().unwrap();
        let is_final = answer.as_ref().is_err_and(|why| !why.code().is_retryable())
            || matches!(answer, Ok(Reply::Applied { .. }));
        assert!(is_final, "{request:?}: {answer:?}");
    }
}

#[test]
fn a_leader_that_is_not_confirmed_any_more_sends_the_caller_on() {
    let state = state();
    let gone = Refusal::new(Code::NoLeader, "the leader changed");
    for request in requests() {
        let mut leader = term(&state);
        let mut answer = asked(&mut leader, &state, request.clone());
        let read = leader.take_work().reads[0];
        leader.refused(read, &gone, &state, Now::default());
        carry_out(leader.take_outputs());
        assert_eq!(answer.try_recv().unwrap(), Err(gone.clone()), "{request:?}");

        let mut leader = term(&state);
        let mut answer = asked(&mut leader, &state, request.clone());
        let next = Leader {
            address: "b:1".to_owned(),
            term: 4,
        };
        carry_out(leader.end(next.clone()));
        let answer = answer.try_recv().unwrap().unwrap_err();
        assert_eq!(
            (answer.code(), answer.leader),
            (Code::NotLeader, Some(next))
        );
    }
}
