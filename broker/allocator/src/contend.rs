//! Who contends in a round: frameworks in their roles, and the order among them.
//!
//! Everything here points into the view and is copied when the round first changes it: most
//! contenders of a round never get a turn.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, btree_set};

use mete_model::{FrameworkId, RolePath};

use crate::share::{Share, Weight};
use crate::view::kinds::add;
use crate::view::{Place, Queue, RoleEntry};

/// Where a claim may be placed in this round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Domain {
    /// On every agent.
    All,
    /// On the agents that changed: elsewhere it did not fit before either.
    Dirty,
}

/// Amounts of the view until the round adds to them.
pub(crate) type Held<'a> = Cow<'a, [u64]>;

/// Adds so many times a charge.
pub(crate) fn add_times(held: &mut Held<'_>, charge: &[(usize, u64)], times: u32) {
    let held = held.to_mut();
    for (kind, amount) in charge {
        add(held, *kind, amount.saturating_mul(u64::from(times)));
    }
}

/// What is out to a framework, this round included.
#[derive(Debug)]
pub(crate) struct Out<'a> {
    pub(crate) framework: FrameworkId,
    pub(crate) amounts: Held<'a>,
    pub(crate) halvings: u32,
}

/// Claims in order, all of one domain.
struct Source<'a> {
    domain: Domain,
    /// Their shape, if they all have the same.
    shape: Option<usize>,
    places: btree_set::Iter<'a, Place>,
}

/// A claim that is next.
pub(crate) struct Next<'a> {
    pub(crate) place: &'a Place,
    pub(crate) domain: Domain,
    pub(crate) shape: Option<usize>,
    /// Which source it is from.
    pub(crate) source: usize,
}

/// The claim whose turn it is.
#[derive(Clone, Copy)]
pub(crate) struct Head<'a> {
    pub(crate) place: &'a Place,
    pub(crate) domain: Domain,
    pub(crate) shape: usize,
    /// Its number once it had a turn.
    pub(crate) looked: Option<usize>,
}

/// How far a contender's claims were taken.
enum Taken<'a> {
    None,
    /// The first of all. Only with the next are all sources set up.
    First,
    More {
        sources: Vec<Source<'a>>,
        /// The first claim of each source.
        heads: BTreeSet<(&'a Place, usize)>,
    },
}

/// A framework in one role.
pub(crate) struct Contender<'a> {
    /// Its role's place in the round.
    pub(crate) role: usize,
    pub(crate) framework: FrameworkId,
    /// The place of what is out to it.
    pub(crate) out: usize,
    pub(crate) queue: &'a Queue,
    /// Claims that may be placed everywhere, whatever changed.
    pub(crate) touched: Option<&'a BTreeSet<Place>>,
    /// Of the other claims.
    pub(crate) domain: Domain,
    pub(crate) held: Held<'a>,
    pub(crate) head: Option<Head<'a>>,
    /// With one task of the head, when it was put in line.
    pub(crate) share: Share,
    /// Shapes that fit nowhere for it, where refusals make that its own matter.
    pub(crate) failed: BTreeSet<usize>,
    taken: Taken<'a>,
}

impl<'a> Contender<'a> {
    pub(crate) fn new(
        (framework, queue): (FrameworkId, &'a Queue),
        (role, out): (usize, usize),
        touched: Option<&'a BTreeSet<Place>>,
        domain: Domain,
    ) -> Self {
        Self {
            role,
            framework,
            out,
            queue,
            touched,
            domain,
            held: Cow::Borrowed(&queue.held),
            head: None,
            share: Share::ZERO,
            failed: BTreeSet::new(),
            taken: Taken::None,
        }
    }

    /// Its sources: `open` gives the number of each shape of the view that the round looks at.
    fn sources<'b>(&'b self, open: &'b [Option<usize>]) -> impl Iterator<Item = Source<'a>> + 'b {
        let of_touched = self.touched.map(|places| Source {
            domain: Domain::All,
            shape: None,
            places: places.iter(),
        });
        let of_shapes = self.queue.sources.iter().filter_map(|source| {
            let shape = (*open.get(source.shape)?)?;
            Some(Source {
                domain: self.domain,
                shape: Some(shape),
                places: source.places.iter(),
            })
        });
        of_touched.into_iter().chain(of_shapes)
    }

