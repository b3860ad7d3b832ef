//! Expressions whose results were observed on Kubernetes, answered by ours.
//!
//! `testdata/*.txt` holds blocks. `@` names the setting (in `settings.json`) of those that follow, and perhaps a limit of costs. An
//! expression stands behind `>`, its further lines behind `|`. Then come the lines of what is wrong with it, behind `!`, or its type
//! and estimate behind `:`, and below that its cost and result behind `=`, its cost and error behind `x`, or, behind `p`, why it
//! cannot be evaluated at all.

mod observed;

use std::fs;
use std::path::Path;

use observed::{Answer, Setting, answer};
use serde_json::Value;

#[test]
fn expressions_that_do_not_follow_the_grammar_are_refused_in_the_same_words() {
    check("syntax.txt", 100);
}

#[test]
fn expressions_that_cannot_work_are_refused_in_the_same_words() {
    check("types.txt", 100);
}

#[test]
fn expressions_of_policies_have_the_same_results_and_costs() {
    check("values.txt", 300);
}

#[test]
fn expressions_of_rules_have_the_same_estimates_results_and_costs() {
    check("rules.txt", 200);
}

/// Answers all expressions of a file, which are at least so many.
#[track_caller]
fn check(file: &str, least: usize) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let settings: Value =
        serde_json::from_str(&fs::read_to_string(folder.join("settings.json")).unwrap()).unwrap();
    let text = fs::read_to_string(folder.join(file)).unwrap();
    let mut setting = (Setting::default(), cel::PER_CALL);
    let (mut count, mut wrong) = (0, Vec::new());
    for block in text.split("\n\n").map(str::trim_end).filter(|block| !block.is_empty()) {
        let block: Vec<&str> = block.lines().filter(|line| !line.starts_with('#')).collect();
        match block.first() {
            Some(line) if line.starts_with("@ ") => setting = named(&settings, &line[2..]),
            Some(_) => {
                let (source, expected) =
                    block.split_at(block.iter().take_while(|line| line.starts_with(['>', '|'])).count());
                let source: Vec<&str> = source.iter().map(|line| line.get(2..).unwrap_or("")).collect();
                let source = source.join("\n");
                count += 1;
                let found = written(&answer(&setting.0, &source, setting.1));
                if found != expected {
                    wrong.push(format!(
                        "> {source}\nexpected\n{}\nfound\n{}",
                        expected.join("\n"),
                        found.join("\n")
                    ));
                }
            }
            None => {}
        }
    }
    assert!(count >= least, "{file} has {count} expressions only");
    assert!(wrong.is_empty(), "{} of {count} in {file} differ:\n\n{}", wrong.len(), wrong.join("\n\n"));
}

fn named(settings: &Value, name: &str) -> (Setting, u64) {
    let (name, limit) = name.split_once(" limit ").unwrap_or((name, ""));
    let found = &settings[name];
    assert!(found.is_object(), "no setting {name}");
    let setting = Setting {
        schema: found.get("schema").cloned(),
        value: found["value"].clone(),
        old: found.get("old").cloned(),
        makes_objects: found["makes_objects"] == true,
        root: false,
        optional_old: found["optional_old"] == true,
    };
    (setting, limit.parse().unwrap_or(cel::PER_CALL))
}

/// Returns an answer in the lines of the files.
fn written(answer: &Answer) -> Vec<String> {
    if !answer.issues.is_empty() {
        return answer.issues.split('\n').map(|line| format!("! {line}").trim_end().to_owned()).collect();
    }
    let mut lines = vec![format!(": {}, {}", answer.ty, answer.estimate)];
    let cost = answer.cost.unwrap_or(0);
    if !answer.program.is_empty() {
        lines.push(format!("p {}", answer.program));
    } else if answer.error.is_empty() {
        lines.push(format!("= {cost} {}", answer.result));
    } else {
        lines.push(format!("x {cost} {}", answer.error));
    }
    lines
}
