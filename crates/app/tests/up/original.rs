//! The official `karmadactl` and ours, line by line, on the same control plane: what they print, what they complain about,
//! how they end.
//!
//! `testdata/cli/invocations.txt` holds the lines, `official.txt` what the official program answered when it was asked last,
//! `differences.txt` where ours answers otherwise, with the reason. In CI ours is held against the recorded answers;
//! `cargo xtask compare cli` asks both and writes the answers down anew. A listed difference that is none any more is a failure.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use clusters::toolchain::{KARMADA, Toolchain};
use regex::Regex;

use crate::process::Up;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/cli")
}

fn read(name: &str) -> String {
    std::fs::read_to_string(folder().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// What a program answered: its status, stdout and stderr.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Answer {
    status: i32,
    out: String,
    error: String,
}

fn lines() -> Vec<String> {
    let text = read("invocations.txt");
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
}

/// Takes a line apart; quotes keep words together.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quoted, mut any) = (Vec::new(), String::new(), false, false);
    for c in line.chars().chain([' ']) {
        match c {
            '\'' => (quoted, any) = (!quoted, true),
            ' ' if !quoted => {
                if any || !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                any = false;
            }
            c => word.push(c),
        }
    }
    words
}

/// What differs from run to run, and what stands for it.
static VOLATILE: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    [
        (r"side(one|two)", "SIDE"),
        (r"(?m)^[IWE]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ ", "LOG "),
        (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "UID"),
        (r"hello-[0-9a-f]{8,10}-[a-z0-9]{5}\b", "hello-POD"),
        (r"kube-api-access-[a-z0-9]{5}", "kube-api-access-X"),
        (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "TIME"),
        (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \+0000 UTC", "TIME"),
        (r"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d \+0000", "TIME"),
        (r"\b\d+\.\d+\.\d+\.\d+(:\d+)?\b", "ADDRESS"),
        (r#"("?resourceVersion"?: )"?\d+"?"#, "${1}N"),
        (r"((?:Resource Version|Generation): +)\d+", "${1}N"),
        (r"\bnode\d\b", "nodeN"),
        (r"\b(eu-west|us-east|ap-south)-[abc]\b", "${1}-Z"),
        (r"(?m)(\s)(?:\d+[smhdy]){1,2}(\s|$)", "${1}AGE${2}"),
        // The widths of columns follow from what is in them.
        (r"(\S) {2,}", "${1}  "),
        (r"(?m) +$", ""),
    ]
    .map(|(pattern, by)| (Regex::new(pattern).expect("a pattern"), by))
    .into()
});

fn plain(text: &str, line: &str) -> String {
    let mut text = text.replace(&folder().display().to_string(), "FOLDER");
    for (pattern, by) in VOLATILE.iter() {
        text = pattern.replace_all(&text, *by).into_owned();
    }
    // Clusters answer in any order.
    if line.starts_with("get ")
        && (line.contains("members") || line.contains("-s all"))
        && !line.contains("-o")
    {
        let mut rows: Vec<&str> = text.lines().collect();
        rows.sort_unstable();
        text = rows.iter().map(|row| format!("{row}\n")).collect();
    }
    text
}

/// A program, the control plane that it talks to, and the namespace that it has for itself.
struct Side<'a> {
    program: PathBuf,
    kubeconfig: &'a Path,
    namespace: &'static str,
}

impl Side<'_> {
    fn run(&self, words: &[String]) -> std::process::Output {
        let mut command = Command::new(&self.program);
        command
            .arg("--kubeconfig")
            .arg(self.kubeconfig)
            .args(words)
            .current_dir(folder())
            .stdin(Stdio::null());
        command.output().expect("the program runs")
    }

    fn answers(&self) -> Vec<Answer> {
        let answer = |line: &String| {
            let words: Vec<String> =
                words(line).iter().map(|word| word.replace("@n", self.namespace)).collect();
            let output = self.run(&words);
            let text = |bytes: &[u8]| plain(&String::from_utf8_lossy(bytes), line);
            let status = output.status.code().unwrap_or(-1);
            Answer { status, out: text(&output.stdout), error: text(&output.stderr) }
        };
        lines().iter().map(answer).collect()
    }

    /// Waits until nothing is left of the namespace: the other program would see it.
    fn clean(&self) {
        let gone = ["delete", "ns", self.namespace, "--ignore-not-found"].map(str::to_owned);
        assert!(self.run(&gone).status.success(), "{} goes", self.namespace);
    }
}

/// A link under the name that the program knows itself by.
fn link(folder: &Path, side: &str, program: &Path) -> PathBuf {
    let place = folder.join(side);
    std::fs::create_dir(&place).expect("a folder");
    let path = place.join("karmadactl");
    std::os::unix::fs::symlink(program, &path).expect("a link");
    path
}

/// The reasons, by line; a reason is indented below its line.
fn reasons() -> BTreeMap<String, String> {
    let mut reasons: BTreeMap<String, String> = BTreeMap::new();
    let mut current = Vec::new();
    let mut reading = false;
    for line in read("differences.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.strip_prefix("    ") {
            Some(reason) => {
                assert!(!current.is_empty(), "a reason without a line: {reason}");
                for line in &current {
                    reasons.entry(String::clone(line)).or_default().push_str(reason);
                }
                reading = true;
            }
            None => {
                if std::mem::take(&mut reading) {
                    current.clear();
                }
                current.push(line.to_owned());
            }
        }
    }
    reasons
}