    /// Takes the next claim.
    pub(crate) fn take(&mut self, open: &[Option<usize>]) -> Option<Next<'a>> {
        match self.taken {
            Taken::None => {
                let mut best: Option<Next<'a>> = None;
                for (at, mut source) in self.sources(open).enumerate() {
                    if let Some(place) = source.places.next()
                        && best.as_ref().is_none_or(|best| place < best.place)
                    {
                        best = Some(Next {
                            place,
                            domain: source.domain,
                            shape: source.shape,
                            source: at,
                        });
                    }
                }
                self.taken = Taken::First;
                best
            }
            Taken::First => {
                self.set_up(open);
                self.pop()
            }
            Taken::More { .. } => self.pop(),
        }
    }

    /// Sets up all sources behind the first claim.
    fn set_up(&mut self, open: &[Option<usize>]) {
        let mut sources: Vec<Source<'a>> = self.sources(open).collect();
        let mut heads = BTreeSet::new();
        for (at, source) in sources.iter_mut().enumerate() {
            heads.extend(source.places.next().map(|place| (place, at)));
        }
        self.taken = Taken::More { sources, heads };
        self.pop();
    }

    fn pop(&mut self) -> Option<Next<'a>> {
        let Taken::More { sources, heads } = &mut self.taken else {
            return None;
        };
        let (place, at) = heads.pop_first()?;
        let source = sources.get_mut(at)?;
        heads.extend(source.places.next().map(|place| (place, at)));
        Some(Next {
            place,
            domain: source.domain,
            shape: source.shape,
            source: at,
        })
    }

    /// Takes nothing more from a source.
    pub(crate) fn close(&mut self, source: usize, open: &[Option<usize>]) {
        if matches!(self.taken, Taken::First) {
            self.set_up(open);
        }
        if let Taken::More { heads, .. } = &mut self.taken {
            heads.retain(|(_, at)| *at != source);
        }
    }
}

/// A contender's place in its role: by share, then id; with its number.
pub(crate) type Seat = (Share, FrameworkId, usize);

/// Contenders of a role by share. The first stands outside the heap: most roles have only one.
#[derive(Debug, Default)]
pub(crate) struct Line {
    first: Option<Seat>,
    rest: BinaryHeap<Reverse<Seat>>,
}

impl Line {
    pub(crate) fn first(&self) -> Option<&Seat> {
        self.first.as_ref()
    }

    pub(crate) fn insert(&mut self, seat: Seat) {
        match &self.first {
            None => self.first = Some(seat),
            Some(first) if seat < *first => {
                self.rest.extend(self.first.replace(seat).map(Reverse));
            }
            Some(_) => self.rest.push(Reverse(seat)),
        }
    }

    pub(crate) fn pop_first(&mut self) -> Option<Seat> {
        let next = self.rest.pop().map(|Reverse(seat)| seat);
        std::mem::replace(&mut self.first, next)
    }
}

/// A role of the round.
#[derive(Debug)]
pub(crate) struct RoleState<'a> {
    path: &'a RolePath,
    pub(crate) weight: Weight,
    pub(crate) held: Held<'a>,
    pub(crate) line: Line,
    /// With one task of the first in line, when it was put in order.
    pub(crate) share: Share,
}

/// A role's place: by weight zero, share, path; with its number in the round.
pub(crate) type Rank<'a> = Reverse<(bool, Share, &'a RolePath, usize)>;

impl<'a> RoleState<'a> {
    pub(crate) fn new(path: &'a RolePath, entry: &'a RoleEntry) -> Self {
        Self {
            path,
            weight: entry.weight,
            held: Cow::Borrowed(&entry.held),
            line: Line::default(),
            share: Share::ZERO,
        }
    }

    /// Its place with this share.
    pub(crate) fn rank(&mut self, share: Share, number: usize) -> Rank<'a> {
        self.share = share;
        Reverse((self.weight.milli == 0, share, self.path, number))
    }
}
