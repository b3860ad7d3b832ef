//! Runs the test binaries of the workspace, a few at a time.
//!
//! `cargo test` runs one binary after the other. Most of ours have few tests that take long, and these wait: for clusters, for timers,
//! for processes. So three binaries share the machine, and those that take longest come first. What a binary prints is shown when it has
//! ended, so that two outputs do not mix.

use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

/// As many as can wait side by side without keeping each other from their deadlines.
const AT_ONCE: usize = 3;

/// Binaries that take longest, by target, in the order in which they start. The first two use clusters, and wait most of the time;
/// the attacker measures how others are served, so it comes when some of these are done.
const LONGEST: &[&str] = &[
    "propagation",
    "goclient",
    "differential",
    "documents",
    "attacker",
    "members",
    "up",
    "pods",
    "behaviour",
];

/// How many tests of one binary may have a second try. A change that breaks more than these is not unlucky.
const UNLUCKY: usize = 3;

/// One test binary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Binary {
    /// The folder of its package, where it runs.
    folder: PathBuf,
    /// The target: `lib`, `bin` or the name of an integration test.
    target: String,
    program: PathBuf,
}

/// What came of a binary.
struct Outcome {
    shown: String,
    took: Duration,
    passed: bool,
    /// Tests that failed first and passed when they were run again.
    unsteady: Vec<String>,
}

/// What a run is given.
pub(super) struct Conditions<'a> {
    pub(super) environment: &'a [(&'a str, String)],
    /// Where the output of binaries is kept while they run.
    pub(super) logs: &'a Path,
    /// Whether tests that fail are run once more.
    pub(super) second_try: bool,
}

/// Compiles tests with a command of cargo's that has no message format yet, and returns the binaries.
pub(super) fn build(command: &mut Command) -> Result<Vec<Binary>> {
    let mut child = command
        .args(["--no-run", "--message-format", "json-render-diagnostics"])
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run cargo")?;
    let output = child.stdout.take().context("cargo has no output")?;
    let mut binaries = Vec::new();
    for line in BufReader::new(output).lines() {
        binaries.extend(binary(&line.context("cannot read what cargo says")?));
    }
    let status = child.wait().context("cannot wait for cargo")?;
    if !status.success() {
        bail!("it ended with {status}");
    }
    Ok(binaries)
}

/// Returns the binary that a message of cargo's tells of, if it does.
fn binary(message: &str) -> Option<Binary> {
    let message: Value = serde_json::from_str(message).ok()?;
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let target = &message["target"];
    let kind = target["kind"][0].as_str()?;
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_path_buf();
    let target = if kind == "test" { target["name"].as_str()? } else { kind };
    Some(Binary { folder, target: target.to_string(), program: message["executable"].as_str()?.into() })
}

/// Runs all binaries, whatever fails, and says which did. Returns the tests that passed at the second try only.
pub(super) fn run(mut binaries: Vec<Binary>, conditions: &Conditions<'_>) -> Result<Vec<String>> {
    let logs = conditions.logs;
    order(&mut binaries);
    std::fs::create_dir_all(logs).with_context(|| format!("cannot create {}", logs.display()))?;
    let (waiting, done) = (Mutex::new(binaries.into_iter().enumerate()), Mutex::new(Vec::new()));
    let work = || -> Result<()> {
        loop {
            let next = waiting.lock().ok().and_then(|mut waiting| waiting.next());
            let Some((number, binary)) = next else { return Ok(()) };
            let outcome = run_one(&binary, conditions, &logs.join(number.to_string()))?;
            if let Ok(mut done) = done.lock() {
                done.push(outcome);
            }
        }
    };
    let ended: Vec<Result<()>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|_| bail!("a worker panicked")))
            .collect()
    });
    let _ = std::fs::remove_dir_all(logs); // what was in it has been shown
    ended.into_iter().collect::<Result<()>>()?;
    let mut outcomes = done.into_inner().unwrap_or_default();
    outcomes.sort_by_key(|outcome| std::cmp::Reverse(outcome.took));
    eprintln!("\n{}", slowest(&outcomes));
    let failed: Vec<&str> =
        outcomes.iter().filter(|outcome| !outcome.passed).map(|outcome| outcome.shown.as_str()).collect();
    if !failed.is_empty() {
        bail!("tests failed in {}", failed.join(", "));
    }
    Ok(outcomes.into_iter().flat_map(|outcome| outcome.unsteady).collect())
}

