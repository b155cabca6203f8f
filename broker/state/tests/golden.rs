//! Golden scripts: `scripts/<noun>/<scenario>`. A line is a command of the state, by its name with
//! hyphens; the output is the verdict, the effects and, where asked for, what the state shows.
//!
//! Ids are names: agents `a1`, frameworks `f1`, runs `t1` (first attempt) or `t1@2`. Everything a
//! property test checks after each command is checked here too.

#![expect(
    clippy::unwrap_used,
    clippy::arithmetic_side_effects,
    reason = "a script that is wrong shall stop its test"
)]

mod support;

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use goldenscript::{Argument, Context};
use mete_model::{
    ClaimId, Code, FrameworkId, Keep, Partition, Resources, RolePath, RunId, Span, TaskPhase,
};
use mete_state::command::{
    AddMaster, AdmitAgent, HeldRun, Launch, SetMaster, StoreDelete, StorePut, Subscribe,
};
use mete_state::{
    AgentCondition, Caller, Command, Outcome, Rejection, Seat, StoreVerdict, Verdict,
};
use support::{
    Cluster, agent_id, claim, claim_id, device, framework_id, machine, node_key, resources, role,
    run_id, settings, status, task, want,
};

/// The arguments of one line.
struct Args {
    words: Vec<String>,
    pairs: Vec<(String, String)>,
}

impl Args {
    fn of(command: &goldenscript::Command) -> Self {
        let mut args = Self {
            words: Vec::new(),
            pairs: Vec::new(),
        };
        for arg in &command.args {
            match arg {
                Argument::Positional(word) => args.words.push(word.clone()),
                Argument::KeyValue(key, value) => args.pairs.push((key.clone(), value.clone())),
                _ => panic!("an argument of a new kind: {arg}"),
            }
        }
        args
    }

    fn get(&self, key: &str) -> Option<&str> {
        let pairs = self.pairs.iter().rev();
        let mut found = pairs.filter(|(name, _)| name == key);
        found.next().map(|(_, value)| value.as_str())
    }

    fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        let pairs = self.pairs.iter();
        pairs
            .filter(move |(name, _)| name == key)
            .map(|(_, value)| value.as_str())
    }

    fn number(&self, key: &str, or: u64) -> u64 {
        self.get(key).map_or(or, |text| text.parse().unwrap())
    }

    fn span(&self, key: &str) -> Option<Span> {
        self.get(key).map(|text| text.parse().unwrap())
    }

    fn roles(&self, key: &str) -> Vec<RolePath> {
        self.all(key).map(role).collect()
    }

    fn agent(&self) -> mete_model::AgentId {
        agent_id(number_of(&self.words[0]))
    }

    fn framework(&self) -> FrameworkId {
        framework_id(number_of(&self.words[0]))
    }

    fn rest(&self) -> impl Iterator<Item = &str> {
        self.words.iter().skip(1).map(String::as_str)
    }

    /// cpu in thousandths, memory in bytes, cores as a set, GPUs as `g1` or `g1/500`. With a task
    /// in front (`t1.cpu`) it is for that one only.
    fn resources(&self, task: &str) -> Resources {
        let own = |key: &str| {
            let own = format!("{task}.{key}");
            self.get(&own).or_else(|| self.get(key)).map(str::to_owned)
        };
        let cores = own("cores").unwrap_or_default();
        let named: u64 = cores.parse::<mete_model::CpuSet>().unwrap().len().into();
        let cpu = own("cpu").map_or(named * 1000, |text| text.parse().unwrap());
        let memory = own("memory").map_or(0, |text| text.parse().unwrap());
        let own_gpu = format!("{task}.gpu");
        let mut gpus: Vec<_> = self.all("gpu").chain(self.all(&own_gpu)).map(gpu).collect();
        gpus.sort();
        resources(cpu, memory, &cores, gpus)
    }
}

fn gpu(text: &str) -> mete_model::DeviceShare {
    let (id, milli) = text.split_once('/').unwrap_or((text, "1000"));
    device(id, milli.parse().unwrap())
}

fn number_of(name: &str) -> u128 {
    name[1..].parse().unwrap()
}

fn run_of(text: &str) -> RunId {
    let (task, attempt) = text.split_once('@').unwrap_or((text, "1"));
    run_id(&format!("{task}#{attempt}"))
}

fn framework_run(text: &str) -> (FrameworkId, RunId) {
    let (framework, run) = text.split_once('/').unwrap();
    (framework_id(number_of(framework)), run_of(run))
}

fn phase_of(word: &str) -> TaskPhase {
    let mut all = TaskPhase::ALL.into_iter();
    all.find(|phase| phase.word() == word).expect("a phase")
}

