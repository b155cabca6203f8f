//! Golden scripts: each file under `scripts` is a scenario, told by its name.
//!
//! `agent n1 cpu=8000 mem=16 gpus=2 names=8` puts an agent (memory in GiB, `names` cores by name),
//! `free` sets what is free on it, `role`, `framework`, `claim` and `refuse` put the rest; `round`
//! runs a round (all of it, or `agents=`, `claims=`, `frameworks=`) and books what it placed as
//! offers, `answer` returns all offers of a framework, `explain` shows one claim against all
//! agents.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;

use goldenscript::{ArgumentConsumer, Command, Context, Runner};
use mete_allocator::{
    AgentView, Change, ClaimView, Dirty, FrameworkView, Limits, Placement, RefusalView, RoleView,
    Round, View, allocate, explain, reference,
};
use mete_model::quota::Charge;
use mete_model::{
    AgentId, Bytes, ClaimId, ClassPath, CpuSet, DeviceId, DeviceShare, DeviceWant, FrameworkId,
    MilliCpu, Resources, RolePath, Shape,
};

type Anything = Result<String, Box<dyn Error>>;

#[derive(Default)]
struct Script {
    view: View,
    agents: BTreeMap<String, AgentId>,
    frameworks: BTreeMap<String, FrameworkId>,
    out: Vec<Placement>,
}

fn number<T: std::str::FromStr>(
    args: &mut ArgumentConsumer<'_>,
    key: &str,
    usual: T,
) -> Result<T, Box<dyn Error>> {
    match args.take_key(key) {
        None => Ok(usual),
        Some(text) => text
            .parse()
            .map_err(|_| format!("{key}={text} is no number").into()),
    }
}

fn gpu(at: u32, milli: u32) -> DeviceShare {
    DeviceShare {
        id: DeviceId::new(&format!("gpu-{at}")).unwrap(),
        class: ClassPath::new("gpu/t4").unwrap(),
        milli,
    }
}

fn resources(args: &mut ArgumentConsumer<'_>) -> Result<Resources, Box<dyn Error>> {
    let gpus: u32 = number(args, "gpus", 0)?;
    let names: u32 = number(args, "names", 0)?;
    let mut cores = CpuSet::new();
    for core in 0..names {
        cores.insert(core);
    }
    Ok(Resources {
        cpu: MilliCpu(number(args, "cpu", 0)?),
        memory: Bytes(number::<u64>(args, "mem", 0)? << 30),
        cores,
        devices: (0..gpus).map(|at| gpu(at, 1000)).collect(),
        ..Resources::default()
    })
}

impl Script {
    fn agent(&self, name: &str) -> Result<AgentId, Box<dyn Error>> {
        self.agents
            .get(name)
            .copied()
            .ok_or_else(|| format!("no agent {name}").into())
    }

    fn framework(&self, name: &str) -> Result<FrameworkId, Box<dyn Error>> {
        let known = self.frameworks.get(name).copied();
        known.ok_or_else(|| format!("no framework {name}").into())
    }

    fn name<T: PartialEq>(names: &BTreeMap<String, T>, id: &T) -> String {
        let found = names.iter().find(|(_, known)| *known == id);
        found.map_or_else(|| "?".to_owned(), |(name, _)| name.clone())
    }

    fn put_agent(&mut self, mut args: ArgumentConsumer<'_>) -> Anything {
        let name = args.next_pos().ok_or("which agent?")?.to_owned();
        let next = u32::try_from(self.agents.len())?;
        let id = *self.agents.entry(name).or_insert(reference::agent_id(next));
        let schedulable = number(&mut args, "ready", true)?;
        let total = resources(&mut args)?;
        args.reject_next().map_err(|error| error.to_string())?;
        let agent = AgentView {
            free: total.clone(),
            total,
            schedulable,
        };
        self.view.patch(Change::Agent(id, Some(agent)));
        Ok(String::new())
    }

    fn set_free(&mut self, mut args: ArgumentConsumer<'_>) -> Anything {
        let id = self.agent(args.next_pos().ok_or("which agent?")?)?;
        let mut agent = self.view.agent(id).ok_or("not there")?.clone();
        agent.free = resources(&mut args)?;
        self.view.patch(Change::Agent(id, Some(agent)));
        Ok(String::new())
    }

