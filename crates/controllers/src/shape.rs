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

/// The functions that decide and are neither in a file of decisions nor called by a `decide` of their file: `apply` calls them with an
/// answer that it had to wait for, or `observe` when it has to know whether to ask. ARCHITECTURE.md names them all.
const OTHERS: [(&str, &[&str]); 10] = [
    ("autoscaling/cron.rs", &["with_limits", "to_set", "status"]),
    ("failover/descheduler.rs", &["lacking", "conclude"]),
    ("failover/rebalancer.rs", &["without"]),
    ("members/removal.rs", &["judge"]),
    ("plane/both.rs", &["stands_for"]),
    ("plane/quotas/enforcement.rs", &["look"]),
    ("plane/scheduling/conclude.rs", &["observe", "refusal", "apply_status"]),
    ("plane/scheduling/estimating.rs", &["question", "without_estimator"]),
    ("plane/templates.rs", &["is_news"]),
    ("plane/works.rs", &["judge"]),
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

/// Returns the functions with which decisions begin in a source that also does other things.
fn deciding(path: &Path) -> Vec<&'static str> {
    let others = OTHERS.iter().find(|(file, _)| path.ends_with(file)).map_or(&[][..], |(_, names)| names);
    std::iter::once("decide").chain(others.iter().copied()).collect()
}

/// Returns what decides in a source: all of a file of decisions, of any other the functions that decide and those of the same file that
/// they call.
fn decisions(path: &Path, text: &str) -> Vec<String> {
    let code = code(text);
    if path.ends_with("decide.rs") {
        return vec![code.join("\n")];
    }
    let functions = functions(&code);
    let (mut next, mut known, mut found) = (deciding(path), BTreeSet::new(), Vec::new());
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

/// Returns the map of the code.
fn map() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ARCHITECTURE.md");
    fs::read_to_string(path).expect("ARCHITECTURE.md")
}

#[test]
fn what_decides_elsewhere_exists_and_stands_on_the_map() {
    let (sources, map) = (all(), map());
    for (file, names) in OTHERS {
        let (path, text) = sources.iter().find(|(path, _)| path.ends_with(file)).expect(file);
        let found = decisions(path, text);
        for name in names {
            let starts = |decision: &String| {
                let first = decision.lines().next().unwrap_or("");
                first.contains(&format!("fn {name}(")) || first.contains(&format!("fn {name}<"))
            };
            assert!(found.iter().any(starts), "{file} has no function {name} that could decide");
            let stands = map
                .lines()
                .any(|line| line.contains(&format!("`{name}`")) && line.contains(&format!("`{file}`")));
            assert!(stands, "ARCHITECTURE.md does not name {name} of {file} in one line");
        }
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
    let text = "fn apply() {\n    judge()\n}\n\nfn judge() -> Step {\n    Instant::now()\n}\n";
    assert_eq!(decisions(Path::new("c.rs"), text), [""; 0], "it is not said that this one decides");
    let found = decisions(Path::new("plane/works.rs"), text);
    assert!(found.len() == 1 && found[0].contains("Instant::now"), "{found:?}");
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

/// Returns whether a source has a controller.
fn is_controller(text: &str) -> bool {
    code(text).iter().any(|line| line.starts_with("impl") && line.contains(" Reconcile for "))
}

/// Returns whether a test in these sources goes through the three steps of the controller in `path`: in its own file or folder, or beside
/// other controllers of its folder, if the test names its module.
fn is_reconciled(path: &Path, sources: &[(PathBuf, String)]) -> bool {
    let (own, shared) = (path.with_extension(""), path.parent().unwrap_or(path));
    let module = format!("{}::", own.file_name().unwrap_or_default().to_string_lossy());
    sources.iter().any(|(test, text)| {
        let is_test = test.ends_with("on_server.rs") || test.ends_with("tests.rs");
        let is_own = test == path || (is_test && test.parent() == Some(&own));
        let is_shared = || is_test && test.parent() == Some(shared) && text.contains(&module);
        text.contains(".once(") && (is_own || is_shared())
    })
}

#[test]
fn each_controller_is_reconciled_on_a_server() {
    let (sources, mut seen) = (all(), 0);
    for (path, _) in sources.iter().filter(|(_, text)| is_controller(text)) {
        seen += 1;
        assert!(is_reconciled(path, &sources), "no test reconciles {}", path.display());
    }
    assert!(seen > 35, "only {seen} were found");
}

#[test]
fn a_controller_that_no_test_reconciles_is_found() {
    let check = |sources: &[(&str, &str)]| {
        let sources: Vec<_> =
            sources.iter().map(|(path, text)| (PathBuf::from(path), (*text).to_owned())).collect();
        is_reconciled(Path::new("plane/a.rs"), &sources)
    };
    let (once, world) = ("world.once(&a, &key)", "World::new()");
    assert!(check(&[("plane/a.rs", once)]));
    assert!(check(&[("plane/a.rs", ""), ("plane/a/on_server.rs", once)]));
    assert!(check(&[("plane/a.rs", ""), ("plane/tests.rs", "a::subscribed(); world.once(&a, &key)")]));
    assert!(!check(&[("plane/a.rs", world), ("plane/a/tests.rs", world)]), "it has a server only");
    assert!(!check(&[("plane/a.rs", ""), ("plane/on_server.rs", once)]), "another one is reconciled");
    assert!(!check(&[("plane/a.rs", ""), ("plane/b/on_server.rs", once)]));
}

#[test]
fn each_controller_stands_on_the_map() {
    let (map, root) = (map(), Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    for (path, _) in all().iter().filter(|(_, text)| is_controller(text)) {
        let path = path.strip_prefix(&root).expect("a source of this crate");
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let folder = path.parent().unwrap_or(path).display();
        // A row names the folder once, and then the files in it.
        let stands = map.lines().any(|line| {
            line.contains(&format!("`{}`", path.display()))
                || (line.contains(&format!("`{file}`")) && line.contains(&format!("`{folder}/")))
        });
        assert!(stands, "{} is not in ARCHITECTURE.md", path.display());
    }
}
