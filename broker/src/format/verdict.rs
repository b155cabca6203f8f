//! Answers that may be asked for again, as stored.

use mete_model::{Code, GrantId};
use mete_proto::convert::{At, Faults, write_run};
use mete_proto::internal::v1 as stored;
use mete_proto::internal::v1::snapshot_verdict::Verdict as Stored;
use mete_proto::internal::v1::verdict_store::Result as StoredResult;
use mete_state::{ItemVerdict, LaunchVerdict, StoreVerdict, StoredVerdict, Verdict};
use prost::bytes::Bytes;

use super::command::{put_run_ref, read_run_ref, runs};
use super::read::{agent, code, each, framework, given, put_uuid};

pub(super) fn put_verdict(record: &StoredVerdict) -> stored::SnapshotVerdict {
    stored::SnapshotVerdict {
        framework: put_uuid(record.framework.0),
        call: record.call,
        revision: record.revision,
        verdict: Some(put(&record.verdict)),
    }
}

fn put(verdict: &Verdict) -> Stored {
    match verdict {
        Verdict::Done => Stored::Done(stored::VerdictDone {}),
        Verdict::Launched(tasks) => Stored::Launched(stored::VerdictLaunched {
            tasks: tasks
                .iter()
                .map(|task| put_item(task.code, &task.detail, task.grant))
                .collect(),
        }),
        Verdict::Killed(items) => Stored::Killed(put_items(items)),
        Verdict::Acknowledged(items) => Stored::Acknowledged(put_items(items)),
        Verdict::StoreWritten(result) => Stored::Store(put_store(result)),
        Verdict::TornDown(killing) => Stored::TornDown(stored::VerdictTornDown {
            killing: killing.iter().map(write_run).collect(),
        }),
        Verdict::Admitted { agent, discard } => Stored::Admitted(stored::VerdictAdmitted {
            agent: put_uuid(agent.0),
            discard: discard.iter().map(put_run_ref).collect(),
        }),
        Verdict::Subscribed {
            framework,
            incarnation,
            known,
        } => Stored::Subscribed(stored::VerdictSubscribed {
            framework: put_uuid(framework.0),
            incarnation: *incarnation,
            known: *known,
        }),
        Verdict::MasterAdded { node } => {
            Stored::MasterAdded(stored::VerdictMasterAdded { node: *node })
        }
        Verdict::RoleSet { created } => {
            Stored::RoleSet(stored::VerdictRoleSet { created: *created })
        }
    }
}

fn put_item(code: Code, detail: &str, grant: Option<GrantId>) -> stored::VerdictItem {
    // `OK` is by far the most frequent: the empty text stands for it.
    let code = if code == Code::Ok {
        String::new()
    } else {
        code.to_string()
    };
    stored::VerdictItem {
        code,
        detail: detail.to_owned(),
        grant: grant.map(|grant| grant.0),
    }
}

fn put_items(items: &[ItemVerdict]) -> stored::VerdictItems {
    stored::VerdictItems {
        items: items
            .iter()
            .map(|item| put_item(item.code, &item.detail, None))
            .collect(),
    }
}

fn put_store(verdict: &StoreVerdict) -> stored::VerdictStore {
    let result = match verdict {
        StoreVerdict::Written => StoredResult::Written(stored::VerdictDone {}),
        StoreVerdict::Conflict(keys) => StoredResult::Conflict(stored::VerdictConflict {
            keys: keys
                .iter()
                .map(|(key, revision)| stored::VerdictConflictKey {
                    key: Bytes::copy_from_slice(key),
                    revision: *revision,
                })
                .collect(),
        }),
        StoreVerdict::Full {
            used,
            wanted,
            limit,
        } => StoredResult::Full(stored::VerdictFull {
            used: *used,
            wanted: *wanted,
            limit: *limit,
        }),
    };
    stored::VerdictStore {
        result: Some(result),
    }
}

pub(super) fn read_verdict(
    record: stored::SnapshotVerdict,
    at: At<'_>,
    faults: &mut Faults,
) -> Option<StoredVerdict> {
    let verdict = given(record.verdict, at.field("verdict"), faults)?;
    Some(StoredVerdict {
        framework: framework(&record.framework, at.field("framework"), faults)?,
        call: record.call,
        revision: record.revision,
        verdict: read(verdict, at, faults)?,
    })
}

fn read(verdict: Stored, at: At<'_>, faults: &mut Faults) -> Option<Verdict> {
    Some(match verdict {
        Stored::Done(stored::VerdictDone {}) => Verdict::Done,
        Stored::Launched(launched) => {
            let list = at.field("tasks");
            Verdict::Launched(each(launched.tasks, list, faults, |task, at, faults| {
                Some(LaunchVerdict {
                    code: read_code(&task.code, at, faults)?,
                    detail: task.detail,
                    grant: task.grant.map(GrantId),
                })
            })?)
        }
        Stored::Killed(items) => Verdict::Killed(read_items(items, at, faults)?),
        Stored::Acknowledged(items) => Verdict::Acknowledged(read_items(items, at, faults)?),
        Stored::Store(result) => Verdict::StoreWritten(read_store(result, at, faults)?),
        Stored::TornDown(ended) => {
            Verdict::TornDown(runs(ended.killing, at.field("killing"), faults)?)
        }
        Stored::Admitted(admitted) => Verdict::Admitted {
            agent: agent(&admitted.agent, at.field("agent"), faults)?,
            discard: each(admitted.discard, at.field("discard"), faults, read_run_ref)?,
        },
        Stored::Subscribed(subscribed) => Verdict::Subscribed {
            framework: framework(&subscribed.framework, at.field("framework"), faults)?,
            incarnation: subscribed.incarnation,
            known: subscribed.known,
        },
        Stored::MasterAdded(added) => Verdict::MasterAdded { node: added.node },
        Stored::RoleSet(set) => Verdict::RoleSet {
            created: set.created,
        },
    })
}

fn read_code(text: &str, at: At<'_>, faults: &mut Faults) -> Option<Code> {
    if text.is_empty() {
        return Some(Code::Ok);
    }
    code(text, at.field("code"), faults)
}

fn read_items(
    items: stored::VerdictItems,
    at: At<'_>,
    faults: &mut Faults,
) -> Option<Vec<ItemVerdict>> {
    each(
        items.items,
        at.field("items"),
        faults,
        |item, at, faults| {
            Some(ItemVerdict {
                code: read_code(&item.code, at, faults)?,
                detail: item.detail,
            })
        },
    )
}

fn read_store(
    verdict: stored::VerdictStore,
    at: At<'_>,
    faults: &mut Faults,
) -> Option<StoreVerdict> {
    Some(match given(verdict.result, at.field("result"), faults)? {
        StoredResult::Written(stored::VerdictDone {}) => StoreVerdict::Written,
        StoredResult::Conflict(conflict) => StoreVerdict::Conflict(
            conflict
                .keys
                .into_iter()
                .map(|key| (key.key.to_vec(), key.revision))
                .collect(),
        ),
        StoredResult::Full(full) => StoreVerdict::Full {
            used: full.used,
            wanted: full.wanted,
            limit: full.limit,
        },
    })
}
