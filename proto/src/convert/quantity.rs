//! Amounts: never negative, never so large that sums of a million of them would not fit.

use mete_model::quantity::LARGEST;
use mete_model::{Bytes, MilliCpu, Span};

use super::faults::{At, Faults};

/// Checks an amount of any kind: 0 to [`LARGEST`].
pub fn read_amount(amount: u64, at: At<'_>, faults: &mut Faults) -> Option<u64> {
    if amount > LARGEST {
        faults.add(at, format_args!("{amount} is not within 0 to {LARGEST}"));
        return None;
    }
    Some(amount)
}

/// Checks a number of things: `least` to `most`.
pub fn read_count(
    count: u32,
    least: u32,
    most: u32,
    at: At<'_>,
    faults: &mut Faults,
) -> Option<u32> {
    if count < least || count > most {
        faults.add(at, format_args!("{count} is not within {least} to {most}"));
        return None;
    }
    Some(count)
}

/// Reads milliseconds where 0 means "not given".
pub fn read_span(milliseconds: u64, at: At<'_>, faults: &mut Faults) -> Option<Option<Span>> {
    let milliseconds = read_amount(milliseconds, at, faults)?;
    Some((milliseconds > 0).then_some(Span(milliseconds)))
}

pub(super) fn read_cpu(milli: u64, at: At<'_>, faults: &mut Faults) -> Option<MilliCpu> {
    read_amount(milli, at, faults).map(MilliCpu)
}

pub(super) fn read_bytes(bytes: u64, at: At<'_>, faults: &mut Faults) -> Option<Bytes> {
    read_amount(bytes, at, faults).map(Bytes)
}

pub(super) fn write_span(span: Option<Span>) -> u64 {
    span.map_or(0, |span| span.0)
}
