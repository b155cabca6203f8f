//! Pages of rows, and the cluster at a glance.
//!
//! A page looks at no more than `LOOKED_AT` objects under one lock; a filter that leaves out most
//! of a million tasks is many short locks, not a long one. Each page says the revision it was read
//! at; a watch from the first page's revision misses nothing.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use mete_model::{FrameworkId, RunId};
use mete_proto::admin::v1 as wire;
use mete_proto::convert::{At, whole};
use mete_state::{Change, Run, State};
use prost::Message;

use super::filter::{Filter, Match};
use super::rows::{self, RoleSums, claim_key, task_key};
use super::token::{self, After};
use super::{Feed, Problem, soft};
use crate::handle::Handle;
use crate::request::{Reply, Request};

/// Rows of one page at the most, whatever is asked.
pub const MOST_ROWS: usize = 1_000;

/// Objects looked at under one lock.
const LOOKED_AT: usize = 10_000;

/// Objects looked at for one page; then it ends, full or not.
const LOOKED_AT_IN_ALL: usize = 400_000;

/// Bytes of a page, below the limit of a message.
const PAGE_BYTES: usize = 3 << 20;

/// How long a read waits for a revision.
const WAIT: Duration = Duration::from_secs(2);

/// Reads one page.
///
/// # Errors
/// `INVALID` names every wrong field; `BUSY` when the loop does not get to it.
pub async fn list(
    handle: &Handle,
    feed: &Feed,
    request: wire::ListRequest,
) -> Result<wire::ListResponse, Problem> {
    let is_fresh = !request.local && request.page_token.is_empty();
    let (kind, filter, after, size) = read_request(request)?;
    if is_fresh {
        at_present(handle).await?;
    }
    wait_for(feed, size.1).await?;
    let mut page = Page {
        filter,
        size: size.0,
        rows: Vec::new(),
        bytes: 0,
        revision: None,
    };
    let next = if kind == wire::Kind::Offer {
        page.fill_with_offers(handle, &after).await?
    } else {
        page.fill(handle, feed, kind, after).await?
    };
    Ok(wire::ListResponse {
        revision: page.revision.unwrap_or_default(),
        next_page_token: next
            .map(|after| token::write(kind, &page.filter.wire, &after))
            .unwrap_or_default(),
        objects: page.rows,
    })
}

type Asked = (wire::Kind, Filter, After, (usize, u64));

fn read_request(request: wire::ListRequest) -> Result<Asked, Problem> {
    let read = whole(|faults| {
        let kind = wire::Kind::try_from(request.kind).unwrap_or(wire::Kind::Unspecified);
        if kind == wire::Kind::Unspecified {
            let fault = format_args!("{} is not a kind of objects: 1 to 6 are", request.kind);
            faults.add(At::root("kind"), fault);
        }
        let filter = Filter::read(request.filter, faults)?;
        let after = if request.page_token.is_empty() {
            Some(After::default())
        } else {
            token::read(kind, &filter.wire, &request.page_token)
        };
        if after.is_none() {
            let fault = "is not a token of this list; start again without one";
            faults.add(At::root("page_token"), fault);
        }
        if request.page_size > 10_000 {
            let fault = format_args!("{} is not within 0 to 10000", request.page_size);
            faults.add(At::root("page_size"), fault);
        }
        let asked = usize::try_from(request.page_size).unwrap_or(MOST_ROWS);
        let size = if asked == 0 {
            MOST_ROWS
        } else {
            asked.min(MOST_ROWS)
        };
        Some((kind, filter, after?, (size, request.min_revision)))
    });
    Ok(read?)
}

/// Makes sure that this master leads and has applied everything that was acknowledged before: what
/// is read after this is the present, also on a master that had stopped for a while.
///
/// # Errors
/// `NOT_LEADER` with where to go; `NO_LEADER`; `BUSY`.
pub async fn at_present(handle: &Handle) -> Result<(), Problem> {
    match handle.call(Request::ReadPoint).await? {
        Reply::ReadAt { .. }
        | Reply::Applied { .. }
        | Reply::Offers { .. }
        | Reply::HandedOver { .. } => Ok(()),
    }
}

