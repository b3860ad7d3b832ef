//! Every source file says what it is for, none is too long to be read, unsafe code stays where it is, handlers of the API server
//! do not compare the names of kinds, comments keep to a width, every test and file exists that pages name, the table of limits
//! on the security page is that of the code, and readers deny what could make them panic.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use super::{Context, limits, panics};

/// Nine of ten files should stay under 700 lines; at this length a file certainly has two reasons to change.
const MOST_LINES: usize = 1_500;

/// rustfmt keeps code to the width in `rustfmt.toml`, but leaves comments as they are.
const WIDEST_COMMENT: usize = 140;

/// Folders of data: golden files, tables, generated pages, what others wrote.
const DATA: &[&str] = &[
    "testdata",
    "data",
    "snapshots",
    "generated",
    "reference",
    "target",
    "node_modules",
    "proptest-regressions",
];

/// The files that may have unsafe code, and why.
const UNSAFE: &[(&str, &str)] = &[
    ("crates/app/src/memory.rs", "a call of the allocator that no crate hides"),
    ("crates/apiserver/src/background.rs", "a system call that no crate hides"),
    ("crates/interpreter/benches/interpreter.rs", "only an allocator can count allocations"),
    ("crates/app/tests/propagation/clock/shim.rs", "a test puts it before the C library, to move the clock"),
];

/// The API server asks its registry what is particular about a kind; this is where it does so.
const SERVER: &str = "crates/apiserver/src/";

/// Where the API server may compare names of kinds and resources, below [`SERVER`], and why.
const PARTICULAR: &[(&str, &str)] = &[
    ("registry/", "answers what is particular about a kind"),
    ("controllers/", "each follows kinds of its own"),
    ("admission/", "plug-ins are about kinds of their own"),
    ("aggregation/discovery.rs", "answers of other servers are documents of several kinds"),
    ("audit/mod.rs", "an answer is an object or a Status"),
    ("audit/policy.rs", "a file has to be the policy"),
    ("auth/claims.rs", "the rights of those who allocate ResourceClaims"),
    ("auth/escalation.rs", "a binding says by kind which role it grants"),
    ("auth/rbac.rs", "rules name resources, and bindings the kinds of subjects and roles"),
    ("handlers/access_review.rs", "three kinds are three forms of one question"),
    ("handlers/context.rs", "the kinds are those of a request's options"),
    ("handlers/reviews.rs", "kinds that are computed, each in its own way"),
    ("handlers/token.rs", "a token can be bound to objects of three kinds, named in the request"),
    ("http/negotiate.rs", "the kinds are forms of an answer: tables, metadata alone"),
    ("http/request.rs", "the path of a namespace is the path of what is in it"),
    ("outbound/reply.rs", "answers of other servers may be a Status"),
    ("serve.rs", "writing a definition takes long, which is seen in the path"),
];

/// What has the name of a kind or resource in it, by the last word of an expression.
const NAMES: &[&str] = &["kind", "collection", "resource"];

/// What people write and read. Everything else is data.
const SOURCES: &[&str] = &["rs", "sh", "md", "js", "ts", "css", "html", "py", "toml"];

pub(super) fn check(context: &Context) -> Result<()> {
    let root = &context.workspace.root;
    let mut complaints = complaints(root)?;
    complaints.extend(limits::complaints(root)?);
    complaints.extend(panics::complaints(root)?);
    complaints.extend(forgotten_findings(root)?);
    if complaints.is_empty() {
        return Ok(());
    }
    bail!("\n  {}", complaints.join("\n  "));
}

fn complaints(root: &Path) -> Result<Vec<String>> {
    let mut files = Vec::new();
    collect(root, &mut files)?;
    files.sort();
    let mut complaints = Vec::new();
    for path in files {
        let shown = path.strip_prefix(root).unwrap_or(&path).display().to_string();
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {shown}"))?;
        let is = |wanted: &str| path.extension().is_some_and(|extension| extension == wanted);
        let (is_rust, is_page) = (is("rs"), is("md"));
        complaints.extend(judge(is_rust, &text).map(|complaint| format!("{shown} {complaint}")));
        let mut at_lines = |lines: Vec<usize>, complaint: &str| {
            complaints.extend(lines.into_iter().map(|line| format!("{shown}:{line} {complaint}")));
        };
        at_lines(particular(&shown, &text), "compares the name of a kind: ask registry::Kind");
        if is_rust {
            at_lines(
                each_with_each(&text),
                "looks for an item among all before it, which takes hours for a long list: keep them in a HashSet",
            );
            at_lines(wide_comments(&text), "is a comment of more than 140 columns");
        }
        if is_rust && !UNSAFE.iter().any(|(allowed, _)| shown == *allowed) {
            at_lines(unsafe_lines(&text), "has unsafe code and is not on the list in xtask's hygiene.rs");
        }
        // Pages inside a crate name files of that crate.
        if is_page && shown != PAST && !shown.starts_with("crates/") {
            complaints.extend(unknown_files(root, &shown, &text));
        }
    }
    complaints.extend(stale_permissions(root));
    complaints.extend(unknown_tests(root)?);
    Ok(complaints)
}

