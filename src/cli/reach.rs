//! Every call that is meant for people is made by some command: held against the descriptors.

use std::collections::{BTreeMap, BTreeSet};

use crate::args::Cli;

/// Packages whose calls are for people.
const PACKAGES: [&str; 5] = [
    "mete.admin.v1",
    "mete.explain.v1",
    "mete.events.v1",
    "mete.batch.v1",
    "mete.node.v1",
];

/// Service and call, and a command line that makes it.
const REACHED: [(&str, &str); 25] = [
    ("AdminService.GetStatus", "mete status"),
    ("AdminService.List", "mete node list"),
    ("AdminService.Get", "mete node show n1"),
    ("AdminService.Watch", "mete task list --watch"),
    ("AdminService.SetRole", "mete quota set ml --weight 2"),
    ("AdminService.RemoveRole", "mete quota rm ml"),
    ("AdminService.KillTasks", "mete task kill t --grace 5s"),
    (
        "AdminService.SetFramework",
        "mete framework set batch --suppress",
    ),
    (
        "AdminService.RemoveFramework",
        "mete framework rm batch --yes",
    ),
    ("AdminService.RescindOffers", "mete offer rescind o-1-2"),
    ("AdminService.GetRaft", "mete admin raft status"),
    ("AdminService.AddMaster", "mete admin member add m4:7443"),
    ("AdminService.PromoteMaster", "mete admin member promote m4"),
    ("AdminService.RemoveMaster", "mete admin member rm m2 --yes"),
    (
        "AdminService.TransferLeadership",
        "mete admin raft transfer --to m2",
    ),
    ("AdminService.RemoveNode", "mete node rm n1 --dry-run"),
    ("ExplainService.Explain", "mete why job train-41 --nodes"),
    ("EventService.Watch", "mete events -f --since 5m"),
    ("BatchService.Submit", "mete submit --array 0-9 -- true"),
    ("BatchService.List", "mete ps"),
    ("BatchService.Get", "mete batch show train-41"),
    (
        "BatchService.Watch",
        "mete batch wait train-41 --timeout 5s",
    ),
    ("BatchService.Cancel", "mete batch cancel train-41/1-3"),
    ("NodeService.Logs", "mete task logs web-1 -f"),
    ("NodeService.Ledger", "mete agent show n1"),
];

/// Fields of one message that hold bytes; descriptors of services have no others that matter.
fn fields(mut bytes: &[u8]) -> Vec<(u64, &[u8])> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        match tag & 7 {
            0 => drop(varint(&mut bytes)),
            2 => {
                let length = usize::try_from(varint(&mut bytes)).expect("a length");
                let (field, rest) = bytes.split_at(length);
                fields.push((tag >> 3, field));
                bytes = rest;
            }
            kind => panic!("wire type {kind} stands in no descriptor"),
        }
    }
    fields
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first().expect("a whole number");
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            break;
        }
    }
    value
}

fn only(message: &[u8], number: u64) -> String {
    let field = fields(message)
        .into_iter()
        .find(|(at, _)| *at == number)
        .map(|(_, field)| field);
    String::from_utf8(field.unwrap_or_default().to_vec()).expect("UTF-8")
}

fn all(message: &[u8], number: u64) -> Vec<&[u8]> {
    let found = fields(message).into_iter().filter(|(at, _)| *at == number);
    found.map(|(_, field)| field).collect()
}

/// `Service.Call` of every call in the packages for people.
fn calls() -> BTreeSet<String> {
    let mut calls = BTreeSet::new();
    for file in all(mete_proto::DESCRIPTORS, 1) {
        if !PACKAGES.contains(&only(file, 2).as_str()) {
            continue;
        }
        for service in all(file, 6) {
            for method in all(service, 2) {
                calls.insert(format!("{}.{}", only(service, 1), only(method, 1)));
            }
        }
    }
    calls
}

#[test]
fn every_call_for_people_is_made_by_a_command_that_parses() {
    let reached: BTreeMap<&str, &str> = REACHED.into();
    let calls = calls();
    assert!(
        calls.len() >= 21,
        "the descriptors hold {} calls",
        calls.len()
    );
    for call in &calls {
        assert!(
            reached.contains_key(call.as_str()),
            "no command makes the call {call}"
        );
    }
    for (call, line) in reached {
        assert!(calls.contains(call), "the call {call} does not exist");
        let parsed = Cli::read(line.split_whitespace());
        assert!(parsed.is_ok(), "{line}: {}", parsed.expect_err("refused"));
    }
}
