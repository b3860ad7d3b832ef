//! The shape of all controllers, read from their sources: decisions are pure, and each controller has a test on a server.

use std::fs;
use std::path::{Path, PathBuf};

/// What a decision must not use, since it would not be the same the next time, or would not be a decision only.
const IMPURE: [&str; 13] = [
    "Instant::now",
    "SystemTime",
    "Timestamp::now",
    "TimeZone::",
    "Uuid",
    "uuid::",
    ".await",
    ".lock()",
    "std::env",
    ".elapsed()",
    "rand::",
    "mirrors.",
    "writer.",
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// Returns all sources of this crate with their texts.
fn all() -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    // This one has examples.
    found.retain(|path| !path.ends_with("shape.rs"));
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("a source");
        (path, text)
    };
    found.into_iter().map(read).collect()
}

/// Returns the lines of a source that are neither tests nor comments.
fn code(text: &str) -> Vec<&str> {
    let lines = text.lines().take_while(|line| *line != "mod tests {");
    lines.filter(|line| !line.trim_start().starts_with("//")).collect()
}

/// Returns what decides in a source: all of a file of decisions, of any other the functions of this name.
fn decisions(path: &Path, text: &str) -> Vec<String> {
    let code = code(text);
    if path.ends_with("decide.rs") {
        return vec![code.join("\n")];
    }
    let begins = |line: &str| line.contains("fn decide(") || line.contains("fn decide<");
    let starts = code.iter().enumerate().filter(|(_, line)| begins(line));
    starts
        .map(|(start, line)| {
            let end = format!("{}}}", &line[..line.len() - line.trim_start().len()]);
            let body = code[start..].iter().take_while(|line| **line != end);
            body.copied().collect::<Vec<_>>().join("\n")
        })
        .collect()
}

#[test]
fn decisions_are_pure() {
    let mut seen = 0;
    for (path, text) in all() {
        for decision in decisions(&path, &text) {
            seen += 1;
            for impure in IMPURE {
                assert!(!decision.contains(impure), "{} uses {impure}:\n{decision}", path.display());
            }
        }
    }
    assert!(seen > 50, "only {seen} were found");
}

#[test]
fn what_is_impure_is_found() {
    let text = "impl C {\n    fn decide(view: &View) -> Plan {\n        f(|| uuid::Uuid::new_v4())\n    }\n\n    fn apply() {}\n}\n";
    let found = decisions(Path::new("c.rs"), text);
    assert_eq!(found.len(), 1);
    assert!(found[0].contains("uuid::") && !found[0].contains("apply"), "{found:?}");
    let whole = decisions(Path::new("c/decide.rs"), "fn f() {}\n// now\nmod tests {\n    uuid::\n}\n");
    assert_eq!(whole, ["fn f() {}"]);
}

#[test]
fn each_controller_has_a_test_on_a_server() {
    let mut seen = 0;
    for (path, text) in all() {
        let mut lines = code(&text).into_iter();
        if !lines.any(|line| line.starts_with("impl") && line.contains(" Reconcile for ")) {
            continue;
        }
        seen += 1;
        let (own, shared) = (path.with_extension(""), path.parent().expect("a folder"));
        let has = |folder: &Path| {
            let tests = fs::read_to_string(folder.join("tests.rs")).unwrap_or_default();
            folder.join("on_server.rs").exists() || tests.contains("World::")
        };
        let is_tested = text.contains("World::") || has(&own) || has(shared);
        assert!(is_tested, "{} has no test on a server", path.display());
    }
    assert!(seen > 35, "only {seen} were found");
}