#[derive(Default)]
struct Script {
    cluster: Cluster,
    /// As the framework's process last heard it.
    incarnations: BTreeMap<FrameworkId, u64>,
}

impl Script {
    fn caller(&self, args: &Args) -> Caller {
        let framework = args.framework();
        let known = self.incarnations.get(&framework).copied().unwrap_or(1);
        Caller {
            framework,
            incarnation: args.number("incarnation", known),
            call: args.number("call", 0),
            answered: args.number("answered", 0),
        }
    }

    fn command(&self, name: &str, args: &Args) -> Option<Command> {
        let actor = || "ops".to_owned();
        Some(match name {
            "admit-agent" => admit_agent(args),
            "set-agent-condition" => Command::SetAgentCondition {
                agent: args.agent(),
                condition: match args.words[1].as_str() {
                    "ready" => AgentCondition::Ready,
                    "unreachable" => AgentCondition::Unreachable,
                    _ => AgentCondition::Gone,
                },
            },
            "mark-replaceable" => Command::MarkReplaceable {
                agent: args.agent(),
            },
            "remove-agent" => Command::RemoveAgent {
                agent: args.agent(),
                actor: actor(),
            },
            "subscribe" => subscribe(args),
            "disconnect" => Command::Disconnect {
                framework: args.framework(),
                incarnation: self.caller(args).incarnation,
            },
            "update-framework" => self.update_framework(args),
            "update-demand" => self.update_demand(args),
            "suppress" => self.suppress(args, true),
            "revive" => self.suppress(args, false),
            "suppress-by-operator" => Command::SuppressByOperator {
                framework: args.framework(),
                suppress: args.roles("suppress"),
                revive: args.roles("revive"),
                actor: actor(),
            },
            "launch" => self.launch(args),
            "kill" => Command::Kill {
                caller: self.caller(args),
                runs: args.rest().map(run_of).collect(),
                grace: args.span("grace"),
                reason: String::new(),
            },
            "kill-by-operator" => Command::KillByOperator {
                runs: args.words.iter().map(|word| framework_run(word)).collect(),
                grace: args.span("grace"),
                reason: String::new(),
                actor: actor(),
            },
            "record-statuses" => record_statuses(args),
            "acknowledge" => Command::Acknowledge {
                caller: self.caller(args),
                items: acknowledged(args),
            },
            "write-store" => self.write_store(args),
            "teardown" => Command::Teardown {
                caller: self.caller(args),
            },
            "remove-framework" => Command::RemoveFramework {
                framework: args.framework(),
                actor: actor(),
            },
            "set-role" => Command::SetRole {
                path: role(&args.words[0]),
                weight_milli: args.get("weight").map(|text| text.parse().unwrap()),
                actor: actor(),
            },
            "remove-role" => Command::RemoveRole {
                path: role(&args.words[0]),
                actor: actor(),
            },
            "add-master" => Command::AddMaster(AddMaster {
                address: args.words[0].clone(),
                seat: seat(args).unwrap_or(Seat::Voter),
                replaces: args.number("replaces", 0),
                above: args.number("above", 0),
                actor: actor(),
            }),
            "set-master" => Command::SetMaster(SetMaster {
                node: args.words[0].parse().unwrap(),
                address: args.get("address").map(str::to_owned),
                seat: seat(args),
                replaces: args.get("replaces").map(|text| text.parse().unwrap()),
                actor: actor(),
            }),
            "remove-master" => Command::RemoveMaster {
                node: args.words[0].parse().unwrap(),
                actor: actor(),
            },
            "raise-level" => Command::RaiseLevel {
                level: args.words[0].parse().unwrap(),
            },
            "tick" => Command::Tick,
            _ => return None,
        })
    }

    fn update_framework(&self, args: &Args) -> Command {
        let mut settings = settings(&[]);
        settings.roles = args.roles("role");
        settings.suppressed = args.roles("suppressed");
        settings.failover_timeout = args.span("timeout");
        Command::UpdateFramework {
            caller: self.caller(args),
            settings,
        }
    }

    /// `c1=3` puts a claim of three; `cpu`, `cores` and `gpu=class/count/milli` are its shape.
    fn update_demand(&self, args: &Args) -> Command {
        let role = args.get("role").unwrap_or("batch");
        let claims = args
            .pairs
            .iter()
            .filter(|(key, _)| key.starts_with('c') && key != "cpu");
        let put = |(id, count): &(String, String)| {
            let mut claim = claim(id, role, args.number("cpu", 1000), count.parse().unwrap());
            for gpu in args.all("gpu") {
                let numbers: Vec<u32> = gpu.split('/').map(|n| n.parse().unwrap()).collect();
                claim
                    .shape
                    .devices
                    .push(want("gpu", numbers[0], numbers[1]));
            }
            claim
        };
        Command::UpdateDemand {
            caller: self.caller(args),
            version: args.number("version", 0),
            upsert: claims.map(put).collect(),
            remove: args.all("remove").map(claim_id).collect(),
        }
    }

