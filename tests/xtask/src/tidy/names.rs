//! "Only this file names that": the walls between rooms that cargo cannot see.
//!
//! A wall says which names must not stand in which places, and where they may after all. Only
//! code counts, not comments and not strings. `docs/architecture.md`, "What each file must not
//! know", has the reasons at length.

use super::{Finding, code};
use crate::tree::{SourceFile, Tree};

struct Wall {
    /// What is refused, for the reader.
    what: &'static str,
    names: &'static [&'static str],
    /// Paths begin with one of these …
    within: &'static [&'static str],
    /// … and not with one of these.
    except: &'static [&'static str],
}

/// Production code of every package; their `tests/` folders speak as they like.
const ALL_SOURCES: &[&str] = &["src/", "proto/", "broker/", "agent/", "framework-sdk/"];
const PURE: &[&str] = &[
    "proto/model/src/",
    "broker/state/src/",
    "broker/allocator/src/",
];
const SYNCHRONOUS: &[&str] = &[
    "proto/model/src/",
    "broker/state/src/",
    "broker/allocator/src/",
    "broker/src/replica/",
    "broker/src/leader/",
    "broker/src/store/",
    "broker/src/format/",
    "broker/src/master.rs",
    "agent/src/core/",
];

const WALLS: &[Wall] = &[
    Wall {
        what: "only the sled store names sled",
        names: &["sled::", "use sled;"],
        within: ALL_SOURCES,
        except: &[
            "broker/src/store/sled_store.rs",
            "broker/src/store/sled_store/",
        ],
    },
    Wall {
        what: "only wire.rs names raft's message types",
        names: &[
            "raft::eraftpb",
            "raft::prelude",
            "eraftpb::",
            "raft_proto",
            "protobuf::",
        ],
        within: ALL_SOURCES,
        except: &["broker/src/replica/wire.rs"],
    },
    Wall {
        what: "only rpc/status.rs makes gRPC errors in the broker",
        names: &[
            "Status::new",
            "Status::with_details",
            "Status::with_metadata",
            "Status::internal",
            "Status::invalid_argument",
            "Status::not_found",
            "Status::unavailable",
            "Status::failed_precondition",
            "Status::resource_exhausted",
            "Status::unimplemented",
            "Status::permission_denied",
            "Status::unauthenticated",
            "Status::already_exists",
            "Status::aborted",
            "Status::cancelled",
            "Status::deadline_exceeded",
            "Status::out_of_range",
            "Status::unknown",
            "Status::data_loss",
        ],
        within: &["broker/src/"],
        except: &["broker/src/rpc/status.rs"],
    },
    Wall {
        what: "replica, leader, store and the loop never name tonic",
        names: &["tonic::", "use tonic;"],
        within: &[
            "broker/src/replica/",
            "broker/src/leader/",
            "broker/src/store/",
            "broker/src/format/",
            "broker/src/master.rs",
        ],
        except: &[],
    },
    Wall {
        what: "only the replica and the store name raft",
        names: &["raft::"],
        within: &["broker/src/"],
        except: &["broker/src/replica/", "broker/src/store/"],
    },
    Wall {
        what: "the store keeps bytes: it names no command and no state",
        names: &["mete_state", "crate::format"],
        within: &["broker/src/store/"],
        except: &[],
    },
    Wall {
        what: "leader and replica never name each other",
        names: &["crate::replica", "super::replica", "replica::"],
        within: &["broker/src/leader/"],
        except: &[],
    },
    Wall {
        what: "leader and replica never name each other",
        names: &["crate::leader", "super::leader", "leader::"],
        within: &["broker/src/replica/"],
        except: &[],
    },
    Wall {
        what: "rpc decodes, asks and encodes: it names no allocator, no replica, no store",
        names: &["mete_allocator", "crate::replica", "crate::store"],
        within: &["broker/src/rpc/"],
        except: &[],
    },
    // Not `session`: its outboxes are where the leader's effects go.
    Wall {
        what: "arrows between the broker's rooms point downwards",
        names: &[
            "crate::rpc",
            "crate::admin",
            "crate::handle",
            "crate::server",
            "crate::security",
        ],
        within: &[
            "broker/src/leader/",
            "broker/src/replica/",
            "broker/src/store/",
            "broker/src/format/",
        ],
        except: &[],
    },
    Wall {
        what: "the synchronous rooms do not wait",
        names: &["async fn", "async move", "async {", ".await"],
        within: SYNCHRONOUS,
        except: &[],
    },
    Wall {
        what: "the pure crates count in integers",
        names: &["f32", "f64"],
        within: PURE,
        except: &[],
    },
    Wall {
        what: "the pure crates have no clock, no randomness, no files, no threads, no logging",
        names: &[
            "Instant",
            "SystemTime",
            "std::fs",
            "std::net",
            "std::thread",
            "std::process",
            "std::env",
            "tokio::",
            "tracing::",
            "rand::",
            "println!",
            "eprintln!",
        ],
        within: PURE,
        except: &[],
    },
    Wall {
        what: "the agent's core knows no runtime, no gRPC, no path of the kernel",
        names: &[
            "tonic::",
            "tokio::",
            "std::fs",
            "std::time::Instant",
            "SystemTime",
            "crate::runtime",
        ],
        within: &["agent/src/core/"],
        except: &[],
    },
    Wall {
        what: "only runtime/cri.rs names the CRI's types",
        names: &[
            "cri::v1",
            "runtime_service_client",
            "image_service_client",
            "k8s_cri",
        ],
        within: ALL_SOURCES,
        except: &["agent/src/runtime/cri.rs"],
    },
    Wall {
        what: "unsafe code stands in isolate, runtime and the sync symbol only",
        names: &[
            "unsafe {",
            "unsafe fn",
            "unsafe impl",
            "unsafe extern",
            "unsafe(no_mangle)",
        ],
        within: ALL_SOURCES,
        except: &[
            "agent/src/isolate/",
            "agent/src/runtime/",
            "broker/src/store/sync_file_range.rs",
        ],
    },
    Wall {
        what: "client commands speak to the broker as any client does",
        names: &[
            "mete_broker",
            "mete_state",
            "mete_allocator",
            "mete_agent",
            "mete_testing",
            "mete_batch",
            "mete_service",
        ],
        within: &["src/cli/"],
        except: &[],
    },
];