/// Puts first what takes longest; the rest keeps its order.
fn order(binaries: &mut [Binary]) {
    let place = |binary: &Binary| LONGEST.iter().position(|name| *name == binary.target);
    binaries.sort_by_key(|binary| place(binary).unwrap_or(LONGEST.len()));
}

fn run_one(binary: &Binary, conditions: &Conditions<'_>, log: &Path) -> Result<Outcome> {
    let shown = binary.shown();
    let started = Instant::now();
    let first = run_tests(binary, &[], conditions, log)?;
    let mut outcome = Outcome { shown, took: started.elapsed(), passed: first.passed, unsteady: Vec::new() };
    outcome.tell(&first);
    let failed = if first.passed || !conditions.second_try { Vec::new() } else { failures(&first.said) };
    if (1..=UNLUCKY).contains(&failed.len()) {
        eprintln!("     Trying again what failed in {}: {}", outcome.shown, failed.join(", "));
        let second = run_tests(binary, &failed, conditions, log)?;
        outcome.took = started.elapsed();
        outcome.passed = second.passed;
        outcome.tell(&second);
        outcome.unsteady = failed.iter().map(|test| format!("{}: {test}", outcome.shown)).collect();
    }
    Ok(outcome)
}

/// What one start of a binary gave.
struct Said {
    said: String,
    passed: bool,
    how: String,
}

