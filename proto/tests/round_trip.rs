//! What goes to the wire comes back the same, and what must not come in is named.
#![expect(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod dice;

use dice::Dice;
use mete_model::quantity::LARGEST;
use mete_proto::convert::{self, At, Faults, whole};
use mete_proto::types::v1 as wire;
use proptest::prelude::*;
use prost::Message;

/// Through bytes, as a peer would see it.
fn sent<M: Message + Default>(message: &M) -> M {
    M::decode(message.encode_to_vec().as_slice()).unwrap()
}

proptest! {
    #[test]
    fn every_model_value_survives_the_wire(seed: u64) {
        let dice = &mut Dice::new(seed);
        let root = At::ROOT;

        let claim = dice.claim();
        let sent_claim = sent(&convert::write_claim(&claim));
        prop_assert_eq!(whole(|f| convert::read_claim(sent_claim, root, f)), Ok(claim));

        let spec = dice.spec();
        let sent_spec = sent(&convert::write_spec(&spec));
        prop_assert_eq!(whole(|f| convert::read_spec(sent_spec, root, f)), Ok(spec));

        let held = dice.resources();
        let sent_held = sent(&convert::write_resources(&held));
        prop_assert_eq!(whole(|f| convert::read_resources(Some(sent_held), root, f)), Ok(held));

        let inventory = dice.inventory();
        let sent_inventory = Some(sent(&convert::write_inventory(&inventory)));
        let read = whole(|f| convert::read_inventory(sent_inventory, root, f));
        prop_assert_eq!(read, Ok(inventory));

        let (framework, status) = (dice.framework(), dice.status());
        let sent_status = sent(&convert::write_status(framework, &status, String::new()));
        let read = whole(|f| convert::read_status(sent_status, root, f));
        prop_assert_eq!(read, Ok((framework, status)));

        let run = dice.run();
        let sent_run = sent(&convert::write_run_ref(framework, &run));
        let read = whole(|f| convert::read_run_ref(Some(sent_run), root, f));
        prop_assert_eq!(read, Ok((framework, run)));
    }

    #[test]
    fn any_numbers_are_read_or_named_and_never_changed(
        cpu: u64, memory: u64, disk: u64, cores: u32, count: u32, devices: u32, milli: u32,
    ) {
        let shape = wire::Shape {
            cpu_milli: cpu,
            memory_bytes: memory,
            disk_bytes: disk,
            cores,
            devices: vec![wire::DeviceWant { class: "gpu".to_owned(), count: devices, milli }],
        };
        let claim = wire::Claim {
            id: "c".to_owned(),
            role: "r".to_owned(),
            shape: Some(shape.clone()),
            count,
            ..wire::Claim::default()
        };
        match whole(|f| convert::read_claim(claim, At::ROOT, f)) {
            Ok(read) => {
                prop_assert!(cpu <= LARGEST && memory <= LARGEST && disk <= LARGEST);
                prop_assert_eq!(read.count, count);
                let mut back = convert::write_shape(&read.shape);
                if milli == 0 {
                    back.devices[0].milli = 0;
                }
                prop_assert_eq!(back, shape);
            }
            Err(faults) => {
                let named = |field: &str| faults.list().iter().any(|f| f.field == field);
                for (field, amount) in [
                    ("shape.cpu_milli", cpu),
                    ("shape.memory_bytes", memory),
                    ("shape.disk_bytes", disk),
                ] {
                    prop_assert!(amount <= LARGEST || named(field), "{}", faults);
                }
                prop_assert!((1..=100_000).contains(&count) || named("count"), "{}", faults);
                prop_assert!(
                    devices != 0 || named("shape.devices[0].count"), "{}", faults
                );
            }
        }
    }
}

fn refused<T: std::fmt::Debug>(read: impl FnOnce(&mut Faults) -> Option<T>) -> Vec<String> {
    let faults = whole(read).unwrap_err();
    faults
        .list()
        .iter()
        .map(|fault| fault.field.clone())
        .collect()
}

#[test]
fn a_number_above_the_largest_is_refused_with_the_largest() {
    // Case 19.
    let held = wire::Resources {
        cpu_milli: u64::try_from(i64::MAX).unwrap(),
        memory_bytes: u64::MAX,
        ..wire::Resources::default()
    };
    let faults = whole(|f| convert::read_resources(Some(held), At::ROOT, f)).unwrap_err();
    assert_eq!(
        faults.to_string(),
        "cpu_milli: 9223372036854775807 is not within 0 to 9007199254740992; \
         memory_bytes: 18446744073709551615 is not within 0 to 9007199254740992"
    );
}

