//! Frames survive the way there and back, and nothing else does.

use proptest::prelude::*;

use super::*;

const CLUSTER: ClusterId = [7; 16];

fn append(entries: Vec<(u64, Vec<u8>)>) -> RaftMessage {
    let mut message = RaftMessage::default();
    message.set_msg_type(pb::MessageType::MsgAppend);
    (message.from, message.to, message.term, message.commit) = (2, 1, 9, 4);
    let to_entry = |(index, data): (u64, Vec<u8>)| {
        let mut entry = RaftEntry::default();
        (entry.index, entry.term, entry.data) = (index, 9, data.into());
        entry
    };
    message.set_entries(entries.into_iter().map(to_entry).collect::<Vec<_>>().into());
    message
}

#[test]
fn every_kind_that_peers_send_comes_back_whole() {
    let mut taken = 0;
    for kind in MESSAGE_TYPES {
        let mut message = append(vec![(5, b"five".to_vec()), (6, Vec::new())]);
        message.set_msg_type(kind);
        message.priority = -3;
        message.context = b"context".to_vec().into();
        message.set_snapshot(snapshot(5, 2, founding_conf(&[3, 1, 2])));
        let frame = encode_frame(&CLUSTER, message.clone());

        match decode_frame(&CLUSTER, 1, &frame) {
            Ok(decoded) => {
                assert_eq!(decoded, message);
                taken += 1;
            }
            Err(error) => assert!(matches!(error, FrameError::Kind(_)), "{kind:?}: {error}"),
        }
    }
    assert_eq!(taken, 11);
}

#[test]
fn the_mirror_reads_what_the_raft_crate_writes_about_members() {
    let mut node = raft::RawNode::new(
        &raft::Config {
            id: 1,
            ..raft::Config::default()
        },
        raft::storage::MemStorage::new_with_conf_state((vec![1], vec![])),
        &slog::Logger::root(slog::Discard, slog::o!()),
    )
    .expect("a storage with one voter");
    node.campaign().expect("it may stand");
    let ready = node.ready();
    node.mut_store()
        .wl()
        .append(ready.entries())
        .expect("a log without gaps");
    node.advance(ready);
    node.propose_conf_change(Vec::new(), change(Change::AddLearner(4)))
        .expect("it leads");
    let ready = node.ready();
    let entry = ready
        .entries()
        .iter()
        .find(|entry| is_change(entry))
        .expect("just proposed");

    let decoded = decode_change(entry).expect("the crate's own bytes");

    assert_eq!(decoded, Some(change(Change::AddLearner(4))));
}

#[test]
fn a_frame_is_refused_for_the_right_reason() {
    let frame = encode_frame(&CLUSTER, append(Vec::new()));
    let mut flipped = frame.clone();
    flipped[20] ^= 1;
    let mut forwarded = append(Vec::new());
    forwarded.set_msg_type(pb::MessageType::MsgPropose);
    let forwarded = encode_frame(&CLUSTER, forwarded);

    assert_eq!(
        decode_frame(&CLUSTER, 1, &flipped),
        Err(FrameError::Damaged)
    );
    assert_eq!(
        decode_frame(&[8; 16], 1, &frame),
        Err(FrameError::OtherCluster)
    );
    let misrouted = FrameError::Misrouted {
        from: 2,
        to: 1,
        here: 3,
    };
    assert_eq!(decode_frame(&CLUSTER, 3, &frame), Err(misrouted));
    let kind = decode_frame(&CLUSTER, 1, &forwarded);
    assert_eq!(kind, Err(FrameError::Kind("a forwarded proposal")));
    let long = vec![0; FRAME_LIMIT + 1];
    assert_eq!(
        decode_frame(&CLUSTER, 1, &long),
        Err(FrameError::TooLong(FRAME_LIMIT + 1))
    );
}

#[test]
fn a_membership_survives_its_stored_form() {
    let mut conf = founding_conf(&[9, 2, 2, 5]);
    conf.set_learners(vec![11]);
    conf.auto_leave = true;

    assert_eq!(decode_conf(&encode_conf(&conf)), Ok(conf.clone()));
    assert_eq!(conf.get_voters(), [2, 5, 9]);
}

proptest! {
    #[test]
    fn entries_survive_the_way(
        entries in prop::collection::vec(
            (any::<u64>(), prop::collection::vec(any::<u8>(), 0..99)), 0..9,
        ),
    ) {
        let message = append(entries);
        let frame = encode_frame(&CLUSTER, message.clone());
        prop_assert_eq!(decode_frame(&CLUSTER, 1, &frame), Ok(message));
    }

    #[test]
    fn one_flipped_bit_is_always_noticed(at in 0..60_usize, bit in 0..8_u8) {
        let mut frame = encode_frame(&CLUSTER, append(vec![(5, b"five".to_vec())]));
        let at = at % frame.len();
        frame[at] ^= 1 << bit;
        prop_assert!(decode_frame(&CLUSTER, 1, &frame).is_err());
    }
}