/// Waits until `revision` has been applied here.
///
/// # Errors
/// `BUSY` when it has not come in time.
pub async fn wait_for(feed: &Feed, revision: u64) -> Result<(), Problem> {
    if revision == 0 || feed.revision() >= revision {
        return Ok(());
    }
    let mut latest = feed.latest();
    let came = tokio::time::timeout(WAIT, latest.wait_for(|latest| *latest >= revision)).await;
    if matches!(came, Ok(Ok(_))) {
        return Ok(());
    }
    let detail = format!(
        "revision {revision} has not come to this master within {} ms, it has {}; try again",
        WAIT.as_millis(),
        feed.revision()
    );
    Err(Problem::refused(mete_model::Code::Busy, detail))
}

struct Page {
    filter: Filter,
    size: usize,
    rows: Vec<wire::Object>,
    bytes: usize,
    revision: Option<u64>,
}

impl Page {
    fn is_full(&self) -> bool {
        self.rows.len() >= self.size || self.bytes >= PAGE_BYTES
    }

    async fn fill(
        &mut self,
        handle: &Handle,
        feed: &Feed,
        kind: wire::Kind,
        mut after: After,
    ) -> Result<Option<After>, Problem> {
        let mut looked_at = 0;
        loop {
            let room = self.size.saturating_sub(self.rows.len());
            let mut part = {
                let state = handle.state();
                let part = take(&state, feed, kind, &self.filter, &after, room);
                self.revision.get_or_insert(state.revision());
                part
            };
            soft::add(handle, part.changes, &mut part.rows).await?;
            let mut rows = part.rows.into_iter().zip(part.afters);
            for (row, place) in rows.by_ref() {
                if self.filter.on(&row) == Match::Yes {
                    self.bytes += row.encoded_len();
                    self.rows.push(row);
                    after = place;
                    if self.is_full() {
                        break;
                    }
                }
            }
            let rest = rows.next().is_some();
            if self.is_full() && (rest || part.next.is_some()) {
                return Ok(Some(after));
            }
            let Some(next) = part.next else {
                return Ok(None);
            };
            after = next;
            looked_at += LOOKED_AT;
            if looked_at >= LOOKED_AT_IN_ALL {
                return Ok(Some(after));
            }
            tokio::task::yield_now().await;
        }
    }

    async fn fill_with_offers(
        &mut self,
        handle: &Handle,
        after: &After,
    ) -> Result<Option<After>, Problem> {
        let mut last: u64 = after.key.parse().unwrap_or(0);
        loop {
            let offers = soft::offers(handle, last, MOST_ROWS).await?;
            let at_end = offers.len() < MOST_ROWS;
            let state = handle.state();
            self.revision.get_or_insert(state.revision());
            for offer in &offers {
                last = offer.0.offer.id.number;
                let row = soft::offer_row(&state, offer);
                if self.filter.on(&row) == Match::Yes {
                    self.bytes += row.encoded_len();
                    self.rows.push(row);
                }
                if self.is_full() {
                    return Ok(Some(After {
                        section: 0,
                        key: last.to_string(),
                    }));
                }
            }
            if at_end {
                return Ok(None);
            }
        }
    }
}

/// Rows taken under one lock.
#[derive(Default)]
struct Taken {
    rows: Vec<wire::Object>,
    changes: Vec<Change>,
    /// Where a page that ends with this row goes on.
    afters: Vec<After>,
    /// Where the next look goes on; `None` at the end.
    next: Option<After>,
}

fn take(
    state: &State,
    feed: &Feed,
    kind: wire::Kind,
    filter: &Filter,
    after: &After,
    room: usize,
) -> Taken {
    let key = after.key.as_str();
    let live = |change: Change, key: String| (change, After { section: 0, key });
    match kind {
        wire::Kind::Node => {
            let agents = state.agents().map(|agent| (agent.id, agent.id.to_string()));
            let found = agents
                .filter(|(_, id)| id.as_str() > key)
                .map(|(id, key)| live(Change::Agent(id), key));
            collect(state, feed, found, room)
        }
        wire::Kind::Framework => {
            let found = state
                .frameworks()
                .map(|framework| live(Change::Framework(framework.id), framework.id.to_string()))
                .filter(|(_, place)| place.key.as_str() > key);
            collect(state, feed, found, room)
        }
        wire::Kind::Role => {
            let found = state
                .roles()
                .filter(|role| role.path.as_str() > key)
                .map(|role| live(Change::Role(role.path.clone()), role.path.to_string()));
            collect(state, feed, found, room)
        }
        wire::Kind::Claim => {
            let found = state
                .frameworks()
                .flat_map(|framework| state.claims(framework.id))
                .map(|record| {
                    let id = record.claim.id.clone();
                    let key = claim_key(record.framework, &id);
                    live(Change::Claim(record.framework, id), key)
                })
                .filter(|(_, place)| place.key.as_str() > key);
            collect(state, feed, found, room)
        }
        wire::Kind::Task => take_runs(state, feed, filter, after, room),
        wire::Kind::Offer | wire::Kind::Unspecified => Taken::default(),
    }
}

