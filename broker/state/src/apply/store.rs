//! The frameworks' own records: atomic writes with expected revisions, bounded in every direction.

use std::collections::BTreeSet;
use std::sync::Arc;

use mete_model::FrameworkId;

use super::validate::Faults;
use super::{Plan, Turn, calls, preview_of};
use crate::command::{StoreDelete, StorePut};
use crate::effect::{Change, StoreVerdict, Verdict};
use crate::limits::{
    STORE_BYTES, STORE_BYTES_IN_ALL, STORE_KEY_BYTES, STORE_VALUE_BYTES, STORE_WRITE_BYTES,
};
use crate::record::StoreRecord;
use crate::rejection::Rejection;
use crate::state::{Preview, State, Store};

/// A write and what becomes of it.
#[derive(Debug)]
pub(crate) struct Write<'a> {
    framework: FrameworkId,
    puts: &'a [StorePut],
    deletes: &'a [StoreDelete],
    verdict: StoreVerdict,
    bytes: u64,
    changes: bool,
}

pub(crate) fn write<'a>(
    state: &State,
    framework: FrameworkId,
    puts: &'a [StorePut],
    deletes: &'a [StoreDelete],
) -> Result<Write<'a>, Rejection> {
    calls::find(state, framework)?;
    valid(puts, deletes)?;
    let mut write = Write {
        framework,
        puts,
        deletes,
        verdict: StoreVerdict::Written,
        bytes: state.store_bytes(framework),
        changes: false,
    };
    let conflicts = conflicts(state, framework, puts, deletes);
    if !conflicts.is_empty() {
        write.verdict = StoreVerdict::Conflict(conflicts);
        return Ok(write);
    }
    let used = write.bytes;
    let wanted = bytes_after(state, framework, puts, deletes, used);
    let others = state.store_bytes.saturating_sub(used);
    let limit = STORE_BYTES.min(STORE_BYTES_IN_ALL.saturating_sub(others));
    // A write that makes room passes whatever the limit.
    if wanted > limit && wanted > used {
        write.verdict = StoreVerdict::Full {
            used,
            wanted,
            limit,
        };
        return Ok(write);
    }
    write.bytes = wanted;
    write.changes = !puts.is_empty()
        || deletes
            .iter()
            .any(|delete| state.store_get(framework, &delete.key).is_some());
    Ok(write)
}

fn valid(puts: &[StorePut], deletes: &[StoreDelete]) -> Result<(), Rejection> {
    let mut faults = Faults::default();
    let mut keys: BTreeSet<&[u8]> = BTreeSet::new();
    let mut bytes: usize = 0;
    let puts_keys = puts.iter().map(|put| put.key.as_slice()).enumerate();
    let deletes_keys = deletes
        .iter()
        .map(|delete| delete.key.as_slice())
        .enumerate();
    let all = puts_keys
        .map(|(at, key)| ("puts", at, key))
        .chain(deletes_keys.map(|(at, key)| ("deletes", at, key)));
    for (list, at, key) in all {
        let field = format!("{list}[{at}].key");
        if key.is_empty() || key.len() > STORE_KEY_BYTES {
            let fault = format!(
                "has {} bytes, 1 to {STORE_KEY_BYTES} are permitted",
                key.len()
            );
            faults.add(field.clone(), fault);
        }
        if !keys.insert(key) {
            faults.add(field, "is in this write twice");
        }
        bytes = bytes.saturating_add(key.len());
    }
    for (at, put) in puts.iter().enumerate() {
        let length = put.value.len();
        if length > STORE_VALUE_BYTES {
            faults.add(
                format!("puts[{at}].value"),
                format!("has {length} bytes, at most {STORE_VALUE_BYTES} are permitted"),
            );
        }
        bytes = bytes.saturating_add(length);
    }
    if bytes > STORE_WRITE_BYTES {
        faults.add(
            "puts",
            format!("the write has {bytes} bytes, at most {STORE_WRITE_BYTES} are permitted"),
        );
    }
    faults.result()
}

fn conflicts(
    state: &State,
    framework: FrameworkId,
    puts: &[StorePut],
    deletes: &[StoreDelete],
) -> Vec<(Vec<u8>, u64)> {
    let puts = puts.iter().map(|put| (&put.key, put.expected));
    let deletes = deletes.iter().map(|delete| (&delete.key, delete.expected));
    puts.chain(deletes)
        .filter_map(|(key, expected)| {
            let present = state
                .store_get(framework, key)
                .map_or(0, |kept| kept.revision);
            (expected? != present).then(|| (key.clone(), present))
        })
        .collect()
}

fn bytes_after(
    state: &State,
    framework: FrameworkId,
    puts: &[StorePut],
    deletes: &[StoreDelete],
    used: u64,
) -> u64 {
    let put_keys = puts.iter().map(|put| &put.key);
    let freed = put_keys
        .chain(deletes.iter().map(|delete| &delete.key))
        .filter_map(|key| state.store_get(framework, key))
        .map(|kept| size(kept.key.len(), kept.value.len()))
        .fold(0, u64::saturating_add);
    let added = puts
        .iter()
        .map(|put| size(put.key.len(), put.value.len()))
        .fold(0, u64::saturating_add);
    used.saturating_sub(freed).saturating_add(added)
}

/// Bytes that a record counts.
pub(crate) fn size(key: usize, value: usize) -> u64 {
    u64::try_from(key.saturating_add(value)).unwrap_or(u64::MAX)
}

impl Plan for Write<'_> {
    fn preview(&self) -> Preview {
        preview_of(self.changes, &Verdict::StoreWritten(self.verdict.clone()))
    }

    fn write(self, state: &mut State, turn: &mut Turn) -> Verdict {
        let verdict = Verdict::StoreWritten(self.verdict);
        if !self.changes {
            return verdict;
        }
        let store = state.stores.entry(self.framework).or_default();
        for delete in self.deletes {
            store.records.remove(&delete.key);
        }
        for put in self.puts {
            let record = StoreRecord {
                framework: self.framework,
                key: put.key.clone(),
                value: Arc::from(put.value.as_slice()),
                revision: turn.revision,
            };
            store.records.insert(put.key.clone(), record);
        }
        let before = std::mem::replace(&mut store.bytes, self.bytes);
        if store.records.is_empty() {
            state.stores.remove(&self.framework);
        }
        state.store_bytes = state
            .store_bytes
            .saturating_sub(before)
            .saturating_add(self.bytes);
        turn.changed(Change::Framework(self.framework));
        verdict
    }
}

impl Store {
    /// Puts a record of a snapshot.
    pub(crate) fn restore(&mut self, record: StoreRecord) -> bool {
        let bytes = size(record.key.len(), record.value.len());
        self.bytes = self.bytes.saturating_add(bytes);
        self.records.insert(record.key.clone(), record).is_none()
    }
}
