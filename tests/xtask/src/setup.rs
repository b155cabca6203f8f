//! `cargo xtask setup`: installs what the tests need, or says what is missing and how to get it.
//!
//! On Debian as root it installs by itself, from the machine's own package registries. Anywhere
//! else it changes nothing outside the checkout. What the build itself needs is required; what
//! only some tests need is named, so that their skip later is no surprise.

use crate::{cargo, shell};
use std::path::Path;
use std::process::{Command, Stdio};

/// One thing that must or should be there.
struct Need {
    program: &'static str,
    package: &'static str,
    why: &'static str,
    required: bool,
}

const NEEDS: [Need; 2] = [
    Need {
        program: "cc",
        package: "gcc libc6-dev",
        why: "links every program",
        required: true,
    },
    Need {
        program: "strace",
        package: "strace",
        why: "the test that counts the store's system calls",
        required: false,
    },
];

const COMPONENTS: [(&str, &str); 2] = [("fmt", "rustfmt"), ("clippy", "clippy")];

/// Brings the machine as far as it can; `false` when something required is still missing.
///
/// # Errors
/// Only when a program that is there could not be started.
pub(crate) fn run(root: &Path) -> Result<bool, String> {
    let mut complete = true;
    for need in &NEEDS {
        complete &= provide(need)? || !need.required;
    }
    for (tool, component) in COMPONENTS {
        complete &= provide_component(root, tool, component)?;
    }
    complete &= fetch(root)?;
    println!(
        "setup: {}",
        if complete {
            "complete"
        } else {
            "something required is missing"
        }
    );
    Ok(complete)
}

fn provide(need: &Need) -> Result<bool, String> {
    if is_there(need.program) {
        println!("setup: {} is there", need.program);
        return Ok(true);
    }
    if can_install() {
        println!("setup: installing {} ({})", need.package, need.why);
        install(need.package)?;
    }
    let found = is_there(need.program);
    if !found {
        let kind = if need.required {
            "REQUIRED"
        } else {
            "optional"
        };
        println!(
            "setup: {} is MISSING ({kind}: {}); install the package {}",
            need.program, need.why, need.package
        );
    }
    Ok(found)
}

fn provide_component(root: &Path, tool: &str, component: &str) -> Result<bool, String> {
    let there = || {
        cargo::command(root, &[tool, "--version"])
            .stderr(Stdio::null())
            .output()
            .is_ok_and(|output| output.status.success())
    };
    if !there() && is_there("rustup") {
        println!("setup: adding {component} to the toolchain");
        let mut rustup = Command::new("rustup");
        rustup
            .args(["component", "add", component])
            .current_dir(root);
        shell::stream(rustup)?;
    }
    let found = there();
    let state = if found {
        "is there"
    } else {
        "is MISSING: rustup component add it"
    };
    println!("setup: {component} {state}");
    Ok(found)
}

/// Downloads the dependencies now, so that trouble with the network shows here and not in the
/// middle of a build. Tried three times: a registry's short hiccup is the usual cause.
fn fetch(root: &Path) -> Result<bool, String> {
    let host = cargo::host_triple()?;
    for attempt in 1..=3 {
        println!("setup: downloading the dependencies (attempt {attempt} of 3)");
        if shell::stream(cargo::command(
            root,
            &["fetch", "--locked", "--target", &host],
        ))?
        .success
        {
            return Ok(true);
        }
    }
    println!("setup: the dependencies of Cargo.lock could not be downloaded");
    Ok(false)
}

fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Installing needs Debian's tool and the right to use it; we never ask for a password.
fn can_install() -> bool {
    is_there("apt-get") && user_id().is_some_and(|id| id == 0)
}

fn user_id() -> Option<u32> {
    let output = Command::new("id").arg("-u").output().ok()?;
    String::from_utf8_lossy(&output.stdout).trim().parse().ok()
}

/// A failed installation is not an error: what counts is whether the program is there after it.
fn install(packages: &str) -> Result<(), String> {
    let apt = |args: &[&str]| {
        let mut command = Command::new("apt-get");
        command.args(args).env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    if !shell::stream(apt(&["update", "-qq"]))?.success {
        println!("setup: the package lists could not be refreshed; trying with the old ones");
    }
    let mut args = vec!["install", "-y", "-qq", "--no-install-recommends"];
    args.extend(packages.split_whitespace());
    if !shell::stream(apt(&args))?.success {
        println!("setup: apt-get could not install {packages}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_on_the_path_is_found_and_another_is_not() {
        assert!(is_there("sh"));
        assert!(!is_there("no-such-program-here"));
    }
}