#[test]
fn odd_device_counts_are_refused_and_never_dropped() {
    // Case 101: all of it is named, not only the first.
    let want = |class: &str, count, milli| wire::DeviceWant {
        class: class.to_owned(),
        count,
        milli,
    };
    let shape = wire::Shape {
        devices: vec![
            want("gpu", 0, 1000),
            want("", 1, 1000),
            want("gpu/t4", 2, 500),
            want("fpga", 1, 1001),
        ],
        ..wire::Shape::default()
    };
    let fields = refused(|f| convert::read_shape(Some(shape), At::root("shape"), f));
    assert_eq!(
        fields,
        [
            "shape.devices[0].count",
            "shape.devices[1].class",
            "shape.devices[2].milli",
            "shape.devices[3].milli",
        ]
    );
}

#[test]
fn a_shape_of_nothing_is_refused_and_a_thousandth_is_something() {
    // Case 103: "not empty" and "more than zero" are one question.
    let shape = |cpu_milli| {
        Some(wire::Shape {
            cpu_milli,
            ..wire::Shape::default()
        })
    };
    let at = At::root("shape");
    assert_eq!(refused(|f| convert::read_shape(shape(0), at, f)), ["shape"]);
    let least = whole(|f| convert::read_shape(shape(1), at, f)).unwrap();
    assert!(!least.is_zero());
    assert_eq!(refused(|f| convert::read_shape(None, at, f)), ["shape"]);
}

#[test]
fn a_device_or_core_named_twice_or_without_its_cpu_is_refused() {
    let share = wire::DeviceShare {
        id: "a".to_owned(),
        class: "gpu".to_owned(),
        milli: 500,
    };
    let held = wire::Resources {
        cores: "0-3".to_owned(),
        cpu_milli: 3999,
        devices: vec![share.clone(), share],
        ..wire::Resources::default()
    };
    let fields = refused(|f| convert::read_resources(Some(held.clone()), At::ROOT, f));
    assert_eq!(fields, ["devices"]);
    let held = wire::Resources {
        devices: Vec::new(),
        ..held
    };
    let fields = refused(|f| convert::read_resources(Some(held), At::ROOT, f));
    assert_eq!(fields, ["cpu_milli"]);
}

#[test]
fn texts_are_bounded_as_the_api_says() {
    let long = |bytes| "x".repeat(bytes);
    let labels = std::collections::BTreeMap::from([("key".to_owned(), long(16 * 1024 - 2))]);
    let claim = wire::Claim {
        id: long(254),
        role: long(64),
        shape: Some(wire::Shape {
            cpu_milli: 1,
            ..wire::Shape::default()
        }),
        count: 100_001,
        labels,
        ..wire::Claim::default()
    };
    let fields = refused(|f| convert::read_claim(claim, At::ROOT, f));
    assert_eq!(fields, ["id", "role", "count", "labels"]);

    let spec = wire::TaskSpec {
        command: vec!["/bin/echo".to_owned(), long(1 << 20)],
        ..wire::TaskSpec::default()
    };
    assert_eq!(
        refused(|f| convert::read_spec(spec, At::root("specs"), f)),
        ["specs"]
    );

    let status = wire::Status {
        message: long(64 * 1024 + 1),
        ..wire::Status::default()
    };
    let fields = refused(|f| convert::read_status(status, At::ROOT, f));
    assert_eq!(fields, ["run", "sequence", "phase", "message"]);
}

#[test]
fn what_no_kernel_takes_is_refused_before_it_is_launched() {
    let spec = wire::TaskSpec {
        command: vec!["sh".to_owned(), "a\0b".to_owned()],
        environment: [("A=B", "x"), ("C", "y\0")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        working_directory: "relative".to_owned(),
        user: "no body".to_owned(),
        ..wire::TaskSpec::default()
    };
    let fields = refused(|f| convert::read_spec(spec, At::ROOT, f));
    assert_eq!(
        fields,
        [
            "command[1]",
            "environment[\"A=B\"]",
            "environment[\"C\"]",
            "working_directory",
            "user",
        ]
    );
    let fields = refused(|f| convert::read_spec(wire::TaskSpec::default(), At::ROOT, f));
    assert_eq!(fields, ["command"]);
}

#[test]
fn unknown_values_are_tolerated_where_they_decide_nothing() {
    let status = |phase| wire::Status {
        run: Some(convert::write_run_ref(
            "6f2f0d62-8c1f-4a6e-9d0e-000000000001".parse().unwrap(),
            &"t#1".parse().unwrap(),
        )),
        sequence: 1,
        phase,
        reason: "FROM_THE_FUTURE".to_owned(),
        message: "why".to_owned(),
        source: 77,
        exit: Some(wire::Exit { how: None }),
        ..wire::Status::default()
    };
    let (_, read) = whole(|f| convert::read_status(status(3), At::ROOT, f)).unwrap();
    assert_eq!(
        (read.reason, read.message.as_str()),
        (None, "[FROM_THE_FUTURE] why")
    );
    assert_eq!(
        refused(|f| convert::read_status(status(99), At::ROOT, f)),
        ["phase"]
    );
}
