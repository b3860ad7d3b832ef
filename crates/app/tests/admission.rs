//! Every kind through the server: what is stored after defaults, and what is refused in which words.
//!
//! The cases are in `testdata/admission/*.yaml`, the expected outcomes in `testdata/admission/expected/`. The same cases
//! run on our server with its plug-in, on a real kube-apiserver with `karmada webhook` behind it, and on demand on that
//! kube-apiserver with the original webhook server. `KARMADA_REFRESH=1` writes the outcomes anew.

#[path = "admission/cases.rs"]
mod cases;
#[path = "admission/targets.rs"]
mod targets;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use cases::File;
use targets::Target;

/// Kinds that the original serves by API servers of their own, not behind its webhook server.
const OWN_SERVERS: [&str; 2] = ["cluster", "resourceregistry"];

/// Runs all files side by side and returns what came out differently, and what came out.
async fn run(target: &Target, files: &[File]) -> BTreeMap<String, BTreeMap<String, Value>> {
    let outcomes = futures::future::join_all(files.iter().map(|file| async {
        let mut outcomes = BTreeMap::new();
        target.prepare(file).await;
        for case in &file.cases {
            outcomes.insert(case.name.clone(), target.outcome(file, case).await);
        }
        (file.name.clone(), outcomes)
    }))
    .await;
    outcomes.into_iter().collect()
}

fn compare(outcomes: &BTreeMap<String, BTreeMap<String, Value>>) {
    if std::env::var_os("KARMADA_REFRESH").is_some() {
        for (file, outcomes) in outcomes {
            cases::write_expected(file, outcomes);
        }
        return;
    }
    let mut differences = Vec::new();
    for (file, outcomes) in outcomes {
        let expected = cases::read_expected(file);
        for (case, outcome) in outcomes {
            if expected.get(case) != Some(outcome) {
                let wanted = expected.get(case).unwrap_or(&Value::Null);
                differences.push(format!("{file}/{case}\n  expected {wanted}\n  but got  {outcome}"));
            }
        }
    }
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
}

/// Returns where two outcomes differ, as JSON pointers: the smallest parts that both have and that are not the same, and what
/// only one of them has.
fn differing(one: &Value, other: &Value) -> Vec<String> {
    let mut found = Vec::new();
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            let keys: BTreeSet<&String> = one.keys().chain(other.keys()).collect();
            for key in keys {
                let token = key.replace('~', "~0").replace('/', "~1");
                match (one.get(key), other.get(key)) {
                    (Some(one), Some(other)) => {
                        found.extend(
                            differing(one, other).into_iter().map(|below| format!("/{token}{below}")),
                        );
                    }
                    _ => found.push(format!("/{token}")),
                }
            }
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            for (index, (one, other)) in one.iter().zip(other).enumerate() {
                found.extend(differing(one, other).into_iter().map(|below| format!("/{index}{below}")));
            }
        }
        _ if one == other => {}
        _ => found.push(String::new()),
    }
    found
}

#[test]
fn differences_are_told_by_field() {
    let ours = json!({"refused": {"code": 422, "causes": [{"a": 1}, {"a": 2}], "x/y": 1}});
    let theirs = json!({"refused": {"code": 400, "causes": [{"a": 1}, {"a": 3}], "more": []}});
    let found = differing(&ours, &theirs);
    assert_eq!(found, ["/refused/causes/1/a", "/refused/code", "/refused/more", "/refused/x~1y"]);
    assert!(differing(&ours, &ours).is_empty());
    assert_eq!(differing(&ours, &json!({"stored": {}})), ["/refused", "/stored"]);
}

#[test]
fn there_are_enough_cases_of_every_kind() {
    let files = cases::read_all();
    let total: usize = files.iter().map(|file| file.cases.len()).sum();
    assert!(total >= 250, "{total} cases");
    for file in &files {
        let expected: Vec<String> = cases::read_expected(&file.name).into_keys().collect();
        let cases: Vec<String> = file.cases.iter().map(|case| case.name.clone()).collect();
        assert_eq!(cases, expected, "{}: every case has an outcome, every outcome a case", file.name);
    }
    for definition in api::crd::all().into_iter().chain(api::crd::aggregated()) {
        let kind = definition["spec"]["names"]["kind"].as_str().unwrap_or_default().to_lowercase();
        let file =
            files.iter().find(|file| file.name == kind).unwrap_or_else(|| panic!("no cases for {kind}"));
        let expected = cases::read_expected(&kind);
        for name in ["minimal", "full"] {
            assert!(
                expected.get(name).is_some_and(|outcome| outcome.get("stored").is_some()),
                "{kind}: {name}"
            );
        }
        let refused = file
            .cases
            .iter()
            .filter(|case| expected.get(&case.name).is_some_and(|outcome| outcome.get("refused").is_some()));
        assert!(refused.count() >= 5, "{kind}: fewer than five wrong objects");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn our_server_gives_the_expected_answers() {
    let target = Target::ours().await;
    compare(&run(&target, &cases::read_all()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kube_apiserver_with_our_webhook_gives_the_expected_answers() {
    let Some(target) = Target::kube_apiserver(targets::Webhook::Ours).await else { return };
    compare(&run(&target, &cases::read_all()).await);
    target.end().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the original karmada-webhook; run `cargo xtask compare webhook`"]
async fn the_original_webhook_gives_the_expected_answers() {
    let Some(target) = Target::kube_apiserver(targets::Webhook::Original).await else { return };
    let files: Vec<File> =
        cases::read_all().into_iter().filter(|file| !OWN_SERVERS.contains(&file.name.as_str())).collect();
    let mut outcomes = run(&target, &files).await;
    let mut wrong = Vec::new();
    for file in &files {
        let expected = cases::read_expected(&file.name);
        for case in &file.cases {
            let Some(differs) = &case.differs else { continue };
            let theirs = outcomes.get_mut(&file.name).and_then(|outcomes| outcomes.remove(&case.name));
            let (ours, theirs) = (&expected[&case.name], theirs.expect("the case was run"));
            let found = differing(ours, &theirs);
            if found != differs.at {
                let (name, at, why) = (&case.name, &differs.at, &differs.why);
                wrong.push(format!(
                    "{}/{name} should differ at {at:?} ({why}), and does at {found:?}\n  ours     {ours}\n  original {theirs}",
                    file.name
                ));
            }
        }
    }
    target.end().await;
    assert!(wrong.is_empty(), "{} known differences are other ones:\n{}", wrong.len(), wrong.join("\n"));
    compare(&outcomes);
}
