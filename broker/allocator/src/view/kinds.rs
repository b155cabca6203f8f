//! Kinds of resources as small numbers, so that a round adds arrays and not maps.

use std::collections::BTreeMap;

use mete_model::quota::{Charge, Kind};

/// Every kind that the view has met. Numbers are never given again.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kinds {
    numbers: BTreeMap<Kind, usize>,
    names: Vec<Kind>,
}

/// Amounts by the number of their kind; what is not there is zero.
pub(crate) type Amounts = Vec<u64>;

impl Kinds {
    /// The number of a kind, a new one if it has none.
    pub(crate) fn number(&mut self, kind: &Kind) -> usize {
        if let Some(number) = self.numbers.get(kind) {
            return *number;
        }
        let number = self.names.len();
        self.names.push(kind.clone());
        self.numbers.insert(kind.clone(), number);
        number
    }

    /// The number of a kind that was met.
    pub(crate) fn find(&self, kind: &Kind) -> Option<usize> {
        self.numbers.get(kind).copied()
    }

    /// A charge as pairs of number and amount.
    pub(crate) fn pairs(&mut self, charge: &Charge) -> Vec<(usize, u64)> {
        charge
            .iter()
            .map(|(kind, amount)| (self.number(kind), amount))
            .collect()
    }

    /// A charge as amounts.
    pub(crate) fn amounts(&mut self, charge: &Charge) -> Amounts {
        let mut amounts = Amounts::new();
        for (kind, amount) in charge.iter() {
            add(&mut amounts, self.number(kind), amount);
        }
        amounts
    }

    /// All kinds with their numbers, in the order of kinds.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Kind, usize)> {
        self.numbers.iter().map(|(kind, number)| (kind, *number))
    }
}

/// The amount of one kind.
pub(crate) fn amount(amounts: &[u64], number: usize) -> u64 {
    amounts.get(number).copied().unwrap_or(0)
}

/// Adds to one kind.
pub(crate) fn add(amounts: &mut Amounts, number: usize, more: u64) {
    if amounts.len() <= number {
        amounts.resize(number.saturating_add(1), 0);
    }
    if let Some(sum) = amounts.get_mut(number) {
        *sum = sum.saturating_add(more);
    }
}

/// Sets one kind.
pub(crate) fn set(amounts: &mut Amounts, number: usize, sum: u64) {
    if amounts.len() <= number {
        amounts.resize(number.saturating_add(1), 0);
    }
    if let Some(amount) = amounts.get_mut(number) {
        *amount = sum;
    }
}

/// Sums over many agents or frameworks: wide enough never to overflow, so that what was added can
/// be taken away again exactly.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sums(Vec<u128>);

impl Sums {
    /// Adds a charge.
    pub(crate) fn add(&mut self, pairs: &[(usize, u64)]) {
        for (number, more) in pairs {
            if self.0.len() <= *number {
                self.0.resize(number.saturating_add(1), 0);
            }
            if let Some(sum) = self.0.get_mut(*number) {
                *sum = sum.saturating_add(u128::from(*more));
            }
        }
    }

    /// Adds a charge so many times.
    pub(crate) fn add_times(&mut self, pairs: &[(usize, u64)], count: u32) {
        for (number, more) in pairs {
            self.add(&[(*number, more.saturating_mul(u64::from(count)))]);
        }
    }

    /// Takes a charge away that was added before.
    pub(crate) fn subtract(&mut self, pairs: &[(usize, u64)]) {
        for (number, less) in pairs {
            if let Some(sum) = self.0.get_mut(*number) {
                *sum = sum.saturating_sub(u128::from(*less));
            }
        }
    }

    /// The sum of one kind, the largest number if it is larger than that.
    pub(crate) fn get(&self, number: usize) -> u64 {
        let sum = self.0.get(number).copied().unwrap_or(0);
        u64::try_from(sum).unwrap_or(u64::MAX)
    }

    /// All of them as amounts.
    pub(crate) fn amounts(&self) -> Amounts {
        (0..self.0.len()).map(|number| self.get(number)).collect()
    }

    /// Says whether all are zero.
    pub(crate) fn is_zero(&self) -> bool {
        self.0.iter().all(|sum| *sum == 0)
    }
}
