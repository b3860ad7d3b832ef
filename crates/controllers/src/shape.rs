//! The shape of all controllers, read from their sources: decisions are pure, each controller declares what it reads, and each has a
//! test on a server.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::mirrors::MIRRORED;
use crate::table::TABLE;

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

/// Returns the functions of a source with their bodies: not those that wait, which no decision can call, and no constructors, whose name
/// does not tell whose they are.
fn functions<'a>(code: &[&'a str]) -> Vec<(&'a str, String)> {
    let starts = code.iter().enumerate().filter_map(|(start, line)| {
        let (before, rest) = line.split_once("fn ")?;
        let is_plain = before.split_whitespace().all(|word| word.starts_with("pub") || word == "const");
        let name = rest.split(['(', '<']).next()?;
        (is_plain && name != "new").then_some((start, *line, name))
    });
    starts
        .map(|(start, line, name)| {
            if line.ends_with(['}', ';']) {
                return (name, line.to_owned());
            }
            let end = format!("{}}}", &line[..line.len() - line.trim_start().len()]);
            let body = code[start..].iter().take_while(|line| **line != end);
            (name, body.copied().collect::<Vec<_>>().join("\n"))
        })
        .collect()
}

/// Returns whether a function or method of this name is called.
fn calls(body: &str, name: &str) -> bool {
    body.match_indices(name).any(|(at, _)| {
        let goes_on = |c: char| c.is_alphanumeric() || c == '_';
        let after = &body[at + name.len()..];
        !body[..at].ends_with(goes_on) && (after.starts_with('(') || after.starts_with("::<"))
    })
}

/// Returns what decides in a source: all of a file of decisions, of any other the functions of this name and those of the same file that
/// they call.
fn decisions(path: &Path, text: &str) -> Vec<String> {
    let code = code(text);
    if path.ends_with("decide.rs") {
        return vec![code.join("\n")];
    }
    let functions = functions(&code);
    let (mut next, mut known, mut found) = (vec!["decide"], BTreeSet::new(), Vec::new());
    while let Some(wanted) = next.pop() {
        if !known.insert(wanted) {
            continue;
        }
        for (_, body) in functions.iter().filter(|(name, _)| *name == wanted) {
            next.extend(functions.iter().map(|(name, _)| *name).filter(|name| calls(body, name)));
            found.push(body.clone());
        }
    }
    found
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
    assert!(seen > 100, "only {seen} were found");
}

#[test]
fn what_decisions_call_is_read() {
    for (file, function) in [("members/monitor.rs", "fn step("), ("members/cluster_status.rs", "fn judge(")] {
        let (path, text) = all().into_iter().find(|(path, _)| path.ends_with(file)).expect("a source");
        let found = decisions(&path, &text);
        assert!(found.iter().any(|decision| decision.contains(function)), "{file}: {found:?}");
    }
}

#[test]
fn what_is_impure_is_found() {
    let text = "impl C {\n    fn decide(view: &View) -> Plan {\n        f(|| uuid::Uuid::new_v4())\n    }\n\n    fn apply() {}\n}\n";
    let found = decisions(Path::new("c.rs"), text);
    assert_eq!(found.len(), 1);
    assert!(found[0].contains("uuid::") && !found[0].contains("apply"), "{found:?}");
    let text = "fn decide(view: &View) -> Plan {\n    view.signs.clone().step(view)\n}\n\nimpl Signs {\n    fn step(&mut self) -> Plan {\n        later::<u8>()\n    }\n\n    fn misstep(&mut self) {\n        Instant::now()\n    }\n}\n\nfn later<T>() -> Plan {\n    Instant::now()\n}\n";
    let found = decisions(Path::new("c.rs"), text);
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(found[2].contains("fn later<T>") && found[2].contains("Instant::now"), "{found:?}");
    let whole = decisions(Path::new("c/decide.rs"), "fn f() {}\n// now\nmod tests {\n    uuid::\n}\n");
    assert_eq!(whole, ["fn f() {}"]);
}

/// Returns the mirrors that a source names.
fn mirrors(code: &str) -> Vec<&str> {
    let after = code.split("mirrors").skip(1);
    let fields = after.filter_map(|rest| rest.trim_start().strip_prefix('.').map(str::trim_start));
    fields.filter_map(|rest| rest.split(|c: char| !(c.is_alphanumeric() || c == '_')).next()).collect()
}

/// A mirror that no row names is not started, and one that the own row does not name may not be complete when the controller starts:
/// then everything that it would show looks as if it did not exist. What a controller reads by way of others, as the interpreter's
/// customizations, cannot be read from its own source.
#[test]
fn each_controller_declares_the_mirrors_that_it_names() {
    let (sources, mut seen) = (all(), 0);
    for declaration in TABLE {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(declaration.file);
        let folder = file.with_extension("");
        let is_test = |path: &Path| path.ends_with("tests.rs") || path.ends_with("on_server.rs");
        for (path, text) in &sources {
            if *path != file && (!path.starts_with(&folder) || is_test(path)) {
                continue;
            }
            for name in mirrors(&code(text).join("\n")) {
                let Some((_, watch)) = MIRRORED.iter().find(|(field, _)| *field == name) else { continue };
                seen += 1;
                let path = path.display();
                assert!(declaration.watches.contains(watch), "{}: {path} uses {watch:?}", declaration.name);
            }
        }
    }
    assert!(seen > 100, "only {seen} were found");
}

#[test]
fn mirrors_are_found() {
    let text = "plane.mirrors.works.find(key); let mirrors = &plane\n    .mirrors\n    .clusters;\nuse mirrors::Watch;";
    assert_eq!(mirrors(text), ["works", "clusters"]);
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
