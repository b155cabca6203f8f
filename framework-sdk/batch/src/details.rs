//! What is kept of elements that have ended, beside their four bytes: node, times, reason, message.
//!
//! Of each job the last failed elements and the last others, in pages by the order in which they
//! ended, so that an end rewrites one page and the oldest page goes as a whole. What goes, goes
//! from memory and from the store: memory is bounded as the store is.

use std::collections::VecDeque;

use crate::element::{Present, State};

/// Elements in one page.
pub const PAGE: usize = 64;

/// Failed elements of one job whose details are kept at the least; a page more may be.
pub const MOST_OF_A_KIND: usize = 16_384;

/// Bytes of all details of all jobs, as [`cost`] counts them.
pub const MOST_BYTES: usize = 16 << 20;

/// Bytes of a message; what is beyond is cut.
pub const MOST_MESSAGE_BYTES: usize = 512;

/// Which elements a page is of: those that failed must not be pushed out by those that did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Completed, or cancelled.
    Other,
    /// Failed in any way.
    Failed,
}

impl Kind {
    /// The kind of an element that ended so.
    #[must_use]
    pub fn of(state: State) -> Self {
        match state {
            State::Failed | State::Timeout | State::NodeFail | State::OutOfMemory => Self::Failed,
            State::Pending
            | State::Running
            | State::Cancelling
            | State::Completed
            | State::Cancelled => Self::Other,
        }
    }
}

/// The name of a page within its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PageId {
    /// Of which elements.
    pub kind: Kind,
    /// Rises with the order of ends; never used twice.
    pub number: u32,
}

#[derive(Clone, Debug, Default)]
struct Page {
    number: u32,
    positions: Vec<u32>,
    bytes: usize,
}

/// The pages of one job.
#[derive(Clone, Debug, Default)]
pub struct Details {
    failed: VecDeque<Page>,
    other: VecDeque<Page>,
    /// The number of the next page, of either kind.
    next: u32,
    bytes: usize,
}

/// A page that is kept no longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// Its name.
    pub page: PageId,
    /// Positions of the elements that were in it.
    pub positions: Vec<u32>,
}

/// What the details of an element count for.
#[must_use]
pub fn cost(present: &Present) -> usize {
    const FIXED: usize = 64;
    [
        present.node.len(),
        present.agent.len(),
        present.node_address.len(),
        present.reason.len(),
        present.message.len(),
    ]
    .into_iter()
    .fold(FIXED, usize::saturating_add)
}

/// Cuts a message that is too long to be kept.
pub fn cut(message: &mut String) {
    if message.len() > MOST_MESSAGE_BYTES {
        message.truncate(message.floor_char_boundary(MOST_MESSAGE_BYTES.saturating_sub(3)));
        message.push('…');
    }
}

impl Details {
    fn pages(&self, kind: Kind) -> &VecDeque<Page> {
        match kind {
            Kind::Failed => &self.failed,
            Kind::Other => &self.other,
        }
    }

    fn pages_mut(&mut self, kind: Kind) -> &mut VecDeque<Page> {
        match kind {
            Kind::Failed => &mut self.failed,
            Kind::Other => &mut self.other,
        }
    }

    /// What all of them count for.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Nothing is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.failed.is_empty() && self.other.is_empty()
    }

    /// All pages.
    pub fn ids(&self) -> impl Iterator<Item = PageId> {
        [Kind::Other, Kind::Failed].into_iter().flat_map(|kind| {
            self.pages(kind).iter().map(move |page| PageId {
                kind,
                number: page.number,
            })
        })
    }

    /// Positions of the elements of a page, in the order in which they ended.
    #[must_use]
    pub fn positions(&self, id: PageId) -> Option<&[u32]> {
        let pages = self.pages(id.kind);
        let at = pages.binary_search_by_key(&id.number, |page| page.number);
        at.ok()
            .and_then(|at| pages.get(at))
            .map(|page| page.positions.as_slice())
    }

    /// Takes in an element that has just ended; gives its page, which is to be written.
    pub fn push(&mut self, kind: Kind, position: u32, cost: usize) -> PageId {
        let next = self.next;
        let pages = self.pages_mut(kind);
        let fresh = pages.back().is_none_or(|page| page.positions.len() >= PAGE);
        if fresh {
            pages.push_back(Page {
                number: next,
                ..Page::default()
            });
        }
        let mut number = next;
        if let Some(page) = pages.back_mut() {
            page.positions.push(position);
            page.bytes = page.bytes.saturating_add(cost);
            number = page.number;
        }
        self.next = next.saturating_add(u32::from(fresh));
        self.bytes = self.bytes.saturating_add(cost);
        PageId { kind, number }
    }

    /// The oldest page of a kind, if there are more than are kept of one job.
    pub fn trim(&mut self, kind: Kind) -> Option<Dropped> {
        let most = MOST_OF_A_KIND.div_ceil(PAGE).saturating_add(1);
        (self.pages(kind).len() > most).then(|| self.drop_first(kind))?
    }

    /// The page that is missed least: the oldest of those that did not fail, then of those that
    /// did.
    pub fn drop_oldest(&mut self) -> Option<Dropped> {
        self.drop_first(Kind::Other)
            .or_else(|| self.drop_first(Kind::Failed))
    }

    fn drop_first(&mut self, kind: Kind) -> Option<Dropped> {
        let page = self.pages_mut(kind).pop_front()?;
        self.bytes = self.bytes.saturating_sub(page.bytes);
        Some(Dropped {
            page: PageId {
                kind,
                number: page.number,
            },
            positions: page.positions,
        })
    }

    /// Takes a page in that was stored; pages of a kind come newest first.
    pub fn restore(&mut self, id: PageId, positions: Vec<u32>, bytes: usize) {
        self.next = self.next.max(id.number.saturating_add(1));
        self.bytes = self.bytes.saturating_add(bytes);
        self.pages_mut(id.kind).push_front(Page {
            number: id.number,
            positions,
            bytes,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_page_of_the_same_kind_goes_first() {
        let mut details = Details::default();
        let failed = details.push(Kind::Failed, 7, 100);
        let pages = MOST_OF_A_KIND / PAGE + 1;
        for position in 0..u32::try_from(pages * PAGE).expect("a count") {
            details.push(Kind::Other, position, 1);
            assert_eq!(details.trim(Kind::Other), None, "at {position}");
        }
        details.push(Kind::Other, 0, 1);
        let dropped = details.trim(Kind::Other).expect("one too many");
        assert_eq!(dropped.positions, (0..64).collect::<Vec<u32>>());
        assert_eq!(details.positions(dropped.page), None);
        assert_eq!(details.positions(failed), Some([7].as_slice()));

        while let Some(dropped) = details.drop_oldest() {
            assert_eq!(dropped.page == failed, details.is_empty());
        }
        assert_eq!(details.bytes(), 0);
    }

    #[test]
    fn a_long_message_is_cut_at_a_character() {
        let mut message = "ü".repeat(1_000);
        cut(&mut message);
        assert!(message.len() <= MOST_MESSAGE_BYTES && message.ends_with('…'));
        let mut short = "short".to_owned();
        cut(&mut short);
        assert_eq!(short, "short");
    }
}
