//! The machine stops in front of a level that its release does not know.

use mete_state::Stamped;

use super::*;

fn raise(level: u32) -> Vec<u8> {
    format::encode_command(&Stamped {
        at: Timestamp(1),
        command: Command::RaiseLevel { level },
    })
}

fn level(machine: &StateMachine) -> u32 {
    machine.shared().read().expect("no writer failed").level()
}

#[test]
fn a_level_that_is_not_known_is_never_applied() {
    let mut machine = StateMachine::new().knowing(LEVEL + 1);
    let applied = machine.apply(2, 1, &raise(LEVEL + 1));
    assert!(applied.is_ok_and(|done| done.result.is_ok()));
    let before = machine.digest();

    let (level_found, known) = (LEVEL + 2, LEVEL + 1);
    let applied = machine.apply(3, 1, &raise(level_found));

    let refused = applied.expect_err("two levels on");
    assert_eq!(
        refused,
        TooNew {
            level: level_found,
            known
        }
    );
    assert_eq!((level(&machine), machine.digest()), (known, before));
}

#[test]
fn a_snapshot_of_a_level_that_is_not_known_is_never_taken_over() {
    let mut newer = StateMachine::new().knowing(LEVEL + 1);
    newer.apply(2, 1, &raise(LEVEL + 1)).expect("known to it");
    let mut written = Vec::new();
    newer.image().write_to(&mut written).expect("memory");
    // What follows is a record that only the newer release can read.
    written.extend_from_slice(&[0xff; 16]);

    let mut machine = StateMachine::new();
    let before = machine.digest();
    let restored = machine.restore(&mut written.as_slice());

    let (level_found, known) = (LEVEL + 1, LEVEL);
    let expected = TooNew {
        level: level_found,
        known,
    };
    let Err(RestoreError::TooNew(found)) = restored else {
        panic!("{restored:?}");
    };
    assert_eq!(found, expected);
    assert_eq!((level(&machine), machine.digest()), (known, before));
}

#[test]
#[should_panic(expected = "entry 7")]
fn an_entry_that_is_no_command_stays_a_panic() {
    let mut machine = StateMachine::new();
    drop(machine.apply(7, 1, b"no command"));
}