fn judge(is_rust: bool, text: &str) -> Option<String> {
    if is_rust && !opens_with_docs(text) {
        return Some("does not say at its top what it is for (`//! …`)".to_string());
    }
    let lines = text.lines().count();
    (lines > MOST_LINES).then(|| format!("has {lines} lines, more than {MOST_LINES}"))
}

/// Returns the lines of a file of the API server that compare the name of a kind or resource where they should not. Tests may.
fn particular(path: &str, text: &str) -> Vec<usize> {
    let Some(path) = path.strip_prefix(SERVER) else { return Vec::new() };
    if PARTICULAR.iter().any(|(allowed, _)| path.starts_with(allowed)) {
        return Vec::new();
    }
    let code: Vec<&str> =
        text.lines().take_while(|line| *line != "#[cfg(test)]").map(str::trim_start).collect();
    let compares = |at: &usize| {
        let (line, next) = (code[*at], code.get(at + 1).copied().unwrap_or(""));
        !line.starts_with("//") && (is_comparison(line) || is_match(line, next) || is_choice(line))
    };
    (0..code.len()).filter(compares).map(|at| at + 1).collect()
}

/// Returns the lines that look for the item of a list among those before it: `seen[..index].contains(item)`.
fn each_with_each(text: &str) -> Vec<usize> {
    let looks = |line: &str| {
        let code = line.split("//").next().unwrap_or("");
        let found = code.split_once("[..").and_then(|(_, rest)| rest.split_once(']'));
        found.is_some_and(|(end, rest)| {
            let is_name = end.chars().all(|c| c.is_alphanumeric() || c == '_');
            is_name && (rest.starts_with(".contains(") || rest.starts_with(".iter().any("))
        })
    };
    text.lines().enumerate().filter(|(_, line)| looks(line)).map(|(at, _)| at + 1).collect()
}

/// Whether an expression has the name of a kind in it: `kind`, `info.resource.as_str()`, `text("kind")`.
fn names_a_kind(expression: &str) -> bool {
    expression.split(|c: char| !(c.is_alphanumeric() || c == '_')).any(|word| NAMES.contains(&word))
}

/// Whether a line compares a name with a text by `==` or `!=`.
fn is_comparison(line: &str) -> bool {
    [" == \"", " != \""].iter().flat_map(|sign| line.match_indices(sign)).any(|(at, _)| {
        let before = line[..at].trim_end_matches(".as_str()").trim_end_matches(['(', ')', '"', ']']);
        NAMES.iter().any(|name| {
            before
                .strip_suffix(name)
                .is_some_and(|rest| !rest.ends_with(|c: char| c.is_alphanumeric() || c == '_'))
        })
    })
}

/// Whether a line begins a `match` that tells names apart: its first arm, in the next line, is a text.
fn is_match(line: &str, next: &str) -> bool {
    let subject = line.split_once("match ").map(|(_, subject)| subject);
    let by_text = next.trim_start_matches('(').starts_with('"') || next.starts_with("(_, \"");
    by_text && subject.is_some_and(names_a_kind)
}

/// Whether a line asks if a name is one of several texts, by `matches!` or by `contains`.
fn is_choice(line: &str) -> bool {
    let pattern = line.split_once("matches!(").and_then(|(_, rest)| {
        let (subject, _) = rest.split_once(", \"").or_else(|| rest.split_once(", (\""))?;
        Some(subject)
    });
    let member =
        line.split_once(".contains(&").filter(|(list, _)| list.contains("[\"")).map(|(_, rest)| rest);
    [pattern, member].into_iter().flatten().any(names_a_kind)
}

