//! Details of elements that have ended: kept within their bounds, dropped beyond.

use super::Queue;
use crate::details::{self, Details, Dropped, Kind};
use crate::records;

impl Queue {
    /// Keeps the details of an element that has ended, and drops those that are kept no longer.
    pub(super) fn keep_details(&mut self, number: u64, at: usize) {
        let Some(job) = self.jobs.get_mut(&number) else {
            return;
        };
        let Some(element) = job.elements.get_mut(at) else {
            return;
        };
        let Some(present) = &mut element.present else {
            return;
        };
        details::cut(&mut present.message);
        let (kind, cost) = (Kind::of(element.state), details::cost(present));
        let position = u32::try_from(at).unwrap_or(u32::MAX);
        let page = job.details.push(kind, position, cost);
        self.dirty_details.insert((number, page));
        self.detail_bytes = self.detail_bytes.saturating_add(cost);
        self.detailed.insert(number);
        self.drop_details(number, |details| details.trim(kind));
        while self.detail_bytes > details::MOST_BYTES {
            // The jobs that were submitted first are missed least.
            let Some(oldest) = self.detailed.first().copied() else {
                return;
            };
            self.drop_details(oldest, Details::drop_oldest);
        }
    }

    /// Lets a page of a job's details go, if `which` gives one.
    fn drop_details(&mut self, number: u64, which: impl FnOnce(&mut Details) -> Option<Dropped>) {
        let Some(job) = self.jobs.get_mut(&number) else {
            self.detailed.remove(&number);
            return;
        };
        let before = job.details.bytes();
        if let Some(dropped) = which(&mut job.details) {
            for position in dropped.positions {
                let at = usize::try_from(position).unwrap_or(usize::MAX);
                if let Some(element) = job.elements.get_mut(at) {
                    element.present = None;
                }
            }
            self.dirty_details.remove(&(number, dropped.page));
            self.deleted.push(records::ended_key(number, dropped.page));
            let freed = before.saturating_sub(job.details.bytes());
            self.detail_bytes = self.detail_bytes.saturating_sub(freed);
        }
        if job.details.is_empty() {
            self.detailed.remove(&number);
        }
    }
}