/// Every name that stands where it must not.
pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust().filter(|file| !file.path.contains("/tests/")) {
        for wall in WALLS.iter().filter(|wall| wall.stands_before(&file.path)) {
            look(file, wall, &mut findings);
        }
    }
    findings
}

impl Wall {
    fn stands_before(&self, path: &str) -> bool {
        let begins = |starts: &[&str]| starts.iter().any(|start| path.starts_with(start));
        begins(self.within) && !begins(self.except)
    }
}

fn look(file: &SourceFile, wall: &Wall, findings: &mut Vec<Finding>) {
    for (number, line) in file.text.lines().enumerate() {
        let line = code::without_strings(line);
        if let Some(name) = wall.names.iter().find(|name| code::mentions(&line, name)) {
            let said = format!("'{name}' must not stand here: {}", wall.what);
            findings.push(Finding::at("names", &file.path, number + 1, said));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::said;
    use super::*;

    #[test]
    fn a_name_in_its_own_room_passes() {
        let samples = [
            ("broker/src/store/sled_store.rs", "use sled::Db;\n"),
            (
                "broker/src/replica/ready.rs",
                "// raft::eraftpb stays in wire.rs\nuse raft::Ready;\n",
            ),
            ("broker/src/rpc/status.rs", "Status::new(code, text)\n"),
            (
                "broker/src/session/agent.rs",
                "let code = ExitStatus::new(1); x.await;\n",
            ),
            ("broker/tests/durable.rs", "use sled::Db;\n"),
            ("src/cli/task.rs", "use mete_model::TaskId;\n"),
        ];

        assert_eq!(said(check, &samples), "");
    }

    /// Where, what stands there, and a word of the wall that refuses it.
    const REFUSED: &[(&str, &str, &str)] = &[
        (
            "broker/src/store/mod.rs",
            "use sled::Tree;",
            "only the sled store",
        ),
        (
            "broker/src/replica/ready.rs",
            "use raft::eraftpb::Entry;",
            "only wire.rs",
        ),
        (
            "broker/src/session/agent.rs",
            "Err(Status::internal(x))",
            "only rpc/status.rs",
        ),
        (
            "broker/src/leader/round.rs",
            "use tonic::Code;",
            "never name tonic",
        ),
        (
            "broker/src/admin/why.rs",
            "use raft::StateRole;",
            "only the replica",
        ),
        (
            "broker/src/store/mod.rs",
            "use mete_state::Command;",
            "the store keeps bytes",
        ),
        (
            "broker/src/leader/mod.rs",
            "use crate::replica::X;",
            "never name each other",
        ),
        (
            "broker/src/replica/mod.rs",
            "use crate::leader::X;",
            "never name each other",
        ),
        (
            "broker/src/rpc/x.rs",
            "use crate::store::LogStore;",
            "rpc decodes",
        ),
        (
            "broker/src/leader/dispatch.rs",
            "use crate::rpc::X;",
            "point downwards",
        ),
        (
            "broker/src/master.rs",
            "pub async fn step() {}",
            "do not wait",
        ),
        (
            "broker/state/src/ledger.rs",
            "let x: f64 = 1;",
            "count in integers",
        ),
        (
            "broker/allocator/src/lib.rs",
            "use std::time::Instant;",
            "no clock",
        ),
        (
            "agent/src/core/task.rs",
            "use tokio::sync::mpsc;",
            "the agent's core",
        ),
        (
            "agent/src/link.rs",
            "use k8s_cri::v1;",
            "only runtime/cri.rs",
        ),
        (
            "src/main.rs",
            "let id = unsafe { getpid() };",
            "unsafe code",
        ),
        (
            "src/cli/node.rs",
            "use mete_broker::Config;",
            "client commands",
        ),
    ];

    #[test]
    fn each_wall_refuses_what_it_is_for() {
        for (path, line, what) in REFUSED {
            let said = said(check, &[(path, line)]);
            assert!(
                said.contains(&format!("{path}:1: [names]")),
                "{path}: {said}"
            );
            assert!(said.contains(what), "{path}: {said}");
        }
        for wall in WALLS {
            assert!(
                REFUSED.iter().any(|(_, _, what)| wall.what.contains(what)),
                "{}",
                wall.what
            );
        }
    }
}
