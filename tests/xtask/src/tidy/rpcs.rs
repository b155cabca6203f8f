//! Every call that is meant for people can be made from the command line.
//!
//! Those are the calls of the admin, explain, events, batch and node services, read from their
//! descriptions in `proto/mete`. A call counts as reachable when one file of the binary's source
//! names its request message and its package. One that has no command on purpose is listed with
//! a reason as `[[rpc]]` in `tests/xtask/ratchet.toml`.

use super::{Finding, code};
use crate::toml_subset;
use crate::tree::Tree;
use std::collections::BTreeSet;

const SERVICES: [&str; 5] = [
    "proto/mete/admin/",
    "proto/mete/batch/",
    "proto/mete/events/",
    "proto/mete/explain/",
    "proto/mete/node/",
];
const CALLERS: &str = "src/";
const LIST: &str = "tests/xtask/ratchet.toml";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let excepted = match excepted(tree) {
        Ok(names) => names,
        Err(error) => return vec![Finding::at("rpcs", LIST, 0, error)],
    };
    let mut findings = Vec::new();
    let mut known = BTreeSet::new();
    for file in SERVICES.iter().flat_map(|folder| tree.under(folder)) {
        for (number, line) in file.text.lines().enumerate() {
            let Some((name, request)) = rpc(line) else {
                continue;
            };
            known.insert(name.to_owned());
            if !excepted.contains(name) && !is_named(tree, &file.path, request) {
                let said = format!("no command makes the call {name}: src/ never names {request}");
                findings.push(Finding::at("rpcs", &file.path, number + 1, said));
            }
        }
    }
    if known.is_empty() {
        findings.push(Finding::at(
            "rpcs",
            "proto/mete",
            0,
            "missing: no service has a call",
        ));
    }
    for name in excepted.difference(&known) {
        let said = format!("the call {name} does not exist: take the entry out");
        findings.push(Finding::at("rpcs", LIST, 0, said));
    }
    findings
}

/// Name and request of a line `rpc Name(Request) …`.
fn rpc(line: &str) -> Option<(&str, &str)> {
    let (name, rest) = line.trim_start().strip_prefix("rpc ")?.split_once('(')?;
    let request = rest.split(')').next()?.trim().trim_start_matches("stream ");
    Some((name.trim(), request.rsplit('.').next()?))
}

/// `proto/mete/batch/v1/x.proto` and `ListRequest`: a file with both `batch::` and `ListRequest`.
fn is_named(tree: &Tree, description: &str, request: &str) -> bool {
    let package = format!("{}::", description.split('/').nth(2).unwrap_or_default());
    let names = |text: &str, name: &str| {
        text.lines()
            .any(|line| code::mentions(&code::without_strings(line), name))
    };
    tree.under(CALLERS)
        .filter(|file| file.path.ends_with(".rs"))
        .any(|file| names(&file.text, &package) && names(&file.text, request))
}

fn excepted(tree: &Tree) -> Result<BTreeSet<String>, String> {
    let document = toml_subset::parse(tree.text(LIST).unwrap_or_default())?;
    let mut names = BTreeSet::new();
    for item in document["rpc"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default()
    {
        match (item["name"].as_str(), item["reason"].as_str()) {
            (Some(name), Some(reason)) if !reason.is_empty() => names.insert(name.to_owned()),
            _ => return Err(format!("an [[rpc]] needs name and reason: {item}")),
        };
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::super::said;
    use super::*;

    const PROTO: &str =
        "service Admin {\n  // Lists.\n  rpc ListNodes(x.v1.NodesRequest) returns (B);\n}\n";
    const FILE: &str = "proto/mete/admin/v1/admin.proto";

    #[test]
    fn a_call_that_a_command_makes_or_that_is_excepted_passes() {
        let list = "[[rpc]]\nname = \"ListNodes\"\nreason = \"only the page needs it\"\n";

        assert_eq!(
            said(
                check,
                &[
                    (FILE, PROTO),
                    ("src/cli/node.rs", "use p::admin::v1::NodesRequest;\n")
                ]
            ),
            ""
        );
        assert_eq!(said(check, &[(FILE, PROTO), (LIST, list)]), "");
    }

    #[test]
    fn a_call_without_a_command_is_refused() {
        let said = said(
            check,
            &[
                (FILE, PROTO),
                ("src/cli/node.rs", "use p::batch::v1::NodesRequest;\n"),
            ],
        );

        assert!(said.contains("admin.proto:3: [rpcs] no command makes the call ListNodes"));
    }

    #[test]
    fn an_exception_for_a_call_that_is_gone_is_refused() {
        let list = "[[rpc]]\nname = \"Gone\"\nreason = \"only the page needs it\"\n";

        assert!(said(check, &[(LIST, list)]).contains("the call Gone does not exist"));
        assert!(said(check, &[]).contains("no service has a call"));
    }
}
