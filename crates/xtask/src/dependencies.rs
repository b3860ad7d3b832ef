//! What we take from others: the `dependencies` step of `cargo xtask ci`, from what `cargo metadata` says.
//!
//! Four promises: every crate comes from crates.io under a licence that we may ship, none is on the list of those we do
//! not want, no crate is there in two incompatible versions without a reason, and nothing is declared that nobody uses.
//! What we ship has its licence texts in a file ([`crate::licenses`]), which must not be out of date.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::{
    licenses,
    workspace::{Workspace, cargo},
};

/// The licences that we may use, the most convenient first: of several alternatives the first one here is chosen.
///
/// The text of Apache-2.0 is always the same, so it has to be shipped once; the others name their authors.
pub(crate) const LICENCES: &[&str] =
    &["Apache-2.0", "MIT", "ISC", "BSD-3-Clause", "BSD-2-Clause", "Zlib", "Unicode-3.0"];

const SOURCE: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// What must not come in, not even through others, and why.
const BANNED: &[(&str, &str)] = &[
    ("openssl", "TLS is rustls with ring"),
    ("openssl-sys", "TLS is rustls with ring"),
    ("native-tls", "TLS is rustls with ring"),
    ("aws-lc-rs", "TLS is rustls with ring; a second implementation needs a second audit"),
    ("rsa", "RUSTSEC-2023-0071, without a mended version; ring does it"),
    ("serde_yaml", "it is no longer maintained"),
    ("chrono", "time is jiff"),
    ("prost-build", "it needs protoc"),
];

/// Crates that are there in more than one incompatible version, and whose doing that is. A reason that no longer holds
/// has to go: the check says so.
const DUPLICATES: &[(&str, &str)] = &[
    ("base64", "kube-client is ahead of the rest"),
    ("bit-vec", "one of them belongs to a feature that is off; metadata names it all the same"),
    ("bitflags", "one of them belongs to a feature that is off; metadata names it all the same"),
    ("block-buffer", "our sha2 is one step behind that of others"),
    ("cpufeatures", "our sha2 is one step behind that of others"),
    ("crypto-common", "our sha2 is one step behind that of others"),
    ("digest", "our sha2 is one step behind that of others"),
    ("getrandom", "ring, rand and tempfile each use another one"),
    ("hashbrown", "redb and indexmap"),
    ("syn", "derives of half of all crates have not moved to version 3; nothing of it is shipped"),
];

/// Declared, but used without being named in a source file.
const UNNAMED: &[(&str, &str)] = &[];

/// One crate of the dependency graph.
#[derive(Debug, Clone, Default)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) licence: String,
    pub(crate) authors: Vec<String>,
    /// None for our own.
    pub(crate) source: Option<String>,
    pub(crate) dir: PathBuf,
    /// It runs at build time only.
    pub(crate) is_macro: bool,
    /// What it uses when it runs, by index.
    pub(crate) uses: Vec<usize>,
}

/// All crates that cargo would build for the platforms we ship for.
#[derive(Debug)]
pub(crate) struct Graph {
    pub(crate) packages: Vec<Package>,
}