/// Runs the tests of a binary that are named, or all of them.
fn run_tests(binary: &Binary, named: &[String], conditions: &Conditions<'_>, log: &Path) -> Result<Said> {
    let output = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let errors = output.try_clone().context("cannot write the log twice")?;
    let exactly = if named.is_empty() { &[][..] } else { &["--exact"][..] };
    let status = Command::new(&binary.program)
        .args(exactly)
        .args(named)
        .current_dir(&binary.folder)
        .env("CARGO_MANIFEST_DIR", &binary.folder)
        .envs(conditions.environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .status()
        .with_context(|| format!("cannot run {}", binary.shown()))?;
    let said = std::fs::read(log).unwrap_or_default();
    let said = String::from_utf8_lossy(&said).into_owned();
    Ok(Said { said, passed: status.success(), how: status.to_string() })
}

/// Returns the tests that failed, by the list that a test binary ends with; none if it did not get that far.
fn failures(said: &str) -> Vec<String> {
    let Some((_, list)) = said.rsplit_once("\nfailures:\n") else { return Vec::new() };
    list.lines().map_while(|line| line.strip_prefix("    ")).map(str::to_owned).collect()
}

impl Outcome {
    fn tell(&self, said: &Said) {
        let verdict = if said.passed { String::new() } else { format!(", which FAILED with {}", said.how) };
        eprintln!("     Ran {} in {:.1} s{verdict}\n{}", self.shown, self.took.as_secs_f32(), said.said);
    }
}

impl Binary {
    pub(super) fn is_library(&self) -> bool {
        self.target == "lib"
    }

    /// Returns its name as people know it: `app/propagation`, `store/lib`.
    fn shown(&self) -> String {
        let package = self.folder.file_name().unwrap_or_default().to_string_lossy();
        format!("{package}/{}", self.target)
    }
}

/// Returns how long the longest took, so that whoever wants to make the run shorter knows where to begin.
fn slowest(outcomes: &[Outcome]) -> String {
    const SHOWN: usize = 10;
    let line = |outcome: &Outcome| format!("  {:<28} {:>8.1} s", outcome.shown, outcome.took.as_secs_f32());
    let lines: Vec<String> = outcomes.iter().take(SHOWN).map(line).collect();
    format!("the slowest test binaries, {AT_ONCE} at a time:\n{}", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(target: &str, program: &str) -> Binary {
        Binary { folder: "/w/crates/app".into(), target: target.to_string(), program: program.into() }
    }

    #[test]
    fn binaries_are_found_among_the_messages_of_cargo() {
        let message = |kind: &str, test: bool| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/crates/app/Cargo.toml","target":{{"kind":["{kind}"],
                "name":"propagation"}},"profile":{{"test":{test}}},"executable":"/t/propagation-1"}}"#
            )
        };
        assert_eq!(binary(&message("test", true)), Some(named("propagation", "/t/propagation-1")));
        assert_eq!(binary(&message("lib", true)).map(|found| found.shown()), Some("app/lib".to_string()));
        assert_eq!(binary(&message("bin", false)), None, "a program is not a test");
        assert_eq!(binary(r#"{"reason":"build-finished"}"#), None);
        assert_eq!(binary("not JSON"), None);
    }

    #[test]
    fn what_takes_longest_starts_first() {
        let mut binaries = ["lib", "attacker", "served", "propagation"].map(|target| named(target, ""));
        order(&mut binaries);
        assert_eq!(binaries.map(|binary| binary.target), ["propagation", "attacker", "lib", "served"]);
    }

    #[test]
    fn a_binary_that_fails_is_named_and_the_others_run_all_the_same() {
        let folder = tempfile::tempdir().expect("a folder for the test");
        let binary = |target: &str, program: &str| Binary {
            folder: folder.path().into(),
            target: target.to_string(),
            program: program.into(),
        };
        let binaries = vec![binary("good", "true"), binary("bad", "false"), binary("fine", "true")];
        let conditions =
            Conditions { environment: &[], logs: &folder.path().join("logs"), second_try: false };
        let error = run(binaries, &conditions).expect_err("one fails").to_string();
        assert!(error.contains("/bad") && !error.contains("/good") && !error.contains("/fine"), "{error}");
    }

    /// A binary that prints what it is told and has one test, which fails at first.
    fn unlucky(folder: &Path, passes_again: bool) -> Binary {
        let program = folder.join("unlucky");
        let again = if passes_again { "echo ok; exit 0" } else { "echo no; exit 1" };
        let script = format!(
            "#!/bin/sh\n[ \"$1\" = --exact ] && [ \"$2\" = a::b ] && {{ {again}; }}\n\
             printf 'noise\\n\\nfailures:\\n\\n---- a::b stdout ----\\n\\nfailures:\\n    a::b\\n\\ntest result: FAILED\\n'\nexit 101\n"
        );
        std::fs::write(&program, script).expect("a script");
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .expect("it may run");
        Binary { folder: folder.into(), target: "unlucky".to_string(), program }
    }

    #[test]
    fn finding_29_a_test_that_fails_has_a_second_try_where_that_is_wanted_and_is_named() {
        for (second_try, passes_again, expected) in
            [(true, true, Some(1)), (true, false, None), (false, true, None)]
        {
            let folder = tempfile::tempdir().expect("a folder for the test");
            let logs = folder.path().join("logs");
            let conditions = Conditions { environment: &[], logs: &logs, second_try };
            let unsteady = run(vec![unlucky(folder.path(), passes_again)], &conditions).ok();
            assert_eq!(unsteady.as_ref().map(Vec::len), expected, "{second_try} {passes_again}");
            for test in unsteady.into_iter().flatten() {
                assert!(test.ends_with("/unlucky: a::b"), "{test}");
            }
        }
    }

    #[test]
    fn what_failed_is_read_from_the_end() {
        let said = "x\nfailures:\n\n---- a stdout ----\nfailures:\n    fake\n\nfailures:\n    a\n    b::c\n\ntest result: FAILED.";
        assert_eq!(failures(said), ["a", "b::c"]);
        assert_eq!(failures("killed before the end"), Vec::<String>::new());
    }
}