    /// `framework f roles="a,b" suppressed=b held="a:4000" offered=500 connected=true plain=false`
    fn put_framework(&mut self, mut args: ArgumentConsumer<'_>) -> Anything {
        let name = args.next_pos().ok_or("which framework?")?.to_owned();
        let next = u32::try_from(self.frameworks.len())?;
        let id = *self
            .frameworks
            .entry(name)
            .or_insert(reference::framework_id(next));
        let suppressed: Vec<&str> = args
            .take_key("suppressed")
            .map(|text| text.split(',').collect())
            .unwrap_or_default();
        let mut roles = BTreeMap::new();
        for role in args.take_key("roles").unwrap_or("a").split(',') {
            roles.insert(RolePath::new(role)?, suppressed.contains(&role));
        }
        let before = self.view.framework(id);
        let mut held = before.map(|before| before.held.clone()).unwrap_or_default();
        let offered = before
            .map(|before| before.offered.clone())
            .unwrap_or_default();
        if let Some((role, cpu)) = args.take_key("held").and_then(|text| text.split_once(':')) {
            let resources = Resources {
                cpu: MilliCpu(cpu.parse()?),
                ..Resources::default()
            };
            held.insert(RolePath::new(role)?, Charge::of(&resources));
        }
        let framework = FrameworkView {
            connected: number(&mut args, "connected", true)?,
            plain_offers: number(&mut args, "plain", false)?,
            roles,
            held,
            offered,
            cap_halvings: number(&mut args, "halvings", 0)?,
        };
        args.reject_next().map_err(|error| error.to_string())?;
        self.view.patch(Change::Framework(id, Some(framework)));
        Ok(String::new())
    }

    /// `claim f c role=a count=3 cpu=1000 mem=1 gpus=1 milli=1000 cores=0 priority=0 submitted=0`
    fn put_claim(&mut self, mut args: ArgumentConsumer<'_>) -> Anything {
        let framework = self.framework(args.next_pos().ok_or("whose?")?)?;
        let id = ClaimId::new(args.next_pos().ok_or("which claim?")?)?;
        let gpus: u32 = number(&mut args, "gpus", 0)?;
        let milli: u32 = number(&mut args, "milli", 1000)?;
        let want = DeviceWant {
            class: ClassPath::new("gpu")?,
            count: gpus,
            milli,
        };
        let claim = ClaimView {
            role: RolePath::new(args.take_key("role").unwrap_or("a"))?,
            shape: Shape {
                cpu: MilliCpu(number(&mut args, "cpu", 0)?),
                memory: Bytes(number::<u64>(&mut args, "mem", 0)? << 30),
                cores: number(&mut args, "cores", 0)?,
                devices: if gpus > 0 { vec![want] } else { Vec::new() },
                ..Shape::default()
            },
            remaining: number(&mut args, "count", 1)?,
            priority: number(&mut args, "priority", 0)?,
            submitted: number(&mut args, "submitted", 0)?,
        };
        args.reject_next().map_err(|error| error.to_string())?;
        self.view.patch(Change::Claim(framework, id, Some(claim)));
        Ok(String::new())
    }

    fn refuse(&mut self, mut args: ArgumentConsumer<'_>) -> Anything {
        let framework = self.framework(args.next_pos().ok_or("who?")?)?;
        let role = RolePath::new(args.next_pos().ok_or("in which role?")?)?;
        let agent = self.agent(args.next_pos().ok_or("which agent?")?)?;
        let resources = self.view.agent(agent).ok_or("not there")?.free.clone();
        let free = resources.clone();
        let refusal = RefusalView {
            resources,
            free,
            others: Vec::new(),
        };
        self.view
            .patch(Change::Refusal(framework, role, agent, Some(refusal)));
        Ok(String::new())
    }

    fn round(&mut self, mut args: ArgumentConsumer<'_>) -> Anything {
        let mut dirty = Dirty::default();
        for name in args
            .take_key("agents")
            .iter()
            .flat_map(|text| text.split(','))
        {
            dirty.agents.push(self.agent(name)?);
        }
        for name in args
            .take_key("frameworks")
            .iter()
            .flat_map(|text| text.split(','))
        {
            dirty.frameworks.push(self.framework(name)?);
        }
        for name in args
            .take_key("claims")
            .iter()
            .flat_map(|text| text.split(','))
        {
            let (framework, claim) = name.split_once(':').ok_or("framework:claim")?;
            dirty
                .claims
                .push((self.framework(framework)?, ClaimId::new(claim)?));
        }
        args.reject_next().map_err(|error| error.to_string())?;
        dirty.all =
            dirty.agents.is_empty() && dirty.frameworks.is_empty() && dirty.claims.is_empty();
        let round = allocate(&self.view, &dirty, Limits::NONE);
        reference::book(&mut self.view, &round);
        let text = self.show(&round);
        self.out.extend(round.placements);
        Ok(text)
    }

