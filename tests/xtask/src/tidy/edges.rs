//! Floors: which package may depend on which (`docs/architecture.md`, "Floors").
//!
//! Read from `cargo metadata`, so the manifests are judged as cargo understands them. A package
//! that is not in the table is refused too: it has no floor yet.

use super::Finding;
use serde_json::Value;

/// What one package may name in its manifest.
struct Floor {
    package: &'static str,
    /// Packages of ours, for the product and for build scripts.
    ours: &'static [&'static str],
    /// Packages of ours that only its tests may use.
    for_tests: &'static [&'static str],
    foreign: Foreign,
}

/// Packages of others.
enum Foreign {
    /// Only these, and of tests and build scripts only those.
    Only {
        product: &'static [&'static str],
        tools: &'static [&'static str],
    },
    /// Anything that the audit lets pass, except these.
    Except(&'static [&'static str]),
}

const PURE_TESTS: &[&str] = &["goldenscript", "proptest", "uuid"];
const WIRE_BUILD: &[&str] = &["prost", "protox", "tonic-prost-build", "proptest"];
const WIRE: &[&str] = &[
    "prost",
    "prost-types",
    "tonic",
    "tonic-health",
    "tonic-prost",
    "tonic-reflection",
    "uuid",
];
const CORE_ONLY: &[&str] = &["raft", "sled", "slog"];
const DOWN_TO_MODEL: &[&str] = &["mete-model"];
const CLIENT_SIDE: &[&str] = &["mete-model", "mete-proto"];
const FRAMEWORK: &[&str] = &["mete-sdk", "mete-proto"];
const BROKER: &[&str] = &["mete-model", "mete-proto", "mete-state", "mete-allocator"];
const TESTING: &[&str] = &["mete-testing"];
const TEST_BROKER: &[&str] = &[
    "mete-model",
    "mete-proto",
    "mete-broker",
    "mete-sdk",
    "mete-agent",
];
const SIMULATED: &[&str] = &[
    "mete-model",
    "mete-proto",
    "mete-state",
    "mete-allocator",
    "mete-broker",
    "mete-agent",
];
const BINARY: &[&str] = &[
    "mete-model",
    "mete-proto",
    "mete-state",
    "mete-allocator",
    "mete-broker",
    "mete-agent",
    "mete-sdk",
    "mete-testing",
    "mete-simulator",
    "mete-batch",
    "mete-service",
    "mete-kubernetes",
];

const FLOORS: &[Floor] = &[
    pure("mete-model", &[], &["serde", "uuid"]),
    pure("mete-state", DOWN_TO_MODEL, &[]),
    pure("mete-allocator", DOWN_TO_MODEL, &[]),
    Floor {
        package: "mete-proto",
        ours: DOWN_TO_MODEL,
        for_tests: &[],
        foreign: Foreign::Only {
            product: WIRE,
            tools: WIRE_BUILD,
        },
    },
    floor("mete-broker", BROKER, &[], &["kube", "clap"]),
    floor("mete-agent", CLIENT_SIDE, &[], CORE_ONLY),
    floor("mete-sdk", CLIENT_SIDE, &[], CORE_ONLY),
    floor("mete-batch", FRAMEWORK, TESTING, CORE_ONLY),
    floor("mete-service", FRAMEWORK, TESTING, CORE_ONLY),
    floor("mete-kubernetes", FRAMEWORK, TESTING, CORE_ONLY),
    floor("mete-testing", TEST_BROKER, &[], CORE_ONLY),
    floor("mete-simulator", SIMULATED, &[], &["rand"]),
    floor("mete", BINARY, &[], CORE_ONLY),
    Floor {
        package: "mete-xtask",
        ours: &[],
        for_tests: &[],
        foreign: Foreign::Only {
            product: &["serde_json"],
            tools: &[],
        },
    },
];

const fn pure(
    package: &'static str,
    ours: &'static [&'static str],
    product: &'static [&'static str],
) -> Floor {
    Floor {
        package,
        ours,
        for_tests: &[],
        foreign: Foreign::Only {
            product,
            tools: PURE_TESTS,
        },
    }
}

const fn floor(
    package: &'static str,
    ours: &'static [&'static str],
    for_tests: &'static [&'static str],
    except: &'static [&'static str],
) -> Floor {
    Floor {
        package,
        ours,
        for_tests,
        foreign: Foreign::Except(except),
    }
}

/// Judges `cargo metadata --no-deps`.
pub(super) fn check(metadata: &Value) -> Vec<Finding> {
    let packages = list(&metadata["packages"]);
    let mut findings = Vec::new();
    if packages.is_empty() {
        findings.push(Finding::at(
            "floors",
            "Cargo.toml",
            0,
            "cargo names no packages at all",
        ));
    }
    for package in packages {
        let name = text(&package["name"]);
        let manifest = manifest_of(package, metadata);
        let Some(floor) = FLOORS.iter().find(|floor| floor.package == name) else {
            let said = format!(
                "{name} has no floor: give it one in docs/architecture.md and in \
                 tests/xtask/src/tidy/edges.rs"
            );
            findings.push(Finding::at("floors", &manifest, 0, said));
            continue;
        };
        for needed in list(&package["dependencies"]) {
            if let Some(said) = judge(floor, needed) {
                findings.push(Finding::at("floors", &manifest, 0, said));
            }
        }
    }
    findings
}

