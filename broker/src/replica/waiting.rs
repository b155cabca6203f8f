//! What callers wait for: proposals on their way through the log, and reads on their way to an
//! index.
//!
//! The rule of this room: a token that came in goes out, once, whatever happens to the leadership.

use std::collections::VecDeque;

use crate::replica::turn::Token;

/// Proposals taken while leading, in log order, until they apply.
#[derive(Debug, Default)]
pub(super) struct Proposals {
    waiting: VecDeque<Slot>,
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    index: u64,
    term: u64,
    token: Token,
}

impl Proposals {
    /// Notes that `tokens` were given the places from `first` on in `term`.
    pub(super) fn note(&mut self, first: u64, term: u64, tokens: impl Iterator<Item = Token>) {
        let slots = (first..)
            .zip(tokens)
            .map(|(index, token)| Slot { index, term, token });
        self.waiting.extend(slots);
    }

    /// The token of the entry that applies now. Tokens whose place was taken by another entry go to
    /// `unknown`.
    pub(super) fn take(
        &mut self,
        index: u64,
        term: u64,
        unknown: &mut Vec<Token>,
    ) -> Option<Token> {
        while let Some(slot) = self.waiting.front().copied() {
            if slot.index > index {
                return None;
            }
            self.waiting.pop_front();
            if (slot.index, slot.term) == (index, term) {
                return Some(slot.token);
            }
            unknown.push(slot.token);
        }
        None
    }

    /// Gives up every proposal that is not of `leading` (the term this replica leads in, if any).
    pub(super) fn give_up(&mut self, leading: Option<u64>, unknown: &mut Vec<Token>) {
        // Terms rise along the queue, so those to give up are at its front.
        while self
            .waiting
            .front()
            .is_some_and(|slot| Some(slot.term) != leading)
        {
            unknown.extend(self.waiting.pop_front().map(|slot| slot.token));
        }
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }
}

/// Reads: first on their way to a confirmed index, then waiting until that index is applied.
#[derive(Debug, Default)]
pub(super) struct Reads {
    rounds: VecDeque<Round>,
    confirmed: VecDeque<(u64, Vec<Token>)>,
    last_context: u64,
}

#[derive(Debug)]
struct Round {
    context: u64,
    ticks_left: usize,
    tokens: Vec<Token>,
}

impl Reads {
    /// Puts all reads of a turn into one round; gives the context to ask the majority with.
    pub(super) fn begin(&mut self, tokens: Vec<Token>, ticks: usize) -> u64 {
        self.last_context += 1;
        let round = Round {
            context: self.last_context,
            ticks_left: ticks,
            tokens,
        };
        self.rounds.push_back(round);
        self.last_context
    }

    /// A round was confirmed for `index`. Rounds before it are confirmed by it as well.
    pub(super) fn confirm(&mut self, context: u64, index: u64) {
        while self
            .rounds
            .front()
            .is_some_and(|round| round.context <= context)
        {
            if let Some(round) = self.rounds.pop_front() {
                self.confirmed.push_back((index, round.tokens));
            }
        }
    }

    /// One tick passed: rounds that waited too long are dropped (a lost message is never repeated).
    pub(super) fn tick(&mut self, dropped: &mut Vec<Token>) {
        for round in &mut self.rounds {
            round.ticks_left = round.ticks_left.saturating_sub(1);
        }
        while self
            .rounds
            .front()
            .is_some_and(|round| round.ticks_left == 0)
        {
            dropped.extend(
                self.rounds
                    .pop_front()
                    .into_iter()
                    .flat_map(|round| round.tokens),
            );
        }
    }

    /// Hands out reads whose index is applied.
    pub(super) fn serve(&mut self, applied: u64, served: &mut Vec<(Token, u64)>) {
        while self
            .confirmed
            .front()
            .is_some_and(|(index, _)| *index <= applied)
        {
            if let Some((index, tokens)) = self.confirmed.pop_front() {
                served.extend(tokens.into_iter().map(|token| (token, index)));
            }
        }
    }

    /// The leadership is over: rounds without a confirmation are void. Confirmed ones stay good.
    pub(super) fn give_up(&mut self, dropped: &mut Vec<Token>) {
        dropped.extend(self.rounds.drain(..).flat_map(|round| round.tokens));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proposal_whose_place_went_to_another_term_is_unknown() {
        let (mut proposals, mut unknown) = (Proposals::default(), Vec::new());
        proposals.note(7, 2, [70, 80].into_iter());

        assert_eq!(proposals.take(7, 3, &mut unknown), None);
        assert_eq!(proposals.take(8, 2, &mut unknown), Some(80));
        assert_eq!(unknown, [70]);
    }

    #[test]
    fn losing_the_leadership_gives_up_everything_and_a_new_term_only_the_old() {
        let (mut proposals, mut unknown) = (Proposals::default(), Vec::new());
        proposals.note(7, 2, [70].into_iter());
        proposals.note(9, 4, [90].into_iter());

        proposals.give_up(Some(4), &mut unknown);
        assert_eq!((unknown.as_slice(), proposals.len()), ([70].as_slice(), 1));

        proposals.give_up(None, &mut unknown);
        assert_eq!(
            (unknown.as_slice(), proposals.len()),
            ([70, 90].as_slice(), 0)
        );
    }

    #[test]
    fn a_read_is_served_once_its_index_is_applied_and_dropped_when_it_waited_too_long() {
        let (mut reads, mut dropped, mut served) = (Reads::default(), Vec::new(), Vec::new());
        let first = reads.begin(vec![1], 5);
        reads.begin(vec![2], 1);
        reads.confirm(first, 40);

        reads.tick(&mut dropped);
        reads.serve(39, &mut served);
        assert_eq!((dropped.as_slice(), served.len()), ([2].as_slice(), 0));

        reads.serve(40, &mut served);
        assert_eq!(served, [(1, 40)]);
    }
}