/// Returns the exceptions for files that do not exist any more.
fn stale_permissions(root: &Path) -> Vec<String> {
    let comparing = PARTICULAR.iter().map(|(path, _)| format!("{SERVER}{path}"));
    let allowed = comparing.chain(UNSAFE.iter().map(|(path, _)| (*path).to_owned()));
    let gone = allowed.filter(|path| !root.join(path).exists());
    gone.map(|path| format!("xtask's hygiene.rs excepts {path}, which does not exist")).collect()
}

/// Returns the lines of comments that are too wide to be read beside other code.
fn wide_comments(text: &str) -> Vec<usize> {
    let too_wide = |line: &str| line.trim_start().starts_with("//") && line.chars().count() > WIDEST_COMMENT;
    text.lines().enumerate().filter(|(_, line)| too_wide(line)).map(|(at, _)| at + 1).collect()
}

/// Returns the lines that have unsafe code or lift the lint that denies it. The lint alone is not enough: code that a test has
/// compiled by itself, as text, is never seen by it.
fn unsafe_lines(text: &str) -> Vec<usize> {
    let found = |line: &str| {
        // What is quoted, and what is said about the code, is not code.
        let line = line.replace("\\\"", "");
        let code = line.split("//").next().unwrap_or("").split('"').step_by(2);
        let mut words = code.flat_map(|part| part.split(|c: char| !(c.is_alphanumeric() || c == '_')));
        words.any(|word| word == "unsafe" || word == "unsafe_code")
    };
    text.lines().enumerate().filter(|(_, line)| found(line)).map(|(at, _)| at + 1).collect()
}

/// The pages whose promises name their tests: `path/below/crates.rs::name`, or `attack: name` for a line of the attacker's
/// table.
const PROMISES: &[&str] = &["docs/operations/security.md", "docs/reference/defects.md"];
const ATTACKS: &str = "app/tests/attacker/table.rs";

/// The page with the findings of the review, and how many there are.
const FINDINGS: (&str, u32) = (PROMISES[0], 30);

/// How the last column of a table is called whose rows name tests.
const TESTS: &[&str] = &["Test", "Tests", "Guarded by"];

/// Returns the tests that pages name and that do not exist, or that nobody runs.
fn unknown_tests(root: &Path) -> Result<Vec<String>> {
    let crates = root.join("crates");
    let read = |path: &str| fs::read_to_string(crates.join(path)).unwrap_or_default();
    let mut complaints = Vec::new();
    for page in PROMISES {
        let text = fs::read_to_string(root.join(page)).with_context(|| format!("cannot read {page}"))?;
        for (file, mark) in named_tests(&text) {
            let code = read(&file);
            if !code.contains(&mark) {
                complaints.push(format!("{page} names a test that does not exist: {mark} in {file}"));
            } else if is_ignored(&code, &mark) {
                complaints.push(format!("{page} names a test that is ignored: {mark} in {file}"));
            }
        }
        let anonymous = without_own_test(&text).into_iter();
        complaints
            .extend(anonymous.map(|finding| format!("{page} names no test that is called after {finding}")));
        let unguarded = untested_rows(&text).into_iter();
        complaints.extend(unguarded.map(|row| format!("{page} names no test for: {row}")));
    }
    Ok(complaints)
}

/// Returns whether a test stands below `#[ignore]`, so that it guards nothing. Attributes end where the item before ends.
fn is_ignored(code: &str, mark: &str) -> bool {
    let lines: Vec<&str> = code.lines().map(str::trim).collect();
    let Some(at) = lines.iter().position(|line| line.contains(mark)) else { return false };
    let above = lines.iter().take(at).rev();
    let attributes = above.take_while(|line| !line.is_empty() && !line.ends_with(['}', '{', ';']));
    attributes.copied().any(|line| line.starts_with("#[ignore"))
}

/// Returns the numbers of the findings that a page has a row for: `| F1 |` and so on.
fn findings(page: &str) -> BTreeSet<u32> {
    let number = |line: &str| line.strip_prefix("| F")?.split(' ').next()?.parse::<u32>().ok();
    page.lines().filter_map(number).collect()
}

/// Returns the findings for which a page names no test whose name begins with their number.
fn without_own_test(page: &str) -> Vec<String> {
    let anonymous =
        findings(page).into_iter().filter(|number| !page.contains(&format!("::finding_{number}_")));
    anonymous.map(|number| format!("F{number}")).collect()
}

/// Returns the findings of the review that its page has no row for.
fn forgotten_findings(root: &Path) -> Result<Vec<String>> {
    let (page, all) = FINDINGS;
    let text = fs::read_to_string(root.join(page)).with_context(|| format!("cannot read {page}"))?;
    let known = findings(&text);
    let forgotten = (1..=all).filter(|number| !known.contains(number));
    Ok(forgotten.map(|number| format!("{page} says nothing of F{number}")).collect())
}