impl Graph {
    pub(crate) fn load(workspace: &Workspace) -> Result<Self> {
        let output = cargo()
            .args(["metadata", "--format-version", "1", "--locked"])
            .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
            .args(["--filter-platform", "aarch64-unknown-linux-gnu"])
            .current_dir(&workspace.root)
            .output()
            .context("cannot run cargo metadata")?;
        if !output.status.success() {
            bail!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr));
        }
        Self::parse(&serde_json::from_slice(&output.stdout).context("cargo metadata is not JSON")?)
    }

    fn parse(metadata: &Value) -> Result<Self> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let nodes: BTreeMap<String, Value> =
            list(&metadata["resolve"]["nodes"]).into_iter().map(|node| (text(&node["id"]), node)).collect();
        // With a platform given, cargo lists more packages than it resolves.
        let known: Vec<Value> = list(&metadata["packages"])
            .into_iter()
            .filter(|package| nodes.contains_key(&text(&package["id"])))
            .collect();
        let places: BTreeMap<String, usize> =
            known.iter().enumerate().map(|(place, package)| (text(&package["id"]), place)).collect();
        let packages = known.iter().map(|package| {
            let runs = |dependency: &&Value| {
                list(&dependency["dep_kinds"]).iter().any(|kind| kind["kind"].is_null())
            };
            let manifest = PathBuf::from(text(&package["manifest_path"]));
            let id = text(&package["id"]);
            let node = nodes.get(&id).with_context(|| format!("cargo does not resolve {id}"))?;
            Ok(Package {
                name: text(&package["name"]),
                version: text(&package["version"]),
                licence: text(&package["license"]),
                authors: list(&package["authors"]).iter().map(text).collect(),
                source: package["source"].as_str().map(ToString::to_string),
                dir: manifest.parent().map(Path::to_path_buf).unwrap_or_default(),
                is_macro: list(&package["targets"])
                    .iter()
                    .any(|target| list(&target["kind"]).iter().any(|kind| kind == "proc-macro")),
                uses: list(&node["deps"])
                    .iter()
                    .filter(runs)
                    .filter_map(|dependency| places.get(&text(&dependency["pkg"])).copied())
                    .collect(),
            })
        });
        Ok(Self { packages: packages.collect::<Result<_>>()? })
    }

    /// Returns the crates of others that are inside of a program of ours, by name and version.
    pub(crate) fn shipped(&self, program: &str) -> Result<Vec<&Package>> {
        let start = self.packages.iter().position(|package| package.name == program);
        let start = start.with_context(|| format!("there is no crate called {program}"))?;
        let (mut seen, mut next) = (BTreeSet::from([start]), vec![start]);
        while let Some(place) = next.pop() {
            for used in &self.packages[place].uses {
                if !self.packages[*used].is_macro && seen.insert(*used) {
                    next.push(*used);
                }
            }
        }
        let mut shipped: Vec<&Package> = seen
            .into_iter()
            .map(|place| &self.packages[place])
            .filter(|package| package.source.is_some())
            .collect();
        shipped.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
        Ok(shipped)
    }
}

pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let graph = Graph::load(workspace)?;
    let mut complaints = strangers(&graph);
    complaints.extend(duplicates(&graph, DUPLICATES));
    complaints.extend(unused(&workspace.root)?);
    complaints.extend(licenses::drift(&workspace.root, &graph)?);
    if complaints.is_empty() {
        return Ok(());
    }
    bail!("\n  {}", complaints.join("\n  "));
}

/// Licences, sources and names that are not welcome.
fn strangers(graph: &Graph) -> Vec<String> {
    let mut complaints = Vec::new();
    for package in &graph.packages {
        let Package { name, version, licence, source, .. } = package;
        if let Some((_, why)) = BANNED.iter().find(|(banned, _)| banned == name) {
            complaints.push(format!("{name} {version} is banned: {why}"));
        }
        let Some(source) = source else { continue };
        if source != SOURCE {
            complaints.push(format!("{name} {version} comes from {source} and not from crates.io"));
        }
        if choose(licence).is_none() {
            complaints.push(format!(
                "{name} {version} has the licence {licence:?}; allowed are {}",
                LICENCES.join(", ")
            ));
        }
    }
    complaints
}

/// Returns the licences under which something is used, one for each part that `AND` joins; none if a part allows no
/// alternative that we may use.
///
/// Understands what crates write: `A OR B`, `A/B`, `(A OR B) AND C`, `A WITH exception`.
pub(crate) fn choose(expression: &str) -> Option<Vec<&'static str>> {
    let mut chosen = Vec::new();
    for part in expression.split(" AND ") {
        let part = part.trim().trim_start_matches('(').trim_end_matches(')').replace('/', " OR ");
        let offered: Vec<&str> = part.split(" OR ").map(str::trim).collect();
        let licence = LICENCES.iter().find(|licence| offered.contains(licence))?;
        if !chosen.contains(licence) {
            chosen.push(*licence);
        }
    }
    Some(chosen)
}

/// What is there in incompatible versions without a reason, and reasons without such a crate.
fn duplicates(graph: &Graph, allowed: &[(&str, &str)]) -> Vec<String> {
    let mut versions: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for package in graph.packages.iter().filter(|package| package.source.is_some()) {
        versions.entry(&package.name).or_default().insert(compatible(&package.version));
    }
    versions.retain(|_, versions| versions.len() > 1);
    let unexplained = versions.iter().filter(|(name, _)| !allowed.iter().any(|(known, _)| known == *name));
    let mut complaints: Vec<String> = unexplained
        .map(|(name, versions)| {
            let versions: Vec<&str> = versions.iter().map(String::as_str).collect();
            format!("{name} is there as {}; `cargo tree --invert {name}` tells why", versions.join(" and "))
        })
        .collect();
    complaints.extend(
        allowed
            .iter()
            .filter(|(name, _)| !versions.contains_key(name))
            .map(|(name, _)| format!("{name} is there once by now: take it off the list in dependencies.rs")),
    );
    complaints
}

