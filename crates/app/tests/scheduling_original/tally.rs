//! What was compared: which outcomes differ, what may differ, and how often everything that matters came up.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

const APPLIED: &str = "policy.karmada.io/applied-placement";

/// What counts of a decision.
#[derive(Debug, Clone, PartialEq)]
struct Outcome {
    clusters: Value,
    applied: Value,
    affinity: Value,
    status: Value,
    reason: Value,
    message: String,
}

impl Outcome {
    fn of(binding: &Value) -> Self {
        let conditions = binding["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
        let scheduled = conditions.iter().find(|one| one["type"] == "Scheduled").unwrap_or(&Value::Null);
        Self {
            clusters: binding["spec"]["clusters"].clone(),
            applied: binding["metadata"]["annotations"][APPLIED].clone(),
            affinity: binding["status"]["schedulerObservingAffinityName"].clone(),
            status: scheduled["status"].clone(),
            reason: scheduled["reason"].clone(),
            message: scheduled["message"].as_str().unwrap_or_default().to_owned(),
        }
    }
}

/// One line of the summary.
#[derive(Debug, Default)]
struct Count {
    decisions: usize,
    placed: usize,
    failed: usize,
    differ: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) decisions: usize,
    outcomes: BTreeMap<String, usize>,
    /// Decisions by what they were about.
    facts: BTreeMap<String, Count>,
    reasons: usize,
    order: usize,
    cause: usize,
    pub(crate) differences: Vec<String>,
}

/// What both schedulers were given.
pub(crate) struct Input<'a> {
    /// Fleet, round and name.
    pub(crate) at: String,
    pub(crate) binding: &'a Value,
    pub(crate) clusters: &'a [Value],
    /// What happened to the binding since the last round.
    pub(crate) change: &'static str,
}

impl Tally {
    pub(crate) fn compare(&mut self, input: &Input<'_>, original: &Value, ours: &Value) {
        self.decisions += 1;
        let (theirs, mut ours) = (Outcome::of(original), Outcome::of(ours));
        let reason = theirs.reason.as_str().unwrap_or("nothing to do").to_owned();
        *self.outcomes.entry(reason).or_default() += 1;
        if ours.reason == "Unschedulable"
            && theirs.reason == "SchedulerError"
            && ours.message == theirs.message
        {
            self.cause += 1;
            ours.reason = theirs.reason.clone();
        }
        if ours.message != theirs.message && same_but_for_reasons(&ours.message, &theirs.message) {
            self.reasons += 1;
            ours.message = theirs.message.clone();
        }
        if ours.clusters != theirs.clusters && sorted(&ours.clusters) == sorted(&theirs.clusters) {
            self.order += 1;
            ours.clusters = theirs.clusters.clone();
        }
        let differ = ours != theirs;
        for fact in facts(input) {
            let count = self.facts.entry(fact).or_default();
            count.decisions += 1;
            count.placed += usize::from(theirs.status == "True");
            count.failed += usize::from(theirs.status == "False");
            count.differ += usize::from(differ);
        }
        if differ {
            let (at, binding) = (&input.at, input.binding);
            let difference =
                format!("{at}\n  input    {binding}\n  original {theirs:?}\n  ours     {ours:?}");
            eprintln!("{difference}");
            self.differences.push(difference);
        }
    }

    /// Returns the whole result as text.
    pub(crate) fn summary(&self) -> String {
        let Self { decisions, outcomes, facts, reasons, order, cause, differences } = self;
        let mut text = format!(
            "{decisions} decisions: {outcomes:?}; \
             allowed to differ: {reasons} in reasons, {order} in order, {cause} in cause; {} differ\n",
            differences.len()
        );
        let _ = writeln!(text, "{:62} decisions  placed  failed  differ", "");
        for (fact, Count { decisions, placed, failed, differ }) in facts {
            let _ = writeln!(text, "{fact:62} {decisions:9} {placed:7} {failed:7} {differ:7}");
        }
        text
    }

    /// Returns what never came up though it should have.
    pub(crate) fn missing(&self) -> Vec<&'static str> {
        EXPECTED.iter().filter(|fact| !self.facts.contains_key(**fact)).copied().collect()
    }
}

