//! What each step of `ci` does. A step answers with its outcome, or with an error if it could
//! not even begin; both end up in the summary.

use super::{Context, Outcome};
use crate::shell::{self, Ran, TestCount};
use crate::tidy::Finding;
use crate::tree::Tree;
use crate::{audit, cargo, docs, tidy};

/// One step: its name for `--only`, what it does for the reader, and the doing.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) run: fn(&Context<'_>) -> Result<Outcome, String>,
}

/// All steps in the order in which they run.
pub(crate) const STEPS: &[Step] = &[
    Step {
        name: "fmt",
        what: "the code is formatted",
        run: fmt,
    },
    Step {
        name: "tidy",
        what: "the rules of the house",
        run: tidy_rules,
    },
    Step {
        name: "docs",
        what: "links and pages of the documentation",
        run: docs_pages,
    },
    Step {
        name: "audit",
        what: "licences, sources and advisories",
        run: audit_packages,
    },
    Step {
        name: "clippy",
        what: "lints of the workspace, all targets",
        run: clippy,
    },
    Step {
        name: "lean",
        what: "the agent builds without its Linux rooms",
        run: lean,
    },
    Step {
        name: "tests",
        what: "every test of the workspace",
        run: tests,
    },
    Step {
        name: "rustdoc",
        what: "the code's documentation builds",
        run: rustdoc,
    },
];

fn fmt(context: &Context<'_>) -> Result<Outcome, String> {
    if let Some(missing) = lacks_component(context, "fmt", "rustfmt") {
        return Ok(missing);
    }
    cargo_step(
        context,
        &["fmt", "--all", "--check"],
        &[],
        "run `cargo fmt --all`",
    )
}

fn clippy(context: &Context<'_>) -> Result<Outcome, String> {
    if let Some(missing) = lacks_component(context, "clippy", "clippy") {
        return Ok(missing);
    }
    let args = [
        "clippy",
        "--locked",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ];
    cargo_step(context, &args, &[], "see the lints above")
}

/// Everything but the binary, without default features: integrators build the agent like that.
///
/// The other steps cannot see it break, since the binary turns the feature `node` on for all.
/// Choosing the workspace and not the one package keeps the features of the dependencies, so
/// that they are not compiled again.
fn lean(context: &Context<'_>) -> Result<Outcome, String> {
    if let Some(missing) = lacks_component(context, "clippy", "clippy") {
        return Ok(missing);
    }
    let args = [
        "clippy",
        "--locked",
        "--workspace",
        "--exclude",
        "mete",
        "--no-default-features",
        "--",
        "-D",
        "warnings",
    ];
    cargo_step(context, &args, &[], "something outside `node` needs it")
}

fn tests(context: &Context<'_>) -> Result<Outcome, String> {
    // Fixed and fresh seeds of the simulator together, in seconds; a plain `cargo test` takes less.
    let mut variables = vec![("METE_SIMULATE_SECONDS", "60")];
    if context.skips_fail {
        variables.push(("METE_ALL", "1"));
    }
    let args = ["test", "--locked", "--workspace", "--no-fail-fast"];
    cargo_step(context, &args, &variables, "see the failed tests above")
}

fn rustdoc(context: &Context<'_>) -> Result<Outcome, String> {
    let args = ["doc", "--locked", "--workspace", "--no-deps"];
    cargo_step(
        context,
        &args,
        &[("RUSTDOCFLAGS", "-D warnings")],
        "see the warnings above",
    )
}

fn tidy_rules(context: &Context<'_>) -> Result<Outcome, String> {
    Ok(judged(&tidy::run(&Tree::read(context.root)?)?, ""))
}

fn docs_pages(context: &Context<'_>) -> Result<Outcome, String> {
    Ok(judged(&docs::check(&Tree::read(context.root)?), ""))
}

fn audit_packages(context: &Context<'_>) -> Result<Outcome, String> {
    let audit = audit::run(context.root)?;
    Ok(judged(&audit.findings, &audit.note))
}

fn judged(findings: &[Finding], note: &str) -> Outcome {
    let lines: Vec<String> = findings.iter().map(Finding::to_string).collect();
    for line in &lines {
        println!("{line}");
    }
    if lines.is_empty() {
        return Outcome::passed(note);
    }
    let note = tidy::sum(findings);
    Outcome::Failed {
        note,
        tail: lines,
        tests: TestCount::default(),
    }
}

fn cargo_step(
    context: &Context<'_>,
    args: &[&str],
    variables: &[(&str, &str)],
    advice: &str,
) -> Result<Outcome, String> {
    let mut command = cargo::command(context.root, args);
    command.envs(variables.iter().copied());
    let Ran {
        success,
        tail,
        tests,
    } = shell::stream(command)?;
    if success {
        return Ok(Outcome::Passed {
            note: String::new(),
            tests,
        });
    }
    let note = format!(
        "cargo {} failed; {advice}",
        args.first().copied().unwrap_or_default()
    );
    Ok(Outcome::Failed { note, tail, tests })
}

/// The skip for a part of the toolchain that is not installed, or nothing if it is there.
fn lacks_component(context: &Context<'_>, tool: &str, component: &str) -> Option<Outcome> {
    let there = cargo::command(context.root, &[tool, "--version"])
        .output()
        .is_ok_and(|output| output.status.success());
    (!there).then(|| {
        Outcome::missing(format!(
            "{component} is missing: rustup component add {component}"
        ))
    })
}