/// Returns the part of a version that other versions must share to be compatible.
fn compatible(version: &str) -> String {
    let mut parts = version.split('.');
    let major = parts.next().unwrap_or_default();
    if major == "0" { format!("0.{}", parts.next().unwrap_or_default()) } else { major.to_string() }
}

/// What a manifest declares and no source file names, and what the workspace offers and no manifest takes.
fn unused(root: &Path) -> Result<Vec<String>> {
    let read =
        |path: &Path| fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
    let offered = declared(&read(&root.join("Cargo.toml"))?, |section| section == "workspace.dependencies");
    let (mut taken, mut complaints) = (BTreeSet::new(), Vec::new());
    let folders = fs::read_dir(root.join("crates")).context("cannot read crates")?;
    let mut folders: Vec<PathBuf> = folders.filter_map(|entry| Some(entry.ok()?.path())).collect();
    folders.sort();
    for folder in folders.iter().filter(|folder| folder.join("Cargo.toml").is_file()) {
        let names = declared(&read(&folder.join("Cargo.toml"))?, |section| {
            section.trim_end_matches("dependencies").len() < section.len()
        });
        let mut sources = String::new();
        collect(folder, &mut sources)?;
        for name in names {
            let known = UNNAMED.iter().any(|(unnamed, _)| *unnamed == name);
            if !known && !mentions(&sources, &name.replace('-', "_")) {
                let shown = folder.strip_prefix(root).unwrap_or(folder).display();
                complaints.push(format!("{shown} declares {name} and does not use it"));
            }
            taken.insert(name);
        }
    }
    let forgotten = offered.into_iter().filter(|name| !taken.contains(name));
    complaints.extend(forgotten.map(|name| format!("Cargo.toml offers {name}, which no crate uses")));
    Ok(complaints)
}

/// Returns the names on the left of a manifest's lines in the sections that are asked for.
fn declared(manifest: &str, wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let mut names = Vec::new();
    let mut inside = false;
    for line in manifest.lines() {
        if let Some(section) = line.strip_prefix('[') {
            inside = wanted(section.trim_end_matches(']'));
        } else if inside
            && let Some((name, _)) = line.split_once(['.', ' ', '='])
            && name.starts_with(|first: char| first.is_ascii_alphabetic())
        {
            names.push(name.to_string());
        }
    }
    names
}

fn collect(folder: &Path, sources: &mut String) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.is_dir() {
            collect(&path, sources)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            sources.push_str(
                &fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?,
            );
        }
    }
    Ok(())
}

