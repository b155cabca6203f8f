//! Simulated clusters.

use clap::Args;

/// `simulate`.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "The same seed gives the same history on every machine. A seed that goes wrong is \
                  shown again with: mete simulate --seed N --trace"
)]
pub struct Simulate {
    /// How many seeds, one after the other
    #[arg(long, value_name = "N", default_value_t = 100, conflicts_with = "seed",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub seeds: u64,
    /// The first of them
    #[arg(
        long,
        value_name = "SEED",
        default_value_t = 1,
        conflicts_with = "seed"
    )]
    pub from: u64,
    /// This seed alone
    #[arg(long, value_name = "SEED")]
    pub seed: Option<u64>,
    /// Print what happens in that seed's world, with its virtual time in milliseconds
    #[arg(long, requires = "seed")]
    pub trace: bool,
}
