//! What became of the specs: the score file by file, with reasons, and the table of all specs in the docs.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::specs::{Expected, Spec};

/// What became of one spec.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    Passed,
    /// It is listed as failing, but passes.
    Mended,
    Failed,
    /// It fails for a reason that is listed, or was not tried for that reason.
    Known(&'static str),
    /// It was not run.
    LeftOut(&'static str),
}

/// Says all that there is to say, so such specs are only counted.
const NOT_ASKED_FOR: &str = "not asked for";

/// Reads a report of ginkgo.
pub(super) fn read(path: &Path) -> Result<Value> {
    let text = fs::read_to_string(path)
        .context("the suite wrote no report: it ended before the first spec; see its log")?;
    serde_json::from_str(&text).context("the report is not readable")
}

/// What was run: on which members, and whether all files were chosen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chosen {
    pub(super) pods: bool,
    pub(super) all: bool,
}

/// Prints the score, and fails unless everything is as it is listed.
pub(super) fn judge(report: &Value, chosen: Chosen) -> Result<()> {
    let outcomes = outcomes(report, chosen.pods);
    println!("{}", score(&outcomes, chosen.all));
    let named = |wanted: &Outcome| {
        let specs = outcomes.iter().filter(|(_, outcome)| outcome == wanted);
        specs.map(|(spec, _)| format!("{}: {}", spec.file, spec.name)).collect::<Vec<_>>()
    };
    let (failed, mended) = (named(&Outcome::Failed), named(&Outcome::Mended));
    if !mended.is_empty() {
        println!(
            "listed as failing in crates/xtask/src/e2e/specs.rs, but they pass:\n  {}",
            mended.join("\n  ")
        );
    }
    if !failed.is_empty() {
        bail!("failed:\n  {}", failed.join("\n  "));
    }
    if !mended.is_empty() {
        bail!("take them off the list, and write the table again (`cargo xtask e2e --list`)");
    }
    if named(&Outcome::Passed).is_empty() {
        bail!("no spec was run");
    }
    Ok(())
}