    fn suppress(&self, args: &Args, suppressed: bool) -> Command {
        Command::Suppress {
            caller: self.caller(args),
            roles: args.rest().map(role).collect(),
            suppressed,
        }
    }

    fn launch(&self, args: &Args) -> Command {
        let claim: Option<ClaimId> = args.get("claim").map(claim_id);
        let tasks = args.words[2..].iter();
        let partition = Partition {
            replace_after: args.span("after"),
            keep: args
                .get("keep")
                .map_or(Keep::Newest, |text| text.parse().unwrap()),
            stop_if_silent: args.span("silent"),
        };
        let one = |name: &String| {
            let mut task = task(run_of(name), claim.clone(), args.resources(name));
            Arc::make_mut(&mut task.spec).partition = partition;
            task.replaces = args.get("replaces").map(run_of);
            task
        };
        Command::Launch(Launch {
            caller: self.caller(args),
            role: role(args.get("role").unwrap_or("batch")),
            agent: agent_id(number_of(&args.words[1])),
            topology_epoch: args.number("epoch", 1),
            tasks: tasks.map(one).collect(),
            each_alone: args.get("mode") == Some("each"),
        })
    }

    /// `put=key/value/expected`, `delete=key/expected`; expected may be left out. `bytes=n` makes
    /// each value so long.
    fn write_store(&self, args: &Args) -> Command {
        let length = usize::try_from(args.number("bytes", 0)).unwrap();
        let put = |text: &str| {
            let parts: Vec<&str> = text.split('/').collect();
            let mut value = parts.get(1).unwrap_or(&"").as_bytes().to_vec();
            value.resize(value.len().max(length), b'x');
            StorePut {
                key: parts[0].as_bytes().to_vec(),
                value,
                expected: parts.get(2).map(|text| text.parse().unwrap()),
            }
        };
        let delete = |text: &str| {
            let (key, expected) = text.split_once('/').unwrap_or((text, ""));
            StoreDelete {
                key: key.as_bytes().to_vec(),
                expected: expected.parse().ok(),
            }
        };
        Command::WriteStore {
            caller: self.caller(args),
            puts: args.all("put").map(put).collect(),
            deletes: args.all("delete").map(delete).collect(),
        }
    }

    /// What the state shows; no command.
    fn show(&self, args: &Args) -> String {
        let state = &self.cluster.state;
        let named = |at: usize| number_of(&args.words[at]);
        match args.words[0].as_str() {
            "run" => show_run(self, framework_id(named(1)), &run_of(&args.words[2])),
            "agent" => match state.agent(agent_id(named(1))) {
                None => "none".to_owned(),
                Some(agent) => format!(
                    "{} {:?} since {} free {} granted {}",
                    agent.node_name,
                    agent.condition,
                    agent.since.0,
                    show_resources(state.free(agent.id).unwrap()),
                    show_resources(state.granted(agent.id).unwrap()),
                ),
            },
            "framework" => match state.framework(framework_id(named(1))) {
                None => "none".to_owned(),
                Some(framework) => format!(
                    "{} incarnation {} roles {:?} suppressed {:?} away {:?} demand {}",
                    framework.name,
                    framework.incarnation,
                    framework.settings.roles,
                    framework.settings.suppressed,
                    framework.away.map(|at| at.0),
                    framework.demand_version,
                ),
            },
            "masters" => {
                let shown = state.masters().map(|master| {
                    let (node, address, seat) = (master.node, &master.address, master.seat);
                    format!("{node} {address} {seat:?} replaces {}", master.replaces)
                });
                let last = format!("last {} level {}", state.last_master(), state.level());
                lines(shown.chain([last]))
            }
            "role" => {
                let path = role(&args.words[1]);
                let used = state.used_by_role(&path);
                let used: Vec<String> = used
                    .iter()
                    .map(|(kind, amount)| format!("{kind}={amount}"))
                    .collect();
                format!("used {}", used.join(" "))
            }
            "claim" => match state.claim(framework_id(named(1)), &claim_id(&args.words[2])) {
                None => "none".to_owned(),
                Some(record) => format!(
                    "count {} launched {} remaining {}",
                    record.claim.count,
                    record.launched,
                    record.remaining()
                ),
            },
            "store" => {
                let framework = framework_id(named(1));
                let mut out = format!("{} bytes", state.store_bytes(framework));
                for record in state.store_list(framework, b"", None) {
                    let key = String::from_utf8_lossy(&record.key);
                    write!(out, " {key}@{}", record.revision).unwrap();
                }
                out
            }
            other => panic!("cannot show '{other}'"),
        }
    }