/// Why `floor` may not have this dependency, or nothing.
fn judge(floor: &Floor, needed: &Value) -> Option<String> {
    let (name, kind) = (text(&needed["name"]), text(&needed["kind"]));
    let package = floor.package;
    let for_tests = kind == "dev";
    if name == "mete" || name.starts_with("mete-") {
        if floor.ours.contains(&name) || (for_tests && floor.for_tests.contains(&name)) {
            return lean_agent(package, needed);
        }
        let only = floor.ours.join(", ");
        return Some(format!(
            "{package} may not depend on {name}, only on [{only}]"
        ));
    }
    match &floor.foreign {
        Foreign::Except(except) if except.contains(&name) => {
            Some(format!("{package} must not contain {name}"))
        }
        Foreign::Except(_) => None,
        Foreign::Only { product, .. } if product.contains(&name) => generator(package, needed),
        Foreign::Only { tools, .. } if !kind.is_empty() && tools.contains(&name) => None,
        Foreign::Only { product, .. } => {
            let only = product.join(", ");
            Some(format!(
                "{package} may not depend on {name}, of others only on [{only}]"
            ))
        }
    }
}

/// The test broker and the simulator take the agent without its Linux rooms.
fn lean_agent(package: &str, needed: &Value) -> Option<String> {
    let heavy = needed["uses_default_features"].as_bool() == Some(true)
        || list(&needed["features"])
            .iter()
            .any(|feature| text(feature) == "node");
    let lean = package == "mete-testing" || package == "mete-simulator";
    (text(&needed["name"]) == "mete-agent" && lean && heavy)
        .then(|| format!("{package} must take mete-agent without its default features"))
}

/// `uuid` is a value in the pure crates: no feature that makes new ones.
fn generator(package: &str, needed: &Value) -> Option<String> {
    let makes_ids = |feature: &&Value| {
        let feature = text(feature);
        feature.starts_with("rng")
            || feature
                .strip_prefix('v')
                .is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit()))
    };
    let feature = list(&needed["features"]).iter().find(makes_ids)?;
    let pure = ["mete-model", "mete-state", "mete-allocator"].contains(&package);
    pure.then(|| {
        format!(
            "{package} takes uuid with '{}': it may not mint ids",
            text(feature)
        )
    })
}

fn manifest_of(package: &Value, metadata: &Value) -> String {
    let path = text(&package["manifest_path"]);
    let root = text(&metadata["workspace_root"]);
    path.strip_prefix(root)
        .map_or(path, |rest| rest.trim_start_matches('/'))
        .to_owned()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn said(package: &str, dependency: &Value) -> String {
        let metadata = json!({
            "workspace_root": "/w",
            "packages": [{
                "name": package,
                "manifest_path": "/w/some/Cargo.toml",
                "dependencies": [dependency],
            }],
        });
        check(&metadata)
            .iter()
            .map(|finding| format!("{finding}\n"))
            .collect()
    }

    #[test]
    fn an_arrow_downwards_passes() {
        assert_eq!(
            said(
                "mete-broker",
                &json!({ "name": "mete-state", "kind": null })
            ),
            ""
        );
        assert_eq!(
            said(
                "mete-batch",
                &json!({ "name": "mete-testing", "kind": "dev" })
            ),
            ""
        );
        assert_eq!(
            said("mete-state", &json!({ "name": "proptest", "kind": "dev" })),
            ""
        );
    }

    #[test]
    fn an_arrow_upwards_or_sideways_is_refused() {
        for (package, needed) in [
            ("mete-model", "mete-proto"),
            ("mete-allocator", "mete-state"),
            ("mete-sdk", "mete-broker"),
            ("mete-batch", "mete-service"),
            ("mete-xtask", "mete-model"),
        ] {
            let said = said(package, &json!({ "name": needed, "kind": null }));
            assert!(
                said.contains(&format!("{package} may not depend on {needed}")),
                "{said}"
            );
        }
    }

    #[test]
    fn a_package_for_tests_is_refused_in_the_product() {
        let said = said(
            "mete-batch",
            &json!({ "name": "mete-testing", "kind": null }),
        );

        assert!(
            said.contains("some/Cargo.toml: [floors] mete-batch may not depend"),
            "{said}"
        );
    }

    #[test]
    fn a_pure_crate_with_a_runtime_or_a_generator_is_refused() {
        let runtime = said("mete-state", &json!({ "name": "tokio", "kind": null }));
        let test_tool = said("mete-state", &json!({ "name": "proptest", "kind": null }));
        let uuid = json!({ "name": "uuid", "kind": null, "features": ["serde", "v4"] });
        let generator = said("mete-model", &uuid);

        assert!(runtime.contains("may not depend on tokio"), "{runtime}");
        assert!(
            test_tool.contains("may not depend on proptest"),
            "{test_tool}"
        );
        assert!(generator.contains("may not mint ids"), "{generator}");
    }

    #[test]
    fn the_test_broker_takes_the_lean_agent_only() {
        let heavy = json!({ "name": "mete-agent", "kind": null, "uses_default_features": true });

        assert!(said("mete-testing", &heavy).contains("without its default features"));
    }

    #[test]
    fn a_package_without_a_floor_is_refused() {
        assert!(said("mete-extra", &json!({ "name": "serde" })).contains("has no floor"));
        assert_eq!(check(&json!({})).len(), 1);
    }
}