fn collect(
    state: &State,
    feed: &Feed,
    found: impl Iterator<Item = (Change, After)>,
    room: usize,
) -> Taken {
    let mut taken = Taken::default();
    let mut sums = None;
    // A few more than there is room for: the filter will leave some out.
    let most = room.max(100);
    for (change, place) in found {
        if taken.rows.len() >= most {
            taken.next = taken.afters.last().cloned();
            break;
        }
        if matches!(change, Change::Role(_)) && sums.is_none() {
            sums = Some(RoleSums::of(state));
        }
        let none = RoleSums::default();
        let row = rows::resolve(state, feed, &change, sums.as_ref().unwrap_or(&none));
        if let Some(row) = row {
            taken.rows.push(row);
            taken.changes.push(change);
            taken.afters.push(place);
        }
    }
    taken
}

/// Live runs by framework and run, then those in history.
fn take_runs(state: &State, feed: &Feed, filter: &Filter, after: &After, room: usize) -> Taken {
    let mut taken = Taken::default();
    let mut looked_at = 0;
    let (from_framework, from_run) = split(&after.key);
    for section in after.section..2 {
        for framework in state.frameworks_with_runs() {
            let here = section == after.section && from_framework == Some(framework);
            if section == after.section && from_framework.is_some_and(|from| framework < from) {
                continue;
            }
            let from = if here { from_run.clone() } else { None };
            for run in runs_of(state, framework, section, from) {
                let place = After {
                    section,
                    key: task_key(framework, &run.id),
                };
                looked_at += 1;
                if !filter.rules_out(state, run) {
                    let change = Change::Run(framework, run.id.clone());
                    let revision = run.revision.max(feed.last_change(&change));
                    taken.rows.push(wire::Object {
                        revision,
                        object: Some(wire::object::Object::Task(rows::task(state, run))),
                    });
                    taken.changes.push(change);
                    taken.afters.push(place.clone());
                }
                if taken.rows.len() >= room || looked_at >= LOOKED_AT {
                    taken.next = Some(place);
                    return taken;
                }
            }
        }
    }
    taken
}

fn runs_of(
    state: &State,
    framework: FrameworkId,
    section: u8,
    after: Option<RunId>,
) -> Box<dyn Iterator<Item = &Run> + '_> {
    if section == 0 {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        return Box::new(state.runs_from(framework, from));
    }
    let mut past: Vec<&Run> = state
        .history_of(framework)
        .filter(|run| after.as_ref().is_none_or(|after| run.id > *after))
        .collect();
    past.sort_by(|a, b| a.id.cmp(&b.id));
    Box::new(past.into_iter())
}

fn split(key: &str) -> (Option<FrameworkId>, Option<RunId>) {
    let Some((framework, run)) = key.split_once('/') else {
        return (None, None);
    };
    (framework.parse().ok(), run.parse().ok())
}

/// Shows every run, live and in history, to `see`, in short locks.
pub async fn each_run(handle: &Handle, mut see: impl FnMut(&Run)) {
    let frameworks = handle.state().frameworks_with_runs();
    for framework in frameworks {
        let mut from = Bound::Unbounded;
        loop {
            let last = {
                let state = handle.state();
                let mut last = None;
                let mut taken = 0;
                for run in state.runs_from(framework, from).take(LOOKED_AT) {
                    see(run);
                    last = Some(&run.id);
                    taken += 1;
                }
                last.filter(|_| taken == LOOKED_AT).cloned()
            };
            match last {
                Some(last) => from = Bound::Excluded(last),
                None => break,
            }
            tokio::task::yield_now().await;
        }
        handle.state().history_of(framework).for_each(&mut see);
    }
}

/// Tasks by phase, live and in history.
pub async fn tasks_by_phase(handle: &Handle) -> BTreeMap<String, u64> {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    each_run(handle, |run| count(&mut counts, run)).await;
    counts
}

fn count(counts: &mut BTreeMap<String, u64>, run: &Run) {
    match counts.get_mut(run.phase.word()) {
        Some(count) => *count = count.saturating_add(1),
        None => {
            counts.insert(run.phase.word().to_owned(), 1);
        }
    }
}

#[cfg(test)]
mod tests;