/// Says whether a word stands in a text by itself.
fn mentions(text: &str, word: &str) -> bool {
    let inside = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.match_indices(word)
        .any(|(at, _)| !text[..at].ends_with(inside) && !text[at + word.len()..].starts_with(inside))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn package(name: &str, version: &str, licence: &str) -> Package {
        let source = Some(SOURCE.to_string());
        let (name, version, licence) = (name.to_string(), version.to_string(), licence.to_string());
        Package { name, version, licence, source, ..Package::default() }
    }

    #[test]
    fn of_several_licences_the_most_convenient_is_chosen() {
        for (expression, wanted) in [
            ("MIT OR Apache-2.0", Some(vec!["Apache-2.0"])),
            ("MIT/Apache-2.0", Some(vec!["Apache-2.0"])),
            ("Apache-2.0 / MIT", Some(vec!["Apache-2.0"])),
            ("Unlicense OR MIT", Some(vec!["MIT"])),
            ("Apache-2.0 AND ISC", Some(vec!["Apache-2.0", "ISC"])),
            ("(Apache-2.0 OR MIT) AND BSD-3-Clause", Some(vec!["Apache-2.0", "BSD-3-Clause"])),
            ("Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT", Some(vec!["Apache-2.0"])),
            ("GPL-3.0-only", None),
            ("MIT AND GPL-2.0-only", None),
            ("", None),
        ] {
            assert_eq!(choose(expression), wanted, "{expression}");
        }
    }

    #[test]
    fn unwelcome_licences_sources_and_crates_are_named() {
        let mut elsewhere = package("fork", "1.0.0", "MIT");
        elsewhere.source = Some("git+https://example.com/fork".to_string());
        let ours = Package { source: None, ..package("ours", "0.1.0", "") };
        let packages = vec![
            package("fine", "1.0.0", "MIT"),
            ours,
            elsewhere,
            package("viral", "1.0.0", "AGPL-3.0-only"),
            package("openssl", "0.10.0", "Apache-2.0"),
        ];
        let complaints = strangers(&Graph { packages });
        assert_eq!(complaints.len(), 3, "{complaints:?}");
        assert!(complaints[0].contains("fork 1.0.0 comes from git+"));
        assert!(complaints[1].contains("viral 1.0.0 has the licence"));
        assert!(complaints[2].contains("openssl 0.10.0 is banned: TLS is rustls"));
    }

    #[test]
    fn finding_24_a_second_crypto_stack_and_rsa_do_not_come_in() {
        let unwanted = ["openssl", "openssl-sys", "native-tls", "aws-lc-rs", "rsa"];
        let packages = unwanted.map(|name| package(name, "1.0.0", "MIT")).to_vec();
        let complaints = strangers(&Graph { packages });
        for name in unwanted {
            let banned = format!("{name} 1.0.0 is banned");
            let named = complaints.iter().any(|complaint| complaint.starts_with(&banned));
            assert!(named, "{name}: {complaints:?}");
        }
    }

    #[test]
    fn two_incompatible_versions_need_a_reason_and_a_reason_needs_them() {
        let packages = vec![
            package("a", "0.22.1", "MIT"),
            package("a", "0.23.0", "MIT"),
            package("b", "1.0.0", "MIT"),
            package("b", "1.9.0", "MIT"),
        ];
        let graph = Graph { packages };
        assert_eq!(duplicates(&graph, &[("a", "because")]), Vec::<String>::new());
        assert!(duplicates(&graph, &[])[0].starts_with("a is there as 0.22 and 0.23"));
        assert!(duplicates(&graph, &[("a", ""), ("b", "")])[0].starts_with("b is there once by now"));
    }

    #[test]
    fn what_runs_at_build_time_is_not_shipped() {
        let crate_of = |name: &str, source: Value, kind: &str| {
            json!({"id": name, "name": name, "version": "1.0.0", "license": "MIT", "source": source,
                "manifest_path": format!("/r/{name}/Cargo.toml"), "targets": [{"kind": [kind]}]})
        };
        let edge = |to: &str, kind: Value| json!({"pkg": to, "dep_kinds": [{"kind": kind}]});
        let graph = Graph::parse(&json!({
            "packages": [
                crate_of("app", Value::Null, "bin"),
                crate_of("lib", SOURCE.into(), "lib"),
                crate_of("derive", SOURCE.into(), "proc-macro"),
                crate_of("quote", SOURCE.into(), "lib"),
                crate_of("cc", SOURCE.into(), "lib"),
                crate_of("test", SOURCE.into(), "lib"),
                crate_of("windows", SOURCE.into(), "lib"),
            ],
            "resolve": {"nodes": [
                {"id": "app", "deps": [edge("lib", Value::Null), edge("test", "dev".into())]},
                {"id": "lib", "deps": [edge("derive", Value::Null), edge("cc", "build".into())]},
                {"id": "derive", "deps": [edge("quote", Value::Null)]},
                {"id": "quote", "deps": []}, {"id": "cc", "deps": []}, {"id": "test", "deps": []},
            ]},
        }))
        .expect("understood");
        let shipped: Vec<&str> =
            graph.shipped("app").expect("there").iter().map(|package| package.name.as_str()).collect();
        assert_eq!(shipped, ["lib"]);
    }

    #[test]
    fn what_nobody_uses_is_noticed() {
        let root = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("create");
            fs::write(path, text).expect("write");
        };
        write(
            "Cargo.toml",
            "[workspace.dependencies]\n# theirs\nused-one = \"1\"\nidle = { version = \"1\" }\nnever = \"1\"\n\n[profile.dev]\nopt-level = 1\n",
        );
        write(
            "crates/a/Cargo.toml",
            "[dependencies]\nused-one.workspace = true\n\n[dev-dependencies]\nidle = { workspace = true }\n",
        );
        write("crates/a/src/lib.rs", "//! A.\nuse used_one::Thing;\nfn idleness() {}\n");
        assert_eq!(
            unused(root.path()).expect("read"),
            ["crates/a declares idle and does not use it", "Cargo.toml offers never, which no crate uses"]
        );
    }
}
