//! The repository as the checks see it: every text file of ours, read once.
//!
//! Built from a folder, or from samples in the checks' own tests: a rule takes a [`Tree`], so
//! each can be shown a bad one. Build output and the version control folder are left out.

use std::fs;
use std::path::{Path, PathBuf};

const LEFT_OUT: [&str; 3] = ["target", ".git", "node_modules"];
const KINDS: [&str; 10] = [
    "rs", "md", "toml", "proto", "sh", "html", "css", "js", "go", "service",
];
/// A file above this size is data, not something a person wrote.
const LARGEST_BYTES: u64 = 2 * 1024 * 1024;

/// One text file; `path` is relative to the root and written with `/`.
#[derive(Debug)]
pub(crate) struct SourceFile {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// All text files of the repository, sorted by path.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) root: PathBuf,
    pub(crate) files: Vec<SourceFile>,
}

impl Tree {
    /// Reads every text file below `root`.
    ///
    /// # Errors
    /// The path that could not be read, and why.
    pub(crate) fn read(root: &Path) -> Result<Self, String> {
        let mut files = Vec::new();
        collect(root, root, &mut files)?;
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Self {
            root: root.to_owned(),
            files,
        })
    }

    /// A made-up repository, for the tests of the rules.
    #[cfg(test)]
    pub(crate) fn of(samples: &[(&str, &str)]) -> Self {
        let mut files: Vec<SourceFile> = samples
            .iter()
            .map(|(path, text)| SourceFile {
                path: (*path).into(),
                text: (*text).into(),
            })
            .collect();
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Self {
            root: PathBuf::new(),
            files,
        }
    }

    pub(crate) fn text(&self, path: &str) -> Option<&str> {
        self.files
            .iter()
            .find(|file| file.path == path)
            .map(|file| file.text.as_str())
    }

    pub(crate) fn with_ending<'a>(
        &'a self,
        ending: &'a str,
    ) -> impl Iterator<Item = &'a SourceFile> {
        self.files
            .iter()
            .filter(move |file| file.path.ends_with(ending))
    }

    pub(crate) fn rust(&self) -> impl Iterator<Item = &SourceFile> {
        self.with_ending(".rs")
    }

    pub(crate) fn under<'a>(&'a self, folder: &'a str) -> impl Iterator<Item = &'a SourceFile> {
        self.files
            .iter()
            .filter(move |file| file.path.starts_with(folder))
    }
}

/// The workspace root: the nearest folder above that holds this tool and a lock file.
pub(crate) fn find_root() -> Result<PathBuf, String> {
    let start = std::env::current_dir().map_err(|e| format!("no current folder: {e}"))?;
    start
        .ancestors()
        .find(|folder| folder.join("tests/xtask").is_dir() && folder.join("Cargo.lock").is_file())
        .map(Path::to_owned)
        .ok_or_else(|| format!("{} is not inside a checkout of mete", start.display()))
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<SourceFile>) -> Result<(), String> {
    let entries = fs::read_dir(folder).map_err(|e| format!("read {}: {e}", folder.display()))?;
    for entry in entries {
        let entry = entry.map_err(|e| format!("read {}: {e}", folder.display()))?;
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry
            .file_type()
            .map_err(|e| format!("look at {}: {e}", path.display()))?;
        if kind.is_dir() {
            if !LEFT_OUT.contains(&name.as_str()) {
                collect(root, &path, files)?;
            }
        } else if kind.is_file() && is_text(&path, &name) {
            collect_file(root, &path, files)?;
        }
    }
    Ok(())
}

fn collect_file(root: &Path, path: &Path, files: &mut Vec<SourceFile>) -> Result<(), String> {
    let about = |e: std::io::Error| format!("read {}: {e}", path.display());
    if fs::metadata(path).map_err(about)?.len() > LARGEST_BYTES {
        return Ok(());
    }
    let bytes = fs::read(path).map_err(about)?;
    // A test's fixture may hold broken UTF-8 on purpose; it is no text of ours then.
    if let Ok(text) = String::from_utf8(bytes) {
        let inside = path.strip_prefix(root).expect("found below the root");
        let path = inside.to_string_lossy().replace('\\', "/");
        files.push(SourceFile { path, text });
    }
    Ok(())
}

fn is_text(path: &Path, name: &str) -> bool {
    let inside_ci = path.components().any(|c| c.as_os_str() == ".ci");
    let inside_scripts = path.components().any(|c| c.as_os_str() == "scripts");
    let kind = path
        .extension()
        .and_then(|e| e.to_str())
        .unwrap_or_default();
    KINDS.contains(&kind)
        || KINDS.iter().any(|k| name == format!(".{k}"))
        || inside_ci
        || inside_scripts
}