/// Returns the rows without a test in tables whose last column is about tests, by their first words.
fn untested_rows(page: &str) -> Vec<String> {
    let mut names_tests = false;
    let mut rows = Vec::new();
    let mut lines = page.lines().peekable();
    while let Some(line) = lines.next() {
        let cells: Vec<&str> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
        if lines.peek().is_some_and(|next| next.starts_with("|---")) {
            names_tests = cells.last().is_some_and(|last| TESTS.contains(last));
        } else if names_tests && line.starts_with("| ") && named_tests(line).is_empty() {
            rows.push(cells[0].chars().take(80).collect());
        }
    }
    rows
}

/// Names files as they were called at the time.
const PAST: &str = "CHANGELOG.md";

/// Where a path on a page may begin: at the root, among the crates, or where the table of controllers says.
const BEGINNINGS: &[&str] = &["", "crates", "crates/controllers/src"];

/// Returns the files that a page names and that do not exist.
fn unknown_files(root: &Path, page: &str, text: &str) -> Vec<String> {
    let exists = |path: &&str| BEGINNINGS.iter().any(|beginning| root.join(beginning).join(path).exists());
    let unknown = named_files(text).into_iter().filter(|path| !exists(path));
    unknown.map(|path| format!("{page} names a file that does not exist: {path}")).collect()
}

/// Returns the paths of source files, and of folders, that a page names: what is quoted, has a slash inside and ends as they do.
fn named_files(page: &str) -> Vec<&str> {
    let quoted = page.split('`').skip(1).step_by(2);
    let is_path = |name: &&str| {
        let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
        plain
            && name.trim_end_matches('/').contains('/')
            && (name.ends_with(".rs") || name.ends_with(".md") || name.ends_with('/'))
    };
    quoted.filter(is_path).collect()
}

/// Returns the tests that a page names: the file, and what stands in it if the test exists.
fn named_tests(page: &str) -> Vec<(String, String)> {
    let quoted = page.split('`').skip(1).step_by(2);
    quoted
        .filter_map(|name| match (name.strip_prefix("attack: "), name.split_once(".rs::")) {
            (Some(attack), _) => Some((ATTACKS.to_string(), format!("\"{attack}\","))),
            (None, Some((file, test))) => Some((format!("{file}.rs"), format!("fn {test}("))),
            (None, None) => None,
        })
        .collect()
}

