//! Decisions against expected results, one file per topic in `testdata/`.
//!
//! A file has fleets (lists of Cluster objects) and cases (a binding's spec and status, and what must come out). Each file
//! says in `about` where its expected results come from. Set `SCHEDULER_CASES` to a further file in the same format to
//! run more cases than are kept here.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use api::cluster::Cluster;
use api::features::{Features, find};
use api::work::{Component, ResourceBinding, ResourceBindingSpec, ResourceBindingStatus, TargetCluster};
use jiff::Timestamp;
use scheduler::{Assumptions, Cause, Fleet, Gates, Groups, Options, Registry, Scheduler, World};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    about: String,
    fleets: BTreeMap<String, Vec<Cluster>>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Case {
    name: String,
    fleet: String,
    spec: ResourceBindingSpec,
    #[serde(default)]
    status: ResourceBindingStatus,
    #[serde(default)]
    gates: BTreeMap<String, bool>,
    #[serde(default)]
    plugins: Option<Vec<String>>,
    #[serde(default)]
    enable_empty_workload_propagation: bool,
    #[serde(default)]
    bindings: Vec<ResourceBinding>,
    #[serde(default)]
    assumed: Vec<Assumed>,
    expect: Expected,
    #[serde(default)]
    differs: Option<Differs>,
}

/// What comes out here instead, on purpose.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Differs {
    why: String,
    expect: Expected,
}

/// A workload of another binding that was placed but is not reported yet.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Assumed {
    binding: String,
    cluster: String,
    namespace: String,
    components: Vec<Component>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    #[serde(default)]
    clusters: Vec<TargetCluster>,
    /// `fit`, `unschedulable` or `error`; absent on success.
    #[serde(default)]
    cause: Option<String>,
    #[serde(default)]
    message: Option<String>,
}

fn decide(case: &Case, fleet: &Fleet) -> Expected {
    let features = case.gates.iter().fold(Features::default(), |features, (name, on)| {
        features.with(find(name).unwrap_or_else(|| panic!("{}: no gate {name}", case.name)), *on)
    });
    let gates = Gates::from(&features);
    let mut registry = Registry::in_tree(gates);
    if let Some(list) = &case.plugins {
        registry = registry.enable(list);
    }
    let scheduler = Scheduler::new(Options {
        gates,
        registry,
        propagate_empty: case.enable_empty_workload_propagation,
        meter: None,
    });
    let mut workloads = Groups::default();
    for binding in &case.bindings {
        workloads.see(binding);
    }
    let now = Timestamp::UNIX_EPOCH;
    let mut assumptions = Assumptions::default();
    for assumed in &case.assumed {
        let mut spec = ResourceBindingSpec { components: assumed.components.clone(), ..Default::default() };
        spec.resource.namespace = assumed.namespace.clone();
        let target = TargetCluster { name: assumed.cluster.clone(), ..Default::default() };
        assumptions.assume(&assumed.binding, &spec, &[target], now);
    }
    let world = World { fleet, workloads: &workloads, assumptions: &assumptions, estimators: &[], now };
    match scheduler.decide(world, &case.spec, &case.status, &case.status.scheduler_observed_affinity_name) {
        Ok(decision) => {
            assert!(!decision.diagnosis.report().to_string().is_empty(), "{}: no diagnosis", case.name);
            Expected { clusters: decision.clusters, cause: None, message: None }
        }
        Err(failure) => {
            let cause = match failure.cause {
                Cause::NoClusterFit => "fit",
                Cause::Unschedulable => "unschedulable",
                Cause::Other => "error",
            };
            Expected { clusters: Vec::new(), cause: Some(cause.to_owned()), message: Some(failure.message) }
        }
    }
}

/// Runs the cases of one file; returns how many there were and what went wrong.
fn check(path: &Path) -> (usize, Vec<String>) {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let file: File =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(!file.about.is_empty(), "{} does not say where its results come from", path.display());
    let mut fleets = BTreeMap::new();
    let mut wrong = Vec::new();
    for case in &file.cases {
        let fleet = fleets.entry(&case.fleet).or_insert_with(|| {
            let clusters =
                file.fleets.get(&case.fleet).unwrap_or_else(|| panic!("{}: no such fleet", case.name));
            Fleet::new(clusters.iter().cloned().map(Arc::new))
        });
        let got = decide(case, fleet);
        let expected = case.differs.as_ref().map_or(&case.expect, |differs| {
            assert!(!differs.why.is_empty() && differs.expect != case.expect, "{}: no difference", case.name);
            &differs.expect
        });
        if got != *expected {
            wrong.push(format!("{}\n  expected {expected:?}\n  got      {got:?}", case.name));
        }
    }
    (file.cases.len(), wrong)
}

#[test]
fn all_cases_come_out_as_expected() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let mut paths: Vec<_> = std::fs::read_dir(&folder)
        .expect("testdata exists")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    paths.extend(std::env::var_os("SCHEDULER_CASES").map(Into::into));
    paths.sort();
    let (mut cases, mut wrong) = (0, Vec::new());
    for path in paths {
        let (count, failures) = check(&path);
        cases += count;
        wrong.extend(failures.into_iter().map(|failure| format!("{}: {failure}", path.display())));
    }
    assert!(cases >= 300, "only {cases} cases");
    assert!(wrong.is_empty(), "{} of {cases} cases differ:\n{}", wrong.len(), wrong.join("\n"));
}
