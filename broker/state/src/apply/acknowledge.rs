//! Acknowledgements: cumulative for each run, idempotent, never refused for being too many.

use mete_model::{Code, FrameworkId, RunId};

use super::validate::Faults;
use super::{Plan, Turn, preview_of, runs};
use crate::effect::{ItemVerdict, Verdict};
use crate::limits::ITEMS_OF_A_CALL;
use crate::rejection::Rejection;
use crate::state::{Preview, State};

/// What a framework has handled.
#[derive(Debug)]
pub(crate) struct Acknowledgement<'a> {
    framework: FrameworkId,
    items: &'a [(RunId, u64)],
    verdicts: Vec<ItemVerdict>,
    changes: bool,
}

pub(crate) fn acknowledge<'a>(
    state: &State,
    framework: FrameworkId,
    items: &'a [(RunId, u64)],
) -> Result<Acknowledgement<'a>, Rejection> {
    let mut faults = Faults::default();
    faults.list("items", items.len(), ITEMS_OF_A_CALL);
    faults.result()?;
    let mut changes = false;
    let mut judge = |run: &RunId, sequence: u64| {
        if let Some(live) = state.run(framework, run) {
            if sequence > live.sequence {
                let last = live.sequence;
                let detail = format!("{run} has no status {sequence}, its last is {last}");
                return item(Code::Invalid, detail);
            }
            changes |= sequence > live.acknowledged;
            return item(Code::Ok, String::new());
        }
        let past = state.past_run(framework, run).is_some();
        if past || state.ended_run(framework, run).is_some() {
            return item(Code::Ok, String::new());
        }
        item(Code::NotFound, format!("no run {run} is known"))
    };
    let verdicts = items
        .iter()
        .map(|(run, sequence)| judge(run, *sequence))
        .collect();
    Ok(Acknowledgement {
        framework,
        items,
        verdicts,
        changes,
    })
}

fn item(code: Code, detail: String) -> ItemVerdict {
    ItemVerdict { code, detail }
}

impl Plan for Acknowledgement<'_> {
    fn preview(&self) -> Preview {
        preview_of(self.changes, &Verdict::Acknowledged(self.verdicts.clone()))
    }

    fn write(self, state: &mut State, turn: &mut Turn) -> Verdict {
        for ((run, sequence), verdict) in self.items.iter().zip(&self.verdicts) {
            if verdict.code == Code::Ok {
                runs::acknowledge(state, turn, self.framework, run, *sequence);
            }
        }
        Verdict::Acknowledged(self.verdicts)
    }
}
