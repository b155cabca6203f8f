//! A cluster that has gone on to a level of commands that only a newer release knows.

use mete_model::Code;
use mete_state::LEVEL;

use super::world::*;
use crate::config::Config;
use crate::error::RunError;
use crate::replica::Encoding;
use crate::store::Fault;

fn newer(config: &mut Config) {
    config.level = LEVEL + 1;
}

/// A master of a newer release, which has raised the level.
fn raised(tune: impl FnOnce(&mut Config)) -> World {
    let mut world = World::new().restart_with(tune).unwrap();
    world.pass(1000);
    assert_eq!(level(&world), LEVEL + 1);
    world
}

/// Why the release of this build does not start on its disk.
fn refusal(world: World) -> RunError {
    world.restart_with(|_| ()).err().expect("it has started")
}

fn level(world: &World) -> u32 {
    world.master.read_state(mete_state::State::level)
}

fn assert_says_what_to_do(refused: &RunError) {
    assert_eq!(refused.code, Code::StateDirectory);
    let said = format!(
        "level {}, this release knows up to level {LEVEL}",
        LEVEL + 1
    );
    assert!(refused.detail.contains(&said), "{}", refused.detail);
    assert!(
        refused.next.contains("start the release"),
        "{}",
        refused.next
    );
}

#[test]
fn an_older_release_does_not_start_on_a_log_that_has_gone_beyond_it() {
    assert_says_what_to_do(&refusal(raised(newer)));
}

#[test]
fn an_older_release_does_not_start_on_a_snapshot_that_has_gone_beyond_it() {
    let mut world = raised(|config| {
        newer(config);
        config.replica.snapshot_entries = 1;
        config.replica.encoding = Encoding::Inline;
    });
    let raised_before = world.master.replica().applied_index();
    world.set_role("c");
    world.pass(1000);
    let snapshot = world.master.replica().live_snapshot().unwrap();
    assert!(snapshot.at.index > raised_before, "the log alone tells it");
    assert_says_what_to_do(&refusal(world));
}

#[test]
fn the_release_that_raised_the_level_starts_again() {
    let world = raised(newer).restart_with(newer).unwrap();
    assert_eq!(level(&world), LEVEL + 1);
}

#[test]
fn a_running_master_ends_in_front_of_a_level_that_it_does_not_know() {
    let mut world = World::new();
    // It says that it knows more than it does.
    world.master.level = LEVEL + 1;
    let fault = (0..100).find_map(|_| {
        world.skip(20);
        world.try_step(Vec::new()).err()
    });
    let Some(Fault::TooNew(found)) = fault else {
        panic!("it went on: {fault:?}");
    };
    assert_eq!((found.level, found.known), (LEVEL + 1, LEVEL));
    assert_eq!(level(&world), LEVEL, "it was not applied");
    assert_says_what_to_do(&Fault::TooNew(found).into());
}
