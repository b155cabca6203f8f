//! Questions to cargo, asked through its command line, and a clean way to call it.

use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// A cargo that does not inherit what `cargo run` told this tool about itself.
///
/// Those variables would look to build scripts like a change of their environment.
pub(crate) fn command(root: &Path, args: &[&str]) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.args(args).current_dir(root);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        let ours = name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        if ours {
            command.env_remove(name.as_ref());
        }
    }
    command
}

/// The packages of the workspace with their direct dependencies; needs no network.
///
/// # Errors
/// What cargo said.
pub(crate) fn members(root: &Path) -> Result<Value, String> {
    metadata(root, &["metadata", "--format-version", "1", "--no-deps"])
}

/// Every package that a build for this machine uses, with licence and source.
///
/// # Errors
/// What cargo said; it needs the packages to be downloaded or a registry to get them from.
pub(crate) fn all_packages(root: &Path) -> Result<Value, String> {
    let host = host_triple()?;
    let args = [
        "metadata",
        "--format-version",
        "1",
        "--locked",
        "--filter-platform",
        &host,
    ];
    metadata(root, &args)
}

fn metadata(root: &Path, args: &[&str]) -> Result<Value, String> {
    let output = command(root, args)
        .output()
        .map_err(|e| format!("start cargo: {e}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cargo {} said: {}", args.join(" "), said.trim()));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| format!("read cargo metadata: {e}"))
}

/// The platform that this toolchain builds for by itself.
///
/// # Errors
/// `rustc` did not start or does not say.
pub(crate) fn host_triple() -> Result<String, String> {
    let output = Command::new("rustc")
        .arg("-vV")
        .output()
        .map_err(|e| format!("start rustc: {e}"))?;
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .find_map(|line| line.strip_prefix("host: ").map(str::to_owned))
        .ok_or_else(|| "rustc -vV names no host".to_owned())
}