    fn read(&mut self, name: &str, args: &Args) -> String {
        let state = &self.cluster.state;
        match name {
            "show" => self.show(args),
            "owed" => lines(state.owed().map(|effect| format!("{effect:?}"))),
            "replaceable" => match state.replaceable_agents(self.cluster.clock).next() {
                Some(agent) => format!("{agent:?}"),
                None => "none".to_owned(),
            },
            "due" => lines(
                state
                    .due(self.cluster.clock)
                    .iter()
                    .map(|due| format!("{due:?}")),
            ),
            "wait" => {
                let span: Span = args.words[0].parse().unwrap();
                self.cluster.clock = self.cluster.clock.after(span);
                String::new()
            }
            other => panic!("no such command: {other}"),
        }
    }
}

fn show_run(script: &Script, framework: FrameworkId, run: &RunId) -> String {
    let state = &script.cluster.state;
    let (place, run) = match (state.run(framework, run), state.past_run(framework, run)) {
        (Some(run), _) => ("live", run),
        (None, Some(run)) => ("history", run),
        (None, None) => return "none".to_owned(),
    };
    let mut out = format!(
        "{place} {} sequence {} acknowledged {} reasons {:?}",
        run.phase,
        run.sequence,
        run.acknowledged,
        run.reasons().map(Code::as_str).collect::<Vec<_>>()
    );
    if let Some(kill) = &run.kill {
        write!(out, " kill {} grace {}", kill.by, run.kill_grace()).unwrap();
    }
    let places = run.replacement.places();
    if let Some(since) = places.replaceable {
        write!(out, " replaceable since {}", since.0).unwrap();
    }
    if let Some(old) = &places.replaces {
        write!(out, " replaces {old}").unwrap();
    }
    if let Some(new) = &places.replaced_by {
        write!(out, " replaced by {new}").unwrap();
    }
    out
}

fn show_resources(resources: &Resources) -> String {
    let devices = resources.devices.iter();
    let devices: Vec<String> = devices
        .map(|share| format!("{}/{}", share.id, share.milli))
        .collect();
    format!(
        "cpu {} memory {} cores [{}] devices [{}]",
        resources.cpu.0,
        resources.memory.0,
        resources.cores,
        devices.join(" ")
    )
}

fn admit_agent(args: &Args) -> Command {
    let number = number_of(&args.words[0]);
    let mut inventory = machine(args.get("boot").unwrap_or("b1"));
    if let Some(cores) = args.get("cores") {
        inventory.total.cores = cores.parse().unwrap();
        inventory.total.cpu.0 = u64::from(inventory.total.cores.len()) * 1000;
    }
    inventory.total.cpu.0 = args.number("cpu", inventory.total.cpu.0);
    inventory.total.memory.0 = args.number("memory", inventory.total.memory.0);
    if args.get("gpu").is_some() {
        inventory.total.devices = args
            .all("gpu")
            .filter(|id| *id != "none")
            .map(gpu)
            .collect();
    }
    inventory.topology_epoch = args.number("epoch", 1);
    let held = args.all("held").map(|text| {
        let parts: Vec<&str> = text.split('.').collect();
        let (framework, run) = framework_run(parts[0]);
        HeldRun {
            framework,
            run,
            phase: phase_of(parts[1]),
            last_sequence: parts[2].parse().unwrap(),
        }
    });
    Command::AdmitAgent(AdmitAgent {
        agent: agent_id(number),
        node_key: args
            .get("key")
            .map_or(node_key(number), |key| node_key(number_of(key))),
        node_name: args.get("name").map_or(format!("n{number}"), str::to_owned),
        held: held.collect(),
        inventory,
    })
}

fn subscribe(args: &Args) -> Command {
    let number = number_of(&args.words[0]);
    let mut settings = settings(&[]);
    settings.roles = args.roles("role");
    settings.suppressed = args.roles("suppressed");
    settings.failover_timeout = args.span("timeout");
    Command::Subscribe(Subscribe {
        framework: framework_id(number),
        principal: args.get("principal").unwrap_or("p").to_owned(),
        name: args.get("name").map_or(format!("f{number}"), str::to_owned),
        incarnation: args.number("incarnation", 0),
        settings,
    })
}

