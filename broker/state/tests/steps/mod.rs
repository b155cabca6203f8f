//! Steps of random sequences: small numbers, and the command that they mean in a state.

use mete_model::{Code, RunId, Span, TaskPhase};
use mete_state::command::{
    AddMaster, HeldRun, Launch, SetMaster, StoreDelete, StorePut, Subscribe,
};
use mete_state::{AgentCondition, Caller, Command, Seat, State};
use proptest::prelude::*;

mod apart;

pub(crate) use apart::step_apart;
use apart::{launched, replacement};

use crate::support::{
    admit, agent_id, claim, claim_id, framework_id, machine, node_key, role, run_id, settings,
    status,
};

/// One step, in small numbers; what they mean depends on the state when it is taken.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Admit {
        agent: u8,
        key: u8,
        boot: u8,
        cpu: u8,
        held: u8,
    },
    Condition {
        agent: u8,
        lost: u8,
    },
    RemoveAgent(u8),
    MarkReplaceable(u8),
    Replace(u8),
    Subscribe {
        framework: u8,
        name: u8,
        old: u8,
        roles: u8,
        suppressed: u8,
        timeout: u8,
    },
    Disconnect {
        framework: u8,
        old: u8,
    },
    Update {
        caller: Who,
        roles: u8,
        suppressed: u8,
    },
    Demand {
        caller: Who,
        version: u8,
        claim: u8,
        count: u8,
        remove: u8,
        cpu: u8,
    },
    Suppress {
        caller: Who,
        role: u8,
        on: bool,
    },
    SuppressByOperator {
        framework: u8,
        suppress: u8,
        revive: u8,
    },
    Launch {
        caller: Who,
        agent: u8,
        tasks: [Task; 3],
        count: u8,
        each: bool,
        claim: u8,
        role: u8,
    },
    Kill {
        caller: Who,
        run: u8,
        grace: u8,
    },
    KillByOperator {
        framework: u8,
        run: u8,
        grace: u8,
    },
    Statuses {
        agent: u8,
        items: [(u8, u8, u8, u8); 2],
    },
    Acknowledge {
        caller: Who,
        items: [(u8, u8); 2],
    },
    Store {
        caller: Who,
        key: u8,
        value: u8,
        expected: u8,
        delete: bool,
    },
    Teardown(Who),
    RemoveFramework(u8),
    SetRole {
        role: u8,
        weight: u8,
    },
    RemoveRole(u8),
    AddMaster {
        address: u8,
        replaces: u8,
        above: u8,
    },
    SetMaster {
        node: u8,
        address: u8,
        seat: u8,
        replaces: u8,
    },
    RemoveMaster(u8),
    RaiseLevel(u8),
    Tick,
    Wait(u8),
    Due,
    Repeat,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Who {
    pub(crate) framework: u8,
    pub(crate) old: u8,
    pub(crate) call: u8,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Task {
    pub(crate) run: u8,
    pub(crate) cpu: u8,
    pub(crate) cores: u8,
    pub(crate) device: u8,
    /// Which policy it has.
    pub(crate) policy: u8,
    /// Whose place it takes, mostly nobody's.
    pub(crate) replaces: u8,
}

fn who() -> impl Strategy<Value = Who> {
    (0..3_u8, 0..8_u8, 0..40_u8).prop_map(|(framework, old, call)| Who {
        framework,
        old,
        call,
    })
}

fn a_task() -> impl Strategy<Value = Task> {
    let held = (0..8_u8, 0..16_u8, 0..8_u8);
    (0..12_u8, held, 0..6_u8, 0..6_u8).prop_map(|(run, held, policy, replaces)| Task {
        run,
        cpu: held.0,
        cores: held.1,
        device: held.2,
        policy,
        replaces,
    })
}

/// Framework, run, sequence, phase.
fn a_status() -> impl Strategy<Value = (u8, u8, u8, u8)> {
    (0..3_u8, 0..12_u8, 0..6_u8, 0..9_u8)
}

fn boot() -> impl Strategy<Value = u8> {
    prop_oneof![5 => Just(0_u8), 1 => 1..3_u8]
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    let n = || 0..8_u8;
    prop_oneof![
        3 => (0..4_u8, 0..5_u8, boot(), n(), any::<u8>()).prop_map(|(agent, key, boot, cpu, held)| {
            Step::Admit { agent, key, boot, cpu, held }
        }),
        2 => (0..4_u8, 0..4_u8).prop_map(|(agent, lost)| Step::Condition { agent, lost }),
        1 => (0..8_u8).prop_map(Step::RemoveAgent),
        3 => (0..4_u8).prop_map(Step::MarkReplaceable),
        4 => (0..4_u8).prop_map(Step::Replace),
        3 => (0..5_u8, 0..3_u8, n(), n(), n(), n()).prop_map(
            |(framework, name, old, roles, suppressed, timeout)| Step::Subscribe {
                framework, name, old, roles, suppressed, timeout,
            }
        ),
        1 => (0..3_u8, n()).prop_map(|(framework, old)| Step::Disconnect { framework, old }),
        1 => (who(), n(), n()).prop_map(|(caller, roles, suppressed)| {
            Step::Update { caller, roles, suppressed }
        }),
        4 => (who(), 0..6_u8, 0..3_u8, n(), 0..6_u8, 0..3_u8).prop_map(
            |(caller, version, claim, count, remove, cpu)| {
                Step::Demand { caller, version, claim, count, remove, cpu }
            }
        ),
        1 => (who(), 0..4_u8, any::<bool>()).prop_map(|(caller, role, on)| {
            Step::Suppress { caller, role, on }
        }),
        1 => (0..3_u8, n(), n()).prop_map(|(framework, suppress, revive)| {
            Step::SuppressByOperator { framework, suppress, revive }
        }),
        12 => (who(), 0..4_u8, [a_task(), a_task(), a_task()], 1..4_u8, any::<bool>(), n(), n())
            .prop_map(|(caller, agent, tasks, count, each, claim, role)| {
                Step::Launch { caller, agent, tasks, count, each, claim, role }
            }),
        3 => (who(), 0..12_u8, n()).prop_map(|(caller, run, grace)| {
            Step::Kill { caller, run, grace }
        }),
        1 => (0..3_u8, 0..12_u8, n()).prop_map(|(framework, run, grace)| {
            Step::KillByOperator { framework, run, grace }
        }),
        12 => (0..4_u8, [a_status(), a_status()])
            .prop_map(|(agent, items)| Step::Statuses { agent, items }),
        6 => (who(), [(0..12_u8, 0..6_u8), (0..12_u8, 0..6_u8)])
            .prop_map(|(caller, items)| Step::Acknowledge { caller, items }),
        3 => (who(), 0..4_u8, n(), n(), any::<bool>()).prop_map(
            |(caller, key, value, expected, delete)| {
                Step::Store { caller, key, value, expected, delete }
            }
        ),
        1 => who().prop_map(Step::Teardown),
        1 => (0..6_u8).prop_map(Step::RemoveFramework),
        2 => (0..4_u8, 0..3_u8).prop_map(|(role, weight)| Step::SetRole { role, weight }),
        1 => (0..4_u8).prop_map(Step::RemoveRole),
        1 => (0..6_u8, 0..6_u8, 0..4_u8).prop_map(
            |(address, replaces, above)| Step::AddMaster { address, replaces, above }
        ),
        1 => (0..6_u8, 0..7_u8, 0..4_u8, 0..7_u8).prop_map(
            |(node, address, seat, replaces)| Step::SetMaster { node, address, seat, replaces }
        ),
        1 => (0..6_u8).prop_map(Step::RemoveMaster),
        1 => (0..3_u8).prop_map(Step::RaiseLevel),
        1 => Just(Step::Tick),
        1 => (0..8_u8).prop_map(Step::Wait),
        2 => Just(Step::Due),
        2 => Just(Step::Repeat),
    ]
}

const ROLES: [&str; 4] = ["a", "a/b", "a/b/c", "z"];

/// The framework that has this name now, or an id that never had one.
fn framework_of(state: &State, number: u8) -> mete_model::FrameworkId {
    let name = format!("f{number}");
    let known = state.framework_of_name("p", &name);
    let dead = state.tombstones().next().map(|dead| dead.framework);
    known
        .map(|framework| framework.id)
        .or(dead)
        .unwrap_or_else(|| framework_id(77))
}

fn caller(state: &State, who: Who) -> Caller {
    let framework = framework_of(state, who.framework);
    let known = state.framework(framework);
    let present = known.map_or(1, |known| known.incarnation);
    let answered = known.map_or(0, |known| known.answered);
    let call = match who.call {
        0..20 => 0,
        call => u64::from(call) - 19 + answered.saturating_sub(2),
    };
    Caller {
        framework,
        incarnation: match who.old {
            0 => present.saturating_sub(1),
            1 => present + 1,
            _ => present,
        },
        call,
        answered: if who.call.is_multiple_of(3) {
            call.saturating_sub(2)
        } else {
            0
        },
    }
}

fn run(number: u8) -> RunId {
    run_id(&format!("t{}#{}", number % 6, number / 6 + 1))
}

/// Bits choose roles.
fn roles(bits: u8) -> Vec<mete_model::RolePath> {
    let chosen = ROLES.iter().enumerate();
    let chosen = chosen.filter(|(at, _)| *at == 0 || bits & (1 << (at - 1)) != 0);
    chosen.map(|(_, path)| role(path)).collect()
}

fn grace(number: u8) -> Option<Span> {
    (number > 2).then(|| Span::seconds(u64::from(number) * 3))
}

/// The command that the step means now; `None` for steps that are none.
pub(crate) fn command(state: &State, step: &Step) -> Option<Command> {
    of_agents(state, step)
        .or_else(|| of_operators(state, step))
        .or_else(|| of_processes(state, step))
        .or_else(|| call_about_itself(state, step))
        .or_else(|| call_about_its_store(state, step))
        .or_else(|| call_about_runs(state, step))
        .or_else(|| matches!(step, Step::Tick).then_some(Command::Tick))
}

/// What agents and the leader say of them.
fn of_agents(state: &State, step: &Step) -> Option<Command> {
    Some(match *step {
        Step::Admit {
            agent,
            key,
            boot,
            cpu,
            held,
        } => admission(state, agent, key, boot, cpu, held),
        Step::Condition { agent, lost } => Command::SetAgentCondition {
            agent: agent_id(agent.into()),
            condition: match lost {
                0 | 1 => AgentCondition::Unreachable,
                2 => AgentCondition::Ready,
                _ => AgentCondition::Gone,
            },
        },
        Step::Statuses { agent, items } => statuses(state, agent, items),
        Step::MarkReplaceable(agent) => Command::MarkReplaceable {
            // Mostly one of which the time has come.
            agent: state
                .replaceable_agents(state.clock())
                .next()
                .unwrap_or(agent_id(agent.into())),
        },
        _ => return None,
    })
}

/// What operators say.
fn of_operators(state: &State, step: &Step) -> Option<Command> {
    let actor = "ops".to_owned();
    Some(match *step {
        Step::RemoveAgent(agent) => Command::RemoveAgent {
            agent: agent_id(agent.into()),
            actor,
        },
        Step::SuppressByOperator {
            framework,
            suppress,
            revive,
        } => Command::SuppressByOperator {
            framework: framework_of(state, framework),
            suppress: roles(suppress & 3)[1..].to_vec(),
            revive: roles(revive & 3).into_iter().take(1).collect(),
            actor,
        },
        Step::KillByOperator {
            framework,
            run: number,
            grace: wish,
        } => Command::KillByOperator {
            runs: vec![(framework_of(state, framework), run(number))],
            grace: grace(wish),
            reason: String::new(),
            actor,
        },
        Step::RemoveFramework(number) => Command::RemoveFramework {
            framework: framework_of(state, number),
            actor,
        },
        Step::SetRole { role: at, weight } => Command::SetRole {
            path: role(ROLES[usize::from(at)]),
            weight_milli: (weight > 0).then_some(u32::from(weight) * 1000),
            actor,
        },
        Step::RemoveRole(at) => Command::RemoveRole {
            path: role(ROLES[usize::from(at)]),
            actor,
        },
        Step::AddMaster {
            address,
            replaces,
            above,
        } => Command::AddMaster(AddMaster {
            address: format!("m{address}:7443"),
            seat: Seat::Voter,
            replaces: u64::from(replaces),
            above: u64::from(above),
            actor,
        }),
        Step::SetMaster {
            node,
            address,
            seat,
            replaces,
        } => Command::SetMaster(SetMaster {
            node: u64::from(node),
            // The last of each range leaves it as it is.
            address: (address < 6).then(|| format!("m{address}:7443")),
            seat: [Seat::Learner, Seat::Voter, Seat::Leaving]
                .get(usize::from(seat))
                .copied(),
            replaces: (replaces < 6).then_some(u64::from(replaces)),
            actor,
        }),
        Step::RemoveMaster(node) => Command::RemoveMaster {
            node: u64::from(node),
            actor,
        },
        Step::RaiseLevel(level) => Command::RaiseLevel {
            level: u32::from(level),
        },
        _ => return None,
    })
}

/// Processes of frameworks come and go.
fn of_processes(state: &State, step: &Step) -> Option<Command> {
    Some(match *step {
        Step::Subscribe {
            framework,
            name,
            old,
            roles: bits,
            suppressed,
            timeout,
        } => {
            let mut settings = settings(&[]);
            settings.roles = roles(bits);
            settings.suppressed = roles(bits & suppressed);
            settings.failover_timeout = (timeout > 3).then(|| Span::minutes(timeout.into()));
            Command::Subscribe(Subscribe {
                framework: framework_id(framework.into()),
                principal: "p".to_owned(),
                name: format!("f{name}"),
                incarnation: if old < 4 { 0 } else { u64::from(old) - 3 },
                settings,
            })
        }
        Step::Disconnect { framework, old } => {
            let who = Who {
                framework,
                old,
                call: 0,
            };
            let caller = caller(state, who);
            Command::Disconnect {
                framework: caller.framework,
                incarnation: caller.incarnation,
            }
        }
        _ => return None,
    })
}

/// Calls of a framework about itself.
fn call_about_itself(state: &State, step: &Step) -> Option<Command> {
    Some(match *step {
        Step::Update {
            caller: who,
            roles: bits,
            suppressed,
        } => {
            let mut settings = settings(&[]);
            settings.roles = roles(bits);
            settings.suppressed = roles(suppressed);
            Command::UpdateFramework {
                caller: caller(state, who),
                settings,
            }
        }
        Step::Demand {
            caller: who,
            version,
            claim: id,
            count,
            remove,
            cpu,
        } => {
            let caller = caller(state, who);
            let known = state.framework(caller.framework);
            let stored = known.map_or(0, |known| known.demand_version);
            let path = ROLES[usize::from(count % 2)];
            Command::UpdateDemand {
                caller,
                version: (stored + u64::from(version)).saturating_sub(1),
                upsert: vec![claim(
                    &format!("c{id}"),
                    path,
                    u64::from(cpu) * 500,
                    count.into(),
                )],
                remove: (remove < 3)
                    .then(|| claim_id(&format!("c{remove}")))
                    .into_iter()
                    .collect(),
            }
        }
        Step::Suppress {
            caller: who,
            role: at,
            on,
        } => Command::Suppress {
            caller: caller(state, who),
            roles: ROLES
                .get(usize::from(at))
                .map(|path| role(path))
                .into_iter()
                .collect(),
            suppressed: on,
        },
        _ => return None,
    })
}

/// Calls of a framework about its store, and its last.
fn call_about_its_store(state: &State, step: &Step) -> Option<Command> {
    Some(match *step {
        Step::Store {
            caller: who,
            key,
            value,
            expected,
            delete,
        } => {
            let caller = caller(state, who);
            let key = vec![b'k', key];
            let present = state.store_get(caller.framework, &key);
            let present = present.map_or(0, |record| record.revision);
            let expected = (expected > 3).then(|| present + u64::from(expected == 7));
            let mut write = (Vec::new(), Vec::new());
            if delete {
                write.1.push(StoreDelete { key, expected });
            } else {
                let value = vec![value; value.into()];
                write.0.push(StorePut {
                    key,
                    value,
                    expected,
                });
            }
            Command::WriteStore {
                caller,
                puts: write.0,
                deletes: write.1,
            }
        }
        Step::Teardown(who) => Command::Teardown {
            caller: caller(state, who),
        },
        _ => return None,
    })
}

/// Calls of a framework about its runs.
fn call_about_runs(state: &State, step: &Step) -> Option<Command> {
    Some(match *step {
        Step::Launch {
            caller: who,
            agent,
            tasks,
            count,
            each,
            claim,
            role: at,
        } => {
            let claim = (claim < 3).then(|| claim_id(&format!("c{claim}")));
            let tasks = tasks.iter().take(count.into());
            let caller = caller(state, who);
            Command::Launch(Launch {
                caller,
                role: role(ROLES[usize::from(at % 2)]),
                agent: agent_id(agent.into()),
                topology_epoch: 1,
                tasks: tasks
                    .map(|one| launched(state, caller.framework, *one, claim.clone()))
                    .collect(),
                each_alone: each,
            })
        }
        Step::Replace(number) => return replacement(state, number),
        Step::Kill {
            caller: who,
            run: number,
            grace: wish,
        } => {
            let caller = caller(state, who);
            // Mostly one that lives.
            let runs = state.runs(caller.framework);
            let mut live = runs.filter(|run| !run.phase.is_terminal());
            let one = live.nth(usize::from(number / 3));
            let run = one.map_or_else(|| run(number), |run| run.id.clone());
            Command::Kill {
                caller,
                runs: vec![run.clone(), run],
                grace: grace(wish),
                reason: String::new(),
            }
        }
        Step::Acknowledge { caller: who, items } => Command::Acknowledge {
            caller: caller(state, who),
            items: items
                .iter()
                .map(|(number, upto)| (run(*number), (*upto).into()))
                .collect(),
        },
        _ => return None,
    })
}

fn admission(state: &State, agent: u8, key: u8, boot: u8, cpu: u8, held: u8) -> Command {
    let mut inventory = machine(&format!("b{boot}"));
    if cpu > 4 {
        inventory.total.cpu.0 = u64::from(cpu - 4) * 1000;
        inventory.total.cores = "0-1".parse().expect("cores");
        inventory.total.devices.truncate(1);
        inventory.topology_epoch = 2;
    }
    let mut admit = admit(agent.into(), inventory);
    // Mostly its own key.
    if key == 4 {
        admit.node_key = node_key(90 + u128::from(boot));
    }
    let known = state.agent_of_key(admit.node_key).map(|agent| agent.id);
    let runs = known.into_iter().flat_map(|id| state.runs_on(id));
    for (at, run) in runs.enumerate() {
        if held & (1 << (at % 8)) == 0 {
            admit.held.push(HeldRun {
                framework: run.framework,
                run: run.id.clone(),
                phase: if at == 3 {
                    TaskPhase::Finished
                } else {
                    run.phase
                },
                last_sequence: run.sequence,
            });
        }
    }
    if held == 3 {
        admit.held.push(HeldRun {
            framework: framework_id(77),
            run: run(3),
            phase: TaskPhase::Running,
            last_sequence: 2,
        });
    }
    Command::AdmitAgent(admit)
}

fn statuses(state: &State, agent: u8, items: [(u8, u8, u8, u8); 2]) -> Command {
    let agent = agent_id(agent.into());
    let live: Vec<_> = state.runs_on(agent).collect();
    let one = |(framework, number, sequence, phase): (u8, u8, u8, u8)| {
        // Mostly one of its own.
        let own = live.get(usize::from(number) % live.len().max(1));
        let (framework, run) = match own.filter(|_| number < 10) {
            Some(run) => (run.framework, run.id.clone()),
            None => (framework_of(state, framework), run(number)),
        };
        let known = state.run(framework, &run).map_or(0, |run| run.sequence);
        let phase = TaskPhase::ALL[usize::from(phase)];
        let reason = (phase == TaskPhase::Failed).then_some(Code::ExitCode);
        // Around the next one: repeated, next, with a gap.
        let sequence = match sequence {
            0 => known.saturating_sub(1),
            1 => known,
            5 => known + 2,
            _ => known + 1,
        };
        (framework, status(run, sequence, phase, reason))
    };
    Command::RecordStatuses {
        agent,
        statuses: items.into_iter().map(one).collect(),
    }
}