/// Attributes may stand before the docs.
fn opens_with_docs(text: &str) -> bool {
    text.lines()
        .map(str::trim)
        .find(|line| !line.is_empty() && !line.starts_with("#!["))
        .is_some_and(|line| line.starts_with("//!") && line.len() > "//!".len())
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot read {}", folder.display()))?;
        let (path, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        let kind = entry.file_type().with_context(|| format!("cannot read {}", path.display()))?;
        if kind.is_dir() {
            if !name.starts_with('.') && !DATA.contains(&name.as_str()) {
                collect(&path, files)?;
            }
        } else if kind.is_file() {
            let extension = path.extension().map(|extension| extension.to_string_lossy().into_owned());
            if extension.is_some_and(|extension| SOURCES.contains(&extension.as_str())) {
                files.push(path);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rust_file_must_say_what_it_is_for() {
        assert_eq!(judge(true, "//! Says it.\nfn main() {}\n"), None);
        assert_eq!(judge(true, "#![allow(x)]\n\n//! Says it.\n"), None);
        assert!(judge(true, "use std::fs;\n\n//! Too late.\n").is_some());
        assert!(judge(true, "//!\nfn main() {}\n").is_some(), "an empty line says nothing");
        assert_eq!(judge(false, "#!/bin/sh\n"), None);
    }

    #[test]
    fn unsafe_code_is_noticed_whether_or_not_a_lint_sees_it() {
        for line in [
            "#[expect(unsafe_code, reason = \"x\")]",
            "#[expect(dead_code, unsafe_code)]",
            "#![allow(unsafe_code)]",
            "    let result = unsafe { call(\"x\") };",
            "unsafe{",
            "pub unsafe fn f() {}",
            "unsafe impl Send for X {}",
            "pub unsafe extern \"C\" fn f() {}",
            "#[unsafe(no_mangle)]",
            "unsafe",
        ] {
            assert_eq!(unsafe_lines(&format!("//! X.\n\n{line}\n")), [3], "{line}");
        }
        for line in [
            "// An unsafe { block } would be needed.",
            "let flag = \"--discovery-token-unsafe-skip-ca-verification\";",
            "let text = f(\"unsafe { }\"); // unsafe fn",
            "let unsafe_skip_verification = true;",
        ] {
            assert_eq!(unsafe_lines(&format!("//! Unsafe code.\n\n{line}\n")), Vec::<usize>::new(), "{line}");
        }
    }

    #[test]
    fn finding_25_looking_for_each_among_all_before_it_is_noticed() {
        let text = |list: &str, question: &str| format!("//! X.\n\nif {list}[..index]{question}(key) {{\n");
        assert_eq!(each_with_each(&text("keys", ".contains")), [3]);
        assert_eq!(each_with_each(&text("self.keys", ".iter().any")), [3]);
        assert_eq!(each_with_each(&text("keys", ".len")), Vec::<usize>::new());
        assert_eq!(each_with_each(&text("// keys", ".contains")), Vec::<usize>::new());
    }

    #[test]
    fn a_handler_for_one_kind_is_noticed() {
        let text = "//! Writes.\n\nfn f(kind: &Kind) -> bool {\n    &*kind.collection == \"pods\"\n}\n";
        assert_eq!(particular("crates/apiserver/src/handlers/write.rs", text), [4]);
        assert_eq!(particular("crates/apiserver/src/registry/special.rs", text), Vec::<usize>::new());
        for compared in [
            "if kind == \"Pod\" {",
            "if target.kind.gvk.kind != \"Pod\" {",
            "let pods = info.resource.as_str() == \"pods\";",
            "if reference(\"kind\") == \"Pod\" {",
            "if object[\"kind\"] == \"Pod\" {",
            "match &*kind.collection {\n    \"pods\" => {}",
            "match kind.gvk.kind.as_str() {\n    \"Pod\" => {}",
            "match (info.resource.as_str(), 1) {\n    (\"pods\", _) => {}",
            "match (gvk.group.as_str(), kind.as_str()) {\n    (\"\", \"Pod\") => {}",
            "matches!(kind.as_str(), \"Pod\" | \"Node\")",
            "matches!((group, kind), (\"\", \"Pod\"))",
            "[\"pods\", \"nodes\"].contains(&info.resource.as_str())",
        ] {
            let text = format!("//! Writes.\n\nfn f() {{\n    {compared}\n");
            assert_eq!(particular("crates/apiserver/src/server.rs", &text), [4], "{compared}");
        }
        for fine in [
            "if subresource == \"status\" {",
            "match &kind.source {\n    Source::Native => {}",
            "match info.subresource.as_str() {\n    \"status\" => {}",
            "matches!(key, \"kind\" | \"metadata\")",
            "kinds.contains(&kind)",
        ] {
            let text = format!("//! Writes.\n\nfn f() {{\n    {fine}\n");
            assert_eq!(particular("crates/apiserver/src/server.rs", &text), Vec::<usize>::new(), "{fine}");
        }
        assert_eq!(particular("crates/sim/src/kinds.rs", text), Vec::<usize>::new());
        let fine = "//! Writes.\n// gvk.kind == \"Pod\" is for the registry to say.\n\n#[cfg(test)]\nmod tests {\n    gvk.kind == \"Pod\"\n}\n";
        assert_eq!(particular("crates/apiserver/src/handlers/write.rs", fine), Vec::<usize>::new());
    }

    #[test]
    fn a_wide_comment_is_noticed() {
        let (widest, wider) = ("é".repeat(WIDEST_COMMENT - 3), "é".repeat(WIDEST_COMMENT - 2));
        let text = format!("// {widest}\n    let x = \"{wider}{wider}\";\n// {wider}\n");
        assert_eq!(wide_comments(&text), [3]);
    }

    #[test]
    fn a_long_file_is_noticed() {
        let text = "//! Long.\n".repeat(MOST_LINES + 1);
        assert_eq!(judge(true, &text), Some("has 1501 lines, more than 1500".to_string()));
    }

    #[test]
    fn a_test_that_a_page_names_is_looked_for() {
        let page = "| `karmada` | `attack: roles: binding`, `store/tests/it/crash.rs::nothing_is_lost` |";
        let expected = [
            ("app/tests/attacker/table.rs", "\"roles: binding\","),
            ("store/tests/it/crash.rs", "fn nothing_is_lost("),
        ];
        let expected = expected.map(|(file, mark)| (file.to_string(), mark.to_string()));
        assert_eq!(named_tests(page), expected);
        let root = tempfile::tempdir().expect("a folder for the test");
        for (path, text) in [
            (PROMISES[0], page),
            (PROMISES[1], "`store/tests/it/crash.rs::another`"),
            ("crates/app/tests/attacker/table.rs", "x \"roles: binding\", y"),
        ] {
            write(root.path(), path, text);
        }
        let complaints = unknown_tests(root.path()).expect("pages");
        assert!(complaints.len() == 2, "{complaints:?}");
        assert!(
            complaints[0].contains("nothing_is_lost") && complaints[1].contains("another"),
            "{complaints:?}"
        );
    }

    #[test]
    fn a_test_that_a_page_names_and_nobody_runs_is_noticed() {
        let code = "#[ignore = \"slow\"]\n#[test]\nfn early() {}\n\n/// Says it.\n#[test]\nfn run() {}\n#[test]\n    #[ignore]\n    async fn late() {}\n";
        for (name, ignored) in [("early", true), ("run", false), ("late", true), ("absent", false)] {
            assert_eq!(is_ignored(code, &format!("fn {name}(")), ignored, "{name}");
        }
        let root = tempfile::tempdir().expect("a folder for the test");
        for (path, text) in
            [(PROMISES[0], "`x.rs::late`, `x.rs::run`"), (PROMISES[1], ""), ("crates/x.rs", code)]
        {
            write(root.path(), path, text);
        }
        let complaints = unknown_tests(root.path()).expect("pages");
        let expected = format!("{} names a test that is ignored: fn late( in x.rs", PROMISES[0]);
        assert_eq!(complaints, [expected]);
    }

    #[test]
    fn a_finding_has_a_test_that_is_called_after_it() {
        let page = "| F1 | x | `a.rs::finding_1_x` |\n| F2 | y | `a.rs::y` |\n| F2 | z | `a.rs::finding_22_z` |\n| Flag | |";
        assert_eq!(without_own_test(page), ["F2"]);
    }

    #[test]
    fn finding_27_a_weakness_of_others_that_a_page_tells_of_has_a_test() {
        let page = "| Finding | Test |\n|---|---|\n| CVE-1 | `attack: one` |\n| CVE-2 | reviewed |\n\n| Who | May |\n|---|---|\n| you | all |\n";
        assert_eq!(untested_rows(page), ["CVE-2"]);
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        assert_eq!(unknown_tests(&root).expect("pages"), Vec::<String>::new());
    }

    #[test]
    fn a_finding_that_the_page_forgets_is_noticed() {
        let root = tempfile::tempdir().expect("a folder for the test");
        let rows = (1..=FINDINGS.1).filter(|number| *number != 7);
        let page: String = rows.map(|number| format!("| F{number} | x |\n")).collect();
        write(root.path(), FINDINGS.0, &page);
        let forgotten = forgotten_findings(root.path()).expect("a page");
        assert_eq!(forgotten, [format!("{} says nothing of F7", FINDINGS.0)]);
    }

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("create");
        fs::write(path, text).expect("write");
    }

    #[test]
    fn a_file_that_a_page_names_is_looked_for() {
        let page = "`store/src/lib.rs`, `plane/there.rs` and `plane/gone.rs` in `crates/store/`; `a/b` and `lib.rs` are no paths";
        let root = tempfile::tempdir().expect("a folder for the test");
        for path in ["crates/store/src/lib.rs", "crates/controllers/src/plane/there.rs"] {
            write(root.path(), path, "//! X.\n");
        }
        for page in PROMISES {
            write(root.path(), page, "");
        }
        write(root.path(), "docs/design/store.md", page);
        write(root.path(), PAST, page);
        let found = complaints(root.path()).expect("a tree");
        let named: Vec<&String> = found.iter().filter(|complaint| complaint.contains(" names a ")).collect();
        assert_eq!(named, ["docs/design/store.md names a file that does not exist: plane/gone.rs"]);
    }

    #[test]
    fn data_folders_and_hidden_folders_are_not_looked_at() {
        let root = tempfile::tempdir().expect("a folder for the test");
        for path in ["src/a.rs", "testdata/b.rs", ".git/c.rs", "src/d.json"] {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("create");
            fs::write(path, "").expect("write");
        }
        let mut files = Vec::new();
        collect(root.path(), &mut files).expect("collect");
        assert_eq!(files, [root.path().join("src/a.rs")]);
    }
}