/// Returns the score as text. Unless `all`, files of which nothing was run are not part of it.
fn score(outcomes: &[(Spec, Outcome)], all: bool) -> String {
    let mut files: BTreeMap<&str, [usize; 4]> = BTreeMap::new();
    for (spec, outcome) in outcomes {
        let counts = files.entry(&spec.file).or_default();
        counts[match outcome {
            Outcome::Passed | Outcome::Mended => 0,
            Outcome::Failed => 1,
            Outcome::Known(_) => 2,
            Outcome::LeftOut(_) => 3,
        }] += 1;
    }
    files.retain(|_, [passed, failed, ..]| all || *passed + *failed > 0);
    let mut text =
        format!("{:<36} {:>6} {:>6} {:>6} {:>8}\n", "file", "passed", "failed", "known", "left out");
    let mut sums = [0; 4];
    for (file, counts) in &files {
        let [passed, failed, known, left_out] = counts;
        let _ = writeln!(text, "{file:<36} {passed:>6} {failed:>6} {known:>6} {left_out:>8}");
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    let [passed, failed, known, left_out] = sums;
    let _ = writeln!(
        text,
        "{passed} of {} specs passed, {failed} failed, {known} are known to fail, {left_out} were left out",
        sums.iter().sum::<usize>()
    );
    for (title, pick) in [("known to fail", true), ("left out", false)] {
        let mut reasons: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (spec, outcome) in outcomes.iter().filter(|(spec, _)| files.contains_key(spec.file.as_str())) {
            match outcome {
                Outcome::Known(reason) if pick => reasons.entry(reason).or_default(),
                Outcome::LeftOut(reason) if !pick && *reason != NOT_ASKED_FOR => {
                    reasons.entry(reason).or_default()
                }
                _ => continue,
            }
            .push(format!("{}: {}", spec.file, spec.name));
        }
        for (reason, specs) in reasons {
            let _ = writeln!(text, "{title}: {reason}\n  {}", specs.join("\n  "));
        }
    }
    text
}

fn outcomes(report: &Value, pods: bool) -> Vec<(Spec, Outcome)> {
    let mut outcomes = Vec::new();
    for entry in report[0]["SpecReports"].as_array().into_iter().flatten() {
        let (spec, state) = (spec(entry), entry["State"].as_str().unwrap_or("skipped"));
        let expected = spec.expected();
        let run = !matches!(state, "skipped" | "pending");
        if entry["LeafNodeType"] != "It" {
            // The suite's own beginning and end count only if they fail.
            if run && state != "passed" {
                let name = entry["LeafNodeType"].as_str().unwrap_or("").to_string();
                outcomes.push((Spec { name, ..spec }, Outcome::Failed));
            }
            continue;
        }
        let outcome = match (state, expected) {
            ("passed", Expected::Fails(_)) => Outcome::Mended,
            ("passed", _) => Outcome::Passed,
            (_, Expected::Fails(reason)) => Outcome::Known(reason),
            (_, Expected::PassesOnPods) if !run && !pods => {
                Outcome::LeftOut("needs real pods: run with --pods")
            }
            _ if !run => Outcome::LeftOut(NOT_ASKED_FOR),
            _ => Outcome::Failed,
        };
        outcomes.push((spec, outcome));
    }
    outcomes
}

fn spec(entry: &Value) -> Spec {
    let path = entry["LeafNodeLocation"]["FileName"].as_str().unwrap_or("");
    let file = path.rsplit('/').next().unwrap_or(path);
    let texts =
        entry["ContainerHierarchyTexts"].as_array().into_iter().flatten().chain([&entry["LeafNodeText"]]);
    let words: Vec<&str> = texts.filter_map(Value::as_str).flat_map(str::split_whitespace).collect();
    Spec { file: file.strip_suffix("_test.go").unwrap_or(file).to_string(), name: words.join(" ") }
}

/// Returns all specs of a report, run or not.
fn specs(report: &Value) -> Vec<Spec> {
    let entries = report[0]["SpecReports"].as_array().into_iter().flatten();
    let mut specs: Vec<Spec> = entries.filter(|entry| entry["LeafNodeType"] == "It").map(spec).collect();
    specs.sort();
    specs
}

/// The table stands between these lines.
const BEGIN: &str = "<!-- The table is written by `cargo xtask e2e --list`. -->";
const END: &str = "<!-- End of the table. -->";

/// Writes the table of all specs that `report` names into `page`.
pub(super) fn write_table(report: &Value, page: &Path) -> Result<()> {
    let text = fs::read_to_string(page).with_context(|| format!("cannot read {}", page.display()))?;
    let (before, rest) = text.split_once(BEGIN).context("the page has no place for the table")?;
    let (_, after) = rest.split_once(END).context("the page does not say where the table ends")?;
    let table = table(&specs(report));
    fs::write(page, format!("{before}{BEGIN}\n{table}{END}{after}"))
        .with_context(|| format!("cannot write {}", page.display()))
}

fn table(specs: &[Spec]) -> String {
    let passing = specs.iter().filter(|spec| spec.expected() == Expected::Passes).count();
    let on_pods = specs.iter().filter(|spec| spec.expected() == Expected::PassesOnPods).count();
    let mut text = format!(
        "\nOf {} specs, {passing} pass on any members and {on_pods} more on members with real pods.\n\n| File | Spec | Needs | Here |\n|---|---|---|---|\n",
        specs.len()
    );
    for spec in specs {
        let _ = writeln!(text, "{}", row(spec));
    }
    text.push('\n');
    text
}

fn row(spec: &Spec) -> String {
    let here = match spec.expected() {
        Expected::Passes => "passes",
        Expected::PassesOnPods => "passes with `--pods`",
        Expected::Fails(reason) => reason,
    };
    format!("| {} | {} | {} | {here} |", spec.file, escape(&spec.name), spec.need().describe())
}

/// Keeps a table's bars and a page's markup out of names.
fn escape(name: &str) -> String {
    name.replace('|', "\\|").replace('[', "\\[").replace('<', "\\<").replace('`', "'")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::specs::all_parts, *};

    fn entry(file: &str, kind: &str, name: &str, state: &str) -> Value {
        json!({
            "LeafNodeLocation": {"FileName": format!("/suite/{file}_test.go")},
            "ContainerHierarchyTexts": ["Some testing"],
            "LeafNodeType": kind, "LeafNodeText": name, "State": state,
        })
    }

    fn report(entries: &[Value]) -> Value {
        json!([{ "SpecReports": entries }])
    }

    #[test]
    fn specs_are_counted_by_file_and_outcome_with_reasons() {
        let report = report(&[
            entry("suite", "SynchronizedBeforeSuite", "", "passed"),
            entry("a", "It", "works", "passed"),
            entry("a", "It", "breaks", "failed"),
            entry("a", "It", "waits", "skipped"),
            entry("metrics", "It", "looks elsewhere", "skipped"),
            entry("karmadactl", "It", "should get logs", "skipped"),
            entry("karmadactl", "It", "speaks", "passed"),
            entry("other", "It", "elsewhere", "skipped"),
        ]);
        let text = score(&outcomes(&report, false), false);
        let line = |start: &str| {
            let found = text.lines().find(|line| line.starts_with(start)).unwrap_or_default();
            found.split_whitespace().skip(1).map(String::from).collect::<Vec<_>>()
        };
        assert_eq!(line("a "), ["1", "1", "0", "1"]);
        assert_eq!(line("metrics "), Vec::<String>::new(), "nothing of this file was run");
        assert!(
            text.contains("2 of 5 specs passed, 1 failed, 0 are known to fail, 2 were left out"),
            "{text}"
        );
        assert!(
            text.contains("needs real pods: run with --pods\n  karmadactl: Some testing should get logs")
        );
        let all = score(&outcomes(&report, false), true);
        assert!(all.contains("2 of 7 specs passed, 1 failed, 1 are known to fail, 3 were left out"), "{all}");
        assert!(all.contains("ours is one process\n  metrics: Some testing looks elsewhere"), "{all}");
    }

    #[test]
    fn a_failure_and_a_listed_spec_that_passes_are_both_errors() {
        let judge = |entries: &[Value]| {
            judge(&report(entries), Chosen { pods: false, all: false }).map_err(|error| error.to_string())
        };
        assert_eq!(judge(&[entry("a", "It", "works", "passed")]), Ok(()));
        let failed = judge(&[entry("a", "It", "works", "passed"), entry("a", "It", "breaks", "panicked")]);
        assert!(failed.is_err_and(|said| said.contains("a: Some testing breaks")));
        let mended = judge(&[entry("metrics", "It", "looks", "passed"), entry("a", "It", "works", "passed")]);
        assert!(mended.is_err_and(|said| said.contains("take them off the list")));
        let end = entry("suite", "SynchronizedAfterSuite", "", "timedout");
        assert!(
            judge(&[entry("a", "It", "works", "passed"), end]).is_err_and(|said| said.contains("AfterSuite"))
        );
        assert!(
            judge(&[entry("a", "It", "works", "skipped")])
                .is_err_and(|said| said.contains("no spec was run"))
        );
    }

    /// The list in `specs.rs` and the table in the docs say the same about every spec, and every line of the list is about some spec.
    #[test]
    fn the_table_in_the_docs_agrees_with_the_list() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides/real-clusters.md");
        let text = fs::read_to_string(page).expect("the page");
        let table = text.split_once(BEGIN).and_then(|(_, rest)| rest.split_once(END)).expect("a table").0;
        let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
        assert!(rows.len() > 200, "{} rows", rows.len());
        let mut specs = Vec::new();
        for line in rows {
            let cells: Vec<&str> = line.trim_matches(['|', ' ']).split(" | ").collect();
            let name = cells[1].replace("\\|", "|").replace("\\[", "[").replace("\\<", "<");
            let spec = Spec { file: cells[0].to_string(), name };
            assert_eq!(line, row(&spec), "run `cargo xtask e2e --list`");
            specs.push(spec);
        }
        for (file, part) in all_parts() {
            let about = specs.iter().any(|spec| spec.file == file && spec.name.contains(part));
            // Karmada v1.17.1 does not have it yet; the list does for the next version.
            assert!(about || part == "OverflowAffinities", "no spec of {file} has {part:?} in its name");
        }
    }
}
