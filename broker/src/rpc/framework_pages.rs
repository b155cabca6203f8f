//! Pages that frameworks read: runs, and records of their store. Read from the applied state, after
//! the fence was compared and the leader was found to lead; the state is held for one page only.

use mete_model::{Code, FrameworkId, RunId};
use mete_proto::framework::v1 as wire;
use mete_proto::types::v1::Verdict as WireVerdict;
use mete_state::{State, StoreRecord};
use prost::Message as _;

use crate::leader::opening::write_run_status;

/// Bytes of one page, roughly; far below the limit of a message.
const PAGE_BYTES: usize = 3 << 20;

/// Items of a page when the caller does not say, and the most it may ask for.
const ITEMS: usize = 1_000;
const MOST_ITEMS: usize = 10_000;

/// The number of items that a page may have.
pub(super) fn page_size(asked: u32) -> usize {
    match usize::try_from(asked).unwrap_or(MOST_ITEMS) {
        0 => ITEMS,
        asked => asked.min(MOST_ITEMS),
    }
}

/// All live runs from `after` on.
pub(super) fn all_runs(
    state: &State,
    framework: FrameworkId,
    after: Option<&RunId>,
    size: usize,
    is_recovering: &dyn Fn(mete_model::AgentId) -> bool,
) -> wire::ReconcileResponse {
    let mut page = wire::ReconcileResponse {
        revision: state.revision(),
        ..wire::ReconcileResponse::default()
    };
    let mut bytes: usize = 0;
    let wanted = |run: &&mete_state::Run| after.is_none_or(|after| run.id > *after);
    let mut last: Option<&RunId> = None;
    for run in state.runs(framework).filter(wanted) {
        if page.runs.len() >= size || bytes >= PAGE_BYTES {
            page.next_page_token = last.map_or_else(String::new, ToString::to_string);
            break;
        }
        let shown = write_run_status(state, run, is_recovering);
        bytes = bytes.saturating_add(shown.encoded_len());
        page.runs.push(shown);
        last = Some(&run.id);
    }
    page
}

/// Runs by name, each answered: `from` counts into `runs`.
pub(super) fn named_runs(
    state: &State,
    framework: FrameworkId,
    runs: &[RunId],
    from: usize,
    size: usize,
    is_recovering: &dyn Fn(mete_model::AgentId) -> bool,
) -> wire::ReconcileResponse {
    let mut page = wire::ReconcileResponse {
        revision: state.revision(),
        ..wire::ReconcileResponse::default()
    };
    let mut bytes: usize = 0;
    for (at, id) in runs.iter().enumerate().skip(from) {
        if at >= from.saturating_add(size) || bytes >= PAGE_BYTES {
            page.next_page_token = at.to_string();
            break;
        }
        match state.run(framework, id) {
            Some(run) => {
                let shown = write_run_status(state, run, is_recovering);
                bytes = bytes.saturating_add(shown.encoded_len());
                page.runs.push(shown);
            }
            None => page.misses.push(miss(state, framework, id)),
        }
    }
    page
}

fn miss(state: &State, framework: FrameworkId, id: &RunId) -> wire::ReconcileMiss {
    let ended = state
        .past_run(framework, id)
        .map(|run| run.phase)
        .or_else(|| state.ended_run(framework, id).map(|run| run.phase));
    let (code, detail) = match ended {
        Some(phase) => (Code::AlreadyTerminal, format!("run {id} is over: {phase}")),
        None => (Code::NotFound, format!("no run {id} is known")),
    };
    let facts = ended.map(|phase| ("phase".to_owned(), phase.to_string()));
    wire::ReconcileMiss {
        run: Some(mete_proto::convert::write_run(id)),
        verdict: Some(WireVerdict {
            code: code.as_str().to_owned(),
            detail,
            facts: facts.into_iter().collect(),
        }),
    }
}

/// Records by key, in the order of the keys.
pub(super) fn records(
    state: &State,
    framework: FrameworkId,
    keys: &[prost::bytes::Bytes],
) -> wire::StoreGetResponse {
    let items = keys
        .iter()
        .map(|key| match state.store_get(framework, key) {
            Some(record) => item(record, true),
            None => wire::StoreItem {
                key: key.clone(),
                ..wire::StoreItem::default()
            },
        });
    wire::StoreGetResponse {
        items: items.collect(),
    }
}

/// Records under a prefix, from the first one after `after`.
pub(super) fn record_list(
    state: &State,
    framework: FrameworkId,
    prefix: &[u8],
    after: Option<&[u8]>,
    size: usize,
    with_values: Values,
) -> wire::StoreListResponse {
    let mut page = wire::StoreListResponse {
        revision: state.revision(),
        ..wire::StoreListResponse::default()
    };
    let mut bytes: usize = 0;
    for record in state.store_list(framework, prefix, after) {
        if page.items.len() >= size || bytes >= PAGE_BYTES {
            page.next_page_token = page
                .items
                .last()
                .map_or_else(String::new, |item| token_of(&item.key));
            break;
        }
        let item = item(record, with_values == Values::Sent);
        bytes = bytes.saturating_add(item.encoded_len());
        page.items.push(item);
    }
    page
}

/// Whether values are sent along with the keys.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Values {
    Sent,
    LeftOut,
}

fn item(record: &StoreRecord, with_value: bool) -> wire::StoreItem {
    let value: &[u8] = if with_value { &record.value } else { &[] };
    wire::StoreItem {
        key: record.key.clone().into(),
        found: true,
        value: value.to_vec().into(),
        revision: record.revision,
    }
}

/// A key as a page token: its bytes in hexadecimal.
fn token_of(key: &[u8]) -> String {
    use std::fmt::Write as _;
    key.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The key of a page token; `None` if it is none.
pub(super) fn key_of(token: &str) -> Option<Vec<u8>> {
    if !token.len().is_multiple_of(2) || !token.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    (0..token.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(token.get(at..at + 2)?, 16).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_tokens_of_keys_survive_and_odd_ones_are_refused() {
        for key in [&b""[..], b"a", &[0, 255, 16]] {
            assert_eq!(key_of(&token_of(key)).as_deref(), Some(key));
        }
        for odd in ["a", "zz", "ää", "+1"] {
            assert_eq!(key_of(odd), None, "{odd}");
        }
    }

    #[test]
    fn a_page_has_a_size_within_its_bounds() {
        assert_eq!(
            (page_size(0), page_size(7), page_size(u32::MAX)),
            (1000, 7, 10_000)
        );
    }
}