/// What a full run has to have seen.
const EXPECTED: &[&str] = &[
    "affinity: by groups, several",
    "affinity: by groups, one",
    "affinity: by one rule",
    "affinity: none",
    "change: another placement",
    "change: evicted from a cluster",
    "change: fresh start",
    "change: new",
    "change: scaled down",
    "change: scaled up",
    "cluster: being deleted",
    "cluster: without the API",
    "cluster: with an untolerated taint",
    "spread: cluster",
    "spread: none",
    "spread: provider",
    "spread: region",
    "spread: region and cluster",
    "spread: zone",
    "strategy: Aggregated",
    "strategy: Duplicated",
    "strategy: dynamic weight",
    "strategy: evenly",
    "strategy: none given",
    "strategy: static weight",
    "what: cluster-scoped",
    "what: with replicas",
    "what: without replicas",
];

/// Returns what a decision is about.
fn facts(input: &Input<'_>) -> Vec<String> {
    let (spec, placement) = (&input.binding["spec"], &input.binding["spec"]["placement"]);
    let scheduling = &placement["replicaScheduling"];
    let weights = &scheduling["weightPreference"];
    let strategy = match (
        scheduling["replicaSchedulingType"].as_str(),
        scheduling["replicaDivisionPreference"].as_str(),
    ) {
        (None, _) => "none given",
        (Some("Duplicated"), _) => "Duplicated",
        (_, Some("Aggregated")) => "Aggregated",
        _ if weights["dynamicWeight"].is_string() => "dynamic weight",
        _ if weights["staticWeightList"].is_array() => "static weight",
        _ => "evenly",
    };
    let what = match (&input.binding["kind"], &spec["replicas"]) {
        (kind, _) if kind == "ClusterResourceBinding" => "cluster-scoped",
        (_, replicas) if replicas.is_number() => "with replicas",
        _ => "without replicas",
    };
    let mut facts = vec![
        format!("strategy: {strategy}"),
        format!("what: {what}"),
        format!("change: {}", input.change),
        format!("strategy and change: {strategy}, {}", input.change),
    ];
    let affinity = match placement["clusterAffinities"].as_array().map(Vec::len) {
        Some(1) => "by groups, one",
        Some(_) => "by groups, several",
        None if placement["clusterAffinity"].is_object() => "by one rule",
        None => "none",
    };
    facts.push(format!("affinity: {affinity}"));
    let fields: Vec<&str> = placement["spreadConstraints"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|constraint| constraint["spreadByField"].as_str())
        .collect();
    match (fields.contains(&"region"), fields.contains(&"cluster")) {
        (true, true) => facts.push("spread: region and cluster".to_owned()),
        (true, false) => facts.push("spread: region".to_owned()),
        (false, true) => facts.push("spread: cluster".to_owned()),
        (false, false) if fields.is_empty() => facts.push("spread: none".to_owned()),
        (false, false) => {}
    }
    let further = fields.iter().filter(|field| ["zone", "provider"].contains(field));
    facts.extend(further.map(|field| format!("spread: {field}")));
    facts.extend(about_clusters(input).into_iter().map(|what| format!("cluster: {what}")));
    facts
}

/// Returns what some cluster is like that the binding is not on yet.
fn about_clusters(input: &Input<'_>) -> Vec<&'static str> {
    let spec = &input.binding["spec"];
    let targets: Vec<&Value> =
        spec["clusters"].as_array().into_iter().flatten().map(|target| &target["name"]).collect();
    let others = || input.clusters.iter().filter(|cluster| !targets.contains(&&cluster["metadata"]["name"]));
    // The only toleration that bindings are given is for every taint with the key `k`.
    let tolerant = spec["placement"]["clusterTolerations"].is_array();
    let untolerated = |cluster: &Value| {
        let taints = cluster["spec"]["taints"].as_array();
        taints.into_iter().flatten().any(|taint| !tolerant || taint["key"] != "k")
    };
    let mut found = Vec::new();
    if others().any(untolerated) {
        found.push("with an untolerated taint");
    }
    if others().any(|cluster| cluster["status"]["apiEnablements"].is_null()) {
        found.push("without the API");
    }
    if input.clusters.iter().any(|cluster| cluster["deleting"] == true) {
        found.push("being deleted");
    }
    found
}

fn sorted(clusters: &Value) -> Vec<String> {
    let mut all: Vec<String> = clusters.as_array().into_iter().flatten().map(Value::to_string).collect();
    all.sort();
    all
}

/// Says whether two messages report the same numbers of clusters, rejected for whichever reason.
fn same_but_for_reasons(one: &str, other: &str) -> bool {
    let parse = |message: &str| -> Option<(String, usize)> {
        let (head, reasons) = message.split_once(" clusters are available: ")?;
        let counts = reasons.split(", ").map(|reason| reason.split(' ').next()?.parse::<usize>().ok());
        Some((head.to_owned(), counts.sum::<Option<usize>>()?))
    };
    parse(one).is_some() && parse(one) == parse(other)
}
