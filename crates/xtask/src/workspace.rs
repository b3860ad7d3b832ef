//! What cargo knows about this workspace.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The workspace: where it is, where its programs go, and its crates.
#[derive(Debug)]
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    pub(crate) target: PathBuf,
    pub(crate) crates: Vec<Crate>,
}

/// One of our crates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Crate {
    pub(crate) name: String,
    /// Crates of ours it depends on, each with the kind of the dependency.
    pub(crate) uses: Vec<(String, Kind)>,
    /// Names of its benchmarks.
    pub(crate) benches: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Normal,
    Build,
    Dev,
}

impl Workspace {
    /// Asks cargo about the workspace around the current folder.
    pub(crate) fn load() -> Result<Self> {
        let output = cargo()
            .args(["metadata", "--format-version", "1", "--no-deps"])
            .output()
            .context("cannot run cargo metadata")?;
        if !output.status.success() {
            bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr));
        }
        Self::parse(&serde_json::from_slice(&output.stdout).context("cargo metadata is not JSON")?)
    }

    fn parse(metadata: &Value) -> Result<Self> {
        let path = |key: &str| metadata[key].as_str().map(PathBuf::from).with_context(|| format!("no {key}"));
        let packages = metadata["packages"].as_array().context("no packages")?;
        let name = |value: &Value| value["name"].as_str().unwrap_or_default().to_string();
        let ours: BTreeMap<String, &Value> =
            packages.iter().map(|package| (name(package), package)).collect();
        let array = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let crates = ours
            .iter()
            .map(|(own_name, package)| Crate {
                name: own_name.clone(),
                uses: array(&package["dependencies"])
                    .iter()
                    // A crate of ours has a path; one from outside may have the same name by chance.
                    .filter(|dependency| {
                        dependency["path"].is_string() && ours.contains_key(&name(dependency))
                    })
                    .map(|dependency| (name(dependency), kind(&dependency["kind"])))
                    .collect(),
                benches: array(&package["targets"])
                    .iter()
                    .filter(|target| array(&target["kind"]).iter().any(|kind| kind == "bench"))
                    .map(name)
                    .collect(),
            })
            .collect();
        Ok(Self { root: path("workspace_root")?, target: path("target_directory")?, crates })
    }

    /// Returns where the development build of a program is.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.target.join("debug").join(name)
    }
}

/// Returns the cargo that runs us, or the one on the PATH, as if it was called from a shell: what cargo says about this program
/// to this program makes build scripts run again that look at it, and everything after them.
pub(crate) fn cargo() -> Command {
    let path = std::env::var_os("CARGO").map_or_else(|| Path::new("cargo").to_path_buf(), PathBuf::from);
    let mut command = Command::new(path);
    for (name, _) in std::env::vars_os() {
        let ours = name.to_str().is_some_and(|name| {
            name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") || name == "CARGO_BIN_NAME"
        });
        if ours {
            command.env_remove(name);
        }
    }
    command
}

fn kind(value: &Value) -> Kind {
    match value.as_str() {
        Some("dev") => Kind::Dev,
        Some("build") => Kind::Build,
        _ => Kind::Normal,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_crates_of_ours_count_as_uses() {
        let workspace = Workspace::parse(&json!({
            "workspace_root": "/w",
            "target_directory": "/t",
            "packages": [
                {"name": "api", "dependencies": [{"name": "serde", "kind": null}], "targets": []},
                {"name": "store", "dependencies": [
                    {"name": "api", "kind": null, "path": "/w/crates/api"},
                    {"name": "testkit", "kind": "dev", "path": "/w/crates/testkit"},
                ], "targets": [{"name": "writes", "kind": ["bench"]}]},
                {"name": "testkit", "dependencies": [{"name": "api", "kind": null}], "targets": []},
            ],
        }))
        .expect("understood");
        assert_eq!(workspace.crates[0].uses, []);
        assert_eq!(
            workspace.crates[1].uses,
            [("api".to_string(), Kind::Normal), ("testkit".to_string(), Kind::Dev)]
        );
        assert_eq!(workspace.crates[1].benches, ["writes"]);
        assert_eq!(workspace.crates[2].uses, [], "api without a path is somebody else's");
        assert_eq!(workspace.program("karmada"), Path::new("/t/debug/karmada"));
    }
}
