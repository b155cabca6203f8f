//! The two files of the trace, read strictly: a line that is not understood is named.

use std::path::Path;

use mete_model::{Bytes, Code};
use mete_sdk::Claim;
use mete_testing::NodeBuilder;

use crate::cli::support::error::{CliError, Outcome};

/// One node.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) name: String,
    cpus: u32,
    memory: Bytes,
    pub(super) gpus: u32,
    model: String,
}

impl Node {
    /// As a node of the test broker.
    pub(super) fn describe(&self, built: NodeBuilder) -> NodeBuilder {
        // No time at all: a task whose pod says nothing runs until it is killed.
        let built = built
            .cpus(self.cpus)
            .memory(self.memory)
            .tasks_run(std::time::Duration::ZERO, 0);
        if self.gpus == 0 {
            built
        } else {
            built.gpus(self.gpus, &self.model)
        }
    }
}

/// One pod.
#[derive(Clone, Debug)]
pub(super) struct Pod {
    pub(super) name: String,
    cpu_milli: u64,
    memory: Bytes,
    gpus: u32,
    gpu_milli: u32,
    model: Option<String>,
    /// `BE`: of role `batch`; everything else is of role `service`.
    pub(super) best_effort: bool,
    /// Seconds from the start of the trace.
    pub(super) created: u64,
    /// Seconds from the start of the trace.
    pub(super) ended: u64,
}

impl Pod {
    /// As a claim of one task.
    pub(super) fn claim(&self) -> Claim {
        let claim = Claim::cpu_milli(self.cpu_milli)
            .memory(self.memory)
            .count(1);
        let class = self
            .model
            .as_ref()
            .map_or("gpu".to_owned(), |model| format!("gpu/{model}"));
        match (self.gpus, self.gpu_milli) {
            (0, _) => claim,
            (1, milli @ 1..1000) => claim.device_milli(&class, milli),
            (count, _) => claim.device(&class, count),
        }
    }
}

/// Lines of a CSV file with this head, each split into its columns.
fn rows(path: &Path, head: &str) -> Outcome<Vec<(usize, Vec<String>)>> {
    let text =
        std::fs::read_to_string(path).map_err(|error| CliError::file("read", path, &error))?;
    let mut lines = text.lines();
    let found = lines.next().unwrap_or_default();
    if found.trim() != head {
        return Err(CliError::new(
            Code::Usage,
            format!(
                "{} is not the expected trace: its first line is '{found}'",
                path.display()
            ),
        )
        .fact(format!("expected '{head}'")));
    }
    let columns = head.split(',').count();
    let mut rows = Vec::new();
    for (index, line) in lines
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
    {
        let cells: Vec<String> = line.split(',').map(|cell| cell.trim().to_owned()).collect();
        if cells.len() != columns {
            return Err(bad(
                path,
                index,
                &format!("{} columns, not {columns}", cells.len()),
            ));
        }
        rows.push((index, cells));
    }
    Ok(rows)
}

fn bad(path: &Path, index: usize, what: &str) -> CliError {
    CliError::new(
        Code::Usage,
        format!("{}, line {}: {what}", path.display(), index + 2),
    )
}

/// Reads numbers of one row.
struct Cells<'a> {
    path: &'a Path,
    index: usize,
    cells: Vec<String>,
}

impl Cells<'_> {
    fn text(&self, at: usize) -> &str {
        self.cells.get(at).map_or("", String::as_str)
    }

    fn number<T: std::str::FromStr>(&self, at: usize) -> Outcome<T> {
        let text = self.text(at);
        let wrong = format!("'{text}' in column {} is no number of its kind", at + 1);
        text.parse().map_err(|_| bad(self.path, self.index, &wrong))
    }

    fn number_or<T: std::str::FromStr>(&self, at: usize, unsaid: T) -> Outcome<T> {
        if self.text(at).is_empty() {
            Ok(unsaid)
        } else {
            self.number(at)
        }
    }
}

/// The nodes, in file order.
pub(super) fn nodes(path: &Path) -> Outcome<Vec<Node>> {
    let rows = rows(path, "sn,cpu_milli,memory_mib,gpu,model")?;
    rows.into_iter()
        .map(|(index, cells)| {
            let cells = Cells { path, index, cells };
            let milli: u32 = cells.number(1)?;
            let mib: u64 = cells.number(2)?;
            Ok(Node {
                name: cells.text(0).to_owned(),
                cpus: milli / 1000,
                memory: Bytes(mib << 20),
                gpus: cells.number(3)?,
                model: cells.text(4).to_owned(),
            })
        })
        .collect()
}

/// The pods, in file order.
pub(super) fn pods(path: &Path) -> Outcome<Vec<Pod>> {
    let head = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,\
                creation_time,deletion_time,scheduled_time";
    let rows = rows(path, head)?;
    rows.into_iter()
        .map(|(index, cells)| {
            let cells = Cells { path, index, cells };
            let mib: u64 = cells.number(2)?;
            let created = cells.number(8)?;
            let model = match cells.text(5) {
                "" => None,
                several if several.contains('|') => {
                    let what = "one of several GPU models: only one, or any, can be asked for";
                    return Err(bad(path, index, what));
                }
                one => Some(one.to_owned()),
            };
            Ok(Pod {
                name: cells.text(0).to_owned(),
                cpu_milli: cells.number(1)?,
                memory: Bytes(mib << 20),
                gpus: cells.number(3)?,
                gpu_milli: cells.number_or(4, 1000)?,
                model,
                best_effort: cells.text(6) == "BE",
                created,
                ended: cells.number_or(9, created)?,
            })
        })
        .collect()
}

/// Nodes with GPUs until there are about so many of them, chosen by the seed, every model in turn.
pub(super) fn sample(nodes: Vec<Node>, gpus: u32, seed: u64) -> Vec<Node> {
    let mut with: Vec<Node> = nodes.into_iter().filter(|node| node.gpus > 0).collect();
    // A walk with a stride that is prime to most lengths: reproducible, spread over the file.
    let length = with.len().max(1);
    let start = usize::try_from(seed).unwrap_or(0).wrapping_mul(7919) % length;
    with.rotate_left(start);
    let mut chosen = Vec::new();
    let mut sum = 0;
    for at in 0..length {
        let node = &with[(at * 211) % length];
        if sum + node.gpus <= gpus && !chosen.iter().any(|other: &Node| other.name == node.name) {
            sum += node.gpus;
            chosen.push(node.clone());
        }
    }
    chosen
}