    fn show(&self, round: &Round) -> String {
        let mut text = String::new();
        for placement in &round.placements {
            let claim = placement
                .claim
                .as_ref()
                .map_or("plain offer", |claim| claim.as_str());
            let taken = &placement.resources;
            let _ = write!(
                text,
                "{} {}: {claim} on {}, cpu={} mem={}",
                placement.role,
                Self::name(&self.frameworks, &placement.framework),
                Self::name(&self.agents, &placement.agent),
                taken.cpu.0,
                taken.memory.0 >> 30,
            );
            if !taken.cores.is_empty() {
                let _ = write!(text, " cores={}", taken.cores);
            }
            for device in &taken.devices {
                let _ = write!(text, " {}:{}", device.id, device.milli);
            }
            let _ = writeln!(text, " slots={}", placement.slots);
        }
        for waiting in &round.waiting {
            let framework = Self::name(&self.frameworks, &waiting.framework);
            let (claim, remaining) = (&waiting.claim, waiting.remaining);
            let _ = write!(
                text,
                "{framework}: {claim} waits for {remaining}: {}",
                waiting.reason
            );
            if let Some(short) = &waiting.short {
                let _ = write!(
                    text,
                    ", {} want={} have={}",
                    short.kind, short.want, short.have
                );
            }
            if let Some((framework, claim)) = &waiting.behind {
                let _ = write!(
                    text,
                    " behind {} {claim}",
                    Self::name(&self.frameworks, framework)
                );
            }
            text.push('\n');
        }
        if text.is_empty() {
            text.push_str("nothing\n");
        }
        text
    }

    /// Offers of a framework come to an end: `accepted`, or given back.
    fn answer(&mut self, mut args: ArgumentConsumer<'_>) -> Anything {
        let id = self.framework(args.next_pos().ok_or("whose?")?)?;
        let accepted = number(&mut args, "accepted", true)?;
        let mut framework = self.view.framework(id).ok_or("not there")?.clone();
        framework.offered = Charge::default();
        let (answered, out) = self
            .out
            .drain(..)
            .partition(|placement| placement.framework == id);
        self.out = out;
        let answered: Vec<Placement> = answered;
        for placement in answered.iter().filter(|_| !accepted) {
            let mut agent = self.view.agent(placement.agent).ok_or("not there")?.clone();
            agent.free.add(&placement.resources);
            self.view.patch(Change::Agent(placement.agent, Some(agent)));
            if let Some(held) = framework.held.get_mut(&placement.role) {
                held.subtract(&Charge::of(&placement.resources));
            }
            if let Some(claim) = &placement.claim {
                let mut view = self.view.claim(id, claim).ok_or("not there")?.clone();
                view.remaining += placement.slots;
                self.view
                    .patch(Change::Claim(id, claim.clone(), Some(view)));
            }
        }
        self.view.patch(Change::Framework(id, Some(framework)));
        Ok(String::new())
    }

    fn explain(&mut self, mut args: ArgumentConsumer<'_>) -> Anything {
        let framework = self.framework(args.next_pos().ok_or("whose?")?)?;
        let claim = ClaimId::new(args.next_pos().ok_or("which claim?")?)?;
        let why = explain(&self.view, framework, &claim).ok_or("no such claim")?;
        let mut text = why.reason.to_string();
        if let Some(short) = &why.short {
            let _ = write!(
                text,
                ", {} want={} have={}",
                short.kind, short.want, short.have
            );
        }
        text.push('\n');
        for group in &why.groups {
            let code = group.code.map_or("fits", |code| code.as_str());
            let names: Vec<String> = group
                .samples
                .iter()
                .map(|agent| Self::name(&self.agents, agent))
                .collect();
            let _ = write!(text, "{} {code}: {}", group.count, names.join(" "));
            if let Some((agent, short)) = &group.nearest {
                let name = Self::name(&self.agents, agent);
                let (kind, want, have) = (&short.kind, short.want, short.have);
                let _ = write!(text, "; nearest {name}, {kind} want={want} have={have}");
            }
            text.push('\n');
        }
        Ok(text)
    }
}

impl Runner for Script {
    type Command = Command;

    fn run(&mut self, command: &Command, _: &Context) -> Anything {
        let mut args = command.consume_args();
        match command.name.as_str() {
            "agent" => self.put_agent(args),
            "free" => self.set_free(args),
            "framework" => self.put_framework(args),
            "claim" => self.put_claim(args),
            "refuse" => self.refuse(args),
            "round" => self.round(args),
            "answer" => self.answer(args),
            "explain" => self.explain(args),
            "role" => {
                let role = RolePath::new(args.next_pos().ok_or("which role?")?)?;
                let weight_milli = number(&mut args, "weight", 1000)?;
                self.view
                    .patch(Change::Role(role, Some(RoleView { weight_milli })));
                Ok(String::new())
            }
            other => Err(format!("no command {other}").into()),
        }
    }
}

#[test]
fn every_script_gives_what_it_says() {
    let mut files: Vec<_> = std::fs::read_dir("tests/scripts")
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(files.len() >= 10, "scripts are missing: {files:?}");
    for file in files {
        goldenscript::run(&mut Script::default(), &file).unwrap();
    }
}