/// `f1/t1=2.running` or `f1/t1=3.failed.EXIT_CODE`.
fn record_statuses(args: &Args) -> Command {
    let statuses = args.pairs.iter().map(|(run, said)| {
        let (framework, run) = framework_run(run);
        let parts: Vec<&str> = said.split('.').collect();
        let reason = parts.get(2).map(|code| code.parse().unwrap());
        let phase = phase_of(parts[1]);
        (
            framework,
            status(run, parts[0].parse().unwrap(), phase, reason),
        )
    });
    Command::RecordStatuses {
        agent: args.agent(),
        statuses: statuses.collect(),
    }
}

fn acknowledged(args: &Args) -> Vec<(RunId, u64)> {
    let runs = args.pairs.iter().filter(|(key, _)| key.starts_with('t'));
    runs.map(|(run, sequence)| (run_of(run), sequence.parse().unwrap()))
        .collect()
}

fn seat(args: &Args) -> Option<Seat> {
    args.get("seat").map(|text| match text {
        "learner" => Seat::Learner,
        "leaving" => Seat::Leaving,
        _ => Seat::Voter,
    })
}

fn lines(items: impl Iterator<Item = String>) -> String {
    items.map(|item| item + "\n").collect()
}

fn answer(result: &Result<Outcome, Rejection>) -> String {
    let outcome = match result {
        Ok(outcome) => outcome,
        Err(rejection) => {
            let mut out = format!("rejected {}: {}\n", rejection.code, rejection.detail);
            for fault in rejection.fields.iter().skip(1) {
                writeln!(out, "  and {}: {}", fault.field, fault.fault).unwrap();
            }
            return out;
        }
    };
    let mut out = match &outcome.verdict {
        Verdict::Launched(tasks) => lines(tasks.iter().map(|task| {
            let grant = task
                .grant
                .map_or(String::new(), |grant| format!(" {grant}"));
            format!("launched {}{grant} {}", task.code, task.detail)
        })),
        Verdict::Killed(items) | Verdict::Acknowledged(items) => lines(
            items
                .iter()
                .map(|item| format!("item {} {}", item.code, item.detail)),
        ),
        Verdict::StoreWritten(StoreVerdict::Conflict(keys)) => lines(
            keys.iter()
                .map(|(key, at)| format!("conflict {}@{at}", String::from_utf8_lossy(key))),
        ),
        other @ (Verdict::Done
        | Verdict::Admitted { .. }
        | Verdict::Subscribed { .. }
        | Verdict::StoreWritten(StoreVerdict::Written | StoreVerdict::Full { .. })
        | Verdict::TornDown(_)
        | Verdict::MasterAdded { .. }
        | Verdict::RoleSet { .. }) => format!("{other:?}\n"),
    };
    out.push_str(&lines(
        outcome
            .effects
            .iter()
            .map(|effect| format!("effect {effect:?}")),
    ));
    let trimmed: Vec<&str> = out.lines().map(str::trim_end).collect();
    trimmed.join("\n")
}

/// Ids back to names, so that scripts can be read.
fn named(mut text: String) -> String {
    for number in 1..=9 {
        for (id, name) in [
            (agent_id(number).0, format!("a{number}")),
            (framework_id(number).0, format!("f{number}")),
        ] {
            for kind in ["AgentId", "FrameworkId"] {
                text = text.replace(&format!("{kind}({id})"), &name);
            }
            text = text.replace(&id.to_string(), &name);
        }
    }
    text
}

impl goldenscript::Runner for Script {
    type Command = goldenscript::Command;

    fn run(
        &mut self,
        command: &goldenscript::Command,
        _context: &Context,
    ) -> Result<String, Box<dyn Error>> {
        let args = Args::of(command);
        let Some(step) = self.command(&command.name, &args) else {
            let shown = self.read(&command.name, &args);
            return Ok(named(shown));
        };
        let result = self.cluster.step(step);
        if let Ok(Outcome {
            verdict:
                Verdict::Subscribed {
                    framework,
                    incarnation,
                    ..
                },
            ..
        }) = &result
        {
            self.incarnations.insert(*framework, *incarnation);
        }
        Ok(named(answer(&result)))
    }
}

#[test]
fn every_script_gives_the_output_that_is_written_in_it() {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let mut count = 0;
    for noun in std::fs::read_dir(scripts).unwrap() {
        for scenario in std::fs::read_dir(noun.unwrap().path()).unwrap() {
            let path = scenario.unwrap().path();
            eprintln!("script {}", path.display());
            goldenscript::run(&mut Script::default(), &path).unwrap();
            count += 1;
        }
    }
    assert!(count > 20, "only {count} scripts were found");
}