fn write(answers: &[Answer]) -> String {
    let mut text = String::from(
        "# What the official karmadactl v1.17.1 answered; `cargo xtask compare cli` writes this file.\n",
    );
    for (line, answer) in lines().iter().zip(answers) {
        let _ = writeln!(text, "\n$ {line}\n= {}", answer.status);
        for (sign, body) in [('|', &answer.out), ('!', &answer.error)] {
            for row in body.lines() {
                let _ = writeln!(text, "{sign}{row}");
            }
        }
    }
    text
}

fn recorded() -> BTreeMap<String, Vec<Answer>> {
    let mut found: BTreeMap<String, Vec<Answer>> = BTreeMap::new();
    let mut line = String::new();
    for row in read("official.txt").lines() {
        let (sign, rest) = row.split_at(row.chars().next().map_or(0, char::len_utf8));
        match sign {
            "$" => rest.trim_start().clone_into(&mut line),
            "=" => found.entry(line.clone()).or_default().push(Answer {
                status: rest.trim().parse().expect("a status"),
                out: String::new(),
                error: String::new(),
            }),
            "|" | "!" => {
                let answer = found
                    .get_mut(&line)
                    .and_then(|answers| answers.last_mut())
                    .expect("a line before its answer");
                let body = if sign == "|" { &mut answer.out } else { &mut answer.error };
                let _ = writeln!(body, "{rest}");
            }
            _ => {}
        }
    }
    found
}

/// Holds ours against theirs; returns every complaint.
fn compare(theirs: &[Answer], ours: &[Answer]) -> Vec<String> {
    let reasons = reasons();
    let mut complaints = Vec::new();
    let mut differing: BTreeMap<String, bool> = BTreeMap::new();
    for ((line, theirs), ours) in lines().iter().zip(theirs).zip(ours) {
        // A record ends every line of output with a break.
        let same = |one: &str, other: &str| one.trim_end_matches('\n') == other.trim_end_matches('\n');
        let equal =
            theirs.status == ours.status && same(&theirs.out, &ours.out) && same(&theirs.error, &ours.error);
        *differing.entry(line.clone()).or_default() |= !equal;
        if !equal && !reasons.contains_key(line) {
            complaints.push(format!("$ {line}\ntheirs: {theirs:#?}\nours: {ours:#?}"));
        }
    }
    for line in reasons.keys() {
        match differing.get(line) {
            Some(true) => {}
            Some(false) => complaints.push(format!("$ {line}\nis listed as a difference, and is none")),
            None => complaints.push(format!("$ {line}\nis listed as a difference, and is not an invocation")),
        }
    }
    complaints
}

fn check(complaints: &[String]) {
    assert!(complaints.is_empty(), "{} differences:\n\n{}", complaints.len(), complaints.join("\n\n"));
}

#[test]
fn ours_answers_as_the_official_karmadactl_did() {
    let temporary = tempfile::tempdir().expect("a folder for the test");
    let mut up = Up::start(&temporary.path().join("data"), &[]);
    up.until_it_says("Try, in another terminal");
    let kubeconfig = up.data_dir().join("karmada.kubeconfig");
    let program = link(temporary.path(), "ours", Path::new(env!("CARGO_BIN_EXE_karmada")));
    let ours = Side { program, kubeconfig: &kubeconfig, namespace: "sidetwo" }.answers();
    let mut recorded = recorded();
    let theirs: Vec<Answer> = lines()
        .iter()
        .map(|line| {
            let answers = recorded.get_mut(line).filter(|answers| !answers.is_empty());
            answers
                .unwrap_or_else(|| panic!("{line} was never asked; run `cargo xtask compare cli`"))
                .remove(0)
        })
        .collect();
    up.interrupt();
    check(&compare(&theirs, &ours));
}

#[test]
#[ignore = "asks the official program as well: `cargo xtask compare cli`"]
fn ours_answers_as_the_official_karmadactl_does() {
    let temporary = tempfile::tempdir().expect("a folder for the test");
    let official = Toolchain::from_env()
        .and_then(|t| t.ensure_program(&KARMADA, "karmadactl"))
        .expect("karmadactl builds");
    let mut up = Up::start(&temporary.path().join("data"), &[]);
    up.until_it_says("Try, in another terminal");
    let kubeconfig = up.data_dir().join("karmada.kubeconfig");
    let theirs = Side {
        program: link(temporary.path(), "theirs", &official),
        kubeconfig: &kubeconfig,
        namespace: "sideone",
    };
    let program = link(temporary.path(), "ours", Path::new(env!("CARGO_BIN_EXE_karmada")));
    let ours = Side { program, kubeconfig: &kubeconfig, namespace: "sidetwo" };
    let expected = theirs.answers();
    theirs.clean();
    std::fs::write(folder().join("official.txt"), write(&expected)).expect("the answers are written down");
    let given = ours.answers();
    up.interrupt();
    let complaints = compare(&expected, &given);
    let count = lines().len();
    println!("{count} lines, {} listed differences, {} others", reasons().len(), complaints.len());
    check(&complaints);
}
